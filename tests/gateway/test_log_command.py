"""`dragoman log`, with real gateway processes: last lines, following, restarts, slow readers, several workers."""

from __future__ import annotations

import asyncio
import io
import json
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway.access_log import MAX_REQUESTS, AccessLog
from dragoman.gateway.records import LoggedRequest, Record
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.serve import running_gateway
from dragoman.wire import jsonio
from tests.gateway.harness import KEY, TIMEOUT, parse_config, wait_until
from tests.gateway.test_commands import SIMULATED, ServeProcess, UserHome, home
from tests.gateway.test_run_command import ASK_PLAINLY, client, run

__all__ = ["home"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and Unix sockets")
KIRO = ("kiro.stream", "knob.dropped", "kiro.max_tokens")  # rules of the requests below


class Follower:
    """A running `dragoman log -f`. Its lines are read in threads, so that a test can wait for each."""

    def __init__(self, home: UserHome, *words: str) -> None:
        command = [sys.executable, "-m", "dragoman", "log", "-f", *words]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=home.environ({}), stdout=pipe, stderr=pipe, text=True)
        self.lines: queue.Queue[str] = queue.Queue()
        self.notices: queue.Queue[str] = queue.Queue()
        for stream, lines in ((self.process.stdout, self.lines), (self.process.stderr, self.notices)):
            threading.Thread(target=self._read, args=(stream, lines), daemon=True).start()

    @staticmethod
    def _read(stream: Any, lines: queue.Queue[str]) -> None:
        for line in stream:
            lines.put(line.rstrip("\n"))

    def next_line(self) -> str:
        return self.lines.get(timeout=TIMEOUT)

    def next_notice(self) -> str:
        return self.notices.get(timeout=TIMEOUT)

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(TIMEOUT)


@contextmanager
def following(home: UserHome, *words: str) -> Iterator[Follower]:
    follower = Follower(home, *words)
    try:
        yield follower
    finally:
        follower.process.kill()
        follower.process.wait(TIMEOUT)
        for stream in (follower.process.stdout, follower.process.stderr):
            assert stream is not None
            stream.close()


def ask(served: ServeProcess, text: str = "hi") -> str:
    """Send a request that the translation changes; return its id."""
    body = {"model": "claude-sonnet-4.5", "max_tokens": 9, "temperature": 0.5}
    status, headers, _ = served.ask("/v1/messages", body | {"messages": [{"role": "user", "content": text}]})
    assert status == 200
    return headers["x-request-id"]


def wait_for_entries(home: UserHome, count: int, *words: str) -> list[dict[str, Any]]:
    """Return the entries of the log about requests; wait for `count` of them, because they are kept after the response."""
    found: list[dict[str, Any]] = []

    def are_there() -> bool:
        lines = home.run("log", "--json", "-n", "1000", *words).stdout.splitlines()
        found[:] = [entry for entry in map(json.loads, lines) if entry["event"] == "request"]
        return len(found) >= count

    wait_until(are_there)
    return found


def test_a_filter_limits_the_requests_that_are_printed_and_followed(home: UserHome) -> None:
    config = str(home.write("config.toml", SIMULATED))
    with home.serving("--quiet", "--config", config) as served, following(home, "upstream:sim", "note:kiro.*") as tail:
        first = ask(served)
        served.ask("/v1/messages", {"model": "claude-sonnet-4.5"})  # refused: no messages
        second = ask(served)
        wait_for_entries(home, 3)
        assert [tail.next_line().split()[-1] for _ in range(2)] == [first, second]
        refused = home.run("log", "--json", "is:refused -upstream:sim").stdout.splitlines()
        assert [json.loads(line)["status"] for line in refused] == [400]
        last = home.run("log", "-n", "1", "status:200").stdout.splitlines()
        assert [line.split()[-1] for line in last] == [second]
        wrong = home.run("log", "upstream:sim", "status:abc")
    assert wrong.returncode == 2 and "status: expected a number" in wrong.stderr
    assert wrong.stderr.splitlines()[-2:] == ["  upstream:sim status:abc", f"  {' ' * 20}^^^"]


