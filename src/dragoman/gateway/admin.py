"""Status, metrics and the clearing of cooldowns, for this machine's user alone: a Unix socket nobody else can open.

A loopback port only if configured, which changes nothing; and never the port that clients use.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs

from dragoman.errors import LocalMisuse
from dragoman.gateway.private import make_private_folder
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_HEAD_BYTES = 8 * 1024
_SECONDS = 5.0
_NAMED = re.compile(rb"(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?")  # as a Host header may name us
_JSON, _METRICS, _PLAIN = "application/json", "text/plain; version=0.0.4; charset=utf-8", "text/plain; charset=utf-8"


class Asked(Protocol):
    """Who is asked: a gateway, or several as one."""

    def status(self) -> dict[str, Json]: ...
    def metrics(self) -> bytes: ...
    def cooldowns(self) -> list[Json]: ...
    def clear(self, upstream: str) -> dict[str, Json]: ...


class Admin:
    """Answers one request a connection. `ours`: nobody but this machine's user can ask, so that things may change."""

    def __init__(self, gateway: Asked, *, ours: bool) -> None:
        self._gateway = gateway
        self._ours = ours

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response(head))
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def _response(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path, _, query = rest.partition(b" ")[0].partition(b"?")
        if not _is_ours(head):
            return _http(421, _PLAIN, b"not this server\n")
        if method == b"POST" and path == b"/cooldowns/clear" and self._ours:
            return self._clear(query.decode("latin-1"))
        if method != b"GET":
            return _http(405, _PLAIN, b"GET only\n")
        match path:
            case b"/status":
                return _http(200, _JSON, jsonio.pretty(self._gateway.status()) + b"\n")
            case b"/metrics":
                return _http(200, _METRICS, self._gateway.metrics())
            case b"/cooldowns":
                return _http(200, _JSON, jsonio.pretty(self._gateway.cooldowns()) + b"\n")
            case b"/healthz":
                return _http(200, _PLAIN, b"ok\n")
            case _:
                return _http(404, _PLAIN, b"/status, /metrics, /cooldowns, /healthz\n")

    def _clear(self, query: str) -> bytes:
        """Let everybody be asked again, or one upstream."""
        told = self._gateway.clear(parse_qs(query).get("upstream", [""])[0])
        return _http(404 if "problem" in told else 200, _JSON, jsonio.encode(told))


def _is_ours(head: bytes) -> bool:
    """A web page may point its own name at a loopback port: only loopback's names are ours, and no page is served."""
    hosts: list[bytes] = []
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        match name.strip().lower():
            case b"host":
                hosts.append(value.strip().lower())
            case b"origin":
                return False
            case b"sec-fetch-site" if value.strip().lower() not in (b"none", b"same-origin"):
                return False
    return len(hosts) == 1 and _NAMED.fullmatch(hosts[0]) is not None


def _http(status: int, kind: str, body: bytes) -> bytes:
    phrase = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 421: "Misdirected Request"}[status]
    lines = (
        f"HTTP/1.1 {status} {phrase}",
        f"content-type: {kind}",
        f"content-length: {len(body)}",
        "connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


@asynccontextmanager
async def serving(gateway: Asked, path: Path | None, port: int | None = None) -> AsyncIterator[None]:
    """Listen while this lasts. Raises LocalMisuse if another gateway has the socket, OSError if it cannot be made."""
    servers: list[asyncio.Server] = []
    if path is not None and hasattr(socket, "AF_UNIX"):
        servers.append(
            await asyncio.start_unix_server(Admin(gateway, ours=True).serve, sock=_bound(path), limit=_HEAD_BYTES)
        )
    if port is not None:
        servers.append(
            await asyncio.start_server(Admin(gateway, ours=False).serve, "127.0.0.1", port, limit=_HEAD_BYTES)
        )
    try:
        yield
    finally:
        for server in servers:
            server.close()
        if path is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _bound(path: Path) -> socket.socket:
    """A socket that is private before anybody can connect: its mode is set between bind and listen."""
    make_private_folder(path.parent)
    if path.exists():
        if _answers(path):
            raise LocalMisuse(f"another gateway answers at {path}: stop it, or set server.admin_socket")
        path.unlink()  # left behind by one that was killed
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        os.chmod(path, 0o600)  # noqa: PTH101  beside the bind it belongs to
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def ask(path: Path, what: str = "/status", method: str = "GET") -> bytes:
    """What a running gateway says, for the command line. Raises OSError if none runs there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_SECONDS)
        asking.connect(str(path))
        asking.sendall(f"{method} {what} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        pieces = []
        while piece := asking.recv(65536):
            pieces.append(piece)
    return b"".join(pieces).partition(b"\r\n\r\n")[2]


def status(path: Path) -> Json:
    """The status of the gateway whose socket this is. Raises OSError if none runs there."""
    return jsonio.decode(ask(path))
