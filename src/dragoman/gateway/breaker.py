"""Circuit breaker and cooldowns: one mechanism for upstreams that fail and for those that request a pause.

    closed ──5 failures in a row, or more than half of 20 within 30 s──> open ──a probe after 5, 10 … 120 s──> closed
      └──rate limit, quota, refused credential──> cooling ──its time is over, or a probe succeeded──> closed

Both are a `Cooldown` of a scope: an upstream, one of its credentials, and a family of models or all of them. The time
that an upstream names is a hint: during the cooldown one request per five minutes is sent as a probe, and a probe that
succeeds ends the cooldown. `attempts` calls `enter` before each request. `cooldown_file` saves cooldowns on disk, and
`shared_cooldowns` shares them with other processes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from dragoman.errors import REQUEST_ERROR_KINDS, ClientFault, ConnectFailed, DragomanError, ErrorKind, Fault
from dragoman.gateway.model_names import model_family
from dragoman.wire.jsonio import Json

MAX_SCOPES = 512  # Clients may send any model name, so the number of scopes must be bounded.
_LONGEST_WHY = 300  # characters
_EARLY = 0.01  # seconds; timers fire a little early, so a wait of the reported time must be enough


class BreakerSettings(Struct, frozen=True):
    """The thresholds and times of the circuit breaker. Times are in seconds."""

    failures: int = 5  # in a row
    share: float = 0.5  # of failures among at least `least` requests within `window`
    least: int = 20
    window: float = 30.0
    first_probe: float = 5.0  # doubles after each probe that fails
    last_probe: float = 120.0
    cooling_probe: float = 300.0
    longest: float = 24 * 3600.0  # of a cooldown


class CooldownScope(NamedTuple):
    """The scope of a cooldown. Without a family: all models of that credential."""

    upstream: str
    credential: str
    family: str = ""


class _Rule(Struct, frozen=True):
    """The cooldown after a kind of refusal. Without `usual`, there is one only if the upstream names a time."""

    whole: bool = False  # for all models of the credential
    usual: float | None = None  # seconds if the upstream names no time


_COOLDOWN_RULES: dict[ErrorKind, _Rule] = {
    "rate_limit": _Rule(),
    "overloaded": _Rule(),
    "permission": _Rule(usual=60.0),
    "quota": _Rule(whole=True, usual=300.0),
    "auth": _Rule(whole=True, usual=15.0),
}
# These errors end after a short wait, so a request without another target may wait; others are refused at once.
_SHORT: frozenset[str] = frozenset({"rate_limit", "overloaded"})
# The error for the client during such a cooldown. With `overloaded` instead, its SDK would retry in vain.
_LASTING: dict[str, tuple[ErrorKind, int]] = {
    "auth": ("auth", 401),
    "permission": ("permission", 403),
    "quota": ("quota", 429),
}


class CooldownActive(ConnectFailed):
    """The request was not sent, because the upstream is in cooldown. `cause` is the kind of error that began it.

    `hinted`: the upstream requested a pause, which a request without another target may wait for.
    """

    def __init__(self, message: str, ready: float, *, hinted: bool, cause: str = "overloaded") -> None:
        kind, status = _LASTING.get(cause, ("overloaded", 503))
        wait = None if kind in ("auth", "permission") else ready
        super().__init__(message, fault=Fault(kind, message, status, retry_after=wait))
        self.seconds_left = ready
        self.is_hinted = hinted


class SavedCooldown(Struct, frozen=True):
    """A cooldown as it is saved on disk. Times are seconds since the epoch."""

    upstream: str
    credential: str
    family: str
    kind: str
    why: str
    since: float
    until: float


class Cooldown:
    """One scope that gets no requests but probes. `until` is infinite for an open breaker: only a probe ends it."""

    __slots__ = ("is_own", "kind", "probe_at", "probing", "scope", "since", "until", "wait", "why")

    def __init__(self, scope: CooldownScope, kind: str, why: str, since: float) -> None:
        self.scope, self.kind, self.why, self.since = scope, kind, why, since
        self.until = self.probe_at = math.inf
        self.wait = 0.0
        self.probing = False
        self.is_own = True  # this process began it; False: another one did, and has logged it

    @property
    def cooling(self) -> bool:
        """Whether this is a pause with an end, not an open breaker."""
        return self.until != math.inf

    def ready(self, now: float) -> float:
        """Return the seconds until the next request may be sent; 1 while a probe is running."""
        if self.is_over(now):
            return 0.0
        left = self.probe_at - now
        return 1.0 if self.probing else left if left > _EARLY else 0.0

    def is_over(self, now: float) -> bool:
        """Return whether the time of the cooldown has passed."""
        return now >= self.until - _EARLY


class WindowCounter:
    """Counts two kinds of events within a sliding window. It stores two counts per step of time, not each event."""

    __slots__ = ("_step", "_steps", "_window", "counts")

    def __init__(self, window: float, step: float) -> None:
        self.counts = [0, 0]
        self._step, self._window = step, round(window / step)
        self._steps: deque[tuple[int, list[int]]] = deque()  # the number of the step, and its two counts

    def add(self, now: float, kind: int) -> None:
        """Count one event of kind 0 or 1."""
        step, steps = int(now / self._step), self._steps
        if not steps or steps[-1][0] != step:
            self.forget(now)
            steps.append((step, [0, 0]))
        steps[-1][1][kind] += 1
        self.counts[kind] += 1

    def forget(self, now: float) -> None:
        """Remove counts that are older than the window."""
        first, steps = int(now / self._step) - self._window, self._steps
        while steps and steps[0][0] <= first:
            _, old = steps.popleft()
            self.counts = [self.counts[0] - old[0], self.counts[1] - old[1]]


_OK, _FAILED = 0, 1  # kinds of `WindowCounter`


class _Counts(Struct):
    """Successes and failures of a scope."""

    recent: WindowCounter
    row: int = 0  # failures in a row

    def opens_breaker(self, settings: BreakerSettings) -> bool:
        succeeded, failed = self.recent.counts
        total = succeeded + failed
        return (total >= settings.least and failed > settings.share * total) or self.row >= settings.failures


class Permit(Struct):
    """The permission for one attempt. Report its result, then `close` it, so that another probe may follow a probe."""

    breaker: CircuitBreaker | None
    scope: CooldownScope
    since: float
    probes: tuple[Cooldown, ...]

    def report_accepted(self) -> None:
        """Report that the upstream has begun to respond: cooldowns that began before this attempt end."""
        if self.breaker is not None:
            self.breaker.end_cooldowns(self.scope, self.since)

    def report_succeeded(self) -> None:
        """Report success."""
        if (breaker := self.breaker) is None:
            return
        if breaker.cooldowns:
            breaker.end_cooldowns(self.scope, self.since)
        counts = breaker.counts.get(self.scope) or breaker.count(self.scope)
        counts.row = 0
        counts.recent.add(breaker.clock(), _OK)

    def report_failed(self, error: DragomanError) -> None:
        """Report an error; errors of the client are ignored."""
        if self.breaker is not None and not isinstance(error, ClientFault):
            self.breaker.note_failure(self.scope, self.since, error)

    def close(self) -> None:
        """End the attempt."""
        for cooldown in self.probes:
            cooldown.probing = False
        self.probes = ()


def _ignore_begin(cooldown: Cooldown) -> None:
    """Ignore that a cooldown begins."""


def _ignore_end(cooldown: Cooldown, why: str) -> None:
    """Ignore that a cooldown ends."""


def _ignore_change(scope: CooldownScope, at: float, cooldown: Cooldown | None) -> None:
    """Ignore that a cooldown changes."""


class CircuitBreaker:
    """All cooldowns of one process.

    `changed` is called when a cooldown begins or ends that is saved on disk; `on_begin` and `on_end` for every cooldown
    that begins, or changes its kind, and that ends. `on_change` is called for each change that other processes should
    know, with the time from which it counts and the cooldown (None: it has ended). A scope without a credential means
    all scopes of that upstream, and one without an upstream all scopes.
    """

    def __init__(
        self,
        settings: BreakerSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        redact: Callable[[str], str] = str,
    ) -> None:
        self.settings = settings or BreakerSettings()
        self.changed: Callable[[], None] = lambda: None
        self.on_begin: Callable[[Cooldown], None] = _ignore_begin
        self.on_end: Callable[[Cooldown, str], None] = _ignore_end
        self.on_change: Callable[[CooldownScope, float, Cooldown | None], None] = _ignore_change
        self.clock, self._wall, self._redact = clock, wall, redact
        self.cooldowns: dict[CooldownScope, Cooldown] = {}
        self.counts: dict[CooldownScope, _Counts] = {}

    # --- before an attempt

    def enter(self, upstream: str, credential: str, model: str, *, guarded: bool = True) -> Permit:
        """Return the permit for an attempt. Raises CooldownActive."""
        scope = CooldownScope(upstream, credential, model_family(model))
        if not guarded:
            return Permit(None, scope, 0.0, ())
        now = self.clock()
        cooldowns = self._active(scope, now) if self.cooldowns else ()
        if not cooldowns:
            return Permit(self, scope, now, ())
        longest = max(cooldowns, key=lambda cooldown: cooldown.ready(now))
        if ready := longest.ready(now):
            hinted = longest.cooling and longest.kind in _SHORT
            raise CooldownActive(self._sentence(longest, ready), ready, hinted=hinted, cause=longest.kind)
        for cooldown in cooldowns:
            cooldown.probing = True
            self.on_change(cooldown.scope, now, cooldown)
        return Permit(self, scope, now, cooldowns)

    def seconds_until_ready(self, upstream: str, credential: str, model: str) -> float:
        """Return the seconds until a request may be sent; 0 if it may be sent now."""
        if not self.cooldowns:
            return 0.0
        now = self.clock()
        active = self._active(CooldownScope(upstream, credential, model_family(model)), now)
        return max((cooldown.ready(now) for cooldown in active), default=0.0)

    def _active(self, scope: CooldownScope, now: float) -> tuple[Cooldown, ...]:
        """Return the cooldowns that apply to a scope, and delete those that are over."""
        active = []
        for each in (scope, scope._replace(family="")):
            cooldown = self.cooldowns.get(each)
            if cooldown is not None and cooldown.is_over(now):
                self._expire(cooldown)
            elif cooldown is not None:
                active.append(cooldown)
        return tuple(active)

    def end_expired(self) -> None:
        """End the cooldowns whose time is over."""
        now = self.clock()
        for cooldown in [each for each in self.cooldowns.values() if each.is_over(now)]:
            self._expire(cooldown)

    def _expire(self, cooldown: Cooldown) -> None:
        del self.cooldowns[cooldown.scope]
        if cooldown.is_own:
            self.on_end(cooldown, "its time is over")
        self.changed()

    def _end(self, cooldown: Cooldown, why: str) -> None:
        del self.cooldowns[cooldown.scope]
        self.on_end(cooldown, why)

    # --- after an attempt

    def end_cooldowns(self, scope: CooldownScope, since: float) -> None:
        """End the cooldowns of a scope that began before `since`, the start of a successful attempt."""
        for each in (scope, scope._replace(family="")):
            cooldown = self.cooldowns.get(each)
            if cooldown is not None and cooldown.since < since:
                self._end(cooldown, "a request succeeded")
                self.on_change(each, since, None)
                if cooldown.cooling:
                    self.changed()

    def note_failure(self, scope: CooldownScope, since: float, error: DragomanError) -> None:
        """Count a failed attempt that began at `since`; begin or extend a cooldown if needed."""
        fault = error.fault
        if fault.kind in REQUEST_ERROR_KINDS:
            return
        rule = _COOLDOWN_RULES.get(fault.kind)
        if rule is not None and (seconds := rule.usual if fault.retry_after is None else fault.retry_after):
            self._cool(scope._replace(family="") if rule.whole else scope, fault, seconds)
            return
        now = self.clock()
        counts = self.counts.get(scope) or self.count(scope)
        counts.row += 1
        counts.recent.add(now, _FAILED)
        cooldowns = self._active(scope, now)
        if cooldowns:
            self._probe_failed(cooldowns, since, fault, now)
        elif counts.opens_breaker(self.settings):
            cooldown = self._begin(scope, fault, now)
            cooldown.wait = self.settings.first_probe
            cooldown.probe_at = now + cooldown.wait
            self.on_change(scope, now, cooldown)
            self.on_begin(cooldown)

    def _cool(self, scope: CooldownScope, fault: Fault, seconds: float) -> None:
        now, before = self.clock(), self.cooldowns.get(scope)
        is_known = before is not None and before.kind == fault.kind
        cooldown = self._begin(scope, fault, now)
        cooldown.until = now + min(seconds, self.settings.longest)
        cooldown.probe_at = min(cooldown.until, now + self.settings.cooling_probe)
        self.changed()
        self.on_change(scope, now, cooldown)
        if not is_known:
            self.on_begin(cooldown)

    def _probe_failed(self, cooldowns: tuple[Cooldown, ...], since: float, fault: Fault, now: float) -> None:
        settings = self.settings
        for cooldown in cooldowns:
            if since <= cooldown.since:
                continue  # The attempt began before the cooldown, so it was no probe.
            if cooldown.cooling:
                cooldown.probe_at = min(cooldown.until, now + settings.cooling_probe)
            else:
                self._begin(cooldown.scope, fault, now)
                cooldown.wait = min(cooldown.wait * 2, settings.last_probe)
                cooldown.probe_at = now + cooldown.wait
            self.on_change(cooldown.scope, now, cooldown)

    def _begin(self, scope: CooldownScope, fault: Fault, now: float) -> Cooldown:
        """Begin a cooldown, or update the one that exists."""
        # The message is redacted before it is cut: the pattern of a secret does not match a part of it.
        why = self._redact(" ".join(fault.message.split()))[:_LONGEST_WHY]
        cooldown = self._place(scope)
        cooldown.kind, cooldown.why, cooldown.since, cooldown.is_own = fault.kind, why, now, True
        return cooldown

    def _place(self, scope: CooldownScope) -> Cooldown:
        """Return the cooldown of a scope, a new one if it has none; the one with the next probe makes room."""
        cooldown = self.cooldowns.get(scope)
        if cooldown is None:
            if len(self.cooldowns) >= MAX_SCOPES:
                del self.cooldowns[min(self.cooldowns.values(), key=lambda each: each.probe_at).scope]
            cooldown = self.cooldowns[scope] = Cooldown(scope, "", "", 0.0)
        return cooldown

    def count(self, scope: CooldownScope) -> _Counts:
        """Begin to count the successes and failures of a scope."""
        if len(self.counts) >= MAX_SCOPES:
            del self.counts[next(iter(self.counts))]
        counts = self.counts[scope] = _Counts(WindowCounter(self.settings.window, 1.0))
        return counts

    # --- changes that other processes report: they are neither logged nor reported again

    def adopt(self, reported: Cooldown) -> None:
        """Begin a cooldown that another process began, or update it. A probe of this process goes on."""
        is_new = reported.scope not in self.cooldowns
        cooldown = self._place(reported.scope)
        cooldown.kind, cooldown.why, cooldown.since = reported.kind, reported.why, reported.since
        cooldown.until, cooldown.probe_at, cooldown.wait = reported.until, reported.probe_at, reported.wait
        if is_new:
            cooldown.is_own = False
        self.changed()

    def drop(self, scope: CooldownScope) -> None:
        """End a cooldown that another process ended, and forget the failures before it."""
        self.counts.pop(scope, None)
        if self.cooldowns.pop(scope, None) is not None:
            self.changed()

    # --- for status, metrics and `dragoman cooldown`

    def clear(self, upstream: str = "") -> int:
        """End all cooldowns, or those of one upstream, and reset the counts. Return how many cooldowns ended."""
        cleared = [cooldown for cooldown in self.cooldowns.values() if upstream in ("", cooldown.scope.upstream)]
        for cooldown in cleared:
            self._end(cooldown, "it was cleared")
        for scope in [scope for scope in self.counts if upstream in ("", scope.upstream)]:
            del self.counts[scope]
        self.changed()
        self.on_change(CooldownScope(upstream, ""), self.clock(), None)
        return len(cleared)

    def describe(self, upstream: str = "") -> list[Json]:
        """Return the cooldowns, of all upstreams or of one, as JSON."""
        now, offset = self.clock(), self._wall() - self.clock()
        return [
            {
                "upstream": cooldown.scope.upstream,
                "credential": cooldown.scope.credential,
                "models": cooldown.scope.family or None,
                "state": "probing" if cooldown.probing else "cooling" if cooldown.cooling else "open",
                "kind": cooldown.kind,
                "why": cooldown.why,
                "since": cooldown.since + offset,
                "until": cooldown.until + offset if cooldown.cooling else None,
                "next_try": cooldown.probe_at + offset,
            }
            for cooldown in self.cooldowns.values()
            if upstream in ("", cooldown.scope.upstream) and not cooldown.is_over(now)
        ]

    def remaining_cooldowns(self) -> Iterator[tuple[str, str, str, str, float]]:
        """Yield each cooldown: its scope, its state, and the seconds until the next probe."""
        now = self.clock()
        for cooldown in self.cooldowns.values():
            state = "cooling" if cooldown.cooling else "open"
            yield *cooldown.scope, state, max(cooldown.probe_at - now, 0.0)

    def is_cooling_down(self, upstream: str, credential: str) -> bool:
        """Return whether any scope of this credential is in cooldown."""
        now = self.clock()
        return any(
            scope.upstream == upstream and scope.credential == credential and not cooldown.is_over(now)
            for scope, cooldown in self.cooldowns.items()
        )

    def _sentence(self, cooldown: Cooldown, ready: float) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(self._wall() + ready))
        scope = cooldown.scope
        part = f" ({scope.credential}{f', {scope.family}' if scope.family else ''})"
        verb = "requested a pause" if cooldown.cooling and cooldown.kind in _SHORT else "is in cooldown"
        return f"the upstream {scope.upstream}{part} {verb} until {clock}, because of {cooldown.kind}: {cooldown.why}"

    # --- across restarts

    def saved_cooldowns(self) -> list[SavedCooldown]:
        """Return the cooldowns to save. An open breaker is not saved: after a restart, a few requests reopen it."""
        offset = self._wall() - self.clock()
        return [
            SavedCooldown(
                *cooldown.scope, cooldown.kind, cooldown.why, cooldown.since + offset, cooldown.until + offset
            )
            for cooldown in self.cooldowns.values()
            if cooldown.cooling
        ]

    def restore(self, saved: Iterable[SavedCooldown]) -> None:
        """Restore the cooldowns of an earlier process. None lasts longer than a day, even if the clock was changed."""
        now, wall = self.clock(), self._wall()
        for each in saved:
            left = min(each.until - wall, self.settings.longest)
            if left > 0 and len(self.cooldowns) < MAX_SCOPES:
                scope = CooldownScope(each.upstream, each.credential, each.family)
                since = now - max(wall - each.since, 0.0)
                cooldown = self.cooldowns[scope] = Cooldown(scope, each.kind, each.why[:_LONGEST_WHY], since)
                cooldown.until = now + left
                cooldown.probe_at = min(cooldown.until, now + self.settings.cooling_probe)
                self.on_begin(cooldown)
