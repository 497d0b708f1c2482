"""The HTTP/1.1 client, with pooled connections and a push interface. One client belongs to one event loop.

    response = await client.open(base_url, request, timeouts=HttpTimeouts())   # returns after the head
    await response.pump(on_bytes)                                              # returns at the end of the body

`ConnectFailed` always means that nothing was sent, so a retry is safe. Redirects are not followed, because a request
carries credentials. A request is sent again only if a pooled connection closes before the first byte of the response,
and only once.

A `ConnectionPool` belongs to one upstream and credential: its connections, the number of running exchanges, and a queue
of waiting ones. A connection is opened only if none is idle, so there are never more connections than slots. A
connection carries one exchange at a time.

A pooled connection is reused only if its last response was complete and nothing followed it before the next request
is written; a connection that received a byte meanwhile is closed, and the request uses another. HTTP/1.1 has one gap
here: a response that a peer sends after the next request was written, without having read it, looks like the response
to that request. So a connection serves one upstream and credential only, and such a response can only come from the
right service, for a request with the same credential.

Turns of the event loop: the reader of a body translates it inside the read callback. So at most `TURN_BYTES` of one
connection are passed on in one turn of the loop. A longer read is buffered, reading pauses, and each of the next turns
passes on a part. The loop reads a connection twice within one turn only after a read that filled its buffer, which is
longer than `TURN_BYTES`; so only the length of each read matters. If the connection ends meanwhile, the end is handled
after the buffered bytes.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import cast

from msgspec import Struct

from dragoman.errors import ConnectFailed, Fault, Reset
from dragoman.http.addresses import BaseUrl, Proxy, parse_base_url, parse_proxy
from dragoman.http.client.connecting import TlsSettings, open_connection
from dragoman.http.client.response import TURN_BYTES, ClientResponse, HttpTimeouts, request_head
from dragoman.http.unix_sockets import socket_address
from dragoman.wire.http import HttpRequest

__all__ = [
    "ClientConnection",
    "ClientResponse",
    "ConnectionPool",
    "ConnectionSlots",
    "HttpClient",
    "HttpTimeouts",
    "PoolExhausted",
    "PoolLimits",
    "PoolState",
    "TlsSettings",
]

_ONE_PIECE = 64 * 1024  # bytes of a body that are sent in one buffer with the head; longer ones are not copied
_SWEEP_SECONDS = 0.25
_CLOSE_SECONDS = 1.0


class PoolExhausted(ConnectFailed):
    """Too many exchanges with the upstream are running or waiting. No request was sent, and the upstream is fine."""


class ConnectionSlots:
    """A FIFO semaphore with a bounded queue. Every successful `take` or `wait` needs a `release`.

    At most `most` exchanges with `name` run at once. Up to `waiting` others wait, each for at most `seconds`.
    """

    __slots__ = ("_most", "_most_waiting", "_name", "_queue", "_seconds", "_status", "active")

    def __init__(self, name: str, most: int, waiting: int, seconds: float, status: int) -> None:
        self.active = 0
        self._name, self._most, self._most_waiting, self._seconds, self._status = name, most, waiting, seconds, status
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """The number of exchanges in the queue."""
        return len(self._queue)

    def take(self) -> bool:
        """Take a slot if one is free; return whether it was."""
        if self.active >= self._most:
            return False
        self.active += 1
        return True

    async def wait(self, within: float = inf) -> None:
        """Wait for a slot. Raises PoolExhausted if the queue is full or the time runs out."""
        if len(self._queue) >= self._most_waiting:
            raise self._busy(f"and {self._most_waiting} wait" if self._most_waiting else "and there is no queue")
        seconds = min(within, self._seconds)
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.release()  # the slot arrived at the moment of the timeout or cancellation
            elif turn in self._queue:
                self._queue.remove(turn)
            if isinstance(error, TimeoutError):
                raise self._busy(f"and none ended within {seconds:g} s") from None
            raise

    def release(self) -> None:
        """Pass the slot to the first exchange in the queue, or free it."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.active -= 1

    def _busy(self, why: str) -> PoolExhausted:
        message = f"{self._name} is busy: {self._most} requests are running, {why}"
        return PoolExhausted(message, fault=Fault("overloaded", message, self._status, retry_after=1.0))


