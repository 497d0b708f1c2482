"""So many at once: whoever finds no slot waits in a queue, and whoever ends gives his to the first of it."""

from __future__ import annotations

import asyncio
from collections import deque


class Full(Exception):
    """There was no slot; the text says why not."""


class Slots:
    """A slot changes hands, so nobody overtakes. Whoever `take`s or `wait`s must `give`."""

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
            raise Full(f"and {self._most_waiting} wait" if self._most_waiting else "and nobody may wait")
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
