"""One exchange of the HTTP client: write the request's head, read the response, watch its deadlines. Does I/O.

    requested ──head──> reading ──end of body──> ended
        └─────────────────┴──error, timeout, close──> ended, with `_error`

Bytes are pushed: the connection's read callback calls the sink, and no task is woken for a read. The awaiting task is
woken twice, after the head and at the end. No future gets an exception, because a cancelled task never retrieves it.

Each exchange has its own parser (httptools), so that no state of one response can leak into the next. A body ends when
the parser reports it, or, if the head announced no length, when the peer closes the connection in order.
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

TURN_BYTES = 16 * 1024  # of one body in one turn of the event loop; about 2 ms of translation if all deltas are short
MAX_BUFFERED = 64 * 1024  # bytes of a body that are buffered before `pump` is called; then reading is paused
HEAD_BYTES = 64 * 1024  # bytes of heads, including 1xx, and of trailers and chunk framing without body bytes
MAX_HEAD_FIELDS = 128
MAX_STALE_SECONDS = 1.0  # a closed pooled connection shows within a round trip; later, the request may have run


# Headers that describe the connection, so this client sets them. A client's `host` must never reach an upstream.
_CONNECTION_HEADERS = frozenset(
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
    """Timeouts in seconds.

    `dns`, `connect` and `tls` limit the steps of a new connection; `write` sending the request; `head` the time from
    the request to the end of the head; `idle` the time between two reads of the body (not while paused); `silent` the
    time between two reads with content (white space and pings do not count); `total` the time from the call of `open`
    to the end of the body.
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
    """A response whose head has arrived. Read the body once, with `pump`, `read` or `pieces`; otherwise `close` it."""

    _pool: ConnectionPool
    _timeouts: HttpTimeouts
    _end_by: float  # the deadline of the body, by the monotonic clock
    _bodiless: bool
    status: int = 0
    headers: Headers = ()
    has_new_bytes: bool = False  # bytes arrived since the last sweep
    on_body: Callable[[bytes], None] | None = None  # the parser calls it directly, without a Python frame per chunk
    _chunks: list[bytes] = []
    _parser: HttpResponseParser | None = None
    _fields: list[tuple[bytes, bytes]] = []
    _overhead: int = 0  # bytes since the request, or since the last body bytes, that contained no body
    _in_interim: bool = False  # inside a 1xx response
    _end: int | None = None  # the number of chunks that belong to the response, once it is complete
    _keep: bool = False  # the connection may be reused
    _refusal: BadFrame | None = None
    _active_at: float = 0.0
    _connection: ClientConnection | None = None
    _waiter: asyncio.Future[None] | None = None
    _sink: Callable[[bytes], None] | None = None
    _buffered: list[bytes] = []
    _buffered_size: int = 0
    _is_paused: bool = False
    _is_read: bool = False
    _is_ended: bool = False
    _error: Exception | None = None
    _pieces: int = 0  # pieces of the body that arrived
    _quiet_pieces: Callable[[], int] | None = None  # returns how many of them had no content
    _with_content: int = -1  # pieces with content at the last sweep that found new ones
    _content_at: float = 0.0  # the time of that sweep

    __repr__ = object.__repr__

    async def pump(self, on_bytes: Callable[[bytes], None], quiet_chunks: Callable[[], int] | None = None) -> None:
        """Pass every piece of the body to `on_bytes`, from the read callback; return at the end of the body.

        `quiet_chunks` returns how many of the pieces had no content; without it, all count as content.

        Raises Reset, Truncated, TimedOut or BadFrame if the body does not end in order, and errors of `on_bytes`. Any
        early end, also a cancellation, closes the connection.
        """
        if self._is_read:
            raise LocalMisuse("the body of a response can be read only once")
        self._is_read = True
        try:
            while self._buffered:
                await self._pass_on_buffered(on_bytes)
            if not self._is_ended:
                self._sink, self._quiet_pieces = on_bytes, quiet_chunks
                self._waiter = self._pool.loop.create_future()
                if not self._is_paused and self._connection is not None and self._connection.is_paused:
                    self._connection.resume()
                await self._waiter
        except BaseException:
            self.close()
            raise
        finally:
            self._sink = self._quiet_pieces = None  # they refer to this object and to the request: break the cycle
        if self._error is not None:
            raise self._error

    async def _pass_on_buffered(self, on_bytes: Callable[[bytes], None]) -> None:
        """Pass on what arrived before `pump` was called, at most `TURN_BYTES` per turn of the loop."""
        buffered = b"".join(self._buffered)
        self._buffered.clear()
        self._buffered_size = 0
        for start in range(0, len(buffered), TURN_BYTES):
            if start:
                await asyncio.sleep(0)
            on_bytes(buffered[start : start + TURN_BYTES])

    async def read(self, limit: int, count: Callable[[int], None] | None = None) -> bytes:
        """Return the whole body. Raises TooLarge if it is longer than `limit` bytes, and errors of `pump` and `count`.

        `count` gets the size of each piece before it is buffered.
        """
        pieces: list[bytes] = []
        size = blank = 0

        def gather(piece: bytes) -> None:
            nonlocal size, blank
            size += len(piece)
            blank += piece.isspace()  # some services send white space to keep a connection open
            if size > limit:
                raise TooLarge(f"{self._pool.name} sent a response of more than {limit} bytes")
            if count is not None:
                count(len(piece))
            pieces.append(piece)

        await self.pump(gather, lambda: blank)
        return b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body piece by piece; reading pauses until the caller asks for more. Raises the errors of `pump`."""
        ready: list[bytes] = []
        arrived = asyncio.Event()

        def gather(piece: bytes) -> None:
            ready.append(piece)
            self.pause()
            arrived.set()

        def end(task: asyncio.Task[None]) -> None:
            arrived.set()
            if not task.cancelled():
                task.exception()  # retrieved here, because a caller that has stopped reading does not

        pumping = asyncio.create_task(self.pump(gather))
        pumping.add_done_callback(end)
        try:
            while not pumping.done() or ready:
                await arrived.wait()
                arrived.clear()
                pieces = ready.copy()
                ready.clear()
                for piece in pieces:
                    yield piece
                self.resume()
            await pumping
        finally:
            pumping.cancel()

    @property
    def reads(self) -> int:
        """How many pieces of the body have arrived."""
        return self._pieces

    def pause(self) -> None:
        """Stop reading from the upstream's socket. Bytes that were read already are still passed on."""
        self._is_paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read from the upstream's socket again."""
        self._is_paused = False
        if self._connection is not None and (self._sink is not None or not self._buffered):
            self._connection.resume()

    def end_within(self, seconds: float) -> None:
        """Move the deadline of the body to at most that many seconds from now."""
        self._end_by = min(self._end_by, monotonic() + seconds)

    def close(self) -> None:
        """End the exchange and close the connection if it is unfinished. May be called twice, and from `on_bytes`."""
        if not self._is_ended:
            self.fail(Reset(f"the connection to {self._pool.name} was closed here before its response ended"))

    # --- called by the client

    async def send_request(self, connection: ClientConnection, payload: tuple[bytes, ...]) -> None:
        """Send the request and wait for the head.

        If `status` is still 0 then, a pooled connection turned out to be closed: send again. Raises as `open` does.
        """
        self._connection, transport = connection, connection.transport
        self._waiter = self._pool.loop.create_future()
        self._active_at = monotonic()
        self.on_body = self._chunks.append
        self._parser = HttpResponseParser(self)
        connection.response = self
        if transport is None or transport.is_closing():
            self.connection_failed(Reset(f"{self._pool.name} closed the connection before the request was sent"))
        else:
            transport.writelines(payload)
        await self._waiter
        if not self.status and self._error is not None:
            raise self._error

    # --- called by the connection

    def feed(self, data: bytes) -> None:
        """Parse received bytes, pass on the body, and finish at the end of the response."""
        self.has_new_bytes, fault = True, None
        chunks, parser, sink = self._chunks, self._parser, self._sink
        assert parser is not None
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            fault = error
        end, count = self._end, len(chunks)
        if chunks:
            body = chunks[0] if count == 1 and end is None else b"".join(chunks if end is None else chunks[:end])
            chunks.clear()
            self._overhead = 0
            if sink is None:
                self._buffer(body)
            elif body:
                self._pieces += 1
                try:
                    sink(body)
                except Exception as error:  # noqa: BLE001  any error of the sink is raised from `pump`
                    self.fail(error)
        elif end is None and fault is None:
            self._overhead += len(data)
            if self._overhead > HEAD_BYTES:
                self.connection_failed(
                    BadFrame(f"{self._pool.name} sent more than {HEAD_BYTES} bytes of head or trailers")
                )
        if end is None and fault is None:
            return
        connection = self._connection
        if connection is None:
            return  # The sink has closed it.
        if end is not None:
            connection.release(keep=self._keep and fault is None and count == end)
            self._finish()
        else:
            self.connection_failed(
                self._refusal or BadFrame(f"{self._pool.name} sent an invalid HTTP response: {fault}")
            )

    def connection_ended(self, *, in_order: bool) -> None:
        """Handle the end of the connection: in order, it ends a body without a length; otherwise it is an error."""
        framed = any(name in ("content-length", "transfer-encoding") for name, _ in self.headers)
        if in_order and self.status and not framed:
            self._finish()
        elif self.status:
            self.connection_failed(Truncated(f"{self._pool.name} closed the connection in the middle of its response"))
        elif self._overhead:
            self.connection_failed(
                Truncated(f"{self._pool.name} closed the connection in the middle of the response head")
            )
        else:
            self.connection_failed(Reset(f"{self._pool.name} closed the connection without a response"))

    def connection_failed(self, error: DragomanError) -> None:
        """Handle a broken connection. If it was a pooled one and no byte of the response came, `open` sends again."""
        connection, unanswered = self._connection, not self.status and not self._overhead
        if connection is None or not (
            connection.is_reused and unanswered and monotonic() - self._active_at < MAX_STALE_SECONDS
        ):
            self.fail(error)
            return
        self._connection = None  # the exchange keeps its slot
        connection.abort()
        self._pool.active_responses.discard(self)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the exchange with this error, and close its connection."""
        if not self._is_ended:
            self._error = error
            if self._connection is not None:
                self._connection.abort()
            self._finish()

    # --- called by the parser

    def on_message_begin(self) -> None:
        """Begin the head of a response, interim or final."""
        if self._end is not None:
            self._keep = False  # a second response followed
        self._fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Take the status and headers of the final response. Raises BadFrame for an encoding that was not requested."""
        parser, fields = self._parser, self._fields
        if parser is None or self._end is not None:
            return
        status = parser.get_status_code()
        if status < 200:
            self._in_interim = True
            return
        if len(fields) > MAX_HEAD_FIELDS:
            self._refuse(f"sent more than {MAX_HEAD_FIELDS} headers")
        headers = tuple([HEADER_FIELDS[each] for each in fields])
        self._fields = []
        for name, value in headers:
            if name == "transfer-encoding" and value.lower() != "chunked":
                self._refuse(f"sent its response in the transfer encoding {value[:40]!r}, which was not requested")
            if name == "content-encoding" and value.lower() not in ("", "identity") and status < 300:
                self._refuse(f"sent a compressed response ({value[:40]!r}), which was not requested")
        if self._bodiless:
            self._end = 0
            self._keep = parser.should_keep_alive()
        self.status, self.headers = status, headers
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def on_message_complete(self) -> None:
        """End an interim response, or the body of the final one."""
        if self._in_interim:
            self._in_interim = False
        elif self._end is None and self._parser is not None:
            self._end = len(self._chunks)
            self._keep = self._parser.should_keep_alive()  # the parser knows this only inside this callback

    def _refuse(self, what: str) -> None:
        self._refusal = BadFrame(f"{self._pool.name} {what}")
        raise self._refusal

    # --- called by the timer of the client

    def check_deadlines(self, now: float) -> None:
        """Fail if a deadline has passed, unless unread bytes in the socket show that it was met.

        A busy event loop may not have read the latest bytes yet. Two turns later it has.
        """
        if self._missed_deadline(now) is not None:
            loop = self._pool.loop
            loop.call_soon(loop.call_soon, self._fail_if_late)

    def _fail_if_late(self) -> None:
        if not self._is_ended and (late := self._missed_deadline(monotonic())) is not None:
            self.fail(TimedOut(f"{self._pool.name} {late}"))

    def _missed_deadline(self, now: float) -> str | None:
        """Return which deadline has passed, as a message; None if none has."""
        timeouts = self._timeouts
        if now >= self._end_by:
            return f"did not complete its response within {timeouts.total:g} s (timeouts.total)"
        if not self.status:
            if now >= self._active_at + timeouts.head:
                return f"sent no response within {timeouts.head:g} s (timeouts.head)"
            if now >= self._active_at + timeouts.write and self._connection is not None and self._connection.is_writing:
                return f"did not accept the request within {timeouts.write:g} s (timeouts.write)"
        elif self._is_silent(now):
            return f"sent only keep-alive messages and no content for {timeouts.silent:g} s (timeouts.silent)"
        elif self.has_new_bytes or self._is_paused or (self._sink is None and self._buffered):
            self.has_new_bytes = False
            self._active_at = now
        elif now >= self._active_at + timeouts.idle:
            return f"sent nothing for {timeouts.idle:g} s in the middle of its response (timeouts.idle)"
        return None

    def _is_silent(self, now: float) -> bool:
        """Return whether only keep-alive messages have come for too long. Pauses of the reader do not count."""
        with_content = self._pieces - (self._quiet_pieces() if self._quiet_pieces is not None else 0)
        if with_content != self._with_content or self._is_paused or self._sink is None:
            self._with_content, self._content_at = with_content, now
            return False
        return now >= self._content_at + self._timeouts.silent

    # --- private

    def _buffer(self, body: bytes) -> None:
        """Buffer a piece of the body until `pump` is called."""
        if body:
            self._pieces += 1
            self._buffered.append(body)
            self._buffered_size += len(body)
            if self._connection is not None and self._buffered_size > MAX_BUFFERED:
                self._connection.pause()

    def _finish(self) -> None:
        self._is_ended = True
        self._connection = self._parser = None
        self._pool.active_responses.discard(self)
        self._pool.slots.release()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def sent_headers(authority: str, headers: Headers, size: int) -> Headers:
    """Return the headers that a request with a body of `size` bytes is sent with: those of the connection, too."""
    own = [field for field in headers if field[0].lower() not in _CONNECTION_HEADERS]
    return (("host", authority), ("accept-encoding", "identity"), *own, ("content-length", str(size)))


