"""S16: requests that come before the answer to the one before them wait for their turn; none is lost."""

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


def sent(client: SocketClient, raw: bytes) -> threading.Thread:
    """Send it beside: the gateway does not read all of it at once."""

    def send() -> None:
        with suppress(OSError):
            client.send(raw)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_s16_every_pipelined_request_is_answered_in_its_order(harness: GatewayHarness) -> None:
    """S16: those beyond 17 vanished without an answer."""
    with SocketClient(harness) as client:
        sending = sent(client, b"".join(request_bytes(f"number {number}!") for number in range(MANY)))
        for number in range(MANY):
            status, headers, body = client.answer()
            assert (status, "connection" in headers) == (200, False)
            assert f"number {number}!".encode() in body
        sending.join(10)
        client.send(request_bytes("and one more"))
        assert b"and one more" in client.answer()[2]
    assert len(harness.log_lines(MANY + 1)) == MANY + 1


def test_s16_the_last_of_many_that_half_closes_is_answered_too(harness: GatewayHarness) -> None:
    with SocketClient(harness) as client:
        sending = sent(client, b"".join(request_bytes(f"number {number}!") for number in range(60)))
        sending.join(10)
        client.end()
        for number in range(60):
            assert f"number {number}!".encode() in client.answer()[2]
        assert client.file.read() == b""


def test_s16_bodies_that_are_large_wait_as_well(harness: GatewayHarness) -> None:
    texts = [f"{number}" * 150_000 for number in range(8)]
    with SocketClient(harness) as client:
        sending = sent(client, b"".join(request_bytes(text) for text in texts))
        for text in texts:
            assert text[:50].encode() in client.answer()[2]
        sending.join(10)


def test_s16_while_the_first_is_answered_no_more_is_read_than_fits(tmp_path: Path) -> None:
    script = '[[turn]]\nparts = [{ text = "Begin " }, { wait = 1.0 }, { text = "end." }]\n[[turn]]\ntext = "Second."'
    with (
        gateway_with_simulator(f'then = "last"\n{script}', tmp_path, "openai") as (harness, _),
        SocketClient(harness, first=request_bytes(stream=True)) as client,
    ):
        client.head()
        sending = sent(client, request_bytes(filler="x" * 100) * 2000)
        [connection] = harness.running.gateway._live
        held = connection.connection  # type: ignore[attr-defined]
        wait_until(lambda: held._held or held._queue)
        wait_until(lambda: not held.is_reading)
        assert MAX_PIPELINED <= len(held._queue) < MAX_PIPELINED + 100
        assert len(held._held) <= 1024 * 1024
        client.socket.close()
        sending.join(10)


# --- S13: a client that closes its sending side after a whole request gets its answer; one that closes the socket has
# left

# It answers after the end of the request has been noticed, in two steps.
SLOW = 'then = "last"\n[[turn]]\nfirst_delay = 0.3\nparts = [{ text = "Begin " }, { wait = 0.2 }, { text = "end." }]'


@pytest.mark.parametrize("stream", [False, True])
def test_s13_a_client_that_half_closes_gets_its_answer_and_nothing_else(
    tmp_path: Path, loop: str, stream: bool
) -> None:
    """S13: it got none."""
    with (
        gateway_with_simulator(SLOW, tmp_path, "openai") as (harness, _),
        SocketClient(harness, first=request_bytes(stream=stream)) as client,
    ):
        client.end()
        status, _, body = client.answer()
        assert status == 200
        assert b"Begin " in body and b"end." in body and (not stream or b"message_stop" in body)
        assert client.file.read() == b""  # then the connection is closed
        assert harness.log_lines()[0]["outcome"] == "ok"


def test_s13_all_requests_before_the_end_are_answered(tmp_path: Path, loop: str) -> None:
    with gateway_with_simulator('then = "last"\n[[turn]]\ntext = "Yes."\nfirst_delay = 0.1', tmp_path, "openai") as (
        harness,
        simulator,
    ):
        with SocketClient(harness, first=request_bytes() + request_bytes(stream=True) + request_bytes()) as client:
            client.end()
            assert [client.answer()[0] for _ in range(3)] == [200] * 3
            assert client.file.read() == b""
        assert simulator.total == 3


def test_s13_a_refusal_is_heard_too(tmp_path: Path, loop: str) -> None:
    with (
        gateway_with_simulator(SLOW, tmp_path, "openai") as (harness, _),
        SocketClient(harness, first=request_bytes(key="wrong")) as client,
    ):
        client.end()
        assert client.answer()[0] == 401


@pytest.mark.parametrize("when", ["before its answer", "in its answer"])
def test_s13_a_client_that_closes_its_socket_has_left(tmp_path: Path, loop: str, when: str) -> None:
    """To the gateway both look alike at first: the end of what is sent."""
    parts = 'parts = [{ text = "Begin." }, { wait = 30.0 }]'
    script = f"[[turn]]\n{'first_delay = 30.0' if when == 'before its answer' else ''}\n{parts}"
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, simulator):
        with SocketClient(harness, first=request_bytes(stream=True)) as client:
            wait_until(lambda: simulator.total == 1)
            if when == "in its answer":
                while b"Begin." not in client.file.readline():
                    pass
        assert simulator.requests[0].wait(5.0) == "gone"
        assert harness.log_lines()[0]["outcome"] == "gone"


