"""What streams to one client: a small buffer between the upstream's read callback and the client's socket.

    held ──release──> flowing ──end──> ended

Held output can still be dropped: nobody has seen it, and another attempt may answer instead. Silence releases it, since
a client that hears nothing for long goes away. Above `HIGH` bytes the upstream is paused, so that nothing grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from dragoman.gateway.exchange import Exchange
from dragoman.wire.http import Headers

HIGH = 256 * 1024
LOW = 64 * 1024
STALL = 60.0  # seconds that a client may read nothing at all


class Source(Protocol):
    """Where the bytes come from."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Outlet:
    def __init__(
        self,
        exchange: Exchange,
        headers: Callable[[], Headers],
        ping: Callable[[], bytes],
        *,
        silence: float,
        stall: float = STALL,
    ) -> None:
        self.flowing = False
        self.first_at: float | None = None
        self._exchange = exchange
        self._headers, self._ping = headers, ping
        self._silence, self._stall = silence, stall
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._pending: list[bytes] = []
        self._size = 0
        self._ended = False
        self._source: Source | None = None
        self._paused = False
        self._wrote_at = exchange.began
        self._writing_since: float | None = None
        self._timer = self._loop.call_at(self._wrote_at + silence, self._tick)

    # --- for the read callback

    def push(self, data: bytes) -> None:
        if not data:
            return
        self._pending.append(data)
        self._size += len(data)
        if self._size > HIGH and self._source is not None and not self._paused:
            self._paused = True
            self._source.pause()
        if self.flowing:
            self._wake.set()

    def release(self) -> None:
        """From now on the client sees it."""
        if not self.flowing:
            self.flowing = True
            self._wake.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self.release()
        self._wake.set()

    # --- for the relay

    def feed_from(self, source: Source) -> None:
        """A new attempt."""
        self._source, self._paused = source, False

    def drop(self) -> None:
        """The attempt failed: what is held of it is forgotten."""
        self._source = None
        if not self.flowing:
            self._pending.clear()
            self._size = 0

    async def run(self) -> None:
        """Write until the end. Raises Gone."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self.flowing and await self._write():
                    return
        finally:
            self._timer.cancel()

    async def _write(self) -> bool:
        """Write what is there; tell whether that was the end."""
        if not self._exchange.begun:
            await self._exchange.start(200, self._headers())
        last = self._ended
        data = b"".join(self._pending)
        self._pending.clear()
        self._size = 0
        if data or last:
            self._writing_since = self._loop.time()
            if self.first_at is None:
                self.first_at = self._writing_since
            await self._exchange.write(data, more=not last)
            self._writing_since, self._wrote_at = None, self._loop.time()
        if self._paused and self._size <= LOW and self._source is not None:
            self._paused = False
            self._source.resume()
        return last

    def _tick(self) -> None:
        now = self._loop.time()
        if self._writing_since is not None:
            if now - self._writing_since >= self._stall:
                self._exchange.leave()
                return
            self._again(min(now + self._silence, self._writing_since + self._stall))
            return
        due = self._wrote_at + self._silence
        if now >= due and not self._ended:
            ping = self._ping()
            if ping:
                self.release()
                self.push(ping)
            due = now + self._silence
        self._again(due)

    def _again(self, when: float) -> None:
        self._timer = self._loop.call_at(when, self._tick)
