"""The admin interface: status, models, metrics, the recent log, reload, and clearing of cooldowns.

It is served on a private Unix socket, which only the user who runs the gateway can open. A loopback port is opened only
if configured: it requires the gateway's key on every route and is read-only. The port for clients has no admin routes.
The command line uses `send_admin_request` to query a running gateway. Workers of one gateway talk to each other through
further routes of their private sockets (`worker_sharing`).
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from time import monotonic, time
from typing import Protocol, TypeAlias

from msgspec import structs

from dragoman.errors import ClientFault, DragomanError, LocalMisuse
from dragoman.gateway.activity import Activity, summarize_activity
from dragoman.gateway.admission import KeyCheck
from dragoman.gateway.inspector_config import LEVELS, RecordLevel
from dragoman.gateway.log_filter import FilterError, parse_filter
from dragoman.gateway.recent import LogPage, LogQuery
from dragoman.gateway.records import LoggedRequest
from dragoman.gateway.reload import ReloadResult
from dragoman.gateway.secrets import make_private_folder
from dragoman.http.client.client import ClientResponse, HttpClient, HttpTimeouts
from dragoman.http.exchange import HttpExchange
from dragoman.http.server.serving import HttpServer, Listener
from dragoman.http.unix_sockets import socket_address
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

_TIMEOUT = 5.0  # seconds
RELOAD_TIMEOUT = 60.0  # seconds; a reload may start simulators, and ask many workers
_POLL = 0.1  # seconds between two looks at the recent log, while a reader follows it
_KEEP_ALIVE = 5.0  # seconds after which a reader of a silent log gets an empty line
_STALE = 60.0  # seconds after which a socket that no process listens on is removed
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024
MAX_CONNECTIONS = 32  # Each takes a file descriptor that clients could use.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024  # of a worker to another
_HOST = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?")  # allowed values of the Host header
WorkerRoutes: TypeAlias = Mapping[str, Callable[[bytes], bytes | None]]  # the response to a message, None: not now
_NO_ROUTES: WorkerRoutes = {}
_JSON, _METRICS, _PLAIN = "application/json", "text/plain; version=0.0.4; charset=utf-8", "text/plain; charset=utf-8"


class RecordingSwitch(Protocol):
    """Turns the recording of requests on and off, in one process or in all workers."""

    def set_level(self, level: RecordLevel) -> None:
        """Record at this level from now on."""

    def purge(self) -> None:
        """Delete all recordings."""

    def describe(self) -> dict[str, Json]:
        """Return what is recorded."""


class ManagedGateway(Protocol):
    """The interface of a gateway for its operator: one gateway, or several workers that act as one."""

    def status(self) -> dict[str, Json]:
        """Return version, state, configuration and the health of the upstreams."""

    async def models(self) -> dict[str, Json]:
        """Return the models that can be asked for."""

    def metrics(self) -> bytes:
        """Return the metrics in the Prometheus text format."""

    def cooldowns(self) -> list[Json]:
        """Return the active cooldowns."""

    def clear(self, upstream: str) -> dict[str, Json]:
        """End the cooldowns of one upstream, or of all for an empty name. Return `cleared` or `problem`."""

    def identity(self) -> dict[str, Json]:
        """Return what distinguishes this gateway from the one after its restart: `instance`, `pid`, `version`."""

    async def log_page(self, query: LogQuery) -> LogPage:
        """Return recent requests and events."""

    async def find_requests(self, prefix: str) -> list[LoggedRequest]:
        """Return the recent requests whose id begins so, with details.

        For an empty prefix, return those that failed or lost content.
        """

    async def activities(self) -> list[Activity]:
        """Return what each process does now."""

    async def reload_configuration(self, *, quiet: bool = False) -> ReloadResult:
        """Read the configuration again and apply it. With `quiet`, success is logged at level debug only."""

    @property
    def recording(self) -> RecordingSwitch:
        """The switch of the recording of requests."""

    @property
    def key(self) -> str:
        """The gateway's key, which the admin port requires."""


