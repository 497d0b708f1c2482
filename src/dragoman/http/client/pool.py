"""One lane per upstream and credential: its kept connections, how many exchanges may run, and the queue before them.

A new connection is made only when none is idle, so there are never more connections than slots.

What is promised about a kept connection (S14): its answer was whole and nothing came with it or after it, up to the
moment at which the next request is written; one that received a byte before that is closed, and the request goes over
another. What HTTP/1.1 cannot tell: an answer that a peer sends after it was sent the next request, without having read
it, looks like the answer to that request. So a connection is used again only for the upstream and credential it was
made for, and a false answer can only come from the service that was asked, to a request with the same credential.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.errors import ConnectFailed, Fault

if TYPE_CHECKING:
    from dragoman.http.client.connection import Connection
    from dragoman.http.client.reply import Reply


class Full(Exception):
    """There was no slot; the text says why not."""


class Slots:
    """A FIFO semaphore with a bounded queue. Every `take` or `wait` that succeeded needs its `give`."""

    __slots__ = ("_most", "_most_waiting", "_queue", "active")

    def __init__(self, most: int, waiting: int) -> None:
        self.active = 0
        self._most, self._most_waiting = most, waiting
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def take(self) -> bool:
        """A slot, if there is one at once."""
        if self.active >= self._most:
            return False
        self.active += 1
        return True

    async def wait(self, seconds: float) -> None:
        """A slot, when it is our turn. Raises Full."""
        if len(self._queue) >= self._most_waiting:
            raise Full(f"and {self._most_waiting} wait" if self._most_waiting else "and none may wait")
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.give()  # it came in the moment we gave up
            elif turn in self._queue:
                self._queue.remove(turn)
            if isinstance(error, TimeoutError):
                raise Full(f"and none ended within {seconds:g} s") from None
            raise

    def give(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.active -= 1


class PoolLimits(Struct, frozen=True):
    """Caps, each for one lane."""

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
        self.loop = asyncio.get_running_loop()
        self._limits = limits
        self._idle: list[Connection] = []
        self._slots = Slots(limits.connections, limits.waiting)
        self._poll = select.poll() if hasattr(select, "poll") else None  # one for all: each has a table of its own
        self.take_slot, self.leave = self._slots.take, self._slots.give

    @property
    def state(self) -> LaneState:
        return LaneState(self.name, self._slots.active, len(self._idle), self._slots.waiting)

    async def wait(self, within: float) -> None:
        """Take a slot when it is our turn. Raises ConnectFailed of kind `overloaded`."""
        try:
            await self._slots.wait(min(within, self._limits.wait_seconds))
        except Full as full:
            message = f"{self.name} is busy: {self._limits.connections} requests are running, {full}"
            raise ConnectFailed(message, fault=Fault("overloaded", message, 503, retry_after=1.0)) from None

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
