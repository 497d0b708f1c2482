"""Parse and render errors of Anthropic's API; error responses and `event: error` frames have the same body. Pure."""

from __future__ import annotations

from dragoman.dialects.kit.faults import CLAUDE_FAULTS, refusal_message
from dragoman.dialects.kit.values import decoded
from dragoman.errors import ErrorKind, Fault
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

status_of = CLAUDE_FAULTS.status_of
# The service has one error type for these kinds; only the message distinguishes them.
_KIND_BY_PHRASE: tuple[tuple[str, ErrorKind], ...] = (
    ("prompt is too long", "context_full"),
    ("exceed context limit", "context_full"),
    ("exceeds the maximum number of tokens", "context_full"),
    ("credit balance is too low", "quota"),
)


def parse_fault(response: HttpResponse, sent: Conversation | None = None) -> Fault:
    """Read an error response of the service, or of a proxy in between, whose body may not be JSON."""
    body = decoded(response.body)
    if not isinstance(body, dict):
        return CLAUDE_FAULTS.unreadable(response)
    return fault_of(body, CLAUDE_FAULTS.by_status(response.status), response.status, response.retry_after)


def fault_of(
    body: dict[str, Json], kind: ErrorKind = "server", status: int | None = None, wait: float | None = None
) -> Fault:
    """Return the fault of an error body. `kind` and `status` come from the HTTP response, if there is one."""
    error = body.get("error")
    error = error if isinstance(error, dict) else {"message": error or body.get("message")}
    code, message = error.get("type"), error.get("message")
    code = code if isinstance(code, str) else ""
    kind = CLAUDE_FAULTS.by_type(code) or kind
    if not isinstance(message, str) or not message:
        message = refusal_message(code, status)
    if kind == "invalid":
        kind = next((kind for phrase, kind in _KIND_BY_PHRASE if phrase in message.lower()), kind)
    details = error.get("details")
    text = jsonio.encode(details).decode() if isinstance(details, dict) else ""
    return Fault(kind, message, status or CLAUDE_FAULTS.default_status(kind), wait, code=code, details=text)


def render_fault(fault: Fault) -> bytes:
    """Return the body of an error response, which is also the data of an error event."""
    error: dict[str, Json] = {"type": CLAUDE_FAULTS.type_of(fault), "message": fault.message}
    if fault.details:
        error["details"] = jsonio.decode(fault.details)
    return jsonio.encode({"type": "error", "error": error})
