"""Counters in Prometheus' form: every request pays for plain numbers, and their form is made when somebody reads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from dragoman._version import __version__
from dragoman.gateway.observe import Journal, Outcome, Record
from dragoman.model.conversation import Usage

_MOST_MODELS = 100  # different values of a label
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 300.0)


class Spread:
    """How long things took: how many fell between each two bounds."""

    __slots__ = ("_counts", "sum")

    def __init__(self) -> None:
        self.sum = 0.0
        self._counts = [0] * (len(_SECONDS) + 1)

    def see(self, seconds: float) -> None:
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each holds those below it."""
        return list(zip((*map(str, _SECONDS), "+Inf"), accumulate(self._counts), strict=True))


class Tally:
    """What was counted of the requests of one way, as plain numbers: every request pays for them."""

    __slots__ = ("first", "outcomes", "seconds", "tokens")

    def __init__(self) -> None:
        self.outcomes: dict[Outcome, int] = {}
        self.tokens: dict[str, int] = {}
        self.seconds, self.first = Spread(), Spread()

    def count(self, record: Record) -> None:
        self.outcomes[record.outcome] = self.outcomes.get(record.outcome, 0) + 1
        if not record.upstream:
            return
        self.seconds.see(record.total)
        if record.first_byte is not None:
            self.first.see(record.first_byte)
        if record.usage is not None:
            for kind, count in _counted(record.usage):
                self.tokens[kind] = self.tokens.get(kind, 0) + count


class Meters:
    """Counters in Prometheus' form, in a registry of their own. Labels come from closed sets, or are capped."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry(auto_describe=True)
        self._tallies: dict[tuple[str, str, str], Tally] = {}
        registry.register(self)
        self._notes = Counter("dragoman_notes", "Changes made by translations", ("rule",), registry=registry)
        self._resting = Gauge(
            "dragoman_resting_seconds",
            "Seconds until a scope that rests is tried again",
            ("upstream", "credential", "models", "state"),
            registry=registry,
        )
        self._lines = Gauge("dragoman_unwritten_log_lines", "Dropped, or only counted", ("why",), registry=registry)
        self.held = Gauge("dragoman_inflight_bytes", "Bytes held for requests under way", registry=registry)
        self._retries = Counter("dragoman_retries", "Attempts that failed", ("upstream", "kind"), registry=registry)
        self.inflight = Gauge("dragoman_inflight_requests", "Requests under way", registry=registry)
        self._expiry = Gauge(
            "dragoman_credential_expiry_seconds", "Seconds until it ends", ("upstream", "credential"), registry=registry
        )
        Gauge("dragoman_build_info", "The version", ("version",), registry=registry).labels(__version__).set(1)
        self._models: set[str] = set()

    def request(self, record: Record) -> None:
        way = (record.dialect or "none", record.upstream or "none", self._model(record.used_model))
        tally = self._tallies.get(way)
        if tally is None:
            tally = self._tallies[way] = Tally()
        tally.count(record)
        for note in record.notes:
            self._notes.labels(note.rule).inc()

    def collect(self) -> Iterator[Metric]:
        """For the registry, when somebody reads: what was counted, in its form."""
        way = ("dialect", "upstream", "model")
        requests = CounterMetricFamily("dragoman_requests", "Requests answered", labels=(*way, "outcome"))
        seconds = HistogramMetricFamily("dragoman_request_duration_seconds", "Whole time", labels=way)
        first = HistogramMetricFamily("dragoman_time_to_first_byte_seconds", "Time to the first byte", labels=way)
        tokens = CounterMetricFamily("dragoman_tokens", "Tokens as told by upstreams", labels=(*way, "type"))
        for labels, tally in self._tallies.items():
            for outcome, count in tally.outcomes.items():
                requests.add_metric((*labels, outcome), count)
            for family, spread in ((seconds, tally.seconds), (first, tally.first)):
                if spread.sum:
                    family.add_metric(labels, spread.buckets(), spread.sum)
            for kind, count in tally.tokens.items():
                tokens.add_metric((*labels, kind), count)
        yield from (requests, seconds, first, tokens)

    def retry(self, upstream: str, kind: str) -> None:
        self._retries.labels(upstream, kind).inc()

    def rests(self, rows: Iterable[tuple[str, str, str, str, float]]) -> None:
        """What rests now, and for how long; what does not any more is gone from here."""
        self._resting.clear()
        for *labels, seconds in rows:
            self._resting.labels(*labels).set(seconds)

    def unwritten(self, journal: Journal) -> None:
        self._lines.labels("dropped").set(journal.dropped)
        self._lines.labels("capped").set(journal.suppressed)

    def expires(self, upstream: str, credential: str, seconds: float) -> None:
        self._expiry.labels(upstream, credential).set(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _model(self, model: str) -> str:
        if model not in self._models and len(self._models) >= _MOST_MODELS:
            return "other"
        self._models.add(model)
        return model or "none"


def _counted(usage: Usage) -> tuple[tuple[str, int], ...]:
    return (
        ("input", usage.input),
        ("output", usage.output),
        ("cache_read", usage.cache_read),
        ("cache_write", usage.cache_write),
    )
