"""Request smuggling, limits before authentication, and memory reserved for bodies; on both servers.

Each ambiguous request is followed by a hidden one, complete and with the right key, which must never be served.
"""

from __future__ import annotations

import json
import re
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec import structs

from dragoman.errors import Fault, NotAuthorised
from dragoman.gateway import admission, unproven
from dragoman.gateway.admission import KeyCheck
from dragoman.gateway.limits import Overloaded, RequestLimits
from dragoman.gateway.unproven import UnprovenPool, UnprovenRequests
from dragoman.http import exchange
from dragoman.simulator import Simulator
from tests.gateway.harness import (
    KEY,
    GatewayHarness,
    anthropic_body,
    check_key,
    run_at_once,
    start_gateway,
    upstream_config,
    wait_until,
)
from tests.gateway.socket_client import (
    SocketClient,
    converse_body,
    head,
    raw,
    request_bytes,
    sha256_hex,
    signed_request,
)

BODY = json.dumps(anthropic_body()).encode()
HIDDEN_BODY = json.dumps(anthropic_body(text="the hidden one")).encode()
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
    """One raw request and the statuses it may get."""

    name: str
    raw: bytes


def chunks(raw: bytes) -> bytes:
    return request(CHUNKED, body=raw)


VECTORS = [
    # Two lengths, or an unreadable one.
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
    # Encodings that the server does not decode.
    Vector("gzip, chunked", request(b"transfer-encoding: gzip, chunked", body=IN_CHUNKS)),
    Vector("chunked, chunked", request(b"transfer-encoding: chunked, chunked", body=IN_CHUNKS)),
    Vector("chunked twice", request(CHUNKED, CHUNKED, body=IN_CHUNKS)),
    Vector("identity", request(b"transfer-encoding: identity", LENGTH)),
    Vector("an encoding in HTTP/1.0", request(CHUNKED, body=IN_CHUNKS, first=b"POST /v1/messages HTTP/1.0")),
    Vector("a space before the colon", request(b"transfer-encoding : chunked", body=IN_CHUNKS)),
    Vector("xchunked", request(b"transfer-encoding: xchunked", body=IN_CHUNKS)),
    Vector("a tab that is none before chunked", request(b"transfer-encoding: \x0bchunked", body=IN_CHUNKS)),
    # Chunk boundaries that other parsers may read differently.
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
    # Ambiguous hosts.
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
    # Requests that a gateway does not serve.
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


def all_bytes_of(harness: GatewayHarness, raw: bytes) -> bytes:
    """Return all bytes that the server sends before it closes the connection; it must close it."""
    host, _, port = harness.url.removeprefix("http://").partition(":")
    got = b""
    with socket.create_connection((host, int(port)), timeout=60) as client:
        try:
            client.sendall(raw)
            while piece := client.recv(65536):
                got += piece
        except (ConnectionResetError, BrokenPipeError):
            pass
    return got


def statuses(response: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", response)]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_an_ambiguous_request_is_refused_and_nothing_after_it_is_served(
    harness: GatewayHarness, simulator: Simulator, vector: Vector
) -> None:
    before = simulator.total
    found = statuses(all_bytes_of(harness, vector.raw + HIDDEN))
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
def test_an_unusual_but_clear_request_is_served_once(
    harness: GatewayHarness, simulator: Simulator, vector: Vector
) -> None:
    before = simulator.total
    last = request(b"content-length: 0", b"connection: close", body=b"", first=b"GET /healthz HTTP/1.1")
    found = statuses(all_bytes_of(harness, vector.raw + last))
    assert found == [200, 200]
    assert simulator.total == before + 1


def test_a_request_inside_a_body_is_not_served(harness: GatewayHarness, simulator: Simulator) -> None:
    before = simulator.total
    raw = request(b"content-length: %d" % (len(HIDDEN) + 2), b"connection: close", body=b"{}" + HIDDEN)
    assert statuses(all_bytes_of(harness, raw)) == [400]
    assert simulator.total == before


# --- limits for requests before authentication, and memory reserved for bodies

HASHED = ("host", "x-amz-content-sha256", "x-amz-date")


# --- authentication from the head


BAD_CLAIMS = {
    "no claim at all": {"change": lambda text: "AWS4-HMAC-SHA256 x"},
    "no signature": {"change": lambda text: text.partition(", Signature")[0]},
    "another hour": {"age": 3600.0},
    "another day in its scope": {"change": lambda text: text.replace("anybody/2", "anybody/1")},
    "no host": {"covered": ("x-amz-date",)},
    "no date": {"covered": ("host",)},
    "neither": {"covered": ("content-length",)},
    "an AWS header that is not signed": {"x_amz_target": "x"},
    "headers in another order": {"covered": ("x-amz-date", "host")},
    "a signed header that is not there": {
        "covered": ("host", "x-amz-date", "zzz")
    },  # looking for thousands of them took long
    "a header twice": {"covered": ("host", "host", "x-amz-date")},
    "a hash that is none": {"covered": HASHED, "x_amz_content_sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"},
    "a hash, and another key": {"covered": HASHED, "x_amz_content_sha256": sha256_hex(b"{}"), "secret": "x" * 40},
    "no hash of the body needed, and another key": {
        "covered": HASHED,
        "x_amz_content_sha256": "UNSIGNED-PAYLOAD",
        "secret": "x" * 40,
    },
}


@pytest.mark.parametrize("name", BAD_CLAIMS)
def test_a_bad_signature_is_refused_from_the_head(harness: GatewayHarness, simulator: Simulator, name: str) -> None:
    """The refusal comes although no byte of the body was sent."""
    request = signed_request(b"{}", **BAD_CLAIMS[name])  # type: ignore[arg-type]
    before = simulator.total
    with SocketClient(harness, first=raw(request)[0]) as client:
        status, _, body = client.read_response()
    assert status == 403 and b"key of this gateway is missing or wrong" in body
    assert simulator.total == before
    with pytest.raises(NotAuthorised):
        run_at_once(KeyCheck(KEY).find(structs.replace(request, body=b"")))


@pytest.mark.parametrize("header", ["authorization", "x-amz-date", "x-amz-content-sha256"])
def test_a_duplicate_authentication_header_is_refused(header: str) -> None:
    request = signed_request(b"{}", covered=HASHED, x_amz_content_sha256=sha256_hex(b"{}"))
    check_key(KeyCheck(KEY), request)
    twice = (*request.headers, (header, request.header(header)))
    with pytest.raises(NotAuthorised):
        run_at_once(KeyCheck(KEY).find(structs.replace(request, headers=twice)))


def test_a_signed_body_hash_authenticates_the_head_and_is_compared_with_the_body(
    harness: GatewayHarness, simulator: Simulator
) -> None:
    before = simulator.total
    good, other = converse_body("good"), converse_body("evil")
    top, body = raw(signed_request(good, covered=HASHED, x_amz_content_sha256=sha256_hex(good)))
    for sent, status in ((body, 200), (other, 403)):
        with SocketClient(harness, first=top + sent) as client:
            assert client.read_response()[0] == status
    assert simulator.total == before + 1


def test_a_signature_without_a_hash_still_covers_the_body(harness: GatewayHarness, simulator: Simulator) -> None:
    before = simulator.total
    top, body = raw(signed_request(converse_body("good")))
    for sent, status in ((body, 200), (converse_body("evil"), 403)):
        with SocketClient(harness, first=top) as client:
            client.send(sent)
            assert client.read_response()[0] == status
    assert simulator.total == before + 1


# --- the pool of unauthenticated requests


def test_unauthenticated_requests_use_no_memory_of_others(harness: GatewayHarness) -> None:
    """Regression: eight announced bodies of 31 MiB filled `in_flight`, and all other clients got 529."""
    claim, _ = raw(signed_request(b"x" * 31 * 1024 * 1024, secret="x" * 40))
    with ExitStack() as stack:
        for number in range(12):
            stack.enter_context(SocketClient(harness, f"127.0.0.{number + 2}", first=claim + b"x"))
        stack.enter_context(SocketClient(harness, first=claim))
        load = harness.running.gateway.memory_budget
        assert (load.requests, load.request_bytes) == (0, 0)
        with SocketClient(harness, first=request_bytes("let me in")) as client:
            assert client.read_response()[0] == 200
        top, body = raw(signed_request(converse_body("me too")))
        with SocketClient(harness, first=top) as client:
            client.send(body)
            assert client.read_response()[0] == 200


def test_a_flood_of_sockets_without_a_key_blocks_no_client(harness: GatewayHarness) -> None:
    """Regression: 2,060 sockets with `Authorization: AWS4-HMAC-SHA256 x` blocked others for 120 s."""
    forged, _ = raw(signed_request(b"x" * 1000, secret="x" * 40))
    shapes = [head(1000, "authorization: AWS4-HMAC-SHA256 x", key=""), forged]
    with ExitStack() as stack:
        for number in range(unproven.MAX_UNPROVEN + 40):
            stack.enter_context(SocketClient(harness, first=shapes[number % 2]))
        for _ in range(3):
            top, body = raw(signed_request(converse_body("boto3, from the same address")))
            with SocketClient(harness, first=top) as client:
                client.send(body)
                assert client.read_response()[0] == 200
        with SocketClient(harness, first=request_bytes()) as client:
            assert client.read_response()[0] == 200


def test_an_evicted_request_gets_an_error_of_its_dialect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, simulator: Simulator
) -> None:
    monkeypatch.setattr(unproven, "MAX_UNPROVEN", 2)
    with start_gateway(upstream_config("one", "anthropic", simulator.url), tmp_path) as small, ExitStack() as stack:
        top, _ = raw(signed_request(b"x" * 1000, path="/v1/messages"))
        clients = [stack.enter_context(SocketClient(small, first=top)) for _ in range(3)]
        status, headers, body = clients[0].read_response()
        assert (status, json.loads(body)["error"]["type"]) == (529, "overloaded_error")
        assert headers["retry-after"] == "1"


