"""Kept connections, caps and the queue; and a request sent twice only when it cannot have run."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable
from pathlib import Path

import pytest

from dragoman.errors import ConnectFailed, DragomanError, LocalMisuse, Reset, Truncated
from dragoman.http.client import response
from dragoman.http.client.client import HttpClient, HttpTimeouts, PoolLimits
from dragoman.wire.http import HttpRequest
from tests.unit.upstream.conftest import Run
from tests.unit.upstream.scripted_server import (
    OK,
    ConnectionScript,
    ServerConnection,
    header_fields,
    record_idle_checks,
    respond_once,
    respond_with,
    run_client_and_server,
    run_server,
    wait_until,
)

POST = HttpRequest("POST", "/v1/messages", headers=(("content-type", "application/json"),), body=b"{}")


async def body_of(client: HttpClient, url: str, request: HttpRequest = POST) -> bytes:
    return await (await client.open(url, request)).read(1 << 20)


@pytest.mark.parametrize(
    "reply",
    [OK, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"],
    ids=["length", "chunked"],
)
async def test_a_thousand_requests_make_one_connection(run: Run, reply: bytes) -> None:
    async with run_client_and_server(respond_with(reply)) as (server, client):
        for _ in range(1000):
            assert await body_of(client, server.url) == b"ok"
        assert (server.connections, len(server.requests)) == (1, 1000)


async def test_a_request_is_written_once_with_the_heads_that_are_ours(run: Run) -> None:
    reads: list[bytes] = []

    async def script(connection: ServerConnection) -> None:
        reads.append(await connection.reader.read(1 << 20))
        await connection.send(OK)
        await connection.gone()

    async with run_client_and_server(script) as (server, client):
        theirs = (("x-api-key", "k"), ("host", "evil"), ("content-length", "99"), ("connection", "close"))
        more = (("accept-encoding", "gzip"), ("Transfer-Encoding", "chunked"), ("expect", "100-continue"))
        request = HttpRequest("POST", "/messages", "beta=true", theirs + more, b'{"a":1}')
        await body_of(client, f"{server.url}/v1/?api-version=3", request)
    assert len(reads) == 1
    head, _, body = reads[0].partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST /v1/messages?api-version=3&beta=true HTTP/1.1"
    assert header_fields(head) == [
        ("host", f"127.0.0.1:{server.port}"),
        ("accept-encoding", "identity"),
        ("x-api-key", "k"),
        ("content-length", "7"),
    ]
    assert body == b'{"a":1}'


async def test_a_get_has_no_length_and_an_empty_post_has_zero(run: Run) -> None:
    async with run_client_and_server(respond_with(OK)) as (server, client):
        await body_of(client, server.url, HttpRequest("GET", "/"))
        await body_of(client, server.url, HttpRequest("POST", "/"))
        assert [b"content-length: 0" in head for head, _ in server.requests] == [False, True]


@pytest.mark.parametrize("size", [65_536, 65_537, 8 << 20])
async def test_a_large_body_arrives_whole(run: Run, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)

    async with run_client_and_server(respond_with(OK)) as (server, client):
        await body_of(client, server.url, HttpRequest("POST", "/", body=body))
        assert server.requests[0][1] == body


@pytest.mark.parametrize(
    "request_",
    [
        HttpRequest("POST", "/a b"),
        HttpRequest("POST", "/a\r\nx: y"),
        HttpRequest("POST", "/é"),
        HttpRequest("POST", "a"),
        HttpRequest("PO ST", "/"),
        HttpRequest("POST", "/", "a\nb"),
        HttpRequest("POST", "/", headers=(("a", "b\r\nc: d"),)),
        HttpRequest("POST", "/", headers=(("a", "b\rc"),)),
        HttpRequest("POST", "/", headers=(("a", "b\0"),)),
        HttpRequest("POST", "/", headers=(("a", "Ω"),)),
    ],
)
async def test_nothing_breaks_out_of_a_head(run: Run, request_: HttpRequest) -> None:
    client = HttpClient()
    with pytest.raises(LocalMisuse):
        await client.open("http://127.0.0.1:1", request_)
    assert client.pools()[0].active == 0
    await client.aclose()


# Caps and the queue


def respond_after(release: asyncio.Event) -> ConnectionScript:
    async def script(connection: ServerConnection) -> None:
        while True:
            await connection.request()
            await release.wait()
            await connection.send(OK)

    return script


async def test_no_more_run_at_once_than_the_cap_and_the_rest_wait_in_order(run: Run) -> None:
    release = asyncio.Event()
    ended: list[int] = []
    async with run_client_and_server(respond_after(release), caps=PoolLimits(connections=3, waiting=10)) as (
        server,
        client,
    ):

        async def one(number: int) -> None:
            await body_of(client, server.url)
            ended.append(number)

        tasks = [asyncio.create_task(one(number)) for number in range(10)]
        await wait_until(lambda: (server.connections, len(server.requests)) == (3, 3))
        state = client.pools()[0]
        assert (state.active, state.idle, state.waiting) == (3, 0, 7)
        release.set()
        await asyncio.gather(*tasks)
        assert server.connections == 3
        assert ended[3:] == sorted(ended[3:])
        state = client.pools()[0]
        assert (state.active, state.idle, state.waiting) == (0, 3, 0)


async def overloaded(call: Awaitable[object]) -> None:
    with pytest.raises(ConnectFailed) as caught:
        await call
    assert (caught.value.fault.kind, caught.value.fault.status) == ("overloaded", 503)


async def test_a_full_queue_and_a_long_wait_say_overloaded(run: Run) -> None:
    release = asyncio.Event()
    async with run_client_and_server(
        respond_after(release), caps=PoolLimits(connections=1, waiting=1, wait_seconds=0.1)
    ) as (
        server,
        client,
    ):
        first = asyncio.create_task(body_of(client, server.url))
        await wait_until(lambda: len(server.requests) == 1)
        second = asyncio.create_task(body_of(client, server.url))
        await asyncio.sleep(0)
        await overloaded(body_of(client, server.url))
        await overloaded(second)
        assert client.pools()[0].waiting == 0
        release.set()
        assert await first == b"ok"
        assert await body_of(client, server.url) == b"ok"
        assert (server.connections, client.pools()[0].active) == (1, 0)


async def test_a_waiter_who_leaves_loses_no_slot(run: Run) -> None:
    async with run_client_and_server(
        respond_once(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", end=None), caps=PoolLimits(connections=1)
    ) as (server, client):
        first = await client.open(server.url, POST)
        early, late, last = (asyncio.create_task(client.open(server.url, POST)) for _ in range(3))
        await wait_until(lambda: client.pools()[0].waiting == 3)
        early.cancel()
        first.close()  # gives the slot to `late`, since `early` is gone
        late.cancel()  # which leaves before it can use it
        (await last).close()
        assert [task.cancelled() for task in (early, late)] == [True, True]
        state = client.pools()[0]
        assert (state.active, state.waiting) == (0, 0)


async def test_no_more_are_kept_than_the_cap_and_none_for_longer_than_allowed(run: Run) -> None:
    release = asyncio.Event()
    async with run_client_and_server(
        respond_after(release), caps=PoolLimits(idle=2, idle_seconds=1.0), sweep_seconds=0.02
    ) as (
        server,
        client,
    ):
        tasks = [asyncio.create_task(body_of(client, server.url)) for _ in range(5)]
        await wait_until(lambda: len(server.requests) == 5)
        release.set()
        await asyncio.gather(*tasks)
        assert client.pools()[0].idle == 2
        await wait_until(lambda: (client.pools()[0].idle, server.open) == (0, 0))


async def test_base_urls_of_one_origin_share_connections_and_others_do_not(run: Run) -> None:
    async with run_client_and_server(respond_with(OK)) as (server, client), run_server(respond_with(OK)) as other:
        for url in (server.url, f"{server.url}/v1", f"{server.url}/v2/", other.url):
            await body_of(client, url)
        assert (server.connections, other.connections) == (1, 1)


# Stale connections


async def twice(
    script: ConnectionScript, pause: float = 0.05, timeouts: HttpTimeouts | None = None
) -> tuple[bytes, int, int]:
    """Ask twice; give the second response, the connections made and the requests seen."""
    async with run_server(script) as server:
        client = HttpClient()
        try:
            await body_of(client, server.url)
            await asyncio.sleep(pause)
            reply = await (await client.open(server.url, POST, timeouts=timeouts)).read(100)
            return reply, server.connections, len(server.requests)
        finally:
            assert client.pools()[0].active == 0
            await client.aclose()


@pytest.mark.parametrize("how", [ServerConnection.close, ServerConnection.reset])
def test_a_connection_the_server_closed_while_idle_is_not_used(run: Run, how: object) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.request()
        await connection.send(OK)
        if connection.number == 1:
            assert callable(how)
            how(connection)
        else:
            await connection.gone()

    assert run(twice(script)) == (b"ok", 2, 2)


async def test_an_end_that_the_loop_has_not_seen_yet_is_seen_before_the_request_is_sent(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response, "MAX_STALE_SECONDS", 0)  # a second try would hide it

    def serve(listener: socket.socket) -> socket.socket:
        peer_side, _ = listener.accept()
        peer_side.recv(65536)
        peer_side.sendall(OK)
        return peer_side

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        client = HttpClient()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        first, _ = await asyncio.gather(asyncio.to_thread(serve, listener), body_of(client, url))
        second = asyncio.create_task(asyncio.to_thread(serve, listener))
        await asyncio.sleep(0.05)
        first.close()  # and at once, without a turn of the loop:
        assert await body_of(client, url) == b"ok"
        (await second).close()
        await client.aclose()


async def test_a_kept_connection_is_looked_at_each_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = record_idle_checks(monkeypatch)
    async with run_client_and_server(respond_with(OK)) as (server, client):
        for _ in range(4):
            await body_of(client, server.url)
        assert (server.connections, len(looked)) == (1, 3)


@pytest.mark.parametrize("how", [ServerConnection.close, ServerConnection.reset])
def test_a_connection_closed_in_response_to_a_request_is_retried_once(run: Run, how: object) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.request()
        await connection.send(OK)
        await connection.request()
        assert callable(how)
        how(connection)

    assert run(twice(script)) == (b"ok", 2, 3)


async def test_a_request_on_a_stale_connection_is_retried_once_on_a_new_one(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.request()
        if not connection.peer.requests[2:]:
            await connection.send(OK)
            await connection.request()
        # from here on every connection closes silently

    async with run_client_and_server(script) as (server, client):
        await asyncio.gather(body_of(client, server.url), body_of(client, server.url))
        assert client.pools()[0].idle == 2
        with pytest.raises(Reset):
            await body_of(client, server.url)
        assert (len(server.requests), server.connections) == (4, 3)


@pytest.mark.parametrize("data", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n"])
async def test_after_one_byte_of_a_response_nothing_is_sent_again(run: Run, data: bytes) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.request()
        await connection.send(OK)
        await connection.request()
        await connection.send(data)

    async with run_client_and_server(script) as (server, client):
        await body_of(client, server.url)
        with pytest.raises(Truncated):
            await body_of(client, server.url)
        assert (len(server.requests), server.connections) == (2, 1)


def test_the_numbers() -> None:
    """A request that was out for longer may have run; a kept connection's end shows within a round trip."""
    assert response.MAX_STALE_SECONDS == 1.0


