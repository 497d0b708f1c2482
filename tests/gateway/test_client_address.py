"""The client address in logs and limits, trusted proxies, and limits of connections per address."""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from dragoman.gateway import serve
from dragoman.gateway.access_log import logged_request
from dragoman.gateway.admin import MAX_CONNECTIONS, admin_listener
from dragoman.gateway.admission import TrustedProxies
from dragoman.gateway.app import Gateway
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.limits import MemoryAccount, MemoryBudget, Overloaded, RequestLimits, peer_share
from dragoman.gateway.records import Record, request_text
from dragoman.http import framing
from dragoman.http.addresses import limit_key, normalize_address
from dragoman.http.exchange import Exchange
from dragoman.http.framing import HEAD_SECONDS
from dragoman.http.server import connection
from dragoman.http.server import serving as roster_module
from dragoman.http.server.connection import ServerConnection
from dragoman.http.server.proxy_protocol import BadProxyHeader, ProxyHeader, parse_proxy_header
from dragoman.http.server.serving import ConnectionRegistry, HttpServer, ShedResult
from dragoman.simulator import Simulator
from tests.gateway.harness import (
    KEY,
    TIMEOUT,
    GatewayHarness,
    gateway_with_simulator,
    parse_config,
    start_gateway,
    upstream_config,
    wait_until,
)
from tests.gateway.socket_client import MemoryTransport, SocketClient, gateway_servers, head, request_bytes

PROXY, STRANGER = "127.0.0.9", "127.0.0.8"
V1 = b"PROXY TCP4 192.0.2.7 127.0.0.1 5000 80\r\n"
V2 = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + socket.inet_aton("192.0.2.8") + bytes(8)
V2_IPV6 = b"\r\n\r\n\x00\r\nQUIT\n\x21\x21\x00\x28" + socket.inet_pton(socket.AF_INET6, "2001:db8::8") + bytes(24)
V2_LOCAL = b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x03abc"


def client_of(harness: GatewayHarness, source: str, *lines: str, first: bytes = b"") -> str:
    """Return the client address in the log line of an answered request."""
    before = len(harness.log_lines(0))
    with SocketClient(harness, source, first=first + request_bytes("hello", *lines)) as client:
        assert client.read_response()[0] == 200
    return str(harness.log_lines(before + 1)[-1]["client"])


def test_the_log_contains_the_client_address(simulator: Simulator, tmp_path: Path) -> None:
    """Regression: the log had no address. Forwarding headers count only from proxies that a setting trusts."""
    with start_gateway(upstream_config("one", "anthropic", simulator.url), tmp_path) as harness:
        for source in ("127.0.0.1", STRANGER):
            assert client_of(harness, source) == source
            assert client_of(harness, source, "x-forwarded-for: 192.0.2.1") == source
        with SocketClient(harness, STRANGER, first=request_bytes(key="wrong")) as client:
            assert client.read_response()[0] == 401
        assert harness.log_lines(5)[-1]["client"] == STRANGER
        with SocketClient(harness, first=V1 + request_bytes()) as client:
            assert client.read_response()[0] == 400


def test_x_forwarded_for_counts_from_trusted_peers_only(simulator: Simulator, tmp_path: Path) -> None:
    flags = {"server__trusted_proxies": ["127.0.0.9", "10.0.0.0/8"]}
    with start_gateway(upstream_config("one", "anthropic", simulator.url), tmp_path, **flags) as harness:  # type: ignore[arg-type]
        forwarded = "x-forwarded-for: 198.51.100.1, 192.0.2.1, 10.1.2.3"
        assert client_of(harness, PROXY, forwarded) == "192.0.2.1"
        assert client_of(harness, STRANGER, forwarded) == STRANGER
        assert client_of(harness, PROXY) == PROXY
        assert client_of(harness, PROXY, "x-forwarded-for: 1.1.1.1", "x-forwarded-for: 192.0.2.2") == "192.0.2.2"
    for record in simulator.requests:
        assert not [name for name in record.headers if "forwarded" in name]


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:5000", "192.0.2.1"),
        ("[2001:db8::1]:5000", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("10.0.0.2, 10.0.0.3", "10.0.0.2"),
        ("192.0.2.1, unknown, 10.0.0.3", "10.0.0.3"),
        ("<script>", "10.0.0.1"),
        ("", "10.0.0.1"),
        (", ,", "10.0.0.1"),
        (",".join(["10.0.0.2"] * 5000), "10.0.0.2"),
    ],
)
def test_the_rightmost_untrusted_hop_is_the_client(forwarded: str, client: str) -> None:
    proxies = TrustedProxies(["10.0.0.0/8"])
    assert proxies.client_of("10.0.0.1", (("x-forwarded-for", forwarded),)) == client
    assert proxies.client_of("192.0.2.99", (("x-forwarded-for", forwarded),)) == "192.0.2.99"


