"""S1, S6, S11: what a request may take before it has proven that it may ask, and what is reserved for its body."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec import structs

from dragoman.errors import Fault, NotAuthorised
from dragoman.gateway import admission
from dragoman.gateway.admission import Pool, UnprovenRequests
from dragoman.gateway.auth import KeyCheck
from dragoman.gateway.limits import Overloaded, RequestLimits
from dragoman.http import exchange
from dragoman.simulator import Simulator
from tests.gateway.front import Client, converse, hash_of, head, question, raw, signed
from tests.gateway.house import KEY, House, house, upstream, wait_until

HASHED = ("host", "x-amz-content-sha256", "x-amz-date")


# --- what a head shows


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
    "a signed header that is not there": {"covered": ("host", "x-amz-date", "zzz")},  # thousands took long to look for
    "a header twice": {"covered": ("host", "host", "x-amz-date")},
    "a hash that is none": {"covered": HASHED, "x_amz_content_sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"},
    "a hash, and another key": {"covered": HASHED, "x_amz_content_sha256": hash_of(b"{}"), "secret": "x" * 40},
    "no hash of the body needed, and another key": {
        "covered": HASHED,
        "x_amz_content_sha256": "UNSIGNED-PAYLOAD",
        "secret": "x" * 40,
    },
}


@pytest.mark.parametrize("name", BAD_CLAIMS)
def test_s1_a_bad_signature_is_refused_from_the_head(home: House, simulator: Simulator, name: str) -> None:
    """S1: no byte of the body is sent, and none is waited for."""
    request = signed(b"{}", **BAD_CLAIMS[name])  # type: ignore[arg-type]
    before = simulator.total
    with Client(home, first=raw(request)[0]) as client:
        status, _, body = client.answer()
    assert status == 403 and b"key of this gateway is missing or wrong" in body
    assert simulator.total == before
    with pytest.raises(NotAuthorised):
        KeyCheck(KEY).claim(structs.replace(request, body=b""))


@pytest.mark.parametrize("header", ["authorization", "x-amz-date", "x-amz-content-sha256"])
def test_s1_a_header_of_the_proof_that_stands_twice_is_refused(header: str) -> None:
    request = signed(b"{}", covered=HASHED, x_amz_content_sha256=hash_of(b"{}"))
    KeyCheck(KEY).check(request)
    twice = (*request.headers, (header, request.header(header)))
    with pytest.raises(NotAuthorised):
        KeyCheck(KEY).claim(structs.replace(request, headers=twice))


def test_s1_a_hash_in_the_head_is_proof_and_is_compared_with_the_body(home: House, simulator: Simulator) -> None:
    before = simulator.total
    good, other = converse("good"), converse("evil")
    top, body = raw(signed(good, covered=HASHED, x_amz_content_sha256=hash_of(good)))
    for sent, status in ((body, 200), (other, 403)):
        with Client(home, first=top + sent) as client:
            assert client.answer()[0] == status
    assert simulator.total == before + 1


def test_s1_a_signature_without_a_hash_still_covers_the_body(home: House, simulator: Simulator) -> None:
    before = simulator.total
    top, body = raw(signed(converse("good")))
    for sent, status in ((body, 200), (converse("evil"), 403)):
        with Client(home, first=top) as client:
            client.send(sent)
            assert client.answer()[0] == status
    assert simulator.total == before + 1


# --- the pool of those that have not proven anything


def test_s1_unproven_requests_take_no_room_from_others(home: House) -> None:
    """S1: eight bodies of 31 MiB that never come filled `in_flight`, and everybody else heard 529."""
    claim, _ = raw(signed(b"x" * 31 * 1024 * 1024, secret="x" * 40))
    with ExitStack() as stack:
        for number in range(12):
            stack.enter_context(Client(home, f"127.0.0.{number + 2}", first=claim + b"x"))
        stack.enter_context(Client(home, first=claim))
        load = home.running.gateway.load
        assert (load.requests, load.asked) == (0, 0)
        with Client(home, first=question("let me in")) as client:
            assert client.answer()[0] == 200
        top, body = raw(signed(converse("me too")))
        with Client(home, first=top) as client:
            client.send(body)
            assert client.answer()[0] == 200


def test_s1_a_keyless_flood_of_sockets_shuts_nobody_out(home: House) -> None:
    """S1: 2,060 sockets with `Authorization: AWS4-HMAC-SHA256 x` and a body to come did, for 120 s."""
    forged, _ = raw(signed(b"x" * 1000, secret="x" * 40))
    shapes = [head(1000, "authorization: AWS4-HMAC-SHA256 x", key=""), forged]
    with ExitStack() as stack:
        for number in range(admission.MOST_REQUESTS + 40):
            stack.enter_context(Client(home, first=shapes[number % 2]))
        for _ in range(3):
            top, body = raw(signed(converse("boto3, from the same address")))
            with Client(home, first=top) as client:
                client.send(body)
                assert client.answer()[0] == 200
        with Client(home, first=question()) as client:
            assert client.answer()[0] == 200


def test_s1_who_must_give_way_hears_it_in_its_dialect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, simulator: Simulator
) -> None:
    monkeypatch.setattr(admission, "MOST_REQUESTS", 2)
    with house(upstream("one", "anthropic", simulator.url), tmp_path) as small, ExitStack() as stack:
        top, _ = raw(signed(b"x" * 1000, path="/v1/messages"))
        clients = [stack.enter_context(Client(small, first=top)) for _ in range(3)]
        status, headers, body = clients[0].answer()
        assert (status, json.loads(body)["error"]["type"]) == (529, "overloaded_error")
        assert headers["retry-after"] == "1"


def test_s1_an_unproven_body_has_a_short_time_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(admission, "SECONDS", 0.2)
    with house("", tmp_path) as home:
        top, body = raw(signed(converse()))
        with Client(home, first=top + body[:5]) as client:
            assert client.answer()[0] == 408
        with Client(home, first=head(100)) as proven:  # the others have their own, which is not over
            proven.send(b"x" * 100)
            assert proven.answer()[0] == 400


def test_a_pool_lets_the_largest_peer_give_way_and_its_oldest_first() -> None:
    refused: list[str] = []
    pool = Pool(4, 1000)

    def enter(peer: str, name: str, size: int) -> admission.Waiting:
        waiting = pool.enter(peer, lambda fault: refused.append(name))
        waiting.reserve(size)
        return waiting

    for name in ("a1", "a2", "a3"):
        enter("a", name, 100)
    enter("b", "b1", 100)
    enter("c", "c1", 100)
    assert refused == ["a1"]
    enter("b", "b2", 800)  # for which b itself gives way, which holds most with it
    assert refused == ["a1", "a2", "b1"]
    with pytest.raises(Overloaded):
        enter("d", "d1", 1001)
    assert pool.load.asked <= 1000 and len(pool) <= 4


def test_everything_in_a_pool_is_given_back_once() -> None:
    pool = Pool(4, 1000)
    faults: list[Fault] = []
    first = pool.enter("a", faults.append)
    first.reserve(900)
    second = pool.enter("a", faults.append)
    second.reserve(900)  # the first gives way
    assert [fault.status for fault in faults] == [503]
    first.leave()
    second.leave()
    assert (pool.load.asked, pool.load.requests, len(pool)) == (0, 0, 0)


def test_signers_that_were_let_in_before_are_not_shut_out_by_strangers() -> None:
    waiting = UnprovenRequests(RequestLimits())
    waiting.remember("10.0.0.1", "boto3")
    for number in range(admission.MOST_REQUESTS):
        waiting.enter(f"10.1.0.{number}", "x", lambda fault: None)
    faults: list[Fault] = []
    mine = [waiting.enter("10.0.0.1", "boto3", faults.append) for _ in range(20)]
    for number in range(admission.MOST_REQUESTS):
        waiting.enter(f"10.2.0.{number}", "x", lambda fault: None)
    assert faults == [] and len(mine) == 20
    for number in range(5000):
        waiting.remember(f"10.3.0.{number}", "x")
    assert len(waiting._known) <= 1024


# --- bodies


def test_s6_a_content_length_is_reserved_at_admission(tmp_path: Path, simulator: Simulator) -> None:
    """S6: of 16 uploads of which 8 fit, 8 succeed, and the others hear it before they have sent anything."""
    body = question("x" * 400_000).partition(b"\r\n\r\n")[2]
    room = len(body) * 8 + len(body) // 2
    text = upstream("one", "anthropic", simulator.url)
    with house(text, tmp_path, server__limits__in_flight=room) as home, ExitStack() as stack:
        clients = [stack.enter_context(Client(home, first=head(len(body)) + body[:1000])) for _ in range(8)]
        wait_until(lambda: home.running.gateway.load.asked == 8 * len(body))
        for path, status in (("/v1/messages", 529), ("/v1/chat/completions", 503)):
            with Client(home, first=head(len(body), path=path)) as late:
                told, headers, _ = late.answer()
                assert (told, headers["retry-after"]) == (status, "1")
                assert headers.get("connection") == "close"
        for client in clients:
            client.send(body[1000:])
        assert [client.answer()[0] for client in clients] == [200] * 8
        wait_until(lambda: home.running.gateway.load.asked == 0)


def test_s6_bytes_that_come_with_the_head_are_counted(tmp_path: Path, simulator: Simulator) -> None:
    """S6: they were not, so a small body always fitted."""
    with house(upstream("one", "anthropic", simulator.url), tmp_path, server__limits__in_flight=1024 * 1024) as home:
        held = home.running.gateway.load.enter()
        held.reserve(1024 * 1024 - 10)
        with Client(home, first=question("a request that comes in one piece")) as client:
            assert client.answer()[0] == 529
        held.leave()
        with Client(home, first=question("now it fits")) as client:
            assert client.answer()[0] == 200


def test_s6_a_chunked_body_is_counted_as_it_comes(tmp_path: Path, simulator: Simulator) -> None:
    with house(upstream("one", "anthropic", simulator.url), tmp_path, server__limits__in_flight=1024 * 1024) as home:
        with Client(home, first=head(None)) as client:
            client.send(b"40000\r\n" + b"x" * 0x40000 + b"\r\n")
            wait_until(lambda: home.running.gateway.load.asked == 0x40000)
            client.send(b"F0000\r\n" + b"x" * 0xF0000)
            assert client.answer()[0] == 529
        wait_until(lambda: home.running.gateway.load.asked == 0)


@pytest.mark.parametrize("framed", [True, False])
def test_s11_a_body_that_drips_is_ended_long_before_its_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, framed: bool
) -> None:
    """S11: a byte now and then kept a body open for 120 s."""
    monkeypatch.setattr(exchange, "RATE_SECONDS", 0.2)
    with house("", tmp_path, server__min_body_rate=1000) as home:
        with Client(home, first=head(5000 if framed else None)) as client:
            client.send(b"x" * 50 if framed else b"10\r\n" + b"x" * 16 + b"\r\n")
            status, _, body = client.answer()
            assert (status, json.loads(body)["type"]) == (408, "error")
            assert b"server.min_body_rate" in body
        assert home.lines()[0]["status"] == 408


def test_s11_a_body_that_comes_fast_enough_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "RATE_SECONDS", 10.0)
    watch = exchange.BodyWatch(exchange.Pace(rate=1000), 0.0)
    assert watch.due == 10.0
    assert watch.fault(0, 9.9) is None  # the grace
    assert watch.fault(10_000, 10.0) is None
    assert watch.due == 20.0
    assert watch.fault(20_000, 20.5) is None
    slow = watch.fault(29_000, 30.5)
    assert slow is not None and slow.status == 408
    late = watch.fault(10**9, 120.0)
    assert late is not None and "120 s" in late.message
    assert exchange.BodyWatch(exchange.ANY_PACE, 0.0).due == 120.0


@pytest.mark.parametrize("stops_at", [0.0, 3.0, 9.9])
def test_a_body_that_stops_is_given_up_within_two_spans(stops_at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that keeps its socket open and sends no more holds a request no longer than that."""
    monkeypatch.setattr(exchange, "RATE_SECONDS", 10.0)
    watch = exchange.BodyWatch(exchange.Pace(rate=1000), 0.0)
    size = int(stops_at * 1_000_000)
    judged = [watch.fault(size, 10.0), watch.fault(size, 20.0)]
    assert any(fault is not None and fault.status == 408 for fault in judged)