def test_an_unauthenticated_body_has_a_short_timeout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(admission, "SECONDS", 0.2)
    with start_gateway("", tmp_path) as harness:
        top, body = raw(signed_request(converse_body()))
        with SocketClient(harness, first=top + body[:5]) as client:
            assert client.read_response()[0] == 408
        with SocketClient(harness, first=head(100)) as proven:  # authenticated requests have their own, longer timeout
            proven.send(b"x" * 100)
            assert proven.read_response()[0] == 400


def test_a_pool_evicts_the_oldest_request_of_the_largest_peer() -> None:
    refused: list[str] = []
    pool = UnprovenPool(4, 1000)

    def enter(peer: str, name: str, size: int) -> unproven.UnprovenAccount:
        waiting = pool.enter(peer, lambda fault: refused.append(name))
        waiting.reserve(size)
        return waiting

    for name in ("a1", "a2", "a3"):
        enter("a", name, 100)
    enter("b", "b1", 100)
    enter("c", "c1", 100)
    assert refused == ["a1"]
    enter("b", "b2", 800)  # evicts b itself, which now has the most bytes
    assert refused == ["a1", "a2", "b1"]
    with pytest.raises(Overloaded):
        enter("d", "d1", 1001)
    assert pool.budget.request_bytes <= 1000 and len(pool) <= 4