def test_the_proxy_protocol_is_read_from_trusted_peers_only(simulator: Simulator, tmp_path: Path, loop: str) -> None:
    flags = {"server__trusted_proxies": [PROXY], "server__proxy_protocol": True}
    with start_gateway(upstream_config("one", "anthropic", simulator.url), tmp_path, **flags) as harness:  # type: ignore[arg-type]
        assert client_of(harness, PROXY, first=V1) == "192.0.2.7"
        assert client_of(harness, PROXY, first=V2) == "192.0.2.8"
        assert client_of(harness, PROXY, first=V2_IPV6) == "2001:db8::8"
        assert client_of(harness, PROXY, first=V2_LOCAL) == PROXY
        assert client_of(harness, PROXY, "x-forwarded-for: 203.0.113.1", first=V1) == "192.0.2.7"
        assert client_of(harness, STRANGER) == STRANGER
        for source, first in ((PROXY, b""), (STRANGER, V1), (STRANGER, V2)):
            with SocketClient(harness, source, first=first + request_bytes()) as client:
                assert client.read_response()[0] == 400
        before = len(harness.log_lines())
        with SocketClient(harness, PROXY) as slow:  # sent in pieces, with a second request on the same connection
            for byte in V1:
                slow.send(bytes((byte,)))
            for _ in range(2):
                slow.send(request_bytes())
                assert slow.read_response()[0] == 200
        assert [line["client"] for line in harness.log_lines(before + 2)[-2:]] == ["192.0.2.7"] * 2


def test_a_proxy_protocol_header_is_parsed_at_every_split_and_other_bytes_are_refused() -> None:
    for header, client in ((V1, "192.0.2.7"), (V2, "192.0.2.8"), (V2_IPV6, "2001:db8::8"), (V2_LOCAL, "")):
        for cut in range(len(header)):
            assert parse_proxy_header(header[:cut]) is None
        assert parse_proxy_header(header + b"GET /") == ProxyHeader(client, len(header))
    assert parse_proxy_header(b"PROXY UNKNOWN\r\n") == ProxyHeader("", 15)
    for bad in (
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 nonsense 1 2 3\r\n",
        b"PROXY TCP4 192.0.2.7\r\n",
        b"PROXY " + b"x" * 200,
        V2[:12] + b"\x31" + V2[13:],
        V2[:14] + b"\x00\x04" + V2[16:20],
    ):
        with pytest.raises(BadProxyHeader):
            parse_proxy_header(bad)


def test_invalid_settings_are_refused_with_their_place() -> None:
    with pytest.raises(ConfigError, match=r"trusted_proxies.*not an address"):
        parse_config('[server]\ntrusted_proxies = ["proxy.example"]')
    with pytest.raises(ConfigError, match="needs trusted proxies"):
        parse_config("[server]\nproxy_protocol = true")


def test_the_text_log_line_names_a_client_beyond_loopback() -> None:
    assert "from 192.0.2.1" in request_text(logged_request(Record("id", "POST", "/", client="192.0.2.1"), ""))
    assert "from" not in request_text(logged_request(Record("id", "POST", "/", client="127.0.0.1"), ""))
    assert normalize_address("fe80::1%eth0") == "fe80::1" and normalize_address("name") == ""


# --- connections with the PROXY protocol are counted, timed and limited like others

FRONT = "127.0.0.9"
FLAGS: dict[str, Any] = {"server__trusted_proxies": [FRONT], "server__proxy_protocol": True}


def request_via_proxy(client: str) -> bytes:
    return f"PROXY TCP4 {client} 127.0.0.1 5000 80\r\n".encode()


def open_registries() -> list[ConnectionRegistry]:
    return [server.connections for server in gateway_servers() if server.connections]


