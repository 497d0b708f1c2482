"""Pipelined requests wait for their turn within limits, and half-closed connections get responses."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dragoman.gateway.limits import MemoryAccount
from dragoman.http.exchange import Exchange
from dragoman.http.framing import MAX_PIPELINED
from dragoman.http.server.connection import ServerConnection
from dragoman.http.server.serving import HttpServer
from dragoman.simulator import Simulator, running_simulator
from tests.gateway.harness import (
    KEY,
    GatewayHarness,
    anthropic_body,
    gateway_with_simulator,
    start_gateway,
    upstream_config,
    wait_until,
)
from tests.gateway.socket_client import (
    EVENT_LOOPS,
    MemoryTransport,
    SocketClient,
    gateway_servers,
    head,
    request_bytes,
    use_event_loop,
)

MANY = 300


@pytest.fixture(params=EVENT_LOOPS)
def harness(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, simulator: Simulator, tmp_path: Path
) -> Iterator[GatewayHarness]:
    with (
        use_event_loop(request.param, monkeypatch),
        start_gateway(upstream_config("one", "anthropic", simulator.url), tmp_path) as one,
    ):
        yield one


def send_in_thread(client: SocketClient, raw: bytes) -> threading.Thread:
    """Send in a thread, because the gateway does not read everything at once."""

    def send() -> None:
        with suppress(OSError):
            client.send(raw)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_every_pipelined_request_is_answered_in_order(harness: GatewayHarness) -> None:
    """Regression: requests after the 17th got no response."""
    with SocketClient(harness) as client:
        sending = send_in_thread(client, b"".join(request_bytes(f"number {number}!") for number in range(MANY)))
        for number in range(MANY):
            status, headers, body = client.read_response()
            assert (status, "connection" in headers) == (200, False)
            assert f"number {number}!".encode() in body
        sending.join(10)
        client.send(request_bytes("and one more"))
        assert b"and one more" in client.read_response()[2]
    assert len(harness.log_lines(MANY + 1)) == MANY + 1


def test_the_last_pipelined_request_before_a_half_close_is_answered_too(harness: GatewayHarness) -> None:
    with SocketClient(harness) as client:
        sending = send_in_thread(client, b"".join(request_bytes(f"number {number}!") for number in range(60)))
        sending.join(10)
        client.end()
        for number in range(60):
            assert f"number {number}!".encode() in client.read_response()[2]
        assert client.file.read() == b""


def test_pipelined_requests_with_large_bodies_wait_as_well(harness: GatewayHarness) -> None:
    texts = [f"{number}" * 150_000 for number in range(8)]
    with SocketClient(harness) as client:
        sending = send_in_thread(client, b"".join(request_bytes(text) for text in texts))
        for text in texts:
            assert text[:50].encode() in client.read_response()[2]
        sending.join(10)


def test_reading_stops_while_the_queue_is_full(tmp_path: Path) -> None:
    script = '[[turn]]\nparts = [{ text = "Begin " }, { wait = 1.0 }, { text = "end." }]\n[[turn]]\ntext = "Second."'
    with (
        gateway_with_simulator(f'then = "last"\n{script}', tmp_path, "openai") as (harness, _),
        SocketClient(harness, first=request_bytes(stream=True)) as client,
    ):
        client.head()
        sending = send_in_thread(client, request_bytes(filler="x" * 100) * 2000)
        [connection] = harness.running.gateway._live
        server_side = connection.connection  # type: ignore[attr-defined]
        wait_until(lambda: server_side._unparsed or server_side._queue)
        wait_until(lambda: not server_side.is_reading)
        assert MAX_PIPELINED <= len(server_side._queue) < MAX_PIPELINED + 100
        assert len(server_side._unparsed) <= 1024 * 1024
        client.socket.close()
        sending.join(10)


# --- a client that half-closes after a whole request gets its response; one that closes the socket has left

# The upstream answers in two steps, after the gateway has seen the half-close.
SLOW = 'then = "last"\n[[turn]]\nfirst_delay = 0.3\nparts = [{ text = "Begin " }, { wait = 0.2 }, { text = "end." }]'


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_half_closes_gets_its_response_and_nothing_else(tmp_path: Path, loop: str, stream: bool) -> None:
    """Regression: it got no response."""
    with (
        gateway_with_simulator(SLOW, tmp_path, "openai") as (harness, _),
        SocketClient(harness, first=request_bytes(stream=stream)) as client,
    ):
        client.end()
        status, _, body = client.read_response()
        assert status == 200
        assert b"Begin " in body and b"end." in body and (not stream or b"message_stop" in body)
        assert client.file.read() == b""  # then the connection is closed
        assert harness.log_lines()[0]["outcome"] == "ok"


def test_all_requests_before_a_half_close_are_answered(tmp_path: Path, loop: str) -> None:
    with gateway_with_simulator('then = "last"\n[[turn]]\ntext = "Yes."\nfirst_delay = 0.1', tmp_path, "openai") as (
        harness,
        simulator,
    ):
        with SocketClient(harness, first=request_bytes() + request_bytes(stream=True) + request_bytes()) as client:
            client.end()
            assert [client.read_response()[0] for _ in range(3)] == [200] * 3
            assert client.file.read() == b""
        assert simulator.total == 3


def test_a_refusal_is_sent_after_a_half_close_too(tmp_path: Path, loop: str) -> None:
    with (
        gateway_with_simulator(SLOW, tmp_path, "openai") as (harness, _),
        SocketClient(harness, first=request_bytes(key="wrong")) as client,
    ):
        client.end()
        assert client.read_response()[0] == 401


@pytest.mark.parametrize("when", ["before its response", "in its response"])
def test_a_client_that_closes_its_socket_has_left(tmp_path: Path, loop: str, when: str) -> None:
    """The gateway first sees the same in both cases: the end of the client's bytes."""
    parts = 'parts = [{ text = "Begin." }, { wait = 30.0 }]'
    script = f"[[turn]]\n{'first_delay = 30.0' if when == 'before its response' else ''}\n{parts}"
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, simulator):
        with SocketClient(harness, first=request_bytes(stream=True)) as client:
            wait_until(lambda: simulator.total == 1)
            if when == "in its response":
                while b"Begin." not in client.file.readline():
                    pass
        assert simulator.requests[0].wait(5.0) == "gone"
        assert harness.log_lines()[0]["outcome"] == "gone"


