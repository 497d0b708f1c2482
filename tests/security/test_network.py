"""Points 1 to 8 of SECURITY.md: listening addresses, hosts, origins, upgrades, redirects and forwarding headers."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from dragoman.gateway import admin
from dragoman.gateway.admission import HeadCheck
from dragoman.gateway.config import build_config
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.serve import listen
from dragoman.wire.http import HttpRequest
from tests.gateway.harness import KEY, GatewayHarness, anthropic_body, parse_config
from tests.gateway.socket_client import serve_bytes
from tests.security.admin_stub import AdminStub
from tests.security.echo_upstream import EchoUpstream
from tests.security.routes import ADMIN, DATA

EVIL = ["evil.test", "127.0.0.1.evil.test", "localhost.evil.test", "10.0.0.1", "169.254.169.254", "0.0.0.0", "metadata"]
# Heads that made a server check another path than it served.
BAD_HOSTS = [
    "x/v1?#",
    "localhost/v1/models?",
    "localhost#",
    "localhost@evil.test",
    "evil.test@localhost",
    "a b",
    "",
    "localhost:1:2",
    "[::1",
    "localhost,evil.test",
    "localhost:x",
]


def raw(harness: GatewayHarness, head: bytes) -> tuple[int, bytes]:
    host, _, port = harness.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        sock.sendall(head)
        response = b""
        while b"\r\n\r\n" not in response and (piece := sock.recv(65536)):
            response += piece
    return int(response.split(b" ", 2)[1]), response.lower()


def test_point_1_the_default_is_loopback_only() -> None:
    server = build_config("", None, {"HOME": "/nowhere"}, {}).config.server
    assert (server.host, server.insecure_http, server.admin_port) == ("127.0.0.1", False, None)
    with listen("127.0.0.1", 0) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"


def test_point_1_ipv6_loopback_only_if_asked() -> None:
    assert parse_config("", server__host="::1").server.host == "::1"


@pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
def test_point_1_the_socket_is_0600_in_a_folder_of_0700_before_a_client_can_connect(tmp_path: Path) -> None:
    folder = Path(os.path.relpath(tmp_path)) / "run"
    old = os.umask(0)
    try:
        sock = admin._bind_private(folder / "a.sock")
    finally:
        os.umask(old)
    with sock:
        assert stat.S_IMODE((folder / "a.sock").stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("host", EVIL)
def test_point_3_a_rebound_name_is_421_on_every_route(
    harness: GatewayHarness, echo_upstream: EchoUpstream, host: str
) -> None:
    before = len(echo_upstream.requests)
    statuses = {harness.request(path, body, method=method, host=host)[0] for method, path, body in DATA}
    assert (statuses, len(echo_upstream.requests)) == ({421}, before)


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_point_3_an_invalid_host_is_400_on_every_route(
    harness: GatewayHarness, echo_upstream: EchoUpstream, host: str
) -> None:
    before = len(echo_upstream.requests)
    for method, path, _ in DATA:
        status, _ = raw(harness, f"{method} {path} HTTP/1.1\r\nhost: {host}\r\nx-api-key: {KEY}\r\n\r\n".encode())
        assert status in (400, 421)
    assert len(echo_upstream.requests) == before


def test_point_3_the_checked_path_is_the_served_path(harness: GatewayHarness) -> None:
    """Without a key no Host and no target makes a protected path public."""
    for target in (
        "/v1/models",
        "http://localhost/healthz",
        "//healthz",
        "/healthz/../v1/models",
        "/healthz%2f..%2fv1/models",
    ):
        for host in ("localhost", "localhost/healthz?", "localhost:80/healthz#"):
            status, response = raw(harness, f"GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
            assert status in (400, 401) and b"claude" not in response, (target, host)


def test_point_3_the_names_are_those_of_loopback_and_the_configured() -> None:
    guard = HeadCheck("127.0.0.1", ["gateway.internal"])
    for host in ("localhost", "127.0.0.1:1", "[::1]:8787", "gateway.internal", "GATEWAY.internal:80"):
        assert guard.refusal(HttpRequest("GET", "/", headers=(("host", host),))) is None


@pytest.mark.parametrize(
    "origin",
    ["https://evil.test", "null", "http://127.0.0.1.evil.test", "file://", "chrome-extension://abc", "http://[bad"],
)
def test_point_4_pages_of_other_sites_are_refused_with_no_cors_header(
    harness: GatewayHarness, echo_upstream: EchoUpstream, origin: str
) -> None:
    before = len(echo_upstream.requests)
    for method, path, body in DATA:
        status, headers, _ = harness.request(path, body, method=method, origin=origin)
        assert status == 403
        assert not [name for name in headers if name.startswith("access-control")]
    assert len(echo_upstream.requests) == before


def test_point_4_sec_fetch_site_is_checked(harness: GatewayHarness) -> None:
    for site in ("cross-site", "same-site"):
        assert harness.request("/v1/messages", anthropic_body(), sec_fetch_site=site)[0] == 403
    status, headers, _ = harness.request("/v1/messages", anthropic_body(), origin="http://localhost:3000")
    assert status == 200 and not [name for name in headers if name.startswith("access-control")]


def test_point_4_no_response_has_a_cors_header(harness: GatewayHarness) -> None:
    preflight = {"origin": "http://localhost:3000", "access_control_request_method": "POST"}
    for method, path, body in (
        ("OPTIONS", "/v1/messages", None),
        ("GET", "/healthz", None),
        ("GET", "/nothing", None),
        ("POST", "/v1/messages", None),
    ):
        _, headers, _ = harness.request(path, body, method=method, **preflight)
        assert not [name for name in headers if name.startswith("access-control")]
        assert "cross-origin-resource-policy" not in headers


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_point_5_beyond_loopback_needs_a_setting_and_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="beyond loopback"):
        parse_config("", server__host=host)
    assert parse_config("", server__host=host, server__insecure_http=True).server.host == host
    # There is always a key: a missing one is created, and an invalid one is refused (point 13).


@pytest.mark.parametrize("method", ["CONNECT", "TRACE"])
def test_point_6_no_tunnel_and_no_trace(harness: GatewayHarness, method: str) -> None:
    for target in ("/v1/messages", "evil.test:443", "/"):
        status, response = raw(
            harness,
            f"{method} {target} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\nx-echo: sesame\r\n\r\n".encode(),
        )
        assert status >= 400 and b"sesame" not in response


@pytest.mark.parametrize("upgrade", ["websocket", "h2c", "TLS/1.2"])
def test_point_6_no_upgrade(harness: GatewayHarness, upgrade: str) -> None:
    head = f"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\nconnection: upgrade\r\nupgrade: {upgrade}\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n\r\n"
    status, response = raw(harness, head.encode())
    assert status >= 400 and b"101 switching" not in response


def test_point_7_redirects_are_not_followed(harness: GatewayHarness, echo_upstream: EchoUpstream) -> None:
    echo_upstream.mode = "redirect"
    before = len(echo_upstream.requests)
    try:
        status, headers, _ = harness.request("/v1/messages", anthropic_body())
    finally:
        echo_upstream.mode = "good"
    paths = [path for _, path, _, _ in echo_upstream.requests[before:]]
    assert status >= 400 and "location" not in headers
    assert set(paths) == {"/v1/messages"}


def test_point_8_forwarding_headers_are_ignored_by_default(
    harness: GatewayHarness, echo_upstream: EchoUpstream
) -> None:
    lines = {
        "x_forwarded_host": "localhost",
        "x_forwarded_for": "127.0.0.1",
        "x_forwarded_proto": "https",
        "forwarded": "for=127.0.0.1;host=localhost",
        "x_real_ip": "127.0.0.1",
        "x_original_url": "/healthz",
        "x_rewrite_url": "/healthz",
        "x_http_method_override": "GET",
    }
    assert harness.request("/v1/messages", anthropic_body(), key=None, **lines)[0] == 401
    assert harness.request("/v1/messages", anthropic_body(), host="evil.test", **lines)[0] == 421
    before = len(echo_upstream.requests)
    assert harness.request("/v1/messages", anthropic_body(), **lines)[0] == 200
    method, path, headers, _ = echo_upstream.requests[before]
    assert (method, path) == ("POST", "/v1/messages")
    assert not [
        name for name in headers if name.startswith(("x-forwarded", "forwarded", "x-real", "x-original", "x-rewrite"))
    ]


def test_point_4_the_admin_port_serves_no_page_and_no_other_name() -> None:
    gateway = AdminStub()
    for ours in (True, False):
        admin_interface = admin.Admin(gateway, is_private=ours)
        for method, path in ADMIN:
            for line in (
                "host: evil.test",
                "host: evil.test:80",
                "host: localhost\r\norigin: http://localhost:3000",
                "host: 127.0.0.1.evil.test:1",
            ):
                response = serve_bytes(admin_interface.answer, f"{method} {path} HTTP/1.1\r\n{line}\r\n\r\n".encode())
                assert response.startswith(b"HTTP/1.1 421") and b"access-control" not in response.lower()
    assert gateway.changes == 0


def test_point_4_the_admin_port_changes_nothing(harness: GatewayHarness) -> None:
    gateway = AdminStub()
    for path in ("/cooldowns/clear", "/reload"):
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\n\r\n"
        response = serve_bytes(admin.Admin(gateway, is_private=False).answer, head.encode())
        assert response.startswith(b"HTTP/1.1 405") and gateway.changes == 0
    assert json.loads(harness.request("/v1/models", method="GET")[2])
    with pytest.raises((http.client.HTTPException, AssertionError)):  # the data plane does not serve it either
        assert harness.request("/cooldowns/clear", b"")[0] == 200
