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
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Literal, TextIO, TypeAlias

from msgspec import Struct

from dragoman.gateway.log_rate_limit import LogRateLimit
from dragoman.gateway.records import (
    LEVEL_OF,
    RANKS,
    FailedAttempt,
    LoggedRequest,
    LogLevel,
    LogLine,
    Record,
    event_text,
    local_time,
    request_text,
)
from dragoman.gateway.redaction import Redactor
from dragoman.model.filter import Note
from dragoman.store.interface import GATEWAY_KEY
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

LogFormat: TypeAlias = Literal["auto", "text", "json"]

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


# --- the last lines, kept in memory. `recent` reads them


MAX_REQUESTS = 1000  # requests that reached an upstream, or failed here
MAX_REFUSED = 200  # requests that were refused before an upstream was chosen
MAX_EVENTS = 500
MAX_BYTES = 4 * 1024 * 1024  # of all entries
_REQUEST_BYTES = MAX_BYTES * 6 // 8
_OTHER_BYTES = MAX_BYTES // 8  # for each of the other two queues
MAX_NOTES = 200  # notes that an entry keeps
_ENTRY_SIZE = 200  # bytes of an entry besides its line
_NOTE_SIZE = 200  # bytes of a note besides its texts
_FAILURE_SIZE = 500  # bytes of a failed attempt


class RecentEntry(Struct, frozen=True, gc=False):
    """One request or event. `at` is when it ended or happened, in seconds of the epoch."""

    number: int
    at: float
    line: bytes  # JSON
    notes: Sequence[Note] = ()
    failures: Sequence[FailedAttempt] = ()

    @property
    def size(self) -> int:
        """The bytes that the entry takes; what it shares with others is not counted."""
        size = _ENTRY_SIZE + len(self.line)
        if self.notes or self.failures:
            size += _FAILURE_SIZE * len(self.failures)
            size += sum([_NOTE_SIZE + len(note.at) + len(note.detail) for note in self.notes])
        return size


