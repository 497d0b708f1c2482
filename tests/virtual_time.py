"""An event loop with virtual time: sleeping takes no real time, so a slow machine cannot change a test."""

from __future__ import annotations

import asyncio
from typing import Any


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when no callback is ready.

    It is for code that waits only for timers, never for sockets or threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0  # not 0, because some code uses 0 for "never"

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        loop: Any = self
        if not loop._ready and loop._scheduled:
            self._now = max(self._now, loop._scheduled[0]._when)
        super()._run_once()  # type: ignore[misc]
