"""Errors of the service, in a person's words, and ours in the service's."""

from __future__ import annotations

import json

import pytest

from dragoman.dialects import get
from dragoman.dialects.bedrock import DIALECT
from dragoman.errors import Fault
from dragoman.wire.http import HttpResponse


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
    told = fault(status, f"{name}:http://internal.amazon.com/coral/com.amazon.bedrock/", "words")
    assert (told.kind, told.status, told.code) == (kind, status, name)
    assert told.message.startswith("words")


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
def test_trouble_of_the_setup_is_told_with_what_to_do(
    status: int, name: str, message: str, kind: str, advice: str
) -> None:
    told = fault(status, name, message)
    assert told.kind == kind
    assert told.message.startswith(message)
    assert advice in told.message


def test_each_clients_dialect_tells_it_in_its_own_error() -> None:
    expired = fault(403, "ExpiredTokenException", "The security token included in the request is expired")
    anthropic, openai = get("anthropic"), get("openai")
    assert json.loads(anthropic.codec.render_fault(expired))["error"]["type"] == "authentication_error"
    assert anthropic.binding.refuse(expired, b"").status == 401
    assert openai.binding.refuse(expired, b"").status == 401


def test_the_type_may_stand_in_the_body_and_words_may_be_missing() -> None:
    body = b'{"__type":"com.amazon.coral.service#ThrottlingException","Message":"wait"}'
    told = DIALECT.codec.parse_fault(HttpResponse(400, (), body))
    assert (told.kind, told.message) == ("rate_limit", "wait")
    assert "ThrottlingException" in fault(429, "ThrottlingException").message


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"<html>bad gateway</html>", "502 without"), (b"", "502 without"), (b"upstream is gone", "upstream is gone")],
)
def test_a_refusal_by_someone_on_the_way_is_told(body: bytes, words: str) -> None:
    told = DIALECT.codec.parse_fault(HttpResponse(502, (), body))
    assert told.kind == "server"
    assert words in told.message
    assert "<html" not in told.message


def test_retry_after_is_read_and_told() -> None:
    told = fault(429, "ThrottlingException", "x", **{"retry-after": "1.5"})
    assert told.retry_after == 1.5
    assert DIALECT.binding.refuse(told, b"").header("retry-after") == "2"


@pytest.mark.parametrize(
    ("given", "status", "name"),
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
def test_a_fault_is_told_by_status_and_header(given: Fault, status: int, name: str) -> None:
    refused = DIALECT.binding.refuse(given, DIALECT.codec.render_fault(given))
    assert (refused.status, refused.header("x-amzn-errortype")) == (status, name)
    assert json.loads(refused.body) == {"message": "x"}
