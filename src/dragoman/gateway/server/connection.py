"""One client's connection: bytes in, through httptools, to exchanges that are answered in their order.

    idle ──first byte──> head ──head is whole──> an exchange ──its answer is written──> idle
                           └── no HTTP ──┐            └── the last one ──┐
                                         └───────> lingering <───────────┘

What cannot be read any further is still taken from the socket for a while (`lingering`): to close a socket with unread
bytes in it would take the answer from a client that is still sending. A client that closes its sending side has left.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from dragoman.errors import Fault
from dragoman.gateway.exchange import BODY_SECONDS, STALL
from dragoman.gateway.guard import LONGEST_TARGET, MOST_HEADERS
from dragoman.gateway.server.answering import HttpExchange
from dragoman.gateway.server.carrier import (
    BAD_REQUEST,
    HEAD_BYTES,
    HEAD_SECONDS,
    HEAD_TOO_LONG,
    IDLE_SECONDS,
    MOST_PIPELINED,
    TARGET_TOO_LONG,
    TOO_SLOW,
)
from dragoman.gateway.server.usual import Mould, mould_of
from dragoman.wire.http import HttpRequest, parse_headers

if sys.platform != "win32":
    from fcntl import ioctl
    from termios import TIOCOUTQ

if TYPE_CHECKING:
    from dragoman.gateway.server.own import OwnCarrier

_LINGER_SECONDS = 2.0
_LINGER_BYTES = 64 * 1024 * 1024
_PATIENCE = 4  # moulds learnt without a request that was of one
_NO_HTTP = Fault("invalid", "the request's body is not framed as HTTP has it", 400)
_METHODS = {method.encode(): method for method in ("GET", "HEAD", "POST")}


def _nowhere(_: bytes) -> None:
    pass


class _Refused(Exception):
    """Out of a parser's callback: this head is not read on."""


