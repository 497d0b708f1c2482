"""What to do about a failed attempt, as long as the client has not seen a byte of it. Pure.

One table by the kind of fault. `again` is the same way once more after a while, `key` another credential of the same
upstream, `target` the next target of the route, `tell` the end: the client steers by what the upstream said.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.errors import ClientFault, DragomanError, Kind, LocalMisuse, TimedOut, UpstreamFault

Step: TypeAlias = Literal["again", "key", "target", "tell"]

_BY_KIND: dict[Kind, Step] = {
    "invalid": "tell",
    "context_full": "tell",
    "too_large": "tell",
    "auth": "key",
    "permission": "key",
    "quota": "key",
    "rate_limit": "key",
    "not_found": "target",
    "overloaded": "again",
    "server": "again",
    "timeout": "target",  # it may have run, and would be paid twice; another service may be quicker
}


class Patience(Struct, frozen=True):
    """How often and how long. Waits double, with full jitter; a `retry-after` within `longest` is kept to."""

    retries: int = 2  # on one target
    least: float = 0.2
    most: float = 2.0
    longest: float = 10.0

    def wait(self, error: DragomanError, tries: int) -> float | None:
        """Seconds before the next try; None if the upstream wants more than we have."""
        said = error.fault.retry_after
        if said is not None:
            return max(said, self.least) if said <= self.longest else None
        return random.uniform(self.least, max(self.least, min(self.most, self.least * 2 ** (tries + 1))))


def next_step(error: DragomanError) -> Step:
    """What may mend this failure."""
    if isinstance(error, LocalMisuse):
        return "tell"
    if isinstance(error, TimedOut | ClientFault):  # what one target cannot be told, another may
        return "target"
    if isinstance(error, UpstreamFault):
        return _BY_KIND[error.fault.kind]
    # The network, or an upstream that broke its own dialect before it said anything.
    return "target" if error.fault.kind in ("overloaded", "timeout") else "again"


class Budget:
    """Keeps retries a small part of the traffic, so that they never add to the trouble that they answer."""

    def __init__(self, share: float = 0.2, always: int = 3, window: float = 10.0) -> None:
        self._share, self._always, self._window = share, always, window
        self._requests: deque[float] = deque()
        self._retries: deque[float] = deque()

    def request(self, now: float) -> None:
        self._requests.append(now)
        self._forget(now)

    def allows(self, now: float) -> bool:
        """Whether one more retry fits; it is counted if so."""
        self._forget(now)
        if len(self._retries) >= max(self._always, self._share * len(self._requests)):
            return False
        self._retries.append(now)
        return True

    def _forget(self, now: float) -> None:
        for times in (self._requests, self._retries):
            while times and times[0] < now - self._window:
                times.popleft()
