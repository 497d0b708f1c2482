"""Errors, both directions: HTTP refusals and `event: error` frames share one shape."""

from __future__ import annotations

from dragoman.errors import Fault, Kind
from dragoman.wire import jsonio
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

# Each kind's own error type and status; the first type of a kind is the one we say.
_SAID: dict[Kind, tuple[str, int]] = {
    "invalid": ("invalid_request_error", 400),
    "context_full": ("invalid_request_error", 400),
    "auth": ("authentication_error", 401),
    "quota": ("billing_error", 429),  # and `x-should-retry: false`, which clients know for a spent budget (D18)
    "permission": ("permission_error", 403),
    "not_found": ("not_found_error", 404),
    "too_large": ("request_too_large", 413),
    "rate_limit": ("rate_limit_error", 429),
    "server": ("api_error", 500),
    "timeout": ("timeout_error", 504),
    "overloaded": ("overloaded_error", 529),
}
_BY_TYPE: dict[str, Kind] = {
    **{name: kind for kind, (name, _) in _SAID.items() if kind != "context_full"},
    "conflict_error": "invalid",
}
_BY_STATUS: dict[int, Kind] = {
    **{status: kind for kind, (_, status) in _SAID.items() if kind != "context_full"},
    402: "quota",
    408: "timeout",
    429: "rate_limit",
    503: "overloaded",
}
_OWN_STATUS: dict[Kind, frozenset[int]] = {  # statuses that say the kind as well as its usual one, and more exactly
    "invalid": frozenset({405, 409, 415, 422}),
    "server": frozenset({501, 502}),
}
# The service has one error type for these; only its words tell them apart.
_BY_WORDS: tuple[tuple[str, Kind], ...] = (
    ("prompt is too long", "context_full"),
    ("exceed context limit", "context_full"),
    ("exceeds the maximum number of tokens", "context_full"),
    ("credit balance is too low", "quota"),
)
_LONGEST_QUOTE = 200


def parse_fault(response: HttpResponse) -> Fault:
    """What a refusal says, whoever sent it: the service, or a proxy on the way that speaks no JSON."""
    try:
        body = jsonio.decode(response.body)
    except jsonio.JsonError:
        body = None
    retry_after = response.retry_after
    kind = _by_status(response.status)
    if isinstance(body, dict):
        return fault_of(body, kind, response.status, retry_after)
    return Fault(kind, _unreadable(response), response.status, retry_after)


def fault_of(
    body: dict[str, Json], kind: Kind = "server", status: int | None = None, wait: float | None = None
) -> Fault:
    """The fault in an error object. `kind` and `status` are what is known from outside it."""
    error = body.get("error")
    error = error if isinstance(error, dict) else {"message": error or body.get("message")}
    code, message = error.get("type"), error.get("message")
    code = code if isinstance(code, str) else ""
    kind = _BY_TYPE.get(code, kind)
    if not isinstance(message, str) or not message:
        message = f"the upstream refused ({code or status or 'no reason given'})"
    if kind == "invalid":
        kind = next((meant for words, meant in _BY_WORDS if words in message.lower()), kind)
    details = error.get("details")
    told = jsonio.encode(details).decode() if isinstance(details, dict) else ""
    return Fault(kind, message, status or _SAID[kind][1], wait, code=code, details=told)


def render_fault(fault: Fault) -> bytes:
    """The body of a refusal, which is also the data of an error event."""
    error: dict[str, Json] = {"type": _type(fault), "message": fault.message}
    if fault.details:
        error["details"] = jsonio.decode(fault.details)
    return jsonio.encode({"type": "error", "error": error})


def status_of(fault: Fault) -> int:
    """The HTTP status that says this fault in this dialect."""
    return fault.status if fault.status in _OWN_STATUS.get(fault.kind, ()) else _SAID[fault.kind][1]


def _type(fault: Fault) -> str:
    own = _BY_TYPE.get(fault.code) == fault.kind
    return fault.code if own else _SAID[fault.kind][0]


def _by_status(status: int) -> Kind:
    return _BY_STATUS.get(status) or ("invalid" if 400 <= status < 500 and status != 424 else "server")


def _unreadable(response: HttpResponse) -> str:
    """A sentence about an answer that is no JSON. Web pages are not quoted: nothing in them is for our reader."""
    text = " ".join(response.body.decode("utf-8", "replace").split())
    quoted = f": {text[:_LONGEST_QUOTE]}" if text and not text.startswith("<") else ""
    return f"the upstream answered {response.status} without a readable error{quoted}"
