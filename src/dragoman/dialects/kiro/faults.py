"""Errors, both directions: HTTP refusals of either wire protocol, and exception frames inside a stream (facts 5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dragoman.dialects.kiro.models import model_of
from dragoman.dialects.kiro.tokens import estimate_input
from dragoman.errors import Fault, Kind
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

Sizes: TypeAlias = Callable[[], tuple[int, int]]  # tokens that were sent, and that may be

# Each kind as we say it: exception type, reason, HTTP status.
_SAID: dict[Kind, tuple[str, str | None, int]] = {
    "invalid": ("ValidationException", None, 400),
    "context_full": ("ValidationException", "CONTENT_LENGTH_EXCEEDS_THRESHOLD", 400),
    "not_found": ("ValidationException", "INVALID_MODEL_ID", 400),
    "too_large": ("ValidationException", None, 413),
    "auth": ("AccessDeniedException", None, 403),
    "permission": ("AccessDeniedException", "FEATURE_NOT_SUPPORTED", 403),
    "quota": ("ServiceQuotaExceededException", "MONTHLY_REQUEST_COUNT", 402),
    "rate_limit": ("ThrottlingException", None, 429),
    "overloaded": ("ThrottlingException", "INSUFFICIENT_MODEL_CAPACITY", 429),
    "timeout": ("InternalServerException", None, 504),
    "server": ("InternalServerException", None, 500),
}
_BY_REASON: dict[str, Kind] = {
    "CONTENT_LENGTH_EXCEEDS_THRESHOLD": "context_full",
    "INVALID_MODEL_ID": "not_found",
    "INSUFFICIENT_MODEL_CAPACITY": "overloaded",
    "MODEL_TEMPORARILY_UNAVAILABLE": "overloaded",
    "MONTHLY_REQUEST_COUNT": "quota",
    "OVERAGE_REQUEST_LIMIT_EXCEEDED": "quota",
    "DAILY_REQUEST_COUNT": "rate_limit",
    "CONVERSATION_LIMIT_EXCEEDED": "quota",
    "TEMPORARILY_SUSPENDED": "permission",
    "FEATURE_NOT_SUPPORTED": "permission",
    "UNAUTHORIZED_CUSTOMIZATION_RESOURCE_ACCESS": "permission",
    "UNAUTHORIZED_WORKSPACE_CONTEXT_FEATURE_ACCESS": "permission",
    "REQUEST_BODY_INVALID": "invalid",
    "TOOL_SCHEMA_INVALID": "invalid",
    "THINKING_SIGNATURE_INVALID": "invalid",
}
_BY_WORDS: tuple[tuple[str, Kind], ...] = (
    ("input is too long", "context_full"),
    ("content length exceeds", "context_full"),
    ("length limit exceeded", "too_large"),
    ("bearer token", "auth"),
    ("invalid token", "auth"),
    ("expired", "auth"),
    ("suspended", "permission"),
    ("unexpectedly high load", "overloaded"),
    ("high volume of traffic", "overloaded"),
    ("too many requests", "rate_limit"),
)
_BY_TYPE: dict[str, Kind] = {
    "ContentLengthExceededException": "context_full",
    "ThrottlingException": "rate_limit",
    "ServiceQuotaExceededException": "quota",
    "AccessDeniedException": "auth",
    "UnauthorizedException": "auth",
    "ExpiredTokenException": "auth",
    "ValidationException": "invalid",
    "ServiceUnavailableException": "overloaded",
    "InternalServerException": "server",
    "UnknownOperationException": "server",
    "ModelTimeoutException": "timeout",
}
_BY_STATUS: dict[int, Kind] = {
    400: "invalid",
    401: "auth",
    402: "quota",
    403: "auth",
    404: "server",  # an operation that this host does not have: another endpoint may
    408: "timeout",
    413: "too_large",
    422: "invalid",
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
_IMPROPER = "improperly formed request"
_NEAR = 0.9  # of the window: an improper request of that size is most likely too long
_LONGEST_QUOTE = 200


def context_full(tokens: int, window: int) -> Fault:
    """The words at which clients compact their conversation."""
    return Fault("context_full", f"prompt is too long: {tokens} tokens > {window} maximum", 400)


def parse_fault(response: HttpResponse, asked: Conversation | None = None) -> Fault:
    """What a refusal says. With the conversation that was sent, one that is too long says how long."""
    try:
        body = jsonio.decode(response.body)
    except jsonio.JsonError:
        body = None
    kind = _BY_STATUS.get(response.status, "invalid" if 400 <= response.status < 500 else "server")
    code = response.header("x-amzn-errortype")
    wait = response.retry_after
    if not isinstance(body, dict):
        return Fault(kind, _unreadable(response), response.status, wait, code=code.partition(":")[0])
    sizes = None if asked is None else lambda: (estimate_input(asked), model_of(asked.model).window)
    return fault_of(body, code, kind, response.status, wait, sizes)


def fault_of(
    body: dict[str, Json],
    code: str = "",
    kind: Kind = "server",
    status: int | None = None,
    wait: float | None = None,
    sizes: Sizes | None = None,
) -> Fault:
    """The fault in an error object. The order is the official client's: overflow, availability, throttling, quota.

    `sizes` is asked where one that is too long shall say how long.
    """
    inner = body.get("error")
    told = inner if isinstance(inner, dict) else body
    code = (code or _text(body, "__type", "_type", "code") or _text(told, "code", "type")).partition(":")[0]
    code = code.rpartition("#")[2]
    message, reason = _text(told, "message", "Message") or _text(body, "error"), _text(body, "reason")
    by_words = next((meant for words, meant in _BY_WORDS if words in message.lower()), None)
    if kind in ("server", "invalid") and by_words == "auth" and status not in (None, 401, 403):
        by_words = None  # an expired thing that is no token
    kind = _BY_REASON.get(reason) or by_words or _kind_of_type(code, kind, status)
    if kind == "invalid" and sizes is not None and _IMPROPER in message.lower():
        tokens, window = sizes()
        kind = "context_full" if tokens >= _NEAR * window else kind
    said = message or f"the upstream refused ({reason or code or status or 'no reason given'})"
    if kind == "context_full":
        said = _too_long(sizes, said)
    elif reason and reason not in said:
        said = f"{said} ({reason})"
    return Fault(kind, said, status or _SAID[kind][2], wait, code=reason or code)


def _kind_of_type(code: str, kind: Kind, status: int | None) -> Kind:
    """The type says more than the status, except where the status is the exact one."""
    if status in (401, 402, 408, 413, 429, 504):
        return kind
    return _BY_TYPE.get(code, kind)


def _too_long(sizes: Sizes | None, said: str) -> str:
    if sizes is None:
        return f"prompt is too long: {said}"
    tokens, window = sizes()
    return context_full(max(tokens, window + 1), window).message


def render_fault(fault: Fault) -> bytes:
    """The body of a refusal, which is also the payload of an exception frame."""
    kind, reason, _ = _SAID[fault.kind]
    if _BY_REASON.get(fault.code) == fault.kind:
        reason = fault.code
    return jsonio.encode({"__type": kind, "message": fault.message, "reason": reason})


def type_of(fault: Fault) -> str:
    """The exception's name, for a header or a frame."""
    own = _BY_TYPE.get(fault.code) == fault.kind
    return fault.code if own else _SAID[fault.kind][0]


def status_of(fault: Fault) -> int:
    """The HTTP status that says this fault in this dialect."""
    return _SAID[fault.kind][2]


def _text(body: dict[str, Json], *names: str) -> str:
    return next((value for name in names if isinstance(value := body.get(name), str) and value), "")


def _unreadable(response: HttpResponse) -> str:
    """A sentence about an answer that is no JSON. Web pages are not quoted: nothing in them is for our reader."""
    text = " ".join(response.body.decode("utf-8", "replace").split())
    quoted = f": {text[:_LONGEST_QUOTE]}" if text and not text.startswith("<") else ""
    return f"the upstream answered {response.status} without a readable error{quoted}"
