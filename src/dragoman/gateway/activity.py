"""The present activity of a gateway, for `dragoman top`: running requests, rates of the last minute, upstreams. Pure.

Everything comes from what the gateway keeps anyway: the records of running requests, the recent log, and the state of
the upstreams. Each worker gives its `Activity`; `summarize_activity` adds those of all workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from dragoman.gateway.access_log import RecentEntry
from dragoman.gateway.backend import Backend
from dragoman.gateway.breaker import Cooldown
from dragoman.gateway.recent import RecentLog, read_request
from dragoman.gateway.records import Record, input_tokens
from dragoman.gateway.redaction import Redactor
from dragoman.wire.jsonio import Json

WINDOW = 60.0  # seconds
MAX_RUNNING = 500  # running requests that are listed, oldest first
_ERRORS = frozenset({"failed", "broken", "bug"})
_DELIVERED = frozenset({"ok", "gone", "cut"})
_NOT_SENT = frozenset({"cooldown", "busy", "not sent"})  # reasons of failed attempts that are not the upstream's
_HEALTH = ("failing", "cooling", "ok", "unused")  # the worst first

RequestState: TypeAlias = Literal["arriving", "waiting", "reading", "streaming"]


class RunningRequest(Struct, frozen=True, omit_defaults=True):
    """A request that is being served. `chunks` counts the reads of the upstream's body."""

    id: str
    seconds: float
    state: RequestState
    path: str = ""
    client: str = ""
    dialect: str = ""
    model: str = ""
    used_model: str = ""
    upstream: str = ""
    attempts: int = 0
    input_tokens: int | None = None  # so far, as the upstream reported them
    output_tokens: int | None = None
    chunks: int = 0


class EndedRequest(Struct, frozen=True, array_like=True):
    """The figures of a request that has ended within the last minute, for the rates."""

    upstream: str
    outcome: str
    input_tokens: int
    output_tokens: int
    first_byte_ms: float | None
    failed: tuple[str, ...]  # the upstreams of attempts that failed


class RemainingCooldown(Struct, frozen=True):
    """A cooldown, and the seconds until the next request may be sent."""

    credential: str
    models: str
    kind: str
    seconds: float


class UpstreamActivity(Struct, frozen=True):
    """The state of one upstream."""

    name: str
    health: str
    running: int
    waiting: int
    cooldowns: tuple[RemainingCooldown, ...] = ()


class Activity(Struct, frozen=True):
    """The present activity of one process. `seconds` is the time that `ended` covers."""

    running: tuple[RunningRequest, ...]
    ended: tuple[EndedRequest, ...]
    seconds: float
    upstreams: tuple[UpstreamActivity, ...]


class UpstreamRates(Struct, frozen=True):
    """An upstream with its rates of the last minute. Without attempts, the share and the times are None."""

    name: str
    health: str
    running: int
    waiting: int
    requests_per_second: float
    error_share: float | None
    first_byte_p50_ms: float | None
    first_byte_p95_ms: float | None
    cooldowns: tuple[RemainingCooldown, ...]


class ActivitySummary(Struct, frozen=True):
    """The present activity of all workers of a gateway: the data of `dragoman top --json`."""

    gateway: dict[str, Any]  # version, URL, process, start time
    requests_per_second: float
    input_tokens_per_second: float
    output_tokens_per_second: float
    errors_per_minute: float
    running: tuple[RunningRequest, ...]
    more_running: int  # that are not listed
    upstreams: tuple[UpstreamRates, ...]


# --- the activity of this process


def measure_activity(
    records: Iterable[Record], recent: RecentLog, backends: Sequence[Backend], redactor: Redactor, started_at: float
) -> Activity:
    """Return what this process does now: its running requests, those that ended within the last minute, upstreams."""
    now, moment = time.time(), time.monotonic()
    running = sorted((_running(record, moment, redactor) for record in records), key=lambda each: -each.seconds)
    entries, begin = recent.since(max(now - WINDOW, started_at))
    ended = tuple(map(_ended, entries))
    seconds = max(now - begin, 1.0)
    return Activity(tuple(running), ended, seconds, tuple(map(_upstream, backends)))


