"""S14: whose connection is used again, and what makes one unfit for it."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.errors import LocalMisuse
from dragoman.http.client.client import Client
from dragoman.http.client.pool import Lane
from dragoman.wire.http import HttpRequest, has_dot_segment
from tests.unit.upstream.conftest import Run
from tests.unit.upstream.peer import OK, Talk, connected

GET = HttpRequest("GET", "/")
FORGED = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"


async def body_of(client: Client, url: str, lane: str = "") -> bytes:
    reply = await client.open(url, GET, lane=lane)
    return await reply.read(100)


async def good(talk: Talk) -> None:
    while True:
        await talk.request()
        await talk.send(OK)


async def test_s14_upstreams_and_credentials_of_one_origin_share_no_connection(run: Run) -> None:
    """S14: one connection served all upstreams of an origin."""

    async with connected(good) as (server, client):
        for lane in ("one key-1", "two key-1", "one key-2", "one key-1", "two key-1"):
            await body_of(client, server.url, lane)
        assert server.connections == 3
        assert sorted(state.idle for state in client.lanes()) == [1, 1, 1]


@pytest.mark.parametrize("late", [FORGED, b"H", b"\r\n", b"0\r\n\r\n", b"data: x\n\n"])
async def test_s14_bytes_before_the_next_request_never_answer_it(run: Run, late: bytes) -> None:
    """S14: within 50 ms of an answer nobody looked at the socket, and the late bytes answered the next request."""

    may_send, sent = asyncio.Event(), asyncio.Event()

    async def script(talk: Talk) -> None:
        if talk.number > 1:
            await good(talk)
        await talk.request()
        await talk.send(OK)
        await may_send.wait()
        talk.writer.write(late)
        sent.set()
        await talk.gone()

    async with connected(script) as (server, client):
        assert await body_of(client, server.url) == b"ok"
        may_send.set()
        await sent.wait()
        assert await body_of(client, server.url) == b"ok"
        assert server.connections == 2


async def test_s14_a_connection_that_is_not_quiet_is_not_used(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at right after an answer, too."""
    looked: list[int] = []

    def never_quiet(_lane: Lane, descriptor: int) -> bool:
        looked.append(descriptor)
        return False

    monkeypatch.setattr(Lane, "quiet", never_quiet)

    async with connected(good) as (server, client):
        assert await body_of(client, server.url) == b"ok"
        assert await body_of(client, server.url) == b"ok"
        assert (len(looked), server.connections) == (1, 2)


@pytest.mark.parametrize("behind", [FORGED, b"H", b"junk", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_s14_bytes_that_come_with_the_end_of_an_answer_close_the_connection(run: Run, behind: bytes) -> None:
    async def script(talk: Talk) -> None:
        await talk.request()
        await talk.send(OK + behind)
        await talk.gone()

    async with connected(script) as (server, client):
        assert await body_of(client, server.url) == b"ok"
        assert await body_of(client, server.url) == b"ok"
        assert server.connections == 2


async def test_s14_bytes_on_an_idle_connection_close_it(run: Run) -> None:
    may_send, closed = asyncio.Event(), asyncio.Event()

    async def script(talk: Talk) -> None:
        await talk.request()
        await talk.send(OK)
        await may_send.wait()
        await talk.send(FORGED)
        await talk.gone()
        closed.set()

    async with connected(script) as (server, client):
        await body_of(client, server.url)
        assert client.lanes()[0].idle == 1
        may_send.set()
        await asyncio.wait_for(closed.wait(), 10)
        assert client.lanes()[0].idle == 0


@pytest.mark.parametrize(
    "path",
    [
        "/model/../converse",
        "/model/%2e%2E/converse",
        "/model/.%2e/x",
        "/a/.",
        "/..",
        "/model/a%2F..%2Fb/x",
        "/model/%252e%252e/x",
        "/model/a%5c..%5cb",
        "/a\\..\\b",
        "/a/..;/b",
    ],
)
async def test_s10_no_request_with_a_dot_segment_is_sent(run: Run, path: str) -> None:
    """S10: `POST /model/../converse` was sent."""

    async with connected(good) as (server, client):
        with pytest.raises(LocalMisuse, match="segment"):
            await client.open(server.url, HttpRequest("POST", path))
        assert server.connections == 0


@pytest.mark.parametrize(
    "path", ["/", "/v1/messages", "/model/anthropic.claude-3%3A0/converse", "/v1.1/a..b/...", "/a/", "/x/%E2%82%AC"]
)
def test_ordinary_paths_have_none(path: str) -> None:
    assert not has_dot_segment(path)
