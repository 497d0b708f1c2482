"""Base URLs, proxies of the environment, addresses that names may resolve to, and the blocking HTTP client."""

from __future__ import annotations

import asyncio
import gzip
import socket
from typing import Any

import pytest

from dragoman.errors import BadFrame, ConnectFailed, LocalMisuse, TimedOut, Truncated
from dragoman.http.addresses import BaseUrl, Proxy, address_problem, choose_proxy, parse_base_url, parse_proxy
from dragoman.http.client import connecting
from dragoman.http.client.blocking import send
from dragoman.http.client.client import HttpClient, HttpTimeouts
from dragoman.simulator import Simulator, parse_script, running_simulator
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from tests.unit.upstream.conftest import Run
from tests.unit.upstream.scripted_server import ServerConnection, respond_once, run_client_and_server, run_server

PROXY = "http://proxy.corp:3128"


@pytest.mark.parametrize(
    ("url", "address", "authority"),
    [
        ("https://api.anthropic.com", BaseUrl("https", "api.anthropic.com", 443), "api.anthropic.com"),
        ("http://Host:8000/v1/", BaseUrl("http", "host", 8000, "/v1"), "host:8000"),
        ("https://h:443/a?b=c", BaseUrl("https", "h", 443, "/a", "b=c"), "h"),
        ("http://h:443", BaseUrl("http", "h", 443), "h:443"),
        ("http://[::1]:8080/x", BaseUrl("http", "::1", 8080, "/x"), "[::1]:8080"),
        ("https://[2001:db8::1]", BaseUrl("https", "2001:db8::1", 443), "[2001:db8::1]"),
        ("https://bücher.example", BaseUrl("https", "xn--bcher-kva.example", 443), "xn--bcher-kva.example"),
    ],
)
def test_a_base_url_is_taken_apart(url: str, address: BaseUrl, authority: str) -> None:
    assert parse_base_url(url) == address
    assert address.authority == authority


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.anthropic.com",
        "ftp://h",
        "https://",
        "http://h:x",
        "http://h:99999",
        "http://[::1",
        "http://u:secret@h",
    ],
)
def test_an_invalid_base_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(LocalMisuse) as caught:
        parse_base_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        (PROXY, Proxy("proxy.corp", 3128)),
        ("proxy.corp:3128", Proxy("proxy.corp", 3128)),
        ("http://proxy.corp", Proxy("proxy.corp", 80)),
        ("http://me:p%40ss@proxy.corp:1/", Proxy("proxy.corp", 1, "Basic bWU6cEBzcw==")),
    ],
)
def test_a_proxy_is_taken_apart(url: str, proxy: Proxy) -> None:
    assert parse_proxy(url) == proxy


@pytest.mark.parametrize("url", ["socks5://me:secret@h", "https://me:secret@h", "http://", "http://me:secret@h:x"])
def test_an_unsupported_proxy_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(LocalMisuse) as caught:
        parse_proxy(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "environ", "chosen"),
    [
        ("https://api.example.com", {}, False),
        ("https://api.example.com", {"HTTPS_PROXY": PROXY}, True),
        ("https://api.example.com", {"https_proxy": PROXY}, True),
        ("https://api.example.com", {"HTTPS_PROXY": "  "}, False),
        ("https://api.example.com", {"ALL_PROXY": PROXY}, True),
        ("https://api.example.com", {"http_proxy": PROXY}, False),
        ("http://api.example.com", {"http_proxy": PROXY}, True),
        ("http://api.example.com", {"HTTP_PROXY": PROXY}, True),
        (
            "http://api.example.com",
            {"HTTP_PROXY": PROXY, "REQUEST_METHOD": "GET"},
            False,
        ),  # a CGI's client could set it
        ("http://api.example.com", {"HTTPS_PROXY": PROXY}, False),
    ],
)
def test_the_proxy_is_chosen_by_the_environment(url: str, environ: dict[str, str], chosen: bool) -> None:
    assert choose_proxy(url, environ) == (PROXY if chosen else None)


