"""Parse and render errors of Anthropic's API; error responses and `event: error` frames have the same body. Pure."""

from __future__ import annotations

from dragoman.dialects.kit.faults import CLAUDE_FAULTS, unreadable_message
from dragoman.dialects.kit.values import decoded
from dragoman.errors import ErrorKind, Fault
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

status_of = CLAUDE_FAULTS.status_of
# The service has one error type for these kinds; only the message distinguishes them.
_BY_MESSAGE: tuple[tuple[str, ErrorKind], ...] = (
    ("prompt is too long", "context_full"),
    ("exceed context limit", "context_full"),
    ("exceeds the maximum number of tokens", "context_full"),
    ("credit balance is too low", "quota"),
)


def parse_fault(response: HttpResponse, sent: Conversation | None = None) -> Fault:
    """Read an error response of the service, or of a proxy in between, whose body may not be JSON."""
    body = decoded(response.body)
    kind = CLAUDE_FAULTS.by_status(response.status)
    if isinstance(body, dict):
        return fault_of(body, kind, response.status, response.retry_after)
    return Fault(kind, unreadable_message(response), response.status, response.retry_after)


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
        message = f"the upstream refused the request ({code or status or 'no reason given'})"
    if kind == "invalid":
        kind = next((meant for words, meant in _BY_MESSAGE if words in message.lower()), kind)
    details = error.get("details")
    text = jsonio.encode(details).decode() if isinstance(details, dict) else ""
    return Fault(kind, message, status or CLAUDE_FAULTS.default_status(kind), wait, code=code, details=text)


def render_fault(fault: Fault) -> bytes:
    """Return the body of an error response, which is also the data of an error event."""
    error: dict[str, Json] = {"type": CLAUDE_FAULTS.type_of(fault), "message": fault.message}
    if fault.details:
        error["details"] = jsonio.decode(fault.details)
    return jsonio.encode({"type": "error", "error": error})
