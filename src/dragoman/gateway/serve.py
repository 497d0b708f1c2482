"""Run the gateway: its server, signals and admin socket. Tests and `dragoman run` run it in a thread.

What SIGTERM and SIGINT do:

first signal   /readyz reports 503. After SIGTERM the socket listens for a few more seconds, for load balancers that are
               slow to notice. Then running requests continue until they end or the drain time is over.
second signal  Running requests are aborted; each stream ends with its dialect's error.
third signal   The process ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from dragoman.gateway import admin
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.admission import TrustedProxies
from dragoman.gateway.app import Gateway
from dragoman.gateway.config import Config, LoadedConfig
from dragoman.gateway.config import Server as Settings
from dragoman.gateway.limits import Trimmer, peer_share
from dragoman.gateway.records import LogLevel
from dragoman.gateway.reload import Reloader
from dragoman.gateway.retry_policy import RetrySettings
from dragoman.http.framing import SWEEP_SECONDS
from dragoman.http.server.connection import ServerConnection
from dragoman.http.server.proxy_protocol import ProxiedConnection
from dragoman.http.server.serving import Acceptor, HttpServer
from dragoman.http.server.sockets import defer_accept

_ABORT_TIME = 2.0  # seconds for aborted streams to send their error
_LINGER = 3.0  # seconds that the socket still listens after SIGTERM
_MAX_CONNECTIONS = 10_000
_RESERVED_FILES = 64  # file descriptors that are not for clients


class GatewayServer:
    """Serves a gateway on one listening socket. A client needs its `url` and `key`."""

    def __init__(self, gateway: Gateway, settings: Settings, *, shared: bool = False) -> None:
        self.listening = listen(settings.host, settings.port, shared=shared)
        self.gateway, self.key = gateway, gateway.key
        self.url = gateway.url = url_of(self.listening)
        self.loop: asyncio.AbstractEventLoop | None = None  # the loop it runs in
        self._ending = asyncio.Event()
        self._changed = asyncio.Event()
        self._signals = 0
        self._cut_at = self._linger_until = 0.0
        self._forced = False

    async def serve(self, ready: Callable[[], None]) -> None:
        """Serve until it is stopped; `ready` is called when it accepts connections.

        Raises the exceptions of `Gateway.start`.
        """
        loop = self.loop = asyncio.get_running_loop()
        await self.gateway.start()
        server = HttpServer(self.gateway.handle)
        acceptor = self._acceptor(server)

        sweeping = loop.create_task(_sweep(self.gateway, server, acceptor))
        try:
            ready()
            await self._ending.wait()
            await self._drain_requests(acceptor, server)
        finally:
            acceptor.close()
            server.abort()
            sweeping.cancel()
            await self.gateway.stop()

    def stop(self, *, abort: bool = False, linger: float = 0.0) -> None:
        """Accept no more requests and let the running ones end; `abort` ends them.

        `linger` is for how many seconds the socket still listens. May be called from a signal handler or from another
        thread.
        """
        self.gateway.draining = True  # /readyz reports 503, so load balancers send no more requests
        loop = self.loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._begin_stop, abort, linger)
        else:
            self._ending.set()

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Return a context in which SIGTERM and SIGINT stop the server. Only for the main thread of the process."""
        names = (signal.SIGTERM, signal.SIGINT)
        before = {name: signal.signal(name, lambda number, _: self._signalled(number)) for name in names}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)

    def _signalled(self, number: int) -> None:
        self._signals += 1
        if self._signals > 2:
            self._forced = True
        # SIGINT comes from a terminal, so no load balancer needs time to notice.
        self.stop(abort=self._signals > 1, linger=_LINGER if number == signal.SIGTERM else 0.0)

    def _begin_stop(self, abort: bool, linger: float) -> None:
        assert self.loop is not None
        now = self.loop.time()
        if not self._ending.is_set():
            self._ending.set()
            drain = self.gateway.server_settings.drain
            self._cut_at = now + drain
            self._linger_until = now + min(linger, drain)
        if abort:
            self._cut_at = self._linger_until = now
        self._changed.set()

    async def _drain_requests(self, acceptor: Acceptor, server: HttpServer) -> None:
        """Wait for running requests; abort them when the drain time is over, then wait for their errors to be sent."""
        await self._until(lambda: False, lambda: self._linger_until)
        acceptor.close()
        server.stop_keep_alive()

        def is_idle() -> bool:
            return self._forced or (not server.connections and not self.gateway.in_flight)

        await self._until(is_idle, lambda: self._cut_at)
        self.gateway.cut()
        last = asyncio.get_running_loop().time() + _ABORT_TIME
        await self._until(is_idle, lambda: last)

    async def _until(self, condition: Callable[[], bool], deadline: Callable[[], float]) -> None:
        """Wait until the condition is true or the deadline, which a signal may move, is over."""
        loop = asyncio.get_running_loop()
        while not condition() and not self._forced and (left := deadline() - loop.time()) > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left, 0.02))

    def _acceptor(self, server: HttpServer) -> Acceptor:
        most = _max_connections()
        max_of_peer, first = _connection_policy(self.gateway.server_settings, server, most)
        acceptor = Acceptor(
            self.listening, server, most=most, max_of_peer=max_of_peer, on_exhausted=self._exhausted, first=first
        )

        def configure() -> None:
            acceptor.max_of_peer, acceptor.first = _connection_policy(self.gateway.server_settings, server, most)

        self.gateway.on_reloaded = configure
        return acceptor

    def _exhausted(self, error: OSError) -> None:
        self.gateway.log.event("error", "no_connection", message=f"cannot accept another connection: {error.strerror}")


