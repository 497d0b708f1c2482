"""What is freed stays ours between two requests, and goes back to the system after a burst of large or many ones.

By itself glibc gives the heap's end back whenever 128 KiB of it are free, and every answer of that size asks for it
again: each page is made empty once more. After a burst, on the other hand, it would keep what lies further inside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from dragoman.gateway.limits import MemoryBudget

_WORTH = 4 * 1024 * 1024  # bytes of requests at once: what fewer leave behind is reused soon
_EACH = 16 * 1024  # bytes that a request takes beside what it says
_REST = 5.0  # seconds: a trim looks through all that is free, which takes a few ms
_KEPT = 1024 * 1024 * 1024  # bytes at the heap's end that are not given back by the way: we do it ourselves
_APART = 32 * 1024 * 1024  # bytes of one thing that gets memory of its own, and gives it back at once
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt


class Trimmer:
    def __init__(self, load: MemoryBudget, trim: Callable[[], None] | None = None) -> None:
        self._load = load
        self._trim = trim or _trim
        self._not_before = 0.0
        self._kept = False

    def look(self, now: float) -> None:
        """Trim if a burst is over; called by the sweeper."""
        if not self._kept:
            self._kept = True
            _keep()  # not before the first answers: it takes longer than they may wait
        load = self._load
        worth, held = load.peak + load.most * _EACH, load.bytes + load.requests * _EACH
        if worth < _WORTH or held > worth // 2 or now < self._not_before:
            return
        load.peak, load.most = load.bytes, load.requests
        self._not_before = now + _REST
        self._trim()


def _keep() -> None:
    _call("mallopt", _M_TRIM_THRESHOLD, _KEPT)
    _call("mallopt", _M_MMAP_THRESHOLD, _APART)


def _trim() -> None:
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415  not while we start

        try:
            getattr(ctypes.CDLL(None), name)(*arguments)
        except (AttributeError, OSError):  # not glibc
            return
