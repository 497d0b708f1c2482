"""Hand-written Kiro requests: for each of the 51 rules some that break it and some, as near as can be, that do not."""

from __future__ import annotations

import base64
import struct
from typing import Any

from msgspec import Struct

from dragoman.dialects.kiro.rules import Grade
from dragoman.simulator.kiro.refusals import IMPROPER, SimulatorLimits, sign
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
    fields = {"conversationId": "6c9f2b0e-2d0f-4b8e-9a53-0f6a3c1f7d11", "chatTriggerType": "MANUAL"}
    fields |= {"currentMessage": current or user()} | ({"history": list(history)} if history else {}) | (state or {})
    return {"conversationState": fields, **top}


def image(format_: str = "png", data: Any = "iVBORw0KGgo=") -> dict[str, Any]:
    return {"format": format_, "source": {"bytes": data}}


def png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", width, height)
    return base64.b64encode(head + b"\x08\x06\x00\x00\x00").decode()


def call_and_results(
    *results: dict[str, Any], uses: Any = None, tools: Any = None, content: str = "Tool results provided."
) -> dict[str, Any]:
    """A conversation whose last assistant turn made calls, and whose current turn answers them."""
    calls = [use()] if uses is None else uses
    current = user(content, results=results or [result()], tools=[spec()] if tools is None else tools)
    return body(current, [user("Weather?"), assistant("I look.", *calls)])


def reasoned(content: Any) -> dict[str, Any]:
    return body(history=[user(), assistant("Answer", reasoningContent=content)])


class Case(Struct, frozen=True):
    """`also`: rules that such a request cannot but break too."""

    rule: int
    name: str
    body: Any
    grade: Grade = "A"
    at: str = ""
    message: str = IMPROPER
    reason: str | None = None
    status: int = 400
    type: str = "ValidationException"
    limits: SimulatorLimits = SimulatorLimits()
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


# What the service answers to a breach of a rule, where that is not IMPROPER without a reason.
_REFUSALS: dict[int, dict[str, Any]] = {
    15: {"message": "Invalid tool use format.", "reason": _INVALID},
    19: {"message": _BAD_ROOT, "reason": "TOOL_SCHEMA_INVALID"},
    20: {"reason": "TOOL_SCHEMA_INVALID"},
    25: {"message": _BAD_UNION, "reason": "TOOL_SCHEMA_INVALID"},
    26: {"reason": _INVALID},
    34: {"message": "The request body is not valid JSON."},
    42: {"message": "Input is too long.", "reason": "CONTENT_LENGTH_EXCEEDS_THRESHOLD"},
    48: {"message": _BAD_MODEL, "reason": "INVALID_MODEL_ID"},
    50: {"message": "Invalid conversation id.", "reason": "INVALID_CONVERSATION_ID"},
}


