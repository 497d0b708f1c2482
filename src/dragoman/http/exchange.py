"""One request of a client and its response, for any server.

    head ──> chunk* ──> the last chunk        a stream; each chunk is sent at once, in order
    whole                                     or the whole response at once

Writing never waits. If the client reads more slowly than the server writes, `source` is paused and later resumed. If
the client disconnects, or reads nothing for `STALL_SECONDS` seconds, the task that answers is cancelled. Two servers
implement exchanges: the built-in one (`HttpExchange`) and any ASGI server (`gateway.asgi`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Generic, NewType, Protocol, TypeVar

from msgspec import Struct

from dragoman.errors import ClientFault, Fault, TooLarge
from dragoman.http.framing import CHUNK, CONTINUE, LAST_CHUNK, header_lines, status_line
from dragoman.wire.http import Headers, HttpRequest

if TYPE_CHECKING:
    from dragoman.http.server.connection import ServerConnection

BODY_SECONDS = 120.0
STALL_SECONDS = 60.0  # seconds that a client may read nothing at all
HIGH_WATER = 256 * 1024  # bytes that wait for a client before its source is paused
LOW_WATER = 64 * 1024
RATE_SECONDS = 10.0  # the period over which the rate of a body is measured; the first one is a grace period

_UNASKED = 64 * 1024  # bytes of a body that are buffered before `body` is called
_ONE_PIECE = 64 * 1024  # bytes of a body that are copied behind the head
_BODILESS = frozenset({204, 304})

ID_HEADERS = ("x-request-id", "request-id", "x-amzn-requestid")  # as the clients of each family read it
_IDS = "".join([f"{name}: %s\r\n" for name in ID_HEADERS])

Owner = NewType("Owner", str)  # the owner of the key that the request presented


class ClientDisconnected(Exception):
    """The client left."""


class BodyAccount(Protocol):
    """Counts the bytes that are buffered for one request."""

    def reserve(self, size: int) -> None:
        """Reserve room for bytes that are still to come. Raises ClientFault if there is none."""


A = TypeVar("A", bound=BodyAccount)


class BodyTimeout(Struct, frozen=True):
    """How fast a body must arrive: whole within `seconds`, and at `rate` bytes a second in each RATE_SECONDS."""

    seconds: float | None = None  # None: BODY_SECONDS
    rate: int = 0


DEFAULT_BODY_TIMEOUT = BodyTimeout()


class BodyTimer:
    """Checks whether one body arrives fast enough."""

    __slots__ = ("_began", "_ends", "_next", "_rate", "_seconds", "_seen", "due")

    def __init__(self, pace: BodyTimeout, now: float) -> None:
        self._seconds = BODY_SECONDS if pace.seconds is None else pace.seconds
        self._rate, self._seen = pace.rate, 0
        self._began, self._ends = now, now + self._seconds
        self._next = now + RATE_SECONDS if pace.rate else inf
        self.due = min(self._ends, self._next)  # the next time to judge

    def is_slow(self, size: int, now: float, grace: float) -> bool:
        """Whether so many bytes are fewer than its rate asks for, `grace` seconds or more after it began."""
        return now >= self._began + grace and size < self._rate * (now - self._began)

    def fault(self, size: int, now: float) -> Fault | None:
        """Return a fault if the body is too slow or too late, given the bytes so far; otherwise None."""
        if now >= self._ends:
            return Fault("timeout", f"the request body was not complete within {self._seconds:g} s", 408)
        if now < self._next:
            return None
        enough = size - self._seen >= self._rate * RATE_SECONDS
        self._seen, self._next = size, now + RATE_SECONDS
        self.due = min(self._ends, self._next)
        if enough:
            return None
        message = f"the request body came more slowly than {self._rate} bytes a second (server.min_body_rate)"
        return Fault("timeout", message, 408)


class PausableSource(Protocol):
    """The source of a response's bytes, which can be paused."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


def _nothing() -> None:
    pass


