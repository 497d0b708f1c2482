"""One exchange with an upstream: the head of its request, its answer as it comes, its deadlines, and how it ended.

    asking ──head──> answered ──end of body──> ended
       └───────────────┴──fault, timeout, close──> ended, with `_error`

Bytes are pushed: the connection's read callback calls the sink, no task is woken for a read. The task that awaits is
woken twice, at the head and at the end. Nothing sets an exception on a future, since a cancelled task never fetches it.

Each exchange has its own parser (httptools), so that nothing of one answer can leak into the next. The honest ends: a
body is over when the parser says so, or, if the head announced no length, when the peer ends the stream in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from msgspec import Struct

from dragoman.errors import BadFrame, DragomanError, LocalMisuse, Reset, TimedOut, TooLarge, Truncated
from dragoman.wire.http import HEADER_FIELDS, Headers, has_dot_segment

if TYPE_CHECKING:
    from dragoman.http.client.client import ClientConnection, ConnectionPool

TURN_BYTES = 16 * 1024  # of one body in one turn of the loop; about 2 ms of translation if all deltas are short
HELD = 64 * 1024  # body bytes kept for a reader who has not come yet; past it the transport is paused
HEAD_BYTES = 64 * 1024  # of heads, 1xx included; and of anything else that brings no body, such as trailers
MAX_HEAD_FIELDS = 128
MAX_STALE_SECONDS = 1.0  # that a kept connection is closed shows within a round trip; later, the request may have run


# What the connection is, and so is ours to say. `host` too: a client's own must never reach an upstream.
_OURS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class HttpTimeouts(Struct, frozen=True):
    """Seconds. `dns`, `connect` and `tls` are for each step of a new connection; `write` is for the upstream to take
    the request, `head` runs from the request to the whole head, `idle` between two reads of the body (not while
    paused), `silent` between two reads that bring content (blanks and pings are none), `total` from the call of `open`
    to the body's end.
    """

    dns: float = 3.0
    connect: float = 5.0
    tls: float = 5.0
    write: float = 30.0
    head: float = 300.0
    idle: float = 120.0
    silent: float = 900.0
    total: float = 3600.0


class ClientResponse(Struct, eq=False):
    """An answer whose head is here. Take the body by `pump` or `read`, once; `close` what you do not finish."""

    _pool: ConnectionPool
    _timeouts: HttpTimeouts
    _end_by: float  # the end of the body, by the monotonic clock
    _bodiless: bool
    status: int = 0
    headers: Headers = ()
    has_new_bytes: bool = False  # bytes came since the last sweep
    on_body: Callable[[bytes], None] | None = None  # the parser calls it: no Python frame for a chunk
    _chunks: list[bytes] = []
    _parser: HttpResponseParser | None = None
    _fields: list[tuple[bytes, bytes]] = []
    _barren: int = 0  # bytes answered, since the request or the last of the body, that brought no body
    _informal: bool = False  # inside a 1xx
    _end: int | None = None  # how many of the chunks belong to the answer, once it is whole
    _keep: bool = False  # the connection may be used again
    _refusal: BadFrame | None = None
    _seen: float = 0.0
    _connection: ClientConnection | None = None
    _waiter: asyncio.Future[None] | None = None
    _sink: Callable[[bytes], None] | None = None
    _held: list[bytes] = []
    _held_size: int = 0
    _paused: bool = False
    _read: bool = False
    _ended: bool = False
    _error: Exception | None = None
    _pieces: int = 0  # of the body that came
    _hushed: Callable[[], int] | None = None  # how many of them brought no content
    _said: int = -1  # pieces with content at the last sweep that found more
    _said_at: float = 0.0  # and when that was

    __repr__ = object.__repr__

    async def pump(self, on_bytes: Callable[[bytes], None], quiet_chunks: Callable[[], int] | None = None) -> None:
        """Hand every piece of the body to `on_bytes`, from the read callback; return at the body's own end.

        `quiet_chunks` tells how many of the pieces brought no content; without it all do.

        Raises Reset, Truncated, TimedOut or BadFrame when there is no such end, and what `on_bytes` raises. Whatever
        ends it early, cancellation included, closes the connection.
        """
        if self._read:
            raise LocalMisuse("a reply can be read once")
        self._read = True
        try:
            while self._held:
                await self._give_held(on_bytes)
            if not self._ended:
                self._sink, self._hushed = on_bytes, quiet_chunks
                self._waiter = self._pool.loop.create_future()
                if not self._paused and self._connection is not None and self._connection.is_paused:
                    self._connection.resume()
                await self._waiter
        except BaseException:
            self.close()
            raise
        finally:
            self._sink = self._hushed = None  # they know us, and all that was asked
        if self._error is not None:
            raise self._error

    async def _give_held(self, on_bytes: Callable[[bytes], None]) -> None:
        """Hand out what came before the reader did; others have their turn in between."""
        held = b"".join(self._held)
        self._held.clear()
        self._held_size = 0
        for start in range(0, len(held), TURN_BYTES):
            if start:
                await asyncio.sleep(0)
            on_bytes(held[start : start + TURN_BYTES])

    async def read(self, limit: int, count: Callable[[int], None] | None = None) -> bytes:
        """Give the whole body. Raises TooLarge past `limit` bytes, and what `pump` and `count` raise.

        `count` is told the size of each piece before it is held.
        """
        pieces: list[bytes] = []
        size = blank = 0

        def gather(piece: bytes) -> None:
            nonlocal size, blank
            size += len(piece)
            blank += piece.isspace()  # some services send these to keep a connection open
            if size > limit:
                raise TooLarge(f"{self._pool.name} answered more than {limit} bytes")
            if count is not None:
                count(len(piece))
            pieces.append(piece)

        await self.pump(gather, lambda: blank)
        return b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Give the body piece by piece; no more is read than is taken. Raises what `pump` does."""
        ready: list[bytes] = []
        came = asyncio.Event()

        def gather(piece: bytes) -> None:
            ready.append(piece)
            self.pause()
            came.set()

        def end(task: asyncio.Task[None]) -> None:
            came.set()
            if not task.cancelled():
                task.exception()  # asked for here, because a reader that has stopped does not

        pumping = asyncio.create_task(self.pump(gather))
        pumping.add_done_callback(end)
        try:
            while not pumping.done() or ready:
                await came.wait()
                came.clear()
                taken = ready.copy()
                ready.clear()
                for piece in taken:
                    yield piece
                self.resume()
            await pumping
        finally:
            pumping.cancel()

    def pause(self) -> None:
        """Stop reading from the upstream's socket. What one read has brought already still comes."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._paused = False
        if self._connection is not None and (self._sink is not None or not self._held):
            self._connection.resume()

    def end_within(self, seconds: float) -> None:
        """Wait no longer than that for the body's end."""
        self._end_by = min(self._end_by, monotonic() + seconds)

    def close(self) -> None:
        """Give the exchange up; an unfinished one closes its connection. May be called twice, and from `on_bytes`."""
        if not self._ended:
            self.fail(Reset(f"the exchange with {self._pool.name} was closed here before its end"))

    # --- for the client

    async def send_request(self, connection: ClientConnection, payload: tuple[bytes, ...]) -> None:
        """Send the request and wait for the head. Without one, a kept connection turned out to be closed: ask again.

        Raises as `open` does.
        """
        self._connection, transport = connection, connection.transport
        self._waiter = self._pool.loop.create_future()
        self._seen = monotonic()
        self.on_body = self._chunks.append
        self._parser = HttpResponseParser(self)
        connection.response = self
        if transport is None or transport.is_closing():
            self.connection_failed(Reset(f"{self._pool.name} closed the connection"))
        else:
            transport.writelines(payload)
        await self._waiter
        if not self.status and self._error is not None:
            raise self._error

    # --- for the connection

    def feed(self, data: bytes) -> None:
        """Parse what has come, give on what of it is body, and end with the end of the answer."""
        self.has_new_bytes = True
        chunks, parser, sink, fault = self._chunks, self._parser, self._sink, None
        assert parser is not None
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            fault = error
        end, count = self._end, len(chunks)
        if chunks:
            body = b"".join(chunks if end is None else chunks[:end])  # of one piece it makes no copy
            chunks.clear()
            self._barren = 0
            if sink is None:
                self._hold(body)
            elif body:
                self._pieces += 1
                try:
                    sink(body)
                except Exception as error:  # noqa: BLE001  whatever the reader raises belongs to whoever awaits `pump`
                    self.fail(error)
        elif end is None and fault is None:
            self._barren += len(data)
            if self._barren > HEAD_BYTES:
                self.connection_failed(
                    BadFrame(f"{self._pool.name} sent more than {HEAD_BYTES} bytes of head or trailers")
                )
        connection = self._connection  # None: the reader has closed it
        if connection is not None and end is not None:
            connection.release(keep=self._keep and fault is None and count == end)
            self._finish()
        elif connection is not None and fault is not None:
            self.connection_failed(self._refusal or BadFrame(f"{self._pool.name} sent what is not HTTP: {fault}"))

    def connection_ended(self, *, in_order: bool) -> None:
        """Nothing more comes: that is the end of a body without a length, if it came in order."""
        framed = any(name in ("content-length", "transfer-encoding") for name, _ in self.headers)
        if in_order and self.status and not framed:
            self._finish()
        elif self.status:
            self.connection_failed(Truncated(f"{self._pool.name} ended the connection in the middle of its answer"))
        elif self._barren:
            self.connection_failed(Truncated(f"{self._pool.name} ended the connection in the middle of a head"))
        else:
            self.connection_failed(Reset(f"{self._pool.name} ended the connection without an answer"))

    def connection_failed(self, error: DragomanError) -> None:
        """The connection cannot be used any more. If it was a kept one, which did not answer a byte, ask again."""
        connection, unanswered = self._connection, not self.status and not self._barren
        if connection is None or not (
            connection.is_reused and unanswered and monotonic() - self._seen < MAX_STALE_SECONDS
        ):
            self.fail(error)
            return
        self._connection = None  # the slot is kept
        connection.abort()
        self._pool.active_responses.discard(self)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the exchange with this error, and its connection."""
        if not self._ended:
            self._error = error
            if self._connection is not None:
                self._connection.abort()
            self._finish()

    # --- for the parser

    def on_message_begin(self) -> None:
        if self._end is not None:
            self._keep = False  # an answer after the answer
        self._fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        parser, fields = self._parser, self._fields
        if parser is None or self._end is not None:
            return
        status = parser.get_status_code()
        if status < 200:
            self._informal = True
            return
        if len(fields) > MAX_HEAD_FIELDS:
            self._refuse(f"sent a head of more than {MAX_HEAD_FIELDS} fields")
        headers = tuple([HEADER_FIELDS[each] for each in fields])
        self._fields = []
        for name, value in headers:
            if name == "transfer-encoding" and value.lower() != "chunked":
                self._refuse(f"sent its answer in the transfer encoding {value[:40]!r}, which was not asked for")
            if name == "content-encoding" and value.lower() not in ("", "identity") and status < 300:
                self._refuse(f"sent its answer compressed ({value[:40]!r}), which was not asked for")
        if self._bodiless:
            self._end = 0
            self._keep = parser.should_keep_alive()
        self.status, self.headers = status, headers
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def on_message_complete(self) -> None:
        if self._informal:
            self._informal = False
        elif self._end is None and self._parser is not None:
            self._end = len(self._chunks)
            self._keep = self._parser.should_keep_alive()  # only in here does the parser know

    def _refuse(self, what: str) -> None:
        self._refusal = BadFrame(f"{self._pool.name} {what}")
        raise self._refusal

    # --- for the sweeper

    def check_deadlines(self, now: float) -> None:
        """Fail if a deadline has passed, unless what waits in the socket shows that it was met.

        A loop that was busy has not read yet what came meanwhile. Two turns later it has.
        """
        if self._late(now) is not None:
            loop = self._pool.loop
            loop.call_soon(loop.call_soon, self._judge)

    def _judge(self) -> None:
        if not self._ended and (late := self._late(monotonic())) is not None:
            self.fail(TimedOut(f"{self._pool.name} {late}"))

    def _late(self, now: float) -> str | None:
        """Which deadline has passed; None if none has."""
        timeouts = self._timeouts
        if now >= self._end_by:
            return f"was not done within {timeouts.total:g} s"
        if not self.status:
            if now >= self._seen + timeouts.head:
                return f"gave no answer within {timeouts.head:g} s"
            if now >= self._seen + timeouts.write and self._connection is not None and self._connection.is_writing:
                return f"did not take the request within {timeouts.write:g} s"
        elif self._is_silent(now):
            return f"sent no content, only signs of life, for {timeouts.silent:g} s"
        elif self.has_new_bytes or self._paused or (self._sink is None and self._held):
            self.has_new_bytes = False
            self._seen = now
        elif now >= self._seen + timeouts.idle:
            return f"went silent in the middle of its answer for {timeouts.idle:g} s"
        return None

    def _is_silent(self, now: float) -> bool:
        """Whether nothing but signs of life has come for too long; not while nobody reads."""
        said = self._pieces - (self._hushed() if self._hushed is not None else 0)
        if said != self._said or self._paused or self._sink is None:
            self._said, self._said_at = said, now
            return False
        return now >= self._said_at + self._timeouts.silent

    # --- within

    def _hold(self, body: bytes) -> None:
        """Keep a piece of the body until somebody reads it."""
        if body:
            self._pieces += 1
            self._held.append(body)
            self._held_size += len(body)
            if self._connection is not None and self._held_size > HELD:
                self._connection.pause()

    def _finish(self) -> None:
        self._ended = True
        self._connection = self._parser = None
        self._pool.active_responses.discard(self)
        self._pool.slots.release()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@lru_cache(maxsize=64)
def request_head(before: str, asked: str, fixed: str, method: str, path: str, query: str, headers: Headers) -> bytes:
    """Write a head up to the length of the body: many requests differ in their bodies only.

    Raises LocalMisuse for what would break out of the head.
    """
    query = "&".join(filter(None, (asked, query)))
    target = f"{before}{path}?{query}" if query else f"{before}{path}"
    fields = [f"{name}: {value}\r\n" for name, value in headers if name.lower() not in _OURS]
    head = f"{method} {target} HTTP/1.1\r\n{fixed}{''.join(fields)}"
    lines = len(fields) + fixed.count("\n") + 1
    if head.count("\n") != lines or head.count("\r") != lines or "\0" in head:
        raise LocalMisuse("a request's method, path or header holds a line break or a NUL")
    if has_dot_segment(path):  # whoever made it should have refused it: it names another place than it seems to
        raise LocalMisuse("a request's path has a segment `.` or `..`")
    if not method.isalpha() or not path.startswith("/") or " " in target or not target.isascii():
        raise LocalMisuse("a request's method or path is not written as HTTP needs it")
    try:
        return head.encode("latin-1")
    except UnicodeEncodeError as error:
        raise LocalMisuse("a request's header holds characters that HTTP cannot carry") from error
