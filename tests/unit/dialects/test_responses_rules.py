"""The rules of the Responses API for requests and streams; its errors in both directions, and its paths."""

from __future__ import annotations

from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.dialects.base import ApiRequest
from dragoman.errors import ClientFault, Fault, UpstreamFault, UpstreamViolation
from dragoman.model.conversation import Conversation, StopReason
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame
from dragoman.wire.http import HttpRequest, HttpResponse
from tests.wrong_values import WRONG_VALUES

RESPONSES = registry.get("responses")
EMPTY_REQUEST = Conversation("", ())


def broken(**body: Any) -> set[str]:
    call = ApiRequest("generate", "m", False, {"input": "x", **body})
    return {breach.rule.removeprefix("responses.") for breach in RESPONSES.codec.breaches(call)}


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [fields]}


CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "x"}
TOOL = {"type": "function", "name": "f", "parameters": {}}


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ({"input": 1}, "input.missing"),
        ({"input": []}, "input.empty"),
        (item(x=1), "item.type"),
        (item(role="owner", content="x"), "message.role_unknown"),
        (item(role=5, content="x"), "message.role"),
        (item(role="user", content=None), "message.content"),
        (item(role="user", content=[{}]), "message.part_type"),
        (item(role="user", content=[{"type": "output_text", "text": "x"}]), "message.part"),
        (item(role="assistant", content=[{"type": "input_text", "text": "x"}]), "message.part"),
        ({"input": [{**CALL, "call_id": "i" * 65}]}, "call_id.length"),
        ({"input": [{**CALL, "name": "a.b"}]}, "call.name_letters"),
        ({"input": [{**CALL, "name": ""}]}, "call.name"),
        ({"input": [{**CALL, "arguments": {}}]}, "call.arguments"),
        ({"input": [CALL]}, "call.unanswered"),
        ({"input": [OUTPUT]}, "output.unknown_call"),
        ({"input": [CALL, OUTPUT, OUTPUT]}, "output.answered_twice"),
        ({"input": [CALL, {**OUTPUT, "type": "custom_tool_call_output"}]}, "output.kind"),
        ({"input": [CALL, CALL, OUTPUT]}, "call.duplicate_id"),
        (item(type="reasoning"), "reasoning.summary"),
        ({"tools": 1}, "tools.shape"),
        ({"tools": [{}]}, "tools.type"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"name": "f"}]}]}, "tools.type"),
        ({"tools": [TOOL, TOOL]}, "tools.duplicate"),
        ({"tools": [{**TOOL, "parameters": 1}]}, "tools.parameters"),
        ({"tool_choice": "required"}, "tool_choice.without_tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.unknown_tool"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": TOOL["name"], "namespace": "n"}},
            "tool_choice.unknown_tool",
        ),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice.shape"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.shape"),
        ({"temperature": 3}, "knob.range"),
        ({"max_output_tokens": 1}, "max_output_tokens.range"),
        ({"reasoning": {"effort": "huge"}}, "effort.unknown"),
        ({"previous_response_id": "a", "conversation": "b"}, "previous.both"),
        ({"messages": []}, "unknown_field"),
        ({"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}, "format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "format.shape"),
    ],
    ids=str,
)
def test_requests_that_the_service_refuses(body: dict[str, Any], rule: str) -> None:
    assert rule in broken(**body)


def test_requests_that_the_service_accepts() -> None:
    inside = {"type": "namespace", "name": "n", "tools": [TOOL]}
    good = {"input": [CALL, OUTPUT, {"role": "user", "content": "x"}], "tools": [TOOL, inside, {"type": "web_search"}]}
    assert broken(**good, tool_choice={"type": "web_search"}, max_output_tokens=16) == set()
    assert broken(input=[OUTPUT], previous_response_id="resp_1") == set()


@pytest.mark.parametrize("value", [*WRONG_VALUES, {"type": []}], ids=str)
def test_values_of_any_type_are_checked_without_an_exception(value: Any) -> None:
    every = ("input", "tools", "tool_choice", "text", "reasoning", "temperature", "max_output_tokens", "conversation")
    for name in every:
        broken(**{name: value})
    inside = ("type", "role", "content", "call_id", "name", "arguments", "output", "summary", "tools", "parameters")
    for name in inside:
        for kind in ("message", "function_call", "function_call_output", "reasoning", "function", "namespace"):
            broken(input=[{"type": kind, "role": "user", name: value}], tools=[{"type": kind, name: value}])
            broken(tools=[TOOL], tool_choice={"type": kind, name: value})
    for kind in (
        "created",
        "output_item.added",
        "output_item.done",
        "output_text.delta",
        "content_part.added",
        "completed",
    ):
        for name in ("response", "item", "output_index", "content_index", "sequence_number", "delta"):
            added = event("response.output_item.added", 1, output_index=0, item={"type": "message"})
            frames = [CREATED, added, event(f"response.{kind}", 2, **{"output_index": 0, name: value})]
            RESPONSES.codec.stream_breaches(frames)


def event(kind: str, number: int, **fields: Any) -> Frame:
    return Frame(kind, jsonio.encode({"type": kind, "sequence_number": number, **fields}), b"")


CREATED = event("response.created", 0, response={"id": "r"})


