"""One request of a client and its response, for any server.

    head ──> chunk* ──> the last chunk        a stream; each chunk is sent at once, in order
    whole                                     or the whole response at once

Writing never waits. If the client reads more slowly than the server writes, `source` is paused and later resumed. If
the client disconnects, or reads nothing for `STALL_SECONDS` seconds, the task that responds is cancelled. Two servers
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
STALL_SECONDS = 60.0  # a client that reads nothing for so long counts as disconnected
HIGH_WATER = 256 * 1024  # bytes buffered for a client at which the source is paused
LOW_WATER = 64 * 1024  # bytes buffered for a client at which the source is resumed
RATE_SECONDS = 10.0  # the period over which the rate of a body is measured; the first one is a grace period

_MAX_EARLY_BODY = 64 * 1024  # bytes of a request body that are buffered before `body` is called
_MAX_COPIED_BODY = 64 * 1024  # bytes; a longer response body is written separately from the head
_STATUSES_WITHOUT_BODY = frozenset({204, 304})

_SWITCHING = "HTTP/1.1 101 Switching Protocols\r\n"

ID_HEADERS = ("x-request-id", "request-id", "x-amzn-requestid")  # each SDK reads its own one
_ID_LINES = "".join([f"{name}: %s\r\n" for name in ID_HEADERS])

Owner = NewType("Owner", str)  # the owner of the key that the request presented


class ClientDisconnected(Exception):
    """The client closed the connection before its request was complete."""


class BodyAccount(Protocol):
    """Counts the bytes that are buffered for one request."""

    def reserve(self, size: int) -> None:
        """Reserve memory for bytes that are about to arrive. Raises ClientFault if the limit is exceeded."""


A = TypeVar("A", bound=BodyAccount)


class BodyTimeout(Struct, frozen=True):
    """How fast a body must arrive: complete within `seconds`, and at `rate` bytes a second in each RATE_SECONDS."""

    seconds: float | None = None  # None: BODY_SECONDS
    rate: int = 0


DEFAULT_BODY_TIMEOUT = BodyTimeout()


class BodyTimer:
    """Checks whether one body arrives fast enough."""

    __slots__ = ("_began", "_ends", "_next", "_rate", "_seconds", "_seen", "due")

    def __init__(self, timeout: BodyTimeout, now: float) -> None:
        self._seconds = BODY_SECONDS if timeout.seconds is None else timeout.seconds
        self._rate, self._seen = timeout.rate, 0
        self._began, self._ends = now, now + self._seconds
        self._next = now + RATE_SECONDS if timeout.rate else inf
        self.due = min(self._ends, self._next)  # when `fault` is to be called next

    def is_slow(self, size: int, now: float, grace: float) -> bool:
        """Return whether `size` bytes are below the required rate, at least `grace` seconds after the start."""
        return now >= self._began + grace and size < self._rate * (now - self._began)

    def fault(self, size: int, now: float) -> Fault | None:
        """Return a fault if the body is too slow or too late, given the bytes so far; otherwise None."""
        if now >= self._ends:
            return Fault("timeout", f"the request body was not complete within {self._seconds:g} seconds", 408)
        if now < self._next:
            return None
        enough = size - self._seen >= self._rate * RATE_SECONDS
        self._seen, self._next = size, now + RATE_SECONDS
        self.due = min(self._ends, self._next)
        if enough:
            return None
        message = f"the request body arrived more slowly than {self._rate} bytes a second (server.min_body_rate)"
        return Fault("timeout", message, 408)


class PausableSource(Protocol):
    """The source of a response's bytes, which can be paused."""

    def pause(self) -> None:
        """Stop delivering bytes."""

    def resume(self) -> None:
        """Deliver bytes again."""


class UpgradedProtocol(Protocol):
    """Reads the bytes of a connection after an upgrade to another protocol."""

    def data_received(self, data: bytes) -> None:
        """Read bytes of the client."""

    def stop(self) -> None:
        """End soon: the server is shutting down."""


def _nothing() -> None:
    pass