class EntryQueue:
    """Entries in order, limited by number and bytes."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.entries: deque[RecentEntry] = deque()
        self.bytes = 0
        self.has_dropped = False
        self._most, self._most_bytes = most, most_bytes

    def add(self, entry: RecentEntry) -> None:
        """Add an entry, and drop the oldest ones that no longer fit."""
        entries = self.entries
        entries.append(entry)
        self.bytes += entry.size
        while len(entries) > self._most or self.bytes > self._most_bytes:
            self.bytes -= entries.popleft().size
            self.has_dropped = True

    def after(self, number: int) -> list[RecentEntry]:
        """Return the entries with higher numbers, in order."""
        found = list(takewhile(lambda entry: entry.number > number, reversed(self.entries)))
        found.reverse()
        return found


class RecentEntries:
    """The last requests and events.

    An entry is the JSON line of the log, which is made once and has no secrets in it, and for a request its notes and
    failed attempts as they are. A line is one block of memory: to keep the record of a request with all its values
    would cost the next requests more, because they would find none of their memory in a cache of the processor.

    There are three queues, so that a flood of refused requests cannot push out the requests that upstreams answered.
    Entries of all queues are numbered in the order in which they came.
    """

    def __init__(self) -> None:
        self.requests = EntryQueue(MAX_REQUESTS, _REQUEST_BYTES)
        self.refused = EntryQueue(MAX_REFUSED, _OTHER_BYTES)
        self.events = EntryQueue(MAX_EVENTS, _OTHER_BYTES)
        self.number = 0  # of the last entry

    def add(self, at: float, line: bytes, record: Record) -> None:
        """Keep the line of a request that has ended, and what its record has besides it."""
        self.number = number = self.number + 1
        queue = self.refused if record.outcome == "refused" and not record.upstream else self.requests
        if record.notes or record.failures:
            queue.add(RecentEntry(number, at, line, tuple(record.notes[:MAX_NOTES]), tuple(record.failures)))
        else:
            queue.add(RecentEntry(number, at, line))

    def add_event(self, at: float, line: bytes) -> None:
        """Keep the line of an event."""
        self.number = number = self.number + 1
        self.events.add(RecentEntry(number, at, line))


# --- lines


_NO_TOKENS = (None, None, None, None)


def cache_share(read: int, total: int) -> float | None:
    """Return the share of all input tokens that came from a prompt cache; None without input."""
    return round(read / total, 3) if total else None


def logged_request(record: Record, now: str) -> LoggedRequest:
    """Return the typed form of a request, without details; `now` is when the request ended."""
    usage, stop, notes, first = record.usage, record.stop, record.notes, record.first_byte
    tokens = _NO_TOKENS if usage is None else (usage.input, usage.output, usage.cache_read, usage.cache_write)
    return LoggedRequest(  # Arguments by position: by name they would take twenty times as long.
        now,
        LEVEL_OF[record.outcome],
        "request",
        record.id,
        record.method,
        record.path,
        record.status,
        record.outcome,
        record.streamed,
        record.verbatim,
        record.attempts,
        round(record.total * 1000, 1),
        len(notes),
        record.dialect,
        record.operation,
        record.model,
        record.upstream,
        record.upstream_dialect,
        record.used_model,
        record.credential,
        tuple(map(str, record.failures)) if record.failures else (),
        tokens[0],
        tokens[1],
        tokens[2],
        tokens[3],
        None if usage is None else usage.estimated,
        None if first is None else round(first * 1000, 1),
        tuple(dict.fromkeys([note.rule for note in notes])) if notes else (),
        "" if stop is None else stop.reason.value,
        record.error,
        record.client,
        "" if record.account is None or record.account.id == GATEWAY_KEY else record.account.id,
        record.cost,
        None if usage is None else cache_share(usage.cache_read, usage.input + usage.cache_read + usage.cache_write),
        tuple(dict.fromkeys(record.tools)),
    )


CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_SUPPRESSED_REPORT_DELAY = 10.0  # seconds
_MAX_REDACTED = 256  # entries of the cache of redacted fields
_MAX_NOTE_LINES = 200  # of one request, at level debug
_LONGEST_NAME = 256  # characters of the name of a tool
_ClientFields: TypeAlias = tuple[str, str, str, str]  # method, path, model, used_model


class AccessLog:
    """Writes log lines: as text to a terminal, as JSON elsewhere. It never raises: no request fails because of it.

    It also keeps the last requests and events (`recent_entries`), whatever the level is.
    """

    def __init__(
        self,
        redactor: Redactor,
        *,
        stream: TextIO | None = None,
        form: LogFormat = "auto",
        level: LogLevel = "info",
    ) -> None:
        self.redactor = redactor
        self.recent_entries = RecentEntries()
        self.on_level: Callable[[LogLevel], None] = _ignore_level  # called when the level changes
        self._stream = stream if stream is not None else sys.stderr
        self.configure(form, level)
        self._sink = LogSink(self._stream)
        self._rate_limit = LogRateLimit()
        self._second, self._stamp, self._local = 0, "", ""  # the current second, and its time stamps
        self._redacted: dict[_ClientFields, _ClientFields] = {}  # cached for the current second
        self._redacted_names: dict[str, str] = {}
        self._report_timer: asyncio.TimerHandle | None = None

    def configure(self, form: LogFormat, level: LogLevel) -> None:
        """Use this format and level for all further lines."""
        self._json = form == "json" or (form == "auto" and not self._is_terminal())
        self.level, self._least = level, RANKS[level]
        self.on_level(level)

    @property
    def dropped(self) -> int:
        """The number of lines that were dropped because their reader was too slow."""
        return self._sink.dropped

    @property
    def suppressed(self) -> int:
        """The number of lines about refused requests that were counted, not written."""
        return self._rate_limit.suppressed

    def request(self, record: Record) -> bytes:
        """Keep a request that has ended, write its line, and return it as JSON.

        A flood of refused requests is only counted: the line is empty then.
        """
        if record.outcome == "refused" and not self._rate_limit.allows(
            record.status, time.monotonic(), self._log_suppressed
        ):
            if self._report_timer is None:  # The count is also logged if no further line follows.
                with suppress(RuntimeError):  # Without a running loop, the next line logs the count.
                    loop = asyncio.get_running_loop()
                    self._report_timer = loop.call_later(_SUPPRESSED_REPORT_DELAY, self._report_suppressed)
            return b""
        at = time.time()
        now = self._now(at)
        fields = record.method, record.path, record.model, record.used_model
        record.method, record.path, record.model, record.used_model = self._redacted.get(fields) or self._redact(fields)
        if record.error:
            record.error = self.redactor.message(record.error)
        if record.tools:
            record.tools = tuple(map(self._redacted_name, record.tools))
        entry = logged_request(record, now)
        line = self._encoded(entry)
        if RANKS[entry.level] >= self._least:
            if self._json:
                self._write(line)
            else:
                self._write_text(entry.level, request_text(entry))
            if record.notes and not self._least:
                self._write_notes(record, now)
        if line:
            self.recent_entries.add(at, line, record)
        return line

    def event(self, level: LogLevel, event: str, **fields: Json) -> None:
        """Keep an event other than a request, and write its line. Events below `info` are kept if they are written."""
        rank = RANKS[level]
        if rank < min(self._least, RANKS["info"]):
            return
        at = time.time()
        line: LogLine = {"ts": self._now(at), "level": level, "event": event, **fields}
        encoded = self._encoded(line)
        masked = self.redactor.text(encoded.decode()).encode()
        if rank >= self._least:
            self._write_event(line, masked)
        if masked:
            self.recent_entries.add_event(at, masked)

    def bug(self, identity: str, error: BaseException) -> None:
        """Log an unexpected exception with its traceback."""
        stack = "".join(traceback.format_exception(error))
        self.event("error", "bug", request_id=identity, error=f"{type(error).__name__}: {error}", traceback=stack)

    def close(self) -> None:
        """Log the number of suppressed lines, and write queued lines as far as that does not block."""
        self._rate_limit.start_window(time.monotonic(), self._log_suppressed)
        self._sink.drain()

    def _write_notes(self, record: Record, now: str) -> None:
        """Write a line for each note of a request."""
        for note in record.notes[:_MAX_NOTE_LINES]:
            fields = {"rule": note.rule, "action": note.action, "at": note.at or None, "detail": note.detail}
            line: LogLine = {"ts": now, "level": "debug", "event": "note", "request_id": record.id, **fields}
            self._write_event(line, self.redactor.text(self._encoded(line).decode()).encode())

    def _log_suppressed(self, status: Hashable, count: int) -> None:
        code = status if isinstance(status, int) else None
        self.event("info", "suppressed", what="refused requests", status=code, lines=count)

    def _report_suppressed(self) -> None:
        self._report_timer = None
        self._rate_limit.start_window(time.monotonic(), self._log_suppressed)

    def _write_event(self, line: LogLine, masked: bytes) -> None:
        """Write the line of an event: its JSON, which has no secrets in it, or its text."""
        if self._json:
            self._write(masked)
        else:
            self._write_text(line["level"], self.redactor.text(event_text(line)))

    def _write_text(self, level: LogLevel, text: str) -> None:
        mark = "" if level == "info" else f"{level.upper()} "
        # Text of a model or an upstream may contain escape codes of terminals.
        self._write(CONTROL.sub(" ", f"{self._local} {mark}{text}").encode("utf-8", "replace"))

    def _encoded(self, line: LoggedRequest | LogLine) -> bytes:
        """Return a line as JSON; empty, and counted as dropped, if JSON cannot represent a value."""
        try:
            return jsonio.encode(line)
        except ValueError:
            self._sink.dropped += 1
            return b""

    def _write(self, line: bytes) -> None:
        """Write a line, unless it is empty. It has no secrets in it."""
        if not line:
            return
        if self._sink.unreported and (lost := self._sink.report()):
            self.event("warning", "dropped", what="log lines dropped because their reader was too slow", lines=lost)
        self._sink.write(line)

    def _redact(self, fields: _ClientFields) -> _ClientFields:
        """Remove secrets from fields that clients choose. Requests repeat them, so results are cached for a second."""
        if len(self._redacted) >= _MAX_REDACTED:
            self._redacted.clear()
        method, path, model, used_model = map(self.redactor.text, fields)
        redacted = self._redacted[fields] = method, path, model, used_model
        return redacted

    def _redacted_name(self, name: str) -> str:
        """Remove secrets from the name of a tool, which a model may choose freely."""
        if (masked := self._redacted_names.get(name)) is None:
            if len(self._redacted_names) >= _MAX_REDACTED:
                self._redacted_names.clear()
            masked = self._redacted_names[name] = self.redactor.message(name)[:_LONGEST_NAME]
        return masked

    def _now(self, at: float) -> str:
        """Return the time in UTC, to the millisecond, and set the time stamp of lines of text."""
        second, rest = divmod(int(at * 1000), 1000)
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._local = local_time(second)
            self._redacted.clear()
            self._redacted_names.clear()
        return f"{self._stamp}.{rest:03}Z"

    def _is_terminal(self) -> bool:
        try:
            return self._stream.isatty()
        except (OSError, ValueError):
            return False


def _ignore_level(level: LogLevel) -> None:
    """Ignore a changed level."""
