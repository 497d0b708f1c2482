"""The record of one request, and the forms in which it leaves the gateway. Pure.

A stage of the gateway writes what it knows into the `Record` while the request runs. When the request has ended, the
record is counted (`metrics`), kept (`recent`) and logged (`access_log`). `LoggedRequest` is its typed form: the JSON
line of the log, and the entry that `dragoman log`, `dragoman explain` and `dragoman top` read. A record holds no
bodies; notes name places as paths into the payload.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

from msgspec import Struct, field

from dragoman.errors import Fault
from dragoman.http.addresses import is_loopback
from dragoman.model.conversation import Stop, Usage
from dragoman.model.filter import Note
from dragoman.wire.http import Headers

if TYPE_CHECKING:
    from dragoman.accounts.account import Account
    from dragoman.accounts.shares import Reservation
    from dragoman.gateway.recording.capture import RequestCapture
    from dragoman.http.client.client import ClientResponse
    from dragoman.response_stream import ResponseProgress

Outcome: TypeAlias = Literal["ok", "refused", "failed", "broken", "gone", "cut", "bug"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LogLine: TypeAlias = dict[str, Any]  # the fields of a line about something other than a request

RANKS: dict[LogLevel, int] = {"debug": 0, "info": 1, "warning": 2, "error": 3}
# The level of each outcome. A refused request and a disconnected client are no fault of the gateway.
LEVEL_OF: dict[Outcome, LogLevel] = {
    "ok": "info",
    "refused": "info",
    "gone": "info",
    "failed": "warning",
    "broken": "warning",
    "cut": "warning",
    "bug": "error",
}
_RULES_SHOWN = 3  # names of rules in a line of text
_LONGEST_HEADER = 256  # characters of a model's name
_LONGEST_ERROR = 300  # characters that a failed attempt keeps of its error


class FailedAttempt(Struct, frozen=True, omit_defaults=True):
    """An attempt that failed, or a target that was passed over. `reason` is short: `429`, `timeout`, `cooldown`."""

    upstream: str
    credential: str
    reason: str
    kind: str  # of the error, as in `errors.ErrorKind`
    status: int  # that the upstream sent; 0 if it sent none
    error: str  # without secrets
    seconds: float  # since the request began

    def __str__(self) -> str:
        return f"{self.upstream}: {self.kind} {self.status}" if self.status else f"{self.upstream}: {self.reason}"


class LoggedRequest(Struct, frozen=True, omit_defaults=True, gc=False):
    """A request that has ended: the fields of its JSON line. Fields that are unknown or empty are left out of it.

    `changes` and `failures` are not in the log. They are for readers that ask for details.
    """

    ts: str  # UTC, to the millisecond
    level: LogLevel
    event: Literal["request"]
    request_id: str
    method: str
    path: str
    status: int
    outcome: Outcome
    stream: bool
    verbatim: bool  # the client got the upstream's own bytes
    attempts: int
    total_ms: float
    notes: int  # how many changes the translation made
    dialect: str = ""  # of the client
    operation: str = ""
    model: str = ""  # that the client asked for
    upstream: str = ""  # the last one that was tried
    upstream_dialect: str = ""
    used_model: str = ""
    credential: str = ""  # the label of the credential that was used last
    tried: tuple[str, ...] = ()  # attempts that failed: upstream, kind of error, status
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    tokens_estimated: bool | None = None
    first_byte_ms: float | None = None
    rules: tuple[str, ...] = ()  # of the notes, each once
    stop: str = ""
    error: str = ""
    client: str = ""  # IP address
    key: str = ""  # the id of a client key
    cost_nanodollars: int | None = None
    cache_share: float | None = None  # of all input tokens, those that were read from a prompt cache
    tools: tuple[str, ...] = ()  # names of the tools that the model called, each once
    changes: tuple[Note, ...] = ()  # the notes: rule, action, place, sentence
    failures: tuple[FailedAttempt, ...] = ()


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
    credential: str = ""
    streamed: bool = False
    verbatim: bool = False
    status: int = 0
    attempts: int = 0
    failures: list[FailedAttempt] = []
    notes: list[Note] = []
    usage: Usage | None = None
    stop: Stop | None = None
    tools: tuple[str, ...] = ()  # names of called tools
    first_byte: float | None = None  # seconds
    total: float = 0.0
    outcome: Outcome = "ok"
    error: str = ""
    client: str = ""  # IP address
    began: float = field(default_factory=time.monotonic)
    account: Account | None = None  # of the proven key
    session: str = ""
    cost: int | None = None  # nano-dollars; None: unknown
    price_version: str = ""
    request_bytes: int = 0  # of the body
    input_estimate: int = 0  # tokens; 0 if they were not estimated
    reads: int = 0  # pieces of the upstream's responses that arrived
    has_content: bool = False  # of a reply that the client got, or would have got
    # Only while the request runs:
    capture: RequestCapture | None = None  # what is recorded; None: nothing
    end_reason: Fault | None = None  # why the gateway ends it, if not because it is shut down itself
    reservation: Reservation | None = None  # of the limits of the account
    limit_headers: Headers = ()  # of the response, about those limits
    on_finished: Callable[[], None] | None = None  # called when the response has been sent
    response: ClientResponse | None = None  # of the current attempt
    progress: ResponseProgress | None = None  # of the current stream

    def has_key(self, key_id: str) -> bool:
        """Return whether the request belongs to this key."""
        return self.account is not None and self.account.id == key_id

    def mark_first_byte(self) -> None:
        """Store the time to the first byte; later calls change nothing."""
        if self.first_byte is None:
            self.first_byte = time.monotonic() - self.began

    def mark_failed(self, upstream: str, credential: str, reason: str, kind: str, status: int, error: str) -> None:
        """Add a failed attempt. The error has no secrets in it."""
        seconds = round(time.monotonic() - self.began, 3)
        error = " ".join(error.split())[:_LONGEST_ERROR]
        self.failures.append(FailedAttempt(upstream, credential, reason, kind, status, error, seconds))


# --- lines of text


def request_text(entry: LoggedRequest) -> str:
    """Return the line of a request in the text format, without its time."""
    model = entry.model if entry.used_model in ("", entry.model) else f"{entry.model} as {entry.used_model}"
    first = "" if entry.first_byte_ms is None else f"first byte {entry.first_byte_ms:.0f} ms, "
    parts = [
        f"{entry.status or '---'} {entry.method} {entry.path}",
        f"{entry.dialect or '-'} → {entry.upstream or '-'}",
        model,
        f"{first}{entry.total_ms:.0f} ms",
        "" if entry.output_tokens is None else f"{input_text(entry)}, {entry.output_tokens} out",
        entry.stop,
        _rules(entry),
        _after(entry),
        f"{entry.attempts} attempts" if entry.attempts > 1 else "",
        "" if entry.outcome == "ok" else f"{entry.outcome.upper()} {entry.error}".strip(),
        f"key {entry.key}" if entry.key else "",
        f"from {entry.client}" if entry.client and not is_loopback(entry.client) else "",
        entry.request_id,
    ]
    return "  ".join(part for part in parts if part)


def input_text(entry: LoggedRequest) -> str:
    """Return the input tokens of a request, and how many percent of them came from a prompt cache."""
    total, read = input_tokens(entry), entry.cache_read_tokens or 0
    return f"{total} in ({100 * read // total}% cached)" if read else f"{total} in"


def input_tokens(entry: LoggedRequest) -> int:
    """Return all input tokens of a request, those from and for a cache included."""
    return (entry.input_tokens or 0) + (entry.cache_read_tokens or 0) + (entry.cache_write_tokens or 0)


def _rules(entry: LoggedRequest) -> str:
    """Return the rules of the notes: the first three, and how many more there are."""
    if not entry.rules:
        return ""
    more = len(entry.rules) - _RULES_SHOWN
    return f"notes {', '.join(entry.rules[:_RULES_SHOWN])}" + (f" and {more} more" if more > 0 else "")


def _after(entry: LoggedRequest) -> str:
    """Return the attempts that failed: `after kiro 429, 503; openai timeout`; not one that `error` describes alone."""
    if not entry.tried or (len(entry.tried) == 1 and entry.outcome != "ok"):
        return ""
    return f"after {'; '.join(_groups(entry.tried))}"


def _groups(tried: Sequence[str]) -> Iterator[str]:
    pairs = [each.partition(": ")[::2] for each in tried]
    for upstream, group in groupby(pairs, key=lambda pair: pair[0]):
        yield f"{upstream} {', '.join(_short(reason) for _, reason in group)}"


def _short(reason: str) -> str:
    """Return the status of `rate_limit 429`, or the whole reason if it has none."""
    kind, _, status = reason.rpartition(" ")
    return status if kind and status.isdecimal() else reason


_SENTENCES = frozenset(
    {"cooldown", "cooldown_ended", "reloaded", "restart_needed"}
)  # events whose message says what their fields say


def event_text(line: LogLine) -> str:
    """Return a line about something other than a request in the text format, without its time."""
    fields = {name: value for name, value in line.items() if name not in ("ts", "level", "event")}
    message = fields.pop("message", "")
    if line["event"] in _SENTENCES and message:
        return f"{line['event']}  {message}"
    rest = " ".join(f"{name}={_value(value)}" for name, value in fields.items() if value is not None)
    return "  ".join(str(part) for part in (line["event"], message, rest) if part)


def _value(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def local_time(at: float) -> str:
    """Return a time as local date and time with the offset of its zone: `2026-08-03 14:03:11 +02:00`."""
    text = datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")
    return f"{text[:19]} {text[19:]}"


def utc_time(at: float) -> str:
    """Return a time in UTC, to the millisecond: `2026-08-03T12:03:11.042Z`."""
    seconds, milliseconds = divmod(int(at * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03}Z"


def epoch_of(ts: str) -> float:
    """Return the seconds since the epoch of a time that `utc_time` wrote; 0 for another text."""
    try:
        return datetime.fromisoformat(ts).timestamp()
    except ValueError:
        return 0.0


@lru_cache(256)
def header_text(model: str) -> str:
    """Return the name of a model for a header: characters other than printable ASCII are percent-encoded."""
    text = "".join(char if " " < char <= "~" and char != "%" else quote(char, errors="replace") for char in model)
    return text if len(text) <= _LONGEST_HEADER else f"{text[:_LONGEST_HEADER]}..."
