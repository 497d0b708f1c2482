"""What the gateway tells about its work: one line a request, counters for Prometheus, and no secret in either."""

from __future__ import annotations

import asyncio
import re
import sys
import time
import traceback
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import accumulate
from typing import Literal, TextIO, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from dragoman._version import __version__
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.sink import Cap, Sink
from dragoman.model.conversation import Stop, Usage
from dragoman.model.notes import Note
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

Outcome: TypeAlias = Literal["ok", "refused", "failed", "broken", "gone", "cut", "bug"]
Level: TypeAlias = Literal["debug", "info", "warning", "error"]

_LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
# How each outcome is taken: a refusal is the client's affair, a client that left nobody's.
_LEVEL_OF: dict[Outcome, Level] = {
    "ok": "info",
    "refused": "info",
    "gone": "info",
    "failed": "warning",
    "broken": "warning",
    "cut": "warning",
    "bug": "error",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_TOLD_AFTER = 10.0  # seconds
_MOST_MODELS = 100  # different values of a label
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 300.0)


class Record:
    """One request as it went, written down when it is over."""

    __slots__ = (
        "_clock",
        "at",
        "attempts",
        "dialect",
        "error",
        "first_byte",
        "id",
        "method",
        "model",
        "notes",
        "operation",
        "outcome",
        "path",
        "status",
        "stop",
        "streamed",
        "total",
        "tried",
        "upstream",
        "upstream_dialect",
        "usage",
        "used_model",
        "verbatim",
    )

    def __init__(self, identity: str, method: str, path: str) -> None:
        self.id = identity
        self.method, self.path = method, path
        self.at = time.time()
        self._clock = time.monotonic()
        self.dialect = ""
        self.operation = ""
        self.model = self.used_model = ""
        self.upstream = self.upstream_dialect = ""
        self.streamed = self.verbatim = False
        self.status = 0
        self.attempts = 0
        self.tried: list[str] = []  # what went wrong before it went well
        self.notes: list[Note] = []
        self.usage: Usage | None = None
        self.stop: Stop | None = None
        self.first_byte: float | None = None  # seconds
        self.total = 0.0
        self.outcome: Outcome = "ok"
        self.error = ""

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._clock

    def first(self) -> None:
        if self.first_byte is None:
            self.first_byte = self.elapsed

    def end(self) -> None:
        self.total = self.elapsed

    def fields(self) -> dict[str, Json]:
        """What a line says, in its order; what there is nothing to say about is left out."""
        told: dict[str, Json] = {
            "request_id": self.id,
            "method": self.method,
            "path": self.path,
            "dialect": self.dialect,
            "operation": self.operation,
            "model": self.model,
            "upstream": self.upstream,
            "upstream_dialect": self.upstream_dialect,
            "used_model": self.used_model,
            "status": self.status,
            "outcome": self.outcome,
            "stream": self.streamed,
            "verbatim": self.verbatim,
            "attempts": self.attempts,
        }
        if self.tried:
            told["tried"] = list(self.tried)
        if self.usage is not None:
            told |= _tokens(self.usage)
        if self.first_byte is not None:
            told["first_byte_ms"] = round(self.first_byte * 1000, 1)
        told["total_ms"] = round(self.total * 1000, 1)
        told["notes"] = len(self.notes)
        if self.notes:
            told["rules"] = list(dict.fromkeys(note.rule for note in self.notes))
        if self.stop:
            told["stop"] = self.stop.why.value
        if self.error:
            told["error"] = self.error
        return {name: value for name, value in told.items() if value != ""}

    def line(self) -> str:
        """The same for people."""
        way = f"{self.dialect or '-'} → {self.upstream or '-'}"
        model = self.model if self.used_model in ("", self.model) else f"{self.model} as {self.used_model}"
        first = "" if self.first_byte is None else f"first byte {self.first_byte * 1000:.0f} ms, "
        parts = [
            f"{self.status or '---'} {self.method} {self.path}",
            way,
            model,
            f"{first}{self.total * 1000:.0f} ms",
            "" if self.usage is None else f"{_input(self.usage)} in, {self.usage.output} out",
            self.stop.why.value if self.stop else "",
            f"{len(self.notes)} notes" if self.notes else "",
            f"{self.attempts} attempts" if self.attempts > 1 else "",
            "" if self.outcome == "ok" else f"{self.outcome.upper()} {self.error}".strip(),
            self.id,
        ]
        return "  ".join(part for part in parts if part)


