"""Runs the gateway: a server with our application behind it, signals, the admin socket; in a thread for tests."""

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
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.gateway import admin
from dragoman.gateway.app import Gateway
from dragoman.gateway.config import Config
from dragoman.gateway.observe import AccessLog, Level
from dragoman.gateway.policy import Patience
from dragoman.gateway.running import Server
from dragoman.http.server.sockets import defer_accept

_SEND_BUFFER = 256 * 1024  # so that the kernel does not hold megabytes for a client that does not read
_BACKLOG = 2048
_COLLECT = (25_000, 10, 10)  # a long conversation is thousands of values, and none of them a cycle


class Running:
    """A gateway that serves. `url` and `key` are what a client needs."""

    def __init__(self, gateway: Gateway, server: Server, url: str) -> None:
        self.gateway = gateway
        self.url = gateway.url = url
        self.key = gateway.key
        self._server = server
        self.loop: asyncio.AbstractEventLoop | None = None  # what it runs in

    def stop(self, *, hurried: bool = False, linger: float = 0.0) -> None:
        """Begin to end; may be called from any thread. `hurried` does not wait for streams."""
        self._server.wind_down(hurried=hurried, linger=linger)


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
    ready: Callable[[Running], None] | None = None,
    read: Callable[[], Config] | None = None,
    worker: bool = False,
) -> int:
    """Serve until a signal ends it; the exit status. `ready` is told where; `read` makes SIGHUP reload; a `worker` is
    one of several on its port, and ends with its parent.

    Raises ConfigError for a key that cannot be had, OSError for an address that cannot.
    """
    raise_file_limit()
    gateway = Gateway(config)
    route_logs(gateway)
    listening = listen(config.server.host, config.server.port, shared=worker)
    server = Server(gateway, config.server)
    running = Running(gateway, server, url_of(listening))
    socket_path = config.server.admin_socket
    if not worker:  # whose parent has chosen it
        socket_path = _admin_socket(gateway, socket_path, listening.getsockname()[1])

    def warn(message: str) -> None:
        gateway.tell("warning", "admin_port", message=message)

    async def main() -> None:
        loop = running.loop = asyncio.get_running_loop()
        if read is not None and hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, lambda: _reload(gateway, read))
        if worker:
            _end_with_parent(running)
        with server.signals():
            async with admin.serving(gateway, socket_path, config.server.admin_port, warn):
                await server.serve(listening, lambda: ready(running) if ready else None)

    gc.freeze()  # what is loaded by now stays: no collection need look at it
    gc.set_threshold(*_COLLECT)
    gc.enable()
    with contextlib.closing(listening), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())
    return 0


def _admin_socket(gateway: Gateway, configured: Path, port: int) -> Path:
    """Choose the admin socket, and warn if it is not the configured one."""
    chosen = admin.own_socket(configured, port)
    if chosen != configured:
        ours = f"the socket of this one is {chosen} (dragoman status --port {port})"
        gateway.tell("warning", "admin_socket", message=f"another gateway answers at {configured}: {ours}")
    return chosen


def raise_file_limit() -> None:
    """Allow this process as many open files as the system lets it have: each stream needs two."""
    try:
        import resource  # noqa: PLC0415  not everywhere
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS reports more than it allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _end_with_parent(running: Running) -> None:
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
            gateway.tell("error", "reload_refused", why=str(error))

    gateway.later(swap())


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
        self._gateway.tell(level, record.name, message=record.getMessage())


def route_logs(gateway: Gateway) -> None:
    """Send what libraries log to the gateway's own journal: else it may end up on somebody's screen."""
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
    patience: Patience | None = None,
    key: str | None = None,
    admin_socket: bool = False,
) -> Iterator[Running]:
    """A gateway in a thread of its own, on the configured address (port 0: a free one)."""
    gateway = Gateway(config, key=key, state=state, journal=journal, patience=patience)
    listening = listen(config.server.host, config.server.port)
    server = Server(gateway, config.server)
    running = Running(gateway, server, url_of(listening))
    ready = threading.Event()
    failed: list[BaseException] = []

    async def main() -> None:
        running.loop = asyncio.get_running_loop()
        async with _admin(gateway, config, admin_socket):
            await server.serve(listening, ready.set)

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(main())
        except BaseException as error:  # noqa: BLE001  told to whoever waits for us
            failed.append(error)
        finally:
            listening.close()
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


@contextlib.asynccontextmanager
async def _admin(gateway: Gateway, config: Config, wanted: bool) -> AsyncIterator[None]:
    if not wanted:
        yield
        return
    async with admin.serving(gateway, config.server.admin_socket, config.server.admin_port):
        yield
