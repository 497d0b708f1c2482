"""Bytes pushed, paused and cancelled; deadlines kept by the sweeper."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from functools import partial

import pytest

from dragoman.errors import BadFrame, ConnectFailed, LocalMisuse, Reset, TimedOut
from dragoman.http.client.client import ClientResponse, HttpClient, HttpTimeouts, PoolLimits
from dragoman.wire.http import HttpRequest
from tests.unit.upstream.conftest import Run
from tests.unit.upstream.scripted_server import (
    OK,
    ConnectionScript,
    ServerConnection,
    respond_once,
    run_client_and_server,
    run_server,
    wait_until,
)

POST = HttpRequest("POST", "/v1/messages", body=b"{}")
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
MIB = 1 << 20


def ticking(count: int, gap: float = 0.01, *, end: bool = True) -> ConnectionScript:
    """Send numbered events, one a write; without `end` fall silent after them."""

    async def script(connection: ServerConnection) -> None:
        await connection.request()
        await connection.send(CHUNKED)
        for number in range(count):
            await asyncio.sleep(gap)
            event = b"data: %d\n\n" % number
            await connection.send(b"%x\r\n%s\r\n" % (len(event), event))
        if end:
            await connection.send(b"0\r\n\r\n")
        await connection.gone()

    return script


def flood(size: int) -> ConnectionScript:
    async def script(connection: ServerConnection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(size // 65536):
            await connection.send(bytes(65536))
        await connection.gone()

    return script


async def test_each_write_of_the_upstream_is_pushed_as_it_comes(run: Run) -> None:
    got: list[bytes] = []
    async with run_client_and_server(ticking(20)) as (server, client):
        reply = await client.open(server.url, POST)
        assert reply.status == 200
        await reply.pump(got.append)
    assert got == [b"data: %d\n\n" % number for number in range(20)]


async def test_no_task_is_woken_for_a_read(run: Run) -> None:
    """The sink is called from the read callback: no task is current."""

    tasks: list[object] = []
    async with run_client_and_server(ticking(5)) as (server, client):
        reply = await client.open(server.url, POST)
        await reply.pump(lambda _: tasks.append(asyncio.current_task()))
    assert tasks[1:] == [None] * 4


async def test_chunks_of_one_read_come_as_one_piece(run: Run) -> None:
    got: list[bytes] = []
    response = CHUNKED + b"1\r\na\r\n" * 300
    async with run_client_and_server(respond_once(response + b"0\r\n\r\n", end=None)) as (server, client):
        await (await client.open(server.url, POST)).pump(got.append)
    assert got == [b"a" * 300]


async def test_a_reply_can_be_read_once(run: Run) -> None:
    async with run_client_and_server(respond_once(OK)) as (server, client):
        reply = await client.open(server.url, POST)
        assert await reply.read(10) == b"ok"
        with pytest.raises(LocalMisuse):
            await reply.read(10)


# Backpressure


async def test_eight_megabytes_arrive_whole_through_pauses(run: Run) -> None:
    size = 0
    async with run_client_and_server(flood(8 * MIB)) as (server, client):
        reply = await client.open(server.url, POST)
        loop = asyncio.get_running_loop()

        def sink(piece: bytes) -> None:
            nonlocal size
            size += len(piece)
            reply.pause()
            loop.call_soon(reply.resume)

        await reply.pump(sink)
        assert client.pools()[0].idle == 1
    assert size == 8 * MIB


def _pause_at_the_last(reply: ClientResponse, piece: bytes) -> None:
    if piece.endswith(b"k"):
        reply.pause()


async def test_a_connection_paused_at_its_last_bytes_serves_the_next_request(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        for _ in range(2):
            await connection.request()
            await connection.send(OK[:-1])
            await asyncio.sleep(0.05)
            await connection.send(OK[-1:])
        await connection.gone()

    async with run_client_and_server(script) as (server, client):
        for _ in range(2):
            reply = await client.open(server.url, POST)
            await reply.pump(partial(_pause_at_the_last, reply))
        assert server.connections == 1


@pytest.mark.parametrize("pumping", [True, False], ids=["paused", "no reader"])
async def test_a_reply_that_is_not_read_holds_little_memory_and_stops_the_upstream(run: Run, pumping: bool) -> None:
    sent = 0

    async def script(connection: ServerConnection) -> None:
        nonlocal sent
        sent = 0
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 * MIB))
        piece = bytes(65536)
        while sent < 64 * MIB:
            await connection.send(piece)
            sent += len(piece)
        await connection.gone()

    size = 0
    async with run_client_and_server(script, sweep_seconds=0.02) as (server, client):
        reply = await client.open(server.url, POST, timeouts=HttpTimeouts(idle=0.1))
        if pumping:
            reply.pause()

        def sink(piece: bytes) -> None:
            nonlocal size
            size += len(piece)

        tracemalloc.start()
        task = asyncio.create_task(reply.pump(sink)) if pumping else None
        await asyncio.sleep(0.5)  # longer than `idle`, which must not count now
        before, sent_before = tracemalloc.get_traced_memory()[0], sent
        await asyncio.sleep(0.2)
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert sent == sent_before < 32 * MIB  # the rest is what the kernel's buffers took
        assert size <= 2 * 65536
        assert grown < 100_000
        if task is None:
            assert len(await reply.read(65 * MIB)) == 64 * MIB
        else:
            reply.resume()
            await task
            assert size == 64 * MIB


# Who leaves, and who fails


@pytest.mark.parametrize("response", [b"", b"HTTP/1.1 200", CHUNKED + b"2\r\nok\r\n"])
async def test_cancelling_closes_the_connection(run: Run, response: bytes) -> None:
    async with run_client_and_server(respond_once(response, end=None)) as (server, client):

        async def call() -> None:
            reply = await client.open(server.url, POST)
            await reply.pump(lambda _: None)

        task = asyncio.create_task(call())
        await wait_until(lambda: server.open == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until(lambda: server.open == 0)
        state = client.pools()[0]
        assert (state.active, state.idle) == (0, 0)


async def test_what_the_reader_raises_comes_out_of_pump_and_closes(run: Run) -> None:
    async with run_client_and_server(ticking(100)) as (server, client):
        reply = await client.open(server.url, POST)
        seen = 0

        def sink(_: bytes) -> None:
            nonlocal seen
            seen += 1
            if seen == 3:
                raise BadFrame("not a frame")

        with pytest.raises(BadFrame, match="not a frame"):
            await reply.pump(sink)
        await wait_until(lambda: (seen, server.open, client.pools()[0].active) == (3, 0, 0))


async def test_closing_a_reply_ends_its_pump_but_not_as_if_it_were_whole(run: Run) -> None:
    async with run_client_and_server(ticking(100)) as (server, client):
        reply = await client.open(server.url, POST)
        asyncio.get_running_loop().call_later(0.05, reply.close)
        with pytest.raises(Reset):
            await reply.pump(lambda _: None)
        reply.close()
        reply.pause()
        reply.resume()
        await wait_until(lambda: (server.open, client.pools()[0].active) == (0, 0))


async def test_closing_a_whole_reply_keeps_its_connection(run: Run) -> None:
    async with run_client_and_server(respond_once(OK, end=None)) as (server, client):
        reply = await client.open(server.url, POST)
        assert await reply.read(10) == b"ok"
        reply.close()
        assert client.pools()[0].idle == 1


# Deadlines

SILENT = {
    "no response": (b"", HttpTimeouts(head=0.1)),
    "a head that dribbles": (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1000, HttpTimeouts(head=0.1)),
    "silence in the body": (CHUNKED + b"2\r\nok\r\n", HttpTimeouts(idle=0.1)),
    "silence after the head": (CHUNKED, HttpTimeouts(idle=0.1)),
    # The total includes the time to connect, which may be long on a busy machine.
    "no response, in total": (b"", HttpTimeouts(total=2.0)),
    "a body that never ends": (CHUNKED + b"1\r\nx\r\n" * 4000, HttpTimeouts(total=2.0)),
}


@pytest.mark.parametrize("case", SILENT)
async def test_a_deadline_ends_the_exchange_and_closes_its_connection(run: Run, case: str) -> None:
    response, timeouts = SILENT[case]

    async def script(connection: ServerConnection) -> None:
        await connection.request()
        for at in range(0, len(response), 50):
            await connection.send(response[at : at + 50])
            await asyncio.sleep(0.02)
        await connection.gone()

    async with run_client_and_server(script, sweep_seconds=0.02) as (server, client):
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimedOut) as caught:
            await (await client.open(server.url, POST, timeouts=timeouts)).pump(lambda _: None)
        took = loop.time() - began
        assert ("2 s" if timeouts.total == 2.0 else "0.1 s") in str(caught.value)
        await wait_until(lambda: (server.open, client.pools()[0].active) == (0, 0))
        assert took > 0.09


async def test_a_stream_that_keeps_talking_is_not_idle(run: Run) -> None:
    async with run_client_and_server(ticking(12, 0.1), sweep_seconds=0.02) as (server, client):
        body = await (await client.open(server.url, POST, timeouts=HttpTimeouts(idle=0.8))).read(1000)
        assert body.count(b"data") == 12


async def test_one_sweeper_serves_all_and_stops_when_nothing_is_left(run: Run) -> None:
    async with run_client_and_server(ticking(3, end=False), sweep_seconds=0.02, caps=PoolLimits(idle_seconds=0.05)) as (
        server,
        client,
    ):
        calls = [client.open(server.url, POST, timeouts=HttpTimeouts(idle=0.1)) for _ in range(20)]
        replies = await asyncio.gather(*calls)
        ends = await asyncio.gather(*(reply.pump(lambda _: None) for reply in replies), return_exceptions=True)
        assert [type(end) for end in ends] == [TimedOut] * 20
        await wait_until(lambda: client._timer is None)


# Connecting


async def test_a_refused_connection_says_so(run: Run) -> None:
    client = HttpClient()
    with pytest.raises(ConnectFailed) as caught:
        await client.open("http://127.0.0.1:1", POST)
    assert client.pools()[0].active == 0
    await client.aclose()
    error = caught.value
    assert "127.0.0.1:1" in str(error)
    assert "refused" in str(error).lower()
    assert error.fault.status == 502


async def test_a_name_that_is_none_says_so(run: Run) -> None:
    client = HttpClient()
    with pytest.raises(ConnectFailed, match=r"unknown\.invalid:80"):
        await client.open("http://unknown.invalid", POST)
    await client.aclose()


async def black_hole() -> tuple[str, list[socket.socket]]:
    """A listener whose queue is full: a further SYN is not answered."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    await asyncio.sleep(0.05)
    return f"http://127.0.0.1:{listener.getsockname()[1]}", [listener, *fillers]