async def test_a_request_that_may_have_run_is_not_sent_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "MAX_STALE_SECONDS", 0.1)

    async def script(connection: ServerConnection) -> None:
        await connection.request()
        await connection.send(OK)
        await connection.request()
        await asyncio.sleep(0.2)  # at work, then it falls over

    async with run_client_and_server(script) as (server, client):
        await body_of(client, server.url)
        with pytest.raises(Reset):
            await body_of(client, server.url)
        assert len(server.requests) == 2


async def test_a_new_connection_that_closes_without_a_response_is_not_retried(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.request()

    async with run_client_and_server(script) as (server, client):
        with pytest.raises(Reset):
            await body_of(client, server.url)
        assert len(server.requests) == 1


async def test_a_response_before_the_request_is_written_is_given_and_its_connection_not_kept(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await asyncio.sleep(1)

    async with run_client_and_server(script) as (server, client):
        response = await client.open(server.url, HttpRequest("POST", "/", body=bytes(32 << 20)))
        assert (response.status, await response.read(10)) == (413, b"big")
        assert client.pools()[0].idle == 0


async def test_closing_the_client_ends_every_call_and_leaves_nothing_open(run: Run) -> None:
    async with run_server(respond_once(b"", end=None)) as server:
        client = HttpClient(caps=PoolLimits(connections=2))
        calls = [asyncio.create_task(body_of(client, server.url)) for _ in range(4)]
        await asyncio.sleep(0.05)
        await client.aclose()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, DragomanError) for result in results), results
        await wait_until(lambda: (server.connections, server.open) == (2, 0))
        with pytest.raises(ConnectFailed):
            await client.open(server.url, POST)


