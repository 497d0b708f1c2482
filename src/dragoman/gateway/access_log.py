"""The access log: one line a request, without secrets, written so that a log reader that stops stops nothing else.

A line is written at once if that cannot block, else it waits in a small queue, else it is counted. A write of at most
4096 bytes to what `poll` calls writable does not block, so no thread is needed. A busy log is written fifty times a
second: what comes between is written in one go. Lines about refused requests are capped: a storm of them is one line.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Literal, TextIO, TypeAlias

from msgspec import Struct, field

from dragoman.gateway.redaction import Redactor
from dragoman.http.addresses import is_loopback
from dragoman.model.conversation import Stop, Usage
from dragoman.model.filter import Note
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_SAFE_BYTES = 4096  # PIPE_BUF: so much a pipe takes whole if it takes anything
_MOST_WAITING = 1024 * 1024  # bytes
_AGAIN = 0.1  # seconds
_GATHER = 0.02  # seconds after a line in which others are gathered


class LogSink:
    """Never blocks and never fails."""

    def __init__(self, stream: TextIO) -> None:
        self.dropped = 0
        self._stream = stream
        self._handle = _handle(stream)
        self._poll = _poll(self._handle)
        self._fresh: list[bytes] = []  # lines as they came
        self._waiting: deque[bytes] = deque()  # many of them
        self._size = 0  # of both
        self._timer: asyncio.TimerHandle | None = None
        self.unreported = 0  # of those dropped

    def write(self, line: bytes) -> None:
        """Write the line, with its end. It is written as it is, secrets and all."""
        if self._handle is None:
            try:
                self._stream.write(f"{line.decode()}\n")
                self._stream.flush()
            except (OSError, ValueError):
                self.dropped += 1
            return
        size = len(line) + 1
        if self._size + size > _MOST_WAITING:
            self._drop()
            return
        self._fresh.append(line)
        self._size += size
        if self._timer is None:
            self.drain()

    def drain(self) -> bool:
        """Write what waits, as far as it goes; tell whether nothing waits any more."""
        if self._fresh:
            self._waiting.append(b"\n".join([*self._fresh, b""]))
            self._fresh.clear()
        while self._waiting:
            data = self._waiting[0]
            sent = self._some(data[:_SAFE_BYTES])
            if not sent:
                self._later(_AGAIN)
                return False
            self._size -= sent
            if sent < len(data):
                self._waiting[0] = data[sent:]
            else:
                self._waiting.popleft()
        self._later(_GATHER)
        return True

    def report(self) -> int:
        """How many lines were dropped since this was last asked; 0 if there is no room to write that."""
        if self._size > _MOST_WAITING // 2:
            return 0
        lines, self.unreported = self.unreported, 0
        return lines

    def _some(self, data: bytes) -> int:
        try:
            if self._poll is not None and not self._poll.poll(0):
                return 0
            return os.write(self._handle or 0, data)
        except BlockingIOError:
            return 0
        except (OSError, ValueError):  # the stream is closed: the line is lost
            self.dropped += data.count(b"\n")
            return len(data)

    def _drop(self) -> None:
        self.dropped += 1
        self.unreported += 1

    def _later(self, seconds: float) -> None:
        if self._timer is None:
            with suppress(RuntimeError):  # no loop: the next line is written, or tried, at once
                self._timer = asyncio.get_running_loop().call_later(seconds, self._try)

    def _try(self) -> None:
        self._timer = None
        if self._size:
            self.drain()


class LogRateLimit:
    """So many of a kind within so many seconds; the rest is counted and told in one go."""

    def __init__(self, most: int = 100, seconds: float = 10.0, kinds: int = 16) -> None:
        self.suppressed = 0
        self._most, self._seconds, self._kinds = most, seconds, kinds
        self._began = 0.0
        self._seen: dict[Hashable, int] = {}

    def allows(self, kind: Hashable, now: float, tell: Callable[[Hashable, int], None]) -> bool:
        """Whether one more of this kind may be written. `tell` hears of those of the last span that were not."""
        if now - self._began >= self._seconds:
            self.turn(now, tell)
        if kind not in self._seen and len(self._seen) >= self._kinds:
            kind = None
        seen = self._seen[kind] = self._seen.get(kind, 0) + 1
        if seen <= self._most:
            return True
        self.suppressed += 1
        return False

    def turn(self, now: float, tell: Callable[[Hashable, int], None]) -> None:
        """Begin another span."""
        seen, self._seen, self._began = self._seen, {}, now
        for kind, count in seen.items():
            if count > self._most:
                tell(kind, count - self._most)


def _handle(stream: TextIO) -> int | None:
    """The descriptor behind a stream; None for one that only is in memory."""
    try:
        stream.flush()
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _poll(handle: int | None) -> select.poll | None:
    if handle is None or not hasattr(select, "poll"):
        return None
    poll = select.poll()
    poll.register(handle, select.POLLOUT)
    return poll


# --- lines


Outcome: TypeAlias = Literal["ok", "refused", "failed", "broken", "gone", "cut", "bug"]
Level: TypeAlias = Literal["debug", "info", "warning", "error"]

_RANKS: dict[Level, int] = {"debug": 0, "info": 1, "warning": 2, "error": 3}
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
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_TOLD_AFTER = 10.0  # seconds
_MOST_CLEAN = 256  # what is remembered of one second
_Words: TypeAlias = tuple[str, str, str, str]


_MAY_BE_EMPTY = "dialect", "operation", "model", "upstream", "upstream_dialect", "used_model"  # in a log line


class Record(Struct):
    """One request as it went, written down when it is over."""

    id: str
    method: str
    path: str
    dialect: str = ""
    operation: str = ""
    model: str = ""
    used_model: str = ""
    upstream: str = ""
    upstream_dialect: str = ""
    streamed: bool = False
    verbatim: bool = False
    status: int = 0
    attempts: int = 0
    failed_attempts: list[str] = []  # what went wrong before it went well
    notes: list[Note] = []
    usage: Usage | None = None
    stop: Stop | None = None
    first_byte: float | None = None  # seconds
    total: float = 0.0
    outcome: Outcome = "ok"
    error: str = ""
    client: str = ""  # its address
    began: float = field(default_factory=time.monotonic)
    on_finished: Callable[[], None] | None = None  # to be called when the client has its answer

    def mark_first_byte(self) -> None:
        if self.first_byte is None:
            self.first_byte = time.monotonic() - self.began

    def fields(self, now: str, level: Level) -> dict[str, Json]:
        """The line as JSON, in its order; what there is nothing to say about is left out."""
        usage, notes, first = self.usage, self.notes, self.first_byte
        line: dict[str, Json] = {
            "ts": now,
            "level": level,
            "event": "request",
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
        for name in _MAY_BE_EMPTY:
            if not line[name]:
                del line[name]
        if self.failed_attempts:
            line["tried"] = [*self.failed_attempts]
        if usage is not None:
            line["input_tokens"], line["output_tokens"] = usage.input, usage.output
            line["cache_read_tokens"], line["cache_write_tokens"] = usage.cache_read, usage.cache_write
            line["tokens_estimated"] = usage.estimated
        if first is not None:
            line["first_byte_ms"] = round(first * 1000, 1)
        line["total_ms"], line["notes"] = round(self.total * 1000, 1), len(notes)
        if notes:
            line["rules"] = [*dict.fromkeys([note.rule for note in notes])]
        if self.stop is not None:
            line["stop"] = self.stop.reason.value
        if self.error:
            line["error"] = self.error
        if self.client:
            line["client"] = self.client
        return line

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
            self.stop.reason.value if self.stop else "",
            f"{len(self.notes)} notes" if self.notes else "",
            f"{self.attempts} attempts" if self.attempts > 1 else "",
            "" if self.outcome == "ok" else f"{self.outcome.upper()} {self.error}".strip(),
            f"from {self.client}" if self.client and not is_loopback(self.client) else "",
            self.id,
        ]
        return "  ".join(part for part in parts if part)


def _input(usage: Usage) -> int:
    return usage.input + usage.cache_read + usage.cache_write


class AccessLog:
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
        self._least = _RANKS[level]
        self._sink = LogSink(self._stream)
        self._cap = LogRateLimit()
        self._second, self._stamp = 0, ""  # the last one that was told
        self._clean: dict[_Words, _Words] = {}  # what was said in it, and the same without secrets
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
        """Write the line of a request that is over."""
        level = _LEVEL_OF[record.outcome]
        if _RANKS[level] < self._least:
            return
        if record.outcome == "refused" and not self._cap.allows(record.status, time.monotonic(), self._tell_capped):
            if self._turn is None:  # a storm that ends shall be told too
                with suppress(RuntimeError):  # no loop: the next line tells it
                    self._turn = asyncio.get_running_loop().call_later(_TOLD_AFTER, self._turned)
            return
        now = self._now()
        words = record.method, record.path, record.model, record.used_model
        record.method, record.path, record.model, record.used_model = self._clean.get(words) or self._cleaned(words)
        if record.error:
            record.error = self.redactor.message(record.error)
        if self._json:
            self._write(record.fields(now, level))
        else:
            self._shown(now, level, record.line())

    def event(self, level: Level, event: str, **fields: Json) -> None:
        """Tell something that is no request."""
        if _RANKS[level] >= self._least:
            now, mask = self._now(), self.redactor.text
            if self._json:
                self._write({"ts": now, "level": level, "event": event, **fields}, mask)
            else:
                said = " ".join(f"{name}={value}" for name, value in fields.items())
                self._shown(now, level, mask(f"{event}  {said}".rstrip()))

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

    def _turned(self) -> None:
        self._turn = None
        self._cap.turn(time.monotonic(), self._tell_capped)

    def _shown(self, now: str, level: Level, text: str) -> None:
        mark = "" if level == "info" else f"{level.upper()} "
        # What a model or an upstream said may hold escape codes.
        self._write(CONTROL.sub(" ", f"{now[11:19]} {mark}{text}").encode("utf-8", "replace"))

    def _write(self, line: dict[str, Json] | bytes, mask: Callable[[str], str] | None = None) -> None:
        """Write a line, as JSON or as its bytes are. It has no secrets in it, or `mask` takes them out."""
        try:
            text = line if isinstance(line, bytes) else jsonio.encode(line)
        except ValueError:  # a value that JSON cannot hold
            self._sink.dropped += 1
            return
        if mask is not None:
            text = mask(text.decode()).encode()
        if self._sink.unreported and (lost := self._sink.report()):
            self.event("warning", "dropped", what="log lines that nobody read in time", lines=lost)
        self._sink.write(text)

    def _cleaned(self, words: _Words) -> _Words:
        """Words of others without secrets. Requests repeat them: they are looked through once a second."""
        if len(self._clean) >= _MOST_CLEAN:
            self._clean.clear()
        method, path, model, used_model = map(self.redactor.text, words)
        clean = self._clean[words] = method, path, model, used_model
        return clean

    def _now(self) -> str:
        """The time, to the millisecond."""
        second, rest = divmod(int(time.time() * 1000), 1000)
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._clean.clear()
        return f"{self._stamp}.{rest:03}Z"

    def _is_terminal(self) -> bool:
        try:
            return self._stream.isatty()
        except (OSError, ValueError):
            return False
