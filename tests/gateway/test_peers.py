"""S11: limits by peer address, and which connections are closed first when room runs short."""

from __future__ import annotations

import asyncio
import select
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from dragoman.gateway import serve
from dragoman.gateway.limits import Account, MemoryBudget, Overloaded, RequestLimits, peer_share
from dragoman.http.addresses import limit_key
from dragoman.http.exchange import Exchange
from dragoman.http.framing import HEAD_SECONDS
from dragoman.http.server import serving as roster_module
from dragoman.http.server.connection import Connection
from dragoman.http.server.serving import HttpServer, Roster, Shed
from tests.gateway.front import Client, Memory, head, question
from tests.gateway.house import behind, wait_until

PROBE = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
LONG = 'then = "last"\n[[turn]]\nparts = [{ text = "Begin." }, { wait = 30.0 }]'


# --- connections


def test_s11_room_is_made_for_new_connections_by_those_that_proved_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """S11: as many idle sockets as fit kept everybody else out for as long as they liked."""
    monkeypatch.setattr(serve, "_room", lambda: 4)
    with behind('then = "last"\n[[turn]]\ntext = "Yes."', tmp_path, "openai") as (home, _), ExitStack() as stack:
        kept = stack.enter_context(Client(home, first=question()))
        assert kept.answer()[0] == 200
        shapes = (b"", PROBE[:20], head(1000, key="wrong"), head(10, "authorization: AWS4-HMAC-SHA256 x", key=""))
        idle = [stack.enter_context(Client(home, first=shape)) for shape in shapes * 5]
        for _ in range(3):
            with Client(home, first=question()) as client:
                assert client.answer()[0] == 200
        assert idle[1].is_closed()
        kept.send(question())  # who was let in before is not closed for those who were not
        assert kept.answer()[0] == 200


def test_s11_running_requests_are_never_shed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serve, "_room", lambda: 3)
    with behind(LONG, tmp_path, "openai") as (home, simulator), ExitStack() as stack:
        streams = [stack.enter_context(Client(home, first=question(stream=True))) for _ in range(3)]
        for stream in streams:
            assert stream.head()[0] == 200
        waiting = stack.enter_context(Client(home, first=question(stream=True)))  # in the backlog
        wait_until(lambda: home.running.gateway.in_flight == 3)
        streams[0].__exit__()
        assert waiting.head()[0] == 200
        wait_until(lambda: simulator.total == 4)
        assert home.running.gateway.in_flight == 3


def test_s11_the_oldest_idle_connection_is_shed_when_all_have_proven_themselves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(serve, "_room", lambda: 3)
    with behind('then = "last"\n[[turn]]\ntext = "Yes."', tmp_path, "openai") as (home, _), ExitStack() as stack:
        for _ in range(8):
            client = stack.enter_context(Client(home, first=question()))
            assert client.answer()[0] == 200


def test_s11_one_peer_has_its_share_of_connections(tmp_path: Path) -> None:
    """S11: there was no limit by peer."""
    flags: dict[str, Any] = {"server__limits__peer_connections": 2}
    with behind(LONG, tmp_path, "openai", **flags) as (home, _), ExitStack() as stack:
        streams = [stack.enter_context(Client(home, first=question(stream=True))) for _ in range(2)]
        assert [stream.head()[0] for stream in streams] == [200, 200]
        with Client(home, first=PROBE) as third:  # nothing of this peer can be closed for it
            assert third.is_closed()
        other = stack.enter_context(Client(home, "127.0.0.2", first=question(stream=True)))
        assert other.head()[0] == 200
        idle = stack.enter_context(Client(home, "127.0.0.2", first=PROBE[:20]))
        for _ in range(100):  # the first of them may come before anything of the idle one was read
            with Client(home, "127.0.0.2", first=PROBE) as client:
                assert client.answer()[0] == 200
            if select.select([idle.socket], [], [], 0.05)[0]:
                break
        assert idle.is_closed()


class Stub:
    """A connection, as the roster sees it."""

    def __init__(self, peer: str, idle_since: float = 0.0, is_busy: bool = False, since: float = 0.0) -> None:
        self.peer, self.idle_since, self.is_busy, self.since = peer, idle_since, is_busy, since
        self.aborted = self.is_slow = self.has_unread = False

    def abort(self) -> None:
        self.aborted = True


