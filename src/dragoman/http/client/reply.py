"""One exchange with an upstream: its head, its body as it comes, its deadlines, and how it ended.

    asking ──head──> answered ──end of body──> ended
       └───────────────┴──fault, timeout, close──> ended, with `_error`

Bytes are pushed: the connection's read callback calls the sink, no task is woken for a read. The task that awaits is
woken twice, at the head and at the end. Nothing sets an exception on a future, since a cancelled task never fetches it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.errors import LocalMisuse, Reset, TimedOut, TooLarge
from dragoman.wire.http import Headers

if TYPE_CHECKING:
    from dragoman.http.client.connection import Connection
    from dragoman.http.client.pool import Lane

TURN_BYTES = 16 * 1024  # of one body in one turn of the loop; about 2 ms of translation if all deltas are short
HELD = 64 * 1024  # body bytes kept for a reader who has not come yet; past it the transport is paused


class Timeouts(Struct, frozen=True):
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


class Stale(Reset):
    """A kept connection turned out to be closed before it answered a byte: the request may be sent again."""


class Reply:
    """An answer whose head is here. Take the body by `pump` or `read`, once; `close` what you do not finish."""

    __slots__ = (
        "_connection",
        "_end_by",
        "_ended",
        "_error",
        "_held",
        "_held_size",
        "_hushed",
        "_lane",
        "_paused",
        "_pieces",
        "_read",
        "_said",
        "_said_at",
        "_seen",
        "_sink",
        "_timeouts",
        "_waiter",
        "bodiless",
        "fresh",
        "headers",
        "status",
    )

    def __init__(self, lane: Lane, timeouts: Timeouts, began: float, *, bodiless: bool) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.fresh = False  # bytes came since the last sweep
        self.bodiless = bodiless
        self._lane = lane
        self._timeouts = timeouts
        self._end_by = began + timeouts.total
        self._seen = began
        self._connection: Connection | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Callable[[bytes], None] | None = None
        self._held: list[bytes] = []
        self._held_size = 0
        self._paused = False
        self._read = False
        self._ended = False
        self._error: Exception | None = None
        self._pieces = 0  # of the body that came
        self._hushed: Callable[[], int] | None = None  # how many of them brought no content
        self._said, self._said_at = -1, 0.0  # pieces with content at the last sweep that found more, and when that was

    async def pump(self, on_bytes: Callable[[bytes], None], hushed: Callable[[], int] | None = None) -> None:
        """Hand every piece of the body to `on_bytes`, from the read callback; return at the body's own end.

        `hushed` tells how many of the pieces brought no content; without it all do.

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
                self._sink, self._hushed = on_bytes, hushed
                self._waiter = self._lane.loop.create_future()
                if not self._paused:
                    self._let_flow()
                await self._waiter
        except BaseException:
            self.close()
            raise
        finally:
            self._sink = self._hushed = None  # they know us, and all that was asked
        self._raise_error()

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
                raise TooLarge(f"{self._lane.name} answered more than {limit} bytes")
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
        self._let_flow()

    def end_within(self, seconds: float) -> None:
        """Wait no longer than that for the body's end."""
        self._end_by = min(self._end_by, monotonic() + seconds)

    def close(self) -> None:
        """Give the exchange up; an unfinished one closes its connection. May be called twice, and from `on_bytes`."""
        if not self._ended:
            self.fail(Reset(f"the exchange with {self._lane.name} was closed here before its end"))

    # What follows is for the connection, the client and the sweeper.

    async def ask(self, connection: Connection, payload: tuple[bytes, ...]) -> None:
        """Send the request and wait for the head. Raises as `open` does, and Stale."""
        self._connection, self._error = connection, None
        self._waiter = self._lane.loop.create_future()
        self._seen = monotonic()
        connection.send(self, payload, self._seen)
        await self._waiter
        if not self.status:
            self._raise_error()

    def answered(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self._wake()

    def take(self, body: bytes) -> None:
        sink = self._sink
        self._pieces += 1
        if sink is None:
            self._held.append(body)
            self._held_size += len(body)
            if self._connection is not None and self._held_size > HELD:
                self._connection.pause()
            return
        try:
            sink(body)
        except Exception as error:  # noqa: BLE001  whatever the reader raises belongs to whoever awaits `pump`
            self.fail(error)

    def finish(self) -> None:
        """The body came to its own end, and its connection is free already."""
        self._connection = None
        self._end()

    def stale(self, error: Stale) -> None:
        """The slot is kept: the client asks again."""
        self._connection, self._error = None, error
        self._wake()

    def fail(self, error: Exception) -> None:
        if self._ended:
            return
        self._error = error
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        self._end()

    def check(self, now: float) -> None:
        """Fail if a deadline has passed, unless what waits in the socket shows that it was met.

        A loop that was busy has not read yet what came meanwhile. Two turns later it has.
        """
        if self._late(now) is not None:
            loop = self._lane.loop
            loop.call_soon(loop.call_soon, self._judge)

    def _judge(self) -> None:
        if not self._ended and (late := self._late(monotonic())) is not None:
            self.fail(TimedOut(f"{self._lane.name} {late}"))

    def _late(self, now: float) -> str | None:
        """Which deadline has passed; None if none has."""
        timeouts = self._timeouts
        if now >= self._end_by:
            return f"was not done within {timeouts.total:g} s"
        if not self.status:
            if now >= self._seen + timeouts.head:
                return f"gave no answer within {timeouts.head:g} s"
            if now >= self._seen + timeouts.write and self._connection is not None and self._connection.writing:
                return f"did not take the request within {timeouts.write:g} s"
        elif self._is_silent(now):
            return f"sent no content, only signs of life, for {timeouts.silent:g} s"
        elif self.fresh or self._paused or (self._sink is None and self._held):
            self.fresh = False
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

    def _let_flow(self) -> None:
        if self._connection is not None and (self._sink is not None or not self._held):
            self._connection.resume()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._lane.live.discard(self)
        self._lane.leave()
        self._wake()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
