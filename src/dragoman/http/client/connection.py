"""One connection to an upstream: bytes in, through httptools, to the reply that is being read.

One exchange at a time, each with its own parser, so that nothing of one answer can leak into the next. The honest ends:
a body is over when the parser says so, or, if the head announced no length, when the peer ends the stream in order.

Turns: the reader of a body translates it inside the read callback. So at most `TURN_BYTES` of one connection are given
on in one turn of the event loop. The rest of a read is kept, nothing more is read, and the next turn goes on with it.
An end of the connection that comes meanwhile takes effect after the kept bytes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from dragoman.errors import BadFrame, DragomanError, Reset, Truncated
from dragoman.http.client.reply import TURN_BYTES, Stale
from dragoman.wire.http import parse_headers

if TYPE_CHECKING:
    from dragoman.http.client.pool import Lane
    from dragoman.http.client.reply import Reply

HEAD_BYTES = 64 * 1024  # of heads, 1xx included; and of anything else that brings no body, such as trailers
HEAD_FIELDS = 128
UNCOUNTED = 512  # a read of so few bytes is not counted: libuv makes 32 reads in one turn, which is TURN_BYTES again
STALE_SECONDS = 1.0  # that a kept connection is closed shows within a round trip; later, the request may have run


class Connection(asyncio.Protocol):
    __slots__ = (
        "_barren",
        "_chunks",
        "_end",
        "_fields",
        "_informal",
        "_keep",
        "_kept",
        "_lane",
        "_last",
        "_left",
        "_parser",
        "_paused",
        "_reading",
        "_refusal",
        "_reply",
        "_reused",
        "_sent_at",
        "_transport",
        "_turning",
        "idle_since",
        "on_body",
    )

    def __init__(self, lane: Lane) -> None:
        self.idle_since = 0.0
        self._chunks: list[bytes] = []
        self.on_body = self._chunks.append  # the parser calls it: no Python frame for a chunk
        self._lane = lane
        self._transport: asyncio.Transport | None = None
        self._parser: HttpResponseParser | None = None
        self._reply: Reply | None = None
        self._fields: list[tuple[bytes, bytes]] = []
        self._barren = 0  # bytes answered, since the request or the last of the body, that brought no body
        self._informal = False  # inside a 1xx
        self._end: int | None = None  # how many of the chunks belong to the answer, once it is whole
        self._keep = False
        self._refusal: BadFrame | None = None
        self._reused = False
        self._paused = False  # by the reader of the body
        self._reading = True
        self._kept = b""  # bytes that were read and wait for the next turn
        self._left = TURN_BYTES  # that may be given on in this turn
        self._turning = False  # `_next_turn` will be called
        self._last: Callable[[], None] | None = None  # how the connection ended, if bytes were kept then
        self._sent_at = 0.0

    # For the reply and the pool

    def send(self, reply: Reply, payload: tuple[bytes, ...], now: float) -> None:
        """Write a whole request at once; its answer goes to `reply`."""
        self._reply = reply
        self._parser = HttpResponseParser(self)
        self._barren = 0
        self._end = self._refusal = None
        self._sent_at = now
        if self._transport is None or self._transport.is_closing():
            self._gone(Reset(f"{self._lane.name} closed the connection"))
        else:
            self._transport.writelines(payload)

    @property
    def writing(self) -> bool:
        """Whether part of the request is still here."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def usable(self) -> bool:
        """Whether an idle connection is still good: open, and with nothing to read: that would be its end, or bytes
        that belong to no request. What the loop has read of such bytes has closed it (`data_received`).
        """
        if self._transport is None or self._transport.is_closing():
            return False
        return self._lane.quiet(self._transport.get_extra_info("socket").fileno())

    def pause(self) -> None:
        self._paused = True
        self._read_on()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._read_on()
            if self._kept or self._last is not None:
                self._schedule()

    def abort(self) -> None:
        self._reply = self._last = None
        self._kept = b""
        if self._transport is not None:
            self._transport.abort()

    # For the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._lane.connections.add(self)

    def data_received(self, data: bytes) -> None:
        size = len(data)
        if self._kept or size > self._left:
            self._kept += data
            if not self._turning and not self._paused:
                self._next_turn()
            self._read_on()
            return
        if size > UNCOUNTED:
            self._left -= size
            self._schedule()
        self._give(data)

    def _next_turn(self) -> None:
        """Give on what was kept, as much as one turn may have; after the last of it, the end, or the next read."""
        self._turning = False
        self._left = TURN_BYTES
        if self._paused:
            return
        if self._kept:
            piece, self._kept = self._kept[:TURN_BYTES], self._kept[TURN_BYTES:]
            self._left -= len(piece)
            self._schedule()
            self._give(piece)
        elif self._last is not None:
            last, self._last = self._last, None
            last()
        self._read_on()

    def _schedule(self) -> None:
        if not self._turning:
            self._turning = True
            self._lane.loop.call_soon(self._next_turn)

    def _read_on(self) -> None:
        """Read from the socket exactly while the reader wants more and nothing is kept."""
        wanted, transport = not self._paused and not self._kept, self._transport
        if wanted != self._reading and transport is not None and not transport.is_closing():
            self._reading = wanted
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _give(self, data: bytes) -> None:
        reply, parser = self._reply, self._parser
        if reply is None or parser is None:
            self.abort()  # bytes that nobody asked for
            return
        reply.fresh = True
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._conclude(reply, error)
            return
        chunks = self._chunks
        if self._end is not None:
            self._conclude(reply, None)
        elif chunks:
            body = b"".join(chunks)  # of one piece it makes no copy
            chunks.clear()
            self._barren = 0
            reply.take(body)
        else:
            self._barren += len(data)
            if self._barren > HEAD_BYTES:
                self._gone(BadFrame(f"{self._lane.name} sent more than {HEAD_BYTES} bytes of head or trailers"))

    def eof_received(self) -> None:
        self._end_with(partial(self._ended, self._reply is not None and self._closed_in_order()))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lane.forget(self)
        self._transport = None
        self._end_with(partial(self._lost, exc))

    def _end_with(self, last: Callable[[], None]) -> None:
        """The connection ended: now, or after the bytes that came before the end. Of two ends the first counts."""
        if self._last is not None:
            return
        if self._kept:
            self._last = last
        else:
            last()

    def _ended(self, in_order: bool) -> None:
        reply = self._reply
        if reply is not None and in_order and _ends_with_the_connection(reply):
            self._reply = None
            reply.finish()
        self._gone(self._cut())
        self.abort()  # a mere close would first wait until all is written, perhaps to a peer that does not read

    def _lost(self, exc: Exception | None) -> None:
        # Without a reason it is an end that `eof_received` was not told: uvloop does so when TCP ends and TLS has not.
        self._gone(Reset(f"{self._lane.name} broke the connection: {exc}") if exc else self._cut())
        self._parser = None

    # For the parser

    def on_message_begin(self) -> None:
        if self._end is not None:
            self._keep = False  # an answer after the answer
        self._fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        parser, reply, fields = self._parser, self._reply, self._fields
        if parser is None or reply is None or self._end is not None:
            return
        status = parser.get_status_code()
        if status < 200:
            self._informal = True
            return
        if len(fields) > HEAD_FIELDS:
            self._refuse(f"sent a head of more than {HEAD_FIELDS} fields")
        headers = parse_headers(fields)
        self._fields = []
        for name, value in headers:
            if name == "transfer-encoding" and value.lower() != "chunked":
                self._refuse(f"sent its answer in the transfer encoding {value[:40]!r}, which was not asked for")
            if name == "content-encoding" and value.lower() not in ("", "identity") and status < 300:
                self._refuse(f"sent its answer compressed ({value[:40]!r}), which was not asked for")
        if reply.bodiless:
            self._end = 0
            self._keep = parser.should_keep_alive()
        reply.answered(status, headers)

    def on_message_complete(self) -> None:
        if self._informal:
            self._informal = False
        elif self._end is None and self._parser is not None:
            self._end = len(self._chunks)
            self._keep = self._parser.should_keep_alive()  # only in here does the parser know

    # Ends

    def _conclude(self, reply: Reply, fault: Exception | None) -> None:
        """The answer is whole, or cannot be read on: hand out what came of it, then say how it ended."""
        chunks, end = self._chunks, self._end
        body = b"".join(chunks[:end])
        keep = self._keep and fault is None and len(chunks) == end and not self._kept
        chunks.clear()
        if body:
            reply.take(body)
        if end is None:
            self._gone(self._refusal or BadFrame(f"{self._lane.name} sent what is not HTTP: {fault}"))
            return
        self._reply = None
        if not (keep and self._keep_for_the_next()):
            self.abort()
        reply.finish()

    def _keep_for_the_next(self) -> bool:
        transport = self._transport
        # With bytes still to write, the answer came before the request was sent: the rest of it would go first.
        if transport is None or transport.is_closing() or self.writing:
            return False
        # While paused, TLS may hold bytes behind the answer that no look at the socket shows.
        if self._paused and transport.get_extra_info("ssl_object") is not None:
            return False
        self.resume()
        self._reused = True
        self.idle_since = monotonic()
        return self._lane.keep(self)

    def _gone(self, error: DragomanError) -> None:
        reply, self._reply = self._reply, None
        if reply is None:
            return
        unanswered = not reply.status and not self._barren
        if self._reused and unanswered and monotonic() - self._sent_at < STALE_SECONDS:
            self.abort()
            reply.stale(Stale(str(error)))
        else:
            reply.fail(error)

    def _cut(self) -> DragomanError:
        if self._reply is not None and self._reply.status:
            return Truncated(f"{self._lane.name} ended the connection in the middle of its answer")
        if self._barren:
            return Truncated(f"{self._lane.name} ended the connection in the middle of a head")
        return Reset(f"{self._lane.name} ended the connection without an answer")

    def _refuse(self, what: str) -> None:
        self._refusal = BadFrame(f"{self._lane.name} {what}")
        raise self._refusal

    def _closed_in_order(self) -> bool:
        """Whether TLS was ended, too: else anybody on the way could have cut the body."""
        tls = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        try:
            return tls is None or not tls.read(1)
        except ssl.SSLZeroReturnError:
            return True
        except ssl.SSLError:
            return False


def _ends_with_the_connection(reply: Reply) -> bool:
    return reply.status > 0 and not any(name in ("content-length", "transfer-encoding") for name, _ in reply.headers)
