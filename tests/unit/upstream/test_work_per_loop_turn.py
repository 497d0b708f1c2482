"""One upstream translates a stated number of bytes in one turn of the loop, and a busy loop makes no timeouts."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections import Counter
from contextlib import aclosing

import pytest

from dragoman.errors import Reset, TimedOut, Truncated
from dragoman.http.client.client import HttpClient, HttpTimeouts
from dragoman.http.client.response import MAX_BUFFERED, TURN_BYTES, ClientResponse
from dragoman.wire.http import HttpRequest
from tests.unit.upstream.conftest import Run
from tests.unit.upstream.scripted_server import ConnectionScript, ServerConnection, run_client_and_server, run_server
from tests.unit.upstream.test_tls_and_proxy import CertificateAuthority, authority  # noqa: F401  the fixture

POST = HttpRequest("POST", "/v1/messages", body=b"{}")
SIZE = 1 << 20
BODY = bytes(range(256)) * (SIZE // 256)
MOST = 2 * TURN_BYTES  # a turn may give the last bytes that waited for the reader, and what is read


class Turns:
    """Counts the turns of the loop, and what is given to a reader between two of them."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.body = b""
        self._turn = 0
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._count)

    def _count(self) -> None:
        self._turn += 1
        self._loop.call_soon(self._count)

    def take(self, piece: bytes) -> None:
        self.counts[self._turn] += len(piece)
        self.body += piece


def sending(*pieces: bytes, then: str = "wait", chunk: int = 0) -> ConnectionScript:
    """Answer every request with these bytes; `chunk` says how many are sent at once."""

    async def script(connection: ServerConnection) -> None:
        while True:
            await connection.request()
            for piece in pieces:
                for start in range(0, len(piece), chunk or len(piece)):
                    await connection.send(piece[start : start + (chunk or len(piece))])
            if then != "wait":
                break
        if then == "reset":
            connection.reset()
        else:
            connection.close()

    return script


def head(length: int | None) -> bytes:
    return b"HTTP/1.1 200 OK\r\n%b\r\n" % (b"" if length is None else b"content-length: %d\r\n" % length)