def test_the_lower_case_variable_has_priority() -> None:
    assert choose_proxy("https://h", {"HTTPS_PROXY": "http://a", "https_proxy": "http://b"}) == "http://b"


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "127.0.0.1", "127.8.8.8", "[::1]"])
def test_loopback_never_goes_through_a_proxy(host: str) -> None:
    assert choose_proxy(f"https://{host}:8443", {"HTTPS_PROXY": PROXY}) is None


@pytest.mark.parametrize(
    ("spared", "url", "direct"),
    [
        ("*", "https://api.example.com", True),
        ("example.com", "https://api.example.com", True),
        ("example.com", "https://example.com", True),
        (".example.com", "https://api.example.com", True),
        ("*.example.com", "https://api.example.com", True),
        ("EXAMPLE.com", "https://api.example.com", True),
        ("example.com", "https://badexample.com", False),
        ("ample.com", "https://example.com", False),
        ("other.com, example.com", "https://example.com", True),
        ("other.com example.com", "https://example.com", True),
        ("example.com:443", "https://example.com", True),
        ("example.com:8443", "https://example.com", False),
        ("10.0.0.0/8", "https://10.1.2.3", True),
        ("10.0.0.0/8", "https://11.1.2.3", False),
        ("10.0.0.0/8", "https://example.com", False),
        ("10.1.2.3", "https://10.1.2.3", True),
        ("fd00::/8", "https://[fd00::1]", True),
        ("fd00::1", "https://[fd00::1]:9", True),
        ("[fd00::1]:9", "https://[fd00::1]:9", True),
        ("[fd00::1]:8", "https://[fd00::1]:9", False),
        ("bad/net", "https://example.com", False),
        ("", "https://example.com", False),
        (",. ,", "https://example.com", False),
    ],
)
def test_hosts_of_no_proxy_are_reached_directly(spared: str, url: str, direct: bool) -> None:
    assert choose_proxy(url, {"HTTPS_PROXY": PROXY, "NO_PROXY": spared}) == (None if direct else PROXY)


# --- allowed addresses and timeouts: host names, requests that the server does not read, responses in gzip

POST = HttpRequest("POST", "/v1/messages", body=b"{}")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("api.example", "127.0.0.1"),
        ("api.example", "127.8.8.8"),
        ("api.example", "::1"),
        ("api.example", "::ffff:127.0.0.1"),
        ("api.example", "169.254.169.254"),
        ("api.example", "fe80::1%eth0"),
        ("api.example", "0.0.0.0"),
        ("api.example", "::"),
        ("api.example", "224.0.0.1"),
        ("localhost", "169.254.169.254"),
        ("169.254.169.254", "169.254.169.254"),
        ("localhost.evil.test", "127.0.0.1"),
    ],
)
def test_a_public_name_may_not_resolve_to_this_machine_or_a_metadata_service(host: str, address: str) -> None:
    assert address.partition("%")[0].removeprefix("::ffff:") in address_problem(host, address)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("localhost", "127.0.0.1"),
        ("sub.localhost", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("api.example", "93.184.216.34"),
        ("api.example", "2606:2800:220:1::1"),
        ("gpu-box", "10.0.0.7"),
        ("gpu-box", "192.168.1.9"),
    ],
)
def test_a_name_or_address_of_this_machine_may_be_configured(host: str, address: str) -> None:
    assert address_problem(host, address) == ""


async def test_one_bad_address_of_several_is_enough(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("203.0.113.7", "127.0.0.1")]

    monkeypatch.setattr(connecting, "resolve", resolve)

    client = HttpClient()
    with pytest.raises(ConnectFailed, match=r"resolves to 127\.0\.0\.1"):
        await client.open("https://api.example", POST)
    assert client.pools()[0].active == 0
    await client.aclose()


