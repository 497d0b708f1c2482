"""Metrics: plain counters, updated for every request, and rendered in the Prometheus format on demand."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

from msgspec import Struct

from dragoman._version import __version__
from dragoman.gateway.records import Outcome, Record

_LABELS = ("dialect", "upstream", "model")
_SCOPE = ("upstream", "credential", "models", "state")
_MAX_MODELS = 100  # different values of a label
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 300.0)

Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]  # the labels' values, and the number


class Histogram:
    """A histogram of durations."""

    __slots__ = ("_counts", "sum")

    def __init__(self) -> None:
        self.sum = 0.0
        self._counts = [0] * (len(_SECONDS) + 1)

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return the buckets as Prometheus defines them: each includes the ones below it."""
        return list(zip((*map(str, _SECONDS), "+Inf"), accumulate(self._counts), strict=True))


class RequestCounts:
    """The counters of one dialect, upstream and model."""

    __slots__ = ("first", "outcomes", "seconds", "tokens")

    def __init__(self) -> None:
        self.outcomes: dict[Outcome, int] = {}
        self.tokens: Counter[str] = Counter()  # by kind
        self.seconds, self.first = Histogram(), Histogram()


class GaugeSnapshot(Struct, frozen=True):
    """The current values of the gauges."""

    inflight: int  # running requests
    used_bytes: int  # bytes that they use
    lines: dict[str, int]  # log lines that were not written, by reason
    cooldowns: list[tuple[str, str, str, str, float]]  # scope, state, and seconds until the next probe
    expiry: dict[tuple[str, str], float]  # of credentials, by upstream and name, in seconds
    accounts: AccountGauges | None = None


class AccountGauges(Struct, frozen=True):
    """The figures of accounts."""

    refused: dict[str, int]  # requests, by the resource and span of the limit that refused them
    unpriced: int
    pending_rows: int
    dropped_rows: int
    store_up: bool


class Metrics:
    """All counters. The number of label values is bounded."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str, str], RequestCounts] = {}
        self.notes: Counter[str] = Counter()
        self.retries: Counter[tuple[str, str]] = Counter()
        self.plan_cache_hits: Counter[str] = Counter()  # by upstream
        self._models: set[str] = set()

    def request(self, record: Record) -> None:
        """Count a request that has ended."""
        model, models = record.used_model, self._models
        if model not in models and len(models) >= _MAX_MODELS:
            model = "other"
        else:
            models.add(model)
        labels = (record.dialect or "none", record.upstream or "none", model or "none")
        counts = self.counts.get(labels)
        if counts is None:
            counts = self.counts[labels] = RequestCounts()
        counts.outcomes[record.outcome] = counts.outcomes.get(record.outcome, 0) + 1
        for note in record.notes:
            self.notes[note.rule] += 1
        if not record.upstream:
            return
        counts.seconds.observe(record.total)
        if record.first_byte is not None:
            counts.first.observe(record.first_byte)
        if (usage := record.usage) is not None:
            tokens = counts.tokens
            tokens["input"] += usage.input
            tokens["output"] += usage.output
            if usage.cache_read or usage.cache_write:
                tokens["cache_read"] += usage.cache_read
                tokens["cache_write"] += usage.cache_write


def render_metrics(meters: Metrics, now: GaugeSnapshot) -> bytes:
    """Return all metrics in the Prometheus text format."""
    # The library is slow to import, and most gateways never need it.
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily  # noqa: PLC0415

    requests = CounterMetricFamily("dragoman_requests", "Requests that have ended", labels=(*_LABELS, "outcome"))
    seconds = HistogramMetricFamily(
        "dragoman_request_duration_seconds", "Time from the request to the end of the response", labels=_LABELS
    )
    first = HistogramMetricFamily("dragoman_time_to_first_byte_seconds", "Time to the first byte", labels=_LABELS)
    tokens = CounterMetricFamily("dragoman_tokens", "Tokens as reported by upstreams", labels=(*_LABELS, "type"))
    for labels, counts in meters.counts.items():
        for outcome, count in counts.outcomes.items():
            requests.add_metric((*labels, outcome), count)
        for family, spread in ((seconds, counts.seconds), (first, counts.first)):
            if spread.sum:
                family.add_metric(labels, spread.buckets(), spread.sum)
        for kind, count in (+counts.tokens).items():
            tokens.add_metric((*labels, kind), count)

    counter, gauge = partial(_family, CounterMetricFamily), partial(_family, GaugeMetricFamily)
    cooldowns = (((upstream, key, models, state), left) for upstream, key, models, state, left in now.cooldowns)
    families = [
        *(requests, seconds, first, tokens),
        counter("notes", "Changes made by translations", ("rule",), _single(meters.notes)),
        counter("retries", "Attempts that failed", ("upstream", "kind"), meters.retries.items()),
        counter(
            "plan_cache_hits", "Requests that followed a cached plan", ("upstream",), _single(meters.plan_cache_hits)
        ),
        gauge("cache_read_ratio", "Input tokens read from prompt caches", ("upstream",), _cache_ratios(meters)),
        gauge("cooldown_seconds", "Seconds until a scope in cooldown gets a request again", _SCOPE, cooldowns),
        gauge("unwritten_log_lines", "Log lines that were dropped, or only counted", ("why",), _single(now.lines)),
        gauge("inflight_bytes", "Bytes held for running requests", (), [((), now.used_bytes)]),
        gauge("inflight_requests", "Running requests", (), [((), now.inflight)]),
        gauge("credential_expiry_seconds", "Seconds until the credential expires", _SCOPE[:2], now.expiry.items()),
        gauge("build_info", "The version of the gateway", ("version",), [((__version__,), 1)]),
    ]
    if now.accounts is not None:
        families += _account_families(now.accounts, counter, gauge)
    registry = CollectorRegistry()
    registry.register(_Collector(families))
    return generate_latest(registry)


def _cache_ratios(meters: Metrics) -> Samples:
    """Return by upstream the share of all input tokens that were read from a prompt cache."""
    read, total = Counter[str](), Counter[str]()
    for (_, upstream, _), counts in meters.counts.items():
        read[upstream] += counts.tokens["cache_read"]
        total[upstream] += sum(counts.tokens[kind] for kind in ("input", "cache_read", "cache_write"))
    return (((upstream,), read[upstream] / count) for upstream, count in total.items() if count)


def _account_families(accounts: AccountGauges, counter: Callable[..., Any], gauge: Callable[..., Any]) -> list[Any]:
    refused = [(tuple(name.split()), count) for name, count in accounts.refused.items()]
    return [
        counter("limit_refusals", "Requests refused by a limit of an account", ("resource", "span"), refused),
        counter("unpriced_requests", "Requests whose price is unknown", (), [((), accounts.unpriced)]),
        counter(
            "ledger_rows_dropped", "Rows of the ledger that could not be written", (), [((), accounts.dropped_rows)]
        ),
        gauge("ledger_rows_pending", "Rows of the ledger that are not written yet", (), [((), accounts.pending_rows)]),
        gauge("store_up", "Whether the store of accounts can be used", (), [((), accounts.store_up)]),
    ]


class _Collector:
    """The collector protocol of prometheus_client, with fixed families."""

    def __init__(self, families: list[Any]) -> None:
        self.families = families

    def collect(self) -> list[Any]:
        return self.families


def _family(kind: Callable[..., Any], name: str, about: str, labels: tuple[str, ...], samples: Samples) -> Any:
    family = kind(f"dragoman_{name}", about, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


def _single(counts: dict[str, int]) -> Samples:
    return (((label,), count) for label, count in counts.items())
