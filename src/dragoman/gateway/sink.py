"""Where log lines go: written at once if that cannot block, else they wait in a small queue, else they are counted.

A log reader that stops reading must not stop a stream. A write of at most 4096 bytes to what `poll` calls writable does
not block, so no thread is needed. A busy log is written fifty times a second: what comes between is written in one go.
Lines about requests that were refused are capped: a storm of them is one line.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TextIO

_SAFE_BYTES = 4096  # PIPE_BUF: so much a pipe takes whole if it takes anything
_MOST_WAITING = 1024 * 1024  # bytes
_AGAIN = 0.1  # seconds
_GATHER = 0.02  # seconds after a line in which others are gathered


class Sink:
    """Never blocks and never fails."""

    def __init__(self, stream: TextIO) -> None:
        self.dropped = 0
        self._stream = stream
        self._handle = _handle(stream)
        self._poll = _poll(self._handle)
        self._fresh: list[bytes] = []  # lines as they came
        self._waiting: deque[bytes] = deque()  # many of them
        self._size = 0  # of both
        self._timer: asyncio.TimerHandle | None = None
        self._untold = 0  # of those dropped

    def write(self, line: bytes) -> None:
        """Write the line, with its end. It is written as it is, secrets and all."""
        if self._handle is None:
            self._plain(line.decode())
            return
        size = len(line) + 1
        if self._size + size > _MOST_WAITING:
            self._drop()
            return
        self._fresh.append(line)
        self._size += size
        if self._timer is None:
            self.drain()

    def drain(self) -> bool:
        """Write what waits, as far as it goes; tell whether nothing waits any more."""
        if self._fresh:
            self._waiting.append(b"\n".join([*self._fresh, b""]))
            self._fresh.clear()
        while self._waiting:
            data = self._waiting[0]
            sent = self._some(data[:_SAFE_BYTES])
            if not sent:
                self._later(_AGAIN)
                return False
            self._size -= sent
            if sent < len(data):
                self._waiting[0] = data[sent:]
            else:
                self._waiting.popleft()
        self._later(_GATHER)
        return True

    @property
    def untold(self) -> int:
        """Lines dropped since this was last asked, once there is room to tell."""
        if not self._untold or self._size > _MOST_WAITING // 2:
            return 0
        told, self._untold = self._untold, 0
        return told

    def _some(self, data: bytes) -> int:
        try:
            if self._poll is not None and not self._poll.poll(0):
                return 0
            return os.write(self._handle or 0, data)
        except BlockingIOError:
            return 0
        except (OSError, ValueError):  # nobody will ever read it, nor that it is missing
            self.dropped += data.count(b"\n")
            return len(data)

    def _plain(self, line: str) -> None:
        try:
            self._stream.write(f"{line}\n")
            self._stream.flush()
        except (OSError, ValueError):
            self.dropped += 1

    def _drop(self) -> None:
        self.dropped += 1
        self._untold += 1

    def _later(self, seconds: float) -> None:
        if self._timer is None:
            with suppress(RuntimeError):  # no loop: the next line is written, or tried, at once
                self._timer = asyncio.get_running_loop().call_later(seconds, self._try)

    def _try(self) -> None:
        self._timer = None
        if self._size:
            self.drain()


class Cap:
    """So many of a kind within so many seconds; the rest is counted and told in one go."""

    def __init__(self, most: int = 100, seconds: float = 10.0, kinds: int = 16) -> None:
        self.suppressed = 0
        self._most, self._seconds, self._kinds = most, seconds, kinds
        self._began = 0.0
        self._seen: dict[Hashable, int] = {}

    def allows(self, kind: Hashable, now: float, tell: Callable[[Hashable, int], None]) -> bool:
        """Whether one more of this kind may be written. `tell` hears of those of the last span that were not."""
        if now - self._began >= self._seconds:
            self.turn(now, tell)
        if kind not in self._seen and len(self._seen) >= self._kinds:
            kind = None
        seen = self._seen[kind] = self._seen.get(kind, 0) + 1
        if seen <= self._most:
            return True
        self.suppressed += 1
        return False

    def turn(self, now: float, tell: Callable[[Hashable, int], None]) -> None:
        """Begin another span."""
        seen, self._seen, self._began = self._seen, {}, now
        for kind, count in seen.items():
            if count > self._most:
                tell(kind, count - self._most)


def _handle(stream: TextIO) -> int | None:
    """The descriptor behind a stream; None for one that only is in memory."""
    try:
        stream.flush()
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _poll(handle: int | None) -> select.poll | None:
    if handle is None or not hasattr(select, "poll"):
        return None
    poll = select.poll()
    poll.register(handle, select.POLLOUT)
    return poll
