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
import socket
import struct
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, cast

from dragoman.errors import Fault
from dragoman.http.addresses import limit_key
from dragoman.http.exchange import STALL, BodyWatch, Pace
from dragoman.http.server.answering import HttpExchange
from dragoman.http.server.limits import HEAD_SECONDS, IDLE_SECONDS, TOO_SLOW
from dragoman.http.server.reading import Reader
from dragoman.http.server.roster import GRACE
from dragoman.http.server.sockets import is_readable, is_reset, probe, unsent

if TYPE_CHECKING:
    from dragoman.http.server.serving import HttpServer

_LINGER_SECONDS = 2.0
_LINGER_BYTES = 64 * 1024 * 1024
_PROBE_SECONDS = 0.02  # after a client has closed its sending side, and again until its system has answered
_NO_HTTP = Fault("invalid", "the request's body is not framed as HTTP has it", 400)


def _nowhere(_: bytes) -> None:
    pass


class Connection(Reader):
    __slots__ = (
        "_aborted",
        "_discarded",
        "_half_closed",
        "_moved",
        "_proven",
        "_reading",
        "_silent",
        "_still_since",
        "_transport",
        "_write_paused",
        "peer",
        "since",
        "write",
    )

    def __init__(self, server: HttpServer, client: str = "") -> None:
        super().__init__(server, client)
        self.peer = limit_key(client)
        self._aborted = False
        self._transport: asyncio.Transport | None = None
        self.write: Callable[[bytes], None] = _nowhere  # the transport's own: no frame of ours for a chunk
        self._half_closed = False  # the client sends nothing more
        self._proven = False  # a request of it was let in
        self._reading = True
        self._write_paused = False
        self._discarded = 0
        self._moved = self._still_since = 0.0
        self.since = monotonic()
        self._silent = True  # nothing of it was read
        server.roster.add(self)

    def name_client(self, address: str) -> None:
        self.client = address
        self._server.roster.rename(self, limit_key(address))

    # --- for the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write
        if self._server.write_buffer is not None:
            self._transport.set_write_buffer_limits(self._server.write_buffer)
        if self._aborted:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._silent:
            self._silent = False
            self._server.roster.hear(self)
        if self._deaf:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES:
                self.abort()
            return
        self._parse(data)

    def eof_received(self) -> bool:
        """Return whether the connection stays open: a client that has sent whole requests may wait for the answers."""
        current, arriving = self._current, self._arriving
        if current is None:
            return False
        if arriving is current:
            self._leave()
            return False
        if arriving is not None and self._queue:
            self._queue.pop()
            self._arriving = None
        self._half_closed, self._in_head, self._held = True, False, b""
        last = self._queue[-1] if self._queue else current
        last.last = last.last or not last.begun
        self._server.half_closed(self, _PROBE_SECONDS)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget(self)
        self._lost()
        self._transport = self._parser = None
        self.write = _nowhere

    def pause_writing(self) -> None:
        self._write_paused = True
        self._server.slow.add(self)
        if self._current is not None:
            self._current.hold()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._server.slow.discard(self)
        self._still_since = 0.0
        if self._current is not None:
            self._current.flow()
        elif not self._deaf:
            self._next()

    # --- for the exchange

    def write_both(self, head: bytes, body: bytes) -> None:
        if self._transport is not None:
            self._transport.writelines((head, body))

    def prove(self) -> None:
        """A request of this connection was let in."""
        if not self._proven:
            self._proven = True
            self._server.roster.prove(self)

    def expect_body(self, exchange: HttpExchange, pace: Pace) -> None:
        """The body of the exchange is wanted, at this pace."""
        if exchange is self._arriving:
            self._body_watch = BodyWatch(pace, self._server.clock())
            self.deadline = self._body_watch.due
        self.read_on()

    def read_on(self) -> None:
        if self._is_ahead():
            return
        if self._held:
            held, self._held = self._held, b""
            self._parse(held)
            if self._held:
                return
        if not self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()
            if self._in_head:
                self.deadline = self._server.clock() + HEAD_SECONDS

    def read_no_more(self) -> None:
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def streams(self, exchange: HttpExchange) -> None:
        """A long answer begins: what reads requests is made again when one comes."""
        if exchange is self._current and not exchange.last and not self._in_head and self._arriving is None:
            self._parser = None

    def answered(self, exchange: HttpExchange) -> None:
        """All of the answer is written: it is the next one's turn."""
        if exchange is not self._current:
            return
        self._current = None
        if exchange.last or (self._deaf and not self._queue):
            self._finish(whole=exchange.arrived and not self._deaf and not self._queue)
            return
        if not self._queue and (self._server.quiet_now or self._half_closed):
            self._finish(whole=True)
        elif self._write_paused:  # answers must not pile up for a client that does not read them
            self.deadline = inf
            self.read_no_more()
        else:
            self._next()

    @property
    def is_half_closed(self) -> bool:
        return self._half_closed

    def break_off(self, *, reset: bool) -> None:
        """End the connection inside of an answer: once all is written, or with a reset."""
        if self._transport is None or self._transport.is_closing():
            return
        if reset:
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        else:
            self._close()

    # --- for the sweeper

    def overdue(self, now: float) -> None:
        """The deadline has passed."""
        self.deadline = inf
        if self._deaf:
            self.abort()
        elif self._in_head:
            self._refusal = TOO_SLOW
            self._no_further()
        elif self._arriving is not None:
            self._judge_body(self._arriving, now)
        elif self._current is None:
            self._close()

    def check_progress(self, now: float) -> None:
        """Give a client up that has taken nothing for too long."""
        left = unsent(self._transport) if self._transport is not None else 0
        if not self._still_since or left != self._moved:
            self._moved, self._still_since = left, now
        elif now - self._still_since >= STALL:
            self._leave()

    def probe(self) -> None:
        """Find out whether a client that sends nothing more still waits: its system answers what is sent, or not."""
        if self._transport is None or self._transport.is_closing() or probe(self._transport):
            return
        if self._current is not None:
            self._current.probe()

    def check_left(self) -> None:
        """End the work for a client that turned out to have closed its socket."""
        if self._transport is not None and not self._transport.is_closing() and is_reset(self._transport):
            self._leave()

    def quiet(self) -> None:
        """Keep the connection for no other request."""
        if self._current is not None:
            self._current.last = self._current.last or not self._current.begun
        elif not self._queue and not self._in_head and self._arriving is None:
            self._close()

    @property
    def is_busy(self) -> bool:
        return self._current is not None or self._in_head or bool(self._queue)

    @property
    def idle_since(self) -> float:
        return self.deadline - IDLE_SECONDS

    @property
    def has_unread(self) -> bool:
        return self._transport is not None and is_readable(self._transport)

    @property
    def is_slow(self) -> bool:
        watch, arriving = self._body_watch, self._arriving
        return watch is not None and arriving is not None and watch.is_slow(arriving.size, self._server.clock(), GRACE)

    def abort(self) -> None:
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()
        else:  # TLS was not agreed on, or not yet
            self._server.forget(self)

    # --- within

    def _judge_body(self, arriving: HttpExchange, now: float) -> None:
        watch = self._body_watch
        fault = watch.fault(arriving.size, now) if watch is not None else None
        if fault is not None:
            self._arriving, self._deaf = None, True
            arriving.spoil(fault)
        elif watch is not None:
            self.deadline = watch.due

    def _next(self) -> None:
        """Begin the next request, or wait for one."""
        if self._queue:
            self._begin(self._queue.popleft())
        elif not self._in_head:
            self.deadline = self._server.clock() + IDLE_SECONDS
        self.read_on()  # the queue may have been full, or the body was not asked for yet

    def _begin(self, exchange: HttpExchange) -> None:
        self._current = exchange
        exchange.paused = self._write_paused
        self.deadline = inf
        self._server.begin(exchange)

    def _no_further(self) -> None:
        """What comes is no HTTP, or more than is taken. What was asked before it is still answered."""
        self._deaf, self._in_head, self._held = True, False, b""
        self._chunks.clear()
        arriving, self._arriving = self._arriving, None
        self.read_on()
        if arriving is not None:
            arriving.spoil(_NO_HTTP)
        if self._current is None:
            self.write(self._refusal)
            self._finish(whole=False)

    def _finish(self, *, whole: bool) -> None:
        """The last answer is written. A client that may still send is heard until it stops, and not understood."""
        if whole or self._half_closed or self._transport is None or self._transport.is_closing():
            self._close()
            return
        self._deaf, self._queue = True, None
        self._held = b""
        self.deadline = self._server.clock() + _LINGER_SECONDS
        self.read_on()
        try:
            self._transport.write_eof()
        except OSError:  # the client has reset the connection, which was not read yet
            self.abort()

    def _close(self) -> None:
        """Once all is written; a client that does not read is given up by the sweeper."""
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.get_write_buffer_size():
                self._server.slow.add(self)
            self._transport.close()

    def _leave(self) -> None:
        self._lost()
        self.abort()

    def _lost(self) -> None:
        queue, self._queue = self._queue, None
        current, self._current, self._arriving = self._current, None, None
        for exchange in (current, *(queue or ())):
            if exchange is not None:
                exchange.leave()
