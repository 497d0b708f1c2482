"""Errors, both directions: HTTP refusals and failures in a stream share one shape."""

from __future__ import annotations

import math

from msgspec import structs

from dragoman.dialects.kit.faults import FaultTable, unreadable
from dragoman.dialects.kit.values import decoded, items
from dragoman.errors import Fault, Kind
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

_TABLE = FaultTable(
    {
        "invalid": ("INVALID_ARGUMENT", 400),
        "context_full": ("INVALID_ARGUMENT", 400),
        "auth": ("UNAUTHENTICATED", 401),
        "permission": ("PERMISSION_DENIED", 403),
        "not_found": ("NOT_FOUND", 404),
        "too_large": ("INVALID_ARGUMENT", 413),
        "rate_limit": ("RESOURCE_EXHAUSTED", 429),
        "quota": ("RESOURCE_EXHAUSTED", 429),
        "server": ("INTERNAL", 500),
        "overloaded": ("UNAVAILABLE", 503),
        "timeout": ("DEADLINE_EXCEEDED", 504),
    },
    {
        "FAILED_PRECONDITION": "invalid",
        "OUT_OF_RANGE": "invalid",
        "UNKNOWN": "server",
        "UNIMPLEMENTED": "server",
        "CANCELLED": "server",
        "ABORTED": "server",
    },
    statuses={424: "server"},
    exact={"invalid": frozenset({405, 409, 415, 422}), "server": frozenset({501, 502})},
)
status_of = _TABLE.status_of
_RETRY = "type.googleapis.com/google.rpc.RetryInfo"
_BAD = "type.googleapis.com/google.rpc.BadRequest"
_CONTEXT_WORDS = ("exceeds the maximum number of tokens", "input token count", "context window", "prompt is too long")


def parse_fault(response: HttpResponse, sent: Conversation | None = None) -> Fault:
    """What a refusal says, whoever sent it: the service, or a proxy on the way that speaks no JSON."""
    body = decoded(response.body)
    if isinstance(body, list) and body:
        body = body[0]  # the answer to a stream that was asked for as an array
    if isinstance(body, dict):
        fault = fault_of(body, response.status)
    else:
        fault = Fault(_TABLE.by_status(response.status), unreadable(response), response.status)
    return structs.replace(fault, retry_after=fault.retry_after or response.retry_after)


def fault_of(body: dict[str, Json], status: int | None = None) -> Fault:
    """The fault in an error object; `status` is what is known from outside it."""
    found = body.get("error")
    error: dict[str, Json] = found if isinstance(found, dict) else {"message": found or body.get("message")}
    name, code, message = error.get("status"), error.get("code"), error.get("message")
    name = name if isinstance(name, str) else ""
    status = status or (code if type(code) is int and 400 <= code < 600 else None)
    details = [each for each in items(error.get("details")) if isinstance(each, dict)]
    kind = _kind(name, status, details)
    if not isinstance(message, str) or not message:
        message = f"the upstream refused ({name or status or 'no reason given'})"
    if kind == "invalid" and any(words in message.lower() for words in _CONTEXT_WORDS):
        kind = "context_full"
    return Fault(kind, message, status or _TABLE.usual_status(kind), _wait(details), _field(details), name)


def _kind(name: str, status: int | None, details: list[dict[str, Json]]) -> Kind:
    kind = _TABLE.by_type(name) or _TABLE.by_status(status or 500)
    if status == 413:
        return "too_large"
    if kind == "invalid" and any(each.get("reason") == "API_KEY_INVALID" for each in details):
        return "auth"
    quotas = [quota for each in details for quota in items(each.get("violations")) if isinstance(quota, dict)]
    if kind == "rate_limit" and any("PerDay" in str(quota.get("quotaId")) for quota in quotas):
        return "quota"
    return kind


def _wait(details: list[dict[str, Json]]) -> float | None:
    for each in details:
        delay = each.get("retryDelay")
        if isinstance(delay, str) and delay.endswith("s") and len(delay) < 20:
            try:
                seconds = float(delay[:-1])
            except ValueError:
                continue
            if 0 <= seconds < math.inf:
                return seconds
    return None


def _field(details: list[dict[str, Json]]) -> str:
    for each in details:
        for violation in items(each.get("fieldViolations")):
            field = violation.get("field") if isinstance(violation, dict) else None
            if isinstance(field, str) and field:
                return field
    return ""


def render_fault(fault: Fault) -> bytes:
    """The body of a refusal, which is also how a stream says that it failed."""
    details: list[Json] = []
    if fault.retry_after is not None:
        details.append({"@type": _RETRY, "retryDelay": f"{fault.retry_after:g}s"})
    if fault.at:
        details.append({"@type": _BAD, "fieldViolations": [{"field": fault.at, "description": fault.message}]})
    message = fault.message
    if fault.kind == "context_full" and not any(words in message.lower() for words in _CONTEXT_WORDS):
        message = f"The input token count exceeds the maximum number of tokens allowed: {message}"
    error: dict[str, Json] = {"code": status_of(fault), "message": message, "status": _TABLE.type_of(fault)}
    if details:
        error["details"] = details
    return jsonio.encode({"error": error})
