"""An event loop whose clock stands still while there is work: waiting takes no time, and a busy machine is not late."""

from __future__ import annotations

import asyncio
from typing import Any


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """When nothing is left to do, its time is that of the next timer. For code that waits for nothing but timers."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0  # some code takes 0 for never

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        loop: Any = self
        if not loop._ready and loop._scheduled:
            self._now = max(self._now, loop._scheduled[0]._when)
        super()._run_once()  # type: ignore[misc]
