"""Many exchanges at once, a good part of which go wrong: nothing may stay behind, and no answer reach another's asker."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from dragoman.errors import DragomanError
from dragoman.http.client.client import Client, PoolLimits, Timeouts
from dragoman.wire.http import HttpRequest
from tests.unit.upstream.conftest import Run
from tests.unit.upstream.peer import Talk, peer, until

CALLS = 400


def fate(name: bytes) -> random.Random:
    return random.Random(name)


async def script(talk: Talk) -> None:
    """Echo the asker's name, in one of the ways there are, or fail it."""
    while True:
        head = await talk.request()
        name = head.split()[1]
        luck = fate(name)
        body = name * luck.randrange(1, 200)
        kind = luck.choice(
            ["length", "length", "chunked", "chunked", "close", "cut", "reset", "silent", "extra", "drop"]
        )
        length = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        if kind == "drop":
            return
        if kind in ("length", "extra"):
            await talk.send(length + (length if kind == "extra" else b""))
        elif kind == "chunked":
            await talk.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for at in range(0, len(body), 300):
                piece = body[at : at + 300]
                await talk.send(b"%x\r\n%s\r\n" % (len(piece), piece))
                await asyncio.sleep(0)
            await talk.send(b"0\r\n\r\n")
        elif kind == "close":
            await talk.send(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body)
            return
        elif kind == "silent":
            await talk.send(length[:-1])
            await talk.gone()
        else:
            await talk.send(length[:-1])
            if kind == "reset":
                talk.reset()
            return


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux does")
async def test_nothing_stays_behind_and_nobody_gets_the_answer_of_another(run: Run) -> None:
    outcomes: dict[str, int] = {}
    async with peer(script) as server:
        files = sum(1 for _ in Path("/proc/self/fd").iterdir())
        tasks = len(asyncio.all_tasks())
        caps = PoolLimits(connections=40, idle=10, waiting=CALLS, wait_seconds=20)
        client = Client(caps=caps, sweep_seconds=0.02)

        async def call(number: int) -> str:
            name = f"/call-{number}-"
            luck = fate(f"client {number}".encode())
            await asyncio.sleep(luck.random() / 2)
            got = bytearray()
            try:
                reply = await client.open(server.url, HttpRequest("POST", name), timeouts=Timeouts(idle=0.2))
                if luck.random() < 0.1:
                    reply.close()
                    return "closed"
                await reply.pump(got.extend)
            except DragomanError as error:
                return type(error).__name__
            finally:
                assert bytes(got) == (name.encode() * (len(got) // len(name) + 1))[: len(got)]
            assert got
            assert len(got) % len(name) == 0
            return "whole"

        calls = [asyncio.create_task(call(number)) for number in range(CALLS)]
        for number in range(0, CALLS, 11):
            asyncio.get_running_loop().call_later(fate(b"%d" % number).random() / 2, calls[number].cancel)
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result
            outcomes[str(result)] = outcomes.get(str(result), 0) + 1
        state = client.lanes()[0]
        assert (state.active, state.waiting) == (0, 0)
        assert state.idle <= 10
        await client.aclose()
        await until(lambda: server.open == 0)
        await until(lambda: len(asyncio.all_tasks()) == tasks)
        await until(lambda: sum(1 for _ in Path("/proc/self/fd").iterdir()) <= files)
    assert {"whole", "closed", "Truncated", "Reset", "TimedOut"} <= set(outcomes), outcomes