@pytest.mark.parametrize(
    ("frames", "rule"),
    [
        ([], "no_end"),
        ([event("response.in_progress", 0, response={"id": "r"})], "no_created"),
        ([Frame("", b"{}", b"")], "type"),
        ([Frame("x", b"nope", b"")], "no_json"),
        ([CREATED, event("response.output_item.added", 1, output_index=1, item={"type": "message"})], "output_index"),
        (
            [CREATED, event("response.output_text.delta", 1, output_index=0, content_index=0, delta="x")],
            "item_not_open",
        ),
        (
            [
                CREATED,
                event("response.output_item.added", 1, output_index=0, item={"type": "message"}),
                event("response.output_text.delta", 2, output_index=0, content_index=0, delta="x"),
            ],
            "part_not_added",
        ),
        (
            [
                CREATED,
                event("response.output_item.added", 1, output_index=0, item={"type": "function_call"}),
                event("response.output_item.done", 2, output_index=0, item={"type": "function_call", "arguments": {}}),
            ],
            "item_field",
        ),
        ([CREATED, event("response.completed", 1, response={"id": "r", "status": "failed", "output": []})], "status"),
        ([CREATED, event("response.completed", 1, response={"id": "r", "status": "completed"})], "output"),
        (
            [
                CREATED,
                event("response.completed", 1, response={"id": "r", "status": "completed", "output": [], "usage": {}}),
            ],
            "usage",
        ),
        ([CREATED, event("response.failed", 1, response={"id": "r", "status": "failed", "output": []})], "error"),
        ([CREATED, event("error", 0)], "sequence_number"),
        ([CREATED, event("error", 1), event("error", 2)], "after_end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_streams_that_no_client_can_read(frames: list[Frame], rule: str) -> None:
    assert f"responses.stream.{rule}" in {breach.rule for breach in RESPONSES.codec.stream_breaches(frames)}


# --- whole replies


def reply(**fields: Any) -> Any:
    body = {"id": "resp_1", "object": "response", "model": "m", "status": "completed", "output": [], **fields}
    return RESPONSES.codec.parse_reply(jsonio.encode(body), EMPTY_REQUEST)


def test_why_a_whole_reply_stopped() -> None:
    message = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert reply().choices[0].stop.reason is StopReason.END
    assert reply(output=[CALL]).choices[0].stop.reason is StopReason.TOOL
    assert reply(output=[message]).choices[0].stop.reason is StopReason.REFUSAL
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert reply(**cut).choices[0].stop.reason is StopReason.LENGTH


@pytest.mark.parametrize("status", ["failed", "cancelled", "queued", "in_progress"])
def test_a_reply_that_is_not_finished_is_a_failure(status: str) -> None:
    with pytest.raises(UpstreamFault):
        reply(status=status)


@pytest.mark.parametrize(
    "output", [None, 1, [1], [{}], [{"type": "function_call"}], [{"type": "message", "content": 7}]], ids=str
)
def test_a_body_that_is_no_reply_is_an_upstream_violation(output: Any) -> None:
    with pytest.raises(UpstreamViolation):
        reply(output=output)


# --- errors and paths


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"message": "x", "type": "invalid_request_error"}, "invalid"),
        (400, {"message": "x", "code": "context_length_exceeded"}, "context_full"),
        (401, {"message": "x", "code": "invalid_api_key"}, "auth"),
        (404, {"message": "x", "code": "model_not_found"}, "not_found"),
        (429, {"message": "x", "code": "rate_limit_exceeded"}, "rate_limit"),
        (429, {"message": "x", "code": "insufficient_quota"}, "quota"),
        (500, {"message": "x"}, "server"),
        (503, {"message": "x"}, "overloaded"),
    ],
    ids=str,
)
def test_a_refusal_survives_a_round_trip(status: int, error: dict[str, Any], kind: str) -> None:
    fault = RESPONSES.codec.parse_fault(HttpResponse(status, (), jsonio.encode({"error": error})))
    assert fault.kind == kind
    again = RESPONSES.binding.error_response(fault, RESPONSES.codec.render_fault(fault))
    assert again.status == status
    error_body: Any = jsonio.decode(again.body)
    assert error_body["error"]["message"] == "x" and error_body["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("body", [b"", b"<html><b>Bad</b></html>", b"[1]", b'{"error": 5}', b'{"detail": "no"}'])
def test_any_refusal_is_a_fault(body: bytes) -> None:
    assert RESPONSES.codec.parse_fault(HttpResponse(502, (("retry-after", "x"),), body)).kind == "server"


def test_a_retry_delay_is_sent_in_the_header_and_read_from_the_message() -> None:
    headers = dict(RESPONSES.binding.error_response(Fault("rate_limit", "x", 429, 1.2), b"").headers)
    assert headers["retry-after"] == "2"
    words = jsonio.encode({"error": {"message": "Please try again in 900ms.", "code": "rate_limit_exceeded"}})
    assert RESPONSES.codec.parse_fault(HttpResponse(429, (), words)).retry_after == 0.9


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/openai/v1/responses/"])
def test_paths(path: str) -> None:
    call = RESPONSES.binding.match(HttpRequest("POST", path, body=b'{"model": "m", "input": "x"}'))
    assert call == ApiRequest("generate", "m", False, {"input": "x"})


def test_other_paths() -> None:
    count = RESPONSES.binding.match(HttpRequest("POST", "/v1/responses/input_tokens", body=b'{"model": "m"}'))
    assert count is not None and count.operation == "count"
    assert RESPONSES.binding.match(HttpRequest("POST", "/v1/messages", body=b"{}")) is None
    assert RESPONSES.binding.match(HttpRequest("GET", "/v1/models")) is None
    with pytest.raises(ClientFault) as refused:
        RESPONSES.binding.match(HttpRequest("POST", "/v1/responses/compact", body=b"{}"))
    assert refused.value.fault.status == 404
