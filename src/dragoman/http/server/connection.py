"""One connection of a client: httptools parses its bytes into exchanges, which get their responses in order.

    idle ──first byte──> head ──head complete──> exchange ──response written──> idle
                           └── not HTTP ──┐          └── last response ──┐
                                          └─────────> lingering <────────┘

After a parse error or the last response, the server still reads from the socket for a while and discards the bytes
(`lingering`). If it closed a socket with unread bytes, the system would send a reset, and a client that is still
sending would lose the response. A client that closes its sending side after complete requests gets their responses,
and then the connection is closed. A client that closes it within a body counts as disconnected.

Pipelined requests wait in a queue. While the queue is full, the server does not read. It also stops reading while the
client does not read its responses: the next request starts after it has read them.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from msgspec import Struct, field

from dragoman.errors import Fault
from dragoman.http.exchange import STALL_SECONDS, BodyTimer, HttpExchange, UpgradedProtocol
from dragoman.http.framing import (
    BAD_REQUEST,
    GRACE_SECONDS,
    HEAD_SECONDS,
    HEAD_TOO_LONG,
    IDLE_SECONDS,
    MAX_HEADERS,
    MAX_PARTIAL_HEAD_BYTES,
    MAX_PIPELINED,
    MAX_TARGET_BYTES,
    REQUEST_TIMEOUT,
    TARGET_TOO_LONG,
)
from dragoman.http.server.sockets import abort_with_reset, is_readable, is_reset, probe, unsent_bytes
from dragoman.wire.http import HEADER_FIELDS, HttpRequest

if TYPE_CHECKING:
    from dragoman.http.server.serving import HttpServer

_LINGER_SECONDS = 2.0
_LINGER_BYTES = 64 * 1024 * 1024
_PROBE_SECONDS = 0.02  # from a half-close to the probe, and from the probe to the check for a reset
_PIECE = 8 * 1024  # bytes that are parsed between two checks of the queue
_MAX_QUEUED_BYTES = 64 * 1024  # of request bodies in the queue
_METHODS = {method.encode(): method for method in ("GET", "HEAD", "POST")}
_BAD_FRAMING = Fault("invalid", "the chunks or trailers of the request body are not valid HTTP, or are too long", 400)


def _discard_bytes(_: bytes) -> None:
    pass


class _Refused(Exception):
    """Raised in a callback of the parser to stop at a head that is refused."""


class ServerConnection(Struct, asyncio.Protocol, eq=False):
    """Parses the requests of one connection and starts their exchanges, one at a time; pipelined ones are queued."""

    server: HttpServer
    client: str = ""  # its address
    peer: str = ""  # the address or network that connection limits count
    since: float = field(default_factory=monotonic)  # start of the grace period
    deadline: float = inf  # checked by `HttpServer.sweep`
    half_closed: bool = False  # the client has closed its sending side
    is_reading: bool = True
    write: Callable[[bytes], None] = _discard_bytes  # the transport's own method: one Python call fewer for each chunk
    arriving: HttpExchange | None = None  # its request body is still arriving
    body_timer: BodyTimer | None = None  # for the arriving body; set when the exchange reads it
    on_body: Callable[[bytes], None] = _discard_bytes  # called by the parser; both are `list.append`, which is fast
    on_url: Callable[[bytes], None] = _discard_bytes
    upgraded: UpgradedProtocol | None = None  # reads all further bytes
    _chunks: list[bytes] = []
    _url: list[bytes] = []
    _fields: list[tuple[bytes, bytes]] = []
    _parser: HttpRequestParser | None = None  # None between requests
    _in_head: bool = False
    _overhead: int = 0  # bytes of heads, chunk headers or trailers since the last byte of a body
    _refusal: bytes = BAD_REQUEST  # the response to a head that cannot be parsed
    _current: HttpExchange | None = None  # its response is being produced
    _queue: deque[HttpExchange] | None = None  # pipelined requests after the current one
    _unparsed: bytes = b""  # unparsed bytes while the queue is full; `is_reading` is False then
    _is_discarding: bool = False  # bytes from the client are no longer parsed
    _is_silent: bool = True  # the client has sent nothing yet
    _aborted: bool = False
    _transport: asyncio.Transport | None = None
    _write_paused: bool = False
    _discarded: int = 0
    _unsent: int = 0  # bytes, at the last check of progress
    _stalled_since: float = 0.0  # 0.0: not stalled

    __repr__ = object.__repr__  # the buffers hold keys and prompts

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write, self.on_body, self.on_url = self._transport.write, self._chunks.append, self._url.append
        self.deadline = self.server.clock() + HEAD_SECONDS
        if self.server.write_buffer is not None:
            self._transport.set_write_buffer_limits(self.server.write_buffer)
        if self._aborted:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse the data while the queue has room; the rest is buffered."""
        if self._is_silent:
            self._is_silent = False
            self.server.connections.mark_received(self)
        if self.upgraded is not None:
            self.upgraded.data_received(data)
            return
        if self._is_discarding:
            self._discard(len(data))
            return
        parser = self._parser = self._parser or HttpRequestParser(self)
        view = memoryview(data) if len(data) > _PIECE else data
        try:
            for at in range(0, len(data), _PIECE):
                parser.feed_data(view[at : at + _PIECE])
                if self._chunks:
                    self._overhead = 0
                elif self._in_head or self.arriving is not None:
                    self._overhead += min(_PIECE, len(data) - at)
                if self._overhead > MAX_TARGET_BYTES and self._is_too_long():
                    self._stop_parsing()
                    return
                if self._queue and self._is_full(self._queue):
                    self._unparsed = data[at + _PIECE :]
                    self.deadline = inf  # the server has stopped reading: the client is not late
                    self.pause_reading()
                    break
        except HttpParserUpgrade:  # bytes after the request may be of another protocol, which `upgrade` selects
            self._is_discarding = True
        except HttpParserError:
            self._stop_parsing()
            return
        if self._chunks and self.arriving is not None:
            self.arriving.take(self._chunks)
        elif not (self._in_head or self.arriving or self._queue or (self._current and self._current.last)):
            self._parser = None  # free its memory during a long response; the next request creates another

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > _LINGER_BYTES:
            self.abort()

    def _is_too_long(self) -> bool:
        """Return whether a head, or the framing of a chunked body, is too long; set `_refusal` to the response."""
        if self._in_head and sum(map(len, self._url)) > MAX_TARGET_BYTES:
            self._refusal = TARGET_TOO_LONG
        elif self._overhead > MAX_PARTIAL_HEAD_BYTES + _PIECE:  # a piece may start with the end of another request
            self._refusal = HEAD_TOO_LONG
        return self._refusal is not BAD_REQUEST

    def _is_full(self, queue: deque[HttpExchange]) -> bool:
        """Return whether the queue is full."""
        if self._chunks and self.arriving is not None:
            self.arriving.take(self._chunks)
        return len(queue) >= MAX_PIPELINED or sum([each.size for each in queue]) > _MAX_QUEUED_BYTES

    def eof_received(self) -> bool:
        """Return whether the connection stays open: a client that sent complete requests may wait for responses."""
        current, arriving = self._current, self.arriving
        if current is None or self.upgraded is not None:
            return False
        if arriving is current:
            self._give_up()
            return False
        if arriving is not None and self._queue:
            self._queue.pop()
            self.arriving = None
        self.half_closed, self._in_head, self._unparsed = True, False, b""
        last = self._queue[-1] if self._queue else current
        last.last = last.last or not last.is_started
        self.server.connections.half_closed.add(self)
        self.server.loop.call_later(_PROBE_SECONDS, self.probe)
        self.server.loop.call_later(2 * _PROBE_SECONDS, self.check_disconnected)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.remove(self)
        if self._current is not None or self._queue:
            self._disconnect_all()
        self._transport = self._parser = None
        self.write = _discard_bytes

    def pause_writing(self) -> None:
        self._write_paused = True
        self.server.connections.slow_readers.add(self)
        if self._current is not None:
            self._current.pause_source()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.server.connections.slow_readers.discard(self)
        self._stalled_since = 0.0
        if self._current is not None:
            self._current.resume_source()
        elif not self._is_discarding:
            self._next()

    # --- called by the parser

    def on_message_begin(self) -> None:
        """Begin the head of a request, and its deadline."""
        self._in_head = True
        self._overhead = 0
        self._url.clear()
        self._fields = []
        self.deadline = self.server.clock() + HEAD_SECONDS

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header or a trailer; too many end the connection."""
        self._fields.append((name, value))  # trailers too; they are not used
        if len(self._fields) > MAX_HEADERS:
            self._refusal = HEAD_TOO_LONG
            raise _Refused

    def on_headers_complete(self) -> None:
        """Begin the exchange of the request, or queue it behind the one that runs."""
        parser, fields = self._parser, self._fields
        assert parser is not None
        target = b"".join(self._url).decode("latin-1")
        if len(target) > MAX_TARGET_BYTES:
            self._refusal = TARGET_TOO_LONG
            raise _Refused
        self._in_head, self._fields = False, []
        path, _, query = target.partition("?")
        version = sys.intern(parser.get_http_version())
        method = parser.get_method()
        headers = tuple([HEADER_FIELDS[each] for each in fields])
        request = HttpRequest(_METHODS.get(method) or method.decode("latin-1"), path, query, headers)
        exchange = HttpExchange(
            request,
            target,
            version,
            self.server.loop.time(),
            client=self.client,
            last=version != "1.1" or parser.should_upgrade() or not parser.should_keep_alive(),
            on_admitted=partial(self.server.connections.mark_received, self, is_admitted=True),
            connection=self,
            chunked=version != "1.0",
        )
        self.arriving = exchange
        if self._current is None:
            self._begin(exchange)
            return
        if self._queue is None:
            self._queue = deque()
        self._queue.append(exchange)
        self.deadline = inf  # its body is read when its turn comes

    def on_message_complete(self) -> None:
        """End the body of the request."""
        arriving, self.arriving = self.arriving, None
        if arriving is not None:
            arriving.take(self._chunks, last=True)
            self.body_timer = None
            if self._current is not None:
                self.deadline = inf

    # --- called by the exchange

    def write_both(self, head: bytes, body: bytes) -> None:
        """Write a head and a body without copying them into one buffer."""
        if self._transport is not None:
            self._transport.writelines((head, body))

    def resume_reading(self) -> None:
        """Read from the socket again, unless the queue is full."""
        if self._queue and self._is_full(self._queue):
            return
        if self._unparsed:
            buffered, self._unparsed = self._unparsed, b""
            self.data_received(buffered)
            if self._unparsed:
                return
        if not self.is_reading and self._transport is not None and not self._transport.is_closing():
            self.is_reading = True
            self._transport.resume_reading()
            if self._in_head:
                self.deadline = self.server.clock() + HEAD_SECONDS

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        if self.is_reading:
            self.is_reading = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()

    def response_done(self, exchange: HttpExchange) -> None:
        """Start the next request, or close: the response of this exchange is complete."""
        if exchange is not self._current:
            return
        self._current = None
        if exchange.last or (self._is_discarding and not self._queue):
            self._finish(whole=exchange.is_body_complete and not self._is_discarding and not self._queue)
            return
        if not self._queue and (self.server.keeps_no_connections or self.half_closed):
            self._finish(whole=True)
        elif self._write_paused:  # otherwise responses would pile up for a client that does not read
            self.deadline = inf
            self.pause_reading()
        elif self._queue or not self.is_reading:
            self._next()
        elif not self._in_head:
            self.deadline = self.server.clock() + IDLE_SECONDS

    def break_off(self, *, reset: bool) -> None:
        """Close the connection inside a response: after all bytes are written, or at once with a reset."""
        if self._transport is None or self._transport.is_closing():
            return
        if reset:
            abort_with_reset(self._transport)
        else:
            self._close()

    # --- called by `HttpServer.sweep` and the registry

    def deadline_passed(self, now: float) -> None:
        """Refuse or close: the deadline of the head, the body or an idle connection has passed."""
        self.deadline = inf
        if self._is_discarding:
            self.abort()
        elif self._in_head:
            self._refusal = REQUEST_TIMEOUT
            self._stop_parsing()
        elif self.arriving is not None and self.body_timer is not None:
            fault = self.body_timer.fault(self.arriving.size, now)
            if fault is None:
                self.deadline = self.body_timer.due
            else:
                self._is_discarding = True
                self.arriving.fail_body(fault)
                self.arriving = None
        elif self.arriving is None and self._current is None:
            self._close()

    def check_progress(self, now: float) -> None:
        """Close the connection if the client has read nothing for STALL_SECONDS."""
        left = unsent_bytes(self._transport) if self._transport is not None else 0
        if not self._stalled_since or left != self._unsent:
            self._unsent, self._stalled_since = left, now
        elif now - self._stalled_since >= STALL_SECONDS:
            self._give_up()

    def probe(self) -> None:
        """Send bytes without content to a half-closed client: if it has closed its socket, its system sends a reset."""
        if self._transport is None or self._transport.is_closing() or probe(self._transport):
            return
        if self._current is not None:
            self._current.probe()

    def check_disconnected(self) -> None:
        """Cancel the work for a client that has reset the connection."""
        if self._transport is not None and not self._transport.is_closing() and is_reset(self._transport):
            self._give_up()

    def stop_keep_alive(self) -> None:
        """Close the connection after the current response, or now if it is idle."""
        if self.upgraded is not None:
            self.upgraded.stop()
        elif self._current is not None:
            self._current.last = self._current.last or not self._current.is_started
        elif not self._queue and not self._in_head and self.arriving is None:
            self._close()

    @property
    def is_busy(self) -> bool:
        """Return whether a request is arriving or its response is being produced."""
        return self._current is not None or self._in_head or bool(self._queue)

    @property
    def idle_since(self) -> float:
        """Return when the last response was written. Valid only if the connection is not busy."""
        return self.deadline - IDLE_SECONDS

    @property
    def has_unread(self) -> bool:
        """Return whether the socket has bytes that are not read yet."""
        return self._transport is not None and is_readable(self._transport)

    @property
    def is_slow(self) -> bool:
        """Return whether a body has been arriving below the required rate, for GRACE_SECONDS or more."""
        timer, arriving = self.body_timer, self.arriving
        return (
            timer is not None
            and arriving is not None
            and timer.is_slow(arriving.size, self.server.clock(), GRACE_SECONDS)
        )

    def abort(self) -> None:
        """Close the connection at once, without writing what is buffered."""
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()
        else:  # the TLS handshake failed, or is not complete
            self.server.connections.remove(self)

    # --- internal

    def _next(self) -> None:
        """Start the next request, or wait for one."""
        if self._queue:
            self._begin(self._queue.popleft())
        elif not self._in_head:
            self.deadline = self.server.clock() + IDLE_SECONDS
        if not self.is_reading:  # the queue was full, or the body was not read yet
            self.resume_reading()

    def _begin(self, exchange: HttpExchange) -> None:
        self._current = exchange
        exchange.paused = self._write_paused
        self.deadline = inf
        exchange.task = task = self.server.loop.create_task(self.server.answer(exchange))
        task.add_done_callback(exchange.task_done, context=self.server.context)

    def _stop_parsing(self) -> None:
        """Refuse bytes that are not HTTP or too long. Requests before them still get their responses."""
        self._is_discarding, self._in_head, self._unparsed = True, False, b""
        self._chunks.clear()
        arriving, self.arriving = self.arriving, None
        if not self.is_reading:
            self.resume_reading()
        if arriving is not None:
            arriving.fail_body(_BAD_FRAMING)
        if self._current is None:
            self.write(self._refusal)
            self._finish(whole=False)

    def _finish(self, *, whole: bool) -> None:
        """Close after the last response. What the client still sends is read for a while and discarded."""
        if whole or self.half_closed or self._transport is None or self._transport.is_closing():
            self._close()
            return
        self._is_discarding, self._queue = True, None
        self._unparsed = b""
        self.deadline = self.server.clock() + _LINGER_SECONDS
        if not self.is_reading:
            self.resume_reading()
        try:
            self._transport.write_eof()
        except OSError:  # the client has reset the connection, and asyncio has not reported it yet
            self.abort()

    def _close(self) -> None:
        """Close after all bytes are written. If the client does not read them, `check_progress` aborts."""
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.get_write_buffer_size():
                self.server.connections.slow_readers.add(self)
            self._transport.close()

    def _give_up(self) -> None:
        self._disconnect_all()
        self.abort()

    def _disconnect_all(self) -> None:
        queue, self._queue = self._queue, None
        current, self._current, self.arriving = self._current, None, None
        for exchange in (current, *(queue or ())):
            if exchange is not None:
                exchange.disconnect()