def test_connections_without_a_proxy_header_are_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Regression: they were not counted, so they used up the file descriptors of other connections."""
    monkeypatch.setattr(serve, "_max_connections", lambda: 4)
    with (
        gateway_with_simulator("", tmp_path, **FLAGS) as (harness, _),
        ExitStack() as stack,
    ):
        admitted = stack.enter_context(SocketClient(harness, first=request_bytes()))
        assert admitted.read_response()[0] == 200
        shapes = (
            b"PROXY",
            b"\r\n\r\n\x00",
            request_via_proxy("192.0.2.1"),
            request_via_proxy("192.0.2.1") + b"GET / HT",
        )
        idle = [stack.enter_context(SocketClient(harness, FRONT, first=shape)) for shape in shapes * 5]
        for _ in range(3):
            with SocketClient(harness, FRONT, first=request_via_proxy("192.0.2.2") + request_bytes()) as client:
                assert client.read_response()[0] == 200
        [connections] = open_registries()
        assert len(connections) <= 4
        assert idle[0].is_closed()
        admitted.send(request_bytes())
        assert admitted.read_response()[0] == 200


def test_a_client_behind_a_proxy_has_the_limit_of_one_client(tmp_path: Path) -> None:
    """Regression: one client could take all connections, because they were not counted by client address."""
    with (
        gateway_with_simulator("", tmp_path, server__limits__peer_connections=2, **FLAGS) as (harness, _),
        ExitStack() as stack,
    ):
        clients = []
        for _ in range(4):
            clients.append(
                stack.enter_context(
                    SocketClient(harness, FRONT, first=request_via_proxy("192.0.2.1") + request_bytes())
                )
            )
            assert clients[-1].read_response()[0] == 200
        assert clients[0].is_closed() and clients[1].is_closed()
        with SocketClient(harness, FRONT, first=request_via_proxy("192.0.2.2") + request_bytes()) as other:
            assert other.read_response()[0] == 200
        clients[3].send(request_bytes())
        assert clients[3].read_response()[0] == 200


def test_proxies_and_the_limit_of_one_client_are_reloaded(tmp_path: Path) -> None:
    """Regression: both needed a restart."""
    through = request_via_proxy("192.0.2.1") + request_bytes()
    with gateway_with_simulator("", tmp_path) as (harness, simulator), ExitStack() as stack:
        with SocketClient(harness, FRONT, first=through) as client:
            assert client.read_response()[0] == 400
        text = upstream_config("one", "anthropic", simulator.url)
        config = parse_config(text, server__limits__peer_connections=2, **FLAGS)
        loop = harness.running.loop
        assert loop is not None
        asyncio.run_coroutine_threadsafe(harness.running.gateway.reload(config), loop).result(TIMEOUT)
        clients = []
        for _ in range(3):
            clients.append(stack.enter_context(SocketClient(harness, FRONT, first=through)))
            assert clients[-1].read_response()[0] == 200
        wait_until(clients[0].is_closed)


def test_a_missing_proxy_header_times_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in (framing, connection):
        monkeypatch.setattr(module, "HEAD_SECONDS", 0.1)
    with start_gateway("", tmp_path, **FLAGS) as harness, SocketClient(harness, FRONT, first=b"PROXY TCP4 ") as client:
        assert client.file.read() == b""
        wait_until(lambda: not open_registries())


def test_a_trusted_ipv6_proxy_is_exempt_from_the_limit_of_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: its /64 network was not found among the proxies, so the limit of one client applied."""
    monkeypatch.setattr(serve, "_max_connections", lambda: 1000)
    found: list[Any] = []
    monkeypatch.setattr(serve, "Acceptor", lambda *_, max_of_peer, **__: found.append(max_of_peer))
    server = serve.GatewayServer.__new__(serve.GatewayServer)
    server.gateway = Gateway(parse_config("", server__trusted_proxies=["2001:db8::/32"]), key=KEY)
    server.listening = None  # type: ignore[assignment]
    server._acceptor(None)  # type: ignore[arg-type]
    assert (found[0]("2001:db8::1"), found[0]("2001:db9::1")) == (1000, 500)


def test_silent_admin_connections_are_limited() -> None:
    """Each connection holds a file descriptor for 5 s, with or without a key."""

    async def run() -> None:
        server = admin_listener(None, is_private=False)  # type: ignore[arg-type]
        port = await server.listen("127.0.0.1", 0)
        open_now = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert not any(first.at_eof() for first, _ in open_now)  # the last one was refused at once, and none timed out
        for _, each in (*open_now, (reader, writer)):
            each.close()
        await server.close()

    asyncio.run(run())


