"""Bedrock errors: reading those of the service, and writing ours in its form."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

import dragoman
from dragoman.dialects import get
from dragoman.dialects.anthropic import AnthropicCodec
from dragoman.dialects.base import ApiRequest
from dragoman.dialects.bedrock import DIALECT
from dragoman.errors import Fault, MalformedRequest
from dragoman.wire.eventstream import encode_event
from dragoman.wire.frame import Payload
from dragoman.wire.http import HttpRequest, HttpResponse
from tests.anthropic_client import parse_sse
from tests.unit.dialects.bedrock_wire import CLAUDE, frames


def fault(status: int, kind: str, message: str | None = None, **headers: str) -> Fault:
    body = json.dumps({"message": message}).encode() if message is not None else b"{}"
    return DIALECT.codec.parse_fault(HttpResponse(status, (("x-amzn-errortype", kind), *headers.items()), body))


@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [
        (400, "ValidationException", "invalid"),
        (403, "AccessDeniedException", "permission"),
        (403, "UnrecognizedClientException", "auth"),
        (403, "ExpiredTokenException", "auth"),
        (404, "ResourceNotFoundException", "not_found"),
        (408, "ModelTimeoutException", "timeout"),
        (424, "ModelErrorException", "server"),
        (429, "ThrottlingException", "rate_limit"),
        (429, "ModelNotReadyException", "overloaded"),
        (400, "ServiceQuotaExceededException", "quota"),
        (500, "InternalServerException", "server"),
        (503, "ServiceUnavailableException", "overloaded"),
    ],
)
def test_every_exception_of_the_service_is_known(status: int, name: str, kind: str) -> None:
    parsed = fault(status, f"{name}:http://internal.amazon.com/coral/com.amazon.bedrock/", "words")
    assert (parsed.kind, parsed.status, parsed.code) == (kind, status, name)
    assert parsed.message.startswith("words")


@pytest.mark.parametrize(
    ("status", "name", "message", "kind", "advice"),
    [
        (403, "ExpiredTokenException", "The security token included in the request is expired", "auth", "have expired"),
        (
            403,
            "UnrecognizedClientException",
            "The security token included in the request is invalid.",
            "auth",
            "does not know",
        ),
        (403, "InvalidSignatureException", "Credential should be scoped to a valid region.", "auth", "another region"),
        (
            400,
            "ValidationException",
            "The provided model identifier is invalid.",
            "not_found",
            "no such model in this region",
        ),
        (404, "ResourceNotFoundException", "Model use case details…", "not_found", "no such model in this region"),
        (
            403,
            "AccessDeniedException",
            "You don't have access to the model with the specified model ID.",
            "permission",
            "granted",
        ),
        (
            400,
            "ValidationException",
            "Invocation with on-demand throughput isn’t supported.",
            "invalid",
            "inference profile",
        ),
        (400, "ValidationException", "Input is too long for requested model.", "context_full", ""),
    ],
)
def test_a_setup_error_is_reported_with_what_to_do(
    status: int, name: str, message: str, kind: str, advice: str
) -> None:
    parsed = fault(status, name, message)
    assert parsed.kind == kind
    assert parsed.message.startswith(message)
    assert advice in parsed.message


def test_each_client_dialect_reports_it_as_its_error() -> None:
    expired = fault(403, "ExpiredTokenException", "The security token included in the request is expired")
    anthropic, openai = get("anthropic"), get("openai")
    assert json.loads(anthropic.codec.render_fault(expired))["error"]["type"] == "authentication_error"
    assert anthropic.binding.error_response(expired, b"").status == 401
    assert openai.binding.error_response(expired, b"").status == 401


def test_the_type_may_be_in_the_body_and_the_message_may_be_missing() -> None:
    body = b'{"__type":"com.amazon.coral.service#ThrottlingException","Message":"wait"}'
    parsed = DIALECT.codec.parse_fault(HttpResponse(400, (), body))
    assert (parsed.kind, parsed.message) == ("rate_limit", "wait")
    assert "ThrottlingException" in fault(429, "ThrottlingException").message


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"<html>bad gateway</html>", "502 without"), (b"", "502 without"), (b"upstream is gone", "upstream is gone")],
)
def test_a_refusal_by_a_proxy_is_reported(body: bytes, words: str) -> None:
    parsed = DIALECT.codec.parse_fault(HttpResponse(502, (), body))
    assert parsed.kind == "server"
    assert words in parsed.message
    assert "<html" not in parsed.message


def test_retry_after_is_read_and_written() -> None:
    parsed = fault(429, "ThrottlingException", "x", **{"retry-after": "1.5"})
    assert parsed.retry_after == 1.5
    assert DIALECT.binding.error_response(parsed, b"").header("retry-after") == "2"


@pytest.mark.parametrize(
    ("fault", "status", "name"),
    [
        (Fault("invalid", "x"), 400, "ValidationException"),
        (Fault("context_full", "x"), 400, "ValidationException"),
        (Fault("auth", "x", 401), 403, "UnrecognizedClientException"),
        (Fault("quota", "x", 402), 400, "ServiceQuotaExceededException"),
        (Fault("rate_limit", "x", 429), 429, "ThrottlingException"),
        (Fault("overloaded", "x", 529), 503, "ServiceUnavailableException"),
        (Fault("overloaded", "x", 429, code="ModelNotReadyException"), 503, "ModelNotReadyException"),
        (Fault("server", "x", 424, code="ModelErrorException"), 424, "ModelErrorException"),
        (Fault("auth", "x", 403, code="ExpiredTokenException"), 403, "ExpiredTokenException"),
        (Fault("server", "x", 502), 500, "InternalServerException"),
        (Fault("timeout", "x", 504), 408, "ModelTimeoutException"),
    ],
)
def test_a_fault_is_written_as_status_and_header(fault: Fault, status: int, name: str) -> None:
    refused = DIALECT.binding.error_response(fault, DIALECT.codec.render_fault(fault))
    assert (refused.status, refused.header("x-amzn-errortype")) == (status, name)
    assert json.loads(refused.body) == {"message": "x"}


# --- InvokeModel: Anthropic's body at another endpoint

INVOKE, ANTHROPIC = get("bedrock.invoke"), get("anthropic")
BODY: Any = {
    "anthropic_version": "bedrock-2023-05-31",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hi"}],
}
SSE: list[Any] = [
    {
        "type": "message_start",
        "message": {"id": "m1", "model": "c", "content": [], "usage": {"input_tokens": 1, "output_tokens": 1}},
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hé"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 2},
    },
    {"type": "message_stop"},
]


def request(operation: str, body: Any, **headers: str) -> HttpRequest:
    return HttpRequest(
        "POST", f"/model/{CLAUDE}/{operation}", headers=tuple(headers.items()), body=json.dumps(body).encode()
    )


def chunk(event: Any) -> bytes:
    data = base64.b64encode(json.dumps(event, ensure_ascii=False).encode()).decode()
    return encode_event("chunk", json.dumps({"bytes": data, "p": "abc"}).encode())


def test_invoke_model_has_the_codec_of_anthropic() -> None:
    assert INVOKE.codec == AnthropicCodec(threads=False)  # InvokeModel keeps no message threads
    assert INVOKE.codec.family == ANTHROPIC.codec.family
    assert INVOKE.binding != ANTHROPIC.binding


@pytest.mark.parametrize(("operation", "stream"), [("invoke", False), ("invoke-with-response-stream", True)])
def test_the_path_names_model_and_stream_and_the_body_keeps_its_version_to_itself(operation: str, stream: bool) -> None:
    call = INVOKE.binding.match(request(operation, BODY))
    assert call == ApiRequest("generate", CLAUDE, stream, {"max_tokens": 9, "messages": BODY["messages"]})
    wrapped = INVOKE.binding.wrap(call)
    assert json.loads(wrapped.body) == BODY
    assert INVOKE.binding.match(wrapped) == call


def test_betas_in_the_body_become_the_header_of_anthropics_endpoint() -> None:
    call = INVOKE.binding.match(request("invoke", {**BODY, "anthropic_beta": ["a", "b"]}))
    assert call is not None
    sent = ANTHROPIC.binding.wrap(call)
    assert sent.header("anthropic-beta") == "a,b"
    assert sent.header("anthropic-version") == "2023-06-01"
    assert "anthropic_beta" not in json.loads(sent.body)
    assert json.loads(INVOKE.binding.wrap(call).body)["anthropic_beta"] == ["a", "b"]


def test_another_version_round_trips_but_is_not_sent_to_anthropic() -> None:
    call = INVOKE.binding.match(request("invoke", {**BODY, "anthropic_version": "2026-10-21"}))
    assert call is not None
    assert json.loads(INVOKE.binding.wrap(call).body)["anthropic_version"] == "2026-10-21"
    assert ANTHROPIC.binding.wrap(call).header("anthropic-version") == "2023-06-01"


@pytest.mark.parametrize("path", ["/model/m/converse", "/v1/messages"])
def test_other_paths_are_not_ours(path: str) -> None:
    assert INVOKE.binding.match(HttpRequest("POST", path, body=b"{}")) is None
    assert INVOKE.binding.match(HttpRequest("GET", "/model/m/invoke", body=b"{}")) is None


def test_a_count_of_each_body_has_an_endpoint() -> None:
    inner = base64.b64encode(json.dumps(BODY).encode()).decode()
    ours: Any = {"input": {"invokeModel": {"body": inner}}}
    theirs: Any = {"input": {"converse": {"messages": []}}}
    converse = get("bedrock")
    call = INVOKE.binding.match(request("count-tokens", ours))
    assert call == ApiRequest("count", CLAUDE, False, {"max_tokens": 9, "messages": BODY["messages"]})
    assert converse.binding.match(request("count-tokens", ours)) is None
    assert INVOKE.binding.match(request("count-tokens", theirs)) is None
    assert INVOKE.binding.match(INVOKE.binding.wrap(call)) == call
    with pytest.raises(MalformedRequest, match=r"input\.invokeModel\.body"):
        INVOKE.binding.match(request("count-tokens", {"input": {"invokeModel": {"body": "%"}}}))


def test_chunks_are_anthropics_events() -> None:
    data = b"".join(map(chunk, SSE))
    translator = dragoman.stream_translator(source="bedrock.invoke", target="anthropic")
    events = parse_sse(translator.feed(data) + translator.close())
    assert [event["type"] for event in events] == [event["type"] for event in SSE]
    assert events[2] == SSE[2]


def test_anthropics_events_become_chunks() -> None:
    data = b"".join(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode()) for event in SSE)
    translator = dragoman.stream_translator(source="anthropic", target="bedrock.invoke")
    out = frames(translator.feed(data) + translator.close())
    assert {kind for kind, _ in out} == {"chunk"}
    assert [json.loads(base64.b64decode(data["bytes"]))["type"] for _, data in out] == [event["type"] for event in SSE]


def test_in_the_same_dialect_chunks_pass_unchanged() -> None:
    data = b"".join(map(chunk, SSE))
    translator = dragoman.stream_translator(source="bedrock.invoke", target="bedrock.invoke")
    assert translator.feed(data) + translator.close() == data


def test_an_exception_is_anthropics_error_and_back() -> None:
    data = chunk(SSE[0]) + encode_event("throttlingException", b'{"message":"slow down"}', error=True)
    translator = dragoman.stream_translator(source="bedrock.invoke", target="anthropic")
    assert b'"type":"rate_limit_error","message":"slow down"' in translator.feed(data)
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    out = INVOKE.binding.encode_frame(Payload(b"error", json.dumps(error).encode(), error=True))
    assert frames(out) == [("!serviceUnavailableException", {"message": "busy"})]


@pytest.mark.parametrize("payload", [b"{}", b'{"bytes":"%"}', b'{"bytes":"aGk="}', b"no json"])
def test_a_frame_that_is_no_chunk_is_a_bad_frame(payload: bytes) -> None:
    translator = dragoman.stream_translator(source="bedrock.invoke", target="anthropic")
    translator.feed(encode_event("chunk", payload))
    assert translator.error is not None
    assert "chunk" in str(translator.error)


def test_a_refusal_has_the_form_of_aws() -> None:
    fault = Fault("rate_limit", "slow down", 429)
    refused = INVOKE.binding.error_response(fault, INVOKE.codec.render_fault(fault))
    assert (refused.status, refused.header("x-amzn-errortype")) == (429, "ThrottlingException")
    assert json.loads(refused.body) == {"message": "slow down"}
    assert INVOKE.codec.parse_fault(refused).kind == "rate_limit"