class PoolLimits(Struct, frozen=True):
    """The limits of one connection pool."""

    connections: int = 256
    idle: int = 64
    idle_seconds: float = 55.0  # less than the 60 s and 75 s after which balancers and servers close connections
    waiting: int = 64
    wait_seconds: float = 5.0


class PoolState(Struct, frozen=True):
    """A snapshot of one connection pool, for status and metrics."""

    origin: str
    active: int
    idle: int
    waiting: int


class ConnectionPool:
    """The connections to one origin with one credential, and the exchanges that use them."""

    def __init__(self, name: str, limits: PoolLimits) -> None:
        self.name = name
        self.connections: set[ClientConnection] = set()
        self.active_responses: set[ClientResponse] = set()
        self.loop = asyncio.get_running_loop()
        self.limits = limits
        self.idle: list[ClientConnection] = []
        self.slots = ConnectionSlots(name, limits.connections, limits.waiting, limits.wait_seconds, 503)
        self._poll = (
            select.poll() if hasattr(select, "poll") else None
        )  # shared by all connections, because each poll object has a table of its own

    @property
    def state(self) -> PoolState:
        """A snapshot of the pool."""
        return PoolState(self.name, self.slots.active, len(self.idle), self.slots.waiting)

    def take(self) -> ClientConnection | None:
        """Return the idle connection that was used last; None if none is usable."""
        while self.idle:
            connection = self.idle.pop()
            transport = connection.transport
            if transport is None or transport.is_closing():
                continue
            if self._poll is None:
                return connection
            # Readable data is the end of the connection, or bytes that belong to no request. If the event loop has
            # read such bytes, `data_received` has closed the connection already.
            descriptor = transport.get_extra_info("socket").fileno()
            self._poll.register(descriptor, select.POLLIN)
            has_unread = self._poll.poll(0)
            self._poll.unregister(descriptor)
            if not has_unread:
                return connection
            connection.abort()
        return None

    def forget(self, connection: ClientConnection) -> None:
        """Remove a closed connection."""
        self.connections.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)

    def sweep(self, now: float) -> bool:
        """Fail overdue exchanges and close old idle connections; return whether any are left."""
        for response in list(self.active_responses):
            response.check_deadlines(now)
        oldest = now - self.limits.idle_seconds
        for connection in [each for each in self.idle if each.idle_since <= oldest]:
            self.idle.remove(connection)
            connection.abort()
        return bool(self.active_responses or self.idle)

    def close(self) -> None:
        """Close all connections and end their exchanges."""
        for response in list(self.active_responses):
            response.close()
        for connection in list(self.connections):
            connection.abort()


