"""Open a connection: resolve the name, connect TCP (Happy Eyeballs), ask a proxy for a tunnel, start TLS. Does I/O.

A name is resolved once, and the addresses are checked before they are used: a DNS server cannot direct a request, which
carries credentials, to this machine or to the metadata service of a cloud.

TLS certificates are always verified: by `ca_file` only, if set; otherwise by SSL_CERT_FILE and the system's store.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import TypeAlias, TypeVar

from httptools import HttpParserError, HttpResponseParser
from msgspec import Struct

from dragoman.errors import ConnectFailed, Fault, LocalMisuse
from dragoman.http.addresses import BaseUrl, Proxy, address_problem, ascii_host
from dragoman.http.client.response import HEAD_BYTES, HttpTimeouts

_HEAD_START = 0.25  # seconds before the next address is tried in parallel
# A model that thinks long sends nothing, and balancers drop idle connections after some minutes.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 30, "TCP_KEEPCNT": 4}

P = TypeVar("P", bound=asyncio.BaseProtocol)
_AddressInfo: TypeAlias = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


class TlsSettings(Struct, frozen=True):
    """TLS settings of one upstream. Verification cannot be turned off."""

    ca_file: str = ""
    server_name: str = ""  # sent and verified instead of the URL's host


def ssl_context(tls: TlsSettings) -> ssl.SSLContext:
    """Return the cached TLS context of these settings. Raises LocalMisuse for a file that cannot be read."""
    return _context(tls.ca_file, "" if tls.ca_file else os.environ.get("SSL_CERT_FILE", ""))


@lru_cache(maxsize=64)
def _context(ca_file: str, from_environment: str) -> ssl.SSLContext:
    named = ca_file or from_environment
    # OpenSSL reads SSL_CERT_FILE by itself, but when the file is missing it trusts no certificate and reports no error.
    if named and not Path(named).is_file():
        raise LocalMisuse(f"the file of certificate authorities {named} does not exist (ca_file or SSL_CERT_FILE)")
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise LocalMisuse(f"the file of certificate authorities {named} cannot be read: {error}") from error
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    context.set_alpn_protocols(["http/1.1"])
    return context


async def open_connection(
    make: Callable[[], P],
    address: BaseUrl,
    *,
    timeouts: HttpTimeouts,
    tls: TlsSettings | None,
    proxy: Proxy | None,
) -> P:
    """Open a connection and return its protocol, created by `make`.

    Raises ConnectFailed (kind `timeout` after a timeout): no request was sent.
    """
    context = ssl_context(tls or TlsSettings()) if address.scheme == "https" else None
    name = ascii_host((tls.server_name if tls else "") or address.host)
    peer = f"the proxy {proxy.host}:{proxy.port}" if proxy else address.host_and_port
    host, port = (proxy.host, proxy.port) if proxy else (address.host, address.port)
    async with _step(f"find the address of {peer}", timeouts.dns):
        addresses = await resolve(host, port)
    if proxy is None:  # a proxy comes from the configuration and may have any address
        _check(host, addresses)
    async with _step(f"connect to {peer}", timeouts.connect):
        sock = await _connect(addresses)
    try:
        if proxy is not None and context is not None:
            async with _step(f"reach {address.host_and_port} through {peer}", timeouts.connect):
                await _tunnel(sock, address, proxy)
    except BaseException:
        sock.close()
        raise
    async with _step(f"agree on TLS with {address.host_and_port}", timeouts.tls):
        _, connection = await asyncio.get_running_loop().create_connection(
            make, sock=sock, ssl=context, server_hostname=name if context else None
        )
    return connection


@asynccontextmanager
async def _step(what: str, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        message = f"could not {what} within {seconds:g} s"
        raise ConnectFailed(message, fault=Fault("timeout", message, 504)) from None
    except ssl.SSLCertVerificationError as error:
        hint = "for a private certificate authority set ca_file or SSL_CERT_FILE"
        raise ConnectFailed(
            f"could not {what}: its certificate is not trusted ({error.verify_message}); {hint}"
        ) from error
    except OSError as error:
        raise ConnectFailed(f"could not {what}: {_error_text(error)}") from error


def _error_text(error: OSError) -> str:
    """Return the system's message; the event loop's own text only repeats the address."""
    if error.errno and not isinstance(error, (ssl.SSLError, socket.gaierror)):
        return os.strerror(error.errno)
    return error.strerror or str(error)


async def resolve(host: str, port: int) -> Sequence[_AddressInfo]:
    """Resolve a name. Tests replace this function."""
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _check(host: str, addresses: Sequence[_AddressInfo]) -> None:
    for each in addresses:
        problem = address_problem(host, str(each[4][0]))
        if problem:
            raise ConnectFailed(f"could not connect to {host}: {problem}")


async def _connect(resolved: Sequence[_AddressInfo]) -> socket.socket:
    if len(resolved) == 1:
        return await _attempt(resolved[0])  # no race with one address
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[socket.socket]] = []
    running: set[asyncio.Task[socket.socket]] = set()
    winner: asyncio.Task[socket.socket] | None = None
    addresses = iter(_interleaved(resolved))
    try:
        while winner is None:
            if (address := next(addresses, None)) is not None:
                tasks.append(loop.create_task(_attempt(address)))
                running.add(tasks[-1])
            elif not running:
                break
            timeout = None if address is None else _HEAD_START
            done, running = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            winner = next((task for task in done if task.exception() is None), None)
    finally:
        for task in tasks:
            if task is not winner:
                task.cancel()
                task.add_done_callback(_discard)
    # Of several failures, raise the first: it belongs to the address that the system prefers.
    return await (winner or tasks[0])


async def _attempt(info: _AddressInfo) -> socket.socket:
    family, kind, protocol, _, address = info
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _interleaved(addresses: Sequence[_AddressInfo]) -> list[_AddressInfo]:
    """Return the addresses in the system's order, alternating between IPv6 and IPv4."""
    first = [each for each in addresses if each[0] == addresses[0][0]]
    others = [each for each in addresses if each[0] != addresses[0][0]]
    return [each for each in chain.from_iterable(zip_longest(first, others)) if each is not None]


def _discard(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _tunnel(sock: socket.socket, address: BaseUrl, proxy: Proxy) -> None:
    loop = asyncio.get_running_loop()
    authorization = f"proxy-authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
    target = address.host_and_port
    await loop.sock_sendall(sock, f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n{authorization}\r\n".encode())
    response, size = _TunnelResponse(), 0
    while not response.status:
        more = await loop.sock_recv(sock, 4096)
        size += len(more)
        if not more or size > HEAD_BYTES:
            raise ConnectionResetError("the proxy did not send an HTTP response")
        response.feed(more)
    if response.status // 100 != 2:
        raise ConnectionRefusedError(f"the proxy responded '{response.status} {response.reason}'")
    if response.has_more:
        raise ConnectionResetError("the proxy sent bytes after its response")  # in TLS the client sends first


class _TunnelResponse:
    """The response of a proxy to CONNECT, parsed by httptools."""

    def __init__(self) -> None:
        self.status, self.reason, self.has_more = 0, "", False
        self._parser = HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            raise ConnectionResetError("the proxy did not send an HTTP response") from None

    def on_status(self, reason: bytes) -> None:
        self.reason += reason[:80].decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, _: bytes) -> None:
        self.has_more = True