# --- limits by peer address, and the order in which connections are closed at the limit

PROBE = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
LONG = 'then = "last"\n[[turn]]\nparts = [{ text = "Begin." }, { wait = 30.0 }]'


# --- connections


def test_connections_without_a_valid_key_are_closed_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Regression: idle sockets could fill the limit and block all other clients."""
    monkeypatch.setattr(serve, "_max_connections", lambda: 4)
    with (
        gateway_with_simulator('then = "last"\n[[turn]]\ntext = "Yes."', tmp_path, "openai") as (harness, _),
        ExitStack() as stack,
    ):
        admitted = stack.enter_context(SocketClient(harness, first=request_bytes()))
        assert admitted.read_response()[0] == 200
        shapes = (b"", PROBE[:20], head(1000, key="wrong"), head(10, "authorization: AWS4-HMAC-SHA256 x", key=""))
        idle = [stack.enter_context(SocketClient(harness, first=shape)) for shape in shapes * 5]
        for _ in range(3):
            with SocketClient(harness, first=request_bytes()) as client:
                assert client.read_response()[0] == 200
        assert idle[1].is_closed()
        admitted.send(request_bytes())  # a connection with a valid request is not closed in favour of one without
        assert admitted.read_response()[0] == 200


def test_connections_with_running_requests_are_never_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serve, "_max_connections", lambda: 3)
    with gateway_with_simulator(LONG, tmp_path, "openai") as (harness, simulator), ExitStack() as stack:
        streams = [stack.enter_context(SocketClient(harness, first=request_bytes(stream=True))) for _ in range(3)]
        for stream in streams:
            assert stream.head()[0] == 200
        waiting = stack.enter_context(SocketClient(harness, first=request_bytes(stream=True)))  # in the backlog
        wait_until(lambda: harness.running.gateway.in_flight == 3)
        streams[0].__exit__()
        assert waiting.head()[0] == 200
        wait_until(lambda: simulator.total == 4)
        assert harness.running.gateway.in_flight == 3


def test_the_oldest_idle_connection_is_closed_when_all_had_a_valid_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(serve, "_max_connections", lambda: 3)
    with (
        gateway_with_simulator('then = "last"\n[[turn]]\ntext = "Yes."', tmp_path, "openai") as (harness, _),
        ExitStack() as stack,
    ):
        for _ in range(8):
            client = stack.enter_context(SocketClient(harness, first=request_bytes()))
            assert client.read_response()[0] == 200


def test_one_peer_has_a_limit_of_connections(tmp_path: Path) -> None:
    """Regression: there was no limit by peer address."""
    flags: dict[str, Any] = {"server__limits__peer_connections": 2}
    with gateway_with_simulator(LONG, tmp_path, "openai", **flags) as (harness, _), ExitStack() as stack:
        streams = [stack.enter_context(SocketClient(harness, first=request_bytes(stream=True))) for _ in range(2)]
        assert [stream.head()[0] for stream in streams] == [200, 200]
        with SocketClient(harness, first=PROBE) as third:  # no connection of this peer may be closed for it
            assert third.is_closed()
        other = stack.enter_context(SocketClient(harness, "127.0.0.2", first=request_bytes(stream=True)))
        assert other.head()[0] == 200
        idle = stack.enter_context(SocketClient(harness, "127.0.0.2", first=PROBE[:20]))
        for _ in range(100):  # the first may arrive before the idle connection was read
            with SocketClient(harness, "127.0.0.2", first=PROBE) as client:
                assert client.read_response()[0] == 200
            if select.select([idle.socket], [], [], 0.05)[0]:
                break
        assert idle.is_closed()


class Stub:
    """A connection as the registry sees it."""

    def __init__(self, peer: str, idle_since: float = 0.0, is_busy: bool = False, since: float = 0.0) -> None:
        self.peer, self.idle_since, self.is_busy, self.since = peer, idle_since, is_busy, since
        self.aborted = self.is_slow = self.has_unread = False

    def abort(self) -> None:
        self.aborted = True


def test_the_order_in_which_connections_are_closed() -> None:
    connections: Any = ConnectionRegistry()
    new, other, busy = Stub("a"), Stub("b"), Stub("a", is_busy=True)
    old_idle, idle = Stub("a", 1.0), Stub("b", 2.0)
    for each in (new, other, busy, old_idle, idle):
        connections.add(each)
    for each in (busy, old_idle, idle):
        connections.mark_received(each, is_admitted=True)
    assert (connections.count_of_peer("a"), connections.count_of_peer("b"), len(connections)) == (3, 2, 5)
    order = []
    for peer in ("b", "", "a", "", ""):
        before = [each for each in (new, other, busy, old_idle, idle) if each.aborted]
        found = connections.shed(peer)
        gone = [each for each in (new, other, busy, old_idle, idle) if each.aborted and each not in before]
        order.append(gone[0] if found is ShedResult.CLOSED else None)
    assert order == [other, new, old_idle, idle, None]
    connections.remove(busy)
    connections.remove(busy)
    assert (connections.count_of_peer("a"), len(connections)) == (0, 0)


def test_a_connection_has_a_grace_period_for_its_first_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection is not closed for another one; one that sent bytes, or stayed silent too long, is."""
    monkeypatch.setattr(roster_module, "_SHORT_GRACE", 0.0)
    connections: Any = ConnectionRegistry()
    new, idle = Stub("a", since=monotonic() + 60.0), Stub("a")
    for each in (new, idle):
        connections.add(each)
    connections.mark_received(idle, is_admitted=True)
    assert connections.shed() is ShedResult.LATER and not new.aborted and not idle.aborted
    busy, silent = Stub("b", since=monotonic() + 60.0), Stub("c", since=monotonic() + 60.0)
    for each in (busy, silent):
        connections.add(each)
    connections.mark_received(busy)
    assert connections.shed() is ShedResult.CLOSED and busy.aborted
    connections.shorten_grace(silent)
    assert connections.shed("c") is ShedResult.CLOSED and silent.aborted
    assert connections.shed() is ShedResult.LATER and not idle.aborted


