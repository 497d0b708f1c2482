"""The buffer between an answer and a client that reads a stream, and the pings that keep a silent stream alive.

    held ──release──> flowing ──end──> ended

Held output can still be dropped: the client has not seen it, and another attempt may answer instead. It is released
when it was held for `hold` seconds, and by silence, since clients give up a connection that is silent for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

from dragoman.http.exchange import HIGH, Exchange, Source
from dragoman.wire.http import Headers

_BEAT, _BEATS = 0.25, 8  # seconds between two looks at a stream, or a part of its silence or hold if that is shorter
_LEAST_BEAT = 0.01


class ResponseBuffer:
    """The stream to one client. `ping` gives a frame without content; empty where the dialect has none."""

    __slots__ = (
        "_ended",
        "_exchange",
        "_headers",
        "_held",
        "_held_since",
        "_keep_alive",
        "_ping",
        "_size",
        "_source",
        "_wrote_at",
        "first_at",
        "flowing",
        "hold",
        "silence",
    )

    def __init__(
        self,
        exchange: Exchange[Any],
        headers: Headers,
        ping: Callable[[], bytes],
        *,
        silence: float,
        hold: float,
        keep_alive: KeepAlive,
    ) -> None:
        self.flowing = False
        self.first_at: float | None = None
        self.silence, self.hold = silence, hold
        self._exchange = exchange
        self._headers = headers
        self._ping: Callable[[], bytes] | None = ping
        self._held: list[bytes] = []
        self._size = 0
        self._ended = False
        self._source: Source | None = None
        self._wrote_at = exchange.began  # or as much as a beat later
        self._held_since = inf  # when the attempt was answered
        self._keep_alive = keep_alive
        keep_alive.add(self)
        exchange.sign = self._break_silence

    # --- for the read callback

    def push(self, data: bytes) -> None:
        """Write some bytes. While `flowing`, the caller may write to the exchange itself."""
        if not data:
            return
        if self.flowing:
            self._exchange.chunk(data)
            return
        self._held.append(data)
        self._size += len(data)
        if self._size > HIGH and self._source is not None:
            self._source.pause()  # until it is released or dropped

    def release(self) -> None:
        """Let the client see what is held and what follows."""
        if not self.flowing:
            self._begin()
            held = b"".join(self._held)
            self._held.clear()
            if held:
                self.push(held)
            else:
                self._exchange.flush()
            if self._size > HIGH and self._source is not None and not self._exchange.paused:
                self._source.resume()

    def end(self, data: bytes = b"") -> None:
        """Write the last bytes."""
        if self._ended:
            return
        self._ended = True
        self._keep_alive.buffers.discard(self)
        if not self.flowing:
            self._begin()
            data = b"".join([*self._held, data])
            self._held.clear()
        self._exchange.chunk(data, last=True)

    def close(self) -> None:
        """Stop pings. The stream is over, whether it was ended or not."""
        self._keep_alive.buffers.discard(self)
        self._exchange.sign = None
        self._ping = None  # it refers to its owner, which refers to this buffer: a cycle would wait for the collector

    # --- for the attempts

    def feed_from(self, source: Source) -> None:
        """An attempt was answered: `source` is paused when the client does not keep up."""
        self._source, self._held_since = source, monotonic()
        self._exchange.source = source
        if self._exchange.paused:
            source.pause()
        if not self.hold:
            self.release()

    @property
    def left(self) -> float:
        """Seconds until a ping lets the client see something."""
        return self._wrote_at + self.silence - monotonic()

    def drop(self) -> None:
        """Forget what is held of an attempt that failed."""
        self._source, self._held_since = None, inf
        self._exchange.source = None
        self._held.clear()
        self._size = 0

    def _begin(self) -> None:
        self.flowing = True
        self.first_at = monotonic()
        self._exchange.head(200, self._headers)

    # --- for KeepAlive

    def check(self, now: float) -> None:
        """Release what was held long enough; ping after a long silence."""
        exchange = self._exchange
        if not self.flowing and now >= self._held_since + self.hold:
            asyncio.get_running_loop().call_soon(self.release)
        elif exchange.wrote:
            exchange.wrote, self._wrote_at = False, now
        elif now >= self._wrote_at + self.silence:
            self._wrote_at = now
            asyncio.get_running_loop().call_soon(self._break_silence)  # an error in it must not reach the others

    def _break_silence(self) -> None:
        ping = b"" if self._ended or self._ping is None else self._ping()
        if ping and not self._exchange.paused:  # one that does not read needs no sign of life
            self.release()
            self.push(ping)


class KeepAlive:
    """Checks all buffers a few times within their silence, so that none needs a timer of its own."""

    def __init__(self) -> None:
        self.buffers: set[ResponseBuffer] = set()
        self._gap = _BEAT
        self._timer: asyncio.TimerHandle | None = None

    def add(self, buffer: ResponseBuffer) -> None:
        self.buffers.add(buffer)
        gap = min(self._gap, buffer.silence / _BEATS, (buffer.hold or buffer.silence) / _BEATS)
        self._gap = max(gap, _LEAST_BEAT)
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._gap, self._beat)

    def _beat(self) -> None:
        self._timer = None
        now = monotonic()
        for buffer in list(self.buffers):
            buffer.check(now)
        if self.buffers:
            self._wait()
