"""The client for code that is not async, and bodies that are taken piece by piece."""

from __future__ import annotations

import pytest

from dragoman.errors import ConnectFailed, LocalMisuse, TimedOut, Truncated
from dragoman.http.client.client import Client, Timeouts, send
from dragoman.simulator import Simulator, parse, running_simulator
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest

ASKED = HttpRequest(
    "POST",
    "/v1/chat/completions",
    headers=(("authorization", "Bearer x"), ("content-type", "application/json")),
    body=jsonio.encode({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}),
)
SLOW = parse('[[turn]]\nparts = [{ text = "Begin." }, { wait = 600.0 }, { text = "End." }]')


def test_the_head_comes_first_and_the_body_as_it_comes() -> None:
    with running_simulator("openai") as service:
        head, body = send(service.url, ASKED, timeouts=Timeouts())
        assert (head.status, head.header("content-type").partition(";")[0]) == (200, "text/event-stream")
        assert b"".join(body).endswith(b"data: [DONE]\n\n")
        assert service.requests[0].wait(60) == "whole"


def test_a_body_that_is_closed_closes_the_connection() -> None:
    with running_simulator("openai", script=SLOW) as service:
        _, body = send(service.url, ASKED, timeouts=Timeouts())
        assert next(body)
        body.close()
        assert service.requests[0].wait(60) == "gone"


def test_what_fails_is_raised_where_the_request_was_made() -> None:
    with pytest.raises(ConnectFailed):
        send("http://127.0.0.1:1", ASKED, timeouts=Timeouts())
    with pytest.raises(LocalMisuse):
        send("http://127.0.0.1:1", HttpRequest("GET", "no path"), timeouts=Timeouts())
    cut = parse('[[turn]]\ntext = "Hello, how are you?"\ncut = { byte = 150, how = "close" }')
    with running_simulator("openai", script=cut) as service:
        head, body = send(service.url, ASKED, timeouts=Timeouts())
        with pytest.raises(Truncated):
            list(body)
        assert head.status == 200
    with running_simulator("openai", script=SLOW) as service:
        _, body = send(service.url, ASKED, timeouts=Timeouts(idle=0.1))
        with pytest.raises(TimedOut):
            list(body)


async def test_it_works_inside_of_a_running_loop() -> None:
    with running_simulator("openai") as service:
        head, body = send(service.url, ASKED, timeouts=Timeouts())
        assert (head.status, bool(b"".join(body))) == (200, True)


async def test_nothing_is_read_while_a_piece_is_being_used() -> None:
    script = parse(f'[[turn]]\ntext = "{"x" * 2_000_000}"\nchunk = 50000')
    async with Simulator("openai", script=script) as service:
        client = Client()
        reply = await client.open(service.url, ASKED)
        pieces = reply.pieces()
        size = len(await anext(pieces))
        assert reply._paused
        async for piece in pieces:
            size += len(piece)
        await client.aclose()
        assert size == service.requests[0].sent > 2_000_000
