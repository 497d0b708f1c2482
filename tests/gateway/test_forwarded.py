"""S15: whose address is in the log and in limits, and whose word about it counts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dragoman.gateway.access_log import Record
from dragoman.gateway.admission import TrustedProxies
from dragoman.gateway.config import ConfigError
from dragoman.http.addresses import plain_address
from dragoman.http.server.proxy_protocol import NotProxied, Preface, parse
from dragoman.simulator import Simulator
from tests.gateway.front import Client, question
from tests.gateway.house import House, configured, house, upstream

PROXY, STRANGER = "127.0.0.9", "127.0.0.8"
V1 = b"PROXY TCP4 192.0.2.7 127.0.0.1 5000 80\r\n"
V2 = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + socket.inet_aton("192.0.2.8") + bytes(8)
V2_IPV6 = b"\r\n\r\n\x00\r\nQUIT\n\x21\x21\x00\x28" + socket.inet_pton(socket.AF_INET6, "2001:db8::8") + bytes(24)
V2_LOCAL = b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x03abc"


def client_of(home: House, source: str, *lines: str, first: bytes = b"") -> str:
    """The client's address in the log line of a request that was answered."""
    before = len(home.lines(0))
    with Client(home, source, first=first + question("hello", *lines)) as client:
        assert client.answer()[0] == 200
    return str(home.lines(before + 1)[-1]["client"])


def test_s15_the_log_has_the_clients_address(simulator: Simulator, tmp_path: Path) -> None:
    """S15: it had none. Nobody is believed about it unless a setting says so."""
    with house(upstream("one", "anthropic", simulator.url), tmp_path) as home:
        for source in ("127.0.0.1", STRANGER):
            assert client_of(home, source) == source
            assert client_of(home, source, "x-forwarded-for: 192.0.2.1") == source
        with Client(home, STRANGER, first=question(key="wrong")) as client:
            assert client.answer()[0] == 401
        assert home.lines(5)[-1]["client"] == STRANGER
        with Client(home, first=V1 + question()) as client:
            assert client.answer()[0] == 400


def test_s15_x_forwarded_for_counts_from_trusted_peers_only(simulator: Simulator, tmp_path: Path) -> None:
    flags = {"server__trusted_proxies": ["127.0.0.9", "10.0.0.0/8"]}
    with house(upstream("one", "anthropic", simulator.url), tmp_path, **flags) as home:  # type: ignore[arg-type]
        said = "x-forwarded-for: 198.51.100.1, 192.0.2.1, 10.1.2.3"
        assert client_of(home, PROXY, said) == "192.0.2.1"
        assert client_of(home, STRANGER, said) == STRANGER
        assert client_of(home, PROXY) == PROXY
        assert client_of(home, PROXY, "x-forwarded-for: 1.1.1.1", "x-forwarded-for: 192.0.2.2") == "192.0.2.2"
    for record in simulator.requests:
        assert not [name for name in record.headers if "forwarded" in name]


@pytest.mark.parametrize(
    ("said", "client"),
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
def test_the_rightmost_hop_that_is_not_trusted_is_the_client(said: str, client: str) -> None:
    proxies = TrustedProxies(["10.0.0.0/8"])
    assert proxies.client_of("10.0.0.1", (("x-forwarded-for", said),)) == client
    assert proxies.client_of("192.0.2.99", (("x-forwarded-for", said),)) == "192.0.2.99"


def test_s15_the_proxy_protocol_is_read_from_trusted_peers_only(
    simulator: Simulator, tmp_path: Path, loop: str
) -> None:
    flags = {"server__trusted_proxies": [PROXY], "server__proxy_protocol": True}
    with house(upstream("one", "anthropic", simulator.url), tmp_path, **flags) as home:  # type: ignore[arg-type]
        assert client_of(home, PROXY, first=V1) == "192.0.2.7"
        assert client_of(home, PROXY, first=V2) == "192.0.2.8"
        assert client_of(home, PROXY, first=V2_IPV6) == "2001:db8::8"
        assert client_of(home, PROXY, first=V2_LOCAL) == PROXY
        assert client_of(home, PROXY, "x-forwarded-for: 203.0.113.1", first=V1) == "192.0.2.7"
        assert client_of(home, STRANGER) == STRANGER
        for source, first in ((PROXY, b""), (STRANGER, V1), (STRANGER, V2)):
            with Client(home, source, first=first + question()) as client:
                assert client.answer()[0] == 400
        before = len(home.lines())
        with Client(home, PROXY) as slow:  # in pieces, and a second request on the same connection
            for byte in V1:
                slow.send(bytes((byte,)))
            for _ in range(2):
                slow.send(question())
                assert slow.answer()[0] == 200
        assert [line["client"] for line in home.lines(before + 2)[-2:]] == ["192.0.2.7"] * 2


def test_a_header_of_the_proxy_protocol_is_read_in_any_cut_and_nothing_else_is() -> None:
    for header, client in ((V1, "192.0.2.7"), (V2, "192.0.2.8"), (V2_IPV6, "2001:db8::8"), (V2_LOCAL, "")):
        for cut in range(len(header)):
            assert parse(header[:cut]) is None
        assert parse(header + b"GET /") == Preface(client, len(header))
    assert parse(b"PROXY UNKNOWN\r\n") == Preface("", 15)
    for bad in (
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 nonsense 1 2 3\r\n",
        b"PROXY TCP4 192.0.2.7\r\n",
        b"PROXY " + b"x" * 200,
        V2[:12] + b"\x31" + V2[13:],
        V2[:14] + b"\x00\x04" + V2[16:20],
    ):
        with pytest.raises(NotProxied):
            parse(bad)


def test_settings_that_cannot_hold_are_refused_at_their_place() -> None:
    with pytest.raises(ConfigError, match=r"trusted_proxies.*no address"):
        configured('[server]\ntrusted_proxies = ["proxy.example"]')
    with pytest.raises(ConfigError, match="needs proxies that are trusted"):
        configured("[server]\nproxy_protocol = true")


def test_the_text_line_names_a_client_beyond_loopback() -> None:
    assert "from 192.0.2.1" in Record("id", "POST", "/", client="192.0.2.1").line()
    assert "from" not in Record("id", "POST", "/", client="127.0.0.1").line()
    assert plain_address("fe80::1%eth0") == "fe80::1" and plain_address("name") == ""
