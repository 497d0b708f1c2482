"""The server as a process of its own: signals, and a system that has no more file descriptors."""

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
from contextlib import contextmanager
from pathlib import Path

import pytest

from dragoman.simulator import parse, running_simulator
from tests.gateway.house import KEY, messages, upstream, wait_until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="asks /proc and sets limits"),
]
STARVED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
from dragoman.gateway import serve
serve._room = lambda: 10_000
from dragoman.cli import main
sys.exit(main())
"""


class Served:
    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.port = process, port

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def probe(self, path: str = "/readyz") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def stream(self) -> socket.socket:
        body = json.dumps(messages(stream=True))
        head = (
            f"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        client = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        client.sendall((head + body).encode())
        got = b""
        while b"Begin" not in got:
            piece = client.recv(65536)
            assert piece, got
            got += piece
        return client


@contextmanager
def served(tmp_path: Path, text: str = "", *, script: str = "", drain: float = 20) -> Iterator[Served]:
    config = tmp_path / "config.toml"
    lines = [f'key = "{KEY}"', f'admin_socket = "{tmp_path}/run/a.sock"', f"drain = {drain}"]
    config.write_text("\n".join(["allow_literal_secrets = true", "[server]", *lines, text]))
    command = [sys.executable, *(["-c", script] if script else ["-m", "dragoman"])]
    arguments = ["serve", "--config", str(config), "--port", "0", "--quiet"]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [*command, *arguments], env={"HOME": str(tmp_path)}, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        assert process.stdout is not None
        try:
            url = process.stdout.readline().decode().strip()
            assert url, (tmp_path / "log").read_text()
            yield Served(process, int(url.rpartition(":")[2]))
        finally:
            process.kill()


def test_without_file_descriptors_it_waits_and_does_not_spin(tmp_path: Path) -> None:
    with served(tmp_path, script=STARVED) as server:
        clients = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(120)]
        for client in clients:
            client.send(b"P")  # the system keeps a silent connection to itself
        wait_until(lambda: "no_connection" in (tmp_path / "log").read_text())
        before = server.cpu()
        time.sleep(1.0)
        assert server.cpu() - before < 0.3  # one that spins takes all it can get
        assert 1 <= (tmp_path / "log").read_text().count("no_connection") <= 10
        for client in clients:
            client.close()
        assert server.probe() == 200


def test_the_first_signal_drains_and_the_second_cuts(tmp_path: Path) -> None:
    script = 'then = "last"\n[[turn]]\nparts = [{ text = "Begin " }, { wait = 600.0 }]'
    with running_simulator("openai", script=parse(script)) as simulator:
        with served(tmp_path, upstream("one", "openai", simulator.url), drain=600) as server:
            streams = [server.stream() for _ in range(5)]
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: server.probe() == 503)  # still listening, and saying so
            server.process.send_signal(signal.SIGTERM)
            for client in streams:
                rest = b""
                while piece := client.recv(65536):
                    rest += piece
                client.close()
                assert b"event: error" in rest and b"shutting down" in rest and rest.endswith(b"0\r\n\r\n")
            assert server.process.wait(60) == 0  # and not after the minute that the upstream takes
        assert all(request.wait(60) == "gone" for request in simulator.requests)


def test_a_drain_cuts_none_of_a_hundred_streams(tmp_path: Path) -> None:
    script = 'then = "last"\n[[turn]]\nparts = [{ text = "Begin " }, { wait = 1.0 }, { text = "end." }]'
    with (
        running_simulator("openai", script=parse(script)) as simulator,
        served(tmp_path, upstream("one", "openai", simulator.url, "limits.concurrency = 200"), drain=60) as server,
    ):
        streams = [server.stream() for _ in range(100)]
        server.process.send_signal(signal.SIGTERM)
        for client in streams:
            rest = b""
            while piece := client.recv(65536):
                rest += piece
            client.close()
            assert b"message_stop" in rest and b"error" not in rest and rest.endswith(b"0\r\n\r\n")
        assert server.process.wait(60) == 0
        log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if '"request"' in line]
        assert [line["outcome"] for line in log] == ["ok"] * 100
