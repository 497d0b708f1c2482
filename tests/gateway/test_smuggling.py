"""Requests made to be understood in two ways: each is refused, or served as the one thing it says. On both servers.

Behind every doubtful request stands another, whole and with the right key: it must never be served.
"""

from __future__ import annotations

import json
import re
import socket
from typing import NamedTuple

import pytest

from dragoman.simulator import Simulator
from tests.gateway.house import KEY, House, messages

BODY = json.dumps(messages()).encode()
HIDDEN_BODY = json.dumps(messages(text="the hidden one")).encode()
KEYED = f"x-api-key: {KEY}".encode()
CHUNKED = b"transfer-encoding: chunked"
LENGTH = b"content-length: %d" % len(BODY)
IN_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


def request(
    *lines: bytes,
    body: bytes = BODY,
    first: bytes = b"POST /v1/messages HTTP/1.1",
    host: bytes | None = b"host: localhost",
    end: bytes = b"\r\n",
) -> bytes:
    head = [first, *([host] if host is not None else []), KEYED, *lines, b"", b""]
    return end.join(head) + body


HIDDEN = request(b"content-length: %d" % len(HIDDEN_BODY), body=HIDDEN_BODY)


class Vector(NamedTuple):
    name: str
    raw: bytes


def chunks(raw: bytes) -> bytes:
    return request(CHUNKED, body=raw)