class Admin:
    """Handles one request per connection.

    Only the user who runs the gateway can open the private socket (`is_private`): it needs no key and allows changes.
    `routes` are those of a worker for its siblings, which keep their connections.
    """

    def __init__(self, gateway: ManagedGateway, *, is_private: bool, routes: WorkerRoutes = _NO_ROUTES) -> None:
        self._gateway = gateway
        self._is_private, self._routes = is_private, routes

    async def answer(self, exchange: HttpExchange) -> None:
        """Handle one request, and close its connection."""
        request = exchange.request
        refusal = self._refusal(request)
        if refusal is None and request.method == "POST" and (route := self._routes.get(request.path)) is not None:
            await _answer_worker(exchange, route)
            return
        exchange.last = True
        if refusal is None and request.method == "GET" and request.path == "/log":
            try:
                parse_filter(request.parameter("filter"))
                await self._send_log(exchange)
                return
            except FilterError as error:
                refusal = 400, _PLAIN, f"{error}\n".encode()
        status, kind, body = refusal or await self._response(request)
        exchange.whole(status, (("content-type", kind),), body)

    def _refusal(self, request: HttpRequest) -> tuple[int, str, bytes] | None:
        if not _is_for_loopback(request):
            return 421, _PLAIN, b"not this server\n"
        if not self._is_private and not KeyCheck(self._gateway.key).find_known(request):
            return 401, _PLAIN, b"send the gateway's key as a bearer token or as x-api-key\n"
        if request.method != "GET" and not (request.method == "POST" and self._is_private):
            return 405, _PLAIN, b"GET only\n"
        return None

    async def _response(self, request: HttpRequest) -> tuple[int, str, bytes]:
        gateway = self._gateway
        match request.method, request.path:
            case "POST", "/cooldowns/clear":
                result = gateway.clear(request.parameter("upstream"))
                return 404 if "problem" in result else 200, _JSON, jsonio.encode(result)
            case "POST", "/reload":
                done = await gateway.reload_configuration(quiet=request.parameter("quiet") == "1")
                return 409 if done.refused else 200, _JSON, jsonio.encode(done)
            case "POST", "/recording":
                level = request.parameter("level")
                if level not in LEVELS:
                    return 400, _PLAIN, f"level is one of {', '.join(LEVELS)}\n".encode()
                gateway.recording.set_level(LEVELS[level])
                return 200, _JSON, jsonio.encode(gateway.recording.describe())
            case "POST", "/recordings/purge":
                gateway.recording.purge()
                return 200, _JSON, jsonio.encode(gateway.recording.describe())
            case "POST", _:
                return 405, _PLAIN, b"GET only\n"
            case "GET", "/status":
                return 200, _JSON, jsonio.encode_pretty(gateway.status()) + b"\n"
            case "GET", "/models":
                return 200, _JSON, jsonio.encode_pretty(await gateway.models()) + b"\n"
            case "GET", "/metrics":
                return 200, _METRICS, gateway.metrics()
            case "GET", "/cooldowns":
                return 200, _JSON, jsonio.encode_pretty(gateway.cooldowns()) + b"\n"
            case "GET", "/requests":
                return 200, _JSON, jsonio.encode(await gateway.find_requests(request.parameter("id")))
            case "GET", "/activity":
                activities = await gateway.activities()
                each = request.parameter("each") == "1"
                summary = activities if each else summarize_activity(activities, gateway.identity())
                return 200, _JSON, jsonio.encode(summary)
            case "GET", "/healthz":
                return 200, _PLAIN, b"ok\n"
            case _:
                return 404, _PLAIN, b"/status, /models, /metrics, /cooldowns, /log, /requests, /activity, /healthz\n"

    # --- the log as lines of JSON

    async def _send_log(self, exchange: HttpExchange) -> None:
        """Send recent requests and events; with `follow=1`, further ones as they come.

        Lines with the field `control` are about the log itself: which gateway it is of, how many lines were missed,
        and the cursor to continue from. A reader that reads too slowly gets no lines until it has caught up; what is
        no longer kept by then is counted as missed.
        """
        request, gateway = exchange.request, self._gateway
        query = _log_query(request)
        follows = request.parameter("follow") == "1"
        exchange.head(200, (("content-type", "application/x-ndjson"),))
        exchange.send_keep_alive = lambda: exchange.chunk(b"\n")
        exchange.chunk(_control("gateway", gateway.identity()))
        sent_at = monotonic()
        while True:
            page = await gateway.log_page(query)
            if page.lines or page.missed or not query.cursor:
                missed = _control("missed", {"lines": page.missed}) if page.missed else b""
                cursor = _control("cursor", {"cursor": page.cursor})
                exchange.chunk(missed + b"".join([line + b"\n" for line in page.lines]) + cursor)
                sent_at = monotonic()
            elif monotonic() - sent_at > _KEEP_ALIVE:
                exchange.chunk(b"\n")
                sent_at = monotonic()
            if not follows:
                exchange.chunk(b"", last=True)
                return
            await asyncio.sleep(_POLL)
            while exchange.paused:
                await asyncio.sleep(_POLL)
            query = structs.replace(query, cursor=page.cursor, last=None)


async def _answer_worker(exchange: HttpExchange, route: Callable[[bytes], bytes | None]) -> None:
    """Answer a message of another worker."""
    try:
        response = route(await exchange.body(MAX_MESSAGE_BYTES))
    except (ClientFault, jsonio.JsonError) as error:
        exchange.last = True
        exchange.whole(400, (("content-type", _PLAIN),), f"{error}\n".encode())
        return
    kind = (("content-type", "application/octet-stream"),)
    exchange.whole(503 if response is None else 200, kind, response or b"")


def _control(name: str, fields: dict[str, Json]) -> bytes:
    """Return a line about the log itself."""
    return jsonio.encode({"control": name, **fields}) + b"\n"