def test_bytes_of_a_pool_are_released_once() -> None:
    pool = UnprovenPool(4, 1000)
    faults: list[Fault] = []
    first = pool.enter("a", faults.append)
    first.reserve(900)
    second = pool.enter("a", faults.append)
    second.reserve(900)  # evicts the first
    assert [fault.status for fault in faults] == [503]
    first.leave()
    second.leave()
    assert (pool.budget.request_bytes, pool.budget.requests, len(pool)) == (0, 0, 0)


def test_known_signers_are_not_evicted_for_unknown_ones() -> None:
    waiting = UnprovenRequests(RequestLimits())
    waiting.remember("10.0.0.1", "boto3")
    for number in range(unproven.MAX_UNPROVEN):
        waiting.enter(f"10.1.0.{number}", "x", lambda fault: None)
    faults: list[Fault] = []
    mine = [waiting.enter("10.0.0.1", "boto3", faults.append) for _ in range(20)]
    for number in range(unproven.MAX_UNPROVEN):
        waiting.enter(f"10.2.0.{number}", "x", lambda fault: None)
    assert faults == [] and len(mine) == 20
    for number in range(5000):
        waiting.remember(f"10.3.0.{number}", "x")
    assert len(waiting._known) <= 1024


# --- bodies


def test_a_content_length_is_reserved_at_admission(tmp_path: Path, simulator: Simulator) -> None:
    """Of 16 uploads, the 8 that fit succeed, and the others are refused before they send anything."""
    body = request_bytes("x" * 400_000).partition(b"\r\n\r\n")[2]
    room = len(body) * 8 + len(body) // 2
    text = upstream_config("one", "anthropic", simulator.url)
    with start_gateway(text, tmp_path, server__limits__in_flight=room) as harness, ExitStack() as stack:
        clients = [stack.enter_context(SocketClient(harness, first=head(len(body)) + body[:1000])) for _ in range(8)]
        wait_until(lambda: harness.running.gateway.memory_budget.request_bytes == 8 * len(body))
        for path, status in (("/v1/messages", 529), ("/v1/chat/completions", 503)):
            with SocketClient(harness, first=head(len(body), path=path)) as late:
                late_status, headers, _ = late.read_response()
                assert (late_status, headers["retry-after"]) == (status, "1")
                assert headers.get("connection") == "close"
        for client in clients:
            client.send(body[1000:])
        assert [client.read_response()[0] for client in clients] == [200] * 8
        wait_until(lambda: harness.running.gateway.memory_budget.request_bytes == 0)


