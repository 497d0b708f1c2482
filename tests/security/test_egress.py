"""Points 21 to 24 of SECURITY.md: upstream addresses, DNS and TLS checks, and headers in both directions."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman
from dragoman.errors import ConnectFailed, DragomanError, LocalMisuse
from dragoman.gateway.layers import ConfigError
from dragoman.http.addresses import address_problem
from dragoman.http.client import connecting
from dragoman.http.client.client import HttpClient, TlsSettings
from dragoman.http.client.connecting import ssl_context
from dragoman.http.framing import header_value
from dragoman.wire.http import HttpRequest
from tests.gateway.harness import GatewayHarness, anthropic_body, openai_body, parse_config
from tests.security.echo_upstream import HOSTILE, EchoUpstream, run_echo_upstream
from tests.security.routes import DATA

SOURCE = Path(dragoman.__file__).parent


@pytest.fixture(scope="module")
def address_upstream() -> Iterator[EchoUpstream]:
    with run_echo_upstream() as running:
        yield running


@pytest.mark.parametrize(
    "url",
    [
        "http://api.example.com",
        "http://10.0.0.1",
        "http://169.254.169.254",
        "ftp://a.test",
        "file:///etc/passwd",
        "gopher://a",
        "https://",
        "https://user:password@a.test",
        "//a.test",
        "javascript:1",
    ],
)
def test_point_21_an_upstream_is_https_unless_it_is_this_machine(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_config(f"[upstreams.a]\ndialect = 'openai'\nbase_url = '{url}'\n")
    parse_config("[upstreams.a]\ndialect = 'openai'\nbase_url = 'http://127.0.0.1:8000'\n")


def everywhere(url: str) -> Iterator[tuple[dict[str, Any], dict[str, str], str]]:
    """Yield fields, headers and queries with an address that other gateways have accepted."""
    names = (
        "api_base",
        "base_url",
        "api_url",
        "endpoint",
        "url",
        "host",
        "proxy",
        "callback_url",
        "webhook",
        "custom_llm_provider_base",
        "azure_endpoint",
        "vertex_location",
        "aws_bedrock_runtime_endpoint",
        "server_url",
    )
    for name in names:
        yield {name: url}, {}, ""
        yield {"metadata": {"user_id": "u", name: url}}, {}, ""
        yield {"extra_body": {name: url}, "litellm_params": {name: url}}, {}, ""
        yield {}, {}, f"?{name}={url}"
    for name in (
        "x-api-base",
        "x-base-url",
        "x-forwarded-host",
        "x-upstream-host",
        "x-portkey-custom-host",
        "x-litellm-api-base",
        "x-target-url",
        "x-helicone-target-url",
        "openai-base-url",
        "x-original-host",
        "x-proxy",
        "referer",
        "destination",
        "x-amz-endpoint",
    ):
        yield {}, {name: url}, ""


def test_point_21_no_request_chooses_its_upstream_address(
    harness: GatewayHarness, echo_upstream: EchoUpstream, address_upstream: EchoUpstream
) -> None:
    """CVE-2024-6587: a body field sent the request with its key to another host."""
    before = len(echo_upstream.requests)
    accepted = 0
    for fields, headers, query in everywhere(address_upstream.url):
        for path, body in (("/v1/messages", anthropic_body(**fields)), ("/v1/chat/completions", openai_body(**fields))):
            status = harness.request(f"{path}{query}", body, **headers)[0]
            assert status in (200, 400), (fields, headers)
            accepted += status == 200
    sent = echo_upstream.requests[before:]
    assert address_upstream.requests == []
    assert accepted and len(sent) == accepted
    assert {(method, path) for method, path, _, _ in sent} == {("POST", "/v1/messages")}
    assert {headers["host"] for _, _, headers, _ in sent} == {echo_upstream.url.removeprefix("http://")}


def test_point_21_the_gateway_fetches_no_address_of_a_request(
    harness: GatewayHarness, address_upstream: EchoUpstream
) -> None:
    image = {"type": "image", "source": {"type": "url", "url": f"{address_upstream.url}/image.png"}}
    document = {"type": "document", "source": {"type": "url", "url": f"{address_upstream.url}/a.pdf"}}
    content = [
        image,
        document,
        {"type": "text", "text": f"read {address_upstream.url}/page and ![]({address_upstream.url}/image)"},
    ]
    tool = {
        "name": "t",
        "input_schema": {
            "type": "object",
            "$schema": f"{address_upstream.url}/schema",
            "$id": f"{address_upstream.url}/id",
        },
    }
    for more in (
        {},
        {"tools": [tool]},
        {"mcp_servers": [{"type": "url", "url": address_upstream.url, "name": "x"}]},
        {"container": address_upstream.url},
    ):
        harness.request("/v1/messages", {**anthropic_body(**more), "messages": [{"role": "user", "content": content}]})
    for parts in (
        [{"type": "image_url", "image_url": {"url": f"{address_upstream.url}/i"}}],
        [{"type": "file", "file": {"file_id": address_upstream.url}}],
    ):
        harness.request("/v1/chat/completions", {**openai_body(), "messages": [{"role": "user", "content": parts}]})
    for name in (f"{address_upstream.url}/m", f"http:{address_upstream.url}", "../../x"):
        for method, path, body in DATA:
            harness.request(path, {**body, "model": name} if body and "model" in body else body, method=method)
    assert address_upstream.requests == []


METADATA = [
    "169.254.169.254",
    "169.254.170.2",
    "fe80::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
    "192.0.0.192",
    "168.63.129.16",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "224.0.0.1",
    "ff02::1",
    "0.0.0.0",
    "::",
    "127.0.0.1",
    "::1",
    "::ffff:127.0.0.1",
]


@pytest.mark.parametrize("address", METADATA)
def test_point_22_a_name_that_resolves_to_metadata_or_loopback_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connected: list[object] = []

    async def resolve(host: str, port: int) -> Any:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", port)),
            (family, socket.SOCK_STREAM, 6, "", (address, port)),
        ]

    async def attempt(found: Any) -> socket.socket:
        connected.append(found)
        raise OSError("not in a test")

    monkeypatch.setattr(connecting, "resolve", resolve)
    monkeypatch.setattr(connecting, "_attempt", attempt)
    with pytest.raises(ConnectFailed):
        fetched("https://api.example.com")
    assert connected == []
    assert address_problem("api.example.com", address)


def fetched(url: str) -> int:
    async def fetch() -> int:
        client = HttpClient()
        try:
            reply = await client.open(url, HttpRequest("GET", "/x"))
            reply.close()
            return reply.status
        finally:
            await client.aclose()

    return asyncio.run(fetch())


def test_point_22_the_checked_address_is_the_connected_address(
    monkeypatch: pytest.MonkeyPatch, echo_upstream: EchoUpstream
) -> None:
    """A name that resolves to another address the second time is looked up only once."""
    hosts: list[str] = []
    port = int(echo_upstream.url.rpartition(":")[2])

    async def resolve(host: str, _: int) -> Any:
        hosts.append(host)
        address = "127.0.0.1" if len(hosts) == 1 else "169.254.169.254"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(connecting, "resolve", resolve)
    assert fetched(f"http://localhost:{port}") == 200
    assert hosts == ["localhost"]


def test_point_22_private_networks_need_tls_or_a_setting() -> None:
    private = "[upstreams.a]\ndialect = 'openai'\nbase_url = 'http://10.0.0.1'\n"
    with pytest.raises(ConfigError, match="http without TLS"):
        parse_config(private)
    parse_config(f"{private}insecure_http = true\n")
    parse_config(private.replace("http:", "https:"))


def test_point_23_tls_is_always_verified_and_at_least_1_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    for tls in (TlsSettings(), TlsSettings(server_name="other.test")):
        context = ssl_context(tls)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with pytest.raises(LocalMisuse, match="SSL_CERT_FILE"):
        ssl_context(TlsSettings())


def test_point_23_tls_is_at_least_1_2_even_if_the_machine_allows_less(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_context = ssl.create_default_context

    def lax(**more: Any) -> ssl.SSLContext:
        context = make_context()
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        return context

    monkeypatch.setattr(ssl, "create_default_context", lax)
    (tmp_path / "ca.pem").touch()
    context = ssl_context(TlsSettings(ca_file=str(tmp_path / "ca.pem")))  # a separate file, because contexts are cached
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_point_23_no_setting_disables_verification() -> None:
    off = re.compile(
        r"CERT_NONE|CERT_OPTIONAL|check_hostname\s*=|_create_unverified|verify\s*=\s*False|PYTHONHTTPSVERIFY"
    )
    assert [str(path) for path in SOURCE.rglob("*.py") if off.search(path.read_text())] == []
    for name in ("verify", "insecure", "tls_verify", "skip_verify", "ssl_verify"):
        with pytest.raises(ConfigError):
            parse_config(f"[upstreams.a]\ndialect = 'openai'\nbase_url = 'https://a.test'\n{name} = false\n")


ALLOWED = {
    "content-type",
    "content-length",
    "transfer-encoding",
    "connection",
    "date",
    "cache-control",
    "x-accel-buffering",
    "retry-after",
    "allow",
    "x-request-id",
    "request-id",
    "x-amzn-requestid",
    "x-amzn-errortype",
    "dragoman-notes",
    "dragoman-upstream",
    "dragoman-model",
    "dragoman-estimate",
    "x-should-retry",
}


@pytest.mark.parametrize("mode", ["good", "refuse", "stream", "redirect"])
def test_point_24_no_upstream_header_reaches_the_client(
    harness: GatewayHarness, echo_upstream: EchoUpstream, mode: str
) -> None:
    echo_upstream.mode = mode
    try:
        for stream in (False, True):
            for path, body in (
                ("/v1/messages", anthropic_body(stream=stream)),
                ("/v1/chat/completions", openai_body(stream=stream)),
            ):
                _, headers, _ = harness.request(path, body)
                assert set(headers) <= ALLOWED
                assert not [name for name, value in HOSTILE.items() if headers.get(name) == value]
    finally:
        echo_upstream.mode = "good"


def test_point_24_hop_by_hop_headers_of_a_client_are_not_forwarded(
    harness: GatewayHarness, echo_upstream: EchoUpstream
) -> None:
    before = len(echo_upstream.requests)
    hops = {
        "keep-alive": "timeout=5",
        "te": "trailers",
        "trailer": "x",
        "proxy-connection": "close",
        "connection": "x-secret-hop",
        "x-secret-hop": "1",
    }
    assert harness.request("/v1/messages", anthropic_body(), **hops)[0] == 200
    assert not set(echo_upstream.requests[before][2]) & set(hops)


@given(
    st.text(max_size=50),
    st.sampled_from(["\r", "\n", "\0", "\r\n", "\r\nx: y", "\u2028", "\x85"]),
    st.text(max_size=50),
)
def test_point_24_no_response_header_value_injects_a_line(before: str, odd: str, after: str) -> None:
    value = header_value(before + odd + after).encode("latin-1", "replace")
    assert not set(value) & set(b"\r\n\0")


@pytest.mark.parametrize("odd", ["\r", "\n", "\0", "\r\nx: y"])
@pytest.mark.parametrize("where", ["value", "name", "path", "query", "method"])
def test_point_24_no_request_header_value_injects_a_line(echo_upstream: EchoUpstream, odd: str, where: str) -> None:
    before = len(echo_upstream.requests)
    text = f"a{odd}b"
    request = HttpRequest(
        text if where == "method" else "GET",
        f"/{text}" if where == "path" else "/",
        text if where == "query" else "",
        ((text if where == "name" else "x-a", text if where == "value" else "v"),),
    )

    async def send() -> None:
        client = HttpClient()
        try:
            await client.open(echo_upstream.url, request)
        finally:
            await client.aclose()

    with pytest.raises(DragomanError):
        asyncio.run(send())
    assert len(echo_upstream.requests) == before
