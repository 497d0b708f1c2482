"""Chat errors and the binding."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.openai import DIALECT, OpenaiBinding
from dragoman.dialects.openai.shapes import OpenaiSummaryReader
from dragoman.errors import DragomanError, ErrorKind, Fault, MalformedRequest
from dragoman.model.conversation import Conversation, Stop, StopReason, Usage
from dragoman.wire.frame import Payload
from dragoman.wire.http import HttpRequest, HttpResponse
from tests.wrong_values import body_paths, value_at

CODEC, BINDING = DIALECT.codec, DIALECT.binding


def fault(status: int, body: Any, **headers: str) -> Fault:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return CODEC.parse_fault(HttpResponse(status, tuple((k.replace("_", "-"), v) for k, v in headers.items()), data))


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"message": "bad", "type": "invalid_request_error"}, "invalid"),
        (400, {"message": "long", "type": "invalid_request_error", "code": "context_length_exceeded"}, "context_full"),
        (
            400,
            {"message": "This model's maximum context length is 8 tokens", "type": "BadRequestError"},
            "context_full",
        ),
        (401, {"message": "no", "type": "invalid_request_error", "code": "invalid_api_key"}, "auth"),
        (401, {"message": "no"}, "auth"),
        (402, {"message": "pay"}, "quota"),
        (403, {"message": "no"}, "permission"),
        (404, {"message": "no", "code": "model_not_found"}, "not_found"),
        (408, {"message": "slow"}, "timeout"),
        (413, {"message": "big"}, "too_large"),
        (422, {"message": "odd"}, "invalid"),
        (429, {"message": "wait", "type": "tokens", "code": "rate_limit_exceeded"}, "rate_limit"),
        (429, {"message": "pay", "type": "insufficient_quota", "code": "insufficient_quota"}, "quota"),
        (429, {"message": "wait", "code": 429}, "rate_limit"),
        (200, {"message": "wait", "code": "too_many_requests"}, "rate_limit"),
        (200, {"message": "wait", "code": "RateLimitReached"}, "rate_limit"),
        (200, {"message": "busy", "type": "service_unavailable_error"}, "overloaded"),
        (200, {"message": "no", "type": "invalid_authentication_error"}, "auth"),
        (500, {"message": "oops", "type": "server_error"}, "server"),
        (502, {"message": "oops"}, "server"),
        (503, {"message": "busy", "type": "server_error"}, "overloaded"),
        (504, {"message": "slow"}, "timeout"),
        (529, {"message": "busy"}, "overloaded"),
    ],
)
def test_kinds_by_code_and_status(status: int, error: dict[str, Any], kind: str) -> None:
    read = fault(status, {"error": error})
    assert (read.kind, read.status, read.message) == (kind, status, error["message"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": "plain"}, "plain"),
        ({"error": {"message": "m", "param": "messages[0].content", "code": "c"}}, "m"),
        ({"message": "m"}, "m"),
        ({"detail": "Not Found"}, "Not Found"),
        (
            {"detail": [{"loc": ["body", "x"], "msg": "field required"}]},
            '[{"loc":["body","x"],"msg":"field required"}]',
        ),
        ({"object": "error", "message": "vllm", "type": "BadRequestError", "param": None, "code": 400}, "vllm"),
        ({"error": {}, "message": "outside"}, "outside"),
        (b"<html><head><title>x</title></head><body><h1>502 Bad</h1><p>Gateway</p></body></html>", "502 Bad Gateway"),
        (b"upstream connect error", "upstream connect error"),
        (b"", "the upstream responded with status 500"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        ([], "the upstream responded with status 500"),
        (5, "the upstream responded with status 500"),
        ({"error": None}, "the upstream responded with status 500"),
        ({"error": {"message": {"nested": 1}}}, '{"nested":1}'),
    ],
)
def test_messages_of_every_shape(body: Any, message: str) -> None:
    assert fault(500, body).message == message


def test_the_place_and_the_code_are_kept() -> None:
    read = fault(400, {"error": {"message": "m", "param": "messages[0]", "code": "odd"}})
    assert (read.at, read.code) == ("messages[0]", "odd")


def test_retry_after_is_read() -> None:
    assert fault(429, {}, retry_after="7").retry_after == 7
    assert fault(429, {}, retry_after_ms="1500").retry_after == 1.5
    dates = {"date": "Sun, 06 Nov 1994 08:49:37 GMT", "retry_after": "Sun, 06 Nov 1994 08:50:07 GMT"}
    assert fault(429, {}, **dates).retry_after == 30
    assert fault(429, {}, retry_after="Sun, 06 Nov 1994 08:50:07 GMT").retry_after == 0
    assert fault(429, {}, retry_after="soon").retry_after is None
    assert fault(429, {"error": {"code": "insufficient_quota"}}, retry_after="7").retry_after is None


STATUS = {
    "invalid": 400, "auth": 401, "permission": 403, "not_found": 404, "too_large": 413, "rate_limit": 429, "quota": 429,
    "overloaded": 503, "context_full": 400, "timeout": 504, "server": 500,
}  # fmt: skip


@pytest.mark.parametrize("kind", get_args(ErrorKind))
def test_every_error_kind_is_written_and_read_back(kind: Any) -> None:
    fault = Fault(kind, "because", 502, 3.2, "messages[1]")
    response = BINDING.error_response(fault, CODEC.render_fault(fault))
    assert response.status == (502 if kind == "server" else STATUS[kind])
    assert response.header("retry-after") == "4"
    body = json.loads(response.body)
    assert set(body["error"]) == {"message", "type", "param", "code"} and body["error"]["param"] == "messages[1]"
    assert CODEC.parse_fault(response).kind == kind


def test_an_upstreams_status_is_kept_if_it_fits_the_kind() -> None:
    for status, kind in ((422, "invalid"), (409, "invalid"), (500, "server"), (502, "server")):
        assert BINDING.error_response(Fault(kind, "m", status), b"").status == status  # type: ignore[arg-type]


# ---- the binding


def post(path: str, body: Any) -> HttpRequest:
    return HttpRequest("POST", path, body=json.dumps(body).encode())


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/chat/completions", "/openai/v1/chat/completions/", "/x/chat/completions"]
)
def test_chat_is_found_at_any_prefix(path: str) -> None:
    call = BINDING.match(post(path, {"model": "m", "stream": True, "messages": []}))
    assert call == ApiRequest("generate", "m", True, {"messages": []})


def test_other_paths_are_for_others() -> None:
    for request in (
        HttpRequest("GET", "/v1/chat/completions"),
        HttpRequest("POST", "/v1/messages"),
        HttpRequest("POST", "/v1/responses"),
    ):
        assert BINDING.match(request) is None


def test_the_list_of_models_unless_an_anthropic_client_asks() -> None:
    assert BINDING.match(HttpRequest("GET", "/v1/models")) == ApiRequest("models", "", False, None)
    assert BINDING.match(HttpRequest("GET", "/v1/models", headers=(("anthropic-version", "2023-06-01"),))) is None


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, "model"),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"model": "m", "stream": "yes"}, "stream"),
        ([], ""),
    ],
)
def test_bad_envelopes_are_the_clients_fault(body: Any, place: str) -> None:
    with pytest.raises(MalformedRequest) as caught:
        BINDING.match(post("/v1/chat/completions", body))
    assert caught.value.at == place


def test_a_body_that_is_no_json_is_the_clients_fault() -> None:
    with pytest.raises(MalformedRequest, match="JSON"):
        BINDING.match(HttpRequest("POST", "/v1/chat/completions", body=b"{"))


def test_a_wrapped_request_is_matched() -> None:
    for call in (
        ApiRequest("generate", "m", True, {"messages": [1]}),
        ApiRequest("generate", "m", False, {}),
        ApiRequest("models", "", False, None),
    ):
        assert BINDING.match(BINDING.wrap(call)) == call
    assert OpenaiBinding("/api/v3").wrap(ApiRequest("models", "", False, None)).path == "/api/v3/models"


def test_frames_have_no_name_and_never_an_empty_data_line() -> None:
    assert BINDING.encode_frame(Payload(b"", b"{}")) == b"data: {}\n\n"
    assert BINDING.encode_frame(Payload(b"", b"")) == b": ping\n\n"


# --- The summary of a plain reply equals the codec's reading, or is left to the codec

REQUEST = Conversation("m", ())
PLAIN: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hi", "refusal": None}, "finish_reason": "stop"}
    ],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 1},
    },
}
_ODD = st.sampled_from(
    [None, 0, -1, 7, 2**70, 1.5, "", "x", "length", "error", "tool_calls", "content_filter", True, [], [None], {},
     {"cached_tokens": 5}, {"audio_tokens": 2}, {"message": "no"}, [{"index": 1}], "\ud800"],
)  # fmt: skip
_MORE = st.sampled_from(
    ["error", "refusal", "tool_calls", "stop_reason", "matched_stop", "reasoning_content", "cached_tokens", "n"]
)


@st.composite
def _bent(draw: st.DrawFn) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(json.dumps(PLAIN))
    for _ in range(draw(st.integers(0, 3))):
        places = list(body_paths(body))
        if not places:
            break
        *outer, key = draw(st.sampled_from(places))
        holder = value_at(body, tuple(outer))
        how = draw(st.integers(0, 2))
        if how == 0:
            del holder[key]
        elif how == 2 and isinstance(holder, dict):
            holder[draw(_MORE)] = deepcopy(draw(_ODD))
        else:
            holder[key] = deepcopy(draw(_ODD))
    return body


def test_a_plain_reply_is_read() -> None:
    seen = OpenaiSummaryReader("").read_reply(json.dumps(PLAIN).encode())
    assert seen is not None
    assert (seen.usage, seen.stop) == (Usage(5, 3, 4, reasoning=1), Stop(StopReason.END))


@given(_bent())
def test_the_summary_of_a_plain_reply_equals_the_parsed_reply(body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    seen = OpenaiSummaryReader("").read_reply(raw)
    if seen is None:
        return
    try:
        read = DIALECT.codec.parse_reply(raw, REQUEST)
    except DragomanError as error:
        raise AssertionError(f"plain, but the codec refuses it: {error}") from error
    assert (seen.usage, seen.stop) == (read.usage, read.choices[0].stop)


def test_a_broken_reply_is_left_to_the_codec() -> None:
    whole = json.dumps(PLAIN).encode()
    for broken in (b"", b"<html>", whole[:-1], whole.replace(b"Hi", b"\xff"), whole + b"x", b'{"error":{}}'):
        assert OpenaiSummaryReader("").read_reply(broken) is None