@lru_cache(maxsize=64)
def request_head(
    prefix: str, base_query: str, fixed: str, method: str, path: str, query: str, headers: Headers
) -> bytes:
    """Return the head of a request without `content-length`. Cached, because many requests differ in their bodies only.

    Raises LocalMisuse for characters that would break out of the head.
    """
    query = "&".join(filter(None, (base_query, query)))
    target = f"{prefix}{path}?{query}" if query else f"{prefix}{path}"
    fields = [f"{name}: {value}\r\n" for name, value in headers if name.lower() not in _CONNECTION_HEADERS]
    head = f"{method} {target} HTTP/1.1\r\n{fixed}{''.join(fields)}"
    lines = len(fields) + fixed.count("\n") + 1
    if head.count("\n") != lines or head.count("\r") != lines or "\0" in head:
        raise LocalMisuse("the method, path or a header of a request contains a line break or a NUL")
    if has_dot_segment(path):  # the caller should have refused it: such a path leads elsewhere than it seems
        raise LocalMisuse("the path of a request has a segment `.` or `..`")
    if not method.isalpha() or not path.startswith("/") or " " in target or not target.isascii():
        raise LocalMisuse("the method or path of a request contains characters that HTTP does not allow")
    try:
        return head.encode("latin-1")
    except UnicodeEncodeError as error:
        raise LocalMisuse("a header of a request contains characters that HTTP cannot carry") from error
