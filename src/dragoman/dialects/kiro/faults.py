"""Parse and render Kiro's errors: responses of both protocols (REST and `x-amz-target`), and exception frames. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import structs

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.kiro.models import find_model
from dragoman.dialects.kiro.request import estimate_input_tokens
from dragoman.dialects.kiro.rules import RULES
from dragoman.dialects.kit.faults import FaultTable, refusal_message, unreadable_message
from dragoman.dialects.kit.values import decoded, members
from dragoman.dialects.rulebook import Breach
from dragoman.errors import ErrorKind, Fault
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

Sizes: TypeAlias = Callable[[], tuple[int, int]]  # returns the tokens of the request, and the window

# The exception type and HTTP status that are written for each kind. Some of them are read as another kind.
_TABLE = FaultTable(
    {
        "invalid": ("ValidationException", 400),
        "context_full": ("ValidationException", 400),
        "not_found": ("ValidationException", 400),
        "too_large": ("ValidationException", 413),
        "auth": ("AccessDeniedException", 403),
        "permission": ("AccessDeniedException", 403),
        "quota": ("ServiceQuotaExceededException", 402),
        "rate_limit": ("ThrottlingException", 429),
        "overloaded": ("ThrottlingException", 429),
        "server": ("InternalServerException", 500),
        "timeout": ("InternalServerException", 504),
    },
    {
        "ContentLengthExceededException": "context_full",
        "UnauthorizedException": "auth",
        "ExpiredTokenException": "auth",
        "ServiceUnavailableException": "overloaded",
        "UnknownOperationException": "server",
        "ModelTimeoutException": "timeout",
    },
    # 404: this host does not have the operation, but another endpoint may have it.
    statuses={403: "auth", 404: "server"},
)
type_of = _TABLE.type_of
status_of = _TABLE.status_of
# The reason that is written with a kind.
_REASONS: dict[ErrorKind, str] = {
    "context_full": "CONTENT_LENGTH_EXCEEDS_THRESHOLD",
    "not_found": "INVALID_MODEL_ID",
    "permission": "FEATURE_NOT_SUPPORTED",
    "quota": "MONTHLY_REQUEST_COUNT",
    "overloaded": "INSUFFICIENT_MODEL_CAPACITY",
}
_BY_REASON: dict[str, ErrorKind] = {
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
_KIND_BY_PHRASE: tuple[tuple[str, ErrorKind], ...] = (
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
_IMPROPER_PHRASE = "improperly formed request"
_RULE = "docs/dialects/kiro.md, rule 49"
_NEARLY_FULL = 0.9  # an "improperly formed" request that fills this share of the window is most likely too long


def refusal_rules(call: ApiRequest, fault: Fault) -> Sequence[Breach]:
    """Return the rules that an error names and that a body does not show: a profile that is missing or not accepted."""
    has_profile = "profileArn" in members(call.body)
    if "profilearn" in fault.message.lower():
        what = "the service does not accept it" if has_profile else "it is missing, and the service requires it here"
        return [RULES.breach("body.profile_arn", "profileArn", f"{what} ({_RULE})")]
    if has_profile and fault.kind == "auth":
        what = f"it may be a profile that this login cannot use ({_RULE})"
        return [structs.replace(RULES.breach("body.profile_arn", "profileArn", what), severity="advice")]
    return []


def context_full_fault(tokens: int, window: int) -> Fault:
    """Return the error at whose message clients compact their conversation."""
    return Fault("context_full", f"prompt is too long: {tokens} tokens > {window} maximum", 400)


def parse_fault(response: HttpResponse, request: Conversation | None = None) -> Fault:
    """Parse an error response. With the request, the message of a "too long" error names its size."""
    body = decoded(response.body)
    kind = _TABLE.by_status(response.status)
    code = response.header("x-amzn-errortype")
    wait = response.retry_after
    if not isinstance(body, dict):
        return Fault(kind, unreadable_message(response), response.status, wait, code=code.partition(":")[0])
    sizes = None if request is None else lambda: (estimate_input_tokens(request), find_model(request.model).window)
    return fault_of(body, code, kind, response.status, wait, sizes)


def fault_of(
    body: dict[str, Json],
    code: str = "",
    kind: ErrorKind = "server",
    status: int | None = None,
    wait: float | None = None,
    sizes: Sizes | None = None,
) -> Fault:
    """Return the fault in an error object.

    It is classified in the order of the official client: overflow, availability, throttling, quota. `sizes` is called
    for the message of a "too long" error.
    """
    inner = body.get("error")
    error = inner if isinstance(inner, dict) else body
    code = (code or _text(body, "__type", "_type", "code") or _text(error, "code", "type")).partition(":")[0]
    code = code.rpartition("#")[2]
    message, reason = _text(error, "message", "Message") or _text(body, "error"), _text(body, "reason")
    by_phrase = next((kind for phrase, kind in _KIND_BY_PHRASE if phrase in message.lower()), None)
    if kind in ("server", "invalid") and by_phrase == "auth" and status not in (None, 401, 403):
        by_phrase = None  # something other than a token has expired
    # The type is more precise than the status, except for these statuses.
    by_type = None if status in (401, 402, 408, 413, 429, 504) else _TABLE.by_type(code)
    kind = _BY_REASON.get(reason) or by_phrase or by_type or kind
    if kind == "invalid" and sizes is not None and _IMPROPER_PHRASE in message.lower():
        tokens, window = sizes()
        kind = "context_full" if tokens >= _NEARLY_FULL * window else kind
    message = message or refusal_message(reason, code, status)
    if kind == "context_full":
        message = _too_long(sizes, message)
    elif reason and reason not in message:
        message = f"{message} ({reason})"
    return Fault(kind, message, status or _TABLE.default_status(kind), wait, code=reason or code)


def _too_long(sizes: Sizes | None, message: str) -> str:
    if sizes is None:
        return f"prompt is too long: {message}"
    tokens, window = sizes()
    return context_full_fault(max(tokens, window + 1), window).message


def render_fault(fault: Fault) -> bytes:
    """Return the body of an error response, which is also the payload of an exception frame."""
    reason = fault.code if _BY_REASON.get(fault.code) == fault.kind else _REASONS.get(fault.kind)
    return jsonio.encode({"__type": _TABLE.default_type(fault.kind), "message": fault.message, "reason": reason})


def _text(body: dict[str, Json], *names: str) -> str:
    return next((value for name in names if isinstance(value := body.get(name), str) and value), "")
