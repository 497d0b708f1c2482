"""Where a connection may go, and how long each step may take: names, requests that nobody takes, answers in gzip."""

from __future__ import annotations

import asyncio
import gzip
import socket
from typing import Any

import pytest

from dragoman.errors import BadFrame, ConnectFailed, TimedOut
from dragoman.http.addresses import objection
from dragoman.http.client import dial
from dragoman.http.client.client import Client, Timeouts
from dragoman.wire.http import HttpRequest
from tests.unit.upstream.conftest import Run
from tests.unit.upstream.peer import Talk, connected, once, peer

POST = HttpRequest("POST", "/v1/messages", body=b"{}")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("api.example", "127.0.0.1"),
        ("api.example", "127.8.8.8"),
        ("api.example", "::1"),
        ("api.example", "::ffff:127.0.0.1"),
        ("api.example", "169.254.169.254"),
        ("api.example", "fe80::1%eth0"),
        ("api.example", "0.0.0.0"),
        ("api.example", "::"),
        ("api.example", "224.0.0.1"),
        ("localhost", "169.254.169.254"),
        ("169.254.169.254", "169.254.169.254"),
        ("localhost.evil.test", "127.0.0.1"),
    ],
)
def test_a_name_does_not_lead_here_nor_to_a_metadata_service(host: str, address: str) -> None:
    assert address.partition("%")[0].removeprefix("::ffff:") in objection(host, address)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("localhost", "127.0.0.1"),
        ("sub.localhost", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("api.example", "93.184.216.34"),
        ("api.example", "2606:2800:220:1::1"),
        ("gpu-box", "10.0.0.7"),
        ("gpu-box", "192.168.1.9"),
    ],
)
def test_what_was_meant_may_be_reached(host: str, address: str) -> None:
    assert objection(host, address) == ""


async def test_one_bad_address_of_several_is_enough(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("203.0.113.7", "127.0.0.1")]

    monkeypatch.setattr(dial, "resolve", resolve)

    client = Client()
    with pytest.raises(ConnectFailed, match=r"leads to 127\.0\.0\.1"):
        await client.open("https://api.example", POST)
    assert client.lanes()[0].active == 0
    await client.aclose()


async def test_a_name_that_is_not_found_in_time_is_a_timeout(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(dial, "resolve", resolve)

    client = Client()
    with pytest.raises(ConnectFailed, match=r"find the address of api\.example:443 within 0\.1 s") as caught:
        await client.open("https://api.example", POST, timeouts=Timeouts(dns=0.1))
    assert (caught.value.fault.kind, caught.value.fault.status) == ("timeout", 504)
    await client.aclose()


async def test_a_request_that_nobody_takes_is_given_up(run: Run) -> None:
    async def deaf(talk: Talk) -> None:
        talk.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(5)

    long = HttpRequest("POST", "/", body=bytes(32 << 20))
    async with connected(deaf, sweep_seconds=0.05) as (server, client):
        with pytest.raises(TimedOut, match=r"did not take the request within 0\.3 s"):
            await client.open(server.url, long, timeouts=Timeouts(write=0.3))
        # Once it is taken, only the other deadlines count.
        with pytest.raises(TimedOut, match="gave no answer"):
            await client.open(server.url, POST, timeouts=Timeouts(write=0.1, head=0.5))


def gzipped(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


async def test_an_answer_in_gzip_is_refused_but_a_refusal_keeps_its_status(run: Run) -> None:
    packed = gzip.compress(b"x" * 1000)

    client = Client()
    async with peer(once(gzipped(b"200 OK", packed))) as server:
        with pytest.raises(BadFrame, match=r"compressed \('gzip'\), which was not asked for"):
            await client.open(server.url, POST)
    async with peer(once(gzipped(b"429 Slow", packed))) as server:
        reply = await client.open(server.url, POST)
        assert (reply.status, await reply.read(9999)) == (429, packed)
    await client.aclose()