def small_chunks(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def test_a_turn_translates_at_most_the_stated_bytes(run: Run) -> None:
    async with run_client_and_server(sending(head(SIZE), BODY)) as (server, client):
        turns = Turns()
        await (await client.open(server.url, POST)).pump(turns.take)
    assert turns.body == BODY
    assert max(turns.counts.values()) <= MOST
    assert len(turns.counts) >= SIZE // MOST


async def test_small_http_chunks_are_counted_as_they_come(run: Run) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

    async with run_client_and_server(sending(head + small_chunks(BODY[:65536], 1), chunk=700)) as (server, client):
        turns = Turns()
        await (await client.open(server.url, POST)).pump(turns.take)
    assert turns.body == BODY[:65536]
    assert max(turns.counts.values()) <= MOST


async def test_what_came_before_the_reader_is_given_in_turns_too(run: Run) -> None:
    async with run_client_and_server(sending(head(SIZE), BODY)) as (server, client):
        reply = await client.open(server.url, POST)
        while reply._buffered_size <= MAX_BUFFERED:  # until the connection is paused
            await asyncio.sleep(0)
        turns = Turns()
        await reply.pump(turns.take)
    assert turns.body == BODY
    assert max(turns.counts.values()) <= MOST


@pytest.mark.parametrize("then", ["close", "reset"])
def test_an_end_of_the_connection_does_not_overtake_kept_bytes(run: Run, then: str) -> None:
    """A body without a length ends with the connection; a cut body is reported as cut, after all of its bytes."""

    async def main(length: int | None) -> tuple[bytes, str]:
        async with run_server(sending(head(length), BODY, then="close")) as server:
            client = HttpClient()
            turns = Turns()
            reply = await client.open(server.url, POST)
            try:
                await reply.pump(turns.take)
                return turns.body, "end"
            except Truncated:
                return turns.body, "cut"
            finally:
                await client.aclose()

    assert run(main(None if then == "close" else SIZE + 1)) == (BODY, "end" if then == "close" else "cut")


async def test_a_connection_is_kept_after_a_response_of_many_turns(run: Run) -> None:
    async with run_client_and_server(sending(head(SIZE), BODY)) as (server, client):
        same = [await (await client.open(server.url, POST)).read(SIZE) == BODY for _ in range(3)]
        assert (server.connections, same) == (1, [True, True, True])


async def test_bytes_behind_a_response_close_the_connection_whatever_turn_they_are_in(run: Run) -> None:
    async with run_client_and_server(sending(head(SIZE), BODY + head(2) + b"no" + BODY)) as (server, client):
        same = [await (await client.open(server.url, POST)).read(SIZE) == BODY for _ in range(2)]
        assert (server.connections, same) == (2, [True, True])


async def test_a_reader_that_pauses_gets_no_more_than_was_given_then(run: Run) -> None:
    """A client that does not keep up stops the bytes that were kept, too."""

    async with run_client_and_server(sending(head(SIZE), BODY)) as (server, client):
        turns = Turns()
        reply = await client.open(server.url, POST)

        def take(piece: bytes) -> None:
            turns.take(piece)
            if len(turns.counts) == 1:
                reply.pause()

        pumping = asyncio.ensure_future(reply.pump(take))
        while not turns.body:
            await asyncio.sleep(0)
        for _ in range(200):
            await asyncio.sleep(0)
        paused_at = len(turns.body)
        reply.resume()
        await pumping
    assert turns.body == BODY
    assert paused_at <= MAX_BUFFERED + MOST


async def test_giving_a_response_up_between_two_turns_ends_it(run: Run) -> None:
    async with run_client_and_server(sending(head(SIZE), BODY)) as (server, client):
        turns = Turns()
        reply = await client.open(server.url, POST)
        pumping = asyncio.ensure_future(reply.pump(turns.take))
        while not turns.body:
            await asyncio.sleep(0)
        pumping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pumping
        size = len(turns.body)
        for _ in range(50):
            await asyncio.sleep(0)
        assert (len(turns.body) - size) == 0


def test_a_loop_that_stood_still_reads_before_it_judges_silence(run: Run) -> None:
    """Bytes that came while the loop was busy with others are no silence."""
    limits, busy = HttpTimeouts(idle=0.3), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def respond() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(head(2) + b"o")
            busy.wait(10)
            connection.sendall(b"k")
            connection.recv(1)  # until the client ends it

    async def main() -> bytes:
        client = HttpClient(sweep_seconds=0.01)
        got: list[bytes] = []
        reply = await client.open(f"http://127.0.0.1:{listener.getsockname()[1]}", POST, timeouts=limits)
        pumping = asyncio.ensure_future(reply.pump(got.append))
        while not got:
            await asyncio.sleep(0)
        while reply.has_new_bytes:  # until a sweep has seen the first byte
            await asyncio.sleep(0.001)
        near, far = socket.socketpair()

        def stand_still() -> None:  # in a read callback: uvloop's timers come next, before the next read
            asyncio.get_running_loop().remove_reader(far)
            busy.set()
            time.sleep(2 * limits.idle)

        asyncio.get_running_loop().add_reader(far, stand_still)
        with near, far:
            near.send(b"x")
            await pumping
        await client.aclose()
        return b"".join(got)

    thread = threading.Thread(target=respond)
    thread.start()
    try:
        assert run(main()) == b"ok"
    finally:
        busy.set()
        thread.join()


async def test_silence_is_still_an_end(run: Run) -> None:
    got: list[bytes] = []
    async with run_client_and_server(sending(head(2), b"o"), sweep_seconds=0.01) as (server, client):
        reply = await client.open(server.url, POST, timeouts=HttpTimeouts(idle=0.05))
        with pytest.raises(TimedOut):
            await reply.pump(got.append)
    assert got == [b"o"]


# --- whatever is cut, paused or ended where, a reader gets the body byte for byte, or an error and the beginning

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

    def respond(self) -> bytes:
        body, chance = self.body, self.chance
        if self.framing == "length":
            return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        if self.framing == "until close":
            return b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body
        size = chance.choice([100, 3000, 100_000])
        chunks = [body[at : at + size] for at in range(0, len(body), size)]
        data = b"".join([b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks])
        return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + data + b"0\r\n\r\n"

    async def send_case(self, connection: ServerConnection) -> None:
        data, chance = self.respond(), self.chance
        if self.early:
            data = data[: len(data) - chance.randrange(1, len(self.body))]
        while data:
            size = chance.choice([1, 200, 5000, 100_000, 1_000_000])
            await connection.send(data[:size])
            data = data[size:]
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        if self.end.endswith("reset"):
            connection.reset()
        elif self.end.endswith("close"):
            connection.close()

    async def read(self, reply: ClientResponse) -> tuple[bytes, Exception | None]:
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


def respond_to(cases: list[Case]) -> ConnectionScript:
    async def script(connection: ServerConnection) -> None:
        while cases:
            await connection.request()
            case = cases[0]
            await case.send_case(connection)
            if case.end != "wait":
                return

    return script


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_a_body_is_whole_or_it_is_an_error(
    run: Run,
    authority: CertificateAuthority,  # noqa: F811
    seed: int,
    tls: bool,
) -> None:
    cases = [Case(1000 * seed + number) for number in range(ROUNDS)]
    context = authority.server("localhost") if tls else None
    async with run_server(respond_to(cases), tls=context) as server, aclosing(HttpClient()) as client:
        while cases:
            case = cases[0]
            try:
                reply = await client.open(server.url, POST, tls=authority.tls if tls else None)
            except (Truncated, Reset):
                assert case.end not in ("wait", "close")  # a reset may overtake the head
            else:
                case.check(*await case.read(reply))
                reply.close()
            del cases[0]
        assert [lane.active for lane in client.pools()] == [0]
