"""TLS with an authority of our own, and a CONNECT proxy between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from dragoman.errors import ConnectFailed, LocalMisuse, Truncated
from dragoman.http.client.client import HttpClient, HttpTimeouts, TlsSettings
from dragoman.wire.http import HttpRequest
from tests.unit.upstream.conftest import Run
from tests.unit.upstream.scripted_server import (
    OK,
    ServerConnection,
    header_fields,
    respond_once,
    respond_with,
    run_client_and_server,
    run_server,
    wait_until,
)

POST = HttpRequest("POST", "/v1/messages", body=b"{}")
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\n\r\nhello"


class CertificateAuthority:
    """An authority, what it signs, and the names that clients asked for."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.ca_file = str(folder / "ca.pem")
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.server_names: list[str | None] = []

    def server(self, *names: str, ca: trustme.CA | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        (ca or self.ca).issue_cert(*names).configure_cert(context)
        context.set_alpn_protocols(["http/1.1"])
        context.sni_callback = lambda _, name, __: self.server_names.append(name)
        return context

    @property
    def tls(self) -> TlsSettings:
        return TlsSettings(ca_file=self.ca_file)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("ca"))


async def read(client: HttpClient, url: str, tls: TlsSettings | None, proxy: str | None = None) -> bytes:
    return await (await client.open(url, POST, tls=tls, proxy=proxy)).read(1 << 24)


async def test_tls_verifies_asks_for_the_name_and_keeps_the_connection(
    run: Run, authority: CertificateAuthority
) -> None:
    authority.server_names.clear()
    async with run_client_and_server(respond_with(OK), tls=authority.server("localhost")) as (server, client):
        for _ in range(50):
            assert await read(client, server.url, authority.tls) == b"ok"
        assert server.connections == 1
        assert authority.server_names == ["localhost"]


async def test_another_server_name_is_asked_for_and_verified(run: Run, authority: CertificateAuthority) -> None:
    authority.server_names.clear()
    async with run_client_and_server(respond_with(OK), tls=authority.server("inner.example")) as (server, client):
        tls = TlsSettings(ca_file=authority.ca_file, server_name="inner.example")
        assert await read(client, server.url, tls) == b"ok"
        assert authority.server_names == ["inner.example"]
        with pytest.raises(ConnectFailed, match="not trusted"):
            await read(client, server.url, authority.tls)


async def test_an_address_is_verified_as_one(run: Run, authority: CertificateAuthority) -> None:
    async with run_client_and_server(respond_with(OK), tls=authority.server("127.0.0.1")) as (server, client):
        assert await read(client, f"https://127.0.0.1:{server.port}", authority.tls) == b"ok"


@pytest.mark.parametrize("case", ["unknown authority", "wrong host", "system authorities only"])
async def test_a_certificate_that_cannot_be_verified_is_refused_before_a_byte_is_sent(
    run: Run, authority: CertificateAuthority, case: str
) -> None:
    name = "other.example" if case == "wrong host" else "localhost"
    context = authority.server(name, ca=trustme.CA() if case == "unknown authority" else None)
    tls = None if case == "system authorities only" else authority.tls

    async with run_client_and_server(respond_with(OK), tls=context) as (server, client):
        with pytest.raises(ConnectFailed, match="not trusted") as caught:
            await read(client, server.url, tls)
        assert "SSL_CERT_FILE" in str(caught.value)
        assert client.pools()[0].active == 0
        assert server.requests == []


