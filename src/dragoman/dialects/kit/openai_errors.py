"""The errors of OpenAI's service, which both of its APIs have: `{"error": {"message", "type", "param", "code"}}`, and
the shapes that pass for it. Beside them stand those of the many servers that speak like it.
"""

from __future__ import annotations

import re

from dragoman.dialects.kit.faults import FaultTable
from dragoman.dialects.kit.values import Object
from dragoman.errors import ErrorKind, Fault
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

# Codes and types that say more than their status.
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
    1027: "invalid",  # the answer is sensitive
    1039: "rate_limit",
    1041: "rate_limit",
    1042: "invalid",
    2013: "invalid",
    2045: "rate_limit",
    2049: "auth",
    2056: "quota",
    2061: "permission",
}
# How a kind is written: type and status, and the code beside them.
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
_ANY = frozenset({"invalid_request_error", "BadRequestError", "server_error", "api_error"})  # they name no reason
_FULL = re.compile(r"maximum context length|context[ _]length|context window|prompt is too long|too many tokens", re.I)
_TAG = re.compile(r"<(style|script|head)\b(?:(?!<\1\b).)*?</\1>|<[^<>]*>", re.DOTALL | re.I)
RETRY_DELAY = re.compile(r"try again in ([\d.]+)\s*(ms|s)\b", re.I)
_LONGEST_MESSAGE = 500


def parse_fault(response: HttpResponse, sent: Conversation | None = None) -> Fault:
    """What an upstream's refusal says, whatever shape it has. Never raises."""
    try:
        body = jsonio.decode(response.body)
    except jsonio.JsonError:
        text = " ".join(_TAG.sub(" ", response.body.decode("utf-8", "replace")).split())
        body = text[:_LONGEST_MESSAGE]
    millis = response.header("retry-after-ms")
    told = re.fullmatch(r"\d{1,12}(\.\d+)?", millis, re.ASCII)
    return fault_of(body, response.status, float(millis) / 1000 if told else response.retry_after)


def fault_of(body: Json, status: int | None, retry_after: float | None = None) -> Fault:
    """The fault in an error body; without a status, in an error frame of a stream."""
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
        retry_after = _told_wait(message)
    wait = None if kind == "quota" else retry_after  # no waiting mends an empty purse
    return Fault(kind, message or f"the upstream answered {status}", status, wait, at, code)


def find_fault(body: Object) -> Fault | None:
    """Return the fault in what came as a success: a whole reply or a frame of a stream. None: it holds no error.

    What has choices is an answer, whatever else it says, unless a field says that it failed.
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
    """MiniMax answers 200 and tells in `base_resp` that it failed."""
    code = base.get("status_code") if isinstance(base, dict) else None
    if not isinstance(base, dict) or type(code) is not int or code == 0:
        return None
    told = base.get("status_msg")
    message = told if isinstance(told, str) and told else f"the upstream answered with status_code {code}"
    kind = _MINIMAX.get(code, "server")
    if kind == "invalid" and _FULL.search(message):
        kind = "context_full"
    return Fault(kind, message, 502 if kind == "server" else _TABLE.default_status(kind), code=str(code))


def _told_wait(message: str) -> float | None:
    found = RETRY_DELAY.search(message)
    try:
        return None if found is None else float(found[1]) / (1000 if found[2].lower() == "ms" else 1)
    except ValueError:
        return None


def _http_status(error: Object) -> int | None:
    """The HTTP status that an error names itself."""
    for name in ("code", "status", "status_code"):
        number = error.get(name)
        number = int(number) if isinstance(number, str) and re.fullmatch(r"[45]\d\d", number) else number
        if type(number) is int and 400 <= number < 600:
            return number
    return None


def _explained(error: Object) -> str:
    """The message, and what OpenRouter's provider said: its own message is often no more than that it failed."""
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
    """A code that says more than a status wins over it; one that only says who is to blame does not."""
    told = KINDS.get(code)
    if told is not None and told not in {"invalid", "server"}:
        return told
    if _FULL.search(message) and (status in {400, 413, 422} or told == "invalid"):
        return "context_full"
    return told or "server" if status is None else _TABLE.by_status(status)


def render_error(fault: Fault) -> Object:
    own = KINDS.get(fault.code) == fault.kind and fault.code not in _ANY
    code = fault.code if own else CODES.get(fault.kind)
    return {"message": fault.message, "type": _TABLE.default_type(fault.kind), "param": fault.at or None, "code": code}


def render_fault(fault: Fault) -> bytes:
    return jsonio.encode({"error": render_error(fault)})


def status_of(fault: Fault) -> int:
    """The status an OpenAI client expects with this fault: its own where it says the same, else the usual one."""
    if (
        fault.kind in {"invalid", "server"}
        and (400 <= fault.status < 600)
        and _TABLE.by_status(fault.status) == fault.kind
    ):
        return fault.status
    return _TABLE.default_status(fault.kind)
