"""Status, metrics and the clearing of cooldowns, for this machine's user alone: a Unix socket nobody else can open.

A loopback port only if configured. It needs the gateway's key on every route, and changes nothing. The port that
clients use has none of this.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

from dragoman.errors import DragomanError, LocalMisuse
from dragoman.gateway.admission import KeyCheck
from dragoman.gateway.secrets import make_private_folder
from dragoman.http.client.client import HttpClient, HttpTimeouts
from dragoman.http.exchange import HttpExchange
from dragoman.http.server.serving import HttpServer, Listener
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

_SECONDS = 5.0
_MOST_BYTES = 64 * 1024 * 1024  # of a status or of metrics
_MOST = 32  # connections at once: each takes a file descriptor from the clients
_NAMED = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?")  # as a Host header may name us
_JSON, _METRICS, _PLAIN = "application/json", "text/plain; version=0.0.4; charset=utf-8", "text/plain; charset=utf-8"


class ManagedGateway(Protocol):
    """Who is asked: a gateway, or several as one."""

    def status(self) -> dict[str, Json]: ...
    def metrics(self) -> bytes: ...
    def cooldowns(self) -> list[Json]: ...
    def clear(self, upstream: str) -> dict[str, Json]: ...

    @property
    def key(self) -> str:
        """The gateway's key, which the admin port asks for."""


class Admin:
    """Answers one request a connection.

    Only this machine's user can open the private socket (`ours`), so it needs no key and may change things.
    """

    def __init__(self, gateway: ManagedGateway, *, ours: bool) -> None:
        self._gateway = gateway
        self._ours = ours

    async def answer(self, exchange: HttpExchange) -> None:
        status, kind, body = self._response(exchange.request)
        exchange.last = True
        exchange.whole(status, (("content-type", kind),), body)

    def _response(self, request: HttpRequest) -> tuple[int, str, bytes]:
        if not _is_ours(request):
            return 421, _PLAIN, b"not this server\n"
        if not self._ours and not KeyCheck(self._gateway.key).holds_key(request):
            return 401, _PLAIN, b"send the gateway's key as a bearer token or as x-api-key\n"
        if request.method == "POST" and request.path == "/cooldowns/clear" and self._ours:
            told = self._gateway.clear(request.parameter("upstream"))  # of all upstreams, or of one
            return 404 if "problem" in told else 200, _JSON, jsonio.encode(told)
        if request.method != "GET":
            return 405, _PLAIN, b"GET only\n"
        match request.path:
            case "/status":
                return 200, _JSON, jsonio.encode_pretty(self._gateway.status()) + b"\n"
            case "/metrics":
                return 200, _METRICS, self._gateway.metrics()
            case "/cooldowns":
                return 200, _JSON, jsonio.encode_pretty(self._gateway.cooldowns()) + b"\n"
            case "/healthz":
                return 200, _PLAIN, b"ok\n"
            case _:
                return 404, _PLAIN, b"/status, /metrics, /cooldowns, /healthz\n"


def _is_ours(request: HttpRequest) -> bool:
    """A web page may point its own name at a loopback port: only loopback's names are ours, and no page is served."""
    hosts = [value.lower() for name, value in request.headers if name == "host"]
    sites = {value.lower() for name, value in request.headers if name == "sec-fetch-site"}
    if any(name == "origin" for name, _ in request.headers) or sites - {"none", "same-origin"}:
        return False
    return len(hosts) == 1 and _NAMED.fullmatch(hosts[0]) is not None


@asynccontextmanager
async def serve_admin(
    gateway: ManagedGateway, path: Path | None, port: int | None = None, warn: Callable[[str], None] | None = None
) -> AsyncIterator[None]:
    """Listen while this lasts. Raises LocalMisuse if another gateway has the socket, OSError if it cannot be made.

    With `warn`, a port that is taken is a warning.
    """
    listeners: list[Listener] = []
    if path is not None and hasattr(socket, "AF_UNIX"):
        listeners.append(admin_listener(gateway, ours=True))
        await listeners[-1].listen_at(_bound(path))
    if port is not None:
        listeners.append(admin_listener(gateway, ours=False))
        try:
            await listeners[-1].listen("127.0.0.1", port)
        except OSError as error:
            if warn is None or error.errno != errno.EADDRINUSE:
                raise
            warn(f"server.admin_port {port} is taken by another process: this gateway has none")
    try:
        yield
    finally:
        for each in listeners:
            await each.close()
        if path is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def admin_listener(gateway: ManagedGateway, *, ours: bool) -> Listener:
    return Listener(HttpServer(Admin(gateway, ours=ours).answer), most=_MOST)


def choose_socket(path: Path, port: int, warn: Callable[[str], None]) -> Path:
    """The socket of the gateway on this port: the configured one; if another gateway has that, one beside it, with a
    warning.
    """
    if not _answers(path):
        return path
    chosen = fallback_socket(path, port)
    if _answers(chosen):
        chosen = path.with_name(f"{path.stem}-{port}-{os.getpid()}{path.suffix}")  # the same port of another address
    ours = f"the socket of this one is {chosen} (dragoman status --port {port})"
    warn(f"another gateway answers at {path}: {ours}")
    return chosen


def fallback_socket(path: Path, port: int) -> Path:
    """Where a gateway has its socket if another gateway has the configured one."""
    return path.with_name(f"{path.stem}-{port}{path.suffix}")


def other_sockets(path: Path) -> list[Path]:
    """The sockets beside the configured one at which gateways answer."""
    found = sorted(path.parent.glob(f"{path.stem}-*{path.suffix}"))
    return [each for each in found if _answers(each)]


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


def send_admin_request(path: Path, what: str = "/status", method: str = "GET") -> bytes:
    """What a running gateway answers, for the command line. Raises OSError if none runs there."""
    target, _, query = what.partition("?")
    asking = _asked(path, HttpRequest(method, target, query))
    with ThreadPoolExecutor(1) as thread:  # the caller may have a loop of its own, which waits
        return thread.submit(asyncio.run, asking).result()


async def _asked(path: Path, request: HttpRequest) -> bytes:
    client = HttpClient(unix=str(path))
    try:
        reply = await client.open("http://localhost", request, timeouts=HttpTimeouts(head=_SECONDS, idle=_SECONDS))
        return await reply.read(_MOST_BYTES)
    except DragomanError as error:
        raise OSError(f"the gateway at {path} does not answer: {error}") from None
    finally:
        await client.aclose()
