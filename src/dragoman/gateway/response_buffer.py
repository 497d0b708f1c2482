"""The buffer between a response stream and its client, and the pings that keep a silent stream alive.

    buffered ──release──> released ──end──> ended

Buffered output can still be discarded: the client has not received it, and another attempt may take its place. It is
released after `hold` seconds, and by the first ping, because clients close a connection that is silent for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

from msgspec import Struct

from dragoman.http.exchange import HIGH_WATER, Exchange, PausableSource
from dragoman.wire.http import Headers

_CHECK_SECONDS = 0.25  # between two checks, if `silence` and `hold` are long
_CHECKS = 8  # at least, within a shorter `silence` or `hold`
_MIN_CHECK_SECONDS = 0.01


class ResponseBuffer(Struct, eq=False):
    """The stream to one client. `ping` returns a frame without content; empty if the dialect has none."""

    exchange: Exchange[Any]
    headers: Headers
    ping: Callable[[], bytes] | None
    silence: float
    hold: float
    keep_alive: KeepAlive
    is_released: bool = False
    first_at: float | None = None
    is_ended: bool = False
    chunks: list[bytes] = []
    size: int = 0
    source: PausableSource | None = None
    wrote_at: float = 0.0  # accurate to one check
    began_at: float = inf  # when the response of the attempt began

    # --- for the read callback

    def push(self, data: bytes) -> None:
        """Write some bytes. After `release`, the caller may write to the exchange itself."""
        if not data:
            return
        if self.is_released:
            self.exchange.chunk(data)
            return
        self.chunks.append(data)
        self.size += len(data)
        if self.size > HIGH_WATER and self.source is not None:
            self.source.pause()  # until `release` or `discard`

    def release(self) -> None:
        """Send the buffered output; further output is sent at once."""
        if not self.is_released:
            output = self._begin()
            if output:
                self.exchange.chunk(output)
            else:
                self.exchange.flush()
            if self.size > HIGH_WATER and self.source is not None and not self.exchange.paused:
                self.source.resume()

    def end(self, data: bytes = b"") -> None:
        """Write the last bytes."""
        if self.is_ended:
            return
        self.is_ended = True
        self.keep_alive.buffers.discard(self)
        if not self.is_released:
            data = self._begin() + data
        self.exchange.chunk(data, last=True)

    def close(self) -> None:
        """Stop the pings, whether the stream was ended or not."""
        self.keep_alive.buffers.discard(self)
        self.exchange.send_keep_alive = None
        self.ping = None  # breaks a reference cycle: `ping` refers to the owner of this buffer

    # --- for the attempts

    def feed_from(self, source: PausableSource) -> None:
        """Begin to buffer the response of an attempt; `source` is paused when the client reads too slowly."""
        self.source, self.began_at = source, monotonic()
        self.exchange.source = source
        if self.exchange.paused:
            source.pause()
        if not self.hold:
            self.release()

    @property
    def seconds_to_ping(self) -> float:
        """Seconds until the next ping, which releases the buffer."""
        return self.wrote_at + self.silence - monotonic()

    def discard(self) -> None:
        """Discard the buffered output of an attempt that failed."""
        self.source, self.began_at = None, inf
        self.exchange.source = None
        self.chunks.clear()
        self.size = 0

    def _begin(self) -> bytes:
        """Send the head. Return the buffered output."""
        self.is_released, self.first_at = True, monotonic()
        self.exchange.head(200, self.headers)
        output = b"".join(self.chunks)
        self.chunks.clear()
        return output

    # --- for KeepAlive

    def check(self, now: float) -> None:
        """Release the buffer after `hold` seconds; ping after `silence` seconds without output."""
        exchange = self.exchange
        if not self.is_released and now >= self.began_at + self.hold:
            asyncio.get_running_loop().call_soon(self.release)
        elif exchange.has_written:
            exchange.has_written, self.wrote_at = False, now
        elif now >= self.wrote_at + self.silence:
            self.wrote_at = now
            asyncio.get_running_loop().call_soon(self.break_silence)  # An error in it must not affect other buffers.

    def break_silence(self) -> None:
        """Send a ping, unless the client does not read."""
        ping = b"" if self.is_ended or self.ping is None else self.ping()
        if ping and not self.exchange.paused:
            self.release()
            self.push(ping)


class KeepAlive:
    """Checks all buffers with one timer, a few times within their `silence`."""

    def __init__(self) -> None:
        self.buffers: set[ResponseBuffer] = set()
        self._gap = _CHECK_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def add(self, buffer: ResponseBuffer) -> None:
        """Watch a buffer; its silence began with its request."""
        buffer.wrote_at, buffer.exchange.send_keep_alive = buffer.exchange.began, buffer.break_silence
        self.buffers.add(buffer)
        gap = min(self._gap, buffer.silence / _CHECKS, (buffer.hold or buffer.silence) / _CHECKS)
        self._gap = max(gap, _MIN_CHECK_SECONDS)
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._gap, self._check)

    def _check(self) -> None:
        self._timer = None
        now = monotonic()
        for buffer in list(self.buffers):
            buffer.check(now)
        if self.buffers:
            self._wait()
