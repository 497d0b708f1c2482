"""The screens of commands as text, at 80 and 120 columns, from fixed data: `python -m tests.screens` writes them anew.

Each file of this folder is one screen. `tests/unit/cli/test_screens.py` compares them with what the commands print now.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs

from dragoman.cli.explain import render_request
from dragoman.cli.layout import fold
from dragoman.cli.log import LinePrinter
from dragoman.cli.reload import result_lines
from dragoman.cli.status import render_status
from dragoman.cli.terminal import Paint
from dragoman.cli.top_screen import TopView, render_screen
from dragoman.dialects.rulebook import Breach
from dragoman.gateway.access_log import logged_request
from dragoman.gateway.activity import ActivitySummary, RemainingCooldown, RunningRequest, UpstreamRates
from dragoman.gateway.explain import RecordedMessage, RefusalReport, render_report
from dragoman.gateway.records import LoggedRequest, LogLine, Record, utc_time
from dragoman.gateway.reload import ReloadResult
from dragoman.model.conversation import Stop, StopReason, Usage
from dragoman.model.filter import Note
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

FOLDER = Path(__file__).parent
WIDTHS = (80, 120)
_NARROW = (40, 60)
NOW = 1_785_765_791.0  # 2026-08-03 14:03:11 UTC
PLAIN = Paint(None)
IDS = [f"req_{int(NOW * 1000) - 90_000 + number * 700:012x}5f1c0a9b3d2e{number:08x}" for number in range(9)]


@contextmanager
def _terminal(columns: int) -> Iterator[None]:
    """Pretend a terminal of `columns` columns, in UTC."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "TZ")}
    os.environ.update(COLUMNS=str(columns), TZ="UTC")
    time.tzset()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        time.tzset()


def all_screens() -> dict[str, str]:
    """Return every screen by the name of its file."""
    found = {}
    for columns in WIDTHS:
        with _terminal(columns):
            for name, render in _SCREENS.items():
                found[f"{name}-{columns}.txt"] = _as_text(render(columns))
    for columns in _NARROW:
        with _terminal(columns):
            found[f"top-{columns}.txt"] = _as_text(render_screen(activity(), TopView(), NOW, columns, 20, PLAIN))
    return found


def _as_text(lines: Iterable[str]) -> str:
    return "\n".join(line.rstrip() for line in lines) + "\n"


# --- requests


def _record(number: int, model: str, used: str, upstream: str, dialect: str) -> Record:
    record = Record(IDS[number], "POST", "/v1/messages", dialect="anthropic", operation="generate", client="127.0.0.1")
    record.model, record.used_model, record.upstream, record.upstream_dialect = model, used, upstream, dialect
    record.credential, record.attempts, record.status, record.streamed = "key", 1, 200, True
    record.first_byte, record.total = 0.412, 3.8127
    record.usage, record.stop = Usage(1200, 340, 9800, 0), Stop(StopReason.TOOL)
    return record


