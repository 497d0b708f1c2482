"""Errors, both ways: refusals over HTTP, failed responses, and the error event of a stream."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from time import time

from dragoman.dialects.responses.nodes import JsonObject, object_of
from dragoman.errors import Fault, Kind
from dragoman.wire import jsonio
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

# Codes and types that say more than their status. The first lines are those that Codex acts on.
_BY_CODE: dict[str, Kind] = {
    "context_length_exceeded": "context_full",
    "insufficient_quota": "quota",
    "usage_not_included": "quota",
    "rate_limit_exceeded": "rate_limit",
    "server_is_overloaded": "overloaded",
    "slow_down": "overloaded",
    "invalid_prompt": "invalid",
    "bio_policy": "invalid",
    "cyber_policy": "invalid",
    "billing_hard_limit_reached": "quota",
    "rate_limit_error": "rate_limit",
    "invalid_api_key": "auth",
    "authentication_error": "auth",
    "permission_error": "permission",
    "model_not_found": "not_found",
    "not_found_error": "not_found",
    "unknown_url": "not_found",
    "previous_response_not_found": "invalid",
    "request_too_large": "too_large",
    "overloaded_error": "overloaded",
    "timeout": "timeout",
    "server_error": "server",
    "invalid_request_error": "invalid",
}
_BY_STATUS: dict[int, Kind] = {
    400: "invalid",
    401: "auth",
    402: "quota",
    403: "permission",
    404: "not_found",
    408: "timeout",
    413: "too_large",
    422: "invalid",
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
# How a kind is told: status, type, code; and the code of a response that failed.
_TOLD: dict[Kind, tuple[int, str, str | None, str]] = {
    "invalid": (400, "invalid_request_error", None, "invalid_prompt"),
    "auth": (401, "invalid_request_error", "invalid_api_key", "invalid_api_key"),
    "permission": (403, "permission_error", None, "permission_denied"),
    "not_found": (404, "invalid_request_error", "model_not_found", "model_not_found"),
    "too_large": (413, "invalid_request_error", "request_too_large", "invalid_prompt"),
    "rate_limit": (429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_exceeded"),
    "quota": (429, "insufficient_quota", "insufficient_quota", "insufficient_quota"),
    "overloaded": (503, "server_error", "server_is_overloaded", "server_is_overloaded"),
    "context_full": (400, "invalid_request_error", "context_length_exceeded", "context_length_exceeded"),
    "timeout": (504, "server_error", "timeout", "server_error"),
    "server": (500, "server_error", None, "server_error"),
}
_FULL = re.compile(r"maximum context length|context[ _]length|context window|prompt is too long|too many tokens", re.I)
_WAIT = re.compile(r"try again in ([\d.]+)\s*(ms|s)\b", re.I)
_TAG = re.compile(r"<(style|script|head)\b(?:(?!<\1\b).)*?</\1>|<[^<>]*>", re.DOTALL | re.I)
_LONGEST_MESSAGE = 500


def parse_fault(response: HttpResponse) -> Fault:
    """What an upstream's refusal says, whatever shape it has. Never raises."""
    try:
        body = jsonio.decode(response.body)
    except jsonio.JsonError:
        text = " ".join(_TAG.sub(" ", response.body.decode("utf-8", "replace")).split())
        body = text[:_LONGEST_MESSAGE]
    return fault_of(body, response.status, _retry_after(response))


def fault_of(body: Json, status: int | None, retry_after: float | None = None) -> Fault:
    """The fault in an error body; without a status, in a failed response or an error event."""
    error = body.get("error", body) if isinstance(body, dict) else body
    fields: JsonObject = error if isinstance(error, dict) else {"message": error} if isinstance(error, str) else {}
    if isinstance(body, dict) and not _message(fields):
        fields = {**body, **fields}
    message, code, param = _message(fields), _code(fields), fields.get("param")
    kind = _kind(code, status, message)
    if status is None:
        status = 502 if kind == "server" else _TOLD[kind][0]
    at = param if isinstance(param, str) else ""
    wait = None if kind == "quota" else retry_after if retry_after is not None else _told_wait(message)
    return Fault(kind, message or f"the upstream answered {status}", status, wait, at, code)


def failure_of(response: JsonObject) -> Fault | None:
    """The fault of a response that failed, or of an error that came as a success; None if there is none."""
    error = response.get("error")
    if not error and response.get("object") != "error":
        return None
    return fault_of({"error": error} if error else response, None)


def _told_wait(message: str) -> float | None:
    found = _WAIT.search(message)
    try:
        return None if found is None else float(found[1]) / (1000 if found[2].lower() == "ms" else 1)
    except ValueError:
        return None


def _message(error: JsonObject) -> str:
    for name in ("message", "detail", "msg", "error"):
        value = error.get(name)
        if isinstance(value, str) and value:
            return value
        if value and name in {"message", "detail"}:
            return jsonio.encode(value).decode()[:_LONGEST_MESSAGE]
    return ""


def _code(error: JsonObject) -> str:
    words = [value for name in ("code", "type") if isinstance(value := error.get(name), str) and value]
    return next((word for word in words if word in _BY_CODE), words[0] if words else "")


def _kind(code: str, status: int | None, message: str) -> Kind:
    """A code that says more than a status wins over it; one that only says who is to blame does not."""
    told = _BY_CODE.get(code)
    if told is not None and told not in {"invalid", "server"}:
        return told
    if _FULL.search(message) and (status in {400, 413, 422} or told == "invalid"):
        return "context_full"
    return told or "server" if status is None else _by_status(status)


def _by_status(status: int) -> Kind:
    return _BY_STATUS.get(status, "server" if status >= 500 or status < 400 else "invalid")


def _retry_after(response: HttpResponse) -> float | None:
    """Seconds to wait, from either header; a date counts from now."""
    millis = response.header("retry-after-ms")
    if re.fullmatch(r"\d{1,12}(\.\d+)?", millis, re.ASCII):
        return float(millis) / 1000
    value = response.header("retry-after").strip()
    if re.fullmatch(r"\d{1,9}(\.\d+)?", value, re.ASCII):
        return float(value)
    until, now = _moment(value), _moment(response.header("date"))
    return None if until is None else max(0.0, until - (time() if now is None else now))


def _moment(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def render_fault(fault: Fault) -> bytes:
    _, kind, code, _ = _TOLD[fault.kind]
    if _BY_CODE.get(fault.code) == fault.kind and fault.code not in {"invalid_request_error", "server_error"}:
        code = fault.code
    error: Json = {"message": fault.message, "type": kind, "param": fault.at or None, "code": code}
    return jsonio.encode({"error": error})


def render_failure(fault: Fault) -> JsonObject:
    """The error of a response that failed, in the codes that Codex acts on; it reads the wait from the words."""
    code = _TOLD[fault.kind][3]
    if _BY_CODE.get(fault.code) == fault.kind and fault.code != "invalid_request_error":
        code = fault.code
    message = fault.message
    if fault.kind == "rate_limit" and fault.retry_after is not None and not _WAIT.search(message):
        message = f"{message} (try again in {fault.retry_after:g}s)"
    return object_of({"code": code, "message": message})


def status_of(fault: Fault) -> int:
    """The status an OpenAI client expects with this fault: its own where it says the same, else the usual one."""
    if fault.kind in {"invalid", "server"} and (400 <= fault.status < 600) and _by_status(fault.status) == fault.kind:
        return fault.status
    return _TOLD[fault.kind][0]
