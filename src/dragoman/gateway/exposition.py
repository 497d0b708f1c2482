"""What was counted, as Prometheus reads it. Loaded when it first asks: the library is slow to load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from dragoman._version import __version__
from dragoman.gateway.meters import Meters, Moment

_WAY = ("dialect", "upstream", "model")
_SCOPE = ("upstream", "credential", "models", "state")
Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]  # the labels' values, and the number


def text(meters: Meters, moment: Moment) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collector(meters, moment))
    return generate_latest(registry)


class _Collector:
    """What a registry asks."""

    def __init__(self, meters: Meters, moment: Moment) -> None:
        self._meters, self._moment = meters, moment

    def collect(self) -> Iterator[Metric]:
        meters, moment = self._meters, self._moment
        yield from self._requests()
        yield _counter("notes", "Changes made by translations", ("rule",), _single(meters.notes))
        yield _counter("retries", "Attempts that failed", ("upstream", "kind"), meters.retries.items())
        hits = _single(meters.plan_cache_hits)
        yield _counter("plan_cache_hits", "Requests that followed a cached plan", ("upstream",), hits)
        resting = (((upstream, key, models, state), left) for upstream, key, models, state, left in moment.resting)
        yield _gauge("resting_seconds", "Seconds until a scope that rests is tried again", _SCOPE, resting)
        yield _gauge("unwritten_log_lines", "Dropped, or only counted", ("why",), _single(moment.lines))
        yield _gauge("inflight_bytes", "Bytes held for requests under way", (), [((), moment.held)])
        yield _gauge("inflight_requests", "Requests under way", (), [((), moment.inflight)])
        yield _gauge("credential_expiry_seconds", "Seconds until it ends", _SCOPE[:2], moment.expiry.items())
        yield _gauge("build_info", "The version", ("version",), [((__version__,), 1)])

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("dragoman_requests", "Requests answered", labels=(*_WAY, "outcome"))
        seconds = HistogramMetricFamily("dragoman_request_duration_seconds", "Whole time", labels=_WAY)
        first = HistogramMetricFamily("dragoman_time_to_first_byte_seconds", "Time to the first byte", labels=_WAY)
        tokens = CounterMetricFamily("dragoman_tokens", "Tokens as told by upstreams", labels=(*_WAY, "type"))
        for labels, tally in self._meters.tallies.items():
            for outcome, count in tally.outcomes.items():
                requests.add_metric((*labels, outcome), count)
            for family, spread in ((seconds, tally.seconds), (first, tally.first)):
                if spread.sum:
                    family.add_metric(labels, spread.buckets(), spread.sum)
            for kind, count in tally.tokens.items():
                tokens.add_metric((*labels, kind), count)
        yield from (requests, seconds, first, tokens)


def _single(counts: dict[str, int]) -> Samples:
    return (((label,), count) for label, count in counts.items())


def _counter(name: str, about: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    family = CounterMetricFamily(f"dragoman_{name}", about, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


def _gauge(name: str, about: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    family = GaugeMetricFamily(f"dragoman_{name}", about, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