def test_s13_a_client_that_half_closes_and_then_closes_has_left(tmp_path: Path, loop: str) -> None:
    script = '[[turn]]\nparts = [{ text = "Begin." }, { wait = 0.5 }, { text = "more" }, { wait = 0.5 }, { text = "x" }, { wait = 30.0 }]'
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, simulator):
        with SocketClient(harness, first=request_bytes(stream=True)) as client:
            client.end()
            while b"Begin." not in client.file.readline():
                pass
        assert simulator.requests[0].wait(5.0) == "gone"


def test_s13_an_end_within_a_body_is_a_client_that_left(tmp_path: Path, loop: str) -> None:
    with (
        gateway_with_simulator(SLOW, tmp_path, "openai") as (harness, simulator),
        SocketClient(harness, first=head(500) + b"{") as client,
    ):
        client.end()
        assert client.is_closed()
        assert (harness.log_lines()[0]["outcome"], simulator.total) == ("gone", 0)


def test_s13_the_end_of_a_second_request_that_is_not_whole_leaves_the_first_its_answer(
    tmp_path: Path, loop: str
) -> None:
    with (
        gateway_with_simulator(SLOW, tmp_path, "openai") as (harness, simulator),
        SocketClient(harness, first=request_bytes() + head(500) + b"{") as client,
    ):
        client.end()
        assert client.answer()[0] == 200
        assert client.file.read() == b""
        assert simulator.total == 1


# --- Answers that a client does not read, and requests that it sends all the same, take bounded room

KEYLESS = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
QUESTIONS = 150_000
MOST = 1024 * 1024  # bytes of unread answers, or of requests that wait


@pytest.fixture(params=EVENT_LOOPS)
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GatewayHarness]:
    with use_event_loop(request.param, monkeypatch), start_gateway("", tmp_path) as one:
        yield one


def find() -> ServerConnection:
    """The gateway's side of the one connection."""
    return next(each for server in gateway_servers() for each in server.connections.members)


def test_s1_answers_do_not_pile_up_for_a_client_that_reads_none(served: GatewayHarness) -> None:
    """S1: a keyless client that pipelined requests and read nothing made the gateway keep all answers, or requests."""
    with SocketClient(served, first=KEYLESS) as client:
        assert client.answer()[0] == 401
        theirs = find()
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
        assert transport.get_write_buffer_size() + len(theirs._held) < MOST
        for _ in range(3000):  # who reads is answered
            assert client.answer()[0] == 401
        client.socket.shutdown(socket.SHUT_RDWR)
        sending.join(60)


def test_a_client_that_reads_late_gets_every_answer_in_its_order(served: GatewayHarness) -> None:
    with SocketClient(served) as client:
        sending = threading.Thread(target=client.send, args=(KEYLESS * 3000 + request_bytes(),), daemon=True)
        sending.start()
        sending.join(60)
        statuses = [client.answer()[0] for _ in range(3001)]
        assert statuses == [401] * 3000 + [200]
        client.end()
        assert client.file.read() == b""


def test_a_connection_that_was_reset_meanwhile_is_no_bug() -> None:
    """The system refuses to close the sending side of a connection that is reset, but not yet read."""

    class Reset(MemoryTransport):
        def write_eof(self) -> None:
            raise OSError(107, "Transport endpoint is not connected")

    async def run() -> None:
        ended: list[BaseException | None] = []

        async def answer(asked: Exchange[MemoryAccount]) -> None:
            asked.whole(200, (), b"yes")

        carrier, wire = HttpServer(answer), Reset()
        client = ServerConnection(carrier)
        client.connection_made(wire)
        client.data_received(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n\x00 no HTTP")
        assert client._current is not None and client._current.task is not None
        client._current.task.add_done_callback(lambda task: ended.append(task.exception()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert wire.written.startswith(b"HTTP/1.1 200 ") and wire.closed and ended == [None]

    asyncio.run(run())


# --- A connection goes on after a big request, whether somebody read its body or not (Claude Code sends 85 kB and
# more)


@pytest.mark.parametrize("key", [KEY, "wrong"])
def test_another_request_is_answered_on_the_connection_of_a_big_one(tmp_path: Path, key: str) -> None:
    with (
        running_simulator("openai") as simulator,
        start_gateway(upstream_config("o", "openai", simulator.url), tmp_path) as harness,
    ):
        host, _, port = harness.url.removeprefix("http://").partition(":")
        statuses = []
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            for given in (key, KEY, KEY):
                body = json.dumps(anthropic_body(text="long " * 20_000))
                head = f"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: {given}\r\ncontent-length: {len(body)}\r\n\r\n"
                connection.sendall((head + body).encode())  # in one piece: it is there before anybody asks for it
                response = http.client.HTTPResponse(connection)
                response.begin()
                response.read()
                statuses.append(response.status)
    assert statuses == [200 if key == KEY else 401, 200, 200]
