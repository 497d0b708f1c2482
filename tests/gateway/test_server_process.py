"""The gateway as a process: signals, exhausted file descriptors, and several workers on one port."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway import admin
from dragoman.simulator import parse_script, running_simulator
from tests.gateway.harness import KEY, anthropic_body, upstream_config, wait_until
from tests.load.gateway import Gateway, start_gateway_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc, sets limits, needs SO_REUSEPORT")
STARVED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
from dragoman.gateway import serve
serve._max_connections = lambda: 10_000
"""


def probe(server: Gateway) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    finally:
        connection.close()


def started_stream(server: Gateway) -> socket.socket:
    """Start a stream and read its first event; return the socket."""
    body = json.dumps(anthropic_body(stream=True))
    head = f"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    client.sendall((head + body).encode())
    got = b""
    while b"Begin" not in got:
        piece = client.recv(65536)
        assert piece, got
        got += piece
    return client


def rest(client: socket.socket) -> bytes:
    with client:
        got = b""
        while piece := client.recv(65536):
            got += piece
        return got


def configuration(text: str = "", drain: float = 20) -> str:
    return f'allow_literal_secrets = true\n[server]\nkey = "{KEY}"\nport = 0\ndrain = {drain}\n{text}'


def test_without_file_descriptors_the_server_waits_and_uses_no_cpu(tmp_path: Path) -> None:
    with start_gateway_process(tmp_path, configuration(), STARVED) as server:
        clients = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(120)]
        for client in clients:
            client.send(b"P")  # the system does not report a silent connection
        wait_until(lambda: "no_connection" in (tmp_path / "log").read_text())
        before = server.cpu()
        time.sleep(1.0)
        assert server.cpu() - before < 0.3  # a busy loop would use a whole core
        assert 1 <= (tmp_path / "log").read_text().count("no_connection") <= 10
        for client in clients:
            client.close()
        assert probe(server) == 200


def test_the_first_signal_drains_and_the_second_cuts_streams(tmp_path: Path) -> None:
    script = 'then = "last"\n[[turn]]\nparts = [{ text = "Begin " }, { wait = 600.0 }]'
    with running_simulator("openai", script=parse_script(script)) as simulator:
        with start_gateway_process(
            tmp_path, configuration(upstream_config("one", "openai", simulator.url), drain=600)
        ) as server:
            streams = [started_stream(server) for _ in range(5)]
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: probe(server) == 503)  # still listening, and reporting the drain
            server.process.send_signal(signal.SIGTERM)
            for client in streams:
                received = rest(client)
                assert b"event: error" in received and b"shutting down" in received and received.endswith(b"0\r\n\r\n")
            assert server.process.wait(60) == 0  # without waiting a minute for the upstream
        assert all(request.wait(60) == "gone" for request in simulator.requests)


def test_a_drain_cuts_none_of_a_hundred_streams(tmp_path: Path) -> None:
    script = 'then = "last"\n[[turn]]\nparts = [{ text = "Begin " }, { wait = 1.0 }, { text = "end." }]'
    with (
        running_simulator("openai", script=parse_script(script)) as simulator,
        start_gateway_process(
            tmp_path,
            configuration(upstream_config("one", "openai", simulator.url, "limits.concurrency = 200"), drain=60),
        ) as server,
    ):
        streams = [started_stream(server) for _ in range(100)]
        server.process.send_signal(signal.SIGTERM)
        for client in streams:
            received = rest(client)
            assert b"message_stop" in received and b"error" not in received and received.endswith(b"0\r\n\r\n")
        assert server.process.wait(60) == 0
        log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if '"request"' in line]
        assert [line["outcome"] for line in log] == ["ok"] * 100


# --- several workers on one port: all serve, a dead one is replaced, and they end together


class GatewayProcess:
    """A gateway with several workers."""

    def __init__(self, process: subprocess.Popen[str], url: str, socket: Path) -> None:
        self.process, self.url, self._socket = process, url, socket

    def status(self) -> dict[str, Any]:
        return dict(json.loads(admin.send_admin_request(self._socket)))

    def metrics(self) -> str:
        return admin.send_admin_request(self._socket, "/metrics").decode()

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
    return str(anthropic_body("sim-anthropic")).replace("'", '"')


@contextmanager
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    socket = tmp_path / "run" / "admin.sock"
    environ = {"HOME": str(tmp_path), "DRAGOMAN_SERVER__ADMIN_SOCKET": str(socket)}
    environ |= {"DRAGOMAN_SERVER__KEY": KEY}
    environ |= {"DRAGOMAN_ALLOW_LITERAL_SECRETS": "true", "DRAGOMAN_SERVER__DRAIN": "2"}
    command = [sys.executable, "-m", "dragoman", "serve", "--port", "0", "--workers", "2", "--quiet"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            url = process.stdout.readline().strip()
            assert url, process.stderr.read()
            yield GatewayProcess(process, url, socket)
        finally:
            process.kill()


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_all_workers_serve_and_end_together(tmp_path: Path) -> None:
    with gateway(tmp_path) as workers:
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
    with gateway(tmp_path) as workers:
        killed = workers.pids()[0]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(found := workers.pids()) == 2 and killed not in found)
        assert {workers.ask() for _ in range(12)} == {200}
        workers.process.send_signal(signal.SIGINT)
        assert workers.process.wait(60) == 0


def test_workers_do_not_outlive_their_parent(tmp_path: Path) -> None:
    with gateway(tmp_path) as workers:
        pids = workers.pids()
        workers.process.kill()
        workers.process.wait(60)
        began = time.monotonic()
        wait_until(lambda: not any(map(is_alive, pids)))
        assert time.monotonic() - began < 8
