"""Runs the gateway: its server, signals, the admin socket; in a thread for tests.

first signal   not ready any more; for a moment still listening, for balancers that are slow to notice; then only
               what runs goes on, to its end or until its time is up
second signal  what runs is cut, each stream with its dialect's error
third          everything ends at once
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
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.gateway import admin
from dragoman.gateway.access_log import AccessLog, Level
from dragoman.gateway.admission import TrustedProxies
from dragoman.gateway.app import Gateway
from dragoman.gateway.config import Config
from dragoman.gateway.config import Server as Settings
from dragoman.gateway.limits import Trimmer, peer_share
from dragoman.gateway.retry_policy import RetrySettings
from dragoman.http.framing import SWEEP_SECONDS
from dragoman.http.server.connection import ServerConnection
from dragoman.http.server.proxy_protocol import ProxiedConnection
from dragoman.http.server.serving import Acceptor, HttpServer
from dragoman.http.server.sockets import defer_accept

_LAST_WORDS = 2.0  # seconds between the last error of a stream and the end
_LINGER = 3.0  # seconds that we listen after SIGTERM
_MOST_CONNECTIONS = 10_000
_SPARE = 64  # file descriptors that are not for clients


class GatewayServer:
    """Serves a gateway on one listening socket. `url` and `key` are what a client needs."""

    def __init__(self, gateway: Gateway, settings: Settings, *, shared: bool = False) -> None:
        self.listening = listen(settings.host, settings.port, shared=shared)
        self.gateway, self.key = gateway, gateway.key
        self.url = gateway.url = url_of(self.listening)
        self.loop: asyncio.AbstractEventLoop | None = None  # what it runs in
        self._settings = settings
        self._drain = settings.drain
        self._ending = asyncio.Event()
        self._changed = asyncio.Event()
        self._signals = 0
        self._cut_at = self._linger_until = 0.0
        self._forced = False

    async def serve(self, ready: Callable[[], None]) -> None:
        """Until it is stopped. Raises what the gateway's start does."""
        loop = self.loop = asyncio.get_running_loop()
        await self.gateway.start()
        server = HttpServer(self.gateway.handle)
        acceptor = self._acceptor(server)

        sweeping = loop.create_task(_sweep(server, acceptor, Trimmer(self.gateway.memory_budget)))
        try:
            ready()
            await self._ending.wait()
            await self._drained(acceptor, server)
        finally:
            acceptor.close()
            server.abort()
            sweeping.cancel()
            await self.gateway.stop()

    def stop(self, *, hurried: bool = False, linger: float = 0.0) -> None:
        """Take no more, and give what runs its time; `hurried` does not wait for streams.

        May be called from a signal, or from another thread.
        """
        self.gateway.draining = True  # /readyz reports 503, so load balancers send no more requests
        loop = self.loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._begin_to_end, hurried, linger)
        else:
            self._ending.set()

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """While this lasts, signals end it. Of this process's main thread only."""
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
        # After SIGINT (a person at a terminal) no load balancer needs time to notice.
        self.stop(hurried=self._signals > 1, linger=_LINGER if number == signal.SIGTERM else 0.0)

    def _begin_to_end(self, hurried: bool, linger: float) -> None:
        assert self.loop is not None
        now = self.loop.time()
        if not self._ending.is_set():
            self._ending.set()
            self._cut_at = now + self._drain
            self._linger_until = now + min(linger, self._drain)
        if hurried:
            self._cut_at = self._linger_until = now
        self._changed.set()

    async def _drained(self, acceptor: Acceptor, server: HttpServer) -> None:
        """Wait for running requests; cut them when the drain time is over, and abandon those that still run."""
        await self._until(lambda: False, lambda: self._linger_until)
        acceptor.close()
        server.stop_keep_alive()

        def over() -> bool:
            return self._forced or (not server.connections and not self.gateway.in_flight)

        await self._until(over, lambda: self._cut_at)
        self.gateway.cut()
        last = asyncio.get_running_loop().time() + _LAST_WORDS
        await self._until(over, lambda: last)

    async def _until(self, true: Callable[[], bool], when: Callable[[], float]) -> None:
        loop = asyncio.get_running_loop()
        while not true() and not self._forced and (left := when() - loop.time()) > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left, 0.02))

    def _acceptor(self, server: HttpServer) -> Acceptor:
        room, settings = _room(), self._settings
        proxies = TrustedProxies(settings.trusted_proxies)
        share = peer_share(settings.limits.peer_connections, room)

        def max_of_peer(address: str) -> int:  # a proxy has the connections of many clients
            return room if proxies.trusts(address) else share

        def first(own: ServerConnection) -> asyncio.BaseProtocol:
            if proxies.trusts(own.client):
                return ProxiedConnection(server.connections, own, max_of_peer)
            return own

        return Acceptor(
            self.listening,
            server,
            most=room,
            max_of_peer=max_of_peer if proxies.networks else lambda _: share,
            on_exhausted=self._exhausted,
            first=first if settings.proxy_protocol else None,
        )

    def _exhausted(self, error: OSError) -> None:
        self.gateway.log.event("error", "no_connection", message=f"cannot take another connection: {error.strerror}")