VECTORS = [
    # Two lengths, or none that can be read.
    Vector("length and encoding", request(b"content-length: 4", CHUNKED, body=b"0\r\n\r\n")),
    Vector("encoding and length", request(CHUNKED, LENGTH, body=IN_CHUNKS)),
    Vector("the same length twice", request(LENGTH, LENGTH)),
    Vector("two lengths in one", request(b"content-length: %d, %d" % (len(BODY), len(BODY)))),
    Vector("two different lengths", request(LENGTH, b"content-length: 3")),
    Vector("a length with a sign", request(b"content-length: +%d" % len(BODY))),
    Vector("a length in hex", request(b"content-length: 0x%x" % len(BODY))),
    Vector("a length with an underscore", request(b"content-length: 1_0")),
    Vector("a length below nothing", request(b"content-length: -3")),
    Vector("a length of forty digits", request(b"content-length: " + b"9" * 40)),
    Vector("an empty length", request(b"content-length: ")),
    # Encodings that nobody decodes.
    Vector("gzip, chunked", request(b"transfer-encoding: gzip, chunked", body=IN_CHUNKS)),
    Vector("chunked, chunked", request(b"transfer-encoding: chunked, chunked", body=IN_CHUNKS)),
    Vector("chunked twice", request(CHUNKED, CHUNKED, body=IN_CHUNKS)),
    Vector("identity", request(b"transfer-encoding: identity", LENGTH)),
    Vector("an encoding in HTTP/1.0", request(CHUNKED, body=IN_CHUNKS, first=b"POST /v1/messages HTTP/1.0")),
    Vector("a space before the colon", request(b"transfer-encoding : chunked", body=IN_CHUNKS)),
    Vector("xchunked", request(b"transfer-encoding: xchunked", body=IN_CHUNKS)),
    Vector("a tab that is none before chunked", request(b"transfer-encoding: \x0bchunked", body=IN_CHUNKS)),
    # Chunks that begin or end where others would not see it.
    Vector("a chunk size in C", chunks(b"0x3\r\nabc\r\n0\r\n\r\n")),
    Vector("a chunk size with a sign", chunks(b"+3\r\nabc\r\n0\r\n\r\n")),
    Vector("a bare line feed after a chunk extension", chunks(b"3;a\nabc\r\n0\r\n\r\n")),
    Vector("no end of a chunk", chunks(b"3\r\nabcde\r\n0\r\n\r\n")),
    Vector("a chunk size before a bare line feed", chunks(b"3\nabc\r\n0\r\n\r\n")),
    Vector("a chunk size of seventeen digits", chunks(b"fffffffffffffffff\r\nabc")),
    Vector("a chunk size below nothing", chunks(b"-3\r\nabc\r\n0\r\n\r\n")),
    # Heads.
    Vector("bare line feeds", request(LENGTH, end=b"\n")),
    Vector("a folded line", request(b"x-a: b\r\n c", LENGTH)),
    Vector("a bare carriage return", request(b"x-a: b\rc: d", LENGTH)),
    Vector("a NUL", request(b"x-a: b\0c", LENGTH)),
    Vector("a header without a name", request(b": b", LENGTH)),
    Vector("a header without a colon", request(b"nothing", LENGTH)),
    Vector("a space in a name", request(b"x a: b", LENGTH)),
    Vector("a space before the first header", request(LENGTH, host=b" host: localhost")),
    Vector("a long header", request(b"x-a: " + b"b" * 100 * 1024, LENGTH)),
    Vector("a header just too long", request(b"x-a: " + b"b" * 33 * 1024, LENGTH)),
    Vector("many headers", request(*(b"x-%d: b" % number for number in range(2000)), LENGTH)),
    Vector("headers just too many", request(*(b"x-%d: b" % number for number in range(100)), LENGTH)),
    # Whom it names.
    Vector("no host", request(LENGTH, host=None)),
    Vector("two hosts", request(b"host: localhost", LENGTH)),
    Vector("a host that is a path", request(LENGTH, host=b"host: x/v1?#")),
    Vector("a host with a user", request(LENGTH, host=b"host: localhost@evil.test")),
    Vector("two hosts in one", request(LENGTH, host=b"host: localhost, evil.test")),
    Vector("another host", request(LENGTH, host=b"host: evil.test")),
    Vector("another host in the target", request(LENGTH, first=b"POST http://evil.test/v1/messages HTTP/1.1")),
    Vector("our host in the target", request(LENGTH, first=b"POST http://localhost/v1/messages HTTP/1.1")),
    Vector("a fragment in the target", request(LENGTH, first=b"POST /v1/messages#x HTTP/1.1")),
    Vector("a long target", request(LENGTH, first=b"POST /v1/messages?" + b"a" * 9000 + b" HTTP/1.1")),
    Vector("a target of other letters", request(LENGTH, first=b"POST /v1/messages?\xff HTTP/1.1")),
    Vector("a space in the target", request(LENGTH, first=b"POST /v1/messages ?a HTTP/1.1")),
    Vector("an origin", request(LENGTH, b"origin: https://evil.test")),
    Vector("another site", request(LENGTH, b"sec-fetch-site: cross-site")),
    # What is no request of ours.
    Vector("CONNECT", request(first=b"CONNECT localhost:80 HTTP/1.1", body=b"")),
    Vector("TRACE", request(first=b"TRACE /v1/messages HTTP/1.1", body=b"")),
    Vector("a star", request(first=b"OPTIONS * HTTP/1.1", body=b"")),
    Vector("another protocol", request(LENGTH, b"connection: upgrade", b"upgrade: websocket")),
    Vector("an offer of HTTP/2", request(LENGTH, b"connection: upgrade, http2-settings", b"upgrade: h2c")),
    Vector("another expectation", request(LENGTH, b"expect: the unexpected")),
    Vector("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    Vector("HTTP/0.9", b"GET /v1/models\r\n"),
    Vector("HTTP/1.2", request(LENGTH, first=b"POST /v1/messages HTTP/1.2")),
    Vector("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    Vector("a compressed body", request(LENGTH, b"content-encoding: gzip")),
]


def said(home: House, raw: bytes) -> bytes:
    """All that the server answers before it ends the connection; it must end it."""
    host, _, port = home.url.removeprefix("http://").partition(":")
    got = b""
    with socket.create_connection((host, int(port)), timeout=60) as client:
        try:
            client.sendall(raw)
            while piece := client.recv(65536):
                got += piece
        except (ConnectionResetError, BrokenPipeError):
            pass
    return got


def statuses(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_what_could_be_understood_in_two_ways_is_refused_and_nothing_behind_it_is_served(
    home: House, simulator: Simulator, vector: Vector
) -> None:
    before = simulator.total
    found = statuses(said(home, vector.raw + HIDDEN))
    assert len(found) == 1, found
    assert 400 <= found[0] < 500 or found[0] in (501, 505), found
    assert simulator.total == before


SERVED = [
    Vector("a length", request(LENGTH)),
    Vector("chunks", request(CHUNKED, body=IN_CHUNKS)),
    Vector("Chunks", request(b"Transfer-Encoding: Chunked", body=IN_CHUNKS)),
    Vector("a chunk extension", request(CHUNKED, body=IN_CHUNKS.replace(b"\r\n", b";a=b\r\n", 1))),
    Vector("a trailer", request(CHUNKED, body=IN_CHUNKS[:-2] + b"x-sum: 3\r\n\r\n")),
    Vector("spaces around values", request(b"content-length:  %d  " % len(BODY), host=b"host:\t localhost:80 ")),
    Vector("an empty line before it", b"\r\n" + request(LENGTH)),
    Vector("a query", request(LENGTH, first=b"POST /v1/messages?beta=true HTTP/1.1")),
    Vector("an encoding that is only accepted", request(LENGTH, b"te: trailers", b"accept-encoding: gzip")),
]


@pytest.mark.parametrize("vector", SERVED, ids=lambda vector: vector.name)
def test_what_is_merely_unusual_is_served_once(home: House, simulator: Simulator, vector: Vector) -> None:
    before = simulator.total
    last = request(b"content-length: 0", b"connection: close", body=b"", first=b"GET /healthz HTTP/1.1")
    found = statuses(said(home, vector.raw + last))
    assert found == [200, 200]
    assert simulator.total == before + 1


def test_a_body_that_another_request_begins_in_is_a_body(home: House, simulator: Simulator) -> None:
    before = simulator.total
    raw = request(b"content-length: %d" % (len(HIDDEN) + 2), b"connection: close", body=b"{}" + HIDDEN)
    assert statuses(said(home, raw)) == [400]
    assert simulator.total == before