def _connection_policy(
    settings: Settings, server: HttpServer, most: int
) -> tuple[Callable[[str], int], Callable[[ServerConnection], asyncio.BaseProtocol] | None]:
    """Return how many connections an address may have, and what reads the start of a connection; None: HTTP."""
    proxies, share = TrustedProxies(settings.trusted_proxies), peer_share(settings.limits.peer_connections, most)

    def max_of_peer(address: str) -> int:  # A proxy has the connections of many clients.
        return most if proxies.trusts(address) else share

    def first(connection: ServerConnection) -> asyncio.BaseProtocol:
        if proxies.trusts(connection.client):
            return ProxiedConnection(server.connections, connection, max_of_peer)
        return connection

    return max_of_peer if proxies.networks else lambda _: share, first if settings.proxy_protocol else None


async def _sweep(gateway: Gateway, server: HttpServer, acceptor: Acceptor) -> None:
    trimmer = Trimmer(gateway.memory_budget)
    while True:
        now = time.monotonic()  # uvloop's clock does not advance during one iteration of the loop
        server.sweep(now)
        acceptor.resume_accepting()
        trimmer.trim_if_idle(now)
        if gateway.breaker.cooldowns:
            gateway.breaker.end_expired()
        await asyncio.sleep(SWEEP_SECONDS)


def _max_connections() -> int:
    """Return how many clients can connect: each stream needs a second file descriptor, for its upstream."""
    try:
        import resource  # noqa: PLC0415  not on Windows
    except ImportError:
        return _MAX_CONNECTIONS
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(_MAX_CONNECTIONS, (limit - _RESERVED_FILES) // 2))


_SEND_BUFFER = 256 * 1024  # bounds the bytes that the kernel buffers for a client that does not read
_BACKLOG = 2048
_COLLECT = (25_000, 10, 10)  # A long conversation is thousands of values without reference cycles.


def listen(host: str, port: int, *, shared: bool = False, backlog: int | None = _BACKLOG) -> socket.socket:
    """Return the listening socket; `shared` allows other processes to listen on the same port. Raises OSError.

    Without a backlog the socket is bound, but does not listen.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER
        )  # Accepted sockets inherit both options.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.bind((host, port))
        if backlog is not None:
            defer_accept(listening)
            listening.listen(backlog)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def url_of(listening: socket.socket) -> str:
    """Return the URL by which a client on this machine reaches the socket."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    loaded: LoadedConfig,
    *,
    ready: Callable[[GatewayServer], None],
    read: Callable[[], LoadedConfig],
    worker: bool = False,
    siblings: Sequence[Path] = (),
) -> int:
    """Serve until a signal ends it. Return the exit status.

    `ready` is called with the server when it listens; SIGHUP and `dragoman reload` load the configuration with `read`.
    A `worker` shares its port with its siblings, which listen at these admin sockets, and ends with its parent. Raises
    ConfigError if the key is not available, OSError if the address cannot be used.
    """
    raise_file_limit()
    config = loaded.config
    gateway = Gateway(config)
    route_logs(gateway)
    running = GatewayServer(gateway, config.server, shared=worker)
    socket_path, listening = config.server.admin_socket, running.listening

    def warn(about: str, message: str) -> None:
        gateway.log.event("warning", about, message=message)

    if not worker:  # The parent of a worker has chosen the path.
        socket_path = admin.choose_socket(socket_path, listening.getsockname()[1], partial(warn, "admin_socket"))

    async def main() -> None:
        _reload_on_signal(gateway, Reloader(loaded, read, gateway.reload, gateway.log))
        if worker:
            _end_with_parent(running)
        with running.signals():
            if siblings:
                await _serve_with_siblings(running, siblings, socket_path, partial(ready, running))
                return
            async with admin.serve_admin(gateway, socket_path, config.server.admin_port, partial(warn, "admin_port")):
                await running.serve(partial(ready, running))

    gc.freeze()  # Objects that exist now are permanent, so collections can skip them.
    gc.set_threshold(*_COLLECT)
    gc.enable()
    with contextlib.closing(listening), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())
    return 0


