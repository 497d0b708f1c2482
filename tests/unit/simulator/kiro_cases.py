"""Hand-written Kiro requests: for each of the 51 rules some that break it and some, as near as can be, that do not."""

from __future__ import annotations

import base64
import struct
from typing import Any

from msgspec import Struct

from dragoman.dialects.kiro.rules import Grade
from dragoman.simulator.kiro.verdict import IMPROPER, Limits, sign
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest

ARN = "arn:aws:codewhisperer:us-east-1:123456789012:profile/ABCDEFGHJKLM"


def spec(name: str = "get_weather", schema: Any = None, description: Any = "Tells the weather.") -> dict[str, Any]:
    schema = (
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        if schema is None
        else schema
    )
    return {"toolSpecification": {"name": name, "description": description, "inputSchema": {"json": schema}}}


def prop(**schema: Any) -> dict[str, Any]:
    """A tool with one property of this schema."""
    return spec(schema={"type": "object", "properties": {"p": schema}})


def use(id_: str = "t1", name: str = "get_weather", **more: Any) -> dict[str, Any]:
    return {"toolUseId": id_, "name": name, "input": {"city": "Paris"}, **more}


def result(id_: str = "t1", text: str = "sunny", **more: Any) -> dict[str, Any]:
    return {"toolUseId": id_, "content": [{"text": text}], "status": "success", **more}


def user(content: Any = "Hello", *, results: Any = (), tools: Any = (), **more: Any) -> dict[str, Any]:
    context = ({"toolResults": list(results)} if results else {}) | ({"tools": list(tools)} if tools else {})
    message = {"content": content, "modelId": "claude-sonnet-4.5", "origin": "AI_EDITOR", **more}
    return {"userInputMessage": message | ({"userInputMessageContext": context} if context else {})}


def assistant(content: Any = "I understand.", *uses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"assistantResponseMessage": {"content": content, **({"toolUses": list(uses)} if uses else {}), **more}}


def body(current: Any = None, history: Any = (), state: Any = None, **top: Any) -> dict[str, Any]:
    held = {"conversationId": "6c9f2b0e-2d0f-4b8e-9a53-0f6a3c1f7d11", "chatTriggerType": "MANUAL"}
    held |= {"currentMessage": current or user()} | ({"history": list(history)} if history else {}) | (state or {})
    return {"conversationState": held, **top}


def image(format_: str = "png", data: Any = "iVBORw0KGgo=") -> dict[str, Any]:
    return {"format": format_, "source": {"bytes": data}}


def png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", width, height)
    return base64.b64encode(head + b"\x08\x06\x00\x00\x00").decode()


def called(
    *results: dict[str, Any], uses: Any = None, tools: Any = None, content: str = "Tool results provided."
) -> dict[str, Any]:
    """A conversation whose last assistant turn made calls, and whose current turn answers them."""
    made = [use()] if uses is None else uses
    current = user(content, results=results or [result()], tools=[spec()] if tools is None else tools)
    return body(current, [user("Weather?"), assistant("I look.", *made)])


def reasoned(content: Any) -> dict[str, Any]:
    return body(history=[user(), assistant("Answer", reasoningContent=content)])