async def test_a_name_that_is_not_found_in_time_is_a_timeout(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(connecting, "resolve", resolve)

    client = HttpClient()
    with pytest.raises(ConnectFailed, match=r"find the address of api\.example:443 within 0\.1 s") as caught:
        await client.open("https://api.example", POST, timeouts=HttpTimeouts(dns=0.1))
    assert (caught.value.fault.kind, caught.value.fault.status) == ("timeout", 504)
    await client.aclose()


async def test_a_request_that_the_peer_does_not_read_times_out(run: Run) -> None:
    async def deaf(connection: ServerConnection) -> None:
        connection.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(5)

    long = HttpRequest("POST", "/", body=bytes(32 << 20))
    async with run_client_and_server(deaf, sweep_seconds=0.05) as (server, client):
        with pytest.raises(TimedOut, match=r"did not accept the request within 0\.3 s"):
            await client.open(server.url, long, timeouts=HttpTimeouts(write=0.3))
        # Once it is taken, only the other deadlines count.
        with pytest.raises(TimedOut, match="sent no response"):
            await client.open(server.url, POST, timeouts=HttpTimeouts(write=0.1, head=0.5))


def gzipped(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


async def test_a_response_in_gzip_is_refused_but_a_refusal_keeps_its_status(run: Run) -> None:
    packed = gzip.compress(b"x" * 1000)

    client = HttpClient()
    async with run_server(respond_once(gzipped(b"200 OK", packed))) as server:
        with pytest.raises(BadFrame, match=r"compressed response \('gzip'\), which was not requested"):
            await client.open(server.url, POST)
    async with run_server(respond_once(gzipped(b"429 Slow", packed))) as server:
        reply = await client.open(server.url, POST)
        assert (reply.status, await reply.read(9999)) == (429, packed)
    await client.aclose()


# --- The client for code that is not async, and bodies that are taken piece by piece

REQUEST = HttpRequest(
    "POST",
    "/v1/chat/completions",
    headers=(("authorization", "Bearer x"), ("content-type", "application/json")),
    body=jsonio.encode({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}),
)
SLOW = parse_script('[[turn]]\nparts = [{ text = "Begin." }, { wait = 600.0 }, { text = "End." }]')


def test_the_head_comes_first_and_the_body_as_it_comes() -> None:
    with running_simulator("openai") as service:
        head, body = send(service.url, REQUEST, timeouts=HttpTimeouts())
        assert (head.status, head.header("content-type").partition(";")[0]) == (200, "text/event-stream")
        assert b"".join(body).endswith(b"data: [DONE]\n\n")
        assert service.requests[0].wait(60) == "whole"


def test_a_body_that_is_closed_closes_the_connection() -> None:
    with running_simulator("openai", script=SLOW) as service:
        _, body = send(service.url, REQUEST, timeouts=HttpTimeouts())
        assert next(body)
        body.close()
        assert service.requests[0].wait(60) == "gone"


def test_what_fails_is_raised_where_the_request_was_made() -> None:
    with pytest.raises(ConnectFailed):
        send("http://127.0.0.1:1", REQUEST, timeouts=HttpTimeouts())
    with pytest.raises(LocalMisuse):
        send("http://127.0.0.1:1", HttpRequest("GET", "no path"), timeouts=HttpTimeouts())
    cut = parse_script('[[turn]]\ntext = "Hello, how are you?"\ncut = { byte = 150, how = "close" }')
    with running_simulator("openai", script=cut) as service:
        head, body = send(service.url, REQUEST, timeouts=HttpTimeouts())
        with pytest.raises(Truncated):
            list(body)
        assert head.status == 200
    with running_simulator("openai", script=SLOW) as service:
        _, body = send(service.url, REQUEST, timeouts=HttpTimeouts(idle=0.1))
        with pytest.raises(TimedOut):
            list(body)


async def test_a_blocking_request_works_inside_a_running_loop() -> None:
    with running_simulator("openai") as service:
        head, body = send(service.url, REQUEST, timeouts=HttpTimeouts())
        assert (head.status, bool(b"".join(body))) == (200, True)


async def test_nothing_is_read_while_a_piece_is_being_used() -> None:
    script = parse_script(f'[[turn]]\ntext = "{"x" * 2_000_000}"\nchunk = 50000')
    async with Simulator("openai", script=script) as service:
        client = HttpClient()
        reply = await client.open(service.url, REQUEST)
        pieces = reply.pieces()
        size = len(await anext(pieces))
        assert reply._is_paused
        async for piece in pieces:
            size += len(piece)
        await client.aclose()
        assert size == service.requests[0].sent > 2_000_000