# --- requests


def test_one_peer_has_a_limit_of_running_requests(tmp_path: Path) -> None:
    with (
        gateway_with_simulator(LONG, tmp_path, "openai", server__limits__peer_requests=2) as (harness, _),
        ExitStack() as stack,
    ):
        streams = [stack.enter_context(SocketClient(harness, first=request_bytes(stream=True))) for _ in range(2)]
        assert [stream.head()[0] for stream in streams] == [200, 200]
        with SocketClient(harness, first=request_bytes()) as third:
            status, headers, body = third.read_response()
            assert (status, headers["retry-after"], b"server.limits.peer_requests" in body) == (529, "1", True)
        other = stack.enter_context(SocketClient(harness, "127.0.0.2", first=request_bytes(stream=True)))
        assert other.head()[0] == 200
        streams[0].__exit__()
        wait_until(lambda: harness.running.gateway.memory_budget.by_peer == {"127.0.0.1": 1, "127.0.0.2": 1})


def test_the_limit_of_a_peer_is_half_and_enough_for_one_client() -> None:
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


def test_an_ipv6_peer_is_counted_by_its_network() -> None:
    assert limit_key("2001:db8::1") == limit_key("2001:db8::ffff:2") != limit_key("2001:db8:0:1::1")
    assert limit_key("192.0.2.1") == "192.0.2.1"


# --- the clock


def test_bytes_received_during_a_slow_turn_are_read_before_deadlines_are_checked() -> None:
    """Regression: a slow loop iteration made deadlines expire before received bytes were read."""

    async def respond(_: Exchange[MemoryAccount]) -> None: ...

    async def response_after_slow_turn(comes: bool) -> bytes:
        carrier, wire = HttpServer(respond), MemoryTransport()
        now = 1000.0
        carrier.clock = lambda: now
        client = ServerConnection(carrier)
        carrier.connections.add(client)
        client.connection_made(wire)
        client.data_received(PROBE[:20])
        now += HEAD_SECONDS + 5  # the event loop was blocked
        carrier.sweep(now)
        assert wire.written == b""
        if comes:
            client.data_received(PROBE[20:])
        carrier.sweep(now + 0.25)
        return wire.written

    assert asyncio.run(response_after_slow_turn(comes=True)) == b""
    assert b" 408 " in asyncio.run(response_after_slow_turn(comes=False))
