"""Anthropic errors, paths, headers and counts."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from dragoman import translate_request
from dragoman.dialects.anthropic import DIALECT
from dragoman.dialects.base import ApiRequest
from dragoman.errors import DragomanError, ErrorKind, Fault, MalformedRequest
from dragoman.wire.frame import Payload
from dragoman.wire.http import HttpRequest, HttpResponse

CODEC, BINDING, COUNTS = DIALECT.codec, DIALECT.binding, DIALECT.counts
KINDS: tuple[ErrorKind, ...] = get_args(ErrorKind)
ASK: dict[str, Any] = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "stream": True}


def refused(status: int, error: Any, *headers: tuple[str, str]) -> Fault:
    body = error if isinstance(error, bytes) else json.dumps({"type": "error", "error": error}).encode()
    return CODEC.parse_fault(HttpResponse(status, headers, body))


def post(path: str = "/v1/messages", body: Any = None, **headers: str) -> HttpRequest:
    names = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    path, _, query = path.partition("?")
    return HttpRequest("POST", path, query, names, json.dumps(ASK if body is None else body).encode())


# --- faults


@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [
        (400, "invalid_request_error", "invalid"),
        (401, "authentication_error", "auth"),
        (429, "billing_error", "quota"),
        (403, "permission_error", "permission"),
        (404, "not_found_error", "not_found"),
        (409, "conflict_error", "invalid"),
        (413, "request_too_large", "too_large"),
        (429, "rate_limit_error", "rate_limit"),
        (500, "api_error", "server"),
        (504, "timeout_error", "timeout"),
        (529, "overloaded_error", "overloaded"),
    ],
)
def test_an_error_round_trips_unchanged(status: int, name: str, kind: ErrorKind) -> None:
    fault = refused(status, {"type": name, "message": "why"})
    assert fault == Fault(kind, "why", status, code=name)
    response = BINDING.error_response(fault, CODEC.render_fault(fault))
    assert response.status == status
    assert json.loads(response.body) == {"type": "error", "error": {"type": name, "message": "why"}}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (402, "quota"),
        (408, "timeout"),
        (418, "invalid"),
        (422, "invalid"),
        (424, "server"),
        (502, "server"),
        (503, "overloaded"),
    ],
)
def test_the_status_alone_determines_the_kind(status: int, kind: ErrorKind) -> None:
    for body in (b"", b"<html><h1>Bad gateway</h1></html>", b"[1]", json.dumps({"error": "why"}).encode()):
        fault = refused(status, body)
        assert (fault.kind, fault.status) == (kind, status)


def test_a_response_without_json_gets_a_short_message() -> None:
    page = refused(502, b"<html>" + b"x" * 5000)
    assert page.message == "the upstream responded with status 502 without a readable error"
    assert refused(502, b"upstream  connect\nerror").message.endswith(": upstream connect error")
    assert len(refused(502, b"x" * 5000).message) < 300
    assert "502" in refused(502, b"\xff\xfe").message


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("prompt is too long: 208310 tokens > 200000 maximum", "context_full"),
        ("input length and `max_tokens` exceed context limit: 1 + 2 > 3", "context_full"),
        ("Your credit balance is too low to access the API", "quota"),
        ("messages: roles must alternate", "invalid"),
    ],
)
def test_the_message_distinguishes_errors_of_one_type(message: str, kind: ErrorKind) -> None:
    fault = refused(400, {"type": "invalid_request_error", "message": message})
    assert (fault.kind, fault.message) == (kind, message)
    assert CODEC.parse_fault(BINDING.error_response(fault, CODEC.render_fault(fault))).kind == kind


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_round_trips(kind: ErrorKind) -> None:
    message = "prompt is too long" if kind == "context_full" else "why"
    for code in ("", "insufficient_quota", "api_error"):
        fault = Fault(kind, message, 599, code=code)
        read = CODEC.parse_fault(BINDING.error_response(fault, CODEC.render_fault(fault)))
        assert (read.kind, read.message) == (kind, message)


def test_d18_a_spent_quota_is_a_429_that_clients_do_not_retry() -> None:
    """429 `billing_error` with `x-should-retry: false`; a rate limit has no such header.

    See docs/decisions/kiro.md#d18.
    """
    for fault in (Fault("quota", "spent", 402), Fault("quota", "spent", 429, code="insufficient_quota")):
        refused = BINDING.error_response(fault, CODEC.render_fault(fault))
        assert (refused.status, refused.header("x-should-retry")) == (429, "false")
        assert CODEC.parse_fault(refused).code == "billing_error"
        assert CODEC.parse_fault(refused).kind == "quota"
    limited = Fault("rate_limit", "slow down", 429, 3.0)
    refused = BINDING.error_response(limited, CODEC.render_fault(limited))
    assert (refused.status, refused.header("x-should-retry")) == (429, "")
    assert CODEC.parse_fault(refused).kind == "rate_limit"


def test_faults_of_other_dialects_get_this_dialects_statuses() -> None:
    for fault, status in (
        (Fault("server", "x", 502), 502),
        (Fault("server", "x", 200), 500),
        (Fault("overloaded", "x", 503), 529),
        (Fault("timeout", "x", 408), 504),
        (Fault("quota", "x", 402), 429),
        (Fault("context_full", "x", 500), 400),
        (Fault("invalid", "x", 422), 422),
    ):
        assert BINDING.error_response(fault, b"").status == status


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("30", 30),
        ("0.5", 0.5),
        ("-3", 0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", 30),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0),
        ("soon", None),
        ("inf", None),
        ("nan", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str, expected: float | None) -> None:
    fault = refused(429, {}, ("retry-after", header), ("date", "Wed, 21 Oct 2015 07:28:00 GMT"))
    assert fault.retry_after == expected


def test_retry_after_is_passed_on_in_whole_seconds() -> None:
    assert BINDING.error_response(Fault("rate_limit", "x", retry_after=1.2), b"").header("retry-after") == "2"
    assert BINDING.error_response(Fault("rate_limit", "x"), b"").header("retry-after") == ""


@pytest.mark.parametrize("error", [None, 1, "why", [], {"type": 1, "message": 2}, {"type": ["x"]}, {"message": ""}])
def test_an_error_of_any_shape_is_a_fault(error: Any) -> None:
    assert refused(400, error).message


# --- paths and headers


def test_model_and_stream_are_taken_from_the_body_and_written_back() -> None:
    call = BINDING.match(post("/v1/messages?beta=true"))
    assert call == ApiRequest("generate", "m", True, {"max_tokens": 1, "messages": ASK["messages"]})
    request = BINDING.wrap(call)
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert json.loads(request.body) == ASK
    assert request.header("accept") == "text/event-stream"
    assert request.header("content-type") == "application/json"
    assert request.header("anthropic-version") == "2023-06-01"
    assert BINDING.match(request) == call


def test_headers_that_matter_travel() -> None:
    request = HttpRequest(
        "POST",
        "/v1/messages",
        headers=(
            ("anthropic-beta", "a"),
            ("anthropic-version", "2024-01-01"),
            ("x-api-key", "k"),
            ("anthropic-beta", "b,c"),
        ),
        body=json.dumps(ASK).encode(),
    )
    call = BINDING.match(request)
    assert call is not None
    assert call.hints == {"anthropic-beta": "a,b,c", "anthropic-version": "2024-01-01"}
    wrapped = BINDING.wrap(CODEC.render_request(CODEC.parse_request(call)))
    assert wrapped.header("anthropic-beta") == "a,b,c"
    assert wrapped.header("anthropic-version") == "2024-01-01"
    assert wrapped.header("x-api-key") == ""


def test_the_usual_version_is_no_hint() -> None:
    call = BINDING.match(post(anthropic_version="2023-06-01"))
    assert call is not None
    assert call.hints == {}


def test_counting_has_a_path_and_only_the_fields_that_count() -> None:
    call = BINDING.match(
        post("/v1/messages/count_tokens?beta=true", {**ASK, "temperature": 1, "system": "s", "tools": []})
    )
    assert call is not None
    assert call.operation == "count"
    request = BINDING.wrap(call)
    assert request.path == "/v1/messages/count_tokens"
    assert json.loads(request.body) == {"model": "m", "messages": ASK["messages"], "system": "s", "tools": []}
    assert CODEC.parse_request(call).system


def test_a_models_request_is_recognised_by_its_version_header() -> None:
    headers = (("anthropic-version", "2023-06-01"),)
    assert BINDING.match(HttpRequest("GET", "/v1/models", "limit=1000", headers)) == ApiRequest(
        "models", "", False, None
    )
    one = BINDING.match(HttpRequest("GET", "/v1/models/claude-x", "", headers))
    assert one == ApiRequest("models", "claude-x", False, None)
    assert BINDING.match(HttpRequest("GET", "/v1/models")) is None
    assert one is not None
    assert BINDING.wrap(one).path == "/v1/models/claude-x"


@pytest.mark.parametrize(
    "request_",
    [
        HttpRequest("GET", "/v1/messages"),
        HttpRequest("POST", "/v1/chat/completions"),
        HttpRequest("POST", "/v1/messages/batches"),
        HttpRequest("GET", "/v1/modelsx", headers=(("anthropic-version", "x"),)),
    ],
)
def test_other_paths_are_not_ours(request_: HttpRequest) -> None:
    assert BINDING.match(request_) is None


@pytest.mark.parametrize("body", [[], "x", None, 1, {}, {"model": 1}, {"model": "m", "stream": "yes"}])
def test_a_body_without_a_model_is_malformed(body: Any) -> None:
    with pytest.raises(MalformedRequest):
        BINDING.match(HttpRequest("POST", "/v1/messages", body=json.dumps(body).encode()))
    with pytest.raises(MalformedRequest):
        BINDING.unwrap(body)


def test_a_body_that_is_no_json_is_malformed() -> None:
    with pytest.raises(MalformedRequest):
        BINDING.match(HttpRequest("POST", "/v1/messages", body=b"{"))


def test_every_frame_has_its_event_line() -> None:
    assert BINDING.encode_frame(Payload(b"ping", b"{}")) == b"event: ping\ndata: {}\n\n"


def test_counts() -> None:
    assert COUNTS is not None
    assert COUNTS.parse_count(COUNTS.render_count(7, True)) == 7
    for body in (b"", b"[]", b"{}", b'{"input_tokens": "x"}'):
        with pytest.raises(DragomanError):
            COUNTS.parse_count(body)


# --- a tool that the client runs of any type and shape reaches every target

TARGETS = ("openai", "responses", "bedrock", "gemini", "kiro")
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [
    {"type": "bash_20250124", "name": "shell"},
    {"type": "text_editor_20250728", "name": "editor", "max_characters": 100},
    {"type": "memory_20250818", "name": "notes"},
    {"type": "computer_20251124", "name": "screen", "display_width_px": 800, "display_height_px": 600},
    {"type": "function", "function": {"name": "chat", "description": "d", "parameters": SCHEMA}},
    {"type": "function", "name": "flat", "description": "d", "parameters": SCHEMA},
]


def body_with(tool: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "go"}], "tools": [tool]}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool["type"])
def test_a_tool_that_the_client_runs_is_offered_as_a_function(tool: dict[str, Any], target: str) -> None:
    translation = translate_request(body_with(tool), source="anthropic", target=target)
    name = tool.get("name") or tool["function"]["name"]
    assert f'"name":"{name}"' in translation.raw.decode()
    rules = [note.rule for note in translation.notes]
    assert "tools.as_function" in rules and "foreign.tool" not in rules


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool["type"])
def test_such_a_tool_is_unchanged_in_the_same_dialect(tool: dict[str, Any]) -> None:
    translation = translate_request(body_with(tool), source="anthropic", target="anthropic")
    assert translation.body["tools"] == [tool] and not translation.notes


def test_a_tool_that_the_service_runs_is_no_function() -> None:
    translation = translate_request(
        body_with({"type": "web_search_20250305", "name": "web_search"}), source="anthropic", target="openai"
    )
    assert "foreign.tool" in [note.rule for note in translation.notes] and "tools" not in translation.body
