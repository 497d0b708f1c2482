"""The server as a process of its own: signals, and a system that has no more file descriptors."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from dragoman.simulator import parse, running_simulator
from tests.gateway.house import KEY, messages, upstream, wait_until
from tests.load.gateway import Gateway, serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc, sets limits, needs SO_REUSEPORT")
STARVED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
from dragoman.gateway import running
running._room = lambda: 10_000
"""


def probe(server: Gateway) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    finally:
        connection.close()


def begun(server: Gateway) -> socket.socket:
    """A stream that has said its first word."""
    body = json.dumps(messages(stream=True))
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


def test_without_file_descriptors_it_waits_and_does_not_spin(tmp_path: Path) -> None:
    with serving(tmp_path, configuration(), STARVED) as server:
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
        assert probe(server) == 200


def test_the_first_signal_drains_and_the_second_cuts(tmp_path: Path) -> None:
    script = 'then = "last"\n[[turn]]\nparts = [{ text = "Begin " }, { wait = 600.0 }]'
    with running_simulator("openai", script=parse(script)) as simulator:
        with serving(tmp_path, configuration(upstream("one", "openai", simulator.url), drain=600)) as server:
            streams = [begun(server) for _ in range(5)]
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: probe(server) == 503)  # still listening, and saying so
            server.process.send_signal(signal.SIGTERM)
            for client in streams:
                told = rest(client)
                assert b"event: error" in told and b"shutting down" in told and told.endswith(b"0\r\n\r\n")
            assert server.process.wait(60) == 0  # and not after the minute that the upstream takes
        assert all(request.wait(60) == "gone" for request in simulator.requests)


def test_a_drain_cuts_none_of_a_hundred_streams(tmp_path: Path) -> None:
    script = 'then = "last"\n[[turn]]\nparts = [{ text = "Begin " }, { wait = 1.0 }, { text = "end." }]'
    with (
        running_simulator("openai", script=parse(script)) as simulator,
        serving(
            tmp_path, configuration(upstream("one", "openai", simulator.url, "limits.concurrency = 200"), drain=60)
        ) as server,
    ):
        streams = [begun(server) for _ in range(100)]
        server.process.send_signal(signal.SIGTERM)
        for client in streams:
            told = rest(client)
            assert b"message_stop" in told and b"error" not in told and told.endswith(b"0\r\n\r\n")
        assert server.process.wait(60) == 0
        log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if '"request"' in line]
        assert [line["outcome"] for line in log] == ["ok"] * 100
