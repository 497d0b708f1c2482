"""One client's connection: bytes in, through httptools, to exchanges that are answered in their order.

    idle ──first byte──> head ──head is whole──> an exchange ──its answer is written──> idle
                           └── no HTTP ──┐            └── the last one ──┐
                                         └───────> lingering <───────────┘

What cannot be read any further is still taken from the socket for a while (`lingering`): to close a socket with unread
bytes in it would take the answer from a client that is still sending. A client that closes its sending side after whole
requests gets their answers, and then the connection is closed; one that closes it within a body has left.

Requests that come before their turn wait in a queue. When it is full, reading stops until there is room. It also stops
when the client does not read its answers: the next request waits until it has read them.
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
from dragoman.http.exchange import STALL_SECONDS, BodyTimer, HttpExchange
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
_PROBE_SECONDS = 0.02  # after a client has closed its sending side, and again until its system has answered
_PIECE = 8 * 1024  # bytes that are parsed before it is looked whether the queue is full
_MOST_AHEAD = 64 * 1024  # bytes of bodies in the queue
_METHODS = {method.encode(): method for method in ("GET", "HEAD", "POST")}
_NO_HTTP = Fault("invalid", "the body of the request is not framed as HTTP requires", 400)


def _nowhere(_: bytes) -> None:
    pass


class _Refused(Exception):
    """Out of a parser's callback: this head is not read on."""


