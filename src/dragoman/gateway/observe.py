"""What the gateway tells about its work: one line a request, counters for Prometheus, and no secret in either."""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Literal, TextIO, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dragoman._version import __version__
from dragoman.model.conversation import Stop, Usage
from dragoman.model.notes import Note
from dragoman.wire import jsonio
from dragoman.wire.http import Headers
from dragoman.wire.jsonio import Json

Outcome: TypeAlias = Literal["ok", "refused", "failed", "broken", "gone", "cut", "bug"]
Level: TypeAlias = Literal["debug", "info", "warning", "error"]

MASK = "***"
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
_SECRET_NAME = re.compile(r"auth|cookie|api-?key|token|secret|password|credential|signature", re.IGNORECASE)
_SECRET_SHAPE = re.compile(
    r"\b(?:sk-[\w-]{16,}|dgm_[\w-]{16,}|A[KS]IA[0-9A-Z]{16}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?|aoa[\w-]{16,}|ksk_[\w-]{16,})"
)
_SHORTEST_SECRET = 6  # shorter ones would mask common words
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MOST_MODELS = 100  # different values of a label
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 300.0)


class Redactor:
    """Masks secrets: by their values, by the shapes of well-known ones, and headers by their names."""

    def __init__(self, secrets: Callable[[], Iterable[str]] = tuple) -> None:
        self._secrets = secrets  # asked each time: a secret is found when it is first needed

    def text(self, text: str) -> str:
        for secret in self._secrets():
            if len(secret) >= _SHORTEST_SECRET and secret in text:
                text = text.replace(secret, MASK)
        return _SECRET_SHAPE.sub(MASK, text)

    def headers(self, headers: Headers) -> Headers:
        return tuple(
            (name, MASK if _SECRET_NAME.search(name) and value else self.text(value)) for name, value in headers
        )


class Record:
    """One request as it went, written down when it is over."""

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
            "tried": list(self.tried),
            **({} if self.usage is None else _tokens(self.usage)),
            "first_byte_ms": None if self.first_byte is None else round(self.first_byte * 1000, 1),
            "total_ms": round(self.total * 1000, 1),
            "notes": len(self.notes),
            "rules": list(dict.fromkeys(note.rule for note in self.notes)),
            "stop": self.stop.why.value if self.stop else None,
            "error": self.error,
        }
        return {name: value for name, value in told.items() if value is not None and value not in ("", [])}

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
        self.dropped = 0

    def request(self, record: Record) -> None:
        level = _LEVEL_OF[record.outcome]
        if self._wants(level):
            self._write(level, "request", record.fields() if self._json else {}, record.line())

    def event(self, level: Level, event: str, **fields: Json) -> None:
        """Tell something that is no request."""
        if self._wants(level):
            said = " ".join(f"{name}={value}" for name, value in fields.items())
            self._write(level, event, fields, f"{event}  {said}".rstrip())

    def bug(self, identity: str, error: BaseException) -> None:
        """Tell of an error that nobody foresaw, with the way to it."""
        way = "".join(traceback.format_exception(error))
        self.event("error", "bug", request_id=identity, error=f"{type(error).__name__}: {error}", traceback=way)

    def _wants(self, level: Level) -> bool:
        return _LEVELS.index(level) >= self._least

    def _write(self, level: Level, event: str, fields: dict[str, Json], text: str) -> None:
        try:
            now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            if self._json:
                line = jsonio.encode({"ts": now, "level": level, "event": event, **fields}).decode()
            else:  # what a model or an upstream said may hold escape codes
                mark = "" if level == "info" else f"{level.upper()} "
                line = _CONTROL.sub(" ", f"{now[11:19]} {mark}{text}")
            self._stream.write(self.redactor.text(line) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self.dropped += 1

    def _is_terminal(self) -> bool:
        try:
            return self._stream.isatty()
        except (OSError, ValueError):
            return False


class Meters:
    """Counters in Prometheus' form, in a registry of their own. Labels come from closed sets, or are capped."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry(auto_describe=True)
        way = ("dialect", "upstream", "model")
        self._requests = Counter("dragoman_requests", "Requests answered", (*way, "outcome"), registry=registry)
        self._seconds = Histogram(
            "dragoman_request_duration_seconds", "Whole time", way, buckets=_SECONDS, registry=registry
        )
        self._first = Histogram(
            "dragoman_time_to_first_byte_seconds", "Time to the first byte", way, buckets=_SECONDS, registry=registry
        )
        self._tokens = Counter("dragoman_tokens", "Tokens as told by upstreams", (*way, "type"), registry=registry)
        self._notes = Counter("dragoman_notes", "Changes made by translations", ("rule",), registry=registry)
        self._retries = Counter("dragoman_retries", "Attempts that failed", ("upstream", "kind"), registry=registry)
        self.inflight = Gauge("dragoman_inflight_requests", "Requests under way", registry=registry)
        self._expiry = Gauge(
            "dragoman_credential_expiry_seconds", "Seconds until it ends", ("upstream", "credential"), registry=registry
        )
        Gauge("dragoman_build_info", "The version", ("version",), registry=registry).labels(__version__).set(1)
        self._models: set[str] = set()

    def request(self, record: Record) -> None:
        way = (record.dialect or "none", record.upstream or "none", self._model(record.used_model))
        self._requests.labels(*way, record.outcome).inc()
        if not record.upstream:
            return
        self._seconds.labels(*way).observe(record.total)
        if record.first_byte is not None:
            self._first.labels(*way).observe(record.first_byte)
        for kind, count in _counted(record.usage):
            self._tokens.labels(*way, kind).inc(count)
        for note in record.notes:
            self._notes.labels(note.rule).inc()

    def retry(self, upstream: str, kind: str) -> None:
        self._retries.labels(upstream, kind).inc()

    def expires(self, upstream: str, credential: str, seconds: float) -> None:
        self._expiry.labels(upstream, credential).set(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _model(self, model: str) -> str:
        if model not in self._models and len(self._models) >= _MOST_MODELS:
            return "other"
        self._models.add(model)
        return model or "none"


def _counted(usage: Usage | None) -> Iterator[tuple[str, int]]:
    if usage is not None:
        yield from (("input", usage.input), ("output", usage.output))
        yield from (("cache_read", usage.cache_read), ("cache_write", usage.cache_write))
