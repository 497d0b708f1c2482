"""Gives the system back what large requests took: glibc would keep it, freed, for the next ones."""

from __future__ import annotations

import sys
from collections.abc import Callable

from dragoman.gateway.limits import Load

_WORTH = 4 * 1024 * 1024  # bytes of requests at once: what fewer leave behind is reused soon
_REST = 5.0  # seconds: a trim looks through all that is free, which takes a few ms


class Trimmer:
    def __init__(self, load: Load, trim: Callable[[], None] | None = None) -> None:
        self._load = load
        self._trim = trim or _trim
        self._not_before = 0.0

    def look(self, now: float) -> None:
        """Trim if a burst is over; called by the sweeper."""
        load = self._load
        if load.peak < _WORTH or load.bytes > load.peak // 2 or now < self._not_before:
            return
        load.peak = load.bytes
        self._not_before = now + _REST
        self._trim()


def _trim() -> None:
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415  few ever need it

        try:
            ctypes.CDLL(None).malloc_trim(0)
        except (AttributeError, OSError):  # not glibc
            return
