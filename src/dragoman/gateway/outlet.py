"""What streams to one client: held until it may be seen, then written as it comes; and a ping where nothing comes.

    held ──release──> flowing ──end──> ended

Held output can still be dropped: nobody has seen it, and another attempt may answer instead. It is released when it
was held so long that it is no refusal of the question any more; and by silence, since a client that hears nothing for
long goes away.
"""

from __future__ import annotations

import asyncio
from math import inf
from time import monotonic
from typing import Protocol

from dragoman.gateway.exchange import Exchange
from dragoman.http.exchange import HIGH, Source
from dragoman.wire.http import Headers

_BEAT, _BEATS = 0.25, 8  # seconds between two looks at a stream, or a part of its silence or hold if that is shorter
_LEAST_BEAT = 0.01


class Voice(Protocol):
    """Who speaks through an outlet."""

    def headers(self) -> Headers: ...
    def ping(self) -> bytes:
        """What says nothing; empty where there is no such thing."""


class Outlet:
    __slots__ = (
        "_ended",
        "_exchange",
        "_held",
        "_held_since",
        "_pulse",
        "_size",
        "_source",
        "_voice",
        "_wrote_at",
        "first_at",
        "flowing",
        "hold",
        "silence",
    )

    def __init__(self, exchange: Exchange, voice: Voice, *, silence: float, hold: float, pulse: Pulse) -> None:
        self.flowing = False
        self.first_at: float | None = None
        self.silence, self.hold = silence, hold
        self._exchange = exchange
        self._voice: Voice | None = voice
        self._held: list[bytes] = []
        self._size = 0
        self._ended = False
        self._source: Source | None = None
        self._wrote_at = exchange.began  # or as much as a beat later
        self._held_since = inf  # when the attempt was answered
        self._pulse = pulse
        pulse.add(self)
        exchange.sign = self._break_silence

    # --- for the read callback

    def push(self, data: bytes) -> None:
        """Say something; nothing when there is nothing. Whoever knows that it flows may tell the exchange itself."""
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
        """From now on the client sees it."""
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
        """Say the last of it."""
        if self._ended:
            return
        self._ended = True
        self._pulse.discard(self)
        if not self.flowing:
            self._begin()
            data = b"".join([*self._held, data])
            self._held.clear()
        self._exchange.end(data)

    def close(self) -> None:
        """It is over, whether it was ended or not."""
        self._pulse.discard(self)
        self._exchange.sign = None
        self._voice = None  # who holds us need not be held by us until the next collection

    # --- for the attempts

    def feed_from(self, source: Source) -> None:
        """A new attempt was answered."""
        self._source, self._held_since = source, monotonic()
        self._exchange.feed_from(source)
        if not self.hold:
            self.release()

    @property
    def left(self) -> float:
        """Seconds until silence lets the client see something."""
        return self._wrote_at + self.silence - monotonic()

    def drop(self) -> None:
        """The attempt failed: what is held of it is forgotten."""
        self._source, self._held_since = None, inf
        self._exchange.feed_from(None)
        self._held.clear()
        self._size = 0

    def _begin(self) -> None:
        self.flowing = True
        self.first_at = monotonic()
        self._exchange.head(200, self._voice.headers() if self._voice else ())

    # --- for the pulse

    def check(self, now: float) -> None:
        """See whether something was held, or silence has lasted, long enough."""
        exchange = self._exchange
        if not self.flowing and now >= self._held_since + self.hold:
            asyncio.get_running_loop().call_soon(self.release)
        elif exchange.wrote:
            exchange.wrote, self._wrote_at = False, now
        elif now >= self._wrote_at + self.silence:
            self._wrote_at = now
            asyncio.get_running_loop().call_soon(self._break_silence)  # by itself, so that others are not its affair

    def _break_silence(self) -> None:
        ping = b"" if self._ended or self._voice is None else self._voice.ping()
        if ping and not self._exchange.paused:  # one that does not read needs no sign of life
            self.release()
            self.push(ping)


class Pulse:
    """Looks after all outlets a few times within their silence: none needs a timer, nor to look at the clock."""

    def __init__(self) -> None:
        self._outlets: set[Outlet] = set()
        self._gap = _BEAT
        self._timer: asyncio.TimerHandle | None = None

    def add(self, outlet: Outlet) -> None:
        self._outlets.add(outlet)
        gap = min(self._gap, outlet.silence / _BEATS, (outlet.hold or outlet.silence) / _BEATS)
        self._gap = max(gap, _LEAST_BEAT)
        if self._timer is None:
            self._wait()

    def discard(self, outlet: Outlet) -> None:
        self._outlets.discard(outlet)

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._gap, self._beat)

    def _beat(self) -> None:
        self._timer = None
        now = monotonic()
        for outlet in list(self._outlets):
            outlet.check(now)
        if self._outlets:
            self._wait()
