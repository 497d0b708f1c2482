"""Kiro errors: the table of the facts (section 5), by both wire protocols, and their way to clients."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from dragoman import dialects
from dragoman.dialects.kiro import DIALECT, KiroCodec
from dragoman.errors import Fault, Kind
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message
from dragoman.wire.http import HttpResponse

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
    status: int, message: str, reason: str | None, kind: Kind, anthropic: int, openai: int
) -> None:
    fault = refused(status, message, reason)
    assert fault.kind == kind
    for name, expected in (("anthropic", anthropic), ("openai", openai)):
        client = dialects.get(name)  # type: ignore[attr-defined]
        response = client.binding.refuse(fault, client.codec.render_fault(fault))
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
def test_the_type_stands_in_the_header_or_in_the_body(more: Any, headers: Any, kind: str) -> None:
    response = HttpResponse(400, headers, json.dumps({"message": "m", **more}).encode())
    assert CODEC.parse_fault(response).kind == kind


def test_the_body_cap_has_a_shape_of_its_own() -> None:
    error = {"code": "validation_error", "message": "Failed to buffer the request body: length limit exceeded"}
    fault = CODEC.parse_fault(HttpResponse(413, (), json.dumps({"error": error}).encode()))
    assert (fault.kind, fault.message) == ("too_large", error["message"])


def test_too_long_tells_both_figures_when_the_question_is_known() -> None:
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
def test_an_answer_that_is_no_json_is_a_fault_too(body: bytes) -> None:
    fault = CODEC.parse_fault(HttpResponse(502, (("x-amzn-errortype", "Odd:x"),), body))
    assert (fault.kind, fault.status, fault.code) == ("server", 502, "Odd")
    assert "html" not in fault.message


def test_a_reason_is_part_of_the_message() -> None:
    assert refused(403, "no", "FEATURE_NOT_SUPPORTED").message == "no (FEATURE_NOT_SUPPORTED)"
    assert refused(403, "", "FEATURE_NOT_SUPPORTED").message == "the upstream refused (FEATURE_NOT_SUPPORTED)"
    assert refused(400).message == "the upstream refused (400)"


def test_something_else_that_expired_is_no_token() -> None:
    assert refused(400, "The conversation expired").kind == "invalid"


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_kiro_client_gets_every_kind_back_as_it_was(kind: Kind) -> None:
    fault = Fault(kind, "why", 500, 2.5)
    response = BINDING.refuse(fault, CODEC.render_fault(fault))
    assert response.header("retry-after") == "3"
    assert response.header("x-amzn-errortype") == json.loads(response.body)["__type"]
    assert CODEC.parse_fault(response).kind == kind


def test_the_services_own_reason_is_repeated_at_home() -> None:
    fault = refused(500, "high load", "MODEL_TEMPORARILY_UNAVAILABLE")
    assert json.loads(CODEC.render_fault(fault))["reason"] == "MODEL_TEMPORARILY_UNAVAILABLE"
