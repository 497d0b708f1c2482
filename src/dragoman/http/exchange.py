"""The client's side of one request, whichever server carries it: its head and body in, the answer out, and its end.

    head ──> chunk* ──> end        a stream; what is written goes out at once, in order
    whole                          or all of it in one

Writing never waits. When the client reads more slowly than we write, `source` is paused, and later resumed; a
client that leaves, or reads nothing for `STALL` seconds, ends the work wherever it waits. Two servers carry exchanges:
our own (`http.server`) and any ASGI server (`gateway.asgi`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import Any, Generic, NewType, Protocol, TypeVar

from msgspec import Struct, structs

from dragoman.errors import Fault, TooLarge
from dragoman.wire.http import Headers, HttpRequest

BODY_SECONDS = 120.0
STALL = 60.0  # seconds that a client may read nothing at all
HIGH = 256 * 1024  # bytes that wait for a client before its source is paused
LOW = 64 * 1024
RATE_SECONDS = 10.0  # over which the rate of a body is measured; the first of them are its grace

ID_HEADERS = ("x-request-id", "request-id", "x-amzn-requestid")  # as the clients of each family read it


Owner = NewType("Owner", str)  # who has proven a key


class Gone(Exception):
    """The client left."""


class BodyAccount(Protocol):
    """Counts the bytes that are held for one request."""

    def reserve(self, size: int) -> None:
        """Take room for bytes that are still to come. Raises ClientFault, and then takes none."""

    def add(self, size: int) -> None:
        """Count bytes that are there, or with a minus, are not held any more."""


A = TypeVar("A", bound=BodyAccount)


class Pace(Struct, frozen=True):
    """How fast a body must come: whole within `seconds`, and at `rate` bytes a second in each RATE_SECONDS."""

    seconds: float | None = None  # None: BODY_SECONDS
    rate: int = 0


ANY_PACE = Pace()


class BodyWatch:
    """Judges whether one body comes fast enough."""

    __slots__ = ("_began", "_ends", "_next", "_rate", "_seconds", "_seen")

    def __init__(self, pace: Pace, now: float) -> None:
        self._seconds = BODY_SECONDS if pace.seconds is None else pace.seconds
        self._rate, self._seen = pace.rate, 0
        self._began, self._ends = now, now + self._seconds
        self._next = now + RATE_SECONDS if pace.rate else inf

    @property
    def due(self) -> float:
        """The next time to judge."""
        return min(self._ends, self._next)

    def is_slow(self, size: int, now: float, grace: float) -> bool:
        """Whether so many bytes are fewer than its rate asks for, `grace` seconds or more after it began."""
        return now >= self._began + grace and size < self._rate * (now - self._began)

    def fault(self, size: int, now: float) -> Fault | None:
        """What is wrong with a body of which so many bytes have come; None if nothing is, or it is too early to say."""
        if now >= self._ends:
            return Fault("timeout", f"the request did not come whole within {self._seconds:g} s", 408)
        if now < self._next:
            return None
        enough = size - self._seen >= self._rate * RATE_SECONDS
        self._seen, self._next = size, now + RATE_SECONDS
        if enough:
            return None
        message = f"the request came more slowly than {self._rate} bytes a second (server.min_body_rate)"
        return Fault("timeout", message, 408)


class Source(Protocol):
    """Where an answer's bytes come from."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Exchange(ABC, Generic[A]):
    """What the gateway knows of a client. The answer is begun once: check `begun` first."""

    __slots__ = (
        "_source",
        "_task",
        "account",
        "began",
        "begun",
        "client",
        "cut_off",
        "finished",
        "gone",
        "headers",
        "id",
        "last",
        "like",
        "owner",
        "paused",
        "request",
        "sign",
        "target",
        "version",
        "wrote",
    )

    def __init__(self, request: HttpRequest, *, target: str, version: str, began: float) -> None:
        self.id = ""
        self.request = request
        self.client = ""  # its address; empty if the server that carries it does not say
        self.owner = Owner("")  # whose key it has proven
        self.account: A | None = None  # what is held for it is counted here
        self.target, self.version = target, version  # as they stood in the request line
        self.headers: Headers = ()  # of every response to it, beside its id
        self.like: object = None  # the same for all that have this one's head, but for the length of the body
        self.last = False  # the connection ends with this answer
        self.began = began
        self.begun = False
        self.finished = False
        self.gone = False
        self.cut_off = False  # the server ends and waits no longer
        self.paused = False  # the client reads more slowly than we write
        self.wrote = False  # a chunk, since this was last read
        self._source: Source | None = None
        self._task: asyncio.Task[Any] | None = None  # that answers it
        self.sign: Callable[[], None] | None = None  # writes a sign of life into a stream

    # --- in

    @abstractmethod
    async def body(self, limit: int, pace: Pace = ANY_PACE) -> bytes:
        """Return the whole body. Raises TooLarge, Gone, and ClientFault for one that comes too slowly."""

    def reserve(self, limit: int) -> None:
        """Take room for the body that the head announces, on the account. Raises TooLarge, Overloaded."""
        announced = self.request.header("content-length")
        if not announced.isdecimal():
            return
        if len(announced) > 18 or int(announced) > limit:
            raise too_large(limit)
        if self.account is not None:
            self.account.reserve(int(announced))

    def spoil(self, fault: Fault) -> None:
        """End the wait for the body with this fault."""

    def admitted(self) -> None:
        """The request has proven that it may ask."""

    # --- out

    @abstractmethod
    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer with a body that is there already."""

    @abstractmethod
    def head(self, status: int, headers: Headers) -> None:
        """Begin a stream. It waits for the first chunk, or for `flush`."""

    @abstractmethod
    def flush(self) -> None:
        """Let the client see that a stream has begun, though there is nothing in it yet."""

    @abstractmethod
    def chunk(self, data: bytes) -> None:
        """Send a piece of a stream, never an empty one."""

    @abstractmethod
    def end(self, data: bytes = b"") -> None:
        """Send the last piece of a stream."""

    def forget_body(self) -> None:
        """Drop the body: it is not read again."""
        if self.account is not None:
            self.account.add(-len(self.request.body))
        self.request = structs.replace(self.request, body=b"")

    def feed_from(self, source: Source | None) -> None:
        """Whom to pause when the client does not keep up."""
        self._source = source
        if source is not None and self.paused:
            source.pause()

    # --- the end

    def watch(self) -> None:
        """The body is read: from now on a client that leaves must be noticed."""

    def streams(self) -> None:
        """A long answer is to come."""

    def leave(self) -> None:
        """Give the client up: it left, or reads no more."""
        if not self.finished and not self.gone:
            self.gone = True
            self._interrupt()

    def cut(self) -> None:
        """End this exchange because the server ends."""
        if not self.finished and not self.gone:
            self.cut_off = True
            self._interrupt()

    def interrupted(self) -> bool:
        """Whether only `leave` or `cut` cancelled this task: then it may go on, and end well."""
        task = self._task
        self._task = None
        return (self.gone or self.cut_off) and task is not None and task.uncancel() == 0

    def _interrupt(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # --- for those who carry it

    def hold(self) -> None:
        """The client does not keep up."""
        if not self.paused:
            self.paused = True
            if self._source is not None:
                self._source.pause()

    def flow(self) -> None:
        """The client keeps up again."""
        if self.paused:
            self.paused = False
            if self._source is not None:
                self._source.resume()


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"the request is longer than {limit} bytes, which is the limit here (server.max_body)")