def test_a_client_that_half_closes_and_then_closes_has_left(tmp_path: Path, loop: str) -> None:
    script = '[[turn]]\nparts = [{ text = "Begin." }, { wait = 0.5 }, { text = "more" }, { wait = 0.5 }, { text = "x" }, { wait = 30.0 }]'
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, simulator):
        with SocketClient(harness, first=request_bytes(stream=True)) as client:
            client.end()
            while b"Begin." not in client.file.readline():
                pass
        assert simulator.requests[0].wait(5.0) == "gone"


def test_a_half_close_within_a_body_means_the_client_left(tmp_path: Path, loop: str) -> None:
    with (
        gateway_with_simulator(SLOW, tmp_path, "openai") as (harness, simulator),
        SocketClient(harness, first=head(500) + b"{") as client,
    ):
        client.end()
        assert client.is_closed()
        assert (harness.log_lines()[0]["outcome"], simulator.total) == ("gone", 0)


def test_a_half_close_within_the_second_request_does_not_cancel_the_first(tmp_path: Path, loop: str) -> None:
    with (
        gateway_with_simulator(SLOW, tmp_path, "openai") as (harness, simulator),
        SocketClient(harness, first=request_bytes() + head(500) + b"{") as client,
    ):
        client.end()
        assert client.read_response()[0] == 200
        assert client.file.read() == b""
        assert simulator.total == 1


