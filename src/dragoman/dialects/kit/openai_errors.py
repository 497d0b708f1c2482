"""Errors of OpenAI's two APIs, and of the many services that imitate them.

OpenAI writes `{"error": {"message", "type", "param", "code"}}`. The readers accept the variants of other services
too, including errors in a response with status 200; the writers write OpenAI's form.
"""

from __future__ import annotations

import re

from dragoman.dialects.base import LimitHeaders
from dragoman.dialects.kit.faults import FaultTable
from dragoman.dialects.kit.values import Object
from dragoman.errors import ErrorKind, Fault
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

# Codes and types that are more specific than the status.
KINDS: dict[str, ErrorKind] = {
    "context_length_exceeded": "context_full",
    "insufficient_quota": "quota",
    "billing_hard_limit_reached": "quota",
    "billing_not_active": "quota",
    "rate_limit_exceeded": "rate_limit",
    "rate_limit_error": "rate_limit",
    "too_many_requests": "rate_limit",
    "RateLimitReached": "rate_limit",  # Azure
    "rate_limit_reached_error": "rate_limit",  # Moonshot
    "requests": "rate_limit",
    "tokens": "rate_limit",
    "invalid_api_key": "auth",
    "authentication_error": "auth",
    "invalid_authentication_error": "auth",  # Moonshot
    "permission_error": "permission",
    "permission_denied": "permission",
    "model_not_found": "not_found",
    "not_found_error": "not_found",
    "resource_not_found_error": "not_found",  # Moonshot
    "request_too_large": "too_large",
    "server_is_overloaded": "overloaded",
    "slow_down": "overloaded",
    "overloaded_error": "overloaded",
    "engine_overloaded_error": "overloaded",
    "service_unavailable": "overloaded",
    "service_unavailable_error": "overloaded",
    "exceeded_current_quota_error": "quota",
    "usage_not_included": "quota",
    "invalid_prompt": "invalid",
    "bio_policy": "invalid",
    "cyber_policy": "invalid",
    "previous_response_not_found": "invalid",
    "unknown_url": "not_found",
    "response_not_found": "not_found",
    "timeout": "timeout",
    "timeout_error": "timeout",
    "server_error": "server",
    "api_error": "server",
    "invalid_request_error": "invalid",
    "BadRequestError": "invalid",
    "exceed_context_size_error": "context_full",  # llama.cpp
    "InvalidApiKey": "auth",  # DashScope
    "Arrearage": "quota",
    "Throttling": "rate_limit",
    "Throttling.RateQuota": "rate_limit",
    "Throttling.AllocationQuota": "rate_limit",
    "ModelNotFound": "not_found",
    "over_capacity": "overloaded",  # Groq
    "1113": "quota",  # Z.ai; its codes are strings of four digits
    "1261": "context_full",
    "1301": "invalid",
    "1302": "rate_limit",
    "1303": "rate_limit",
    "1305": "overloaded",
}
_MINIMAX: dict[int, ErrorKind] = {  # `base_resp.status_code`
    1001: "timeout",
    1002: "rate_limit",
    1004: "auth",
    1008: "quota",
    1026: "invalid",  # the question is sensitive
    1027: "invalid",  # the reply is sensitive
    1039: "rate_limit",
    1041: "rate_limit",
    1042: "invalid",
    2013: "invalid",
    2045: "rate_limit",
    2049: "auth",
    2056: "quota",
    2061: "permission",
}
# The type and status that are written for a kind; `CODES` has the code.
_TABLE = FaultTable(
    {
        "invalid": ("invalid_request_error", 400),
        "auth": ("invalid_request_error", 401),
        "permission": ("permission_error", 403),
        "not_found": ("invalid_request_error", 404),
        "too_large": ("invalid_request_error", 413),
        "rate_limit": ("rate_limit_error", 429),
        "quota": ("insufficient_quota", 429),
        "overloaded": ("server_error", 503),
        "context_full": ("invalid_request_error", 400),
        "timeout": ("server_error", 504),
        "server": ("server_error", 500),
    }
)
CODES: dict[ErrorKind, str] = {
    "auth": "invalid_api_key",
    "not_found": "model_not_found",
    "too_large": "request_too_large",
    "rate_limit": "rate_limit_exceeded",
    "quota": "insufficient_quota",
    "overloaded": "server_is_overloaded",
    "context_full": "context_length_exceeded",
    "timeout": "timeout",
}
_GENERIC = frozenset({"invalid_request_error", "BadRequestError", "server_error", "api_error"})
_FULL = re.compile(r"maximum context length|context[ _]length|context window|prompt is too long|too many tokens", re.I)
_TAG = re.compile(r"<(style|script|head)\b(?:(?!<\1\b).)*?</\1>|<[^<>]*>", re.DOTALL | re.I)
RETRY_DELAY = re.compile(r"try again in ([\d.]+)\s*(ms|s)\b", re.I)
_LONGEST_MESSAGE = 500


def parse_fault(response: HttpResponse, sent: Conversation | None = None) -> Fault:
    """Read an error response of any shape. Never raises."""
    try:
        body = jsonio.decode(response.body)
    except jsonio.JsonError:
        text = " ".join(_TAG.sub(" ", response.body.decode("utf-8", "replace")).split())
        body = text[:_LONGEST_MESSAGE]
    millis = response.header("retry-after-ms")
    is_number = re.fullmatch(r"\d{1,12}(\.\d+)?", millis, re.ASCII)
    return fault_of(body, response.status, float(millis) / 1000 if is_number else response.retry_after)


