"""`dragoman top`: what it measures, and the live screen in a real terminal (tmux)."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from dragoman.gateway.access_log import MAX_REQUESTS, AccessLog, logged_request
from dragoman.gateway.activity import (
    Activity,
    ActivitySummary,
    EndedRequest,
    RemainingCooldown,
    RunningRequest,
    UpstreamActivity,
    measure_activity,
    summarize_activity,
)
from dragoman.gateway.recent import RecentLog
from dragoman.gateway.records import Outcome, Record, utc_time
from dragoman.gateway.redaction import Redactor
from dragoman.model.conversation import Usage
from dragoman.simulator import parse_script, running_simulator
from dragoman.wire import jsonio
from tests.gateway.harness import (
    TIMEOUT,
    GatewayHarness,
    StreamClient,
    anthropic_body,
    start_gateway,
    upstream_config,
    wait_until,
)
from tests.gateway.terminal import terminal, tmux
from tests.gateway.test_commands import SIMULATED, UserHome, home

__all__ = ["home", "tmux"]

ALWAYS_429 = 'then = "last"\n[[turn]]\nstatus = 429\nmessage = "slow down"\nretry_after = 60'


def summary(harness: GatewayHarness) -> ActivitySummary:
    loop = harness.running.loop
    assert loop is not None
    activities = asyncio.run_coroutine_threadsafe(harness.running.gateway.activities(), loop).result(TIMEOUT)
    return summarize_activity(activities, {})


# --- the sums


def ended(upstream: str, outcome: Outcome, first: float | None = None, *failed: str) -> EndedRequest:
    return EndedRequest(upstream, outcome, 100, 10, first, failed)


def test_rates_are_summed_over_workers_that_cover_different_times() -> None:
    upstreams = (UpstreamActivity("one", "ok", 2, 1),)
    busy = Activity((), tuple(ended("one", "ok", float(each)) for each in range(1, 101)), 10.0, upstreams)
    quiet = Activity((), (ended("one", "failed", None, "one", "one"), ended("", "refused")), 60.0, upstreams)
    found = summarize_activity([busy, quiet], {"version": "x"})
    assert found.requests_per_second == round(100 / 10 + 2 / 60, 3)
    assert found.input_tokens_per_second == round(100 * 100 / 10 + 200 / 60, 3)
    assert found.errors_per_minute == 1.0
    [one] = found.upstreams
    assert (one.running, one.waiting, one.requests_per_second) == (4, 2, round(100 / 10 + 2 / 60, 3))
    assert one.error_share == round(2 / 102, 4)
    assert (one.first_byte_p50_ms, one.first_byte_p95_ms) == (50.0, 95.0)


def test_attempts_are_counted_for_the_upstream_that_they_were_sent_to() -> None:
    rows = tuple(UpstreamActivity(name, "ok", 0, 0) for name in ("one", "two", "three"))
    requests = (ended("two", "ok", 5.0, "one"), ended("two", "broken", 7.0), ended("two", "gone"))
    found = summarize_activity([Activity((), requests, 60.0, rows)], {})
    assert [each.error_share for each in found.upstreams] == [1.0, round(1 / 3, 4), None]
    assert [each.first_byte_p95_ms for each in found.upstreams] == [None, 5.0, None]


def test_the_worst_health_and_all_cooldowns_of_workers_are_shown() -> None:
    cooldowns = [RemainingCooldown("key", models, "rate_limit", 9.0) for models in ("a", "a", "b")]
    workers = [
        Activity((), (), 60.0, (UpstreamActivity("one", health, 0, 0, (cooldown,)),))
        for health, cooldown in zip(("ok", "failing", "unused"), cooldowns, strict=True)
    ]
    [one] = summarize_activity(workers, {}).upstreams
    assert (one.health, [each.models for each in one.cooldowns]) == ("failing", ["a", "b"])


def test_running_requests_are_listed_oldest_first_and_counted() -> None:
    running = tuple(RunningRequest(f"req_{each}", float(each), "waiting") for each in range(7))
    found = summarize_activity([Activity(running[:3], (), 60.0, ()), Activity(running[3:], (), 60.0, ())], {}, most=4)
    assert [each.seconds for each in found.running] == [6.0, 5.0, 4.0, 3.0] and found.more_running == 3


def test_a_full_log_covers_less_than_a_minute_and_the_rate_is_right() -> None:
    """A thousand requests of the last two seconds are five hundred a second."""
    log, now = AccessLog(Redactor(), stream=io.StringIO()), time.time()
    for number in range(3 * MAX_REQUESTS):
        at = now - 6 + number * 6 / (3 * MAX_REQUESTS)
        record = Record(f"req_{number}", "POST", "/", upstream="one", usage=Usage(3, 1))
        log.recent_entries.add(at, jsonio.encode(logged_request(record, utc_time(at))), record)
    found = measure_activity([], RecentLog(log), (), Redactor(), now - 1000)
    assert len(found.ended) == MAX_REQUESTS
    assert 2.0 <= found.seconds < 60  # it would be 60 if nothing was dropped
    empty = RecentLog(AccessLog(Redactor(), stream=io.StringIO()))
    assert measure_activity([], empty, (), Redactor(), now - 5).seconds < 60  # it has just started


# --- a real gateway


def test_a_running_stream_is_shown_with_what_is_known_of_it(tmp_path: Path) -> None:
    script = parse_script('[[turn]]\nparts = [{ text = "Begin " }, { wait = 30.0 }, { text = "end." }]')
    with (
        running_simulator("anthropic", script=script) as simulator,
        start_gateway(upstream_config("one", "anthropic", simulator.url), tmp_path) as harness,
        StreamClient(harness, "/v1/chat/completions", anthropic_body(stream=True)) as client,
    ):
        client.read_until(b"Begin")
        wait_until(lambda: summary(harness).running[0].state == "streaming")
        found = summary(harness)
        [one] = found.running
        assert (one.model, one.upstream, one.dialect, one.attempts) == ("m", "one", "openai", 1)
        assert one.client == "127.0.0.1" and one.chunks > 0 and one.seconds > 0
        assert one.input_tokens is not None  # Anthropic reports them at the start
        assert [each.running for each in found.upstreams] == [1]
        client.leave()
        wait_until(lambda: not summary(harness).running)
    assert harness.log_lines()[0]["outcome"] == "gone"


def test_errors_and_cooldowns_are_shown_for_their_upstream(tmp_path: Path) -> None:
    route = '[[routes]]\nmatch = "m"\nupstream = "one"\nfallbacks = ["two"]\n'
    with (
        running_simulator("openai", script=parse_script(ALWAYS_429)) as first,
        running_simulator("openai") as second,
        start_gateway(
            upstream_config("one", "openai", first.url) + upstream_config("two", "openai", second.url) + route, tmp_path
        ) as harness,
    ):
        for _ in range(3):
            assert harness.request("/v1/messages", anthropic_body("m"))[0] == 200
        harness.log_lines(3)
        one, two = summary(harness).upstreams
    assert (one.error_share, two.error_share) == (1.0, 0.0)
    [cooldown] = one.cooldowns
    assert (cooldown.credential, cooldown.models, cooldown.kind) == ("key", "m", "rate_limit")
    assert 0 < cooldown.seconds <= 60 and two.first_byte_p50_ms is not None


def test_secrets_in_names_are_masked(tmp_path: Path) -> None:
    key = "sk-ant-0123456789abcdefgh"
    script = parse_script('[[turn]]\nparts = [{ text = "Begin " }, { wait = 30.0 }]')
    with (
        running_simulator("openai", script=script) as simulator,
        start_gateway(upstream_config("one", "openai", simulator.url), tmp_path) as harness,
        StreamClient(harness, "/v1/messages", anthropic_body(key, stream=True)) as client,
    ):
        client.read_until(b"Begin")
        assert summary(harness).running[0].model == "***"


# --- the command


@pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
@pytest.mark.parametrize("columns", [80, 120])
def test_once_prints_one_frame_and_json_its_data(home: UserHome, columns: int) -> None:
    config = str(home.write("config.toml", SIMULATED))
    with home.serving("--quiet", "--config", config) as served:
        served.say("Hello.")
        wait_until(lambda: json.loads(home.run("top", "--json").stdout)["requests_per_second"] > 0)
        frame = home.run("top", "--once", COLUMNS=str(columns))
        piped = home.run("top", COLUMNS=str(columns))  # without a terminal
    assert (frame.returncode, frame.stderr) == (0, "")
    lines = frame.stdout.splitlines()
    assert lines[0].startswith("dragoman ") and served.url in lines[0]
    assert lines[3].split() == ["UPSTREAM", "STATE", "RUN", "WAIT", "REQ/S", "ERRORS", "P50", "P95"]
    assert lines[4].split()[:4] == ["sim", "ok", "0", "0"] and "no request is running" in lines[-1]
    assert max(map(len, lines)) == columns and "\x1b" not in frame.stdout + piped.stdout
    assert piped.stdout.splitlines()[3] == lines[3]


class ServedUrl(NamedTuple):
    """Where a `StreamClient` finds a gateway process."""

    url: str
    key: str


@contextmanager
def long_streams(home: UserHome) -> Iterator[list[str]]:
    """Run a gateway with two streams that do not end; give the last characters of their ids."""
    script = home.write("script.toml", 'then = "last"\n[[turn]]\nparts = [{ text = "Begin " }, { wait = 300.0 }]')
    text = '[upstreams.sim]\npreset = "simulator"\ndialect = "openai"\nmodels = ["model-a", "model-b"]\n'
    config = str(home.write("config.toml", f'{text}[upstreams.sim.simulator]\nscript = "{script}"\n'))
    with home.serving("--quiet", "--config", config) as served:
        key = home.key_file.read_text().strip()

        clients = []
        for model in ("model-a", "model-b"):
            client = StreamClient(ServedUrl(served.url, key), "/v1/messages", anthropic_body(model, stream=True))
            client.read_until(b"Begin")
            clients.append(client)
        try:
            yield [each["id"] for each in json.loads(home.run("top", "--json").stdout)["running"]]
        finally:
            for client in clients:
                client.leave()


@pytest.mark.usefixtures("tmux")
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40)])
def test_the_live_screen_in_a_terminal(home: UserHome, columns: int, rows: int) -> None:
    with long_streams(home) as ids, terminal(home, columns, rows) as screen:
        screen.wait_for("ready>")
        screen.type("echo before", "Enter")
        screen.wait_for("before")
        screen.type(f"{sys.executable} -m dragoman top", "Enter")
        shown = screen.wait_for("s sort (now by time)")
        assert shown[0].startswith("dragoman ") and len(shown[0]) == columns
        assert shown[rows - 1].startswith("q quit")
        rows_of = [index for index, line in enumerate(shown) if "model-" in line]
        assert ["model-a" in shown[rows_of[0]], "model-b" in shown[rows_of[1]]] == [True, True]
        assert all(ids[number][-8:] in shown[index] for number, index in enumerate(rows_of))
        assert not screen.shows("before")  # the alternate screen
        screen.type("s", "s")  # by upstream, by model
        screen.wait_for("s sort (now by model)")
        screen.type("p")
        screen.wait_for("PAUSED")
        frozen = screen.screen
        screen.resize(columns + 10, rows - 4)
        wait_until(lambda: len(screen.screen[0]) == columns + 10)
        assert screen.screen[0].split() == frozen[0].split()  # the clock stands still
        screen.type("p")
        wait_until(lambda: not screen.shows("PAUSED"))
        screen.type("q")
        restored = screen.wait_for("before")
        assert not any("UPSTREAM" in line for line in restored)
        modes = home.path / "modes"
        screen.type(f"stty -a > {modes}.new && mv {modes}.new {modes}", "Enter")
        wait_until(modes.exists)
        assert {"echo", "icanon"} <= {
            *modes.read_text().replace(";", " ").split()
        }  # keys are shown, and wait for a line


@pytest.mark.usefixtures("tmux")
@pytest.mark.parametrize("end", ["C-c", "TERM"])
def test_a_signal_restores_the_terminal(home: UserHome, end: str) -> None:
    config = str(home.write("config.toml", SIMULATED))
    with home.serving("--quiet", "--config", config), terminal(home, 80, 24) as screen:
        screen.wait_for("ready>")
        screen.type(f"{sys.executable} -m dragoman top & echo $! > {home.path}/pid; fg", "Enter")
        screen.wait_for("q quit")
        if end == "C-c":
            screen.type("C-c")
        else:
            os.kill(int((home.path / "pid").read_text()), signal.SIGTERM)
        screen.wait_for("ready>")
        assert not screen.shows("q quit")


@pytest.mark.usefixtures("tmux")
def test_a_gateway_that_ends_and_comes_back(home: UserHome) -> None:
    config = str(home.write("config.toml", SIMULATED))
    words = ("--quiet", "--config", config)
    with terminal(home, 80, 24) as screen:
        with home.serving(*words) as served:
            screen.wait_for("ready>")
            screen.type(f"{sys.executable} -m dragoman top", "Enter")
            screen.wait_for("q quit")
            served.end()
        screen.wait_for("no gateway answers since")
        with home.serving(*words) as again:
            wait_until(lambda: not screen.shows("no gateway answers") and screen.shows(again.url))
            screen.type("q")
            screen.wait_for("ready>")
