"""Which connection gives way, and that finding it takes the same work however many there are."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic

import pytest

from bench.instructions import instructions
from dragoman.errors import Fault
from dragoman.gateway.admission import Pool
from dragoman.http.server import serving as roster_module
from dragoman.http.server.connection import Connection
from dragoman.http.server.serving import Acceptor, HttpServer, Roster, Shed


class One:
    def __init__(self, peer: str, *, busy: bool = False) -> None:
        self.peer, self.is_busy = peer, busy
        self.since, self.idle_since = 0.0, 1.0
        self.closed = self.is_slow = self.has_unread = False

    def abort(self) -> None:
        self.closed = True


def filled(*peers: str) -> tuple[Roster[One], list[One]]:
    roster: Roster[One] = Roster()
    members = [One(peer) for peer in peers]
    for member in members:
        roster.add(member)
        roster.hear(member)
    return roster, members


@pytest.mark.parametrize("peer", ["", "late"])
def test_s11_to_shed_one_of_many_takes_no_more_steps_than_one_of_few(peer: str) -> None:
    """S11: for a peer with too many connections, those of all others were looked at, for each new one."""

    def work(others: int) -> int:
        roster, _ = filled(*(["early"] * others), *(["late"] * 100))
        return instructions(lambda: roster.shed(peer))

    assert work(5000) <= work(10) + 5


def test_a_roster_counts_a_renamed_connection_for_the_client_and_keeps_what_it_has_done() -> None:
    roster, (first, second) = filled("proxy", "proxy")
    silent = One("proxy")
    roster.add(silent)
    for member in (first, second, silent):
        roster.rename(member, "client")
    assert (roster.of("proxy"), roster.of("client"), roster.unproven) == (0, 3, 2)
    assert roster.shed("client") is Shed.CLOSED and first.closed
    roster.prove(second)
    assert roster.shed("client") is Shed.CLOSED and silent.closed and not second.closed
    roster.remove(second)
    roster.remove(second)
    roster.rename(second, "other")
    assert len(roster) == 0 and roster._by_peer == {} and roster.unproven == 0


def test_s11_one_turn_does_not_shed_a_connection_whose_request_was_just_read() -> None:
    """S11: a flood of 64 connections in one turn closed all that had sent something, a client with a key among them."""

    async def run() -> None:
        async def answer(_: object) -> None: ...

        carrier = HttpServer(answer)
        with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as stack:
            listening.setblocking(False)
            acceptor = Acceptor(listening, carrier, most=8, most_of_peer=lambda _: 8, exhausted=lambda _: None)
            members = [Connection(carrier, f"192.0.2.{number}") for number in range(8)]
            for member in members:
                carrier.roster.hear(member)
            for _ in range(32):
                stack.enter_context(socket.create_connection(listening.getsockname()))
            acceptor._accept()
            shed = [member for member in members if member._aborted]
            assert shed == members[: len(shed)] and 0 < len(shed) <= 4
            carrier.abort()
            acceptor.close()

    asyncio.run(run())


def test_s1_a_large_body_does_not_give_way_to_many_small_requests() -> None:
    """S1: when requests were too many, the one with most bytes had to go, whoever had sent the others."""
    refused: list[str] = []

    def told(name: str) -> Callable[[Fault], None]:
        return lambda _: refused.append(name)

    pool = Pool(4, 1000)
    pool.enter("first", told("first")).reserve(1)
    pool.enter("boto3", told("boto3")).reserve(900)
    for number in range(4):
        pool.enter(f"bot {number}", told(f"bot {number}")).reserve(1)
    assert refused == ["first", "boto3"]  # the oldest, since all have one
    pool.enter("bot 3", told("again"))
    assert refused[2:] == ["bot 3"]  # now it has two


def test_in_a_full_pool_the_oldest_of_equals_gives_way_not_the_newcomer() -> None:
    refused: list[int] = []
    pool = Pool(3, 1000)
    for number in range(6):
        pool.enter(f"peer {number}", lambda _, number=number: refused.append(number))  # type: ignore[misc]
    assert refused == [0, 1, 2]


def test_grace_counts_from_when_a_connection_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "_SHORT_GRACE", 0.0)
    roster: Roster[One] = Roster()
    fresh = One("peer")
    fresh.since = monotonic()
    roster.add(fresh)
    assert roster.shed() is Shed.LATER and roster.shed("peer") is Shed.LATER
    roster.hurry(fresh)
    assert roster.shed("peer") is Shed.CLOSED and fresh.closed
    assert roster.shed("peer") is Shed.NOTHING


def test_slow_bodies_give_way_when_all_connections_have_requests_and_others_do_not() -> None:
    roster, members = filled("a", "a", "b")
    for member in members:
        member.is_busy = True
        roster.prove(member)
    assert roster.shed() is Shed.NOTHING
    members[1].is_slow = True
    assert roster.shed("b") is Shed.NOTHING
    assert roster.shed() is Shed.CLOSED
    assert [member.closed for member in members] == [False, True, False]
    assert roster.shed() is Shed.NOTHING


def test_a_connection_whose_bytes_wait_to_be_read_is_not_closed_as_silent() -> None:
    """A flood of connections makes the system hand over new ones before their bytes have come, or have been read."""
    roster: Roster[One] = Roster()
    first, second = One("a"), One("a")
    for member in (first, second):
        roster.add(member)
    roster.hurry(second)
    assert roster.shed() is Shed.CLOSED and first.closed  # its grace was over
    assert roster.shed() is Shed.LATER and not second.closed
    second.since, second.has_unread = 0.0, True
    assert roster.shed() is Shed.LATER and not second.closed
    second.has_unread = False
    assert roster.shed() is Shed.CLOSED and second.closed