class Exchange(Struct, Generic[A], eq=False):
    """One request of a client, and its response. A response starts once: check `is_started` first."""

    request: HttpRequest
    target: str  # as in the request line: path and query
    version: str  # of HTTP: "1.0" or "1.1"
    began: float
    id: str = ""
    client: str = ""  # its address; empty if the server does not report it
    owner: Owner = Owner("")  # empty until the key is checked
    memory: A | None = None  # counts the memory that this request uses
    headers: Headers = ()  # sent with any response, in addition to the id headers
    last: bool = False  # the connection is closed after this response
    is_started: bool = False
    is_finished: bool = False
    is_disconnected: bool = False
    is_shut_down: bool = False  # the server is shutting down and no longer waits for this exchange
    paused: bool = False  # the client reads more slowly than the server writes
    has_written: bool = False  # a chunk was written since the keep-alive timer last reset this
    source: PausableSource | None = None  # produces the response; paused while the client does not keep up
    task: asyncio.Task[Any] | None = None  # produces the response
    send_keep_alive: Callable[[], None] | None = None  # writes a keep-alive message into a stream
    on_admitted: Callable[[], None] = _nothing  # called when the request is admitted

    __repr__ = object.__repr__  # the request holds keys and prompts

    # --- request

    async def body(self, limit: int, timeout: BodyTimeout = DEFAULT_BODY_TIMEOUT) -> bytes:
        """Return the whole request body, and reserve its size in `memory`.

        Raises TooLarge for a body over `limit` bytes, ClientFault for one that arrives too slowly, Overloaded if memory
        is short, ClientDisconnected if the client leaves. From here on, a disconnect cancels the task.
        """
        raise NotImplementedError

    def fail_body(self, fault: Fault) -> None:
        """Make `body` raise this fault."""

    # --- response

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send the whole response."""
        raise NotImplementedError

    def head(self, status: int, headers: Headers) -> None:
        """Start a response stream. The head is sent with the first chunk, or by `flush`."""
        raise NotImplementedError

    def flush(self) -> None:
        """Send the head of a stream now, before its first chunk."""
        raise NotImplementedError

    def chunk(self, data: bytes, *, last: bool = False) -> None:
        """Send a chunk of a stream. Only the last one may be empty."""
        raise NotImplementedError

    # --- the end

    def disconnect(self) -> None:
        """Cancel the task: the client has disconnected, or no longer reads."""
        if not self.is_finished and not self.is_disconnected:
            self.is_disconnected = True
            self._interrupt()

    def cut(self) -> None:
        """Cancel the task: the server is shutting down."""
        if not self.is_finished and not self.is_disconnected:
            self.is_shut_down = True
            self._interrupt()

    def was_interrupted(self) -> bool:
        """Return whether only `disconnect` or `cut` cancelled this task, so that it may finish its work."""
        task, self.task = self.task, None
        return (self.is_disconnected or self.is_shut_down) and task is not None and task.uncancel() == 0

    def _interrupt(self) -> None:
        if self.task is not None:
            self.task.cancel()

    # --- called by the server

    def pause_source(self) -> None:
        """Pause the source: the client does not keep up."""
        if not self.paused:
            self.paused = True
            if self.source is not None:
                self.source.pause()

    def resume_source(self) -> None:
        """Resume the source: the client keeps up again."""
        if self.paused:
            self.paused = False
            if self.source is not None:
                self.source.resume()


class HttpExchange(Exchange[Any], kw_only=True, eq=False):
    """An exchange of the built-in server. The response is written directly to the socket."""

    connection: ServerConnection
    chunked: bool  # the response body uses chunked transfer encoding
    is_body_complete: bool = False  # the request body has arrived
    size: int = 0  # bytes of the request body that have arrived
    _reserves_pieces: bool = False  # the body has no content-length: reserve memory as pieces arrive
    _head: bytes = b""  # not sent yet
    _pieces: list[bytes] = []
    _limit: int | None = None
    _waiter: asyncio.Future[None] | None = None
    _body_fault: Fault | None = None

    # --- request

    async def body(self, limit: int, timeout: BodyTimeout = DEFAULT_BODY_TIMEOUT) -> bytes:
        connection, size = self.connection, self.size
        if not self.is_body_complete or size > limit:
            announced = self.request.header("content-length")
            self._reserves_pieces = not announced.isdecimal()
            if not self._reserves_pieces:
                if len(announced) > 18 or int(announced) > limit:
                    raise too_large(limit)
                size = int(announced)
        if self.memory is not None:
            self.memory.reserve(size)
        if not self.is_body_complete and self._body_fault is None:
            self._limit = limit
            if self.chunked and self.request.header("expect"):
                connection.write(CONTINUE)
            self._waiter = connection.server.loop.create_future()
            if self is connection.arriving:
                connection.body_timer = BodyTimer(timeout, connection.server.clock())
                connection.deadline = connection.body_timer.due
            if not connection.is_reading:
                connection.resume_reading()
            if self.size <= limit:
                await self._waiter
            self._waiter = None
        if not connection.is_reading:  # a body that was complete before this call may have paused reading
            connection.resume_reading()
        if self._body_fault is not None:
            raise ClientFault(self._body_fault.message, fault=self._body_fault)
        if self.size > limit:
            raise too_large(limit)
        pieces = self._pieces
        self._pieces = []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # --- called by the connection

    def take(self, chunks: list[bytes], *, last: bool = False) -> None:
        """Move these pieces of the request body out of the list. With `last`, the body is complete."""
        self.is_body_complete = last
        if last and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if not chunks:
            return
        piece = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        if self.is_finished or self._body_fault is not None:
            return
        self.size += len(piece)
        if self._reserves_pieces and self.memory is not None:
            try:
                self.memory.reserve(len(piece))
            except ClientFault as error:
                self.fail_body(error.fault)
                return
        if self._limit is None:
            self._pieces.append(piece)
            if self.size > _MAX_EARLY_BODY:
                self.connection.pause_reading()
        elif self.size <= self._limit:
            self._pieces.append(piece)
        else:
            self._pieces.clear()
            self._wake()

    def fail_body(self, fault: Fault) -> None:
        self.last = True
        self._body_fault = fault
        self._pieces.clear()
        self._wake()

    def task_done(self, _: object) -> None:
        """Close the connection if the task ended without a response, so that the client does not wait for one."""
        if not self.is_finished and not self.is_disconnected:
            self.is_disconnected = True
            self.connection.abort()

    def probe(self) -> None:
        """Write bytes without content: an interim response or, inside a stream, a keep-alive of the dialect."""
        if self.is_started:
            if self.send_keep_alive is not None:
                self.send_keep_alive()
        elif self.chunked:  # HTTP/1.0 has no interim responses
            self.connection.write(CONTINUE)

    # --- response

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        if self.is_disconnected or self.is_finished:
            return
        self.head(status, headers, len(body))
        self.is_finished = True
        head, self._head = self._head, b""
        if status in _STATUSES_WITHOUT_BODY or self.request.method == "HEAD":
            self.connection.write(head)
        elif len(body) <= _MAX_COPIED_BODY:
            self.connection.write(head + body)
        else:
            self.connection.write_both(head, body)
        self.connection.response_done(self)

    def head(self, status: int, headers: Headers, length: int | None = None) -> None:
        """Prepare the head. A body of known `length` is sent without chunked encoding."""
        self.is_started = True
        framing = ""
        if length is not None:
            self.chunked = False
            if status not in _STATUSES_WITHOUT_BODY:
                framing = f"content-length: {length}\r\n"
        elif self.chunked:
            framing = "transfer-encoding: chunked\r\n"
        else:
            self.last = True
        if not self.is_body_complete:
            self.last = True  # the rest of the request body is not read
        ids = _ID_LINES % (self.id, self.id, self.id) if self.id else ""
        close = "connection: close\r\n" if self.last else ""
        lines = f"{status_line(status)}{header_lines(headers)}{ids}{header_lines(self.headers)}{framing}{close}\r\n"
        self._head = lines.encode("latin-1", "replace")
        self.headers = ()  # they are part of the head now

    def flush(self) -> None:
        if self._head and not self.is_disconnected:
            self.connection.write(self._head)
            self._head = b""

    def chunk(self, data: bytes, *, last: bool = False) -> None:
        if self.is_disconnected or self.is_finished:
            return
        self.has_written = True
        if self.chunked and data:
            data = CHUNK % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        if last:
            self._end(data)
        else:
            self.connection.write(data)

    def _end(self, data: bytes) -> None:
        """Send the last bytes of a stream."""
        self.is_finished = True
        if self.chunked:
            data += LAST_CHUNK
        if data:
            self.connection.write(data)
        self.connection.response_done(self)

    # --- another protocol

    def upgrade(self, headers: Headers, protocol: UpgradedProtocol) -> None:
        """Accept an upgrade: from here on `protocol` reads what the client sends. End it with `end_upgraded`."""
        self.is_started = True
        self.connection.upgraded = protocol
        ids = _ID_LINES % (self.id, self.id, self.id) if self.id else ""
        self.connection.write(f"{_SWITCHING}{header_lines(headers)}{ids}\r\n".encode("latin-1", "replace"))

    def write_upgraded(self, data: bytes) -> None:
        """Write bytes of the other protocol."""
        if not self.is_disconnected:
            self.connection.write(data)

    def end_upgraded(self) -> None:
        """Close the connection after all bytes are written; what the client still sends is read and discarded."""
        self.connection.upgraded = None
        if not self.is_disconnected:
            self.is_finished = self.last = True
            self.connection.response_done(self)

    # --- for test servers only

    @property
    def is_half_closed(self) -> bool:
        """Return whether the client has closed its sending side."""
        return self.connection.half_closed

    def write_raw(self, data: bytes) -> None:
        """Write bytes as they are, without framing; tests use it for broken responses."""
        self.is_started = True
        if not self.is_disconnected:
            self.connection.write(data)

    def end_raw(self) -> None:
        """End a response that was written with `write_raw`."""
        if not self.is_disconnected and not self.is_finished:
            self.is_finished = True
            self.connection.response_done(self)

    def break_off(self, *, reset: bool = False) -> None:
        """Close the connection inside the response, with a TCP reset if `reset`."""
        self.is_finished = True
        if not self.is_disconnected:
            self.flush()
            self.connection.break_off(reset=reset)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def too_large(limit: int) -> TooLarge:
    """Return the error for a request body over the limit."""
    return TooLarge(f"the request body is longer than the limit of {limit} bytes (server.max_body)")
