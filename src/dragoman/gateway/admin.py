"""The admin interface: status, metrics, and clearing of cooldowns.

It is served on a private Unix socket, which only the user who runs the gateway can open. A loopback port is opened only
if configured: it requires the gateway's key on every route and is read-only. The port for clients has no admin routes.
The command line uses `send_admin_request` to query a running gateway.
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

_TIMEOUT = 5.0  # seconds
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024
_MAX_CONNECTIONS = 32  # Each takes a file descriptor that clients could use.
_HOST = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?")  # allowed values of the Host header
_JSON, _METRICS, _PLAIN = "application/json", "text/plain; version=0.0.4; charset=utf-8", "text/plain; charset=utf-8"


class ManagedGateway(Protocol):
    """What the admin interface needs: one gateway, or several workers that act as one."""

    def status(self) -> dict[str, Json]:
        """Return version, state, configuration and the health of the upstreams."""

    def metrics(self) -> bytes:
        """Return the metrics in the Prometheus text format."""

    def cooldowns(self) -> list[Json]:
        """Return the active cooldowns."""

    def clear(self, upstream: str) -> dict[str, Json]:
        """End the cooldowns of one upstream, or of all for an empty name. Return `cleared` or `problem`."""

    @property
    def key(self) -> str:
        """The gateway's key, which the admin port requires."""


class Admin:
    """Handles one request per connection.

    Only the user who runs the gateway can open the private socket (`is_private`): it needs no key and allows changes.
    """

    def __init__(self, gateway: ManagedGateway, *, is_private: bool) -> None:
        self._gateway = gateway
        self._is_private = is_private

    async def answer(self, exchange: HttpExchange) -> None:
        """Handle one request, and close its connection."""
        status, kind, body = self._response(exchange.request)
        exchange.last = True
        exchange.whole(status, (("content-type", kind),), body)

    def _response(self, request: HttpRequest) -> tuple[int, str, bytes]:
        if not _is_for_loopback(request):
            return 421, _PLAIN, b"not this server\n"
        if not self._is_private and not KeyCheck(self._gateway.key).holds_key(request):
            return 401, _PLAIN, b"send the gateway's key as a bearer token or as x-api-key\n"
        if request.method == "POST" and request.path == "/cooldowns/clear" and self._is_private:
            result = self._gateway.clear(request.parameter("upstream"))
            return 404 if "problem" in result else 200, _JSON, jsonio.encode(result)
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


def _is_for_loopback(request: HttpRequest) -> bool:
    """Return whether the Host is a loopback name and no web page sent the request.

    A web page may let its own host name resolve to loopback (DNS rebinding).
    """
    hosts = [value.lower() for name, value in request.headers if name == "host"]
    sites = {value.lower() for name, value in request.headers if name == "sec-fetch-site"}
    if any(name == "origin" for name, _ in request.headers) or sites - {"none", "same-origin"}:
        return False
    return len(hosts) == 1 and _HOST.fullmatch(hosts[0]) is not None


@asynccontextmanager
async def serve_admin(
    gateway: ManagedGateway, path: Path | None, port: int | None = None, warn: Callable[[str], None] | None = None
) -> AsyncIterator[None]:
    """Listen on the socket and the port inside the `async with` block.

    Raises LocalMisuse if another gateway uses the socket, OSError if it cannot be created. With `warn`, a port in use
    is a warning instead of an OSError.
    """
    listeners: list[Listener] = []
    if path is not None and hasattr(socket, "AF_UNIX"):
        listeners.append(admin_listener(gateway, is_private=True))
        await listeners[-1].listen_at(_bind_private(path))
    if port is not None:
        listeners.append(admin_listener(gateway, is_private=False))
        try:
            await listeners[-1].listen("127.0.0.1", port)
        except OSError as error:
            if warn is None or error.errno != errno.EADDRINUSE:
                raise
            warn(f"server.admin_port {port} is in use by another process: this gateway runs without an admin port")
    try:
        yield
    finally:
        for each in listeners:
            await each.close()
        if path is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def admin_listener(gateway: ManagedGateway, *, is_private: bool) -> Listener:
    """Return a listener that serves the admin interface; it does not listen yet."""
    return Listener(HttpServer(Admin(gateway, is_private=is_private).answer), most=_MAX_CONNECTIONS)


def choose_socket(path: Path, port: int, warn: Callable[[str], None]) -> Path:
    """Return the path of the admin socket of the gateway on this port.

    It is the configured one or, if another gateway uses that, one next to it, with a warning.
    """
    if not _answers(path):
        return path
    chosen = fallback_socket(path, port)
    if _answers(chosen):
        # A gateway with the same port of another address uses it.
        chosen = path.with_name(f"{path.stem}-{port}-{os.getpid()}{path.suffix}")
    hint = f"this gateway uses {chosen} (dragoman status --port {port})"
    warn(f"another gateway uses the admin socket {path}: {hint}")
    return chosen


def fallback_socket(path: Path, port: int) -> Path:
    """Return the admin socket of a gateway on this port while another gateway uses the configured one."""
    return path.with_name(f"{path.stem}-{port}{path.suffix}")


def other_sockets(path: Path) -> list[Path]:
    """Return the sockets next to the configured one on which a gateway listens."""
    found = sorted(path.parent.glob(f"{path.stem}-*{path.suffix}"))
    return [each for each in found if _answers(each)]


def _bind_private(path: Path) -> socket.socket:
    """Bind a Unix socket that only this user can open. Its mode is set before `listen`: no other user can connect."""
    make_private_folder(path.parent)
    if path.exists():
        if _answers(path):
            raise LocalMisuse(f"another gateway uses the admin socket {path}: stop it, or set server.admin_socket")
        path.unlink()  # left by a gateway that was killed
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        os.chmod(path, 0o600)  # noqa: PTH101  next to the bind that it belongs to
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
    """Send a request to the admin socket and return the response body. Raises OSError if no gateway listens there."""
    target, _, query = what.partition("?")
    fetching = _fetch(path, HttpRequest(method, target, query))
    with ThreadPoolExecutor(1) as thread:  # The caller's thread may have a running event loop.
        return thread.submit(asyncio.run, fetching).result()


async def _fetch(path: Path, request: HttpRequest) -> bytes:
    client = HttpClient(unix=str(path))
    try:
        response = await client.open("http://localhost", request, timeouts=HttpTimeouts(head=_TIMEOUT, idle=_TIMEOUT))
        return await response.read(_MAX_RESPONSE_BYTES)
    except DragomanError as error:
        raise OSError(f"the gateway at {path} does not respond: {error}") from None
    finally:
        await client.aclose()