class ClientConnection(Struct, asyncio.Protocol, eq=False):
    """One connection to an upstream. It feeds the current response, at most `TURN_BYTES` per turn of the loop."""

    _pool: ConnectionPool
    idle_since: float = 0.0
    is_paused: bool = False  # the reader of the body has paused it
    response: ClientResponse | None = None
    is_reused: bool = False
    transport: asyncio.Transport | None = None
    _reading: bool = True
    _buffered: bytes = b""  # bytes that were read and wait for the next turn of the loop
    _is_scheduled: bool = False  # `_next_turn` will be called
    _on_end: Callable[[], None] | None = None  # handles the end of the connection, after the buffered bytes

    __repr__ = object.__repr__

    # --- called by the response and the pool

    @property
    def is_writing(self) -> bool:
        """Whether part of the request is not sent yet."""
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def release(self, *, keep: bool) -> None:
        """Return the connection to the pool after a complete response; close it if it cannot be reused."""
        self.response, transport, pool = None, self.transport, self._pool
        keep = keep and not self._buffered and len(pool.idle) < pool.limits.idle
        if not keep or transport is None or transport.is_closing():
            self.abort()
            return
        # Unsent bytes mean that the response came before the request was sent: the next request would follow the rest.
        # While reading is paused, TLS may hold bytes after the response that the socket does not show.
        if transport.get_write_buffer_size() or (self.is_paused and transport.get_extra_info("ssl_object") is not None):
            self.abort()
            return
        if self.is_paused:
            self.resume()
        self.is_reused = True
        self.idle_since = monotonic()
        pool.idle.append(self)

    def pause(self) -> None:
        """Stop reading."""
        self.is_paused = True
        self._update_reading()

    def resume(self) -> None:
        """Read again; buffered bytes come first."""
        if self.is_paused:
            self.is_paused = False
            self._update_reading()
            if self._buffered or self._on_end is not None:
                self._schedule()

    def abort(self) -> None:
        """Close the connection at once and discard buffered bytes."""
        self.response = self._on_end = None
        self._buffered = b""
        if self.transport is not None:
            self.transport.abort()

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._pool.connections.add(self)

    def data_received(self, data: bytes) -> None:
        response = self.response
        if response is None:
            self.abort()  # bytes that belong to no request
        elif self._is_scheduled or self._buffered or len(data) > TURN_BYTES:
            self._buffered += data
            self._schedule()
            self._update_reading()
        else:
            response.feed(data)

    def _next_turn(self) -> None:
        """Pass on buffered bytes, at most `TURN_BYTES`; after the last ones handle the end, or read again."""
        self._is_scheduled = False
        if self.is_paused:
            return
        if self._buffered:
            piece, self._buffered = self._buffered[:TURN_BYTES], self._buffered[TURN_BYTES:]
            self._schedule()
            if self.response is None:
                self.abort()
            else:
                self.response.feed(piece)
        elif self._on_end is not None:
            handle_end, self._on_end = self._on_end, None
            handle_end()
        if not self._reading:
            self._update_reading()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._pool.loop.call_soon(self._next_turn)

    def _update_reading(self) -> None:
        """Read from the socket if the reader is not paused and nothing is buffered; otherwise pause."""
        wanted, transport = not self.is_paused and not self._buffered, self.transport
        if wanted != self._reading and transport is not None and not transport.is_closing():
            self._reading = wanted
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def eof_received(self) -> None:
        self._end_with(partial(self._ended, self.response is not None and self._closed_in_order()))

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        self.transport = None
        self._end_with(partial(self._lost, exc))

    def _end_with(self, handle_end: Callable[[], None]) -> None:
        """Handle the end of the connection now, or after the buffered bytes. Of two ends the first counts."""
        if self._on_end is not None:
            return
        if self._buffered:
            self._on_end = handle_end
        else:
            handle_end()

    def _ended(self, in_order: bool) -> None:
        if self.response is not None:
            self.response.connection_ended(in_order=in_order)
        self.abort()  # `close` would first wait until everything is written, perhaps to a peer that does not read

    def _lost(self, exc: Exception | None) -> None:
        if self.response is None:
            return
        if exc is not None:
            self.response.connection_failed(Reset(f"{self._pool.name} broke the connection: {exc}"))
        else:  # uvloop does not call `eof_received` when TCP ends before TLS does
            self.response.connection_ended(in_order=False)

    def _closed_in_order(self) -> bool:
        """Return whether TLS was closed, too. If not, a third party on the network may have cut the body."""
        tls = self.transport.get_extra_info("ssl_object") if self.transport is not None else None
        try:
            return tls is None or not tls.read(1)
        except ssl.SSLZeroReturnError:
            return True
        except ssl.SSLError:
            return False


@dataclass(frozen=True, slots=True)
class _Target:
    """A parsed base URL with its connection pool and the constant parts of every request head."""

    address: BaseUrl
    tls: TlsSettings | None
    proxy: Proxy | None
    pool: ConnectionPool
    prefix: str  # the beginning of every request target
    lines: str  # header lines of every request


