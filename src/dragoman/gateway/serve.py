"""Runs the gateway: uvicorn with our application, signals, the admin socket; in a thread for tests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn

from dragoman.errors import DragomanError
from dragoman.gateway import admin
from dragoman.gateway.app import Gateway
from dragoman.gateway.config import Config
from dragoman.gateway.observe import Journal, Level
from dragoman.gateway.policy import Patience

_SEND_BUFFER = 256 * 1024  # so that the kernel does not hold megabytes for a client that does not read
_KEEP_ALIVE = 75
_LAST_WORDS = 2.0  # seconds between the last error of a stream and the end


class _Server(uvicorn.Server):
    """Drains on the first signal, ends what runs on the second, and lets go of everything on the third."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, drain: float) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._drain = drain
        self._signals = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += 1
        self.wind_down(hurried=self._signals == 2)
        if self._signals > 2:
            self.force_exit = True

    def wind_down(self, *, hurried: bool = False) -> None:
        """Take no more, and give what runs its time. May be called from a signal, or from another thread."""
        self.should_exit = True
        self._gateway.drain()
        loop, wait = self._loop, 0.0 if hurried else self._drain
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(lambda: loop.call_later(wait, self._gateway.cut))


class Running:
    """A gateway that serves. `url` and `key` are what a client needs."""

    def __init__(self, gateway: Gateway, server: _Server, url: str) -> None:
        self.gateway = gateway
        self.url = url
        self.key = gateway.key
        self._server = server
        self.loop: asyncio.AbstractEventLoop | None = None  # what it runs in

    def stop(self, *, hurried: bool = False) -> None:
        """Begin to end; may be called from any thread. `hurried` does not wait for streams."""
        self._server.wind_down(hurried=hurried)


def listen(host: str, port: int) -> socket.socket:
    """The socket that clients reach. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)  # those accepted inherit it
        listening.bind((host, port))
        listening.listen(2048)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _server(gateway: Gateway, drain: float) -> _Server:
    config = uvicorn.Config(
        gateway,
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=int(drain + _LAST_WORDS) + 1,
    )
    return _Server(config, gateway, drain)


def serve(
    config: Config, *, ready: Callable[[Running], None] | None = None, read: Callable[[], Config] | None = None
) -> int:
    """Serve until a signal ends it; the exit status. `ready` is told where; `read` makes SIGHUP reload.

    Raises ConfigError for a key that cannot be had, OSError for an address that cannot.
    """
    gateway = Gateway(config)
    _route_logs(gateway)
    listening = listen(config.server.host, config.server.port)
    server = _server(gateway, config.server.drain)
    running = Running(gateway, server, url_of(listening))

    async def main() -> None:
        running.loop = asyncio.get_running_loop()
        if read is not None and hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: _reload(gateway, read))
        async with admin.serving(gateway, config.server.admin_socket, config.server.admin_port):
            await _served(server, listening, lambda: ready(running) if ready else None)

    with contextlib.closing(listening), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())
    return 0 if server.started else 1


def _reload(gateway: Gateway, read: Callable[[], Config]) -> None:
    """Validate, then swap: a bad file changes nothing."""

    async def swap() -> None:
        try:
            await gateway.reload(read())
        except (DragomanError, OSError) as error:
            gateway.reload_refused = str(error)
            gateway.tell("error", "reload_refused", why=str(error))

    gateway.later(swap())


async def _served(server: _Server, listening: socket.socket, ready: Callable[[], None]) -> None:
    async def announce() -> None:
        while not server.started and not server.should_exit:
            await asyncio.sleep(0.005)
        if server.started:
            ready()

    announcing = asyncio.create_task(announce())
    try:
        await server.serve(sockets=[listening])
    finally:
        announcing.cancel()
        listening.close()


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


def _route_logs(gateway: Gateway) -> None:
    for name in ("uvicorn.error", "dragoman", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [_ToJournal(gateway)]
        logger.setLevel(logging.INFO)
        logger.propagate = False


@contextlib.contextmanager
def running_gateway(
    config: Config,
    *,
    state: Path | None = None,
    journal: Journal | None = None,
    patience: Patience | None = None,
    key: str | None = None,
    admin_socket: bool = False,
) -> Iterator[Running]:
    """A gateway in a thread of its own, on the configured address (port 0: a free one)."""
    gateway = Gateway(config, key=key, state=state, journal=journal, patience=patience)
    listening = listen(config.server.host, config.server.port)
    server = _server(gateway, config.server.drain)
    running = Running(gateway, server, url_of(listening))
    ready = threading.Event()
    failed: list[BaseException] = []

    async def main() -> None:
        running.loop = asyncio.get_running_loop()
        async with _admin(gateway, config, admin_socket):
            await _served(server, listening, ready.set)

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
    if not server.started:
        raise RuntimeError("the gateway did not start; its log says why")
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
