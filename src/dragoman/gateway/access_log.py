"""The access log: one line per request, without secrets. A slow reader of the log does not delay any request.

A line is written at once if the write cannot block. Otherwise it waits in a small queue; when the queue is full, the
line is dropped and counted. A write of at most 4096 bytes to a descriptor that `poll` reports as writable does not
block, so no thread is needed. A busy log is written fifty times a second: lines in between are joined into one write.
Lines about refused requests are rate limited: a flood of them becomes one line with a count.
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

_SAFE_BYTES = 4096  # PIPE_BUF: a writable pipe accepts this many bytes without blocking
_MAX_QUEUED = 1024 * 1024  # bytes
_RETRY_DELAY = 0.1  # seconds
_GATHER = 0.02  # seconds after a write in which further lines are gathered


class LogSink:
    """Writes lines to a stream. It never blocks and never raises; lines that do not fit are dropped and counted."""

    def __init__(self, stream: TextIO) -> None:
        self.dropped = 0
        self._stream = stream
        self._handle = _handle(stream)
        self._poll = _poll(self._handle)
        self._fresh: list[bytes] = []  # single lines, not joined yet
        self._waiting: deque[bytes] = deque()  # joined lines
        self._size = 0  # bytes in both
        self._timer: asyncio.TimerHandle | None = None
        self.unreported = 0  # dropped lines that no log line has reported yet

    def write(self, line: bytes) -> None:
        """Write the line and a line end. The caller has removed secrets from it."""
        if self._handle is None:
            try:
                self._stream.write(f"{line.decode()}\n")
                self._stream.flush()
            except (OSError, ValueError):
                self.dropped += 1
            return
        size = len(line) + 1
        if self._size + size > _MAX_QUEUED:
            self._drop()
            return
        self._fresh.append(line)
        self._size += size
        if self._timer is None:
            self.drain()

    def drain(self) -> bool:
        """Write queued lines until the stream blocks. Return whether the queue is empty."""
        if self._fresh:
            self._waiting.append(b"\n".join([*self._fresh, b""]))
            self._fresh.clear()
        while self._waiting:
            data = self._waiting[0]
            sent = self._some(data[:_SAFE_BYTES])
            if not sent:
                self._later(_RETRY_DELAY)
                return False
            self._size -= sent
            if sent < len(data):
                self._waiting[0] = data[sent:]
            else:
                self._waiting.popleft()
        self._later(_GATHER)
        return True

    def report(self) -> int:
        """Return how many lines were dropped since the last call; 0 while the queue has no room to log it."""
        if self._size > _MAX_QUEUED // 2:
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
        except (OSError, ValueError):  # The stream is closed: the lines are lost.
            self.dropped += data.count(b"\n")
            return len(data)

    def _drop(self) -> None:
        self.dropped += 1
        self.unreported += 1

    def _later(self, seconds: float) -> None:
        if self._timer is None:
            with suppress(RuntimeError):  # Without a running loop, the next `write` drains the queue.
                self._timer = asyncio.get_running_loop().call_later(seconds, self._try)

    def _try(self) -> None:
        self._timer = None
        if self._size:
            self.drain()


class LogRateLimit:
    """Allows `most` lines of each kind within `seconds`, and counts the rest. It tracks at most `kinds` kinds."""

    def __init__(self, most: int = 100, seconds: float = 10.0, kinds: int = 16) -> None:
        self.suppressed = 0
        self._most, self._seconds, self._kinds = most, seconds, kinds
        self._began = 0.0
        self._seen: dict[Hashable, int] = {}

    def allows(self, kind: Hashable, now: float, report: Callable[[Hashable, int], None]) -> bool:
        """Return whether one more line of this kind may be written.

        When a window has ended, `report` gets each kind with its number of suppressed lines.
        """
        if now - self._began >= self._seconds:
            self.start_window(now, report)
        if kind not in self._seen and len(self._seen) >= self._kinds:
            kind = None
        seen = self._seen[kind] = self._seen.get(kind, 0) + 1
        if seen <= self._most:
            return True
        self.suppressed += 1
        return False

    def start_window(self, now: float, report: Callable[[Hashable, int], None]) -> None:
        """Start a new window, and report the suppressed lines of the last one."""
        seen, self._seen, self._began = self._seen, {}, now
        for kind, count in seen.items():
            if count > self._most:
                report(kind, count - self._most)


def _handle(stream: TextIO) -> int | None:
    """Return the file descriptor of a stream; None for one in memory."""
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
# The level of each outcome. A refused request and a disconnected client are no fault of the gateway.
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
_SUPPRESSED_REPORT_DELAY = 10.0  # seconds
_MAX_REDACTED = 256  # entries of the cache of redacted fields
_ClientFields: TypeAlias = tuple[str, str, str, str]  # method, path, model, used_model


_MAY_BE_EMPTY = "dialect", "operation", "model", "upstream", "upstream_dialect", "used_model"  # in a log line


class Record(Struct):
    """The outcome of one request, collected while it runs and logged when it has ended."""

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
    failed_attempts: list[str] = []  # upstream, error kind and status of each
    notes: list[Note] = []
    usage: Usage | None = None
    stop: Stop | None = None
    first_byte: float | None = None  # seconds
    total: float = 0.0
    outcome: Outcome = "ok"
    error: str = ""
    client: str = ""  # IP address
    began: float = field(default_factory=time.monotonic)
    on_finished: Callable[[], None] | None = None  # called when the response has been sent

    def mark_first_byte(self) -> None:
        """Store the time to the first byte; later calls change nothing."""
        if self.first_byte is None:
            self.first_byte = time.monotonic() - self.began

    def fields(self, now: str, level: Level) -> dict[str, Json]:
        """Return the fields of the JSON line, in order; unknown ones are left out."""
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
        """Return the line in the text format."""
        model = self.model if self.used_model in ("", self.model) else f"{self.model} as {self.used_model}"
        first = "" if self.first_byte is None else f"first byte {self.first_byte * 1000:.0f} ms, "
        parts = [
            f"{self.status or '---'} {self.method} {self.path}",
            f"{self.dialect or '-'} → {self.upstream or '-'}",
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
    """Writes log lines: as text to a terminal, as JSON elsewhere. It never raises: no request fails because of it."""

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
        self._rate_limit = LogRateLimit()
        self._second, self._stamp = 0, ""  # the current second, and its time stamp
        self._redacted: dict[_ClientFields, _ClientFields] = {}  # cached for the current second
        self._report_timer: asyncio.TimerHandle | None = None

    @property
    def dropped(self) -> int:
        """Lines dropped because their reader was too slow."""
        return self._sink.dropped

    @property
    def suppressed(self) -> int:
        """Lines about refused requests that were counted, not written."""
        return self._rate_limit.suppressed

    def request(self, record: Record) -> None:
        """Write the line of a request that has ended."""
        level = _LEVEL_OF[record.outcome]
        if _RANKS[level] < self._least:
            return
        if record.outcome == "refused" and not self._rate_limit.allows(
            record.status, time.monotonic(), self._log_suppressed
        ):
            if self._report_timer is None:  # The count is also logged if no further line follows.
                with suppress(RuntimeError):  # Without a running loop, the next line logs the count.
                    loop = asyncio.get_running_loop()
                    self._report_timer = loop.call_later(_SUPPRESSED_REPORT_DELAY, self._report_suppressed)
            return
        now = self._now()
        given = record.method, record.path, record.model, record.used_model
        record.method, record.path, record.model, record.used_model = self._redacted.get(given) or self._redact(given)
        if record.error:
            record.error = self.redactor.message(record.error)
        if self._json:
            self._write(record.fields(now, level))
        else:
            self._write_text(now, level, record.line())

    def event(self, level: Level, event: str, **fields: Json) -> None:
        """Write a line about something other than a request."""
        if _RANKS[level] >= self._least:
            now, mask = self._now(), self.redactor.text
            if self._json:
                self._write({"ts": now, "level": level, "event": event, **fields}, mask)
            else:
                text = " ".join(f"{name}={value}" for name, value in fields.items())
                self._write_text(now, level, mask(f"{event}  {text}".rstrip()))

    def bug(self, identity: str, error: BaseException) -> None:
        """Log an unexpected exception with its traceback."""
        stack = "".join(traceback.format_exception(error))
        self.event("error", "bug", request_id=identity, error=f"{type(error).__name__}: {error}", traceback=stack)

    def close(self) -> None:
        """Log the number of suppressed lines, and write queued lines as far as that does not block."""
        self._rate_limit.start_window(time.monotonic(), self._log_suppressed)
        self._sink.drain()

    def _log_suppressed(self, status: Hashable, count: int) -> None:
        code = status if isinstance(status, int) else None
        self.event("info", "suppressed", what="refused requests", status=code, lines=count)

    def _report_suppressed(self) -> None:
        self._report_timer = None
        self._rate_limit.start_window(time.monotonic(), self._log_suppressed)

    def _write_text(self, now: str, level: Level, text: str) -> None:
        mark = "" if level == "info" else f"{level.upper()} "
        # Text of a model or an upstream may contain escape codes of terminals.
        self._write(CONTROL.sub(" ", f"{now[11:19]} {mark}{text}").encode("utf-8", "replace"))

    def _write(self, line: dict[str, Json] | bytes, mask: Callable[[str], str] | None = None) -> None:
        """Write a line: fields as JSON, bytes unchanged. It has no secrets in it, or `mask` removes them."""
        try:
            text = line if isinstance(line, bytes) else jsonio.encode(line)
        except ValueError:  # JSON cannot represent a value.
            self._sink.dropped += 1
            return
        if mask is not None:
            text = mask(text.decode()).encode()
        if self._sink.unreported and (lost := self._sink.report()):
            self.event("warning", "dropped", what="log lines dropped because their reader was too slow", lines=lost)
        self._sink.write(text)

    def _redact(self, given: _ClientFields) -> _ClientFields:
        """Remove secrets from fields that clients choose. Requests repeat them, so results are cached for a second."""
        if len(self._redacted) >= _MAX_REDACTED:
            self._redacted.clear()
        method, path, model, used_model = map(self.redactor.text, given)
        redacted = self._redacted[given] = method, path, model, used_model
        return redacted

    def _now(self) -> str:
        """Return the time in UTC, to the millisecond."""
        second, rest = divmod(int(time.time() * 1000), 1000)
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._redacted.clear()
        return f"{self._stamp}.{rest:03}Z"

    def _is_terminal(self) -> bool:
        try:
            return self._stream.isatty()
        except (OSError, ValueError):
            return False
