"""Kiro errors: the table of error bodies, by both wire protocols, and their translation for clients."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman.dialects as registry
from dragoman import dialects
from dragoman.conformance.laws import fixed_environment
from dragoman.dialects.kiro import DIALECT, KiroCodec
from dragoman.dialects.kiro.quirks.raw_calls import RawCallScanner
from dragoman.dialects.kiro.quirks.schemas import MAX_EXPANSION, ExpansionBudget
from dragoman.dialects.kiro.quirks.tools import clean_schema
from dragoman.errors import ErrorKind, Fault
from dragoman.model.blocks import Text, ToolCall
from dragoman.model.conversation import Conversation, Message, StopReason, ToolSpec
from dragoman.response_stream import ResponseTranslator, read_whole_reply
from dragoman.translate import Plan, plan
from dragoman.wire import jsonio
from dragoman.wire.eventstream import encode_event
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

CODEC, BINDING = KiroCodec(), DIALECT.binding
LONG = Conversation("claude-sonnet-4.5", (Message("user", (Text("word " * 150_000),)),))
SHORT = Conversation("claude-sonnet-4.5", (Message("user", (Text("hi"),)),))


def refused(status: int, message: str = "", reason: str | None = None, **more: Any) -> Fault:
    body = {"message": message, "reason": reason, **more}
    return CODEC.parse_fault(HttpResponse(status, (), json.dumps(body).encode()))


@pytest.mark.parametrize(
    ("status", "message", "reason", "kind", "anthropic", "openai"),
    [
        (400, "Improperly formed request.", None, "invalid", 400, 400),
        (400, "Invalid tool use format.", "REQUEST_BODY_INVALID", "invalid", 400, 400),
        (400, "Bedrock error message: The value at ...", "TOOL_SCHEMA_INVALID", "invalid", 400, 400),
        (400, "Input is too long.", "CONTENT_LENGTH_EXCEEDS_THRESHOLD", "context_full", 400, 400),
        (400, "Input content length exceeds threshold.", None, "context_full", 400, 400),
        (400, "Invalid model. Please select a different model to continue.", "INVALID_MODEL_ID", "not_found", 404, 404),
        (400, "profileArn is required for this request.", None, "invalid", 400, 400),
        (401, "Invalid token", None, "auth", 401, 401),
        (403, "The bearer token included in the request is invalid.", None, "auth", 401, 401),
        (403, "Your account temporarily is suspended", "TEMPORARILY_SUSPENDED", "permission", 403, 403),
        (402, "You reached the limit.", "MONTHLY_REQUEST_COUNT", "quota", 429, 429),
        (402, "words vary", "OVERAGE_REQUEST_LIMIT_EXCEEDED", "quota", 429, 429),
        (429, "Too many requests, please wait before trying again.", None, "rate_limit", 429, 429),
        (429, "busy", "INSUFFICIENT_MODEL_CAPACITY", "overloaded", 529, 503),
        (500, "Encountered unexpectedly high load", "MODEL_TEMPORARILY_UNAVAILABLE", "overloaded", 529, 503),
        (500, "", None, "server", 500, 500),
        (503, "", None, "overloaded", 529, 503),
        (504, "", None, "timeout", 504, 504),
        (408, "", None, "timeout", 504, 504),
        (404, "UnknownOperationException", None, "server", 500, 500),
        (413, "Failed to buffer the request body: length limit exceeded", None, "too_large", 413, 413),
    ],
)
def test_the_table_of_errors(
    status: int, message: str, reason: str | None, kind: ErrorKind, anthropic: int, openai: int
) -> None:
    fault = refused(status, message, reason)
    assert fault.kind == kind
    for name, expected in (("anthropic", anthropic), ("openai", openai)):
        client = dialects.get(name)  # type: ignore[attr-defined]
        response = client.binding.error_response(fault, client.codec.render_fault(fault))
        assert response.status in (expected, {500: 502}.get(expected)), name


@pytest.mark.parametrize(
    ("more", "headers", "kind"),
    [
        ({"__type": "ThrottlingException"}, (), "rate_limit"),
        ({"__type": "com.amazon#ThrottlingException"}, (), "rate_limit"),
        ({}, (("x-amzn-errortype", "ThrottlingException:http://internal.amazon.com/"),), "rate_limit"),
        ({"code": "AccessDeniedException"}, (), "auth"),
        ({"__type": "com.amazon.coral#ServiceQuotaExceededException"}, (), "quota"),
    ],
)
def test_the_type_is_in_the_header_or_in_the_body(more: Any, headers: Any, kind: str) -> None:
    response = HttpResponse(400, headers, json.dumps({"message": "m", **more}).encode())
    assert CODEC.parse_fault(response).kind == kind


def test_the_body_cap_has_a_shape_of_its_own() -> None:
    error = {"code": "validation_error", "message": "Failed to buffer the request body: length limit exceeded"}
    fault = CODEC.parse_fault(HttpResponse(413, (), json.dumps({"error": error}).encode()))
    assert (fault.kind, fault.message) == ("too_large", error["message"])


def test_too_long_names_both_token_counts_when_the_request_is_known() -> None:
    body = json.dumps({"message": "Input is too long.", "reason": "CONTENT_LENGTH_EXCEEDS_THRESHOLD"}).encode()
    response = HttpResponse(400, (), body)
    assert CODEC.parse_fault(response, LONG).message == "prompt is too long: 200001 tokens > 200000 maximum"
    longer = Conversation("claude-sonnet-4.5", LONG.messages * 2)
    assert CODEC.parse_fault(response, longer).message == "prompt is too long: 375000 tokens > 200000 maximum"
    assert CODEC.parse_fault(response).message == "prompt is too long: Input is too long."


def test_an_improper_request_is_too_long_only_near_the_window() -> None:
    response = HttpResponse(400, (), b'{"message":"Improperly formed request.","reason":null}')
    assert CODEC.parse_fault(response, SHORT).kind == "invalid"
    assert CODEC.parse_fault(response, LONG).kind == "context_full"
    assert CODEC.parse_fault(response).kind == "invalid"


@pytest.mark.parametrize(
    ("headers", "wait"),
    [((("retry-after", "3"),), 3.0), ((("retry-after", "-1"),), 0.0), ((("retry-after", "soon"),), None), ((), None)],
)
def test_retry_after(headers: Any, wait: float | None) -> None:
    assert CODEC.parse_fault(HttpResponse(429, headers, b"{}")).retry_after == wait


@pytest.mark.parametrize("body", [b"", b"<html>busy</html>", b"plain words", b"[1]", b"\xff"])
def test_a_response_without_json_is_a_fault(body: bytes) -> None:
    fault = CODEC.parse_fault(HttpResponse(502, (("x-amzn-errortype", "Odd:x"),), body))
    assert (fault.kind, fault.status, fault.code) == ("server", 502, "Odd")
    assert "html" not in fault.message


def test_a_reason_is_part_of_the_message() -> None:
    assert refused(403, "no", "FEATURE_NOT_SUPPORTED").message == "no (FEATURE_NOT_SUPPORTED)"
    assert (
        refused(403, "", "FEATURE_NOT_SUPPORTED").message == "the upstream refused the request (FEATURE_NOT_SUPPORTED)"
    )
    assert refused(400).message == "the upstream refused the request (400)"


def test_an_expired_conversation_is_no_expired_token() -> None:
    assert refused(400, "The conversation expired").kind == "invalid"


@pytest.mark.parametrize("kind", get_args(ErrorKind))
def test_every_kind_of_fault_round_trips_for_a_kiro_client(kind: ErrorKind) -> None:
    fault = Fault(kind, "why", 500, 2.5)
    response = BINDING.error_response(fault, CODEC.render_fault(fault))
    assert response.header("retry-after") == "3"
    assert response.header("x-amzn-errortype") == json.loads(response.body)["__type"]
    assert CODEC.parse_fault(response).kind == kind


def test_the_services_reason_is_repeated_in_the_same_dialect() -> None:
    fault = refused(500, "high load", "MODEL_TEMPORARILY_UNAVAILABLE")
    assert json.loads(CODEC.render_fault(fault))["reason"] == "MODEL_TEMPORARILY_UNAVAILABLE"


# --- incomplete streams, invalid token counts, and text that only starts like a call

CLIENTS = [name for name in registry.names() if name != "kiro"]
NAMES = ("edit", "read")


def planned(client: str) -> Plan:
    tools = tuple(ToolSpec(name, schema={"type": "object"}) for name in NAMES)
    conversation = Conversation("claude-sonnet-4.5", (Message("user", (Text("go"),)),), tools=tools, stream=True)
    return plan(registry.get(client), registry.get("kiro"), conversation)


def frame(kind: str, **body: Any) -> bytes:
    return encode_event(kind, json.dumps(body).encode())


def text(words: str) -> bytes:
    return frame("assistantResponseEvent", content=words, modelId="m")


def call(call_id: str, *, stop: bool) -> bytes:
    head = {"toolUseId": call_id, "name": "read"}
    start = frame("toolUseEvent", **head, input='{"path":"a"}')
    return start + frame("toolUseEvent", **head, stop=True) if stop else start


END = frame("contextUsageEvent", contextUsagePercentage=1.5)


# --- a call that gets no stop because the next begins


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("ends", [(False, True), (True, False), (False, False), (False, True, True)])
def test_a_call_without_its_stop_is_not_completed(client: str, ends: tuple[bool, ...]) -> None:
    data = b"".join(call(f"t{at}", stop=stop) for at, stop in enumerate(ends)) + END
    translation_plan = planned(client)
    reply, notes = read_whole_reply(translation_plan, data, fixed_environment())
    [choice] = reply.choices
    calls = [block.id for block in choice.blocks if isinstance(block, ToolCall)]
    assert len(calls) == sum(ends)
    assert choice.stop.reason is StopReason.LENGTH
    assert [note.rule for note in notes].count("kiro.stream.open_call") == ends.count(False)
    result = ResponseTranslator(translation_plan, fixed_environment())
    result.feed(data)
    result.close()
    assert result.progress.stop is not None and result.progress.stop.reason is StopReason.LENGTH
    assert [note.rule for note in result.notes].count("kiro.stream.open_call") == ends.count(False)


@pytest.mark.parametrize("client", CLIENTS)
def test_calls_that_interleave_and_end_are_completed(client: str) -> None:
    pieces = [
        call("t0", stop=False),
        call("t1", stop=True),
        frame("toolUseEvent", toolUseId="t0", name="read", stop=True),
    ]
    reply, notes = read_whole_reply(planned(client), b"".join([*pieces, END]), fixed_environment())
    assert sorted(block.id for block in reply.choices[0].blocks if isinstance(block, ToolCall)) == ["t0", "t1"]
    assert reply.choices[0].stop.reason is StopReason.TOOL
    assert not [note for note in notes if "call" in note.rule]


# --- figures


@pytest.mark.parametrize("kind", ["contextUsageEvent", "metadataEvent", "meteringEvent", "messageMetadataEvent"])
@given(
    value=st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
    | st.just([])
)
def test_no_token_count_fails_a_reply(kind: str, value: Any) -> None:
    inside = dict.fromkeys(("outputTokens", "uncachedInputTokens", "contextUsagePercentage"), value)
    body = {"contextUsagePercentage": value, "tokenUsage": inside, "stopReason": value, "utteranceId": value}
    for payload in (body, {**body, "tokenUsage": value}):
        data = text("Hello") + encode_event(kind, json.dumps(payload).encode())
        reply, _ = read_whole_reply(planned("anthropic"), data, fixed_environment())
        assert [block.text for block in reply.choices[0].blocks if isinstance(block, Text)] == ["Hello"]
        assert reply.usage is not None and min(reply.usage.input, reply.usage.output) >= 0


# --- text that begins as a call does


@pytest.mark.parametrize(
    "words",
    [
        "[Called edit on the file, as asked.",
        "[Called editor",
        "[Called nobody with args: {",
        "[Called edit with arguments: ",
        '[Called edit with args: {"path":"a"}] and it went well.',
        '[Called edit with args: {"path":"a"}',
        "<invoke name=nothing>",
        '<invoke name="other">',
        '<invoke name="edit">words',
        '<invoke name="edit"></invoke> was what I wrote',
        "<function_calls> are a thing",
    ],
)
def test_text_that_cannot_be_a_call_is_not_buffered(words: str) -> None:
    result = ResponseTranslator(planned("anthropic"), fixed_environment())
    is_buffered = not RawCallScanner(NAMES).feed(words)
    out = b"".join(result.feed(text(letter)) for letter in f"Well. {words}")
    client_text = "".join(json.loads(line[6:])["delta"]["text"] for line in out.splitlines() if b"text_delta" in line)
    assert (client_text == f"Well. {words}") == is_buffered
    more = b"".join(result.feed(text(letter)) for letter in "} more words, and then some.")
    client_text += "".join(json.loads(line[6:])["delta"]["text"] for line in more.splitlines() if b"text_delta" in line)
    assert client_text == f"Well. {words}}} more words, and then some."


@pytest.mark.parametrize(
    "words",
    [
        '[Called edit with args: {"path": "a } ]"}]',
        '[Called edit with args: {}]\n[Called read with args: {"a": {"b": 1}}]\n',
        '<function_calls>\n<invoke name="edit">\n<parameter name="path">a</parameter>\n</invoke>\n</function_calls>',
        '<invoke name="edit"><parameter name="path">a</parameter><parameter name="b">c</parameter></invoke>',
        "[Called edited something. [Called edit with args: {}]",
        "[Called edit with args: {}] then [Called edit with args: {}]",
    ],
)
def test_calls_are_still_found(words: str) -> None:
    for size in (1, 3, 1000):
        pieces = [text(words[at : at + size]) for at in range(0, len(words), size)]
        reply, notes = read_whole_reply(planned("anthropic"), b"".join([*pieces, END]), fixed_environment())
        calls = [block for block in reply.choices[0].blocks if isinstance(block, ToolCall)]
        assert calls and reply.choices[0].stop.reason is StopReason.TOOL
        assert [note.rule for note in notes].count("kiro.stream.recovered") == len(calls)


@given(st.lists(st.sampled_from(["[Called ", "edit", " with args: {", "}", "]", '"', "<invoke name=\"edit\">", "</invoke>",
       "<parameter name=\"p\">", "</parameter>", "```", "x", " ", "\n"]), max_size=14), st.integers(1, 5))  # fmt: skip
def test_nothing_is_lost_however_it_is_cut(parts: list[str], size: int) -> None:
    words = "".join(parts) or "x"
    whole, _ = read_whole_reply(planned("anthropic"), text(words) + END, fixed_environment())
    cut = b"".join(text(words[at : at + size]) for at in range(0, len(words), size))
    pieces, _ = read_whole_reply(planned("anthropic"), cut + END, fixed_environment())
    assert [(type(block), getattr(block, "text", "") or getattr(block, "arguments", "")) for block in whole.choices[0].blocks] == [
        (type(block), getattr(block, "text", "") or getattr(block, "arguments", "")) for block in pieces.choices[0].blocks
    ]  # fmt: skip
    if not any(isinstance(block, ToolCall) for block in whole.choices[0].blocks):
        assert "".join(block.text for block in whole.choices[0].blocks if isinstance(block, Text)) == words


# --- references in tool schemas are put in place towards Kiro. All tools of a request share one limit

SCHEMA = dict[str, Json]


def ref(name: object) -> SCHEMA:
    return {"$ref": f"#/$defs/{name}"}


def levels(depth: int, width: int, more: SCHEMA | None = None) -> SCHEMA:
    """Each level refers `width` times to the next."""
    level: dict[str, Json] = {
        str(at): {"properties": {f"p{each}": ref(at + 1) for each in range(width)}, **(more or {})}
        for at in range(depth)
    }
    return {"type": "object", "properties": {"root": ref(0)}, "$defs": {**level, str(depth): {"type": "string"}}}


def mutual(width: int) -> SCHEMA:
    """Every definition refers to every other."""
    defs: SCHEMA = {str(at): {"properties": {str(to): ref(to) for to in range(width)}} for at in range(width)}
    return {"type": "object", "properties": {"root": ref(0)}, "$defs": defs}


def unions(depth: int) -> SCHEMA:
    """Unions at the root, which are merged: each branch has two of the next."""
    defs: SCHEMA = {str(at): {"anyOf": [ref(at + 1), ref(at + 1)]} for at in range(depth)}
    return {"anyOf": [ref(0), ref(0)], "$defs": {**defs, str(depth): {"properties": {"x": {}}}}}


def described(size: int, times: int) -> SCHEMA:
    """A long description that is referred to many times: few values, many bytes."""
    return {
        "type": "object",
        "properties": {f"p{each}": ref("long") for each in range(times)},
        "$defs": {"long": {"type": "string", "description": "d" * size}},
    }


def listed(size: int, times: int) -> SCHEMA:
    """The same with an `enum`, which is no schema but may be long."""
    return {
        "type": "object",
        "properties": {f"p{each}": ref("long") for each in range(times)},
        "$defs": {"long": {"enum": [f"value {each}" for each in range(size)]}},
    }


BOMBS: dict[str, SCHEMA] = {
    "1.4 KB wide": levels(5, 8),
    "deep": levels(40, 2),
    "mutual": mutual(12),
    "unions": unions(40),
    "252 KB": described(100_000, 1500),
    "enum": listed(2000, 1000),
    "described levels": levels(6, 6, {"description": "words " * 50}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_reference_bomb_does_not_grow(name: str) -> None:
    bomb = BOMBS[name]
    tracemalloc.start()
    try:
        cleaned, removed = clean_schema(bomb)
        assert len(jsonio.encode(cleaned)) < 2 * MAX_EXPANSION + len(jsonio.encode(bomb))
        assert "$ref (as any value)" in removed and b"$ref" not in jsonio.encode(cleaned)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * MAX_EXPANSION + 4 * len(jsonio.encode(bomb))


def conversation_with(*schemas: SCHEMA) -> Conversation:
    tools = tuple(ToolSpec(f"tool_{at}", "does it", schema) for at, schema in enumerate(schemas))
    return Conversation("claude-sonnet-4.5", (Message("user", (Text("hello"),)),), tools=tools)


def test_the_tools_of_a_request_share_one_limit_and_a_note_names_the_tool() -> None:
    one = described(20_000, 4)
    translation_plan = plan(registry.get("anthropic"), registry.get("kiro"), conversation_with(*[one] * 10))
    assert len(translation_plan.request().body) < 2 * MAX_EXPANSION
    cut = [note.detail for note in translation_plan.notes if "(as any value)" in note.detail]
    assert cut[0].startswith("the schema of tool_3 ") and len(cut) == 7  # three of them are within the limit
    assert {note.action for note in translation_plan.notes if "(as any value)" in note.detail} == {"dropped"}


def test_a_recursive_schema_keeps_its_first_levels() -> None:
    """A recursive schema of many node types, as document editors have, stays usable and bounded."""
    cleaned, removed = clean_schema(mutual(12))
    first = cleaned["properties"]
    assert isinstance(first, dict) and isinstance(first["root"], dict) and isinstance(first["root"]["properties"], dict)
    assert len(first["root"]["properties"]) == 12 and "$ref (as any value)" in removed


def test_small_schemas_from_the_cache_count_too() -> None:
    small, room = described(1000, 3), ExpansionBudget()
    found = [len(jsonio.encode(clean_schema(small, room)[0])) for _ in range(1000)]
    assert 0 <= room.left < 4000 and sum(found[:50]) > 100_000 and sum(found[500:]) < 500 * 200


def test_usual_references_are_put_in_place() -> None:
    cleaned, _ = clean_schema(levels(3, 3, {"description": "a level"}))
    assert jsonio.encode(cleaned).count(b"a level") == 1 + 3 + 9


@pytest.mark.parametrize("target", ["anthropic", "openai", "responses", "bedrock", "gemini"])
@pytest.mark.parametrize("name", ["deep", "mutual", "unions", "252 KB"])
def test_no_other_dialect_puts_references_in_place(target: str, name: str) -> None:
    bomb = BOMBS[name]
    body = plan(registry.get("openai"), registry.get(target), conversation_with(bomb)).request().body
    assert len(body) < 2 * len(jsonio.encode(bomb)) + 2000
