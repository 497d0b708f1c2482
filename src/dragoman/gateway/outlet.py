"""What streams to one client: held until it may be seen, then written as it comes; and a ping where nothing comes.

    held ──release──> flowing ──end──> ended

Held output can still be dropped: nobody has seen it, and another attempt may answer instead. Silence releases it, since
a client that hears nothing for long goes away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dragoman.gateway.exchange import HIGH, Exchange, Source
from dragoman.wire.http import Headers


class Outlet:
    __slots__ = (
        "_ended",
        "_exchange",
        "_headers",
        "_held",
        "_loop",
        "_ping",
        "_silence",
        "_size",
        "_source",
        "_timer",
        "_wrote_at",
        "first_at",
        "flowing",
    )

    def __init__(
        self, exchange: Exchange, headers: Callable[[], Headers], ping: Callable[[], bytes], *, silence: float
    ) -> None:
        self.flowing = False
        self.first_at: float | None = None
        self._exchange = exchange
        self._headers, self._ping = headers, ping
        self._silence = silence
        self._loop = asyncio.get_running_loop()
        self._held: list[bytes] = []
        self._size = 0
        self._ended = False
        self._source: Source | None = None
        self._wrote_at = exchange.began
        self._timer = self._loop.call_at(self._wrote_at + silence, self._tick)

    # --- for the read callback

    def push(self, data: bytes) -> None:
        """Say something; nothing when there is nothing."""
        if not data:
            return
        if self.flowing:
            self._wrote_at = self._loop.time()
            self._exchange.chunk(data)
            return
        self._held.append(data)
        self._size += len(data)
        if self._size > HIGH and self._source is not None:
            self._source.pause()  # until it is released or dropped

    def release(self) -> None:
        """From now on the client sees it."""
        if not self.flowing:
            self._begin()
            held = b"".join(self._held)
            self._held.clear()
            if held:
                self.push(held)
            else:
                self._exchange.flush()
            if self._size > HIGH and self._source is not None and not self._exchange.paused:
                self._source.resume()

    def end(self, data: bytes = b"") -> None:
        """Say the last of it."""
        if self._ended:
            return
        self._ended = True
        self._timer.cancel()
        if not self.flowing:
            self._begin()
            data = b"".join([*self._held, data])
            self._held.clear()
        self._exchange.end(data)

    def close(self) -> None:
        """It is over, whether it was ended or not."""
        self._timer.cancel()
        self._headers, self._ping = tuple, bytes  # who holds us need not be held by us until the next collection

    # --- for the attempts

    def feed_from(self, source: Source) -> None:
        """A new attempt."""
        self._source = source
        self._exchange.feed_from(source)

    @property
    def left(self) -> float:
        """Seconds until silence lets the client see something."""
        return self._wrote_at + self._silence - self._loop.time()

    def drop(self) -> None:
        """The attempt failed: what is held of it is forgotten."""
        self._source = None
        self._exchange.feed_from(None)
        self._held.clear()
        self._size = 0

    def _begin(self) -> None:
        self.flowing = True
        self.first_at = self._loop.time()
        self._exchange.head(200, self._headers())

    def _tick(self) -> None:
        now = self._loop.time()
        due = self._wrote_at + self._silence
        if now >= due:
            ping = self._ping()
            if ping and not self._exchange.paused:  # one that does not read needs no sign of life
                self.release()
                self.push(ping)
            due = now + self._silence
        self._timer = self._loop.call_at(due, self._tick)