def test_the_last_requests_are_printed_with_their_notes(home: UserHome) -> None:
    config = str(home.write("config.toml", SIMULATED))
    with home.serving("--quiet", "--config", config) as served:
        ids = [ask(served, "my words") for _ in range(3)]
        wait_for_entries(home, 3)
        last = home.run("log", "-n", "2")
        noted = home.run("log", "-n", "1", "--notes")
        decoded = [json.loads(line) for line in home.run("log", "-n", "1", "--notes", "--json").stdout.splitlines()]
    lines = last.stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ids[1:]
    for line in lines:
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d\d:\d\d 200 POST /v1/messages  anthropic → sim  ", line)
        assert f"notes {', '.join(KIRO)}" in line
    first, *notes = noted.stdout.splitlines()
    assert first.split()[-1] == ids[2]
    assert any(line.startswith("    [knob.dropped] dropped temperature: ") for line in notes)
    [entry] = decoded
    assert [note["rule"] for note in entry["changes"]] == [*KIRO]
    assert jsonio.typed_decoder(LoggedRequest)(json.dumps(entry)).request_id == ids[2]
    assert "my words" not in last.stdout + noted.stdout + json.dumps(decoded) and "\x1b" not in last.stdout


def test_without_a_gateway_the_exit_status_is_four(home: UserHome) -> None:
    for words in (("log",), ("log", "-f"), ("top", "--once"), ("reload",)):
        done = home.run(*words)
        assert (done.returncode, done.stdout) == (4, "")
        assert "no gateway is running" in done.stderr and "dragoman serve" in done.stderr
    assert home.run("log", "-n", "some").returncode == 2


def test_follow_prints_lines_as_they_come_and_continues_after_a_restart(home: UserHome) -> None:
    config = str(home.write("config.toml", SIMULATED))
    words = ("--quiet", "--config", config)
    with home.serving(*words) as served:
        before = ask(served)
        wait_for_entries(home, 1)
        with following(home, "--notes") as follower:
            seen = [follower.next_line()]
            while before not in seen[-1]:
                seen.append(follower.next_line())
            now = ask(served)
            while now not in seen[-1]:
                seen.append(follower.next_line())
            assert any(line.startswith("    [kiro.max_tokens] dropped max_tokens: ") for line in seen)
            served.end()
            assert "waiting for it to come back" in follower.next_notice()
            with home.serving(*words) as again:
                assert f"the gateway was restarted (pid {again.process.pid})" in follower.next_notice()
                later = ask(again)
                while later not in seen[-1]:
                    seen.append(follower.next_line())
                assert follower.end() == 130
    text = "\n".join(seen)
    assert [text.count(each) for each in (before, now, later)] == [1, 1, 1]


def test_follow_shows_events_of_the_gateway(home: UserHome) -> None:
    config = home.write("config.toml", SIMULATED)
    with home.serving("--quiet", "--config", str(config)), following(home) as follower:
        config.write_text(f'{SIMULATED}\n[log]\nlevel = "warning"\n')
        assert home.run("reload").returncode == 0
        while "reloaded" not in (line := follower.next_line()):
            pass
    assert line.endswith("reloaded  log.level")


