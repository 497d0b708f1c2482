"""Responses as they arrive: every kind of body, cut anywhere, and no end that was not earned."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.errors import BadFrame, LocalMisuse, Reset, TooLarge, Truncated
from dragoman.http.client import response as replies
from dragoman.http.client.client import HttpClient
from dragoman.wire.http import HttpRequest, has_dot_segment
from tests.unit.upstream.conftest import Run
from tests.unit.upstream.scripted_server import (
    OK,
    ConnectionScript,
    ServerConnection,
    record_idle_checks,
    respond_once,
    respond_with,
    run_client_and_server,
    run_server,
    wait_until,
)

GET = HttpRequest("GET", "/")
POST = HttpRequest("POST", "/v1/messages", headers=(("content-type", "application/json"),), body=b"{}")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s"


def chunked(*pieces: bytes) -> bytes:
    return CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def ask(script: ConnectionScript, request: HttpRequest = POST) -> tuple[int, bytes, int]:
    """Ask once; give status, body and how many connections are kept."""
    async with run_server(script) as server:
        client = HttpClient()
        try:
            reply = await client.open(server.url, request)
            body = await reply.read(1 << 24)
            return reply.status, body, client.pools()[0].idle
        finally:
            await client.aclose()


WHOLE = {
    "length": (LENGTH % (5, b"hello"), b"hello", 1),
    "no bytes": (LENGTH % (0, b""), b"", 1),
    "chunked": (chunked(b"hel", b"lo"), b"hello", 1),
    "chunked and empty": (chunked(), b"", 1),
    "chunk extensions": (CHUNKED + b"3;a=b\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", b"hello", 1),
    "trailers": (CHUNKED + b"5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n", b"hello", 1),
    "100 first": (b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH % (5, b"hello"), b"hello", 1),
    "103 and 199 first": (
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 199 ?\r\n\r\n" + LENGTH % (5, b"hello"),
        b"hello",
        1,
    ),
    "connection: close": (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello", b"hello", 0),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"hello", 0),
    "HTTP/1.0, chunked": (chunked(b"hello").replace(b"1.1", b"1.0"), b"hello", 0),
}


@pytest.mark.parametrize("size", [0, 1], ids=["in one write", "byte by byte"])
@pytest.mark.parametrize("case", WHOLE)
def test_a_whole_response_is_read_and_its_connection_kept_if_it_may_be(run: Run, case: str, size: int) -> None:
    response, body, is_kept = WHOLE[case]
    assert run(ask(respond_once(response, size=size, end=None))) == (200, body, is_kept)


@pytest.mark.parametrize("size", [0, 1])
def test_a_body_without_a_length_ends_with_the_connection(run: Run, size: int) -> None:
    response = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n"
    assert run(ask(respond_once(response, size=size))) == (200, b"data: 1\n\n", 0)


@pytest.mark.parametrize(
    ("method", "response", "status"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n", 200),
        ("HEAD", CHUNKED, 200),
        ("POST", b"HTTP/1.1 204 No Content\r\n\r\n", 204),
        ("POST", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 500\r\n\r\n", 304),
    ],
)
def test_some_responses_have_no_body_whatever_their_head_says(
    run: Run, method: str, response: bytes, status: int
) -> None:
    assert run(ask(respond_once(response, end=None), HttpRequest(method, "/"))) == (status, b"", 1)


async def test_after_a_head_request_the_connection_serves_the_next(run: Run) -> None:
    async with run_client_and_server(respond_with(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n", OK)) as (
        server,
        client,
    ):
        await (await client.open(server.url, HttpRequest("HEAD", "/"))).read(0)
        assert await (await client.open(server.url, POST)).read(10) == b"ok"
        assert server.connections == 1


def test_a_body_after_a_head_request_is_dropped_with_its_connection(run: Run) -> None:
    assert run(ask(respond_once(LENGTH % (5, b"hello"), end=None), HttpRequest("HEAD", "/"))) == (200, b"", 0)


CUT = {
    "nothing at all": (b"", Reset),
    "half a head": (b"HTTP/1.1 200 OK\r\ncontent-le", Truncated),
    "a 1xx and no response": (b"HTTP/1.1 100 Continue\r\n\r\n", Truncated),
    "less than the length": (LENGTH % (6, b"hello"), Truncated),
    "no last chunk": (CHUNKED + b"5\r\nhello\r\n", Truncated),
    "half a last chunk": (CHUNKED + b"5\r\nhello\r\n0\r\n", Truncated),
    "half a chunk": (CHUNKED + b"6\r\nhello", Truncated),
    "half a chunk size": (CHUNKED + b"5\r\nhello\r\n1", Truncated),
}


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("case", CUT)
def test_a_response_cut_short_is_never_a_clean_end(run: Run, case: str, size: int) -> None:
    response, error = CUT[case]
    with pytest.raises(error):
        run(ask(respond_once(response, size=size)))


@pytest.mark.parametrize(
    "response", [b"", LENGTH % (6, b"hello"), CHUNKED + b"5\r\nhello\r\n", b"HTTP/1.1 200 OK\r\n\r\nhel"]
)
def test_a_reset_is_a_reset_even_where_the_end_of_the_connection_would_do(run: Run, response: bytes) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.request()
        await connection.send(response)
        await asyncio.sleep(0.05)
        connection.reset()

    with pytest.raises(Reset):
        run(ask(script))


async def test_what_came_before_a_cut_is_handed_out_first(run: Run) -> None:
    async with run_server(respond_once(CHUNKED + b"5\r\nhello\r\n3\r\nhe")) as server:
        client, got = HttpClient(), bytearray()
        reply = await client.open(server.url, POST)
        await asyncio.sleep(0.05)  # the body is cut before it is read
        with pytest.raises(Truncated):
            await reply.pump(got.extend)
        await client.aclose()
        assert bytes(got) == b"hellohe"


def test_a_half_closed_connection_still_gives_its_whole_response(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.request()
        await connection.send(OK)
        connection.writer.write_eof()
        await connection.gone()

    status, body, is_kept = run(ask(script))
    assert (status, body) == (200, b"ok")
    assert is_kept in (0, 1)  # the end may be read after ours


def test_a_half_close_in_the_middle_of_a_request_that_is_not_read_does_not_hang(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        connection.writer.write_eof()
        await asyncio.sleep(50)

    with pytest.raises(Reset):
        run(asyncio.wait_for(ask(script, HttpRequest("POST", "/", body=bytes(32 << 20))), 40))


BROKEN = {
    "not HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "HTTP/2": b"HTTP/2 200 OK\r\n\r\n",
    "length and chunked": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\nok",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
    "a length that is none": b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nok",
    "a folded field": b"HTTP/1.1 200 OK\r\na: b\r\n c\r\ncontent-length: 2\r\n\r\nok",
    "bare line feeds": b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok",
    "another transfer encoding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    "a chunk size that is none": CHUNKED + b"xyz\r\n",
    "a chunk longer than it says": CHUNKED + b"2\r\nhello\r\n0\r\n\r\n",
    "a field too long": b"HTTP/1.1 200 OK\r\na: " + b"x" * 300_000,
    "too many fields": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"content-length: 2\r\n\r\nok",
    "1xx for ever": b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
    "trailers for ever": CHUNKED + b"2\r\nok\r\n0\r\n" + b"a: b\r\n" * 50_000,
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_not_http_is_refused(run: Run, case: str) -> None:
    with pytest.raises(BadFrame) as caught:
        run(ask(respond_once(BROKEN[case], end=None)))
    assert "http://127.0.0.1" in str(caught.value)


def test_limits_hold_byte_by_byte_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "HEAD_BYTES", 500)
    with pytest.raises(BadFrame):
        run(ask(respond_once(b"HTTP/1.1 200 OK\r\na: " + b"x" * 1000, size=1, end=None)))
    body = b"y" * 1000  # chunk sizes between bytes of the body are no head
    assert run(ask(respond_once(chunked(*[bytes([b]) for b in body]), size=1, end=None))) == (200, body, 1)


@pytest.mark.parametrize(
    "more",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        b"HTTP/1.1 200 OK\r\n",
        b"X",
        OK * 3,
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
@pytest.mark.parametrize("pause", [0, 0.05], ids=["at once", "later"])
async def test_what_follows_a_response_never_becomes_the_next_one(run: Run, more: bytes, pause: float) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.request()
        if connection.number > 1:
            await connection.send(OK)
        elif pause:
            await connection.send(OK)
            await asyncio.sleep(pause)
            await connection.send(more)
        else:
            await connection.send(OK + more)
        await connection.gone()

    async with run_client_and_server(script) as (server, client):
        assert await (await client.open(server.url, POST)).read(100) == b"ok"
        await asyncio.sleep(2 * pause)
        assert await (await client.open(server.url, POST)).read(100) == b"ok"
        assert server.connections == 2


async def test_headers_are_lower_case_in_order_and_repeat(run: Run) -> None:
    response = (
        b"HTTP/1.1 429 Slow\r\nX-A: 1\r\nRetry-After:  7 \r\nx-a: 2\r\nX-Odd: caf\xe9\r\nContent-Length: 0\r\n\r\n"
    )

    async with run_client_and_server(respond_with(response)) as (server, client):
        reply = await client.open(server.url, POST)
    assert reply.status == 429
    assert reply.headers == (
        ("x-a", "1"),
        ("retry-after", "7"),
        ("x-a", "2"),
        ("x-odd", "café"),
        ("content-length", "0"),
    )


@pytest.mark.parametrize("response", [LENGTH % (100, b"x" * 100), chunked(*[b"x"] * 100)])
async def test_a_body_past_the_limit_is_too_large_and_closes(run: Run, response: bytes) -> None:
    async with run_client_and_server(respond_once(response, size=20, end=None)) as (server, client):
        with pytest.raises(TooLarge):
            await (await client.open(server.url, POST)).read(99)
        await wait_until(lambda: server.open == 0)
        assert client.pools()[0].active == 0


def test_a_redirect_is_a_response_like_any_other(run: Run) -> None:
    response = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    assert run(ask(respond_with(response)))[0] == 307


# --- whose connection is used again, and what makes one unfit for it

FORGED = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"


async def body_of(client: HttpClient, url: str, pool: str = "") -> bytes:
    reply = await client.open(url, GET, pool=pool)
    return await reply.read(100)


async def good(connection: ServerConnection) -> None:
    while True:
        await connection.request()
        await connection.send(OK)


async def test_upstreams_and_credentials_of_one_origin_share_no_connection(run: Run) -> None:
    """Regression: one connection served all upstreams of an origin."""

    async with run_client_and_server(good) as (server, client):
        for pool in ("one key-1", "two key-1", "one key-2", "one key-1", "two key-1"):
            await body_of(client, server.url, pool)
        assert server.connections == 3
        assert sorted(state.idle for state in client.pools()) == [1, 1, 1]


@pytest.mark.parametrize("late", [FORGED, b"H", b"\r\n", b"0\r\n\r\n", b"data: x\n\n"])
async def test_bytes_before_the_next_request_never_answer_it(run: Run, late: bytes) -> None:
    """Regression: the client did not check the socket for 50 ms after a response, and took late bytes for the next response."""

    may_send, sent = asyncio.Event(), asyncio.Event()

    async def script(connection: ServerConnection) -> None:
        if connection.number > 1:
            await good(connection)
        await connection.request()
        await connection.send(OK)
        await may_send.wait()
        connection.writer.write(late)
        sent.set()
        await connection.gone()

    async with run_client_and_server(script) as (server, client):
        assert await body_of(client, server.url) == b"ok"
        may_send.set()
        await sent.wait()
        assert await body_of(client, server.url) == b"ok"
        assert server.connections == 2


async def test_a_connection_that_is_not_quiet_is_not_used(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at right after a response, too."""
    checks = record_idle_checks(monkeypatch, is_readable=True)
    async with run_client_and_server(good) as (server, client):
        assert await body_of(client, server.url) == b"ok"
        assert await body_of(client, server.url) == b"ok"
        assert (len(checks), server.connections) == (1, 2)


