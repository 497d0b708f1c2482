"""Circuit breaker and cooldowns: one mechanism for upstreams that fail and for those that ask for a pause.

    asked ──5 failures in a row, or more than half of 20 within 30 s──> open ──a probe after 5, 10 … 120 s──> asked
      └──rate limit, quota, refused credential──> cooling ──its time is over, or a probe went well──> asked

Both are a `Cooldown` of a scope: an upstream, one of its credentials, and a family of models or all of them. A time
that an
upstream names is a hint: while it lasts, one request in five minutes goes through, and one that goes well ends it.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from dragoman.errors import REQUEST_ERROR_KINDS, ClientFault, ConnectFailed, DragomanError, ErrorKind, Fault
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.secrets import make_private_folder, read_private, write_private
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

MAX_SCOPES = 512  # a client names any model it likes: more are not remembered
_LONGEST_WHY = 300
_EARLY = 0.01  # seconds: timers ring a little early, and whoever waited as long as he was told has waited enough
# A model and its dated versions are one family: providers limit them together.
_VERSION = re.compile(r"(?:[-@]\d{8}|-\d{4}-\d\d-\d\d|-latest)?(?:-v\d+)?(?::\d+)?(?:\[\w+\])?\Z")


class BreakerSettings(Struct, frozen=True):
    """The numbers. Times are seconds."""

    failures: int = 5  # in a row
    share: float = 0.5  # of at least `least` requests within `window`
    least: int = 20
    window: float = 30.0
    first_probe: float = 5.0  # doubling after each that fails
    last_probe: float = 120.0
    cooling_probe: float = 300.0
    longest: float = 24 * 3600.0


class CooldownScope(NamedTuple):
    """What rests. Without a family: all models of that credential."""

    upstream: str
    credential: str
    family: str = ""


class _Rule(Struct, frozen=True):
    """What a kind of refusal means for those that come after. Without `usual`, only a named time makes a pause."""

    whole: bool = False  # the credential with all its models
    usual: float | None = None


_COOLS: dict[ErrorKind, _Rule] = {
    "rate_limit": _Rule(),
    "overloaded": _Rule(),
    "permission": _Rule(usual=60.0),
    "quota": _Rule(whole=True, usual=300.0),
    "auth": _Rule(whole=True, usual=15.0),
}
# A short wait mends these, so a request without another target may wait; the others are refused at once.
_MENDED_BY_WAITING: frozenset[str] = frozenset({"rate_limit", "overloaded"})
# What the client is refused with while the upstream is not asked, if that is not `overloaded`: an error that its SDK
# takes for passing would be waited for there.
_LASTING: dict[str, tuple[ErrorKind, int]] = {
    "auth": ("auth", 401),
    "permission": ("permission", 403),
    "quota": ("quota", 429),
}


class CooldownActive(ConnectFailed):
    """The upstream was not asked, because of how it answered before. `cause` is the kind of that fault.

    `hinted`: it asked for a pause, which a request without another target may wait for.
    """

    def __init__(self, message: str, ready: float, *, hinted: bool, cause: str = "overloaded") -> None:
        kind, status = _LASTING.get(cause, ("overloaded", 503))
        wait = None if kind in ("auth", "permission") else ready
        super().__init__(message, fault=Fault(kind, message, status, retry_after=wait))
        self.seconds_left = ready
        self.is_hinted = hinted


class SavedCooldown(Struct, frozen=True):
    """A cooldown as it outlives the process. Times are those of the wall."""

    upstream: str
    credential: str
    family: str
    kind: str
    why: str
    since: float
    until: float


class Cooldown:
    """One pause. `until` is infinite for a breaker: only a probe ends it."""

    __slots__ = ("kind", "probe_at", "probing", "scope", "since", "until", "wait", "why")

    def __init__(self, scope: CooldownScope, kind: str, why: str, since: float) -> None:
        self.scope, self.kind, self.why, self.since = scope, kind, why, since
        self.until = self.probe_at = math.inf
        self.wait = 0.0
        self.probing = False

    @property
    def cooling(self) -> bool:
        return self.until != math.inf

    def ready(self, now: float) -> float:
        """Seconds until somebody may ask. While a probe is out nobody knows; it will not be long."""
        if self.over(now):
            return 0.0
        left = self.probe_at - now
        return 1.0 if self.probing else left if left > _EARLY else 0.0

    def over(self, now: float) -> bool:
        return now >= self.until - _EARLY


class WindowCounter:
    """How often each of two things happened within a window, counted by steps of time: there may be very many."""

    __slots__ = ("_step", "_steps", "_window", "counts")

    def __init__(self, window: float, step: float) -> None:
        self.counts = [0, 0]
        self._step, self._window = step, round(window / step)
        self._steps: deque[tuple[int, list[int]]] = deque()  # the number of the step, and how often

    def add(self, now: float, kind: int) -> None:
        """Count one more: 0 and 1 are the two things."""
        step, steps = int(now / self._step), self._steps
        if not steps or steps[-1][0] != step:
            self.forget(now)
            steps.append((step, [0, 0]))
        steps[-1][1][kind] += 1
        self.counts[kind] += 1

    def forget(self, now: float) -> None:
        """Forget what is older than the window."""
        first, steps = int(now / self._step) - self._window, self._steps
        while steps and steps[0][0] <= first:
            _, gone = steps.popleft()
            self.counts = [self.counts[0] - gone[0], self.counts[1] - gone[1]]


_OK, _FAILED = 0, 1  # kinds of `WindowCounter`


class _Counts(Struct):
    """How a scope has been doing."""

    recent: WindowCounter
    row: int = 0  # failures in a row

    def too_bad(self, tolerance: BreakerSettings) -> bool:
        well, badly = self.recent.counts
        often = well + badly >= tolerance.least and badly > tolerance.share * (well + badly)
        return often or self.row >= tolerance.failures


class Permit(Struct):
    """One attempt. Say how it went, then `close`; a probe that ended without a verdict makes room for another."""

    breaker: CircuitBreaker | None
    scope: CooldownScope
    since: float
    probes: tuple[Cooldown, ...]

    def accepted(self) -> None:
        """The upstream has begun to answer: a rest that began before this attempt ends."""
        if self.breaker is not None:
            self.breaker.end_cooldowns(self.scope, self.since)

    def succeeded(self) -> None:
        if (breaker := self.breaker) is None:
            return
        if breaker.cooldowns:
            breaker.end_cooldowns(self.scope, self.since)
        counts = breaker.counts.get(self.scope) or breaker.count(self.scope)
        counts.row = 0
        counts.recent.add(breaker.clock(), _OK)

    def failed(self, error: DragomanError) -> None:
        if self.breaker is not None and not isinstance(error, ClientFault):
            self.breaker.note_failure(self.scope, self.since, error)

    def close(self) -> None:
        for rest in self.probes:
            rest.probing = False
        self.probes = ()


class CircuitBreaker:
    """All rests of one process. `changed` is called when a cooldown that outlives it began or ended."""

    def __init__(
        self,
        tolerance: BreakerSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        words: Callable[[str], str] = str,
    ) -> None:
        self.tolerance = tolerance or BreakerSettings()
        self.changed: Callable[[], None] = lambda: None
        self.clock, self._wall, self._words = clock, wall, words
        self.cooldowns: dict[CooldownScope, Cooldown] = {}
        self.counts: dict[CooldownScope, _Counts] = {}

    # --- asking

    def enter(self, upstream: str, credential: str, model: str, *, guarded: bool = True) -> Permit:
        """Leave to ask. Raises Resting."""
        scope = CooldownScope(upstream, credential, family(model))
        if not guarded:
            return Permit(None, scope, 0.0, ())
        now = self.clock()
        rests = self._of(scope, now) if self.cooldowns else ()
        if not rests:
            return Permit(self, scope, now, ())
        longest = max(rests, key=lambda rest: rest.ready(now))
        if ready := longest.ready(now):
            hinted = longest.cooling and longest.kind in _MENDED_BY_WAITING
            raise CooldownActive(self._sentence(longest, ready), ready, hinted=hinted, cause=longest.kind)
        for rest in rests:
            rest.probing = True
        return Permit(self, scope, now, rests)

    def seconds_until_ready(self, upstream: str, credential: str, model: str) -> float:
        """Seconds until this may be asked; 0 if it may now."""
        if not self.cooldowns:
            return 0.0
        now = self.clock()
        return max(
            (rest.ready(now) for rest in self._of(CooldownScope(upstream, credential, family(model)), now)), default=0.0
        )

    def _of(self, scope: CooldownScope, now: float) -> tuple[Cooldown, ...]:
        """The rests that stand before a scope; those that are over are forgotten."""
        found = []
        for each in (scope, scope._replace(family="")):
            rest = self.cooldowns.get(each)
            if rest is not None and rest.over(now):
                del self.cooldowns[each]
                self.changed()
            elif rest is not None:
                found.append(rest)
        return tuple(found)

    # --- how it went

    def end_cooldowns(self, scope: CooldownScope, since: float) -> None:
        """Somebody was answered who asked after the rest had begun: it ends."""
        for each in (scope, scope._replace(family="")):
            rest = self.cooldowns.get(each)
            if rest is not None and rest.since < since:
                del self.cooldowns[each]
                if rest.cooling:
                    self.changed()

    def note_failure(self, scope: CooldownScope, since: float, error: DragomanError) -> None:
        fault = error.fault
        if fault.kind in REQUEST_ERROR_KINDS:
            return
        rule = _COOLS.get(fault.kind)
        if rule is not None and (seconds := rule.usual if fault.retry_after is None else fault.retry_after):
            self._cool(scope._replace(family="") if rule.whole else scope, fault, seconds)
            return
        now = self.clock()
        counts = self.counts.get(scope) or self.count(scope)
        counts.row += 1
        counts.recent.add(now, _FAILED)
        rests = self._of(scope, now)
        if rests:
            self._probe_failed(rests, since, fault, now)
        elif counts.too_bad(self.tolerance):
            rest = self._resting(scope, fault, now)
            rest.wait = self.tolerance.first_probe
            rest.probe_at = now + rest.wait

    def _cool(self, scope: CooldownScope, fault: Fault, seconds: float) -> None:
        now = self.clock()
        rest = self._resting(scope, fault, now)
        rest.until = now + min(seconds, self.tolerance.longest)
        rest.probe_at = min(rest.until, now + self.tolerance.cooling_probe)
        self.changed()

    def _probe_failed(self, rests: tuple[Cooldown, ...], since: float, fault: Fault, now: float) -> None:
        tolerance = self.tolerance
        for rest in rests:
            if since <= rest.since:
                continue  # it was asked before the rest began, and tells nothing new
            if rest.cooling:
                rest.probe_at = min(rest.until, now + tolerance.cooling_probe)
            else:
                self._resting(rest.scope, fault, now)
                rest.wait = min(rest.wait * 2, tolerance.last_probe)
                rest.probe_at = now + rest.wait

    def _resting(self, scope: CooldownScope, fault: Fault, now: float) -> Cooldown:
        why = self._words(" ".join(fault.message.split()))[:_LONGEST_WHY]  # cut last: half a secret has no shape
        rest = self.cooldowns.get(scope)
        if rest is None:
            if len(self.cooldowns) >= MAX_SCOPES:
                del self.cooldowns[min(self.cooldowns.values(), key=lambda each: each.probe_at).scope]
            rest = self.cooldowns[scope] = Cooldown(scope, fault.kind, why, now)
        rest.kind, rest.why, rest.since = fault.kind, why, now
        return rest

    def count(self, scope: CooldownScope) -> _Counts:
        """Begin to count how a scope is doing."""
        if len(self.counts) >= MAX_SCOPES:
            del self.counts[next(iter(self.counts))]
        found = self.counts[scope] = _Counts(WindowCounter(self.tolerance.window, 1.0))
        return found

    # --- for people

    def clear(self, upstream: str = "") -> int:
        """Forget every rest, or those of one upstream, and what was counted; tells how many rested."""
        gone = [scope for scope in self.cooldowns if upstream in ("", scope.upstream)]
        for scope in gone:
            del self.cooldowns[scope]
        for scope in [scope for scope in self.counts if upstream in ("", scope.upstream)]:
            del self.counts[scope]
        self.changed()
        return len(gone)

    def describe(self, upstream: str = "") -> list[Json]:
        now, offset = self.clock(), self._wall() - self.clock()
        return [
            {
                "upstream": rest.scope.upstream,
                "credential": rest.scope.credential,
                "models": rest.scope.family or None,
                "state": "probing" if rest.probing else "cooling" if rest.cooling else "open",
                "kind": rest.kind,
                "why": rest.why,
                "since": rest.since + offset,
                "until": rest.until + offset if rest.cooling else None,
                "next_try": rest.probe_at + offset,
            }
            for rest in self.cooldowns.values()
            if upstream in ("", rest.scope.upstream) and not rest.over(now)
        ]

    def cooldowns_left(self) -> Iterator[tuple[str, str, str, str, float]]:
        """Every rest: its scope, its state, and seconds until somebody is let through."""
        now = self.clock()
        for rest in self.cooldowns.values():
            state = "cooling" if rest.cooling else "open"
            yield *rest.scope, state, max(rest.probe_at - now, 0.0)

    def is_cooling_down(self, upstream: str, credential: str) -> bool:
        """Whether anything of this credential rests."""
        now = self.clock()
        return any(
            scope.upstream == upstream and scope.credential == credential and not rest.over(now)
            for scope, rest in self.cooldowns.items()
        )

    def _sentence(self, rest: Cooldown, ready: float) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(self._wall() + ready))
        scope = rest.scope
        whose = f" ({scope.credential}{f', {scope.family}' if scope.family else ''})"
        verb = "asked for a pause" if rest.cooling and rest.kind in _MENDED_BY_WAITING else "is not asked"
        return f"the upstream {scope.upstream}{whose} {verb} until {clock}, because of {rest.kind}: {rest.why}"

    # --- across restarts

    def saved_cooldowns(self) -> list[SavedCooldown]:
        """The cooldowns. A breaker is not kept: five seconds tell how an upstream is."""
        offset = self._wall() - self.clock()
        return [
            SavedCooldown(*rest.scope, rest.kind, rest.why, rest.since + offset, rest.until + offset)
            for rest in self.cooldowns.values()
            if rest.cooling
        ]

    def restore(self, kept: Iterable[SavedCooldown]) -> None:
        """Take up what another process left; a wall clock that was moved makes none of it last longer than a day."""
        now, wall = self.clock(), self._wall()
        for each in kept:
            left = min(each.until - wall, self.tolerance.longest)
            if left > 0 and len(self.cooldowns) < MAX_SCOPES:
                scope = CooldownScope(each.upstream, each.credential, each.family)
                rest = self.cooldowns[scope] = Cooldown(scope, each.kind, each.why[:_LONGEST_WHY], now)
                rest.until = now + left
                rest.probe_at = min(rest.until, now + self.tolerance.cooling_probe)


@lru_cache(256)
def family(model: str) -> str:
    """The name that a model shares with its dated versions."""
    return _VERSION.sub("", model.lower())


# --- cooldowns on disk: a private file in the state folder, written whole a moment after the last change


COOLDOWN_FILE = "cooldowns.json"
_SOON = 0.2  # seconds in which changes gather: a write waits for the disk


class CooldownFile:
    """Keeps a breaker's cooldowns. A file that cannot be read or written is ignored: the times are hints."""

    def __init__(self, folder: Path, breaker: CircuitBreaker) -> None:
        self._path = folder / COOLDOWN_FILE
        self._breaker = breaker
        self._written: Sequence[SavedCooldown] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[bool] | None = None

    def load(self) -> None:
        """Take up what is there, and follow the breaker from now on."""
        try:
            kept = msgspec.convert(jsonio.decode(read_private(self._path)), list[SavedCooldown])
        except (OSError, ConfigError, jsonio.JsonError, msgspec.ValidationError):
            kept = []
        self._breaker.restore(kept)
        self._written = kept
        self._breaker.changed = self._soon

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SOON, self._write)

    def _write(self) -> None:
        self._timer = None
        if self._writing is not None and not self._writing.done():
            self._soon()  # one writer at a time, so that the last word stays
            return
        kept = self._breaker.saved_cooldowns()
        if kept != self._written:
            self._written = kept
            self._writing = asyncio.get_running_loop().run_in_executor(None, self._save, kept)

    def _save(self, kept: Sequence[SavedCooldown]) -> bool:
        try:
            make_private_folder(self._path.parent)
            write_private(self._path, jsonio.encode(msgspec.to_builtins(kept)))
        except (OSError, ConfigError):
            return False
        return True

    async def aclose(self) -> None:
        """Write what has not been written."""
        self._breaker.changed = lambda: None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await self._writing
        kept = self._breaker.saved_cooldowns()
        if kept != self._written:
            await asyncio.get_running_loop().run_in_executor(None, self._save, kept)