# --- unread responses and the requests behind them use bounded memory

KEYLESS = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
QUESTIONS = 150_000
MOST = 1024 * 1024  # bytes of unread responses, or of waiting requests


@pytest.fixture(params=EVENT_LOOPS)
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GatewayHarness]:
    with use_event_loop(request.param, monkeypatch), start_gateway("", tmp_path) as one:
        yield one


def find_connection() -> ServerConnection:
    """Return the server side of the only connection."""
    return next(each for server in gateway_servers() for each in server.connections.members)


def test_responses_do_not_pile_up_for_a_client_that_reads_none(served: GatewayHarness) -> None:
    """Regression: a client without a key that pipelined requests and read nothing filled the gateway's memory."""
    with SocketClient(served, first=KEYLESS) as client:
        assert client.read_response()[0] == 401
        theirs = find_connection()
        transport = theirs._transport
        assert transport is not None

        def send() -> None:
            with suppress(OSError):
                client.send(KEYLESS * QUESTIONS)

        def is_stopped() -> bool:
            return theirs._write_paused and theirs._current is None and not transport.is_reading()

        client.socket.settimeout(60)
        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        wait_until(lambda: is_stopped() or not sending.is_alive())
        assert is_stopped() and sending.is_alive()
        assert transport.get_write_buffer_size() + len(theirs._unparsed) < MOST
        for _ in range(3000):  # a client that reads gets its responses
            assert client.read_response()[0] == 401
        client.socket.shutdown(socket.SHUT_RDWR)
        sending.join(60)


def test_a_client_that_reads_late_gets_every_response_in_order(served: GatewayHarness) -> None:
    with SocketClient(served) as client:
        sending = threading.Thread(target=client.send, args=(KEYLESS * 3000 + request_bytes(),), daemon=True)
        sending.start()
        sending.join(60)
        statuses = [client.read_response()[0] for _ in range(3001)]
        assert statuses == [401] * 3000 + [200]
        client.end()
        assert client.file.read() == b""


def test_a_reset_before_a_half_close_is_not_an_error() -> None:
    """The system raises for a half-close of a connection whose reset has not been read yet."""

    class Reset(MemoryTransport):
        def write_eof(self) -> None:
            raise OSError(107, "Transport endpoint is not connected")

    async def run() -> None:
        ended: list[BaseException | None] = []

        async def respond(exchange: Exchange[MemoryAccount]) -> None:
            exchange.whole(200, (), b"yes")

        carrier, wire = HttpServer(respond), Reset()
        client = ServerConnection(carrier)
        client.connection_made(wire)
        client.data_received(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n\x00 no HTTP")
        assert client._current is not None and client._current.task is not None
        client._current.task.add_done_callback(lambda task: ended.append(task.exception()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert wire.written.startswith(b"HTTP/1.1 200 ") and wire.closed and ended == [None]

    asyncio.run(run())


# --- a connection stays usable after a large request, read or refused (Claude Code sends 85 kB and more)


@pytest.mark.parametrize("key", [KEY, "wrong"])
def test_a_request_after_a_large_one_is_answered_on_the_same_connection(tmp_path: Path, key: str) -> None:
    with (
        running_simulator("openai") as simulator,
        start_gateway(upstream_config("o", "openai", simulator.url), tmp_path) as harness,
    ):
        host, _, port = harness.url.removeprefix("http://").partition(":")
        statuses = []
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            for used_key in (key, KEY, KEY):
                body = json.dumps(anthropic_body(text="long " * 20_000))
                head = f"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: {used_key}\r\ncontent-length: {len(body)}\r\n\r\n"
                connection.sendall((head + body).encode())  # in one piece, so it arrives before it is read
                response = http.client.HTTPResponse(connection)
                response.begin()
                response.read()
                statuses.append(response.status)
    assert statuses == [200 if key == KEY else 401, 200, 200]
