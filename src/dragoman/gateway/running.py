"""The life of the gateway's server: accept, sweep, and on a signal drain.

first signal   not ready any more; for a moment still listening, for balancers that are slow to notice; then only
               what runs goes on, to its end or until its time is up
second signal  what runs is cut, each stream with its dialect's error
third          everything is let go of
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator

from dragoman.gateway.app import Gateway
from dragoman.gateway.config import Server as Settings
from dragoman.gateway.limits import peer_share
from dragoman.gateway.peers import TrustedProxies
from dragoman.gateway.trimming import Trimmer
from dragoman.http.framing import SWEEP_SECONDS
from dragoman.http.server.connection import Connection
from dragoman.http.server.proxy_protocol import ProxiedConnection
from dragoman.http.server.serving import Acceptor, HttpServer

_LAST_WORDS = 2.0  # seconds between the last error of a stream and the end
_LINGER = 3.0  # seconds that we listen after SIGTERM
_MOST_CONNECTIONS = 10_000
_SPARE = 64  # file descriptors that are not for clients


class Server:
    """Serves a gateway on one listening socket."""

    def __init__(self, gateway: Gateway, settings: Settings) -> None:
        self._gateway = gateway
        self._settings = settings
        self._drain = settings.drain
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()
        self._changed = asyncio.Event()
        self._signals = 0
        self._cut_at = self._linger_until = 0.0
        self._forced = False

    async def serve(self, listening: socket.socket, ready: Callable[[], None]) -> None:
        """Until it is wound down. Raises what the gateway's start does."""
        loop = self._loop = asyncio.get_running_loop()
        await self._gateway.start()
        server = HttpServer(self._gateway.answer)
        acceptor = self._acceptor(listening, server)

        sweeping = loop.create_task(_sweep(server, acceptor, Trimmer(self._gateway.load)))
        try:
            ready()
            await self._ending.wait()
            await self._drained(acceptor, server)
        finally:
            acceptor.close()
            server.abort()
            sweeping.cancel()
            await self._gateway.stop()

    def wind_down(self, *, hurried: bool = False, linger: float = 0.0) -> None:
        """Take no more, and give what runs its time. May be called from a signal, or from another thread."""
        self._gateway.drain()
        loop = self._loop
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
        # Nobody balances what a person at a terminal ends.
        self.wind_down(hurried=self._signals > 1, linger=_LINGER if number == signal.SIGTERM else 0.0)

    def _begin_to_end(self, hurried: bool, linger: float) -> None:
        assert self._loop is not None
        now = self._loop.time()
        if not self._ending.is_set():
            self._ending.set()
            self._cut_at = now + self._drain
            self._linger_until = now + min(linger, self._drain)
        if hurried:
            self._cut_at = self._linger_until = now
        self._changed.set()

    async def _drained(self, acceptor: Acceptor, server: HttpServer) -> None:
        """Wait for what runs; cut it when its time is up; let go of it when it does not end even so."""
        await self._until(lambda: False, lambda: self._linger_until)
        acceptor.close()
        server.quiet()

        def over() -> bool:
            return self._forced or (not server.roster and not self._gateway.in_flight)

        await self._until(over, lambda: self._cut_at)
        self._gateway.cut()
        last = asyncio.get_running_loop().time() + _LAST_WORDS
        await self._until(over, lambda: last)

    async def _until(self, true: Callable[[], bool], when: Callable[[], float]) -> None:
        loop = asyncio.get_running_loop()
        while not true() and not self._forced and (left := when() - loop.time()) > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left, 0.02))

    def _acceptor(self, listening: socket.socket, server: HttpServer) -> Acceptor:
        room, settings = _room(), self._settings
        proxies = TrustedProxies(settings.trusted_proxies)
        share = peer_share(settings.limits.peer_connections, room)

        def most_of_peer(address: str) -> int:  # a proxy has the connections of many clients
            return room if proxies and proxies.trusts(address) else share

        def first(own: Connection, client: str) -> asyncio.BaseProtocol:
            if proxies.trusts(client):
                return ProxiedConnection(server.roster, own, most_of_peer)
            return own

        return Acceptor(
            listening,
            server,
            most=room,
            most_of_peer=most_of_peer,
            exhausted=self._exhausted,
            first=first if settings.proxy_protocol else None,
        )

    def _exhausted(self, error: OSError) -> None:
        self._gateway.tell("error", "no_connection", message=f"cannot take another connection: {error.strerror}")


async def _sweep(server: HttpServer, acceptor: Acceptor, trimmer: Trimmer) -> None:
    while True:
        now = time.monotonic()  # read anew: uvloop's clock stands still during a turn
        server.sweep(now)
        acceptor.look_again()
        trimmer.look(now)
        await asyncio.sleep(SWEEP_SECONDS)


def _room() -> int:
    """How many connections fit: each stream needs a second one, to its upstream."""
    try:
        import resource  # noqa: PLC0415  not everywhere
    except ImportError:
        return _MOST_CONNECTIONS
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(_MOST_CONNECTIONS, (most - _SPARE) // 2))
