"""The whole error tree, split by blame. Blame decides status, log level and whether a retry makes sense.

    DragomanError
     ├ ClientFault          the client's request
     │   ├ MalformedRequest     400   it breaks its own dialect
     │   ├ Unrepresentable      400   the target cannot express it (docs/decisions/content.md#d9)
     │   ├ UnknownModel         404
     │   ├ NotAuthorised        401
     │   └ TooLarge             413
     ├ UpstreamFault        the upstream refused, with a well-formed error
     ├ UpstreamViolation    the upstream broke its own dialect
     │   ├ BadFrame             502
     │   ├ MissingField         502
     │   ├ OutOfOrder           502
     │   ├ ResponseTooLarge     502   a limit on what is buffered of a response
     │   └ Truncated            502
     ├ TransportError       the network
     │   ├ ConnectFailed        502
     │   ├ TimedOut             504
     │   └ Reset                502
     └ LocalMisuse          500   the caller of this library, or a bug in it
         └ ConfigError                an invalid configuration (defined in gateway/layers.py)

`dragoman` exports all of them; docs/library.md describes them. Every error carries a `Fault`: a plain value that
dialects render in their own error shape.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self, TypeAlias

from msgspec import Struct, structs

ErrorKind: TypeAlias = Literal[
    "invalid",
    "auth",
    "permission",
    "not_found",
    "too_large",
    "rate_limit",
    "quota",
    "overloaded",
    "context_full",
    "timeout",
    "server",
]


# Faults of the request itself: they say nothing about the health of an upstream or its credential.
REQUEST_ERROR_KINDS: frozenset[ErrorKind] = frozenset({"invalid", "context_full", "too_large", "not_found"})
MAX_RETRY_AFTER = 24 * 3600.0  # seconds; the longest wait that a client is asked for


class Fault(Struct, frozen=True):
    """An error as a plain value, to be rendered in any dialect. `at` is a path into the payload."""

    kind: ErrorKind
    message: str
    status: int = 502
    retry_after: float | None = None
    at: str = ""
    code: str = ""  # the upstream's own error type or code, kept so that its own family can repeat it
    is_violation: bool = False  # the upstream broke its own dialect
    is_final: bool = False  # the response was complete: a retry would pay for it twice
    details: str = ""  # an error's further fields as JSON text, which clients of its family act on

    def __post_init__(self) -> None:
        """Limit `retry_after`, which may come from an upstream, to 0 to 24 hours; NaN becomes None."""
        wait = self.retry_after
        if wait is not None and not 0.0 <= wait <= MAX_RETRY_AFTER:
            is_number = wait < 0.0 or wait > MAX_RETRY_AFTER
            structs.force_setattr(self, "retry_after", min(max(wait, 0.0), MAX_RETRY_AFTER) if is_number else None)


class DragomanError(Exception):
    """The root of the tree. `str(error)` is a sentence that names the place."""

    kind: ClassVar[ErrorKind] = "server"
    status: ClassVar[int] = 500

    def __init__(self, message: str, *, at: str = "", fault: Fault | None = None) -> None:
        super().__init__(message)
        self.fault = fault or Fault(self.kind, f"{at}: {message}" if at else message, self.status, at=at)

    @property
    def at(self) -> str:
        """The path into the payload; empty if unknown."""
        return self.fault.at

    def __str__(self) -> str:
        return self.fault.message


class ClientFault(DragomanError):
    """The client's request is at fault."""

    kind: ClassVar[ErrorKind] = "invalid"
    status = 400


class MalformedRequest(ClientFault):
    """The request breaks the rules of its own dialect."""


class Unrepresentable(ClientFault):
    """The target dialect cannot express the request."""


class UnknownModel(ClientFault):
    """No route serves the model."""

    kind = "not_found"
    status = 404


class NotAuthorised(ClientFault):
    """The client's key is missing or wrong."""

    kind = "auth"
    status = 401


class TooLarge(ClientFault):
    """A body is larger than its limit."""

    kind = "too_large"
    status = 413


class UpstreamFault(DragomanError):
    """A well-formed refusal of the upstream. Its `fault` has kind, status and the time to wait."""

    status = 502


class UpstreamViolation(DragomanError):
    """The upstream sent something that its own dialect does not allow."""

    status = 502

    def __init__(self, message: str, *, at: str = "", fault: Fault | None = None) -> None:
        super().__init__(message, at=at, fault=fault)
        self.fault = structs.replace(self.fault, is_violation=True)

    def as_final(self) -> Self:
        """Mark the response as complete, so that it is not retried, and return the error."""
        self.fault = structs.replace(self.fault, is_final=True)
        return self


class BadFrame(UpstreamViolation):
    """Bytes that are not a frame, or a frame whose content cannot be read."""


class MissingField(UpstreamViolation):
    """A field that the dialect promises is absent, null or of the wrong type."""


class OutOfOrder(UpstreamViolation):
    """An event that the stream's grammar does not allow here."""


class ResponseTooLarge(UpstreamViolation):
    """The translation would have to buffer more than its limit. A retry would not help."""

    def __init__(self, message: str, *, at: str = "", fault: Fault | None = None) -> None:
        super().__init__(message, at=at, fault=fault)
        self.as_final()


class Truncated(UpstreamViolation):
    """The stream ended before it was complete."""


class TransportError(DragomanError):
    """The network failed."""

    status = 502


class ConnectFailed(TransportError):
    """No connection could be made; nothing was sent."""


class TimedOut(TransportError):
    """A deadline passed."""

    kind = "timeout"
    status = 504


class Reset(TransportError):
    """The connection broke."""


class LocalMisuse(DragomanError):
    """A wrong call of this library, such as an unknown dialect or a stream that was read already."""