def test_a_slow_reader_gets_the_number_of_lines_that_it_missed(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    config = parse_config("", server__admin_socket=str(path))
    log = AccessLog(Redactor(), stream=io.StringIO())
    total = 5 * MAX_REQUESTS
    with running_gateway(config, state=tmp_path, access_log=log, key=KEY, admin_socket=True) as running:
        assert running.loop is not None

        async def write(count: int) -> None:
            for _ in range(0, count, MAX_REQUESTS):
                for _ in range(MAX_REQUESTS):
                    log.request(Record("req_1", "POST", f"/v1/{'x' * 400}", upstream="one"))
                await asyncio.sleep(0.3)  # The gateway looks for new lines every 0.1 seconds, on the same loop.

        with socket.socket(socket.AF_UNIX) as reader:
            reader.connect(str(path))
            reader.sendall(b"GET /log?follow=1&n=0 HTTP/1.1\r\nhost: localhost\r\n\r\n")
            stream = reader.makefile("rb")
            while b'"cursor"' not in stream.readline():
                pass
            asyncio.run_coroutine_threadsafe(write(total), running.loop).result(TIMEOUT)
            # The reader has read nothing, and a fifth of the lines is more than the buffers of a socket hold.
            got, missed = 0, 0
            while got + missed < total:
                line = stream.readline()
                if b'"control":"missed"' in line:
                    missed += json.loads(line)["lines"]
                got += line.count(b'"event":"request"')
            stream.close()
    assert got + missed == total and missed > 0 and got > MAX_REQUESTS


def test_a_reader_that_leaves_ends_its_task(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    config = parse_config("", server__admin_socket=str(path))
    access_log = AccessLog(Redactor(), stream=io.StringIO())
    with running_gateway(config, state=tmp_path, access_log=access_log, key=KEY, admin_socket=True) as running:
        loop = running.loop
        assert loop is not None

        async def count() -> int:
            return sum("Admin.answer" in repr(each.get_coro()) for each in asyncio.all_tasks())

        def readers() -> int:
            return asyncio.run_coroutine_threadsafe(count(), loop).result(TIMEOUT)

        with socket.socket(socket.AF_UNIX) as reader:
            reader.connect(str(path))
            reader.sendall(b"GET /log?follow=1&n=0 HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert reader.recv(4096)
            wait_until(lambda: readers() == 1)
        wait_until(lambda: readers() == 0)
        assert "error" not in [str(each.get("level")) for each in _events(access_log)]


def _events(access_log: AccessLog) -> list[dict[str, Any]]:
    return [json.loads(entry.line) for entry in access_log.recent_entries.events.entries]


# --- several workers


def test_the_lines_of_all_workers_are_merged_in_the_order_of_time(home: UserHome) -> None:
    config = str(home.write("config.toml", SIMULATED))
    with (
        home.serving("--quiet", "--config", config, "--workers", "2") as served,
        following(home, "--json", "-n", "1000") as follower,
    ):
        ids = [ask(served) for _ in range(40)]
        followed: list[dict[str, Any]] = []
        while len(followed) < 40:
            entry = json.loads(follower.next_line())
            followed += [entry] if entry["event"] == "request" else []
        listed = wait_for_entries(home, 40)
        by_id = home.run("explain", ids[7], "--json")
        activity = json.loads(home.run("top", "--json").stdout)
        status = home.run("status").stdout
        assert follower.end() == 130
    for entries in (followed, listed):
        assert {entry["request_id"] for entry in entries} == set(ids)
        times = [entry["ts"] for entry in entries]
        assert times == sorted(times)
    assert len({each[16:28] for each in ids}) == 2, "one worker got all requests"
    assert json.loads(by_id.stdout)["request"]["request_id"] == ids[7]
    assert [row["name"] for row in activity["upstreams"]] == ["sim"]
    assert [line.split()[:4] for line in status.splitlines() if line.startswith("sim ")] == [
        ["sim", "ok", "0", "running,"]
    ]
    assert activity["requests_per_second"] > 0 and activity["upstreams"][0]["error_share"] == 0


# --- the private gateway of `dragoman run`

LOOK = """
import subprocess
def look(*words):
    return subprocess.run([sys.executable, "-m", "dragoman", *words], capture_output=True, text=True).stdout
port = os.environ["ANTHROPIC_BASE_URL"].rpartition(":")[2]
seen = {}
while not seen.get("log"):  # the entry is kept after the response
    seen["log"] = [line for line in look("log", "--json").splitlines() if '"event":"request"' in line]
for name, words in {"status": ("status", "--json"), "top": ("top", "--json"), "explain": ("explain", "last", "--json")}.items():
    seen[name] = [json.loads(look(*words)), json.loads(look(*words, "--port", port))]
reload = subprocess.run([sys.executable, "-m", "dragoman", "reload"], capture_output=True, text=True)
seen["reload"] = [reload.returncode, reload.stderr]
print(json.dumps(seen))
"""


def test_the_private_gateway_of_run_is_found(home: UserHome) -> None:
    client(home, "claude", ASK_PLAINLY + LOOK)
    done = run(home, "--upstream", "simulator", "claude")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert len(seen["log"]) == 1
    for name, key in (("status", "state"), ("top", "requests_per_second"), ("explain", "request")):
        assert all(key in each for each in seen[name])
    assert seen["explain"][0]["request"]["request_id"] == json.loads(seen["log"][0])["request_id"]
    assert seen["reload"][0] == 3 and "Start the client again" in seen["reload"][1]
    assert not list(home.path.rglob("*.sock"))


def test_a_private_gateway_does_not_take_the_usual_socket(home: UserHome) -> None:
    """Otherwise a second `run` would take it for the running gateway, whose key it does not know."""
    client(
        home, "claude", f"import glob\nprint(glob.glob('{home.path}/**/*.sock', recursive=True, include_hidden=True))"
    )
    done = run(home, "--upstream", "simulator", "claude")
    assert re.search(r"/run/admin-\d+\.sock'\]", done.stdout), done.stderr