def _requests() -> list[LoggedRequest | LogLine]:
    plain = _record(0, "claude-sonnet-4.5", "claude-sonnet-4.5", "anthropic", "anthropic")
    changed = _record(1, "claude-sonnet-4.5", "claude-sonnet-4.5", "kiro", "kiro")
    changed.notes = [
        Note("kiro.max_tokens", "dropped", "max_tokens", "max_tokens is not sent: the service cannot limit the length"),
        Note("tools.renamed", "renamed", "tools[3].name", "the tool mcp__files__read is sent as files_read"),
        Note("results.empty", "changed", "messages[7].content[0]", "an empty result became (no output)"),
        Note("turn.placeholder", "added", "messages[2]", "a user turn was added"),
    ]
    fallback = _record(2, "claude-sonnet-4.5", "kimi-k2", "moonshot", "openai")
    fallback.attempts = 3
    fallback.mark_failed(
        "kiro", "store", "429", "rate_limit", 429, "Too many requests, please wait before trying again."
    )
    fallback.mark_failed("kiro", "store", "503", "overloaded", 503, "The service is unavailable.")
    failed = _record(3, "gpt-5", "gpt-5", "openai", "responses")
    failed.outcome, failed.status, failed.usage, failed.stop, failed.first_byte = "failed", 429, None, None, None
    failed.error = "kiro: Your account has no quota left until 2026-09-01"
    failed.attempts = 2
    failed.mark_failed("kiro", "store", "402", "quota", 402, "Your account has no quota left until 2026-09-01")
    failed.mark_failed("openai", "key 2", "timeout", "timeout", 0, "openai sent no response within 300 s")
    refused = Record(IDS[4], "POST", "/v1/messages", outcome="refused", status=401, client="192.0.2.7")
    refused.dialect, refused.error = "anthropic", "the key of this gateway is missing or wrong"
    lines: list[LoggedRequest | LogLine] = []
    for number, record in enumerate((plain, changed, fallback, failed, refused)):
        record.failures = [structs.replace(each, seconds=0.4 * (at + 1)) for at, each in enumerate(record.failures)]
        request = logged_request(record, utc_time(NOW - 60 + number))
        lines.append(structs.replace(request, changes=tuple(record.notes), failures=tuple(record.failures)))
    cooldown: LogLine = {"ts": utc_time(NOW - 55), "level": "warning", "event": "cooldown"}
    cooldown |= {
        "message": "kiro (store, claude-sonnet-4.5) gets no requests for 30 s, because of rate_limit: Too many"
    }
    reloaded: LogLine = {"ts": utc_time(NOW - 50), "level": "info", "event": "reloaded", "message": "log.level"}
    return [*lines, cooldown, reloaded]


def _log(*, notes: bool) -> Callable[[int], Iterator[str]]:
    def render(columns: int) -> Iterator[str]:
        printer = LinePrinter(as_json=False, notes=notes, paint=PLAIN, columns=columns)
        for line in _requests():
            encoded = jsonio.encode(line)
            for text in printer.text(encoded, jsonio.decode_object(encoded) or {}):
                yield from text.split("\n")

    return render


def _explained(number: int) -> Callable[[int], Iterator[str]]:
    def render(columns: int) -> Iterator[str]:
        entry = _requests()[number]
        assert isinstance(entry, LoggedRequest)
        for line in render_request(entry, columns):
            yield from line.split("\n")

    return render


def _report(columns: int) -> Iterator[str]:
    body = (
        '{"model":"claude-sonnet-4.5","max_tokens":100,"messages":[{"role":"user","content":"What is the weather?"}]}'
    )
    state = '{"currentMessage":{"userInputMessage":{"content":"What is the weather?"}},"chatTriggerType":"MANUAL"}'
    arn = "arn:aws:codewhisperer:us-east-1:699475941385:profile/test"
    sent = f'{{"profileArn":"{arn}","conversationState":{state}}}'
    report = RefusalReport(
        id=IDS[5],
        at=NOW - 30,
        client="anthropic",
        upstream="kiro",
        dialect="kiro",
        model="claude-sonnet-4.5",
        fault="Improperly formed request.",
        client_request=RecordedMessage("POST /v1/messages", (("x-api-key", "***"), ("content-length", "104")), body),
        sent=RecordedMessage(
            "POST /generateAssistantResponse",
            (("host", "q.us-east-1.amazonaws.com"), ("authorization", "***"), ("user-agent", "dragoman/0.1.0")),
            sent,
        ),
        response=RecordedMessage("400", (), '{"message":"Improperly formed request.","reason":null}'),
        notes=(Note("kiro.max_tokens", "dropped", "max_tokens", "max_tokens is not sent"),),
        breaches=(
            Breach(
                "kiro.body.profile_arn",
                "profileArn",
                "the service does not accept it (docs/dialects/kiro.md, rule 49)",
                "documented",
            ),
        ),
    )
    return iter(render_report(report, columns).splitlines())


# --- status, reload, top


