"""One turn of the simulated model: what it says, at what pace, and how it goes wrong. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.errors import Fault, Kind
from dragoman.model.conversation import Why
from dragoman.wire.jsonio import Json


class Say(Struct, frozen=True):
    text: str


class Reason(Struct, frozen=True):
    text: str


class Use(Struct, frozen=True):
    """A tool call. Arguments are text: a script may want them broken."""

    name: str
    arguments: str
    id: str = ""
    form: Literal["json", "text"] = "json"


class Wait(Struct, frozen=True):
    seconds: float


class Raise(Struct, frozen=True):
    """An exception inside the stream."""

    type: str
    message: str = ""
    reason: str | None = None


class Emit(Struct, frozen=True):
    """One wire frame, as it is."""

    event: str
    data: Json


Part: TypeAlias = Say | Reason | Use | Wait | Raise | Emit


class Cut(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the body ends early (bytes or wire frames from its beginning), and how: `end` is a clean end of body,
    `close` leaves out the last chunk, `reset` resets the connection."""

    byte: int | None = None
    event: int | None = None
    how: Literal["end", "close", "reset"] = "close"


class Refuse(Struct, frozen=True):
    """An HTTP refusal instead of an answer."""

    status: int
    message: str = ""
    reason: str | None = None
    type: str = ""
    retry_after: float | None = None
    headers: Mapping[str, str] = {}


class Pace(Struct, frozen=True, forbid_unknown_fields=True):
    """How an answer is cut up and timed."""

    chunk: int = 12  # characters in a text, reasoning or arguments delta
    delay: float = 0.0  # seconds before each wire frame
    first_delay: float = 0.0  # seconds before the first
    write: int = 0  # bytes in one write; 0: one wire frame


class Turn(Struct, frozen=True, kw_only=True):
    """`parts is None`: the embedded model says what it would say."""

    parts: tuple[Part, ...] | None = None
    refuse: Refuse | None = None
    stop: Why | None = None  # None: by what was said
    sequence: str | None = None
    pace: Pace = Pace()
    cut: Cut | None = None
    quirks: frozenset[str] = frozenset()
    input_tokens: int | None = None
    output_tokens: int | None = None


class Trouble(Struct, frozen=True):
    kind: Kind
    status: int
    message: str


# What an exception's name means in any dialect. A script may use these names or the kinds themselves.
TROUBLES: dict[str, Trouble] = {
    "ThrottlingException": Trouble("rate_limit", 429, "Too many requests, please wait before trying again."),
    "ServiceQuotaExceededException": Trouble("quota", 402, "You have reached the limit of your subscription."),
    "AccessDeniedException": Trouble("permission", 403, "The bearer token included in the request is invalid."),
    "ValidationException": Trouble("invalid", 400, "Improperly formed request."),
    "ContentLengthExceededException": Trouble("context_full", 400, "Input is too long."),
    "ResourceNotFoundException": Trouble("not_found", 404, "Not found."),
    "UnauthorizedException": Trouble("auth", 401, "Invalid token"),
    "RequestTooLargeException": Trouble("too_large", 413, "The request is too large."),
    "ModelTimeoutException": Trouble("timeout", 408, "The model took too long."),
    "ServiceUnavailableException": Trouble("overloaded", 503, "The service is unavailable. Please try again."),
    "InternalServerException": Trouble("server", 500, "Encountered an unexpected error. Please try again."),
}
_BY_STATUS = {trouble.status: name for name, trouble in reversed(TROUBLES.items())} | {
    529: "ServiceUnavailableException",
    502: "InternalServerException",
    504: "ModelTimeoutException",
}
_BY_KIND: dict[str, str] = {trouble.kind: name for name, trouble in TROUBLES.items()}


def exception_name(name: str) -> str:
    """The AWS name of an exception, which may be given as a kind (`rate_limit`)."""
    return _BY_KIND.get(name, name)


def exception_for(status: int) -> str:
    """The exception that goes with an HTTP status."""
    return _BY_STATUS.get(status, "InternalServerException" if status >= 500 else "ValidationException")


def fault(name: str, message: str = "", status: int | None = None, retry_after: float | None = None) -> Fault:
    """The canonical fault for an exception's name or kind."""
    known = TROUBLES.get(exception_name(name), TROUBLES["InternalServerException"])
    return Fault(known.kind, message or known.message, status or known.status, retry_after, code=exception_name(name))