async def _sweep(server: HttpServer, acceptor: Acceptor, trimmer: Trimmer) -> None:
    while True:
        now = time.monotonic()  # read anew: uvloop's clock stands still during a turn
        server.sweep(now)
        acceptor.resume_accepting()
        trimmer.trim_if_idle(now)
        await asyncio.sleep(SWEEP_SECONDS)


def _room() -> int:
    """How many connections fit: each stream needs a second one, to its upstream."""
    try:
        import resource  # noqa: PLC0415  not everywhere
    except ImportError:
        return _MOST_CONNECTIONS
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(_MOST_CONNECTIONS, (most - _SPARE) // 2))


_SEND_BUFFER = 256 * 1024  # so that the kernel does not hold megabytes for a client that does not read
_BACKLOG = 2048
_COLLECT = (25_000, 10, 10)  # a long conversation is thousands of values, and none of them a cycle


def listen(host: str, port: int, *, shared: bool = False, backlog: int | None = _BACKLOG) -> socket.socket:
    """The socket that clients reach; `shared` with other processes there. No backlog: bound only. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)  # those accepted inherit both
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
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    config: Config,
    *,
    ready: Callable[[GatewayServer], None] | None = None,
    read: Callable[[], Config] | None = None,
    worker: bool = False,
) -> int:
    """Serve until a signal ends it. Return the exit status.

    `ready` is called with the server when it listens; with `read`, SIGHUP reloads the configuration. A `worker` shares
    its port with others and ends with its parent. Raises ConfigError if the key is not available, OSError if the
    address cannot be used.
    """
    raise_file_limit()
    gateway = Gateway(config)
    route_logs(gateway)
    running = GatewayServer(gateway, config.server, shared=worker)
    socket_path, listening = config.server.admin_socket, running.listening

    def warn(about: str, message: str) -> None:
        gateway.log.event("warning", about, message=message)

    if not worker:  # whose parent has chosen it
        socket_path = admin.choose_socket(socket_path, listening.getsockname()[1], partial(warn, "admin_socket"))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        if read is not None and hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, lambda: _reload(gateway, read))
        if worker:
            _end_with_parent(running)
        with running.signals():
            async with admin.serve_admin(gateway, socket_path, config.server.admin_port, partial(warn, "admin_port")):
                await running.serve(lambda: ready(running) if ready else None)

    gc.freeze()  # what is loaded by now stays: no collection need look at it
    gc.set_threshold(*_COLLECT)
    gc.enable()
    with contextlib.closing(listening), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())
    return 0


def raise_file_limit() -> None:
    """Allow this process as many open files as the system lets it have: each stream needs two."""
    try:
        import resource  # noqa: PLC0415  not everywhere
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS reports more than it allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _end_with_parent(running: GatewayServer) -> None:
    loop, standard_input = asyncio.get_running_loop(), 0

    def read() -> None:
        if not os.read(standard_input, 64):
            loop.remove_reader(standard_input)
            running.stop()

    loop.add_reader(standard_input, read)


def _reload(gateway: Gateway, read: Callable[[], Config]) -> None:
    """Validate, then swap: a bad file changes nothing."""

    async def swap() -> None:
        try:
            await gateway.reload(read())
        except (DragomanError, OSError) as error:
            gateway.reload_refused = str(error)
            gateway.log.event("error", "reload_refused", why=str(error))

    gateway.run_in_background(swap())


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed: it is worth a fifth of the time of a short stream."""
    if sys.platform == "win32":
        return None
    try:
        import uvloop  # noqa: PLC0415  it may not be there
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class _ToJournal(logging.Handler):
    """What the libraries under us have to say, in our form and without secrets."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(logging.INFO)
        self._gateway = gateway

    def emit(self, record: logging.LogRecord) -> None:
        level: Level = (
            "error" if record.levelno >= logging.ERROR else "warning" if record.levelno >= logging.WARNING else "debug"
        )
        self._gateway.log.event(level, record.name, message=record.getMessage())


def route_logs(gateway: Gateway) -> None:
    """Send the log records of libraries to the access log, where secrets are removed."""
    for name in ("dragoman", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [_ToJournal(gateway)]
        logger.setLevel(logging.INFO)
        logger.propagate = False


@contextlib.contextmanager
def running_gateway(
    config: Config,
    *,
    state: Path | None = None,
    journal: AccessLog | None = None,
    patience: RetrySettings | None = None,
    key: str | None = None,
    admin_socket: bool = False,
) -> Iterator[GatewayServer]:
    """A gateway in a thread of its own, on the configured address (port 0: a free one)."""
    gateway = Gateway(config, key=key, state=state, journal=journal, patience=patience)
    running = GatewayServer(gateway, config.server)
    ready = threading.Event()
    failed: list[BaseException] = []

    async def main() -> None:
        socket_path, port = (config.server.admin_socket, config.server.admin_port) if admin_socket else (None, None)
        async with admin.serve_admin(gateway, socket_path, port):
            await running.serve(ready.set)

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(main())
        except BaseException as error:  # noqa: BLE001  raised in the thread that waits
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
