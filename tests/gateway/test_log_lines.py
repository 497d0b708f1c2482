"""What the log says about requests, attempts, notes and cooldowns."""

from __future__ import annotations

import io
import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway.access_log import AccessLog, logged_request
from dragoman.gateway.records import LogLevel, Record, epoch_of, event_text, local_time, request_text, utc_time
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.serve import route_logs, running_gateway
from dragoman.model.filter import Note
from dragoman.simulator import parse_script, running_simulator
from tests.gateway.harness import (
    FAST_RETRIES,
    KEY,
    GatewayHarness,
    anthropic_body,
    gateway_with_simulator,
    parse_config,
    start_gateway,
    upstream_config,
    wait_until,
)

MODEL = "claude-sonnet-4.5"
ROUTE = f'[[routes]]\nmatch = "{MODEL}"\nupstream = "one"\nfallbacks = ["two"]\n'
ALWAYS_503 = 'then = "last"\n[[turn]]\nstatus = 503\nmessage = "no capacity at one"'
ALWAYS_429 = 'then = "last"\n[[turn]]\nstatus = 429\nmessage = "slow down, says one"\nretry_after = 60'


@contextmanager
def text_gateway(text: str, tmp_path: Path, level: LogLevel = "info", **flags: Any) -> Iterator[GatewayHarness]:
    """Run a gateway whose log is text."""
    log = io.StringIO()
    access_log = AccessLog(Redactor(), stream=log, form="text", level=level)
    with running_gateway(
        parse_config(text, **flags), state=tmp_path, access_log=access_log, retry_settings=FAST_RETRIES, key=KEY
    ) as running:
        yield GatewayHarness(running, log, tmp_path)


@contextmanager
def two_upstreams(first: str, second: str, tmp_path: Path, **flags: Any) -> Iterator[GatewayHarness]:
    """Run a gateway with a route to `one` and, as a fallback, `two`: simulators with these scripts."""
    with (
        running_simulator("openai", script=parse_script(first) if first else None) as one,
        running_simulator("openai", script=parse_script(second) if second else None) as two,
    ):
        text = upstream_config("one", "openai", one.url) + upstream_config("two", "openai", two.url) + ROUTE
        with text_gateway(text, tmp_path, **flags) as harness:
            yield harness


def request_lines(harness: GatewayHarness, least: int = 1) -> list[str]:
    """Return the lines about requests; wait for `least` of them."""
    wait_until(lambda: harness.text.count("POST /v1/messages") >= least)
    return [line for line in harness.text.splitlines() if "POST /v1/messages" in line]


