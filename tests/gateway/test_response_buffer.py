"""The small buffer before a client, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

from dragoman.gateway.asgi import AsgiExchange
from dragoman.gateway.response_buffer import KeepAlive, ResponseBuffer
from dragoman.http.exchange import HIGH_WATER
from tests.virtual_time import VirtualTimeLoop


class Client:
    """A client under ASGI: what it got, and whether it reads."""

    def __init__(self, stall: float = 60.0) -> None:
        self.got: list[dict[str, Any]] = []
        self.pings = 0  # asked for
        self.reads = asyncio.Event()
        self.reads.set()
        self.left = asyncio.Event()
        self.sent = False
        scope: dict[str, Any] = {"method": "POST", "path": "/", "headers": []}
        self.exchange = AsgiExchange.of(scope, self.receive, self.send, stall=stall)  # type: ignore[arg-type]

    async def receive(self) -> dict[str, Any]:
        if not self.sent:
            self.sent = True
            return {"type": "http.request", "body": b""}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await self.reads.wait()
        self.got.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)

    def outlet(self, silence: float = 60.0, hold: float = 60.0) -> ResponseBuffer:
        keep_alive = KeepAlive()
        buffer = ResponseBuffer(self.exchange, (("a", "b"),), self.ping, silence, hold, keep_alive)
        keep_alive.add(buffer)
        return buffer

    def ping(self) -> bytes:
        self.pings += 1
        return b"ping "


class Tap:
    def __init__(self) -> None:
        self.told: list[str] = []

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")


@pytest.fixture(autouse=True)
def run() -> Iterator[Callable[[Awaitable[None]], None]]:
    loop = VirtualTimeLoop()
    with (
        patch("dragoman.gateway.response_buffer.monotonic", loop.time),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        yield lambda test: runner.run(asyncio.wait_for(test, 60))


async def test_what_is_held_can_be_dropped_and_nobody_has_seen_it() -> None:
    client = Client()
    outlet = client.outlet()
    outlet.push(b"first attempt ")
    await asyncio.sleep(0.01)
    assert client.got == []
    outlet.discard()
    outlet.push(b"second ")
    outlet.release()
    outlet.push(b"attempt")
    outlet.end(b"!")
    await client.exchange.close()
    assert client.body == b"second attempt!"
    assert [message["type"] for message in client.got] == ["http.response.start", "http.response.body"]
    assert client.got[-1]["more_body"] is False


async def test_all_that_came_while_a_client_did_not_read_goes_out_in_one_piece() -> None:
    client, tap = Client(), Tap()
    outlet = client.outlet()
    outlet.feed_from(tap)
    outlet.push(b"w")
    outlet.release()
    await asyncio.sleep(0.01)
    client.reads.clear()
    outlet.push(b"x")
    await asyncio.sleep(0.01)
    for _ in range(20):
        outlet.push(b"y" * (HIGH_WATER // 10))
    assert tap.told == ["pause"]
    assert client.exchange.paused
    client.reads.set()
    await asyncio.sleep(0.01)
    assert tap.told == ["pause", "resume"]
    assert len(client.got) == 4
    outlet.end()
    await client.exchange.close()


async def test_a_source_that_comes_while_a_client_does_not_read_is_paused_at_once() -> None:
    client, tap = Client(), Tap()
    outlet = client.outlet()
    client.reads.clear()
    outlet.release()
    outlet.push(b"y" * (HIGH_WATER + 1))
    outlet.feed_from(tap)
    assert tap.told == ["pause"]
    outlet.close()


async def test_what_is_held_does_not_grow_and_goes_on_when_it_is_seen() -> None:
    client, tap = Client(), Tap()
    outlet = client.outlet()
    outlet.feed_from(tap)
    outlet.push(b"y" * (HIGH_WATER + 1))
    assert tap.told[-1] == "pause"
    outlet.release()
    await asyncio.sleep(0.01)
    assert tap.told[-1] == "resume"
    outlet.end()
    await client.exchange.close()
    assert len(client.body) == HIGH_WATER + 1


async def test_silence_is_broken_and_lets_out_what_was_held() -> None:
    client = Client()
    outlet = client.outlet(silence=0.02)
    outlet.push(b"held ")
    await asyncio.sleep(0.05)
    assert outlet.is_released
    assert client.body.startswith(b"held ping ")
    outlet.end()
    await client.exchange.close()
    said = client.body
    await asyncio.sleep(0.05)
    assert client.body == said  # nothing after the end


async def test_whoever_speaks_needs_no_sign_of_life() -> None:
    client = Client()
    outlet = client.outlet(silence=0.08)
    outlet.release()
    for _ in range(20):
        client.exchange.chunk(b".")
        await asyncio.sleep(0.01)
    assert b"ping" not in client.body
    await asyncio.sleep(0.15)
    assert client.body.endswith(b"ping ")
    outlet.close()
    client.exchange.chunk(b"", last=True)
    await client.exchange.close()


async def test_a_sign_of_life_that_is_due_as_the_answer_ends_is_not_sent() -> None:
    client = Client()
    outlet = client.outlet(silence=1.0)
    outlet.push(b"x")
    now = asyncio.get_running_loop().time()
    outlet.release()
    outlet.check(now)
    outlet.check(now + 2)  # it is due, in the next turn of the loop
    outlet.end(b"y")
    await asyncio.sleep(0.01)
    await client.exchange.close()
    assert (client.body, client.pings) == (b"xy", 0)


async def test_a_client_that_does_not_read_gets_no_signs_of_life_until_it_reads_again() -> None:
    client = Client()
    outlet = client.outlet(silence=0.02)
    outlet.release()
    client.reads.clear()
    outlet.push(b"x" * (HIGH_WATER + 1))
    held = client.exchange.paused
    await asyncio.sleep(0.1)
    client.reads.set()
    while client.exchange.paused:
        await asyncio.sleep(0.001)
    assert held
    assert client.body == b"x" * (HIGH_WATER + 1)  # five would have come meanwhile
    await asyncio.sleep(0.05)
    assert client.body.endswith(b"ping ")
    outlet.close()
    client.exchange.chunk(b"", last=True)
    await client.exchange.close()


async def test_a_client_that_reads_nothing_for_long_is_given_up() -> None:
    client = Client(stall=0.05)
    outlet = client.outlet(silence=0.01)
    outlet.push(b"x")
    outlet.release()
    await asyncio.sleep(0.005)
    client.reads.clear()
    outlet.push(b"y")
    with pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert client.exchange.interrupted() and client.exchange.is_disconnected
    outlet.close()
    await client.exchange.close()


async def test_a_client_that_leaves_ends_the_work_at_once() -> None:
    client = Client()
    await client.exchange.body(1)
    client.left.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert client.exchange.interrupted() and client.exchange.is_disconnected


async def test_a_cancellation_of_somebody_else_stays_one() -> None:
    told = []

    async def work() -> None:
        client = Client()
        await client.exchange.body(1)
        try:
            await asyncio.Event().wait()
        finally:
            told.append(client.exchange.interrupted())

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == [False]


async def test_what_was_held_long_enough_is_seen_and_what_is_dropped_begins_anew() -> None:
    client = Client()
    outlet = client.outlet(hold=0.2)
    outlet.push(b"before an answer ")
    await asyncio.sleep(0.3)
    assert client.got == []  # nobody has answered, so there is nothing to be seen
    outlet.feed_from(Tap())
    await asyncio.sleep(0.1)
    outlet.discard()
    outlet.feed_from(Tap())
    outlet.push(b"answered")
    await asyncio.sleep(0.15)
    assert client.got == []
    await asyncio.sleep(0.15)
    assert client.body == b"answered"
    outlet.end()
    await client.exchange.close()


async def test_without_a_hold_an_answer_is_seen_at_once() -> None:
    client = Client()
    outlet = client.outlet(hold=0.0)
    outlet.feed_from(Tap())
    await asyncio.sleep(0.01)
    assert [message["type"] for message in client.got] == ["http.response.start"]
    outlet.end()
    await client.exchange.close()
