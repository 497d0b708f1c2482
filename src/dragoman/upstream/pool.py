"""One lane per origin: its kept connections, how many exchanges may run at once, and the short queue before it.

A slot changes hands: whoever ends gives it to the first who waits, so nobody overtakes. A new connection is made only
when none is idle, so there are never more connections than slots.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.errors import ConnectFailed, Fault

if TYPE_CHECKING:
    from dragoman.upstream.connection import Connection
    from dragoman.upstream.reply import Reply


class PoolLimits(Struct, frozen=True):
    """Caps, each for one origin (scheme, host, port, TLS settings and proxy)."""

    connections: int = 256
    idle: int = 64
    idle_seconds: float = 55.0  # under the 60 s and 75 s after which balancers and servers close by themselves
    waiting: int = 64
    wait_seconds: float = 5.0


class LaneState(Struct, frozen=True):
    """A look at one lane, for status and metrics."""

    origin: str
    active: int
    idle: int
    waiting: int


class Lane:
    def __init__(self, name: str, limits: PoolLimits) -> None:
        self.name = name
        self.connections: set[Connection] = set()
        self.live: set[Reply] = set()
        self._limits = limits
        self._idle: list[Connection] = []
        self._active = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._poll = select.poll() if hasattr(select, "poll") else None  # one for all: each has a table of its own

    @property
    def state(self) -> LaneState:
        return LaneState(self.name, self._active, len(self._idle), len(self._waiters))

    async def enter(self, within: float) -> None:
        """Take a slot, waiting for one if need be. Raises ConnectFailed of kind `overloaded`."""
        if self._active < self._limits.connections:
            self._active += 1
            return
        if len(self._waiters) >= self._limits.waiting:
            raise self._overloaded("and its queue is full")
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        seconds = min(within, self._limits.wait_seconds)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self.leave()  # the slot came in the moment we gave up
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            if isinstance(error, TimeoutError):
                raise self._overloaded(f"and none ended within {seconds:g} s") from None
            raise

    def leave(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._active -= 1

    def take(self) -> Connection | None:
        """Give the connection used last, if one is idle and still good."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable():
                return connection
            connection.abort()
        return None

    def quiet(self, descriptor: int) -> bool:
        """Whether there is nothing to read, as far as can be told."""
        poll = self._poll
        if poll is None:
            return True
        poll.register(descriptor, select.POLLIN)
        try:
            return not poll.poll(0)
        finally:
            poll.unregister(descriptor)

    def keep(self, connection: Connection) -> bool:
        """Keep a connection for the next exchange; False if there are enough."""
        if len(self._idle) >= self._limits.idle:
            return False
        self._idle.append(connection)
        return True

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now: float) -> bool:
        """End what is overdue; False when nothing is left to watch."""
        for reply in list(self.live):
            reply.check(now)
        oldest = now - self._limits.idle_seconds
        for connection in [each for each in self._idle if each.idle_since <= oldest]:
            self._idle.remove(connection)
            connection.abort()
        return bool(self.live or self._idle)

    def shut(self) -> None:
        for reply in list(self.live):
            reply.close()
        for connection in list(self.connections):
            connection.abort()

    def _overloaded(self, why: str) -> ConnectFailed:
        message = f"{self.name} is busy: {self._limits.connections} requests are running, {why}"
        return ConnectFailed(message, fault=Fault("overloaded", message, 503, retry_after=1.0))
