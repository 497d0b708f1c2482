"""Logs when an upstream or a credential begins a cooldown, why and for how long, and when the cooldown ends."""

from __future__ import annotations

import time
from collections.abc import Hashable

from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.breaker import CircuitBreaker, Cooldown
from dragoman.gateway.log_rate_limit import LogRateLimit
from dragoman.wire.jsonio import Json

_MOST, _SECONDS = 20, 10.0  # most lines of one upstream within these seconds; clients may send any model name


class CooldownLog:
    """Writes the lines of one breaker. A flood of them becomes one line with a count."""

    def __init__(self, log: AccessLog, breaker: CircuitBreaker) -> None:
        self._log, self._breaker = log, breaker
        self._rate_limit = LogRateLimit(_MOST, _SECONDS)
        breaker.on_begin, breaker.on_end = self._began, self._ended

    def _began(self, cooldown: Cooldown) -> None:
        if not self._allows(cooldown):
            return
        seconds = max((cooldown.until if cooldown.cooling else cooldown.probe_at) - self._breaker.clock(), 0.0)
        what = (
            f"gets no requests for {seconds:.0f} s" if cooldown.cooling else f"gets a test request in {seconds:.0f} s"
        )
        message = f"{_scope(cooldown)} {what}, because of {cooldown.kind}: {cooldown.why}"
        fields = _fields(cooldown) | {"kind": cooldown.kind, "seconds": round(seconds, 1), "why": cooldown.why}
        self._log.event("warning", "cooldown", message=message, **fields)

    def _ended(self, cooldown: Cooldown, why: str) -> None:
        if self._allows(cooldown):
            message = f"{_scope(cooldown)} gets requests again: {why}"
            self._log.event("info", "cooldown_ended", message=message, **_fields(cooldown), why=why)

    def _allows(self, cooldown: Cooldown) -> bool:
        return self._rate_limit.allows(cooldown.scope.upstream, time.monotonic(), self._suppressed)

    def _suppressed(self, upstream: Hashable, count: int) -> None:
        self._log.event("info", "suppressed", what="cooldowns", upstream=str(upstream), lines=count)


def _scope(cooldown: Cooldown) -> str:
    scope = cooldown.scope
    return f"{scope.upstream} ({', '.join(filter(None, (scope.credential, scope.family or 'all models')))})"


def _fields(cooldown: Cooldown) -> dict[str, Json]:
    scope = cooldown.scope
    return {"upstream": scope.upstream, "credential": scope.credential, "models": scope.family or None}
