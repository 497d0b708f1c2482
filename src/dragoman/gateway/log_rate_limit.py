"""A limit of how many lines of one kind the log gets within some seconds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable


class LogRateLimit:
    """Allows `most` lines of each kind within `seconds`, and counts the rest. It tracks at most `kinds` kinds."""

    def __init__(self, most: int = 100, seconds: float = 10.0, kinds: int = 16) -> None:
        self.suppressed = 0
        self._most, self._seconds, self._kinds = most, seconds, kinds
        self._began = 0.0
        self._seen: dict[Hashable, int] = {}

    def allows(self, kind: Hashable, now: float, report: Callable[[Hashable, int], None]) -> bool:
        """Return whether one more line of this kind may be written.

        When a window has ended, `report` gets each kind with its number of suppressed lines.
        """
        if now - self._began >= self._seconds:
            self.start_window(now, report)
        if kind not in self._seen and len(self._seen) >= self._kinds:
            kind = None
        seen = self._seen[kind] = self._seen.get(kind, 0) + 1
        if seen <= self._most:
            return True
        self.suppressed += 1
        return False

    def start_window(self, now: float, report: Callable[[Hashable, int], None]) -> None:
        """Start a new window, and report the suppressed lines of the last one."""
        seen, self._seen, self._began = self._seen, {}, now
        for kind, count in seen.items():
            if count > self._most:
                report(kind, count - self._most)
