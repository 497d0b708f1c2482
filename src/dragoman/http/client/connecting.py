"""A new connection: names, TCP (addresses raced, so that a dead IPv6 costs little), a proxy's tunnel, TLS.

A name is looked up once; what it leads to is checked, and just that is connected to: whoever answers for the name
cannot send a request, which carries credentials, to this machine or to the metadata service of a cloud.

TLS is always verified: by `ca_file` alone, else by SSL_CERT_FILE and the system, as OpenSSL reads.
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

_HEAD_START = 0.25  # seconds one address has before the next is tried beside it
# Long thinking is silent, and balancers forget silent connections after some minutes.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 30, "TCP_KEEPCNT": 4}

P = TypeVar("P", bound=asyncio.BaseProtocol)
_Found: TypeAlias = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


class TlsSettings(Struct, frozen=True):
    """What one upstream needs beside the default. There is no way to turn verification off."""

    ca_file: str = ""
    server_name: str = ""  # asked for and verified instead of the URL's host


def ssl_context(tls: TlsSettings) -> ssl.SSLContext:
    """Give the context of these settings, made once. Raises LocalMisuse naming a file that cannot be read."""
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
    """Open a connection and return its protocol, which `make` makes.

    Raises ConnectFailed, of kind `timeout` when that is why: no request was sent.
    """
    context = ssl_context(tls or TlsSettings()) if address.scheme == "https" else None
    name = ascii_host((tls.server_name if tls else "") or address.host)
    peer = f"the proxy {proxy.host}:{proxy.port}" if proxy else address.host_and_port
    host, port = (proxy.host, proxy.port) if proxy else (address.host, address.port)
    async with _step(f"find the address of {peer}", timeouts.dns):
        found = await resolve(host, port)
    if proxy is None:  # a proxy may be anywhere: it was not looked for, it was configured
        _check(host, found)
    async with _step(f"connect to {peer}", timeouts.connect):
        sock = await _connect(found)
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
        hint = "ca_file or SSL_CERT_FILE names authorities of your own"
        raise ConnectFailed(
            f"could not {what}: its certificate is not trusted ({error.verify_message}); {hint}"
        ) from error
    except OSError as error:
        raise ConnectFailed(f"could not {what}: {_words(error)}") from error


def _words(error: OSError) -> str:
    """What the system says of it; the loop's own text only repeats the address."""
    if error.errno and not isinstance(error, (ssl.SSLError, socket.gaierror)):
        return os.strerror(error.errno)
    return error.strerror or str(error)


async def resolve(host: str, port: int) -> Sequence[_Found]:
    """Ask the system what a name leads to. Tests stand in for it."""
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _check(host: str, found: Sequence[_Found]) -> None:
    for each in found:
        why = address_problem(host, str(each[4][0]))
        if why:
            raise ConnectFailed(f"could not connect to {host}: {why}")


async def _connect(found: Sequence[_Found]) -> socket.socket:
    if len(found) == 1:
        return await _attempt(found[0])  # there is nobody to race with
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[socket.socket]] = []
    running: set[asyncio.Task[socket.socket]] = set()
    winner: asyncio.Task[socket.socket] | None = None
    addresses = iter(_by_turns(found))
    try:
        while winner is None:
            if (address := next(addresses, None)) is not None:
                tasks.append(loop.create_task(_attempt(address)))
                running.add(tasks[-1])
            elif not running:
                break
            patience = None if address is None else _HEAD_START
            done, running = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            winner = next((task for task in done if task.exception() is None), None)
    finally:
        for task in tasks:
            if task is not winner:
                task.cancel()
                task.add_done_callback(_discard)
    # Of several failures the first is told: it is that of the address the system prefers.
    return await (winner or tasks[0])


async def _attempt(found: _Found) -> socket.socket:
    family, kind, protocol, _, address = found
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


def _by_turns(found: Sequence[_Found]) -> list[_Found]:
    """The system's order, but the families by turns."""
    first = [each for each in found if each[0] == found[0][0]]
    others = [each for each in found if each[0] != found[0][0]]
    return [each for each in chain.from_iterable(zip_longest(first, others)) if each is not None]


def _discard(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _tunnel(sock: socket.socket, address: BaseUrl, proxy: Proxy) -> None:
    loop = asyncio.get_running_loop()
    authorization = f"proxy-authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
    target = address.host_and_port
    await loop.sock_sendall(sock, f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n{authorization}\r\n".encode())
    answer, size = _TunnelAnswer(), 0
    while not answer.status:
        more = await loop.sock_recv(sock, 4096)
        size += len(more)
        if not more or size > HEAD_BYTES:
            raise ConnectionResetError("it did not answer in HTTP")
        answer.feed(more)
    if answer.status // 100 != 2:
        raise ConnectionRefusedError(f"it answered '{answer.status} {answer.reason}'")
    if answer.has_more:
        raise ConnectionResetError("it sent more than an answer")  # TLS: the client speaks first


class _TunnelAnswer:
    """What a proxy answers to CONNECT, through httptools."""

    def __init__(self) -> None:
        self.status, self.reason, self.has_more = 0, "", False
        self._parser = HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            raise ConnectionResetError("it did not answer in HTTP") from None

    def on_status(self, reason: bytes) -> None:
        self.reason += reason[:80].decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, _: bytes) -> None:
        self.has_more = True
