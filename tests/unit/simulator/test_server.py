"""The server frame over real sockets: keep-alive, bodies in both framings, bounds, early ends, clients that leave."""

from __future__ import annotations

import asyncio
import http.client
import re
import socket
import time
from collections.abc import Iterator

import pytest

from dragoman.errors import LocalMisuse
from dragoman.simulator import Simulator, SimulatorLimits, parse_script, running_simulator
from dragoman.wire import jsonio
from tests.unit.simulator.kiro_cases import body as kiro_body

BODY = jsonio.encode(kiro_body())
HEADERS = {"authorization": "Bearer t", "content-type": "application/json"}
PATH = "/generateAssistantResponse"
LINES = f"authorization: Bearer t\r\ncontent-type: application/json\r\ncontent-length: {len(BODY)}\r\n"


def connect(simulator: Simulator) -> http.client.HTTPConnection:
    host, _, port = simulator.url.removeprefix("http://").partition(":")
    return http.client.HTTPConnection(host, int(port), timeout=60)


def raw(simulator: Simulator, data: bytes) -> bytes:
    """What the server answers to these bytes, until it closes."""
    host, _, port = simulator.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with running_simulator() as running:
        yield running


def test_one_connection_carries_many_exchanges(simulator: Simulator) -> None:
    before = simulator.total
    connection = connect(simulator)
    for _ in range(3):
        connection.request("POST", PATH, BODY, HEADERS)
        response = connection.getresponse()
        assert (response.status, response.getheader("transfer-encoding")) == (200, "chunked")
        assert response.read()
        assert connection.sock is not None
    connection.close()
    assert simulator.total == before + 3
    assert [received.wait() for received in simulator.requests[-3:]] == ["whole"] * 3


def test_what_was_received_is_kept(simulator: Simulator) -> None:
    connection = connect(simulator)
    connection.request("POST", PATH + "?a=1", BODY, {**HEADERS, "X-Odd": "1"})
    connection.getresponse().read()
    connection.close()
    last = simulator.requests[-1]
    assert (last.method, last.path, last.request.query, last.body) == ("POST", PATH, "a=1", BODY)
    assert last.headers["x-odd"] == "1"
    assert last.json == kiro_body()
    assert (last.status, last.sent > 0) == (200, True)