def _running(record: Record, now: float, redactor: Redactor) -> RunningRequest:
    response, progress, mask = record.response, record.progress, redactor.text
    usage = None if progress is None else progress.usage
    state: RequestState = "arriving" if not record.upstream else "waiting"
    if response is not None:
        state = "streaming" if progress is not None and progress.has_content else "reading"
    return RunningRequest(
        id=record.id,
        seconds=round(now - record.began, 3),
        state=state,
        path=mask(record.path),
        client=record.client,
        dialect=record.dialect,
        model=mask(record.model),
        used_model=mask(record.used_model),
        upstream=record.upstream,
        attempts=record.attempts,
        input_tokens=None if usage is None else usage.input + usage.cache_read + usage.cache_write,
        output_tokens=None if usage is None else usage.output,
        chunks=0 if response is None else response.reads,
    )


def _ended(entry: RecentEntry) -> EndedRequest:
    request = read_request(entry.line)
    return EndedRequest(
        request.upstream,
        request.outcome,
        input_tokens(request),
        request.output_tokens or 0,
        request.first_byte_ms,
        tuple(each.upstream for each in entry.failures if each.reason not in _NOT_SENT),
    )


def _upstream(backend: Backend) -> UpstreamActivity:
    breaker = backend.breaker
    now = breaker.clock()
    cooling = [each for each in breaker.cooldowns.values() if each.scope.upstream == backend.name]
    cooldowns = tuple(_remaining(each, now) for each in cooling if not each.is_over(now))
    slots = backend.slots
    return UpstreamActivity(backend.name, backend.health, slots.active, slots.waiting, cooldowns)


def _remaining(cooldown: Cooldown, now: float) -> RemainingCooldown:
    end = cooldown.until if cooldown.cooling else cooldown.probe_at
    scope = cooldown.scope
    return RemainingCooldown(scope.credential, scope.family, cooldown.kind, round(max(end - now, 0.0), 1))


# --- the summary of all processes


def summarize_activity(
    activities: Sequence[Activity], gateway: dict[str, Json], most: int = MAX_RUNNING
) -> ActivitySummary:
    """Return the sum of the rates and the requests of all processes."""
    running = sorted((each for activity in activities for each in activity.running), key=lambda each: -each.seconds)
    names = dict.fromkeys(row.name for activity in activities for row in activity.upstreams)
    return ActivitySummary(
        gateway=gateway,
        requests_per_second=_sum(len(each.ended) / each.seconds for each in activities),
        input_tokens_per_second=_sum(sum(one.input_tokens for one in each.ended) / each.seconds for each in activities),
        output_tokens_per_second=_sum(
            sum(one.output_tokens for one in each.ended) / each.seconds for each in activities
        ),
        errors_per_minute=_sum(
            60 * sum(one.outcome in _ERRORS for one in each.ended) / each.seconds for each in activities
        ),
        running=tuple(running[:most]),
        more_running=max(len(running) - most, 0),
        upstreams=tuple(_upstream_rates(name, activities) for name in names),
    )


def _sum(rates: Iterable[float]) -> float:
    return round(sum(rates), 3)


def _upstream_rates(name: str, activities: Sequence[Activity]) -> UpstreamRates:
    rows = [row for activity in activities for row in activity.upstreams if row.name == name]
    attempts = [(list(_attempts(name, each.ended)), each.seconds) for each in activities]
    total = sum(len(results) for results, _ in attempts)
    failed = sum(results.count(False) for results, _ in attempts)
    firsts = sorted(
        one.first_byte_ms
        for activity in activities
        for one in activity.ended
        if one.upstream == name and one.first_byte_ms is not None and one.outcome in _DELIVERED
    )
    cooldowns = {(each.credential, each.models): each for row in rows for each in row.cooldowns}
    return UpstreamRates(
        name=name,
        health=min((row.health for row in rows), key=_HEALTH.index),
        running=sum(row.running for row in rows),
        waiting=sum(row.waiting for row in rows),
        requests_per_second=_sum(len(results) / seconds for results, seconds in attempts),
        error_share=round(failed / total, 4) if total else None,
        first_byte_p50_ms=_percentile(firsts, 0.5),
        first_byte_p95_ms=_percentile(firsts, 0.95),
        cooldowns=tuple(cooldowns.values()),
    )


def _attempts(name: str, ended: Iterable[EndedRequest]) -> Iterator[bool]:
    """Yield whether each attempt at this upstream succeeded."""
    for one in ended:
        yield from (False for upstream in one.failed if upstream == name)
        if one.upstream == name and one.outcome in _DELIVERED:
            yield True
        elif one.upstream == name and one.outcome == "broken":
            yield False


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[max(ceil(share * len(ordered)) - 1, 0)] if ordered else None