def _log_query(request: HttpRequest) -> LogQuery:
    last, until = request.parameter("n"), request.parameter("until")
    try:
        moment = float(until) if until else None
    except ValueError:
        moment = None
    number = int(last) if last.isdecimal() and len(last) < 8 else None
    details = request.parameter("details") == "1"
    return LogQuery(request.parameter("cursor"), number, moment, details, request.parameter("filter"))


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
    gateway: ManagedGateway,
    path: Path | None,
    port: int | None = None,
    warn: Callable[[str], None] | None = None,
    *,
    routes: WorkerRoutes = _NO_ROUTES,
    most: int = MAX_CONNECTIONS,
) -> AsyncIterator[None]:
    """Listen on the socket and the port inside the `async with` block. The socket serves `routes`, too.

    Raises LocalMisuse if another gateway uses the socket, OSError if it cannot be created. With `warn`, a port in use
    is a warning instead of an OSError.
    """
    listeners: list[Listener] = []
    if path is not None and hasattr(socket, "AF_UNIX"):
        listeners.append(admin_listener(gateway, is_private=True, routes=routes, most=most))
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


def admin_listener(
    gateway: ManagedGateway,
    *,
    is_private: bool,
    routes: WorkerRoutes = _NO_ROUTES,
    most: int = MAX_CONNECTIONS,
) -> Listener:
    """Return a listener that serves the admin interface; it does not listen yet."""
    return Listener(HttpServer(Admin(gateway, is_private=is_private, routes=routes).answer), most=most)


def choose_socket(path: Path, port: int, warn: Callable[[str], None]) -> Path:
    """Return the path of the admin socket of the gateway on this port.

    It is the configured one or, if another gateway uses that, one next to it, with a warning.
    """
    if not _is_listening(path):
        return path
    chosen = fallback_socket(path, port)
    if _is_listening(chosen):
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
    paths = sorted(path.parent.glob(f"{path.stem}-*{path.suffix}"))
    return [each for each in paths if _is_listening(each)]


def find_socket(path: Path) -> Path:
    """Return the configured socket, or that of the only gateway of this user if none listens there."""
    if _is_listening(path):
        return path
    others = other_sockets(path)
    return others[0] if len(others) == 1 else path


@contextmanager
def temporary_socket(path: Path, port: int) -> Iterator[Path]:
    """Give the path of a socket next to the configured one, named by the port, for a gateway that ends with a client.

    Sockets that killed gateways left are removed first, and at the end the folders that were created for it.
    """
    for each in path.parent.glob(f"{path.stem}-*{path.suffix}"):
        with suppress(OSError):
            if each.stat().st_mtime < time() - _STALE and not _is_listening(each):
                each.unlink()
    created = [folder for folder in path.parents if not folder.exists()]
    try:
        yield fallback_socket(path, port)
    finally:
        for folder in created:
            with suppress(OSError):  # Another gateway uses it.
                folder.rmdir()


def _bind_private(path: Path) -> socket.socket:
    """Bind a Unix socket that only this user can open. Its mode is set before `listen`: no other user can connect."""
    make_private_folder(path.parent)
    if path.exists():
        if _is_listening(path):
            raise LocalMisuse(f"another gateway uses the admin socket {path}: stop it, or set server.admin_socket")
        path.unlink()  # left by a gateway that was killed
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(path) as address:
            listening.bind(address)
        os.chmod(path, 0o600)  # noqa: PTH101  next to the bind that it belongs to
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            with socket_address(path) as address:
                probe.connect(address)
        except OSError:
            return False
    return True


def send_admin_request(path: Path, what: str = "/status", method: str = "GET", timeout: float = _TIMEOUT) -> bytes:
    """Send a request to the admin socket and return the response body. Raises OSError if no gateway listens there."""
    fetching = fetch(path, what, method, timeout)
    with ThreadPoolExecutor(1) as thread:  # The caller's thread may have a running event loop.
        return thread.submit(asyncio.run, fetching).result()


async def fetch(path: Path, what: str, method: str = "GET", timeout: float = _TIMEOUT) -> bytes:
    """Send a request to the admin socket and return the response body. Raises OSError if no gateway listens there."""
    async with _opened(path, what, method, timeout) as response:
        return await response.read(_MAX_RESPONSE_BYTES)


async def stream_lines(path: Path, what: str) -> AsyncIterator[bytes]:
    """Yield the lines of a response as they come; empty ones are left out. Raises OSError when the connection ends."""
    async with _opened(path, what, "GET", _TIMEOUT) as response:
        rest = b""
        async for piece in response.pieces():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line:
                    yield line


@asynccontextmanager
async def _opened(path: Path, what: str, method: str, timeout: float) -> AsyncIterator[ClientResponse]:
    target, _, query = what.partition("?")
    # A gateway that has stopped, and not ended, sends no keep-alive.
    timeouts = HttpTimeouts(head=timeout, idle=max(timeout, 4 * _KEEP_ALIVE), silent=math.inf, total=math.inf)
    client = HttpClient(unix=path)
    try:
        yield await client.open("http://localhost", HttpRequest(method, target, query), timeouts=timeouts)
    except DragomanError as error:
        raise OSError(f"the gateway at {path} does not respond: {error}") from None
    finally:
        await client.aclose()