def test_a_chunked_request_is_read(simulator: Simulator) -> None:
    connection = connect(simulator)
    connection.request("POST", PATH, iter([BODY[:7], BODY[7:]]), HEADERS, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()
    assert simulator.requests[-1].body == BODY


def test_two_requests_in_one_packet_are_answered_in_order(simulator: Simulator) -> None:
    one = b"GET /getUsageLimits HTTP/1.1\r\nauthorization: Bearer t\r\n\r\n"
    two = b"GET /nowhere HTTP/1.1\r\nauthorization: Bearer t\r\nconnection: close\r\n\r\n"
    response = raw(simulator, one + two)
    assert re.findall(rb"HTTP/1\.1 (\d+)", response) == [b"200", b"404"]


def test_an_old_client_gets_a_response_that_ends_with_the_connection(simulator: Simulator) -> None:
    response = raw(simulator, f"POST {PATH} HTTP/1.0\r\n{LINES}\r\n".encode() + BODY)
    assert b"transfer-encoding" not in response
    assert b"connection: close" in response
    assert b"meteringEvent" in response


def test_a_client_that_waits_gets_100_continue(simulator: Simulator) -> None:
    head = f"POST {PATH} HTTP/1.1\r\n{LINES}expect: 100-continue\r\nconnection: close\r\n\r\n"
    host, _, port = simulator.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection, connection.makefile("rb") as file:
        connection.sendall(head.encode())
        assert (file.readline(), file.readline()) == (b"HTTP/1.1 100 Continue\r\n", b"\r\n")
        connection.sendall(BODY)
        assert file.readline() == b"HTTP/1.1 200 OK\r\n"


UNREADABLE = (
    (b"GARBAGE\r\n\r\n", 400),
    (b"GET / HTTP/2.0\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nspace : x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\na: b\r\n folded\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
    (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
    (b"POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\na: " + b"b" * 70_000 + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 300 + b"\r\n", 431),
)


@pytest.mark.parametrize(("data", "status"), UNREADABLE)
def test_what_is_no_request_is_refused_and_the_connection_ends(simulator: Simulator, data: bytes, status: int) -> None:
    before = simulator.total
    assert raw(simulator, data).startswith(b"HTTP/1.1 %d " % status)
    assert simulator.total == before


def test_a_client_that_ends_inside_its_body_has_left(simulator: Simulator) -> None:
    before = simulator.total
    assert raw(simulator, b"POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nab") == b""
    assert simulator.total == before


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_cap_is_refused_in_words_that_arrive(chunked: bool) -> None:
    with running_simulator(limits=SimulatorLimits(body_bytes=1000)) as small:
        connection = connect(small)
        big = b"x" * 3_000_000
        connection.request("POST", PATH, iter([big]) if chunked else big, HEADERS, encode_chunked=chunked)
        response = connection.getresponse()
        assert (response.status, response.getheader("x-dragoman-rule")) == (413, "44")
        assert b"length limit exceeded" in response.read()
        connection.close()
        assert len(small.requests[-1].body) == 0


def _cut(how: str, at: str = "event = 2") -> str:
    return f'[[turn]]\ntext = "Hello, how are you?"\nchunk = 4\ncut = {{ {at}, how = "{how}" }}'


def test_a_clean_end_looks_like_any_end() -> None:
    with running_simulator(script=parse_script(_cut("end"))) as cut:
        connection = connect(cut)
        connection.request("POST", PATH, BODY, HEADERS)
        assert b"Hell" in (first := connection.getresponse().read())
        assert b"meteringEvent" not in first
        connection.request("POST", PATH, BODY, HEADERS)  # and the connection goes on
        assert b"meteringEvent" in connection.getresponse().read()
        connection.close()
        assert [received.wait() for received in cut.requests] == ["whole", "whole"]


def test_a_closed_connection_leaves_out_the_last_chunk() -> None:
    with running_simulator(script=parse_script(_cut("close"))) as cut:
        connection = connect(cut)
        connection.request("POST", PATH, BODY, HEADERS)
        response = connection.getresponse()
        with pytest.raises(http.client.IncompleteRead) as error:
            response.read()
        connection.close()
        assert b"Hell" in error.value.partial
        assert cut.requests[-1].wait() == "cut"


def test_a_reset_arrives_after_the_bytes_before_it() -> None:
    with running_simulator(script=parse_script(_cut("reset", "byte = 150"))) as cut:
        connection = connect(cut)
        connection.request("POST", PATH, BODY, HEADERS)
        response = connection.getresponse()
        got = b""
        with pytest.raises(ConnectionResetError):
            while piece := response.read1(64):
                got += piece
        connection.close()
        assert len(got) == cut.requests[-1].sent == 150


def test_a_client_that_disconnects_is_released_at_once() -> None:
    with running_simulator(
        script=parse_script('[[turn]]\nparts = [{ text = "a" }, { wait = 30 }, { text = "b" }]')
    ) as slow:
        connection = connect(slow)
        connection.request("POST", PATH, BODY, HEADERS)
        response = connection.getresponse()
        response.read1(10)
        response.close()
        connection.close()
        assert slow.requests[-1].wait(60) == "gone"


def test_delays_are_kept() -> None:
    with running_simulator(
        script=parse_script('[[turn]]\ntext = "ab"\nchunk = 1\ndelay = 0.02\nfirst_delay = 0.1')
    ) as slow:
        connection = connect(slow)
        begun = time.monotonic()
        connection.request("POST", PATH, BODY, HEADERS)
        connection.getresponse().read()
        connection.close()
        assert time.monotonic() - begun >= 0.1 + 6 * 0.02  # a busy machine takes longer, never less


def test_the_end_of_the_simulator_does_not_wait_for_its_clients() -> None:
    with running_simulator(script=parse_script("[[turn]]\nparts = [{ wait = 600 }]")) as slow:
        connection = connect(slow)
        connection.request("POST", PATH, BODY, HEADERS)
        connection.getresponse()
    connection.close()


def test_the_simulator_runs_inside_an_event_loop_too() -> None:
    async def ask() -> tuple[int, int]:
        async with Simulator() as simulator:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(simulator.url.rpartition(":")[2]))
            writer.write(b"GET /getUsageLimits HTTP/1.1\r\nauthorization: Bearer t\r\nconnection: close\r\n\r\n")
            response = await reader.read()
            writer.close()
            await writer.wait_closed()
            return int(response.split()[1]), len(simulator.requests)

    assert asyncio.run(ask()) == (200, 1)


def test_only_the_last_requests_are_kept() -> None:
    async def ask() -> tuple[int, int]:
        async with Simulator(keep=2) as simulator:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(simulator.url.rpartition(":")[2]))
            writer.write(b"GET /a HTTP/1.1\r\n\r\n" * 4 + b"GET /b HTTP/1.1\r\nconnection: close\r\n\r\n")
            await reader.read()
            writer.close()
            await writer.wait_closed()
            assert simulator.requests[-1].path == "/b"
            return simulator.total, len(simulator.requests)

    assert asyncio.run(ask()) == (5, 2)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.1", "example.com", "::"])
def test_the_simulator_listens_on_loopback_only(host: str) -> None:
    with pytest.raises(LocalMisuse, match="loopback only"):
        Simulator(host=host)


def test_a_port_that_is_taken_is_an_error_not_a_hang() -> None:
    with running_simulator() as first:
        port = int(first.url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"), running_simulator(port=port):
            pass


@pytest.mark.parametrize(
    ("dialect", "profile"), [("kiro", "strictest"), ("anthropic", "strictest"), ("kir", "observed")]
)
def test_an_unknown_profile_or_dialect_is_named(dialect: str, profile: str) -> None:
    with pytest.raises(LocalMisuse, match="unknown"):
        Simulator(dialect, profile=profile)