class ServerConnection(Struct, asyncio.Protocol, eq=False):
    """Parses requests. The first is begun at once; those that come before its answer wait in a queue."""

    server: HttpServer
    client: str = ""  # its address
    peer: str = ""  # what limits count it for
    since: float = field(default_factory=monotonic)  # from when on it has its grace
    deadline: float = inf  # read by the sweeper
    half_closed: bool = False  # the client sends nothing more
    is_reading: bool = True
    write: Callable[[bytes], None] = _nowhere  # the transport's own: no frame of ours for a chunk
    arriving: HttpExchange | None = None  # its body is still coming
    body_timer: BodyTimer | None = None  # of the one that arrives, once it is asked for
    on_body: Callable[[bytes], None] = _nowhere  # the parser calls these two: no Python frame for a chunk
    on_url: Callable[[bytes], None] = _nowhere
    _chunks: list[bytes] = []
    _url: list[bytes] = []
    _fields: list[tuple[bytes, bytes]] = []
    _parser: HttpRequestParser | None = None  # between two requests there is none
    _in_head: bool = False
    _barren: int = 0  # bytes of a head, or of trailers, since the last of anything else
    _refusal: bytes = BAD_REQUEST  # the answer to a head that cannot be read
    _current: HttpExchange | None = None  # is being answered
    _queue: deque[HttpExchange] | None = None  # those that came before it was
    _held: bytes = b""  # bytes that wait for room in the queue; then `reading` is False
    _deaf: bool = False  # nothing is read any more
    _silent: bool = True  # nothing of it was read
    _aborted: bool = False
    _transport: asyncio.Transport | None = None
    _write_paused: bool = False
    _discarded: int = 0
    _moved: float = 0.0
    _still_since: float = 0.0

    __repr__ = object.__repr__  # what is read holds keys and prompts

    # --- for the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write, self.on_body, self.on_url = self._transport.write, self._chunks.append, self._url.append
        self.deadline = self.server.clock() + HEAD_SECONDS
        if self.server.write_buffer is not None:
            self._transport.set_write_buffer_limits(self.server.write_buffer)
        if self._aborted:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse what has come, as far as the queue has room; the rest is held."""
        if self._silent:
            self._silent = False
            self.server.connections.mark_received(self)
        if self._deaf:
            self._discard(len(data))
            return
        parser = self._parser = self._parser or HttpRequestParser(self)
        view = memoryview(data) if len(data) > _PIECE else data
        try:
            for at in range(0, len(data), _PIECE):
                parser.feed_data(view[at : at + _PIECE])
                if self._chunks:
                    self._barren = 0
                elif self._in_head or self.arriving is not None:
                    self._barren += min(_PIECE, len(data) - at)
                if self._barren > MAX_TARGET_BYTES and self._is_endless():
                    self._no_further()
                    return
                if self._queue and self._is_ahead(self._queue):
                    self._held = data[at + _PIECE :]
                    self.deadline = inf  # it is we who do not read
                    self.pause_reading()
                    break
        except HttpParserUpgrade:  # offered, not taken: what follows is another protocol's
            self._deaf = True
        except HttpParserError:
            self._no_further()
            return
        if self._chunks and self.arriving is not None:
            self.arriving.take(self._chunks)
        elif not (self._in_head or self.arriving or self._queue or (self._current and self._current.last)):
            self._parser = None  # a long answer may be to come: the next request makes another parser

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > _LINGER_BYTES:
            self.abort()

    def _is_endless(self) -> bool:
        """Whether a head, or what is around the chunks of a body, is too long; `_refusal` says what of it."""
        if self._in_head and sum(map(len, self._url)) > MAX_TARGET_BYTES:
            self._refusal = TARGET_TOO_LONG
        elif self._barren > MAX_PARTIAL_HEAD_BYTES + _PIECE:  # a piece may begin with the end of another request
            self._refusal = HEAD_TOO_LONG
        return self._refusal is not BAD_REQUEST

    def _is_ahead(self, queue: deque[HttpExchange]) -> bool:
        """Whether enough requests wait for their turn."""
        if self._chunks and self.arriving is not None:
            self.arriving.take(self._chunks)
        return len(queue) >= MAX_PIPELINED or sum([each.size for each in queue]) > _MOST_AHEAD

    def eof_received(self) -> bool:
        """Return whether the connection stays open: a client that has sent whole requests may wait for the answers."""
        current, arriving = self._current, self.arriving
        if current is None:
            return False
        if arriving is current:
            self._leave()
            return False
        if arriving is not None and self._queue:
            self._queue.pop()
            self.arriving = None
        self.half_closed, self._in_head, self._held = True, False, b""
        last = self._queue[-1] if self._queue else current
        last.last = last.last or not last.is_started
        self.server.connections.half_closed.add(self)
        self.server.loop.call_later(_PROBE_SECONDS, self.probe)
        self.server.loop.call_later(2 * _PROBE_SECONDS, self.check_disconnected)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.remove(self)
        if self._current is not None or self._queue:
            self._lost()
        self._transport = self._parser = None
        self.write = _nowhere

    def pause_writing(self) -> None:
        self._write_paused = True
        self.server.connections.slow_readers.add(self)
        if self._current is not None:
            self._current.pause_source()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.server.connections.slow_readers.discard(self)
        self._still_since = 0.0
        if self._current is not None:
            self._current.resume_source()
        elif not self._deaf:
            self._next()

    # --- for the parser

    def on_message_begin(self) -> None:
        self._in_head = True
        self._barren = 0
        self._url.clear()
        self._fields = []
        self.deadline = self.server.clock() + HEAD_SECONDS

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))  # trailers, too, which are not used
        if len(self._fields) > MAX_HEADERS:
            self._refusal = HEAD_TOO_LONG
            raise _Refused

    def on_headers_complete(self) -> None:
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
        self.deadline = inf  # it is not its turn

    def on_message_complete(self) -> None:
        arriving, self.arriving = self.arriving, None
        if arriving is not None:
            arriving.take(self._chunks, last=True)
            self.body_timer = None
            if self._current is not None:
                self.deadline = inf

    # --- for the exchange

    def write_both(self, head: bytes, body: bytes) -> None:
        if self._transport is not None:
            self._transport.writelines((head, body))

    def resume_reading(self) -> None:
        """Read again, unless enough requests wait."""
        if self._queue and self._is_ahead(self._queue):
            return
        if self._held:
            held, self._held = self._held, b""
            self.data_received(held)
            if self._held:
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
        """All of the answer is written: it is the next one's turn."""
        if exchange is not self._current:
            return
        self._current = None
        if exchange.last or (self._deaf and not self._queue):
            self._finish(whole=exchange.is_body_complete and not self._deaf and not self._queue)
            return
        if not self._queue and (self.server.keeps_no_connections or self.half_closed):
            self._finish(whole=True)
        elif self._write_paused:  # answers must not pile up for a client that does not read them
            self.deadline = inf
            self.pause_reading()
        elif self._queue or not self.is_reading:
            self._next()
        elif not self._in_head:
            self.deadline = self.server.clock() + IDLE_SECONDS

    def break_off(self, *, reset: bool) -> None:
        """End the connection inside of an answer: once all is written, or with a reset."""
        if self._transport is None or self._transport.is_closing():
            return
        if reset:
            abort_with_reset(self._transport)
        else:
            self._close()

    # --- for the sweeper

    def deadline_passed(self, now: float) -> None:
        """The deadline has passed."""
        self.deadline = inf
        if self._deaf:
            self.abort()
        elif self._in_head:
            self._refusal = REQUEST_TIMEOUT
            self._no_further()
        elif self.arriving is not None and self.body_timer is not None:
            fault = self.body_timer.fault(self.arriving.size, now)
            if fault is None:
                self.deadline = self.body_timer.due
            else:
                self._deaf = True
                self.arriving.fail_body(fault)
                self.arriving = None
        elif self.arriving is None and self._current is None:
            self._close()

    def check_progress(self, now: float) -> None:
        """Give a client up that has taken nothing for too long."""
        left = unsent_bytes(self._transport) if self._transport is not None else 0
        if not self._still_since or left != self._moved:
            self._moved, self._still_since = left, now
        elif now - self._still_since >= STALL_SECONDS:
            self._leave()

    def probe(self) -> None:
        """Find out whether a client that sends nothing more still waits: its system answers what is sent, or not."""
        if self._transport is None or self._transport.is_closing() or probe(self._transport):
            return
        if self._current is not None:
            self._current.probe()

    def check_disconnected(self) -> None:
        """End the work for a client that turned out to have closed its socket."""
        if self._transport is not None and not self._transport.is_closing() and is_reset(self._transport):
            self._leave()

    def stop_keep_alive(self) -> None:
        """Keep the connection for no other request."""
        if self._current is not None:
            self._current.last = self._current.last or not self._current.is_started
        elif not self._queue and not self._in_head and self.arriving is None:
            self._close()

    @property
    def is_busy(self) -> bool:
        """Whether a request is arriving or being answered."""
        return self._current is not None or self._in_head or bool(self._queue)

    @property
    def idle_since(self) -> float:
        """When its last answer was written, if it is not busy."""
        return self.deadline - IDLE_SECONDS

    @property
    def has_unread(self) -> bool:
        """Whether bytes of the client wait to be read."""
        return self._transport is not None and is_readable(self._transport)

    @property
    def is_slow(self) -> bool:
        """Whether a body is arriving that has come more slowly than it must, for `GRACE_SECONDS` seconds or more."""
        watch, arriving = self.body_timer, self.arriving
        return (
            watch is not None
            and arriving is not None
            and watch.is_slow(arriving.size, self.server.clock(), GRACE_SECONDS)
        )

    def abort(self) -> None:
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()
        else:  # TLS was not agreed on, or not yet
            self.server.connections.remove(self)

    # --- within

    def _next(self) -> None:
        """Begin the next request, or wait for one."""
        if self._queue:
            self._begin(self._queue.popleft())
        elif not self._in_head:
            self.deadline = self.server.clock() + IDLE_SECONDS
        if not self.is_reading:  # the queue was full, or the body was not asked for yet
            self.resume_reading()

    def _begin(self, exchange: HttpExchange) -> None:
        self._current = exchange
        exchange.paused = self._write_paused
        self.deadline = inf
        exchange.task = task = self.server.loop.create_task(self.server.answer(exchange))
        task.add_done_callback(exchange.task_done, context=self.server.context)

    def _no_further(self) -> None:
        """What comes is no HTTP, or more than is taken. What was asked before it is still answered."""
        self._deaf, self._in_head, self._held = True, False, b""
        self._chunks.clear()
        arriving, self.arriving = self.arriving, None
        if not self.is_reading:
            self.resume_reading()
        if arriving is not None:
            arriving.fail_body(_NO_HTTP)
        if self._current is None:
            self.write(self._refusal)
            self._finish(whole=False)

    def _finish(self, *, whole: bool) -> None:
        """Close after the last response. What the client still sends is read for a while and discarded."""
        if whole or self.half_closed or self._transport is None or self._transport.is_closing():
            self._close()
            return
        self._deaf, self._queue = True, None
        self._held = b""
        self.deadline = self.server.clock() + _LINGER_SECONDS
        if not self.is_reading:
            self.resume_reading()
        try:
            self._transport.write_eof()
        except OSError:  # the client has reset the connection, which was not read yet
            self.abort()

    def _close(self) -> None:
        """Once all is written; a client that does not read is given up by the sweeper."""
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.get_write_buffer_size():
                self.server.connections.slow_readers.add(self)
            self._transport.close()

    def _leave(self) -> None:
        self._lost()
        self.abort()

    def _lost(self) -> None:
        queue, self._queue = self._queue, None
        current, self._current, self.arriving = self._current, None, None
        for exchange in (current, *(queue or ())):
            if exchange is not None:
                exchange.disconnect()