def fault_of(body: Json, status: int | None, retry_after: float | None = None) -> Fault:
    """Return the fault of an error body. An error frame of a stream has no status."""
    error = body.get("error", body) if isinstance(body, dict) else body
    fields: Object = error if isinstance(error, dict) else {"message": error} if isinstance(error, str) else {}
    if isinstance(error, str) and error in KINDS:
        fields["code"] = error
    if isinstance(body, dict) and not _message(fields):
        fields = {**body, **fields}
    message, param = _explained(fields), fields.get("param")
    words = [word for name in ("code", "type") if isinstance(word := fields.get(name), str) and word]
    code = next((word for word in words if word in KINDS), words[0] if words else "")
    status = _http_status(fields) if status is None else status
    kind = _kind(code, status, message)
    if status is None:
        status = 502 if kind == "server" else _TABLE.default_status(kind)
    at = param if isinstance(param, str) else ""
    if retry_after is None:
        retry_after = _delay_in(message)
    wait = None if kind == "quota" else retry_after  # Waiting does not refill a spent quota.
    return Fault(kind, message or f"the upstream responded with status {status}", status, wait, at, code)


def find_fault(body: Object) -> Fault | None:
    """Return the error in a whole reply or frame that came with status 200; None if it holds no error.

    A body with choices or usage is a reply, unless one of its error fields is set.
    """
    if (base := _minimax_fault(body.get("base_resp"))) is not None:
        return base
    if body.get("error") or "error" in (body.get("object"), body.get("type")):
        return fault_of(body, None)
    groq = body.get("x_groq")
    if isinstance(groq, dict) and groq.get("error"):
        return fault_of({"error": groq["error"]}, None)
    if body.get("choices") or body.get("usage"):
        return None
    errors = body.get("errors")
    if isinstance(errors, list) and errors:
        return fault_of({"error": errors[0]}, None)
    return fault_of(body, None) if any(body.get(name) for name in ("detail", "message", "msg")) else None


def _minimax_fault(base: Json) -> Fault | None:
    """Return the error in `base_resp`, where MiniMax reports errors in responses with status 200."""
    code = base.get("status_code") if isinstance(base, dict) else None
    if not isinstance(base, dict) or type(code) is not int or code == 0:
        return None
    text = base.get("status_msg")
    message = text if isinstance(text, str) and text else f"the upstream responded with status_code {code}"
    kind = _MINIMAX.get(code, "server")
    if kind == "invalid" and _FULL.search(message):
        kind = "context_full"
    return Fault(kind, message, 502 if kind == "server" else _TABLE.default_status(kind), code=str(code))


def _delay_in(message: str) -> float | None:
    """Return the seconds of a "try again in 20s" in a message."""
    found = RETRY_DELAY.search(message)
    try:
        return None if found is None else float(found[1]) / (1000 if found[2].lower() == "ms" else 1)
    except ValueError:
        return None


def _http_status(error: Object) -> int | None:
    """Return the HTTP status that an error body names."""
    for name in ("code", "status", "status_code"):
        number = error.get(name)
        number = int(number) if isinstance(number, str) and re.fullmatch(r"[45]\d\d", number) else number
        if type(number) is int and 400 <= number < 600:
            return number
    return None


def _explained(error: Object) -> str:
    """Return the message, with the raw error of OpenRouter's provider: OpenRouter's own message often has no reason."""
    message, metadata = _message(error), error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if isinstance(raw, dict):
        raw = jsonio.encode(raw).decode()
    return f"{message}: {raw[:_LONGEST_MESSAGE]}" if message and isinstance(raw, str) and raw else message


def _message(error: Object) -> str:
    for name in ("message", "detail", "msg", "error", "error_description"):
        value = error.get(name)
        if isinstance(value, str) and value:
            return value
        if value and name in {"message", "detail"}:
            return jsonio.encode(value).decode()[:_LONGEST_MESSAGE]
    return ""


def _kind(code: str, status: int | None, message: str) -> ErrorKind:
    """Return the kind of an error. A specific code wins over the status, a generic one does not."""
    by_code = KINDS.get(code)
    if by_code is not None and by_code not in {"invalid", "server"}:
        return by_code
    if _FULL.search(message) and (status in {400, 413, 422} or by_code == "invalid"):
        return "context_full"
    return by_code or "server" if status is None else _TABLE.by_status(status)


def render_error(fault: Fault) -> Object:
    """Return the `error` object of a fault. It keeps the fault's code if OpenAI's clients read it the same."""
    is_known = KINDS.get(fault.code) == fault.kind and fault.code not in _GENERIC
    code = fault.code if is_known else CODES.get(fault.kind)
    return {"message": fault.message, "type": _TABLE.default_type(fault.kind), "param": fault.at or None, "code": code}


def render_fault(fault: Fault) -> bytes:
    """Return the body of an error response."""
    return jsonio.encode({"error": render_error(fault)})


def status_of(fault: Fault) -> int:
    """Return the status of the error response: the fault's own if it means the same kind, else the usual one."""
    if (
        fault.kind in {"invalid", "server"}
        and (400 <= fault.status < 600)
        and _TABLE.by_status(fault.status) == fault.kind
    ):
        return fault.status
    return _TABLE.default_status(fault.kind)


OPENAI_LIMIT_HEADERS = LimitHeaders("x-ratelimit-limit-{}", "x-ratelimit-remaining-{}", "x-ratelimit-reset-{}", False)