def test_a_line_of_text_has_the_local_date_and_zone(tmp_path: Path) -> None:
    with text_gateway("", tmp_path) as harness:
        harness.request("/v1/messages", anthropic_body(MODEL))
        [line] = request_lines(harness)
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d\d:\d\d 200 POST /v1/messages  ", line)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns"])
def test_times_are_those_of_the_zone(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        at = 1_780_000_000.25
        offset = {"UTC": "+00:00", "Asia/Kolkata": "+05:30", "America/St_Johns": "-02:30"}[zone]
        assert local_time(at).endswith(f" {offset}") and len(local_time(at)) == 26
        assert utc_time(at) == "2026-05-28T20:26:40.250Z" and epoch_of(utc_time(at)) == at
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_rules_of_the_notes_are_named_the_first_three_and_a_count() -> None:
    record = Record("req_1", "POST", "/v1/messages")
    record.notes = [Note(f"rule.{name}", "changed", "messages[0]", "words") for name in "aabcde"]
    assert "  notes rule.a, rule.b, rule.c and 2 more  " in request_text(logged_request(record, ""))
    record.notes = record.notes[:3]
    assert "  notes rule.a, rule.b  " in request_text(logged_request(record, ""))


def test_retries_and_fallbacks_are_in_the_line(tmp_path: Path) -> None:
    script = '[[turn]]\nstatus = [429, 503]\nmessage = "no"\n[[turn]]\nstatus = 503\nmessage = "no"'
    with two_upstreams(script, "", tmp_path) as harness:
        assert harness.request("/v1/messages", anthropic_body(MODEL))[0] == 200
        [line] = request_lines(harness)
    assert "anthropic → two" in line and "  after one 429, 503, 503  " in line and "4 attempts" in line


def test_a_fallback_because_of_a_cooldown_is_in_the_line(tmp_path: Path) -> None:
    with two_upstreams(ALWAYS_429, "", tmp_path) as harness:
        for _ in range(2):
            assert harness.request("/v1/messages", anthropic_body(MODEL))[0] == 200
        first, second = request_lines(harness, 2)
    assert "  after one 429  " in first
    assert "anthropic → two" in second and "  after one cooldown  " in second and "attempts" not in second


def test_a_target_without_a_connection_is_in_the_line(tmp_path: Path) -> None:
    with socket.socket() as closed, running_simulator("openai") as two:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        text = upstream_config("one", "openai", url) + upstream_config("two", "openai", two.url) + ROUTE
        with text_gateway(text, tmp_path) as harness:
            assert harness.request("/v1/messages", anthropic_body(MODEL))[0] == 200
            [line] = request_lines(harness)
    assert "after one no connection" in line


def test_a_target_that_cannot_express_the_request_is_in_the_line(tmp_path: Path) -> None:
    refuse = '[upstreams.one.translation]\nlosses = "refuse"'
    with running_simulator("kiro") as one, running_simulator("openai") as two:
        text = upstream_config("one", "kiro", one.url, refuse) + upstream_config("two", "openai", two.url) + ROUTE
        with text_gateway(text, tmp_path) as harness:
            assert harness.request("/v1/messages", anthropic_body(MODEL, temperature=0.5))[0] == 200
            [line] = request_lines(harness)
    assert "anthropic → two" in line and "  after one not sent  " in line and one.total == 0


def test_an_error_names_the_upstream_that_it_is_of(tmp_path: Path) -> None:
    """The line of a request that failed everywhere named the last upstream with the error of the first."""
    broken = 'then = "last"\n[[turn]]\nstatus = 500\nmessage = "two is broken"'
    with two_upstreams(ALWAYS_429, broken, tmp_path) as harness:
        status, headers, body = harness.request("/v1/messages", anthropic_body(MODEL))
        [line] = request_lines(harness)
    assert (status, headers["dragoman-upstream"]) == (429, "one")
    assert b"slow down, says one" in body
    assert "anthropic → two" in line and "after one 429; two 500" in line
    assert "FAILED one: slow down, says one" in line


def test_an_error_of_the_only_upstream_is_logged_once(tmp_path: Path) -> None:
    with (
        running_simulator("openai", script=parse_script(ALWAYS_429)) as one,
        text_gateway(upstream_config("one", "openai", one.url), tmp_path) as harness,
    ):
        harness.request("/v1/messages", anthropic_body("m"))
        [line] = request_lines(harness)
    assert "anthropic → one" in line and "FAILED slow down, says one" in line and "after" not in line


# --- cooldowns


def events(harness: GatewayHarness, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in harness.text.splitlines()]
    return [line for line in lines if line["event"] == name]


def test_a_cooldown_is_a_warning_when_it_begins_and_an_info_when_it_ends(tmp_path: Path) -> None:
    script = 'then = "last"\n[[turn]]\nstatus = 429\nmessage = "slow down"\nretry_after = 0.6'
    with (
        running_simulator("openai", script=parse_script(script)) as one,
        start_gateway(upstream_config("one", "openai", one.url), tmp_path) as harness,
    ):
        for _ in range(2):
            harness.request("/v1/messages", anthropic_body("m"))
        wait_until(lambda: events(harness, "cooldown_ended"))
        [began], [ended] = events(harness, "cooldown"), events(harness, "cooldown_ended")
    assert (began["level"], began["upstream"], began["credential"], began["kind"]) == (
        "warning",
        "one",
        "key",
        "rate_limit",
    )
    assert 0 < began["seconds"] <= 0.6 and began["why"] == "slow down"
    assert event_text(began).startswith("cooldown  one (key, m) gets no requests for 1 s, because of rate_limit: slow")
    assert (ended["level"], ended["why"]) == ("info", "its time is over")


def test_an_open_breaker_and_its_end_are_logged(tmp_path: Path) -> None:
    script = "\n".join(['[[turn]]\nstatus = 500\nmessage = "broken"'] * 5 + ['[[turn]]\ntext = "well"'])
    with (
        running_simulator("openai", script=parse_script(script)) as one,
        start_gateway(upstream_config("one", "openai", one.url), tmp_path) as harness,
    ):
        for _ in range(3):
            harness.request("/v1/messages", anthropic_body("m"))
        [began] = events(harness, "cooldown")
        assert began["level"] == "warning" and "gets a test request in 5 s" in began["message"]
        loop = harness.running.loop
        assert loop is not None
        loop.call_soon_threadsafe(harness.running.gateway.clear, "")
        wait_until(lambda: events(harness, "cooldown_ended"))
        assert events(harness, "cooldown_ended")[0]["why"] == "it was cleared"


def test_many_cooldowns_are_a_few_lines_and_a_count(tmp_path: Path) -> None:
    with (
        running_simulator("openai", script=parse_script(ALWAYS_429)) as one,
        start_gateway(upstream_config("one", "openai", one.url), tmp_path) as harness,
    ):
        for number in range(30):
            harness.request("/v1/messages", anthropic_body(f"model-{number}"))
        assert len(events(harness, "cooldown")) == 20


# --- level debug


def _has_notes(harness: GatewayHarness, level: LogLevel) -> bool:
    return level != "debug" or "rule=kiro.max_tokens" in harness.text


def test_at_level_debug_each_note_is_a_line_with_rule_place_and_sentence(tmp_path: Path) -> None:
    body = anthropic_body(MODEL, temperature=0.5)
    levels: tuple[LogLevel, ...] = ("debug", "info")
    for level in levels:
        with text_gateway("", tmp_path, level) as harness:
            harness.request("/v1/messages", body)
            request_lines(harness)
            wait_until(partial(_has_notes, harness, level))
        lines = [line for line in harness.text.splitlines() if " DEBUG note  " in line]
        assert len(lines) == (3 if level == "debug" else 0)
        for line in lines:
            assert re.search(r"request_id=req_\S+ rule=\S+ action=\w+ at=\S+ detail=\S", line)


RESULT: list[dict[str, Any]] = [
    {"role": "user", "content": "weather?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": []}]},
]


