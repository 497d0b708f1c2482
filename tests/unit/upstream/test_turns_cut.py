"""S3: whatever is cut, paused or ended where, a reader gets the body byte for byte, or an error and the beginning."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest

from dragoman.errors import Reset, Truncated
from dragoman.http.client.client import Client
from dragoman.http.client.reply import Reply
from dragoman.wire.http import HttpRequest
from tests.unit.upstream.conftest import Run
from tests.unit.upstream.peer import Script, Talk, peer
from tests.unit.upstream.test_tls_and_proxy import House, house  # noqa: F401  the fixture

POST = HttpRequest("POST", "/v1/messages", body=b"{}")
ROUNDS = 24
FRAMINGS = ("length", "chunked", "until close")
ENDS = ("wait", "close", "reset", "early close", "early reset")


class Case:
    """One exchange, chosen by a number."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.framing, self.end = chance.choice(FRAMINGS), chance.choice(ENDS)
        if self.framing == "until close" and self.end == "wait":
            self.end = "close"
        self.body = chance.randbytes(chance.choice([0, 1, 5000, 16 * 1024, 70_000, 400_000]))
        self.pauses = chance.random() < 0.6
        self.early = self.end.startswith("early") and len(self.body) > 1

    def answer(self) -> bytes:
        body, chance = self.body, self.chance
        if self.framing == "length":
            return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        if self.framing == "until close":
            return b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body
        size = chance.choice([100, 3000, 100_000])
        chunks = [body[at : at + size] for at in range(0, len(body), size)]
        told = b"".join([b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks])
        return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + told + b"0\r\n\r\n"

    async def tell(self, talk: Talk) -> None:
        data, chance = self.answer(), self.chance
        if self.early:
            data = data[: len(data) - chance.randrange(1, len(self.body))]
        while data:
            size = chance.choice([1, 200, 5000, 100_000, 1_000_000])
            await talk.send(data[:size])
            data = data[size:]
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        if self.end.endswith("reset"):
            talk.reset()
        elif self.end.endswith("close"):
            talk.close()

    async def read(self, reply: Reply) -> tuple[bytes, Exception | None]:
        got, loop = bytearray(), asyncio.get_running_loop()

        def take(piece: bytes) -> None:
            got.extend(piece)
            if self.pauses and self.chance.random() < 0.3:
                reply.pause()
                loop.call_later(self.chance.choice([0, 0, 0.001, 0.005]), reply.resume)

        if self.chance.random() < 0.3:
            await asyncio.sleep(0.002)
        try:
            await reply.pump(take)
        except (Truncated, Reset) as error:
            return bytes(got), error
        return bytes(got), None

    def check(self, got: bytes, error: Exception | None) -> None:
        assert self.body.startswith(got)
        if error is None:
            assert got == self.body or (self.framing == "until close" and self.end == "early close")
        elif self.end in ("wait", "close"):
            raise AssertionError(f"{self.framing}, {self.end}, {len(got)} of {len(self.body)}: {error!r}")


def telling(cases: list[Case]) -> Script:
    async def script(talk: Talk) -> None:
        while cases:
            await talk.request()
            case = cases[0]
            await case.tell(talk)
            if case.end != "wait":
                return

    return script


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_s3_a_body_is_whole_or_it_is_an_error(run: Run, house: House, seed: int, tls: bool) -> None:  # noqa: F811
    cases = [Case(1000 * seed + number) for number in range(ROUNDS)]
    context = house.server("localhost") if tls else None
    async with peer(telling(cases), tls=context) as server, aclosing(Client()) as client:
        while cases:
            case = cases[0]
            try:
                reply = await client.open(server.url, POST, tls=house.tls if tls else None)
            except (Truncated, Reset):
                assert case.end not in ("wait", "close")  # a reset may overtake the head
            else:
                case.check(*await case.read(reply))
                reply.close()
            del cases[0]
        assert [lane.active for lane in client.lanes()] == [0]