def _status(columns: int) -> Iterator[str]:
    cooldown: dict[str, Json] = {"credential": "store", "models": "claude-sonnet-4.5", "state": "cooling"}
    cooldown |= {"kind": "rate_limit", "why": "Too many requests", "until": NOW + 24, "next_try": NOW + 24}
    kiro: dict[str, Json] = {"name": "kiro", "dialect": "kiro", "base_url": "https://q.us-east-1.amazonaws.com"}
    kiro |= {"health": "cooling", "active": 2, "waiting": 0, "failures": 1, "last_error": "Too many requests"}
    kiro |= {"last_error_at": NOW - 6, "last_ok_at": NOW - 9, "cooldowns": [cooldown]}
    kiro |= {"credentials": [{"name": "store", "state": "ok", "expires_at": NOW + 3000}]}
    status: dict[str, Json] = {"version": "0.1.0", "state": "ready", "pid": 4711, "started_at": NOW - 7000}
    status |= {"in_flight": 2, "config": "/home/me/.config/dragoman/config.toml", "restart_needed": ["server.port"]}
    lines = render_status({**status, "upstreams": [kiro]}, NOW, PLAIN)
    return (each for line in lines for each in fold(line, columns, rest="      "))


def _reload(columns: int) -> Iterator[str]:
    return iter(result_lines(ReloadResult(("log.level", "upstreams.two (added)"), ("server.port",))))


def activity(count: int = 5) -> ActivitySummary:
    """Return the data of a busy gateway, with this many running requests."""
    models = [("claude-sonnet-4.5", "claude-sonnet-4.5"), ("gpt-5", "kimi-k2-0905-preview"), ("a-model", "a-model")]
    running = [
        RunningRequest(
            IDS[number % 9],
            seconds=61.25 / (number + 1),
            state="streaming" if number % 3 else "waiting",
            path="/v1/messages",
            client=("127.0.0.1", "192.0.2.17")[number % 2],
            dialect=("anthropic", "responses", "openai")[number % 3],
            model=models[number % 3][0],
            used_model=models[number % 3][1],
            upstream=("kiro", "moonshot")[number % 2],
            attempts=1,
            input_tokens=12_400 if number % 2 else None,
            output_tokens=340 * number if number % 2 else None,
            chunks=number * 17,
        )
        for number in range(count)
    ]
    cooldown = RemainingCooldown("store", "claude-sonnet-4.5", "rate_limit", 24.0)
    upstreams = (
        UpstreamRates("kiro", "cooling", 3, 1, 8.25, 0.125, 420.0, 1900.0, (cooldown,)),
        UpstreamRates("moonshot", "ok", 2, 0, 4.2, 0.0, 310.0, 12_800.0, ()),
        UpstreamRates("an-upstream-with-a-long-name-of-its-own", "unused", 0, 0, 0.0, None, None, None, ()),
    )
    gateway: dict[str, Json] = {"version": "0.1.0", "url": "http://127.0.0.1:8787", "started_at": NOW - 7000}
    return ActivitySummary(gateway, 12.45, 30_100.0, 851.0, 2.0, tuple(running), 0, upstreams)


def _top(count: int, view: TopView, rows: int | None) -> Callable[[int], list[str]]:
    return lambda columns: render_screen(activity(count), view, NOW, columns, rows, PLAIN)


_SCREENS: dict[str, Callable[[int], Iterator[str] | list[str]]] = {
    "log": _log(notes=False),
    "log-notes": _log(notes=True),
    "explain-changed": _explained(1),
    "explain-failed": _explained(3),
    "explain-refused": _explained(4),
    "explain-report": _report,
    "status": _status,
    "reload": _reload,
    "top": _top(5, TopView(), 24),
    "top-sorted": _top(5, TopView("tokens", is_paused=True), 24),
    "top-full": _top(40, TopView(problem="no gateway answers since 14:03:02"), 24),
    "top-idle": _top(0, TopView(), 24),
    "top-once": _top(5, TopView(), None),
}
