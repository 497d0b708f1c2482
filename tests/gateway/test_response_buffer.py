"""`ResponseBuffer`, the buffer between a response and a client, without a network."""

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
    """An ASGI client: the messages it got, and whether it reads."""

    def __init__(self, stall: float = 60.0) -> None:
        self.got: list[dict[str, Any]] = []
        self.pings = 0  # keep-alives requested from the buffer
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

    def buffer(self, silence: float = 60.0, hold: float = 60.0) -> ResponseBuffer:
        keep_alive = KeepAlive()
        buffer = ResponseBuffer(self.exchange, (("a", "b"),), self.ping, silence, hold, keep_alive)
        keep_alive.add(buffer)
        return buffer

    def ping(self) -> bytes:
        self.pings += 1
        return b"ping "


class Tap:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")


@pytest.fixture(autouse=True)
def run() -> Iterator[Callable[[Awaitable[None]], None]]:
    loop = VirtualTimeLoop()
    with (
        patch("dragoman.gateway.response_buffer.monotonic", loop.time),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        yield lambda test: runner.run(asyncio.wait_for(test, 60))


async def test_buffered_bytes_can_be_dropped_before_they_are_sent() -> None:
    client = Client()
    buffer = client.buffer()
    buffer.push(b"first attempt ")
    await asyncio.sleep(0.01)
    assert client.got == []
    buffer.discard()
    buffer.push(b"second ")
    buffer.release()
    buffer.push(b"attempt")
    buffer.end(b"!")
    await client.exchange.close()
    assert client.body == b"second attempt!"
    assert [message["type"] for message in client.got] == ["http.response.start", "http.response.body"]
    assert client.got[-1]["more_body"] is False


async def test_bytes_buffered_while_a_client_did_not_read_are_sent_in_one_piece() -> None:
    client, tap = Client(), Tap()
    buffer = client.buffer()
    buffer.feed_from(tap)
    buffer.push(b"w")
    buffer.release()
    await asyncio.sleep(0.01)
    client.reads.clear()
    buffer.push(b"x")
    await asyncio.sleep(0.01)
    for _ in range(20):
        buffer.push(b"y" * (HIGH_WATER // 10))
    assert tap.calls == ["pause"]
    assert client.exchange.paused
    client.reads.set()
    await asyncio.sleep(0.01)
    assert tap.calls == ["pause", "resume"]
    assert len(client.got) == 4
    buffer.end()
    await client.exchange.close()


async def test_a_source_added_while_a_client_does_not_read_is_paused_at_once() -> None:
    client, tap = Client(), Tap()
    buffer = client.buffer()
    client.reads.clear()
    buffer.release()
    buffer.push(b"y" * (HIGH_WATER + 1))
    buffer.feed_from(tap)
    assert tap.calls == ["pause"]
    buffer.close()


async def test_the_buffer_is_bounded_and_the_source_resumes_after_the_commit() -> None:
    client, tap = Client(), Tap()
    buffer = client.buffer()
    buffer.feed_from(tap)
    buffer.push(b"y" * (HIGH_WATER + 1))
    assert tap.calls[-1] == "pause"
    buffer.release()
    await asyncio.sleep(0.01)
    assert tap.calls[-1] == "resume"
    buffer.end()
    await client.exchange.close()
    assert len(client.body) == HIGH_WATER + 1


async def test_a_keep_alive_sends_the_buffered_bytes_first() -> None:
    client = Client()
    buffer = client.buffer(silence=0.02)
    buffer.push(b"held ")
    await asyncio.sleep(0.05)
    assert buffer.is_released
    assert client.body.startswith(b"held ping ")
    buffer.end()
    await client.exchange.close()
    sent = client.body
    await asyncio.sleep(0.05)
    assert client.body == sent  # no keep-alive after the end


async def test_an_active_stream_gets_no_keep_alive() -> None:
    client = Client()
    buffer = client.buffer(silence=0.08)
    buffer.release()
    for _ in range(20):
        client.exchange.chunk(b".")
        await asyncio.sleep(0.01)
    assert b"ping" not in client.body
    await asyncio.sleep(0.15)
    assert client.body.endswith(b"ping ")
    buffer.close()
    client.exchange.chunk(b"", last=True)
    await client.exchange.close()


async def test_a_keep_alive_that_is_due_at_the_end_is_not_sent() -> None:
    client = Client()
    buffer = client.buffer(silence=1.0)
    buffer.push(b"x")
    now = asyncio.get_running_loop().time()
    buffer.release()
    buffer.check(now)
    buffer.check(now + 2)  # a keep-alive is due in the next loop iteration
    buffer.end(b"y")
    await asyncio.sleep(0.01)
    await client.exchange.close()
    assert (client.body, client.pings) == (b"xy", 0)


async def test_a_client_that_does_not_read_gets_no_keep_alives_until_it_reads_again() -> None:
    client = Client()
    buffer = client.buffer(silence=0.02)
    buffer.release()
    client.reads.clear()
    buffer.push(b"x" * (HIGH_WATER + 1))
    is_paused = client.exchange.paused
    await asyncio.sleep(0.1)
    client.reads.set()
    while client.exchange.paused:
        await asyncio.sleep(0.001)
    assert is_paused
    assert client.body == b"x" * (HIGH_WATER + 1)  # five keep-alives would have been due
    await asyncio.sleep(0.05)
    assert client.body.endswith(b"ping ")
    buffer.close()
    client.exchange.chunk(b"", last=True)
    await client.exchange.close()


async def test_a_client_that_reads_nothing_for_long_is_disconnected() -> None:
    client = Client(stall=0.05)
    buffer = client.buffer(silence=0.01)
    buffer.push(b"x")
    buffer.release()
    await asyncio.sleep(0.005)
    client.reads.clear()
    buffer.push(b"y")
    with pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert client.exchange.was_interrupted() and client.exchange.is_disconnected
    buffer.close()
    await client.exchange.close()


async def test_a_client_that_disconnects_cancels_the_work_at_once() -> None:
    client = Client()
    await client.exchange.body(1)
    client.left.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert client.exchange.was_interrupted() and client.exchange.is_disconnected


async def test_a_cancellation_from_outside_is_raised_again() -> None:
    interruptions = []

    async def work() -> None:
        client = Client()
        await client.exchange.body(1)
        try:
            await asyncio.Event().wait()
        finally:
            interruptions.append(client.exchange.was_interrupted())

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert interruptions == [False]


async def test_the_hold_ends_after_its_time_and_restarts_after_a_drop() -> None:
    client = Client()
    buffer = client.buffer(hold=0.2)
    buffer.push(b"before an answer ")
    await asyncio.sleep(0.3)
    assert client.got == []  # no upstream answered, so nothing is committed
    buffer.feed_from(Tap())
    await asyncio.sleep(0.1)
    buffer.discard()
    buffer.feed_from(Tap())
    buffer.push(b"answered")
    await asyncio.sleep(0.15)
    assert client.got == []
    await asyncio.sleep(0.15)
    assert client.body == b"answered"
    buffer.end()
    await client.exchange.close()


async def test_without_a_hold_a_response_is_sent_at_once() -> None:
    client = Client()
    buffer = client.buffer(hold=0.0)
    buffer.feed_from(Tap())
    await asyncio.sleep(0.01)
    assert [message["type"] for message in client.got] == ["http.response.start"]
    buffer.end()
    await client.exchange.close()