def test_body_bytes_in_the_first_read_are_counted(tmp_path: Path, simulator: Simulator) -> None:
    """Regression: they were not counted, so a small body was always accepted."""
    with start_gateway(
        upstream_config("one", "anthropic", simulator.url), tmp_path, server__limits__in_flight=1024 * 1024
    ) as harness:
        account = harness.running.gateway.memory_budget.enter()
        account.reserve(1024 * 1024 - 10)
        with SocketClient(harness, first=request_bytes("a request that comes in one piece")) as client:
            assert client.read_response()[0] == 529
        account.leave()
        with SocketClient(harness, first=request_bytes("now it fits")) as client:
            assert client.read_response()[0] == 200


def test_a_chunked_body_is_counted_as_it_arrives(tmp_path: Path, simulator: Simulator) -> None:
    with start_gateway(
        upstream_config("one", "anthropic", simulator.url), tmp_path, server__limits__in_flight=1024 * 1024
    ) as harness:
        with SocketClient(harness, first=head(None)) as client:
            client.send(b"40000\r\n" + b"x" * 0x40000 + b"\r\n")
            wait_until(lambda: harness.running.gateway.memory_budget.request_bytes == 0x40000)
            client.send(b"F0000\r\n" + b"x" * 0xF0000)
            assert client.read_response()[0] == 529
        wait_until(lambda: harness.running.gateway.memory_budget.request_bytes == 0)


@pytest.mark.parametrize("framed", [True, False])
def test_a_body_that_arrives_too_slowly_is_refused_long_before_its_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, framed: bool
) -> None:
    """Regression: single bytes kept a body open for 120 s."""
    monkeypatch.setattr(exchange, "RATE_SECONDS", 0.2)
    with start_gateway("", tmp_path, server__min_body_rate=1000) as harness:
        with SocketClient(harness, first=head(5000 if framed else None)) as client:
            client.send(b"x" * 50 if framed else b"10\r\n" + b"x" * 16 + b"\r\n")
            status, _, body = client.read_response()
            assert (status, json.loads(body)["type"]) == (408, "error")
            assert b"server.min_body_rate" in body
        assert harness.log_lines()[0]["status"] == 408


def test_a_body_that_arrives_fast_enough_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "RATE_SECONDS", 10.0)
    watch = exchange.BodyTimer(exchange.BodyTimeout(rate=1000), 0.0)
    assert watch.due == 10.0
    assert watch.fault(0, 9.9) is None  # within the grace period
    assert watch.fault(10_000, 10.0) is None
    assert watch.due == 20.0
    assert watch.fault(20_000, 20.5) is None
    slow = watch.fault(29_000, 30.5)
    assert slow is not None and slow.status == 408
    late = watch.fault(10**9, 120.0)
    assert late is not None and "120 s" in late.message
    assert exchange.BodyTimer(exchange.DEFAULT_BODY_TIMEOUT, 0.0).due == 120.0


@pytest.mark.parametrize("stops_at", [0.0, 3.0, 9.9])
def test_a_body_that_stops_times_out_within_two_spans(stops_at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that stops sending but keeps its socket open occupies a request no longer than that."""
    monkeypatch.setattr(exchange, "RATE_SECONDS", 10.0)
    watch = exchange.BodyTimer(exchange.BodyTimeout(rate=1000), 0.0)
    size = int(stops_at * 1_000_000)
    judged = [watch.fault(size, 10.0), watch.fault(size, 20.0)]
    assert any(fault is not None and fault.status == 408 for fault in judged)
