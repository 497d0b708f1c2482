"""What one answer is on the wire of our own server: as few writes as can be, and nothing that breaks out of its head."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.http.server.connection import Connection
from dragoman.http.server.serving import HttpServer
from dragoman.wire.http import Headers


class Socket:
    """A transport that remembers what was written, and how."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.told: list[str] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def writelines(self, pieces: Any) -> None:
        self.writes.append(b"".join(pieces))

    def __getattr__(self, name: str) -> Any:
        def tell() -> int:
            self.told.append(name)
            return 0

        return tell


def answered(raw: bytes, how: Any) -> Socket:
    """What goes out when this request is answered so."""
    client = Socket()

    async def main() -> None:
        async def answer(exchange: Any) -> None:
            how(exchange)

        connection = Connection(HttpServer(answer))
        connection.connection_made(client)  # type: ignore[arg-type]
        connection.data_received(raw)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    return client


ASKED = b"POST / HTTP/1.1\r\nhost: localhost\r\n\r\n"
TEXT: Headers = (("content-type", "text/plain"),)


def test_a_whole_answer_is_one_write() -> None:
    assert answered(ASKED, lambda exchange: exchange.whole(200, TEXT, b"hello")).writes == [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello"
    ]
    long = b"x" * 1_000_000
    [written] = answered(ASKED, lambda exchange: exchange.whole(529, TEXT, long)).writes
    assert written.startswith(b"HTTP/1.1 529 \r\n") and written.endswith(long)


def test_a_stream_is_a_write_for_each_piece_and_none_for_its_head_or_end() -> None:
    def stream(exchange: Any) -> None:
        exchange.head(200, TEXT)
        exchange.chunk(b"one")
        exchange.chunk(b"two")
        exchange.end(b"three")

    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
    assert answered(ASKED, stream).writes == [
        head + b"3\r\none\r\n",
        b"3\r\ntwo\r\n",
        b"5\r\nthree\r\n0\r\n\r\n",
    ]


def test_a_head_can_go_before_anything_is_in_the_stream() -> None:
    def stream(exchange: Any) -> None:
        exchange.head(200, TEXT)
        exchange.flush()
        exchange.flush()
        exchange.end()

    first, second = answered(ASKED, stream).writes
    assert first.startswith(b"HTTP/1.1 200 OK") and first.endswith(b"\r\n\r\n")
    assert second == b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "status", "length"),
    [(b"HEAD", 200, b"content-length: 5\r\n"), (b"POST", 204, b""), (b"POST", 304, b"")],
)
def test_what_has_no_body_sends_none(method: bytes, status: int, length: bytes) -> None:
    raw = ASKED.replace(b"POST", method)
    [written] = answered(raw, lambda exchange: exchange.whole(status, (), b"hello")).writes
    assert written.partition(b"\r\n")[2] == length + b"\r\n"


def test_a_value_cannot_break_out_of_the_head() -> None:
    odd: Headers = (("x-a", "b\r\nset-cookie: c\0d\u2028e"), ("x-b", "ä€"))
    [written] = answered(ASKED, lambda exchange: exchange.whole(200, odd, b"")).writes
    assert b"\r\nx-a: b  set-cookie: c d e\r\nx-b: \xe4?\r\n" in written


def test_an_answer_to_an_old_client_ends_with_the_connection() -> None:
    client = answered(ASKED.replace(b"1.1", b"1.0"), lambda exchange: exchange.whole(200, TEXT, b"x"))
    assert b"connection: close\r\n" in client.writes[0]
    assert "close" in client.told


def test_a_request_that_nobody_answers_does_not_wait_for_ever() -> None:
    assert "abort" in answered(ASKED, lambda exchange: None).told
