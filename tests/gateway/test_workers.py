"""Several processes on one port: all of them serve, a dead one is replaced, and they end together."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway import admin
from tests.gateway.house import KEY, messages, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc, sets limits, needs SO_REUSEPORT")


class Crew:
    def __init__(self, process: subprocess.Popen[str], url: str, socket: Path) -> None:
        self.process, self.url, self._socket = process, url, socket

    def status(self) -> dict[str, Any]:
        found: Any = admin.status(self._socket)
        return dict(found)

    def metrics(self) -> str:
        return admin.ask(self._socket, "/metrics").decode()

    def pids(self) -> list[int]:
        return [worker["pid"] for worker in self.status()["workers"]]

    def ask(self) -> int:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        try:
            connection.request("POST", "/v1/messages", body(), {"x-api-key": KEY})
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()


def body() -> str:
    return str(messages("sim-anthropic")).replace("'", '"')


@contextmanager
def crew(tmp_path: Path) -> Iterator[Crew]:
    socket = tmp_path / "run" / "admin.sock"
    surroundings = {"HOME": str(tmp_path), "DRAGOMAN_SERVER__ADMIN_SOCKET": str(socket)}
    surroundings |= {"DRAGOMAN_SERVER__KEY": KEY}
    surroundings |= {"DRAGOMAN_ALLOW_LITERAL_SECRETS": "true", "DRAGOMAN_SERVER__DRAIN": "2"}
    command = [sys.executable, "-m", "dragoman", "serve", "--port", "0", "--workers", "2", "--quiet"]
    with subprocess.Popen(
        command, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            url = process.stdout.readline().strip()
            assert url, process.stderr.read()
            yield Crew(process, url, socket)
        finally:
            process.kill()


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_all_workers_serve_and_end_together(tmp_path: Path) -> None:
    with crew(tmp_path) as workers:
        assert {workers.ask() for _ in range(24)} == {200}
        pids = workers.pids()
        assert len(set(pids)) == 2 and workers.process.pid not in pids
        lines = [line for line in workers.metrics().splitlines() if line.startswith("dragoman_requests_total{")]
        assert {line.partition(",")[0] for line in lines} == {
            'dragoman_requests_total{worker="1"',
            'dragoman_requests_total{worker="2"',
        }
        assert sum(float(line.rpartition(" ")[2]) for line in lines) == 24
        assert workers.metrics().count("# TYPE dragoman_requests_total ") == 1
        workers.process.send_signal(signal.SIGTERM)
        assert workers.process.wait(60) == 0
        assert not any(map(is_alive, pids))


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    with crew(tmp_path) as workers:
        victim = workers.pids()[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(found := workers.pids()) == 2 and victim not in found)
        assert {workers.ask() for _ in range(12)} == {200}
        workers.process.send_signal(signal.SIGINT)
        assert workers.process.wait(60) == 0


def test_workers_do_not_outlive_their_parent(tmp_path: Path) -> None:
    with crew(tmp_path) as workers:
        pids = workers.pids()
        workers.process.kill()
        workers.process.wait(60)
        began = time.monotonic()
        wait_until(lambda: not any(map(is_alive, pids)))
        assert time.monotonic() - began < 8