@pytest.mark.parametrize("behind", [FORGED, b"H", b"junk", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_bytes_that_come_with_the_end_of_a_response_close_the_connection(run: Run, behind: bytes) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.request()
        await connection.send(OK + behind)
        await connection.gone()

    async with run_client_and_server(script) as (server, client):
        assert await body_of(client, server.url) == b"ok"
        assert await body_of(client, server.url) == b"ok"
        assert server.connections == 2


async def test_bytes_on_an_idle_connection_close_it(run: Run) -> None:
    may_send, closed = asyncio.Event(), asyncio.Event()

    async def script(connection: ServerConnection) -> None:
        await connection.request()
        await connection.send(OK)
        await may_send.wait()
        await connection.send(FORGED)
        await connection.gone()
        closed.set()

    async with run_client_and_server(script) as (server, client):
        await body_of(client, server.url)
        assert client.pools()[0].idle == 1
        may_send.set()
        await asyncio.wait_for(closed.wait(), 10)
        assert client.pools()[0].idle == 0


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
async def test_no_request_with_a_dot_segment_is_sent(run: Run, path: str) -> None:
    """Regression: `POST /model/../converse` was sent."""

    async with run_client_and_server(good) as (server, client):
        with pytest.raises(LocalMisuse, match="segment"):
            await client.open(server.url, HttpRequest("POST", path))
        assert server.connections == 0


@pytest.mark.parametrize(
    "path", ["/", "/v1/messages", "/model/anthropic.claude-3%3A0/converse", "/v1.1/a..b/...", "/a/", "/x/%E2%82%AC"]
)
def test_ordinary_paths_have_none(path: str) -> None:
    assert not has_dot_segment(path)