async def test_ssl_cert_file_is_honoured(
    run: Run, authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", authority.ca_file)

    async with run_client_and_server(respond_with(OK), tls=authority.server("localhost")) as (server, client):
        assert await read(client, server.url, None) == b"ok"


@pytest.mark.parametrize("how", ["ca_file", "SSL_CERT_FILE", "not a certificate"])
async def test_a_missing_or_unreadable_file_of_authorities_is_named(
    run: Run, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "authorities.pem"
    if how == "not a certificate":
        path.write_text("nothing")
    elif how == "SSL_CERT_FILE":
        monkeypatch.setenv("SSL_CERT_FILE", str(path))

    client = HttpClient()
    with pytest.raises(LocalMisuse, match=r"authorities\.pem"):
        await read(client, "https://localhost:1", None if how == "SSL_CERT_FILE" else TlsSettings(ca_file=str(path)))
    assert client.pools()[0].active == 0
    await client.aclose()


async def test_tls_to_a_plain_port_fails_at_once(run: Run, authority: CertificateAuthority) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.reader.read(65536)
        await connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with run_client_and_server(script) as (plain, client):
        with pytest.raises(ConnectFailed):
            await read(client, f"https://localhost:{plain.port}", authority.tls)


async def test_a_handshake_that_stalls_fails_in_time(run: Run, authority: CertificateAuthority) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.gone()

    async with run_client_and_server(script) as (server, client):
        with pytest.raises(ConnectFailed) as caught:
            await client.open(
                f"https://localhost:{server.port}", POST, tls=authority.tls, timeouts=HttpTimeouts(tls=0.2)
            )
        assert caught.value.fault.kind == "timeout"
        await wait_until(lambda: server.open == 0)


async def test_cancelling_a_handshake_closes_the_connection(run: Run, authority: CertificateAuthority) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.gone()

    async with run_client_and_server(script) as (server, client):
        task = asyncio.create_task(client.open(f"https://localhost:{server.port}", POST, tls=authority.tls))
        await wait_until(lambda: server.open == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until(lambda: (server.open, client.pools()[0].active) == (0, 0))


def ragged(connection: ServerConnection) -> None:
    """End TCP, but not TLS, as any host on the path could do."""
    # uvloop's own socket object refuses to shut down, hence the second one.
    with socket.socket(fileno=os.dup(connection.writer.get_extra_info("socket").fileno())) as sock:
        sock.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    "response", [CHUNKED + b"5\r\nhello\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello"]
)
@pytest.mark.parametrize("end", [ServerConnection.close, ragged])
async def test_a_cut_inside_tls_is_no_clean_end(
    run: Run, authority: CertificateAuthority, response: bytes, end: object
) -> None:
    assert callable(end)
    async with run_client_and_server(respond_once(response, end=end), tls=authority.server("localhost")) as (
        server,
        client,
    ):
        with pytest.raises(Truncated):
            await read(client, server.url, authority.tls)


async def test_a_body_without_length_ends_with_tls_not_with_tcp(run: Run, authority: CertificateAuthority) -> None:
    client = HttpClient()
    async with run_server(respond_once(UNTIL_CLOSE), tls=authority.server("localhost")) as server:
        assert await read(client, server.url, authority.tls) == b"hello"
    async with run_server(_shut_tcp_only, tls=authority.server("localhost")) as server:
        with pytest.raises(Truncated):
            await read(client, server.url, authority.tls)
    await client.aclose()


async def _shut_tcp_only(connection: ServerConnection) -> None:
    await connection.request()
    await connection.send(UNTIL_CLOSE)
    await asyncio.sleep(0.05)
    ragged(connection)
    await asyncio.sleep(0.2)


async def test_eight_megabytes_through_tls_with_pauses(run: Run, authority: CertificateAuthority) -> None:
    size = 8 << 20

    async def script(connection: ServerConnection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(size // 65536):
            await connection.send(bytes(65536))
        await connection.gone()

    got = 0
    async with run_client_and_server(script, tls=authority.server("localhost")) as (server, client):
        reply = await client.open(server.url, POST, tls=authority.tls)

        def sink(piece: bytes) -> None:
            nonlocal got
            got += len(piece)
            reply.pause()
            asyncio.get_running_loop().call_soon(reply.resume)

        await reply.pump(sink)
    assert got == size


# Proxies


class Tunnels:
    url = ""
    heads: tuple[bytes, ...] = ()


@contextlib.asynccontextmanager
async def proxy(
    response: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n", size: int = 0
) -> AsyncIterator[Tunnels]:
    it = Tunnels()

    async def pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.close()

    async def script(connection: ServerConnection) -> None:
        head = await connection.reader.readuntil(b"\r\n\r\n")
        it.heads += (head,)
        host, _, port = head.split()[1].decode().rpartition(":")
        for at in range(0, len(response), size or len(response) or 1):
            await connection.send(response[at : at + (size or len(response))])
            await asyncio.sleep(0)
        if not response.startswith(b"HTTP/1.1 200") or not response.endswith(b"\r\n\r\n"):
            return
        reader, writer = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(pipe(connection.reader, writer), pipe(reader, connection.writer))
        writer.close()

    async with run_server(script) as server:
        it.url = server.url
        yield it


@pytest.mark.parametrize("size", [0, 1])
async def test_a_tunnel_through_a_proxy_verifies_the_upstream_and_is_kept(
    run: Run, authority: CertificateAuthority, size: int
) -> None:
    authority.server_names.clear()
    async with run_server(respond_with(OK), tls=authority.server("localhost")) as server, proxy(size=size) as between:
        client = HttpClient()
        through = between.url.replace("://", "://me:secret@")
        for _ in range(3):
            assert await read(client, server.url, authority.tls, through) == b"ok"
        assert authority.server_names == ["localhost"]
        (head,) = between.heads
        assert head.split(b"\r\n")[0] == b"CONNECT localhost:%d HTTP/1.1" % server.port
        assert ("proxy-authorization", "Basic bWU6c2VjcmV0") in header_fields(head)
        assert all(
            b"authorization" not in request for request, _ in server.requests
        )  # the password stays with the proxy
        await client.aclose()
        await asyncio.sleep(0.05)


REFUSALS = {
    "407": (b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n", "407"),
    "403 with a page": (b"HTTP/1.1 403 Forbidden\r\ncontent-length: 4\r\n\r\nno!!", "403"),
    "nothing": (b"", "did not send an HTTP response"),
    "half a head": (b"HTTP/1.1 200 OK\r\n", "did not send an HTTP response"),
    "not HTTP": (b"SSH-2.0\r\n\r\n", "did not send an HTTP response"),
    "a head without end": (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000, "did not send an HTTP response"),
    "more than a response": (b"HTTP/1.1 200 OK\r\n\r\nHTTP", "bytes after its response"),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_proxy_that_refuses_is_reported_and_no_request_is_sent(
    run: Run, authority: CertificateAuthority, case: str
) -> None:
    response, words = REFUSALS[case]

    async with (
        run_client_and_server(respond_with(OK), tls=authority.server("localhost")) as (server, client),
        proxy(response) as between,
    ):
        with pytest.raises(ConnectFailed, match=words) as caught:
            await read(client, server.url, authority.tls, between.url.replace("://", "://me:secret@"))
        assert "proxy" in str(caught.value)
        assert "secret" not in str(caught.value)
        assert (server.connections, client.pools()[0].active) == (0, 0)


async def test_a_proxy_that_stalls_fails_in_time(run: Run, authority: CertificateAuthority) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.gone()

    async with run_client_and_server(script) as (between, client):
        with pytest.raises(ConnectFailed) as caught:
            await client.open(
                "https://api.example", POST, tls=authority.tls, proxy=between.url, timeouts=HttpTimeouts(connect=0.2)
            )
        assert caught.value.fault.kind == "timeout"
        await wait_until(lambda: between.open == 0)


async def test_a_plain_request_goes_to_the_proxy_in_absolute_form(run: Run) -> None:
    async with run_client_and_server(respond_with(OK)) as (between, client):
        through = between.url.replace("://", "://me:secret@")
        assert await read(client, "http://vllm.example:8000/v1", None, through) == b"ok"
        ((head, _),) = between.requests
    assert head.split(b"\r\n")[0] == b"POST http://vllm.example:8000/v1/v1/messages HTTP/1.1"
    assert ("host", "vllm.example:8000") in header_fields(head)
    assert ("proxy-authorization", "Basic bWU6c2VjcmV0") in header_fields(head)
