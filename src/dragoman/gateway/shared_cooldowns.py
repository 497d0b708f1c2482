"""Cooldowns that the processes of one gateway share: an event for each change, and the later event of a scope wins.

Events are applied in any order and any number of times with the same result, so a lost or repeated one does no harm.
An end counts from the start of the request that succeeded: it does not end a cooldown that began after that. Times are
those of the system's monotonic clock, which all processes of a machine read alike.

When a process sends a probe, the others wait with theirs, for as long as a first probe waits. Two processes that begin
a probe within the milliseconds that an event takes both send one.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable

from msgspec import Struct

from dragoman.gateway.breaker import MAX_SCOPES, CircuitBreaker, Cooldown, CooldownScope

_MAX_EVENTS = 2 * MAX_SCOPES


class CooldownState(Struct, frozen=True):
    """A cooldown, as other processes need it. `until` is None for an open breaker."""

    kind: str
    why: str
    since: float
    until: float | None
    probe_at: float
    wait: float


class CooldownEvent(Struct, frozen=True, omit_defaults=True):
    """The state of a scope from a time on. Without a state, its cooldown has ended.

    Without a credential, all cooldowns of the upstream have ended, and without an upstream all cooldowns.
    """

    at: float
    upstream: str = ""
    credential: str = ""
    family: str = ""
    state: CooldownState | None = None

    @property
    def scope(self) -> CooldownScope:
        """The scope that it is about."""
        return CooldownScope(self.upstream, self.credential, self.family)


class SharedCooldowns:
    """The events of one breaker and those that other processes report. `post` sends an event to the others."""

    def __init__(self, breaker: CircuitBreaker, post: Callable[[CooldownEvent], None]) -> None:
        self._breaker, self._post = breaker, post
        self._latest: OrderedDict[CooldownScope, CooldownEvent] = OrderedDict()  # the last event of each scope
        breaker.on_change = self._changed

    def events(self) -> list[CooldownEvent]:
        """Return the last event of each scope, for a process that may not have all of them."""
        breaker = self._breaker
        now = breaker.clock()
        unreported = [
            _event(each.since, each, each.probe_at)
            for scope, each in breaker.cooldowns.items()
            if scope not in self._latest
        ]
        return [*unreported, *(each for each in self._latest.values() if not _is_over(each, now))]

    def apply(self, events: Iterable[CooldownEvent]) -> None:
        """Apply events of another process, unless a later one is known."""
        for event in events:
            if not self._is_newer(event):
                continue
            self._remember(event)
            scope, state = event.scope, event.state
            if state is None:
                for each in [each for each in self._breaker.cooldowns if _includes(scope, each)]:
                    if self._time_of(each) <= event.at:
                        self._breaker.drop(each)
            elif not _is_over(event, self._breaker.clock()):
                self._breaker.adopt(_cooldown(scope, state))

    def _changed(self, scope: CooldownScope, at: float, cooldown: Cooldown | None) -> None:
        """Report a change of this process."""
        if cooldown is None:
            # The cooldown that ended may have been updated since the request began that ended it.
            known = self._latest.get(scope)
            event = CooldownEvent(at if known is None else max(at, known.at), *scope)
        else:
            next_probe = cooldown.probe_at
            if cooldown.probing:
                next_probe = max(next_probe, at + self._breaker.settings.first_probe)
            event = _event(at, cooldown, next_probe)
        self._remember(event)
        self._post(event)

    def _remember(self, event: CooldownEvent) -> None:
        self._latest[event.scope] = event
        self._latest.move_to_end(event.scope)
        while len(self._latest) > _MAX_EVENTS:
            self._latest.popitem(last=False)

    def _is_newer(self, event: CooldownEvent) -> bool:
        """Return whether no later event is known. Of two events of one time, the end counts."""
        scope = event.scope
        wider = (self._latest.get(CooldownScope(scope.upstream, "")), self._latest.get(CooldownScope("", "")))
        known = max(self._time_of(scope), *(each.at for each in wider if each is not None), -math.inf)
        is_end = event.state is None and scope in self._breaker.cooldowns
        return event.at > known or (event.at == known and is_end)

    def _time_of(self, scope: CooldownScope) -> float:
        """Return the time of the last change of a scope."""
        if (known := self._latest.get(scope)) is not None:
            return known.at
        cooldown = self._breaker.cooldowns.get(scope)  # restored from disk
        return -math.inf if cooldown is None else cooldown.since


def _event(at: float, cooldown: Cooldown, probe_at: float) -> CooldownEvent:
    until = cooldown.until if cooldown.cooling else None
    state = CooldownState(cooldown.kind, cooldown.why, cooldown.since, until, probe_at, cooldown.wait)
    return CooldownEvent(at, *cooldown.scope, state)


def _cooldown(scope: CooldownScope, state: CooldownState) -> Cooldown:
    cooldown = Cooldown(scope, state.kind, state.why, state.since)
    cooldown.until = math.inf if state.until is None else state.until
    cooldown.probe_at, cooldown.wait = state.probe_at, state.wait
    return cooldown


def _is_over(event: CooldownEvent, now: float) -> bool:
    return event.state is not None and event.state.until is not None and event.state.until <= now


def _includes(scope: CooldownScope, other: CooldownScope) -> bool:
    if not scope.credential:
        return scope.upstream in ("", other.upstream)
    return scope == other
