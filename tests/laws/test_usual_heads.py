"""A request whose head came before means what the parser would have made of it, however the next bytes differ from it.

One connection knows moulds of heads, another has only its parser; both are fed the same.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.gateway.exchange import Exchange
from dragoman.http.server import connection
from dragoman.http.server.connection import Connection
from dragoman.http.server.serving import HttpServer
from dragoman.http.server.usual import Mould, mould_of
from dragoman.wire.http import HttpRequest


class Asked(NamedTuple):
    """What an application sees of a request."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    target: str
    version: str
    last: bool
    body: bytes | None


class Heard(asyncio.Transport):
    """A client's socket: what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.written += map(bytes, list_of_data)

    def is_closing(self) -> bool:
        return bool(self.written) and self.written[-1] in (b"<closed>", b"<aborted>")

    def close(self) -> None:
        self.written.append(b"<closed>")

    def abort(self) -> None:
        self.written.append(b"<aborted>")

    def write_eof(self) -> None:
        self.written.append(b"<eof>")

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


async def told(reads: list[bytes], *, usual: bool) -> tuple[list[Asked], list[bytes], int]:
    """What an application is asked by these reads, what the client hears, and how often no parser was needed."""
    asked: list[Asked] = []
    spared = 0

    async def answer(exchange: Exchange) -> None:
        nonlocal spared
        request = exchange.request
        spared += exchange.like is not None
        try:
            body = await exchange.body(1000)
        except Exception:  # noqa: BLE001  a body that never was whole
            body = None
        head = (request.method, request.path, request.query, request.headers)
        asked.append(Asked(*head, exchange.target, exchange.version, exchange.last, body))
        exchange.whole(200, (), b"yes")

    carrier = HttpServer(answer)
    carrier.time = lambda: 0.0
    spoken, heard = Connection(carrier), Heard()
    if not usual:
        spoken._patience = 0
    spoken.connection_made(heard)
    for read in reads:
        if heard.is_closing():
            break
        spoken.data_received(read)
        for _ in range(4):
            await asyncio.sleep(0)
    spoken.connection_lost(None)
    await asyncio.sleep(0)
    return asked, heard.written, spared


def same(reads: list[bytes]) -> int:
    """How often no parser was needed, when both agree."""

    async def both() -> int:
        one, other = await told(reads, usual=True), await told(reads, usual=False)
        assert one[:2] == other[:2]
        assert other[2] == 0
        return one[2]

    return asyncio.run(both())


def head(
    length: str, *, name: str = "Content-Length", line: str = "POST /v1/chat?x=1 HTTP/1.1", more: str = ""
) -> bytes:
    return f"{line}\r\nHost: a\r\n{more}{name}: {length}\r\nX-Key: k\r\n\r\n".encode("latin-1")


def test_what_came_before_but_for_its_length_needs_no_parser() -> None:
    assert same([head("3") + b"abc", head("5") + b"abcde", head("0"), head("12") + b"a" * 12]) == 3


lengths = st.sampled_from(
    ["0", "1", "2", "3", "03", "003", "+3", "-1", " 3", "3 ", "3,3", "3\t", "", "9" * 12, "0x3", "²"]
)
extras = st.sampled_from(
    [
        "",
        "",
        "",
        "Transfer-Encoding: chunked\r\n",
        "Content-Length: 3\r\n",
        "Expect: 100-continue\r\n",
        "Connection: close\r\n",
    ]
)
bodies = st.sampled_from(
    [b"", b"a", b"ab", b"abc", b"abcd", b"abc" + head("2") + b"de", b"3\r\nabc\r\n0\r\n\r\n", b"\r\n"]
)
requests = st.builds(
    lambda length, more, body, name: head(length, more=more, name=name) + body,
    lengths,
    extras,
    bodies,
    st.sampled_from(["Content-Length", "Content-Length", "content-length", "Content-Length ", "X"]),
)


@given(st.lists(st.one_of(st.just(head("3") + b"abc"), requests), min_size=1, max_size=5), st.integers(0, 40))
@example([head("3") + b"abc", head("3") + b"abcd"], 0)
@example([head("3") + b"abc", head("3") + b"ab"], 0)
@example([head("3") + b"abc", head("3", more="Transfer-Encoding: chunked\r\n") + b"abc"], 0)
@example([head("3") + b"abc", head("3").replace(b"X-Key: k", b"X-Key: K") + b"abc"], 0)
@example([b"\r\n" + head("3") + b"abc", b"\r\n" + head("2") + b"ab"], 0)
def test_whatever_follows_means_the_same_with_and_without_moulds(reads: list[bytes], cut: int) -> None:
    if cut:  # the last one comes in two reads
        reads = [*reads[:-1], reads[-1][:cut], reads[-1][cut:]]
    same([read for read in reads if read])


def test_heads_that_never_repeat_are_not_learnt_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[bytes] = []

    def learning(data: bytes, request: HttpRequest, target: str) -> Mould | None:
        learnt.append(data)
        return mould_of(data, request, target)

    monkeypatch.setattr(connection, "mould_of", learning)
    same([head("3", more=f"X-Trace: {number}\r\n") + b"abc" for number in range(20)])
    assert len(learnt) == connection._PATIENCE