def _refused(rule: int, name: str, body: Any, grade: Grade = "A", **more: Any) -> Case:
    return Case(rule, name, body, grade, **_REFUSALS[rule], **more)


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
        1,
        "two assistants",
        body(history=[user(), assistant(), assistant()]),
        "B",
        at=f"{_HISTORY}[2].assistantResponseMessage",
    ),
    Case(1, "two users", body(history=[user(), user(), assistant()]), "B", at=f"{_HISTORY}[1].userInputMessage"),
    Case(
        2,
        "assistant first",
        body(history=[assistant(), user(), assistant()]),
        at=f"{_HISTORY}[0].assistantResponseMessage",
    ),
    Case(
        3,
        "first turn has results",
        body(user(tools=[spec()]), [user("x", results=[result()]), assistant()]),
        also=frozenset({8}),
    ),
    Case(4, "ends with user", body(history=[user(), assistant(), user()]), "B", at=f"{_HISTORY}[2].userInputMessage"),
    Case(5, "current is assistant", body(assistant()), "B"),
    Case(6, "empty", body(user("")), "C", at=f"{_CURRENT}.content"),
    Case(6, "blank in history", body(history=[user(" \n"), assistant()]), "C"),
    Case(6, "empty beside results", call_and_results(content=""), "D"),
    Case(7, "empty", body(history=[user(), assistant("")]), "B", at=f"{_HISTORY}[1].assistantResponseMessage.content"),
    Case(7, "blank", body(history=[user(), assistant(" ")]), "D"),
    Case(31, "empty history", body(state={"history": []}), "C", at=_HISTORY),
    # --- pairing
    Case(
        8, "no call", call_and_results(result(), result("t9")), at=f"{_CURRENT}.userInputMessageContext.toolResults[1]"
    ),
    Case(
        9,
        "no result",
        body(user(tools=[spec()]), [user(), assistant("I look.", use())]),
        at=f"{_HISTORY}[1].assistantResponseMessage.toolUses[0]",
    ),
    Case(9, "one of two", call_and_results(result("t2"), uses=[use("t1"), use("t2")])),
    Case(
        10,
        "split by an aside",
        body(
            user("go", results=[result("t2")], tools=[spec()]),
            [user(), assistant("x", use("t1"), use("t2")), user("y", results=[result("t1")]), assistant("aside")],
        ),
        "B",
        also=frozenset({9}),
    ),
    Case(11, "twice in one turn", call_and_results(result(), result()), "B"),
    Case(
        11,
        "answered before",
        body(
            user("x", results=[result()], tools=[spec()]),
            [user(), assistant("x", use()), user("y", results=[result()]), assistant("z")],
        ),
        "B",
        also=frozenset({10}),
    ),
    Case(12, "twice in one turn", call_and_results(uses=[use(), use()]), "C"),
    Case(
        12,
        "used again",
        body(
            user("x", results=[result()], tools=[spec()]),
            [user(), assistant("x", use()), user("y", results=[result()]), assistant("z", use())],
        ),
        "D",
    ),
    Case(
        13,
        "not declared",
        call_and_results(uses=[use(name="grep")]),
        at=f"{_HISTORY}[1].assistantResponseMessage.toolUses[0].name",
    ),
    Case(14, "no tools", call_and_results(tools=[]), "B", also=frozenset({13})),
    # --- tools
    _refused(15, "illegal characters", tools_(spec("files.read all")), at=f"{_TOOL}.name"),
    _refused(15, "65 characters", tools_(spec("a" * 65))),
    _refused(15, "empty, in history", call_and_results(uses=[use(name="")]), also=frozenset({13})),
    Case(16, "colon", call_and_results(result("call:1"), uses=[use("call:1")])),
    Case(16, "65 characters", call_and_results(result("a" * 65), uses=[use("a" * 65)])),
    Case(16, "empty", call_and_results(result(""), uses=[use("")])),
    Case(17, "empty", tools_(spec(description="")), at=f"{_TOOL}.description"),
    Case(17, "missing", tools_({"toolSpecification": {"name": "a", "inputSchema": {"json": {"type": "object"}}}}), "C"),
    Case(18, "10241 characters", tools_(spec(description="d" * 10_241)), at=f"{_TOOL}.description"),
    Case(18, "10242 bytes", tools_(spec(description="語" * 3414)), "C"),
    _refused(19, "a string", tools_(spec(schema={"type": "string"})), "B", at=f"{_SCHEMA}.type"),
    _refused(19, "no type", tools_(spec(schema={})), "B"),
    _refused(19, "no schema", tools_({"toolSpecification": {"name": "a", "description": "b"}}), "B"),
    _refused(19, "before rule 15", tools_(spec("a b", {"type": "array"})), "B", also=frozenset({15})),
    _refused(20, "null", tools_(spec(schema={"type": "object", "required": None})), "B", at=f"{_SCHEMA}.required"),
    _refused(20, "a flag below", tools_(prop(type="string", required=True)), "B"),
    Case(21, "empty", tools_(spec(schema={"type": "object", "required": []})), "D", at=f"{_SCHEMA}.required"),
    Case(22, "at the root", tools_(spec(schema={"type": "object", "additionalProperties": False})), "D"),
    Case(
        22,
        "in items",
        tools_(prop(type="array", items={"type": "object", "additionalProperties": True})),
        "D",
        at=f"{_SCHEMA}.properties.p.items.additionalProperties",
    ),
    Case(
        23,
        "at the root",
        tools_(spec(schema={"type": "object", "$schema": "http://json-schema.org/draft-07/schema#"})),
        "D",
    ),
    Case(
        24, "below the root", tools_(prop(type="object", properties={})), "D", at=f"{_SCHEMA}.properties.p.properties"
    ),
    _refused(25, "anyOf", tools_(spec(schema={"type": "object", "anyOf": [{"required": ["a"]}]})), "B"),
    _refused(26, "pattern", tools_(prop(type="string", pattern="^a$")), "B", at=f"{_SCHEMA}.properties.p.pattern"),
    _refused(26, "maximum", tools_(prop(type="integer", maximum=3)), "B"),
    _refused(26, "format", tools_(prop(type="string", format="uri")), "C"),
    _refused(26, "reference", tools_(prop(**{"$ref": "#/$defs/a"})), "C"),
    _refused(
        26,
        "in a branch",
        tools_(prop(anyOf=[{"type": "string"}, {"const": 1}])),
        "C",
        at=f"{_SCHEMA}.properties.p.anyOf[1].const",
    ),
    Case(
        27,
        "among tools",
        tools_(spec(), {"cachePoint": {"type": "default"}}),
        "B",
        at=f"{_CURRENT}.userInputMessageContext.tools[1]",
    ),
    Case(
        28,
        "text",
        call_and_results(uses=[use(input='{"city":"Paris"}')]),
        at=f"{_HISTORY}[1].assistantResponseMessage.toolUses[0].input",
    ),
    Case(28, "null", call_and_results(uses=[use(input=None)])),
    Case(28, "missing", call_and_results(uses=[{"toolUseId": "t1", "name": "get_weather"}])),
    # --- form
    Case(29, "images", body(user(images=None)), "C", at=f"{_CURRENT}.images"),
    Case(29, "history", body(state={"history": None}), "C", at=_HISTORY),
    Case(30, "inferenceConfig", body(inferenceConfig={"maxTokens": 1}), "C", at="inferenceConfig"),
    Case(32, "no content", call_and_results(result(content=[])), "B"),
    Case(
        32,
        "empty text",
        call_and_results(result(text="")),
        "B",
        at=f"{_CURRENT}.userInputMessageContext.toolResults[0].content[0].text",
    ),
    Case(
        33,
        "failed",
        call_and_results(result(status="failed")),
        at=f"{_CURRENT}.userInputMessageContext.toolResults[0].status",
    ),
    _refused(34, "half a document", b'{"conversationState": {'),
    _refused(34, "unpaired surrogate", body(user("a\ud800b")), "C", at=f"{_CURRENT}.content"),
    # --- images
    Case(35, "jpg", body(user(images=[image("jpg")])), at=f"{_CURRENT}.images[0].format"),
    Case(
        36,
        "address",
        body(user(images=[{"format": "png", "source": {"url": "https://example.com/a.png"}}])),
        at=f"{_CURRENT}.images[0].source",
    ),
    Case(
        37,
        "over 5 MiB",
        body(user(images=[image("png", "AAAA" * (5_242_880 // 4 + 1))])),
        "B",
        message="image exceeds 5 MB maximum: 5242884 bytes > 5242880 bytes",
    ),
    Case(38, "eleven", body(user(images=[image()] * 11)), at=f"{_CURRENT}.images"),
    Case(38, "many and large", many_images(2001), "B"),
    Case(39, "a Buffer", body(user(images=[image("png", {"type": "Buffer", "data": [1, 2]})])), "B"),
    Case(39, "a data address", body(user(images=[image("png", "data:image/png;base64,iVBORw0KGgo=")])), "B"),
    # --- reasoning
    Case(40, "flat", reasoned({"text": "t", "signature": "s"}), "B", reason=_INVALID),
    Case(40, "a text", reasoned("t"), "B", reason=_INVALID),
    Case(40, "unsigned", reasoned({"reasoningText": {"text": "t"}}), "B", reason=_INVALID),
    Case(
        40,
        "half a signature",
        reasoned({"reasoningText": {"text": "t", "signature": sign("t")[:40]}}),
        "B",
        message="Invalid `signature` in `thinking` block",
        reason="THINKING_SIGNATURE_INVALID",
    ),
    Case(
        40,
        "a stranger's",
        reasoned({"reasoningText": {"text": "t", "signature": "EqQBCg"}}),
        "B",
        message="Invalid `signature` in `thinking` block",
        reason="THINKING_SIGNATURE_INVALID",
        limits=SimulatorLimits(signatures="strict"),
    ),
    Case(41, "mode", call_and_results(content="<thinking_mode>enabled</thinking_mode> go on"), "B"),
    # --- size
    _refused(42, "over the window", body(user("word " * 400)), "B", limits=SimulatorLimits(window=500)),
    _refused(42, "over the model's own window", body(history=[user("w" * 500_000), assistant()] * 2), "B"),
    Case(43, "under the window", body(user("w" * 1000)), "B", limits=SimulatorLimits(payload_tokens=250)),
    Case(43, "tokens, not bytes", body(user("한" * 250)), "B", limits=SimulatorLimits(payload_tokens=250)),
    Case(
        44,
        "over the cap",
        body(user("w" * 1000)),
        "B",
        status=413,
        message="Failed to buffer the request body: length limit exceeded",
        limits=SimulatorLimits(body_bytes=1000),
    ),
    Case(45, "120 tools", tools_(*(spec(f"tool{n}") for n in range(120))), "B"),
    Case(
        45,
        "2 MB of tools",
        tools_(*(spec(f"tool{n}", description="d" * 9000) for n in range(3))),
        "B",
        reason=_INVALID,
        limits=SimulatorLimits(tool_bytes=20_000),
    ),
    Case(46, "no version", body(history=_LONG_HISTORY), "B", headers={"user-agent": "aws-sdk-js/1.0.34 KiroIDE"}),
    Case(47, "AUTO", body(state={"chatTriggerType": "AUTO"}), "C"),
    Case(47, "unknown", body(state={"chatTriggerType": "SOMETIMES"})),
    # --- identity
    _refused(48, "dashes", body(user(modelId="claude-sonnet-4-5")), at=f"{_CURRENT}.modelId"),
    _refused(48, "null", body(user(modelId=None)), also=frozenset({29})),
    Case(
        49,
        "missing",
        body(),
        "B",
        message="profileArn is required for this request.",
        limits=SimulatorLimits(profile_required=True),
    ),
    Case(
        49,
        "no ARN",
        body(profileArn="arn:aws:iam::123456789012:role/x"),
        message="Invalid profileArn.",
        at="profileArn",
    ),
    Case(
        49,
        "another's",
        body(profileArn=ARN),
        "B",
        status=403,
        type="AccessDeniedException",
        message="The bearer token included in the request is invalid.",
        limits=SimulatorLimits(profile_arns=(ARN.replace("ABC", "XYZ"),)),
    ),
    _refused(50, "empty", body(state={"conversationId": ""})),
    _refused(50, "129 characters", body(state={"conversationId": "c" * 129})),
    Case(51, "user", body(user("u" * 600_001)), at=f"{_CURRENT}.content"),
    Case(51, "assistant", body(history=[user(), assistant("a" * 100_001)])),
    Case(51, "result", call_and_results(result(text="r" * 800_001)), also=frozenset({42})),
)

ACCEPTED: tuple[Case, ...] = (
    Case(1, "alternating", body(history=_EIGHT_TURNS)),
    Case(2, "user first", body(history=[user("Continue"), assistant("Hi")])),
    Case(3, "results in the second turn", call_and_results()),
    Case(4, "filler at the end", body(history=[user(), assistant("I understand.")])),
    Case(5, "prefill moved to history", body(user("Continue"), [user(), assistant("{")])),
    Case(6, "carrier sentence", call_and_results(content="Tool results provided.")),
    Case(7, "text beside calls", call_and_results(uses=[use()])),
    Case(8, "call before it", call_and_results(result("a-1"), uses=[use("a-1")])),
    Case(9, "both answered", call_and_results(result("t2"), result("t1", status="error"), uses=[use("t1"), use("t2")])),
    Case(
        10,
        "batch, then the aside",
        body(
            user("go", tools=[spec()]),
            [
                user(),
                assistant("x", use("t1"), use("t2")),
                user("y", results=[result("t1"), result("t2")]),
                assistant("aside"),
            ],
        ),
    ),
    Case(11, "one each", call_and_results(result("t1"), result("t2"), uses=[use("t1"), use("t2")])),
    Case(12, "two ids", call_and_results(result("t1"), result("t2"), uses=[use("t1"), use("t2")])),
    Case(13, "other case", call_and_results(uses=[use(name="Get_Weather")])),
    Case(14, "a stub", call_and_results(tools=[spec(schema={"type": "object", "properties": {}})])),
    Case(15, "64 characters", tools_(spec("a" * 64), spec("mcp__a-b_1"))),
    Case(16, "64 characters", call_and_results(result("a" * 64), uses=[use("a" * 64)])),
    Case(17, "one character", tools_(spec(description="d"))),
    Case(18, "10240 bytes", tools_(spec(description="語" * 3413 + "d"))),
    Case(19, "empty object", tools_(spec(schema={"type": "object", "properties": {}}))),
    Case(20, "an array", tools_(spec(schema={"type": "object", "required": ["a"]}))),
    Case(21, "left out", tools_(spec(schema={"type": "object", "properties": {"a": {"type": "string"}}}))),
    Case(
        22,
        "a property of that name",
        tools_(spec(schema={"type": "object", "properties": {"additionalProperties": {"type": "boolean"}}})),
    ),
    Case(23, "in a description", tools_(prop(type="string", description="a $schema"))),
    Case(24, "at the root", tools_(spec(schema={"type": "object", "properties": {}}))),
    Case(25, "below the root", tools_(prop(anyOf=[{"type": "string"}, {"type": "integer"}]))),
    Case(
        26,
        "properties of those names",
        tools_(
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
        26, "values that look like keywords", tools_(prop(enum=["pattern"], default={"pattern": "x", "required": None}))
    ),
    Case(27, "on a message", body(user(cachePoint={"type": "default"}, tools=[spec()]))),
    Case(28, "empty object", call_and_results(uses=[use(input={})])),
    Case(29, "null inside a document", call_and_results(uses=[use(input={"a": None})])),
    Case(
        30,
        "all known fields",
        body(profileArn=ARN, agentMode="vibe", additionalModelRequestFields={"thinking": {"type": "adaptive"}}),
    ),
    Case(31, "left out", body()),
    Case(32, "placeholder", call_and_results(result(text="(no output)"))),
    Case(32, "a document", call_and_results(result(content=[{"json": {"a": 1}}]))),
    Case(33, "error", call_and_results(result(status="error"))),
    Case(34, "a pair", jsonio.encode(body(user("SMILE"))).replace(b"SMILE", rb"\ud83d\ude00")),
    Case(35, "all four", body(user(images=[image(kind) for kind in ("png", "jpeg", "gif", "webp")]))),
    Case(36, "by value", body(user(images=[image()]))),
    Case(37, "5 MiB", body(user(images=[image("png", "AAAA" * (5_242_880 // 4))]))),
    Case(38, "ten", body(user(images=[image()] * 10))),
    Case(38, "many and small", many_images(2000)),
    Case(39, "base64", body(user(images=[image("gif", "R0lGODlhAQABAAAAACw=")]))),
    Case(40, "signed by us", reasoned({"reasoningText": {"text": "t", "signature": sign("t")}})),
    Case(40, "signed by another", reasoned({"reasoningText": {"text": "t", "signature": "EqQBCg"}})),
    Case(40, "redacted", reasoned({"redactedContent": "YWJj"})),
    Case(41, "tags without results", body(user("<thinking_mode>enabled</thinking_mode> go"))),
    Case(42, "a large model", body(user(modelId="claude-opus-4.6"), [user("w" * 500_000), assistant()] * 2)),
    Case(43, "under the budget", body(user("w" * 500)), limits=SimulatorLimits(payload_tokens=250)),
    Case(44, "under the cap", body(user("w" * 100)), limits=SimulatorLimits(body_bytes=1000)),
    Case(45, "119 tools", tools_(*(spec(f"tool{n}") for n in range(119)))),
    Case(46, "a version", body(history=_LONG_HISTORY), headers={"user-agent": "KiroIDE-0.7.45-abc"}),
    Case(46, "our own name", body(history=_LONG_HISTORY), headers={"user-agent": "dragoman/0.1"}),
    Case(46, "short history", body(history=_EIGHT_TURNS), headers={"user-agent": "KiroIDE"}),
    Case(47, "MANUAL", body(state={"chatTriggerType": "MANUAL"})),
    Case(48, "dots", body(user(modelId="claude-haiku-4.5"))),
    Case(48, "auto", body(user(modelId="auto"))),
    Case(49, "the right one", body(profileArn=ARN), limits=SimulatorLimits(profile_required=True, profile_arns=(ARN,))),
    Case(
        49,
        "an API key needs none",
        body(),
        headers={"tokentype": "API_KEY"},
        limits=SimulatorLimits(profile_required=True),
    ),
    Case(50, "128 characters", body(state={"conversationId": "c" * 128})),
    Case(51, "just within", body(user("u" * 600_000), [user(), assistant("a" * 100_000)])),
)