def _tokens(usage: Usage) -> dict[str, Json]:
    return {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_tokens": usage.cache_read,
        "cache_write_tokens": usage.cache_write,
        "tokens_estimated": usage.estimated,
    }


def _input(usage: Usage) -> int:
    return usage.input + usage.cache_read + usage.cache_write


class Journal:
    """Writes the lines: for people on a terminal, as JSON elsewhere. It never fails: a log is not worth a request."""

    def __init__(
        self,
        redactor: Redactor,
        *,
        stream: TextIO | None = None,
        form: Literal["auto", "text", "json"] = "auto",
        level: Level = "info",
    ) -> None:
        self.redactor = redactor
        self._stream = stream if stream is not None else sys.stderr
        self._json = form == "json" or (form == "auto" and not self._is_terminal())
        self._least = _LEVELS.index(level)
        self._sink = Sink(self._stream)
        self._cap = Cap()
        self._turn: asyncio.TimerHandle | None = None

    @property
    def dropped(self) -> int:
        """Lines that nobody read in time."""
        return self._sink.dropped

    @property
    def suppressed(self) -> int:
        """Lines about refused requests that were only counted."""
        return self._cap.suppressed

    def request(self, record: Record) -> None:
        level = _LEVEL_OF[record.outcome]
        if not self._wants(level):
            return
        if record.outcome == "refused" and not self._cap.allows(record.status, time.monotonic(), self._tell_capped):
            self._tell_soon()
            return
        if self._json:
            self._write(level, "request", record.fields(), "")
        else:
            self._write(level, "request", {}, record.line())

    def event(self, level: Level, event: str, **fields: Json) -> None:
        """Tell something that is no request."""
        if self._wants(level):
            said = " ".join(f"{name}={value}" for name, value in fields.items())
            self._write(level, event, fields, f"{event}  {said}".rstrip())

    def bug(self, identity: str, error: BaseException) -> None:
        """Tell of an error that nobody foresaw, with the way to it."""
        way = "".join(traceback.format_exception(error))
        self.event("error", "bug", request_id=identity, error=f"{type(error).__name__}: {error}", traceback=way)

    def close(self) -> None:
        """Write what can be written, and tell what was not."""
        self._cap.turn(time.monotonic(), self._tell_capped)
        self._sink.drain()

    def _tell_capped(self, status: Hashable, count: int) -> None:
        told = status if isinstance(status, int) else None
        self.event("info", "suppressed", what="refused requests", status=told, lines=count)

    def _tell_soon(self) -> None:
        """A storm that ends shall be told too."""
        if self._turn is None:
            with suppress(RuntimeError):  # no loop: the next line tells it
                self._turn = asyncio.get_running_loop().call_later(_TOLD_AFTER, self._turned)

    def _turned(self) -> None:
        self._turn = None
        self._cap.turn(time.monotonic(), self._tell_capped)

    def _wants(self, level: Level) -> bool:
        return _LEVELS.index(level) >= self._least

    def _write(self, level: Level, event: str, fields: dict[str, Json], text: str) -> None:
        if lost := self._sink.untold:
            self.event("warning", "dropped", what="log lines that nobody read in time", lines=lost)
        try:
            now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            if self._json:
                line = jsonio.encode({"ts": now, "level": level, "event": event, **fields}).decode()
            else:  # what a model or an upstream said may hold escape codes
                mark = "" if level == "info" else f"{level.upper()} "
                line = _CONTROL.sub(" ", f"{now[11:19]} {mark}{text}")
        except ValueError:  # a value that JSON cannot hold
            self._sink.dropped += 1
            return
        self._sink.write(self.redactor.text(line))

    def _is_terminal(self) -> bool:
        try:
            return self._stream.isatty()
        except (OSError, ValueError):
            return False


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