class Exchange(Struct, Generic[A], eq=False):
    """One request of a client, and its response. A response starts once: check `is_started` first."""

    request: HttpRequest
    target: str  # as it stood in the request line
    version: str  # likewise
    began: float
    id: str = ""
    client: str = ""  # its address; empty if the server that carries it does not say
    owner: Owner = Owner("")  # whose key it has proven
    account: A | None = None  # what is held for it is counted here
    headers: Headers = ()  # of every response to it, beside its id
    last: bool = False  # the connection ends with this answer
    is_started: bool = False
    is_finished: bool = False
    is_disconnected: bool = False
    is_shut_down: bool = False  # the server ends and waits no longer
    paused: bool = False  # the client reads more slowly than we write
    has_written: bool = False  # a chunk, since this was last read
    source: PausableSource | None = None  # where the answer comes from: paused when the client does not keep up
    task: asyncio.Task[Any] | None = None  # that answers it
    send_keep_alive: Callable[[], None] | None = None  # writes a keep-alive message into a stream
    on_admitted: Callable[[], None] = _nothing  # called when the request is admitted

    __repr__ = object.__repr__  # the request holds keys and prompts

    # --- in

    async def body(self, limit: int, pace: BodyTimeout = DEFAULT_BODY_TIMEOUT) -> bytes:
        """Return the whole body, counted on the account. Raises TooLarge, ClientDisconnected, Overloaded.

        For a body that comes too slowly it raises ClientFault. A client that leaves after this is noticed.
        """
        raise NotImplementedError

    def fail_body(self, fault: Fault) -> None:
        """End the wait for the body with this fault."""

    # --- out

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer with a body that is there already."""
        raise NotImplementedError

    def head(self, status: int, headers: Headers) -> None:
        """Begin a stream. It waits for the first chunk, or for `flush`."""
        raise NotImplementedError

    def flush(self) -> None:
        """Let the client see that a stream has begun, though there is nothing in it yet."""
        raise NotImplementedError

    def chunk(self, data: bytes, *, last: bool = False) -> None:
        """Send a piece of a stream. Only the last one may be empty."""
        raise NotImplementedError

    # --- the end

    def disconnect(self) -> None:
        """Give the client up: it left, or reads no more."""
        if not self.is_finished and not self.is_disconnected:
            self.is_disconnected = True
            self._interrupt()

    def cut(self) -> None:
        """End this exchange because the server ends."""
        if not self.is_finished and not self.is_disconnected:
            self.is_shut_down = True
            self._interrupt()

    def interrupted(self) -> bool:
        """Return whether only `disconnect` or `cut` cancelled this task, so that it may finish its work."""
        task, self.task = self.task, None
        return (self.is_disconnected or self.is_shut_down) and task is not None and task.uncancel() == 0

    def _interrupt(self) -> None:
        if self.task is not None:
            self.task.cancel()

    # --- called by the server

    def pause_source(self) -> None:
        """The client does not keep up."""
        if not self.paused:
            self.paused = True
            if self.source is not None:
                self.source.pause()

    def resume_source(self) -> None:
        """The client keeps up again."""
        if self.paused:
            self.paused = False
            if self.source is not None:
                self.source.resume()


class HttpExchange(Exchange[Any], kw_only=True, eq=False):
    """An exchange of the built-in server. The response is written directly to the socket."""

    connection: ServerConnection
    chunked: bool  # the body of the answer
    is_body_complete: bool = False  # the body of the request, whole
    size: int = 0  # of the body, as far as it has come
    _counts: bool = False  # pieces of the body, on the account, as they come
    _head: bytes = b""  # waits for the first chunk
    _pieces: list[bytes] = []
    _limit: int | None = None
    _waiter: asyncio.Future[None] | None = None
    _broken: Fault | None = None

    # --- in

    async def body(self, limit: int, pace: BodyTimeout = DEFAULT_BODY_TIMEOUT) -> bytes:
        connection, size = self.connection, self.size
        if not self.is_body_complete or size > limit:
            announced = self.request.header("content-length")
            self._counts = not announced.isdecimal()
            if not self._counts:
                if len(announced) > 18 or int(announced) > limit:
                    raise too_large(limit)
                size = int(announced)
        if self.account is not None:
            self.account.reserve(size)
        if not self.is_body_complete and self._broken is None:
            self._limit = limit
            if self.chunked and self.request.header("expect"):
                connection.write(CONTINUE)
            self._waiter = connection.server.loop.create_future()
            if self is connection.arriving:
                connection.body_timer = BodyTimer(pace, connection.server.clock())
                connection.deadline = connection.body_timer.due
            if not connection.is_reading:
                connection.resume_reading()
            if self.size <= limit:
                await self._waiter
            self._waiter = None
        if not connection.is_reading:  # a body that came whole before it was asked for may have stopped it
            connection.resume_reading()
        if self._broken is not None:
            raise ClientFault(self._broken.message, fault=self._broken)
        if self.size > limit:
            raise too_large(limit)
        pieces = self._pieces
        self._pieces = []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # --- for the connection

    def take(self, chunks: list[bytes], *, last: bool = False) -> None:
        """Take these pieces of the body out of the list; the `last` ones, or none, end it."""
        self.is_body_complete = last
        if last and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if not chunks:
            return
        piece = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        if self.is_finished or self._broken is not None:
            return
        self.size += len(piece)
        if self._counts and self.account is not None:
            try:
                self.account.reserve(len(piece))
            except ClientFault as error:
                self.fail_body(error.fault)
                return
        if self._limit is None:
            self._pieces.append(piece)
            if self.size > _UNASKED:
                self.connection.pause_reading()
        elif self.size <= self._limit:
            self._pieces.append(piece)
        else:
            self._pieces.clear()
            self._wake()

    def fail_body(self, fault: Fault) -> None:
        self.last = True
        self._broken = fault
        self._pieces.clear()
        self._wake()

    def task_done(self, _: object) -> None:
        """The task that answers is over. Without an answer the client must at least not wait for one."""
        if not self.is_finished and not self.is_disconnected:
            self.is_disconnected = True
            self.connection.abort()

    def probe(self) -> None:
        """Write a message without content: an interim response, or inside a stream the dialect's keep-alive."""
        if self.is_started:
            if self.send_keep_alive is not None:
                self.send_keep_alive()
        elif self.chunked:  # HTTP/1.0 has no interim responses
            self.connection.write(CONTINUE)

    # --- out

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        if self.is_disconnected or self.is_finished:
            return
        self.head(status, headers, len(body))
        self.is_finished = True
        head, self._head = self._head, b""
        if status in _BODILESS or self.request.method == "HEAD":
            self.connection.write(head)
        elif len(body) <= _ONE_PIECE:
            self.connection.write(head + body)
        else:
            self.connection.write_both(head, body)
        self.connection.response_done(self)

    def head(self, status: int, headers: Headers, length: int | None = None) -> None:
        """Begin a stream; of a body whose `length` is known, without chunks."""
        self.is_started = True
        framing = ""
        if length is not None:
            self.chunked = False
            if status not in _BODILESS:
                framing = f"content-length: {length}\r\n"
        elif self.chunked:
            framing = "transfer-encoding: chunked\r\n"
        else:
            self.last = True
        if not self.is_body_complete:
            self.last = True  # what is still to come of the request is not read to its end
        ids = _IDS % (self.id, self.id, self.id) if self.id else ""
        close = "connection: close\r\n" if self.last else ""
        lines = f"{status_line(status)}{header_lines(headers)}{ids}{header_lines(self.headers)}{framing}{close}\r\n"
        self._head = lines.encode("latin-1", "replace")
        self.headers = ()  # written

    def flush(self) -> None:
        if self._head and not self.is_disconnected:
            self.connection.write(self._head)
            self._head = b""

    def chunk(self, data: bytes, *, last: bool = False) -> None:
        if self.is_disconnected or self.is_finished:
            return
        self.has_written, self.is_finished = True, last
        if self.chunked:
            data = CHUNK % (len(data), data) if data else b""
            if last:
                data += LAST_CHUNK
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            self.connection.write(data)
        if last:
            self.connection.response_done(self)

    # --- for test servers only

    @property
    def is_half_closed(self) -> bool:
        """Whether the client has closed its sending side."""
        return self.connection.half_closed

    def write_raw(self, data: bytes) -> None:
        """Write bytes that are framed already, rightly or not."""
        self.is_started = True
        if not self.is_disconnected:
            self.connection.write(data)

    def end_raw(self) -> None:
        """All of the answer was written raw."""
        if not self.is_disconnected and not self.is_finished:
            self.is_finished = True
            self.connection.response_done(self)

    def break_off(self, *, reset: bool = False) -> None:
        """Break the connection inside the response."""
        self.is_finished = True
        if not self.is_disconnected:
            self.flush()
            self.connection.break_off(reset=reset)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"the request is longer than the limit of {limit} bytes (server.max_body)")