def test_the_order_in_which_connections_give_way() -> None:
    roster: Roster[Stub] = Roster()
    new, other, busy = Stub("a"), Stub("b"), Stub("a", is_busy=True)
    old_idle, idle = Stub("a", 1.0), Stub("b", 2.0)
    for each in (new, other, busy, old_idle, idle):
        roster.add(each)
    for each in (busy, old_idle, idle):
        roster.prove(each)
    assert (roster.of("a"), roster.of("b"), len(roster)) == (3, 2, 5)
    order = []
    for peer in ("b", "", "a", "", ""):
        before = [each for each in (new, other, busy, old_idle, idle) if each.aborted]
        found = roster.shed(peer)
        gone = [each for each in (new, other, busy, old_idle, idle) if each.aborted and each not in before]
        order.append(gone[0] if found is Shed.CLOSED else None)
    assert order == [other, new, old_idle, idle, None]
    roster.remove(busy)
    roster.remove(busy)
    assert (roster.of("a"), len(roster)) == (0, 0)


def test_a_connection_has_grace_for_its_first_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has just been accepted is not closed for another, one that sent something is, and so is a silent one."""
    monkeypatch.setattr(roster_module, "_SHORT_GRACE", 0.0)
    roster: Roster[Stub] = Roster()
    new, idle = Stub("a", since=monotonic() + 60.0), Stub("a")
    for each in (new, idle):
        roster.add(each)
    roster.prove(idle)
    assert roster.shed() is Shed.LATER and not new.aborted and not idle.aborted
    heard, silent = Stub("b", since=monotonic() + 60.0), Stub("c", since=monotonic() + 60.0)
    for each in (heard, silent):
        roster.add(each)
    roster.hear(heard)
    assert roster.shed() is Shed.CLOSED and heard.aborted
    roster.hurry(silent)
    assert roster.shed("c") is Shed.CLOSED and silent.aborted
    assert roster.shed() is Shed.LATER and not idle.aborted


# --- requests


def test_s11_one_peer_has_its_share_of_running_requests(tmp_path: Path) -> None:
    with behind(LONG, tmp_path, "openai", server__limits__peer_requests=2) as (home, _), ExitStack() as stack:
        streams = [stack.enter_context(Client(home, first=question(stream=True))) for _ in range(2)]
        assert [stream.head()[0] for stream in streams] == [200, 200]
        with Client(home, first=question()) as third:
            status, headers, body = third.answer()
            assert (status, headers["retry-after"], b"server.limits.peer_requests" in body) == (529, "1", True)
        other = stack.enter_context(Client(home, "127.0.0.2", first=question(stream=True)))
        assert other.head()[0] == 200
        streams[0].__exit__()
        wait_until(lambda: home.running.gateway.load.by_peer == {"127.0.0.1": 1, "127.0.0.2": 1})


def test_the_share_of_a_peer_is_half_and_enough_for_one_client_alone() -> None:
    assert peer_share(0, 2048) == 1024
    assert [peer_share(0, total) for total in (1, 256, 300)] == [1, 256, 256]
    assert peer_share(7, 2048) == 7
    load = MemoryBudget(RequestLimits(streams=2048))
    accounts = [load.enter("a") for _ in range(1024)]
    with pytest.raises(Overloaded, match="peer_requests"):
        load.enter("a")
    accounts.append(load.enter("b"))
    for account in accounts:
        account.leave()
    assert (load.requests, load.by_peer) == (0, {})


def test_an_ipv6_peer_is_its_network() -> None:
    assert limit_key("2001:db8::1") == limit_key("2001:db8::ffff:2") != limit_key("2001:db8:0:1::1")
    assert limit_key("192.0.2.1") == "192.0.2.1"


# --- the clock


def test_s3_bytes_that_came_during_a_slow_turn_are_read_before_deadlines_are_judged() -> None:
    """S3: deadlines were judged at once after a turn of the loop that took longer than they lasted."""

    async def answer(_: Exchange[Account]) -> None: ...

    async def judged(comes: bool) -> bytes:
        carrier, wire = HttpServer(answer), Memory()
        now = 1000.0
        carrier.clock = lambda: now
        client = Connection(carrier)
        client.connection_made(wire)
        client.data_received(PROBE[:20])
        now += HEAD_SECONDS + 5  # the loop stood still
        carrier.sweep(now)
        assert wire.written == b""
        if comes:
            client.data_received(PROBE[20:])
        carrier.sweep(now + 0.25)
        return wire.written

    assert asyncio.run(judged(comes=True)) == b""
    assert b" 408 " in asyncio.run(judged(comes=False))