class Connection(asyncio.Protocol):
    __slots__ = (
        "_arriving",
        "_barren",
        "_carrier",
        "_chunks",
        "_current",
        "_deaf",
        "_discarded",
        "_fields",
        "_in_head",
        "_mould",
        "_moved",
        "_parser",
        "_patience",
        "_queue",
        "_reading",
        "_refusal",
        "_still_since",
        "_transport",
        "_url",
        "_write_paused",
        "deadline",
        "on_body",
        "write",
    )

    def __init__(self, carrier: OwnCarrier) -> None:
        self.deadline = carrier.now + HEAD_SECONDS  # read by the sweeper
        self._carrier = carrier
        self._chunks: list[bytes] = []
        self.on_body = self._chunks.append  # the parser calls it: no Python frame for a chunk
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self.write: Callable[[bytes], None] = _nowhere  # the transport's own: no frame of ours for a chunk
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._in_head = False
        self._barren = 0  # bytes of a head, or of trailers, since the last of anything else
        self._refusal = BAD_REQUEST  # what is said of a head that cannot be read
        self._arriving: HttpExchange | None = None  # its body is still coming
        self._current: HttpExchange | None = None  # is being answered
        self._queue: deque[HttpExchange] | None = None  # those that came before it was
        self._reading = True
        self._write_paused = False
        self._deaf = False  # nothing is read any more
        self._discarded = 0
        self._moved = self._still_since = 0.0
        self._mould = carrier.mould  # of the requests that it sends, probably
        self._patience = _PATIENCE

    # --- for the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write
        self._carrier.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES:
                self.abort()
            return
        idle = self._current is None and not self._in_head
        if idle and self._mould is not None and (request := self._mould.fill(data)) is not None:
            self._take_usual(request, self._mould)
            return
        if self._parser is None:
            self._parser = HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:  # offered, not taken: what follows is another protocol's
            self._deaf = True
        except HttpParserError:
            self._no_further()
            return
        if self._chunks and self._arriving is not None:
            self._hand_over(self._arriving)
            self._barren = 0
        elif self._in_head or self._arriving is not None:
            self._barren += len(data)
            if self._barren > HEAD_BYTES:
                self._refusal = HEAD_TOO_LONG
                self._no_further()
        elif idle and self._patience:
            self._learn(data)

    def eof_received(self) -> None:
        if self._current is not None:
            self._lost()
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._carrier.forget(self)
        self._lost()
        self._transport = self._parser = None
        self.write = _nowhere

    def pause_writing(self) -> None:
        self._write_paused = True
        self._carrier.slow.add(self)
        if self._current is not None:
            self._current.hold()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._carrier.slow.discard(self)
        self._still_since = 0.0
        if self._current is not None:
            self._current.flow()

    # --- for the parser

    def on_message_begin(self) -> None:
        self._in_head = True
        self._barren = 0
        self._url = b""
        self._fields = []
        self.deadline = self._carrier.now + HEAD_SECONDS

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > LONGEST_TARGET:
            self._refusal = TARGET_TOO_LONG
            raise _Refused

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))  # trailers, too, which nobody reads
        if len(self._fields) > MOST_HEADERS:
            self._refusal = HEAD_TOO_LONG
            raise _Refused

    def on_headers_complete(self) -> None:
        parser, fields = self._parser, self._fields
        assert parser is not None
        self._in_head = False
        target = self._url.decode("latin-1")
        self._url, self._fields = b"", []
        path, _, query = target.partition("?")
        version = sys.intern(parser.get_http_version())
        method = parser.get_method()
        request = HttpRequest(_METHODS.get(method) or method.decode("latin-1"), path, query, parse_headers(fields))
        exchange = HttpExchange(self, request, target=target, version=version, began=self._carrier.time())
        exchange.last = version != "1.1" or parser.should_upgrade() or not parser.should_keep_alive()
        if self._current is None:
            self._arriving = exchange
            self._begin(exchange)
            return
        if self._queue is None:
            self._queue = deque()
        if len(self._queue) >= MOST_PIPELINED:
            raise _Refused
        self._arriving = exchange
        self._queue.append(exchange)
        self.deadline = inf  # it is not its turn

    def on_message_complete(self) -> None:
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            self._hand_over(arriving)
            arriving.arrive()
            if self._current is not None:
                self.deadline = inf

    # --- for the exchange

    def write_both(self, head: bytes, body: bytes) -> None:
        if self._transport is not None:
            self._transport.writelines((head, body))

    def read_on(self) -> None:
        if not self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

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
        self.read_on()  # nobody may have asked for its body
        if exchange.last or (self._deaf and not self._queue):
            self._finish(whole=exchange.arrived and not self._deaf and not self._queue)
        elif self._queue:
            self._begin(self._queue.popleft())
        elif self._carrier.quiet_now:
            self._finish(whole=True)
        elif not self._in_head:
            self.deadline = self._carrier.now + IDLE_SECONDS

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
            arriving, self._arriving, self._deaf = self._arriving, None, True
            arriving.too_slow()
        elif self._current is None:
            self._close()

    def check_progress(self, now: float) -> None:
        """Give a client up that has taken nothing for too long."""
        left = self._left()
        if not self._still_since or left != self._moved:
            self._moved, self._still_since = left, now
        elif now - self._still_since >= STALL:
            self._lost()
            self.abort()

    def quiet(self) -> None:
        """Keep the connection for no other request."""
        if self._current is not None:
            self._current.last = self._current.last or not self._current.begun
        elif not self._in_head and self._arriving is None:
            self._close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- within

    def _begin(self, exchange: HttpExchange) -> None:
        self._current = exchange
        exchange.paused = self._write_paused
        self.deadline = self._carrier.now + BODY_SECONDS if exchange is self._arriving else inf
        self._carrier.begin(exchange)

    def _take_usual(self, request: HttpRequest, mould: Mould) -> None:
        self._patience = _PATIENCE
        exchange = HttpExchange(self, request, target=mould.target, version="1.1", began=self._carrier.time())
        exchange.like = mould
        exchange.take(request.body)
        exchange.arrive()
        self._begin(exchange)

    def _learn(self, data: bytes) -> None:
        """Remember what the next request will probably look like, if these bytes were one."""
        exchange = self._current
        if exchange is not None and exchange.arrived and not exchange.last:
            self._patience -= 1
            learnt = mould_of(data, exchange.request, exchange.target)
            if learnt is not None:
                self._mould = self._carrier.mould = learnt

    def _hand_over(self, arriving: HttpExchange) -> None:
        chunks = self._chunks
        if chunks:
            piece = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()
            arriving.take(piece)

    def _no_further(self) -> None:
        """What comes is no HTTP, or more than is taken. What was asked before it is still answered."""
        self._deaf, self._in_head = True, False
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
        if whole or self._transport is None or self._transport.is_closing():
            self._close()
            return
        self._deaf, self._queue = True, None
        self.deadline = self._carrier.now + _LINGER_SECONDS
        self.read_on()
        self._transport.write_eof()

    def _close(self) -> None:
        """Once all is written; a client that does not read is given up by the sweeper."""
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.get_write_buffer_size():
                self._carrier.slow.add(self)
            self._transport.close()

    def _lost(self) -> None:
        queue, self._queue = self._queue, None
        current, self._current, self._arriving = self._current, None, None
        for exchange in (current, *(queue or ())):
            if exchange is not None:
                exchange.leave()

    def _left(self) -> float:
        """How many bytes the client has not taken yet, as far as can be told."""
        transport = self._transport
        if transport is None:
            return 0
        left = transport.get_write_buffer_size()
        if sys.platform != "win32":
            try:
                raw = ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
            except OSError:
                return left
            left += int.from_bytes(raw, sys.byteorder)
        return left