# --- Many exchanges at once, a good part of which go wrong: nothing may stay behind, and no response reach another's
# asker

CALLS = 400


def seeded_random(name: bytes) -> random.Random:
    return random.Random(name)


async def script(connection: ServerConnection) -> None:
    """Echo the asker's name, in one of the ways there are, or fail it."""
    while True:
        head = await connection.request()
        name = head.split()[1]
        choices = seeded_random(name)
        body = name * choices.randrange(1, 200)
        kind = choices.choice(
            ["length", "length", "chunked", "chunked", "close", "cut", "reset", "silent", "extra", "drop"]
        )
        length = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        if kind == "drop":
            return
        if kind in ("length", "extra"):
            await connection.send(length + (length if kind == "extra" else b""))
        elif kind == "chunked":
            await connection.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for at in range(0, len(body), 300):
                piece = body[at : at + 300]
                await connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
                await asyncio.sleep(0)
            await connection.send(b"0\r\n\r\n")
        elif kind == "close":
            await connection.send(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body)
            return
        elif kind == "silent":
            await connection.send(length[:-1])
            await connection.gone()
        else:
            await connection.send(length[:-1])
            if kind == "reset":
                connection.reset()
            return


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux does")
async def test_no_connection_leaks_and_no_response_goes_to_another_request(run: Run) -> None:
    outcomes: dict[str, int] = {}
    async with run_server(script) as server:
        files = sum(1 for _ in Path("/proc/self/fd").iterdir())
        tasks = len(asyncio.all_tasks())
        caps = PoolLimits(connections=40, idle=10, waiting=CALLS, wait_seconds=20)
        client = HttpClient(caps=caps, sweep_seconds=0.02)

        async def call(number: int) -> str:
            name = f"/call-{number}-"
            choices = seeded_random(f"client {number}".encode())
            await asyncio.sleep(choices.random() / 2)
            got = bytearray()
            try:
                response = await client.open(server.url, HttpRequest("POST", name), timeouts=HttpTimeouts(idle=0.2))
                if choices.random() < 0.1:
                    response.close()
                    return "closed"
                await response.pump(got.extend)
            except DragomanError as error:
                return type(error).__name__
            finally:
                assert bytes(got) == (name.encode() * (len(got) // len(name) + 1))[: len(got)]
            assert got
            assert len(got) % len(name) == 0
            return "whole"

        calls = [asyncio.create_task(call(number)) for number in range(CALLS)]
        for number in range(0, CALLS, 11):
            asyncio.get_running_loop().call_later(seeded_random(b"%d" % number).random() / 2, calls[number].cancel)
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result
            outcomes[str(result)] = outcomes.get(str(result), 0) + 1
        state = client.pools()[0]
        assert (state.active, state.waiting) == (0, 0)
        assert state.idle <= 10
        await client.aclose()
        await wait_until(lambda: server.open == 0)
        await wait_until(lambda: len(asyncio.all_tasks()) == tasks)
        await wait_until(lambda: sum(1 for _ in Path("/proc/self/fd").iterdir()) <= files)
    assert {"whole", "closed", "Truncated", "Reset", "TimedOut"} <= set(outcomes), outcomes