class HttpClient:
    """Sends requests over pooled connections. With `unix`, all connections go to that socket, whatever the URL."""

    def __init__(
        self, *, caps: PoolLimits | None = None, sweep_seconds: float = _SWEEP_SECONDS, unix: Path | None = None
    ) -> None:
        self._unix = unix
        self._caps = caps or PoolLimits()
        self._sweep_seconds = sweep_seconds
        self._targets: dict[tuple[str, TlsSettings | None, str | None, str], _Target] = {}
        self._pools: dict[tuple[str, TlsSettings | None, Proxy | None, str], ConnectionPool] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def open(
        self,
        base_url: str,
        request: HttpRequest,
        *,
        timeouts: HttpTimeouts | None = None,
        tls: TlsSettings | None = None,
        proxy: str | None = None,
        new_connection: bool = False,
        pool: str = "",
    ) -> ClientResponse:
        """Send a request and return the response after its head. Path and query are appended to those of `base_url`.

        `new_connection` uses a new connection, so that the request is never sent twice. Requests with different
        `pool` names (one for each upstream and credential) never share a connection.

        Raises ConnectFailed (nothing was sent; PoolExhausted if the queue is full, kind `timeout` after a timeout),
        TimedOut, Reset, Truncated or BadFrame. Any early end, also a cancellation, closes the connection.
        """
        began, limits = monotonic(), timeouts or HttpTimeouts()
        base = self._targets.get((base_url, tls, proxy, pool)) or self._make_target(base_url, tls, proxy, pool)
        shared, body = base.pool, request.body
        head = request_head(
            base.prefix, base.address.query, base.lines, request.method, request.path, request.query, request.headers
        )
        if body or request.method not in ("GET", "HEAD"):
            head += b"content-length: %d\r\n" % len(body)
        payload = (b"%b\r\n%b" % (head, body),) if len(body) <= _ONE_PIECE else (head + b"\r\n", body)
        if not shared.slots.take():
            await shared.slots.wait(limits.total)
        response = ClientResponse(shared, limits, began + limits.total, request.method == "HEAD")
        try:
            connection = None if new_connection else shared.take()
            while not response.status:  # a pooled connection may turn out to be closed; a new one succeeds or fails
                connection = connection or await self._connect(base, limits, began)
                shared.active_responses.add(response)
                if self._timer is None:
                    self._timer = shared.loop.call_later(self._sweep_seconds, self._sweep)
                await response.send_request(connection, payload)
                connection = None
        except BaseException:
            response.close()
            raise
        return response

    def pools(self) -> list[PoolState]:
        """Return the state of every connection pool."""
        return [pool.state for pool in self._pools.values()]

    async def aclose(self) -> None:
        """Close all connections, and end the responses that are still being read."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for pool in self._pools.values():
            pool.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while any(pool.connections for pool in self._pools.values()):
                    await asyncio.sleep(0)

    def _make_target(self, base_url: str, tls: TlsSettings | None, proxy_url: str | None, name: str) -> _Target:
        address = parse_base_url(base_url)
        proxy = parse_proxy(proxy_url) if proxy_url else None
        origin = f"{address.scheme}://{address.authority}"
        pool = self._pools.setdefault((origin, tls, proxy, name), ConnectionPool(origin, self._caps))
        prefix, lines = address.prefix, f"host: {address.authority}\r\naccept-encoding: identity\r\n"
        if proxy is not None and address.scheme == "http":  # no tunnel: the proxy needs the whole URL
            prefix = origin + prefix
            lines += f"proxy-authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
        target = _Target(address, tls, proxy, pool, prefix, lines)
        self._targets[base_url, tls, proxy_url, name] = target
        return target

    async def _connect(self, target: _Target, timeouts: HttpTimeouts, began: float) -> ClientConnection:
        self._check_open()
        if self._unix is not None:
            loop = asyncio.get_running_loop()
            with socket_address(self._unix) as address:
                return (await loop.create_unix_connection(lambda: ClientConnection(target.pool), address))[1]
        left = max(began + timeouts.total - monotonic(), 0.0)
        within = HttpTimeouts(
            dns=min(timeouts.dns, left), connect=min(timeouts.connect, left), tls=min(timeouts.tls, left)
        )
        connection = await open_connection(
            lambda: ClientConnection(target.pool), target.address, timeouts=within, tls=target.tls, proxy=target.proxy
        )
        self._check_open(connection)
        return connection

    def _check_open(self, connection: ClientConnection | None = None) -> None:
        if self._closed:
            if connection is not None:
                connection.abort()
            raise ConnectFailed("the HTTP client is closed")

    def _sweep(self) -> None:
        now = monotonic()
        busy = [pool.sweep(now) for pool in self._pools.values()]
        again = any(busy) and not self._closed
        self._timer = asyncio.get_running_loop().call_later(self._sweep_seconds, self._sweep) if again else None
