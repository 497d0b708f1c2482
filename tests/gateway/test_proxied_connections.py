"""Connections of proxies that speak the PROXY protocol are counted, timed and limited like others."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway import running
from dragoman.gateway.admin import _MOST, listener
from dragoman.http.server import connection, limits, reading
from dragoman.http.server.roster import Roster
from tests.gateway.front import Client, gateway_servers, question
from tests.gateway.house import behind, configured, house, wait_until

FRONT = "127.0.0.9"
FLAGS: dict[str, Any] = {"server__trusted_proxies": [FRONT], "server__proxy_protocol": True}


def named(client: str) -> bytes:
    return f"PROXY TCP4 {client} 127.0.0.1 5000 80\r\n".encode()


def rosters() -> list[Roster[Any]]:
    return [server.roster for server in gateway_servers() if server.roster]


def test_s11_connections_that_send_no_header_take_no_more_room_than_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """S11: they were not counted, so they took file descriptors until other connections were closed for them."""
    monkeypatch.setattr(running, "_room", lambda: 4)
    with (
        behind("", tmp_path, **FLAGS) as (home, _),
        ExitStack() as stack,
    ):
        kept = stack.enter_context(Client(home, first=question()))
        assert kept.answer()[0] == 200
        shapes = (b"PROXY", b"\r\n\r\n\x00", named("192.0.2.1"), named("192.0.2.1") + b"GET / HT")
        idle = [stack.enter_context(Client(home, FRONT, first=shape)) for shape in shapes * 5]
        for _ in range(3):
            with Client(home, FRONT, first=named("192.0.2.2") + question()) as client:
                assert client.answer()[0] == 200
        [roster] = rosters()
        assert len(roster) <= 4
        assert idle[0].is_closed()
        kept.send(question())
        assert kept.answer()[0] == 200


def test_s11_a_client_behind_a_proxy_has_the_limit_of_a_client(tmp_path: Path) -> None:
    """S11: one client could have all connections, since they were not counted by peer."""
    with (
        behind("", tmp_path, server__limits__peer_connections=2, **FLAGS) as (home, _),
        ExitStack() as stack,
    ):
        clients = []
        for _ in range(4):
            clients.append(stack.enter_context(Client(home, FRONT, first=named("192.0.2.1") + question())))
            assert clients[-1].answer()[0] == 200
        assert clients[0].is_closed() and clients[1].is_closed()
        with Client(home, FRONT, first=named("192.0.2.2") + question()) as other:
            assert other.answer()[0] == 200
        clients[3].send(question())
        assert clients[3].answer()[0] == 200


def test_a_header_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in (limits, reading, connection):
        monkeypatch.setattr(module, "HEAD_SECONDS", 0.1)
    with house("", tmp_path, **FLAGS) as home, Client(home, FRONT, first=b"PROXY TCP4 ") as client:
        assert client.file.read() == b""
        wait_until(lambda: not rosters())


def test_s11_a_trusted_ipv6_proxy_has_the_connections_of_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """S11: its /64 was looked for among the proxies, so it had the limit of one client."""
    monkeypatch.setattr(running, "_room", lambda: 1000)
    found: list[Any] = []
    monkeypatch.setattr(running, "Acceptor", lambda *_, most_of_peer, **__: found.append(most_of_peer))
    server = running.Server.__new__(running.Server)
    server._settings = configured("", server__trusted_proxies=["2001:db8::/32"]).server
    server._acceptor(None, None)  # type: ignore[arg-type]
    assert (found[0]("2001:db8::1"), found[0]("2001:db9::1")) == (1000, 500)


def test_s8_admin_connections_that_say_nothing_are_limited() -> None:
    """S8: each takes a file descriptor from the clients for 5 s, key or not."""

    async def run() -> None:
        server = listener(None, ours=False)  # type: ignore[arg-type]
        port = await server.listen("127.0.0.1", 0)
        open_now = [await asyncio.open_connection("127.0.0.1", port) for _ in range(_MOST)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert not any(first.at_eof() for first, _ in open_now)  # it was refused at once, and none timed out
        for _, each in (*open_now, (reader, writer)):
            each.close()
        await server.close()

    asyncio.run(run())