class Case(Struct, frozen=True, kw_only=True):
    """`also`: rules that such a request cannot but break too."""

    rule: int
    name: str
    body: Any
    at: str = ""
    grade: Grade = "A"
    message: str = IMPROPER
    reason: str | None = None
    status: int = 400
    type: str = "ValidationException"
    limits: Limits = Limits()
    headers: dict[str, str] = {}
    also: frozenset[int] = frozenset()

    @property
    def raw(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else jsonio.encode(self.body)

    @property
    def request(self) -> HttpRequest:
        headers = {"content-type": "application/json", "authorization": "Bearer token", **self.headers}
        return HttpRequest("POST", "/generateAssistantResponse", headers=tuple(headers.items()), body=self.raw)

    def __str__(self) -> str:
        return f"{self.rule}-{self.name}"


_CURRENT = "conversationState.currentMessage.userInputMessage"
_TOOL = f"{_CURRENT}.userInputMessageContext.tools[0].toolSpecification"
_SCHEMA = f"{_TOOL}.inputSchema.json"
_HISTORY = "conversationState.history"
_INVALID = "REQUEST_BODY_INVALID"
_BAD_ROOT = (
    "Bedrock error message: The value at toolConfig.tools.0.toolSpec.inputSchema.json.type "
    "must be one of the following: object."
)
_BAD_UNION = (
    "Bedrock error message: tools.0.custom.input_schema: "
    "input_schema does not support oneOf, allOf, or anyOf at the top level"
)
_BAD_MODEL = "Invalid model. Please select a different model to continue."
_EIGHT_TURNS = [user(), assistant()] * 4
_LONG_HISTORY = [user(), assistant()] * 100


def tools_(*tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return body(user(tools=tools), **more)


def many_images(edge: int) -> dict[str, Any]:
    ten = [image("png", png(edge, 10))] * 10
    return body(
        user(images=[image("png", png(10, 10))]), [user(images=ten), assistant(), user(images=ten), assistant()]
    )


REFUSED: tuple[Case, ...] = (
    # --- history
    Case(
        rule=1,
        name="two assistants",
        body=body(history=[user(), assistant(), assistant()]),
        grade="B",
        at=f"{_HISTORY}[2].assistantResponseMessage",
    ),
    Case(
        rule=1,
        name="two users",
        body=body(history=[user(), user(), assistant()]),
        grade="B",
        at=f"{_HISTORY}[1].userInputMessage",
    ),
    Case(
        rule=2,
        name="assistant first",
        body=body(history=[assistant(), user(), assistant()]),
        at=f"{_HISTORY}[0].assistantResponseMessage",
    ),
    Case(
        rule=3,
        name="first turn has results",
        body=body(user(tools=[spec()]), [user("x", results=[result()]), assistant()]),
        also=frozenset({8}),
    ),
    Case(
        rule=4,
        name="ends with user",
        body=body(history=[user(), assistant(), user()]),
        grade="B",
        at=f"{_HISTORY}[2].userInputMessage",
    ),
    Case(rule=5, name="current is assistant", body=body(assistant()), grade="B"),
    Case(rule=6, name="empty", body=body(user("")), grade="C", at=f"{_CURRENT}.content"),
    Case(rule=6, name="blank in history", body=body(history=[user(" \n"), assistant()]), grade="C"),
    Case(rule=6, name="empty beside results", body=called(content=""), grade="D"),
    Case(
        rule=7,
        name="empty",
        body=body(history=[user(), assistant("")]),
        grade="B",
        at=f"{_HISTORY}[1].assistantResponseMessage.content",
    ),
    Case(rule=7, name="blank", body=body(history=[user(), assistant(" ")]), grade="D"),
    Case(rule=31, name="empty history", body=body(state={"history": []}), grade="C", at=_HISTORY),
    # --- pairing
    Case(
        rule=8,
        name="no call",
        body=called(result(), result("t9")),
        at=f"{_CURRENT}.userInputMessageContext.toolResults[1]",
    ),
    Case(
        rule=9,
        name="no result",
        body=body(user(tools=[spec()]), [user(), assistant("I look.", use())]),
        at=f"{_HISTORY}[1].assistantResponseMessage.toolUses[0]",
    ),
    Case(rule=9, name="one of two", body=called(result("t2"), uses=[use("t1"), use("t2")])),
    Case(
        rule=10,
        name="split by an aside",
        body=body(
            user("go", results=[result("t2")], tools=[spec()]),
            [user(), assistant("x", use("t1"), use("t2")), user("y", results=[result("t1")]), assistant("aside")],
        ),
        grade="B",
        also=frozenset({9}),
    ),
    Case(rule=11, name="twice in one turn", body=called(result(), result()), grade="B"),
    Case(
        rule=11,
        name="answered before",
        body=body(
            user("x", results=[result()], tools=[spec()]),
            [user(), assistant("x", use()), user("y", results=[result()]), assistant("z")],
        ),
        grade="B",
        also=frozenset({10}),
    ),
    Case(rule=12, name="twice in one turn", body=called(uses=[use(), use()]), grade="C"),
    Case(
        rule=12,
        name="used again",
        body=body(
            user("x", results=[result()], tools=[spec()]),
            [user(), assistant("x", use()), user("y", results=[result()]), assistant("z", use())],
        ),
        grade="D",
    ),
    Case(
        rule=13,
        name="not declared",
        body=called(uses=[use(name="grep")]),
        at=f"{_HISTORY}[1].assistantResponseMessage.toolUses[0].name",
    ),
    Case(rule=14, name="no tools", body=called(tools=[]), grade="B", also=frozenset({13})),
    # --- tools
    Case(
        rule=15,
        name="illegal characters",
        body=tools_(spec("files.read all")),
        at=f"{_TOOL}.name",
        message="Invalid tool use format.",
        reason=_INVALID,
    ),
    Case(
        rule=15, name="65 characters", body=tools_(spec("a" * 65)), message="Invalid tool use format.", reason=_INVALID
    ),
    Case(
        rule=15,
        name="empty, in history",
        body=called(uses=[use(name="")]),
        message="Invalid tool use format.",
        reason=_INVALID,
        also=frozenset({13}),
    ),
    Case(rule=16, name="colon", body=called(result("call:1"), uses=[use("call:1")])),
    Case(rule=16, name="65 characters", body=called(result("a" * 65), uses=[use("a" * 65)])),
    Case(rule=16, name="empty", body=called(result(""), uses=[use("")])),
    Case(rule=17, name="empty", body=tools_(spec(description="")), at=f"{_TOOL}.description"),
    Case(
        rule=17,
        name="missing",
        body=tools_({"toolSpecification": {"name": "a", "inputSchema": {"json": {"type": "object"}}}}),
        grade="C",
    ),
    Case(rule=18, name="10241 characters", body=tools_(spec(description="d" * 10_241)), at=f"{_TOOL}.description"),
    Case(rule=18, name="10242 bytes", body=tools_(spec(description="語" * 3414)), grade="C"),
    Case(
        rule=19,
        name="a string",
        body=tools_(spec(schema={"type": "string"})),
        grade="B",
        at=f"{_SCHEMA}.type",
        message=_BAD_ROOT,
        reason="TOOL_SCHEMA_INVALID",
    ),
    Case(
        rule=19,
        name="no type",
        body=tools_(spec(schema={})),
        grade="B",
        message=_BAD_ROOT,
        reason="TOOL_SCHEMA_INVALID",
    ),
    Case(
        rule=19,
        name="no schema",
        body=tools_({"toolSpecification": {"name": "a", "description": "b"}}),
        grade="B",
        message=_BAD_ROOT,
        reason="TOOL_SCHEMA_INVALID",
    ),
    Case(
        rule=19,
        name="before rule 15",
        body=tools_(spec("a b", {"type": "array"})),
        grade="B",
        message=_BAD_ROOT,
        reason="TOOL_SCHEMA_INVALID",
        also=frozenset({15}),
    ),
    Case(
        rule=20,
        name="null",
        body=tools_(spec(schema={"type": "object", "required": None})),
        grade="B",
        reason="TOOL_SCHEMA_INVALID",
        at=f"{_SCHEMA}.required",
    ),
    Case(
        rule=20,
        name="a flag below",
        body=tools_(prop(type="string", required=True)),
        grade="B",
        reason="TOOL_SCHEMA_INVALID",
    ),
    Case(
        rule=21,
        name="empty",
        body=tools_(spec(schema={"type": "object", "required": []})),
        grade="D",
        at=f"{_SCHEMA}.required",
    ),
    Case(
        rule=22,
        name="at the root",
        body=tools_(spec(schema={"type": "object", "additionalProperties": False})),
        grade="D",
    ),
    Case(
        rule=22,
        name="in items",
        body=tools_(prop(type="array", items={"type": "object", "additionalProperties": True})),
        grade="D",
        at=f"{_SCHEMA}.properties.p.items.additionalProperties",
    ),
    Case(
        rule=23,
        name="at the root",
        body=tools_(spec(schema={"type": "object", "$schema": "http://json-schema.org/draft-07/schema#"})),
        grade="D",
    ),
    Case(
        rule=24,
        name="below the root",
        body=tools_(prop(type="object", properties={})),
        grade="D",
        at=f"{_SCHEMA}.properties.p.properties",
    ),
    Case(
        rule=25,
        name="anyOf",
        body=tools_(spec(schema={"type": "object", "anyOf": [{"required": ["a"]}]})),
        grade="B",
        message=_BAD_UNION,
        reason="TOOL_SCHEMA_INVALID",
    ),
    Case(
        rule=26,
        name="pattern",
        body=tools_(prop(type="string", pattern="^a$")),
        grade="B",
        reason=_INVALID,
        at=f"{_SCHEMA}.properties.p.pattern",
    ),
    Case(rule=26, name="maximum", body=tools_(prop(type="integer", maximum=3)), grade="B", reason=_INVALID),
    Case(rule=26, name="format", body=tools_(prop(type="string", format="uri")), grade="C", reason=_INVALID),
    Case(rule=26, name="reference", body=tools_(prop(**{"$ref": "#/$defs/a"})), grade="C", reason=_INVALID),
    Case(
        rule=26,
        name="in a branch",
        body=tools_(prop(anyOf=[{"type": "string"}, {"const": 1}])),
        grade="C",
        reason=_INVALID,
        at=f"{_SCHEMA}.properties.p.anyOf[1].const",
    ),
    Case(
        rule=27,
        name="among tools",
        body=tools_(spec(), {"cachePoint": {"type": "default"}}),
        grade="B",
        at=f"{_CURRENT}.userInputMessageContext.tools[1]",
    ),
    Case(
        rule=28,
        name="text",
        body=called(uses=[use(input='{"city":"Paris"}')]),
        at=f"{_HISTORY}[1].assistantResponseMessage.toolUses[0].input",
    ),
    Case(rule=28, name="null", body=called(uses=[use(input=None)])),
    Case(rule=28, name="missing", body=called(uses=[{"toolUseId": "t1", "name": "get_weather"}])),
    # --- form
    Case(rule=29, name="images", body=body(user(images=None)), grade="C", at=f"{_CURRENT}.images"),
    Case(rule=29, name="history", body=body(state={"history": None}), grade="C", at=_HISTORY),
    Case(rule=30, name="inferenceConfig", body=body(inferenceConfig={"maxTokens": 1}), grade="C", at="inferenceConfig"),
    Case(rule=32, name="no content", body=called(result(content=[])), grade="B"),
    Case(
        rule=32,
        name="empty text",
        body=called(result(text="")),
        grade="B",
        at=f"{_CURRENT}.userInputMessageContext.toolResults[0].content[0].text",
    ),
    Case(
        rule=33,
        name="failed",
        body=called(result(status="failed")),
        at=f"{_CURRENT}.userInputMessageContext.toolResults[0].status",
    ),
    Case(
        rule=34, name="half a document", body=b'{"conversationState": {', message="The request body is not valid JSON."
    ),
    Case(
        rule=34,
        name="unpaired surrogate",
        body=body(user("a\ud800b")),
        grade="C",
        at=f"{_CURRENT}.content",
        message="The request body is not valid JSON.",
    ),
    # --- images
    Case(rule=35, name="jpg", body=body(user(images=[image("jpg")])), at=f"{_CURRENT}.images[0].format"),
    Case(
        rule=36,
        name="address",
        body=body(user(images=[{"format": "png", "source": {"url": "https://example.com/a.png"}}])),
        at=f"{_CURRENT}.images[0].source",
    ),
    Case(
        rule=37,
        name="over 5 MiB",
        body=body(user(images=[image("png", "AAAA" * (5_242_880 // 4 + 1))])),
        grade="B",
        message="image exceeds 5 MB maximum: 5242884 bytes > 5242880 bytes",
    ),
    Case(rule=38, name="eleven", body=body(user(images=[image()] * 11)), at=f"{_CURRENT}.images"),
    Case(rule=38, name="many and large", body=many_images(2001), grade="B"),
    Case(
        rule=39, name="a Buffer", body=body(user(images=[image("png", {"type": "Buffer", "data": [1, 2]})])), grade="B"
    ),
    Case(
        rule=39,
        name="a data address",
        body=body(user(images=[image("png", "data:image/png;base64,iVBORw0KGgo=")])),
        grade="B",
    ),
    # --- reasoning
    Case(rule=40, name="flat", body=reasoned({"text": "t", "signature": "s"}), grade="B", reason=_INVALID),
    Case(rule=40, name="a text", body=reasoned("t"), grade="B", reason=_INVALID),
    Case(rule=40, name="unsigned", body=reasoned({"reasoningText": {"text": "t"}}), grade="B", reason=_INVALID),
    Case(
        rule=40,
        name="half a signature",
        body=reasoned({"reasoningText": {"text": "t", "signature": sign("t")[:40]}}),
        grade="B",
        message="Invalid `signature` in `thinking` block",
        reason="THINKING_SIGNATURE_INVALID",
    ),
    Case(
        rule=40,
        name="a stranger's",
        body=reasoned({"reasoningText": {"text": "t", "signature": "EqQBCg"}}),
        grade="B",
        message="Invalid `signature` in `thinking` block",
        reason="THINKING_SIGNATURE_INVALID",
        limits=Limits(signatures="strict"),
    ),
    Case(rule=41, name="mode", body=called(content="<thinking_mode>enabled</thinking_mode> go on"), grade="B"),
    # --- size
    Case(
        rule=42,
        name="over the window",
        body=body(user("word " * 400)),
        grade="B",
        message="Input is too long.",
        reason="CONTENT_LENGTH_EXCEEDS_THRESHOLD",
        limits=Limits(window=500),
    ),
    Case(
        rule=42,
        name="over the model's own window",
        body=body(history=[user("w" * 500_000), assistant()] * 2),
        grade="B",
        message="Input is too long.",
        reason="CONTENT_LENGTH_EXCEEDS_THRESHOLD",
    ),
    Case(rule=43, name="under the window", body=body(user("w" * 1000)), grade="B", limits=Limits(payload_tokens=250)),
    Case(rule=43, name="tokens, not bytes", body=body(user("한" * 250)), grade="B", limits=Limits(payload_tokens=250)),
    Case(
        rule=44,
        name="over the cap",
        body=body(user("w" * 1000)),
        grade="B",
        status=413,
        message="Failed to buffer the request body: length limit exceeded",
        limits=Limits(body_bytes=1000),
    ),
    Case(rule=45, name="120 tools", body=tools_(*(spec(f"tool{n}") for n in range(120))), grade="B"),
    Case(
        rule=45,
        name="2 MB of tools",
        body=tools_(*(spec(f"tool{n}", description="d" * 9000) for n in range(3))),
        grade="B",
        reason=_INVALID,
        limits=Limits(tool_bytes=20_000),
    ),
    Case(
        rule=46,
        name="no version",
        body=body(history=_LONG_HISTORY),
        grade="B",
        headers={"user-agent": "aws-sdk-js/1.0.34 KiroIDE"},
    ),
    Case(rule=47, name="AUTO", body=body(state={"chatTriggerType": "AUTO"}), grade="C"),
    Case(rule=47, name="unknown", body=body(state={"chatTriggerType": "SOMETIMES"})),
    # --- identity
    Case(
        rule=48,
        name="dashes",
        body=body(user(modelId="claude-sonnet-4-5")),
        at=f"{_CURRENT}.modelId",
        message=_BAD_MODEL,
        reason="INVALID_MODEL_ID",
    ),
    Case(
        rule=48,
        name="null",
        body=body(user(modelId=None)),
        message=_BAD_MODEL,
        reason="INVALID_MODEL_ID",
        also=frozenset({29}),
    ),
    Case(
        rule=49,
        name="missing",
        body=body(),
        grade="B",
        message="profileArn is required for this request.",
        limits=Limits(profile_required=True),
    ),
    Case(
        rule=49,
        name="no ARN",
        body=body(profileArn="arn:aws:iam::123456789012:role/x"),
        message="Invalid profileArn.",
        at="profileArn",
    ),
    Case(
        rule=49,
        name="another's",
        body=body(profileArn=ARN),
        grade="B",
        status=403,
        type="AccessDeniedException",
        message="The bearer token included in the request is invalid.",
        limits=Limits(profile_arns=(ARN.replace("ABC", "XYZ"),)),
    ),
    Case(
        rule=50,
        name="empty",
        body=body(state={"conversationId": ""}),
        message="Invalid conversation id.",
        reason="INVALID_CONVERSATION_ID",
    ),
    Case(
        rule=50,
        name="129 characters",
        body=body(state={"conversationId": "c" * 129}),
        message="Invalid conversation id.",
        reason="INVALID_CONVERSATION_ID",
    ),
    Case(rule=51, name="user", body=body(user("u" * 600_001)), at=f"{_CURRENT}.content"),
    Case(rule=51, name="assistant", body=body(history=[user(), assistant("a" * 100_001)])),
    Case(rule=51, name="result", body=called(result(text="r" * 800_001)), also=frozenset({42})),
)

ACCEPTED: tuple[Case, ...] = (
    Case(rule=1, name="alternating", body=body(history=_EIGHT_TURNS)),
    Case(rule=2, name="user first", body=body(history=[user("Continue"), assistant("Hi")])),
    Case(rule=3, name="results in the second turn", body=called()),
    Case(rule=4, name="filler at the end", body=body(history=[user(), assistant("I understand.")])),
    Case(rule=5, name="prefill moved to history", body=body(user("Continue"), [user(), assistant("{")])),
    Case(rule=6, name="carrier sentence", body=called(content="Tool results provided.")),
    Case(rule=7, name="text beside calls", body=called(uses=[use()])),
    Case(rule=8, name="call before it", body=called(result("a-1"), uses=[use("a-1")])),
    Case(
        rule=9,
        name="both answered",
        body=called(result("t2"), result("t1", status="error"), uses=[use("t1"), use("t2")]),
    ),
    Case(
        rule=10,
        name="batch, then the aside",
        body=body(
            user("go", tools=[spec()]),
            [
                user(),
                assistant("x", use("t1"), use("t2")),
                user("y", results=[result("t1"), result("t2")]),
                assistant("aside"),
            ],
        ),
    ),
    Case(rule=11, name="one each", body=called(result("t1"), result("t2"), uses=[use("t1"), use("t2")])),
    Case(rule=12, name="two ids", body=called(result("t1"), result("t2"), uses=[use("t1"), use("t2")])),
    Case(rule=13, name="other case", body=called(uses=[use(name="Get_Weather")])),
    Case(rule=14, name="a stub", body=called(tools=[spec(schema={"type": "object", "properties": {}})])),
    Case(rule=15, name="64 characters", body=tools_(spec("a" * 64), spec("mcp__a-b_1"))),
    Case(rule=16, name="64 characters", body=called(result("a" * 64), uses=[use("a" * 64)])),
    Case(rule=17, name="one character", body=tools_(spec(description="d"))),
    Case(rule=18, name="10240 bytes", body=tools_(spec(description="語" * 3413 + "d"))),
    Case(rule=19, name="empty object", body=tools_(spec(schema={"type": "object", "properties": {}}))),
    Case(rule=20, name="an array", body=tools_(spec(schema={"type": "object", "required": ["a"]}))),
    Case(
        rule=21, name="left out", body=tools_(spec(schema={"type": "object", "properties": {"a": {"type": "string"}}}))
    ),
    Case(
        rule=22,
        name="a property of that name",
        body=tools_(spec(schema={"type": "object", "properties": {"additionalProperties": {"type": "boolean"}}})),
    ),
    Case(rule=23, name="in a description", body=tools_(prop(type="string", description="a $schema"))),
    Case(rule=24, name="at the root", body=tools_(spec(schema={"type": "object", "properties": {}}))),
    Case(rule=25, name="below the root", body=tools_(prop(anyOf=[{"type": "string"}, {"type": "integer"}]))),
    Case(
        rule=26,
        name="properties of those names",
        body=tools_(
            spec(
                schema={
                    "type": "object",
                    "properties": {
                        name: {"type": "string"} for name in ("format", "pattern", "required", "$ref", "const")
                    },
                    "required": ["format"],
                }
            )
        ),
    ),
    Case(
        rule=26,
        name="values that look like keywords",
        body=tools_(prop(enum=["pattern"], default={"pattern": "x", "required": None})),
    ),
    Case(rule=27, name="on a message", body=body(user(cachePoint={"type": "default"}, tools=[spec()]))),
    Case(rule=28, name="empty object", body=called(uses=[use(input={})])),
    Case(rule=29, name="null inside a document", body=called(uses=[use(input={"a": None})])),
    Case(
        rule=30,
        name="all known fields",
        body=body(profileArn=ARN, agentMode="vibe", additionalModelRequestFields={"thinking": {"type": "adaptive"}}),
    ),
    Case(rule=31, name="left out", body=body()),
    Case(rule=32, name="placeholder", body=called(result(text="(no output)"))),
    Case(rule=32, name="a document", body=called(result(content=[{"json": {"a": 1}}]))),
    Case(rule=33, name="error", body=called(result(status="error"))),
    Case(rule=34, name="a pair", body=jsonio.encode(body(user("SMILE"))).replace(b"SMILE", rb"\ud83d\ude00")),
    Case(rule=35, name="all four", body=body(user(images=[image(kind) for kind in ("png", "jpeg", "gif", "webp")]))),
    Case(rule=36, name="by value", body=body(user(images=[image()]))),
    Case(rule=37, name="5 MiB", body=body(user(images=[image("png", "AAAA" * (5_242_880 // 4))]))),
    Case(rule=38, name="ten", body=body(user(images=[image()] * 10))),
    Case(rule=38, name="many and small", body=many_images(2000)),
    Case(rule=39, name="base64", body=body(user(images=[image("gif", "R0lGODlhAQABAAAAACw=")]))),
    Case(rule=40, name="signed by us", body=reasoned({"reasoningText": {"text": "t", "signature": sign("t")}})),
    Case(rule=40, name="signed by another", body=reasoned({"reasoningText": {"text": "t", "signature": "EqQBCg"}})),
    Case(rule=40, name="redacted", body=reasoned({"redactedContent": "YWJj"})),
    Case(rule=41, name="tags without results", body=body(user("<thinking_mode>enabled</thinking_mode> go"))),
    Case(
        rule=42,
        name="a large model",
        body=body(user(modelId="claude-opus-4.6"), [user("w" * 500_000), assistant()] * 2),
    ),
    Case(rule=43, name="under the budget", body=body(user("w" * 500)), limits=Limits(payload_tokens=250)),
    Case(rule=44, name="under the cap", body=body(user("w" * 100)), limits=Limits(body_bytes=1000)),
    Case(rule=45, name="119 tools", body=tools_(*(spec(f"tool{n}") for n in range(119)))),
    Case(rule=46, name="a version", body=body(history=_LONG_HISTORY), headers={"user-agent": "KiroIDE-0.7.45-abc"}),
    Case(rule=46, name="our own name", body=body(history=_LONG_HISTORY), headers={"user-agent": "dragoman/0.1"}),
    Case(rule=46, name="short history", body=body(history=_EIGHT_TURNS), headers={"user-agent": "KiroIDE"}),
    Case(rule=47, name="MANUAL", body=body(state={"chatTriggerType": "MANUAL"})),
    Case(rule=48, name="dots", body=body(user(modelId="claude-haiku-4.5"))),
    Case(rule=48, name="auto", body=body(user(modelId="auto"))),
    Case(
        rule=49,
        name="the right one",
        body=body(profileArn=ARN),
        limits=Limits(profile_required=True, profile_arns=(ARN,)),
    ),
    Case(
        rule=49,
        name="an API key needs none",
        body=body(),
        headers={"tokentype": "API_KEY"},
        limits=Limits(profile_required=True),
    ),
    Case(rule=50, name="128 characters", body=body(state={"conversationId": "c" * 128})),
    Case(rule=51, name="just within", body=body(user("u" * 600_000), [user(), assistant("a" * 100_000)])),
)