@pytest.mark.parametrize("timeouts", [HttpTimeouts(connect=0.2), HttpTimeouts(total=0.2)], ids=["connect", "total"])
async def test_a_connection_that_never_comes_fails_in_time_and_as_not_sent(run: Run, timeouts: HttpTimeouts) -> None:
    url, sockets = await black_hole()
    client = HttpClient()
    with pytest.raises(ConnectFailed) as caught:
        await client.open(url, POST, timeouts=timeouts)
    await client.aclose()
    for each in sockets:
        each.close()
    error = caught.value
    assert (error.fault.kind, error.fault.status) == ("timeout", 504)


async def test_a_dead_address_costs_a_quarter_of_a_second_not_the_whole_deadline(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hole, sockets = await black_hole()
    async with run_server(respond_once(OK)) as server:
        loop = asyncio.get_running_loop()
        responses = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
            for port in (int(hole.rpartition(":")[2]), 1, server.port)
        ]

        class Names:
            def __getattr__(self, name: str) -> object:
                return getattr(loop, name)

            async def getaddrinfo(self, *_: object, **__: object) -> object:
                return responses

        monkeypatch.setattr("dragoman.http.client.connecting.asyncio.get_running_loop", Names)
        began = loop.time()
        client = HttpClient()
        reply = await client.open("http://localhost", POST, timeouts=HttpTimeouts(connect=50.0))
        took = loop.time() - began
        monkeypatch.undo()
        await wait_until(
            lambda: not [task for task in asyncio.all_tasks() if "_attempt" in repr(task)]
        )  # the losers have given up
        assert await reply.read(10) == b"ok"
        await client.aclose()
        for each in sockets:
            each.close()
        assert 0.2 < took < 40