@pytest.mark.parametrize("offload", [1024 * 1024, 1], ids=["here", "in the job process"])
def test_the_debug_records_of_document_000_reach_the_log(offload: int, tmp_path: Path) -> None:
    body = anthropic_body(MODEL) | {"messages": RESULT}
    body["tools"] = [{"name": "weather", "description": "w", "input_schema": {"type": "object"}}]
    levels: tuple[tuple[LogLevel, bool], ...] = (("debug", True), ("info", False))
    for level, expected in levels:
        loggers = [logging.getLogger(name) for name in ("dragoman", "asyncio")]
        before = [(each.handlers, each.level, each.propagate) for each in loggers]
        try:
            with text_gateway("", tmp_path, level, server__offload=offload) as harness:
                route_logs(harness.running.gateway)
                assert harness.request("/v1/messages", body)[0] == 200
                request_lines(harness)
            found = re.search(r"DEBUG dragoman.kiro  the result of call toolu_1 was changed at \S+", harness.text)
            assert bool(found) is expected
        finally:
            for logger, (handlers, number, propagates) in zip(loggers, before, strict=True):
                logger.handlers, logger.propagate = handlers, propagates
                logger.setLevel(number)


# --- request ids


def test_request_ids_sort_by_time(tmp_path: Path) -> None:
    with text_gateway("", tmp_path) as harness:
        before = int(time.time() * 1000)
        ids = [harness.request("/v1/messages", anthropic_body(MODEL))[1]["x-request-id"] for _ in range(20)]
        after = int(time.time() * 1000)
    assert ids == sorted(ids) and len(set(ids)) == 20
    assert all(re.fullmatch(r"req_[0-9a-f]{32}", each) for each in ids)
    assert all(before <= int(each[4:16], 16) <= after for each in ids)
    assert len({each[16:28] for each in ids}) == 1  # the random part of the process


@pytest.mark.parametrize("dialect", ["anthropic", "openai"])
@pytest.mark.parametrize("stream", [True, False])
def test_the_log_names_the_tools_that_the_model_called(dialect: str, stream: bool, tmp_path: Path) -> None:
    calls = ", ".join(f'{{ tool = "{name}", arguments = {{}} }}' for name in ("read", "write", "read"))
    tools = [{"name": name, "description": "?", "input_schema": {"type": "object"}} for name in ("read", "write")]
    with gateway_with_simulator(f"[[turn]]\nparts = [{calls}]", tmp_path, dialect) as (harness, _):
        status, _, _ = harness.request("/v1/messages", anthropic_body(stream=stream, tools=tools))
        [line] = harness.log_lines()
    assert status == 200 and line["tools"] == ["read", "write"]


def test_a_tool_of_a_strange_name_leaves_no_secret_in_the_log() -> None:
    log = AccessLog(Redactor(lambda: ["a-known-secret"]), stream=io.StringIO(), form="json")
    record = Record("req_1", "POST", "/", tools=("a-known-secret", "x" * 100_000))
    log.request(record)
    assert record.tools == ("***", "x" * 256)
