"""Answers that a client does not read, and requests that it sends all the same, take bounded room."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dragoman.gateway.exchange import Exchange
from dragoman.http.server.connection import Connection
from dragoman.http.server.serving import HttpServer
from tests.gateway.front import LOOPS, Client, Memory, gateway_servers, on_loop, question
from tests.gateway.house import House, house, wait_until

KEYLESS = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
QUESTIONS = 150_000
MOST = 1024 * 1024  # bytes of unread answers, or of requests that wait


@pytest.fixture(params=LOOPS)
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[House]:
    with on_loop(request.param, monkeypatch), house("", tmp_path) as one:
        yield one


def find() -> Connection:
    """The gateway's side of the one connection."""
    return next(each for server in gateway_servers() for each in server.roster.members)


def test_s1_answers_do_not_pile_up_for_a_client_that_reads_none(served: House) -> None:
    """S1: a keyless client that pipelined requests and read nothing made the gateway keep all answers, or requests."""
    with Client(served, first=KEYLESS) as client:
        assert client.answer()[0] == 401
        theirs = find()
        transport = theirs._transport
        assert transport is not None

        def send() -> None:
            with suppress(OSError):
                client.send(KEYLESS * QUESTIONS)

        def is_stopped() -> bool:
            return theirs._write_paused and theirs._current is None and not transport.is_reading()

        client.socket.settimeout(60)
        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        wait_until(lambda: is_stopped() or not sending.is_alive())
        assert is_stopped() and sending.is_alive()
        assert transport.get_write_buffer_size() + len(theirs._held) < MOST
        for _ in range(3000):  # who reads is answered
            assert client.answer()[0] == 401
        client.socket.shutdown(socket.SHUT_RDWR)
        sending.join(60)


def test_a_client_that_reads_late_gets_every_answer_in_its_order(served: House) -> None:
    with Client(served) as client:
        sending = threading.Thread(target=client.send, args=(KEYLESS * 3000 + question(),), daemon=True)
        sending.start()
        sending.join(60)
        statuses = [client.answer()[0] for _ in range(3001)]
        assert statuses == [401] * 3000 + [200]
        client.end()
        assert client.file.read() == b""


def test_a_connection_that_was_reset_meanwhile_is_no_bug() -> None:
    """The system refuses to close the sending side of a connection that is reset, but not yet read."""

    class Reset(Memory):
        def write_eof(self) -> None:
            raise OSError(107, "Transport endpoint is not connected")

    async def run() -> None:
        ended: list[BaseException | None] = []

        async def answer(asked: Exchange) -> None:
            asked.whole(200, (), b"yes")

        carrier, wire = HttpServer(answer), Reset()
        client = Connection(carrier)
        client.connection_made(wire)
        client.data_received(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n\x00 no HTTP")
        assert client._current is not None and client._current._task is not None
        client._current._task.add_done_callback(lambda task: ended.append(task.exception()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert wire.written.startswith(b"HTTP/1.1 200 ") and wire.closed and ended == [None]

    asyncio.run(run())