async def _serve_with_siblings(
    running: GatewayServer, siblings: Sequence[Path], socket_path: Path, ready: Callable[[], None]
) -> None:
    """Serve as one of several workers, which share earlier responses and cooldowns."""
    gateway = running.gateway
    async with (
        gateway.share_with(siblings) as sharing,
        admin.serve_admin(gateway, socket_path, routes=sharing.routes, most=sharing.max_connections),
    ):
        await gateway.start()
        await sharing.join()
        await running.serve(ready)


def raise_file_limit() -> None:
    """Raise the limit of open files to the maximum: each stream needs two."""
    try:
        import resource  # noqa: PLC0415  not on Windows
    except ImportError:
        return
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS reports more than it allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


def _end_with_parent(running: GatewayServer) -> None:
    """Stop the server when standard input ends, because the parent process has ended."""
    loop, standard_input = asyncio.get_running_loop(), 0

    def read() -> None:
        if not os.read(standard_input, 64):
            loop.remove_reader(standard_input)
            running.stop()

    loop.add_reader(standard_input, read)


def _reload_on_signal(gateway: Gateway, reloader: Reloader) -> None:
    async def reload() -> None:
        await gateway.reload_configuration()

    gateway.reloader = reloader
    if hasattr(signal, "SIGHUP"):
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, lambda: gateway.run_in_background(reload()))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory if it is installed: it saves a fifth of the time of a short stream."""
    if sys.platform == "win32":
        return None
    try:
        import uvloop  # noqa: PLC0415  optional
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class _AccessLogHandler(logging.Handler):
    """Writes log records of libraries to the access log, with secrets masked."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(logging.DEBUG)
        self._gateway = gateway

    def emit(self, record: logging.LogRecord) -> None:
        level: LogLevel = (
            "error" if record.levelno >= logging.ERROR else "warning" if record.levelno >= logging.WARNING else "debug"
        )
        self._gateway.log.event(level, record.name, message=record.getMessage())


def route_logs(gateway: Gateway) -> None:
    """Send the log records of libraries to the access log, where secrets are masked; our own at level debug, too."""
    for name in ("dragoman", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [_AccessLogHandler(gateway)]
        logger.setLevel(logging.INFO)
        logger.propagate = False

    def set_level(level: LogLevel) -> None:
        logging.getLogger("dragoman").setLevel(logging.DEBUG if level == "debug" else logging.INFO)

    gateway.log.on_level = set_level
    set_level(gateway.log.level)


@contextlib.contextmanager
def _admin_place(
    running: GatewayServer, config: Config, admin_socket: Literal[False, True, "beside"]
) -> Iterator[tuple[Path | None, int | None]]:
    """Give the path and the port of the admin interface of a gateway in a thread."""
    if admin_socket == "beside":
        with admin.temporary_socket(config.server.admin_socket, running.listening.getsockname()[1]) as path:
            yield path, None
    else:
        yield (config.server.admin_socket, config.server.admin_port) if admin_socket else (None, None)


@contextlib.contextmanager
def running_gateway(
    config: Config,
    *,
    state: Path | None = None,
    access_log: AccessLog | None = None,
    retry_settings: RetrySettings | None = None,
    key: str | None = None,
    admin_socket: Literal[False, True, "beside"] = False,
) -> Iterator[GatewayServer]:
    """Run a gateway in a thread, on the configured address (port 0: a free port), while the context lasts.

    `admin_socket`: whether it listens on the configured socket, or "beside" it on one that is named by its port.
    """
    gateway = Gateway(config, key=key, state=state, access_log=access_log, retry_settings=retry_settings)
    running = GatewayServer(gateway, config.server)
    ready = threading.Event()
    failed: list[BaseException] = []

    async def main() -> None:
        with _admin_place(running, config, admin_socket) as (path, port):
            async with admin.serve_admin(gateway, path, port):
                await running.serve(ready.set)

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(main())
        except BaseException as error:  # noqa: BLE001  the waiting thread raises it
            failed.append(error)
        finally:
            running.listening.close()
            ready.set()

    thread = threading.Thread(target=run, name="gateway", daemon=True)
    thread.start()
    ready.wait()
    if failed:
        raise failed[0]
    try:
        yield running
    finally:
        running.stop()
        thread.join(config.server.drain + 10)
