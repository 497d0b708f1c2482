"""The upstream client: HTTP/1.1 over kept connections, with a push interface. One client belongs to one event loop.

    reply = await client.open(base_url, request, timeouts=Timeouts())   # returns at the head
    await reply.pump(on_bytes)                                          # returns at the body's end

`ConnectFailed` always means that nothing was sent, so another try is safe. Redirects are not followed: a request
carries credentials. Only a kept connection that closes before it has answered a byte is tried again, once.

A lane is one upstream and credential: its connections, how many exchanges may run, and the queue before them. A new
connection is made only when none is idle, so there are never more connections than slots. On a connection there is one
exchange at a time.

What is promised about a kept connection (S14): its answer was whole and nothing came with it or after it, up to the
moment at which the next request is written; one that received a byte before that is closed, and the request goes over
another. What HTTP/1.1 cannot tell: an answer that a peer sends after it was sent the next request, without having read
it, looks like the answer to that request. So a connection is used again only for the upstream and credential it was
made for, and a false answer can only come from the service that was asked, to a request with the same credential.

Turns: the reader of a body translates it inside the read callback. So at most `TURN_BYTES` of one connection are passed
on before the next turn of the event loop. A longer read is kept, reading pauses, and each of the next turns passes on a
part. The event loop reads a connection again within one turn only after a read that filled its buffer, which is longer
than `TURN_BYTES`; so only the length of each read counts. An end of the connection that comes meanwhile takes effect
after the kept bytes.
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
from time import monotonic
from typing import cast

from msgspec import Struct

from dragoman.errors import ConnectFailed, Fault, Reset
from dragoman.http.addresses import BaseUrl, Proxy, parse_base_url, parse_proxy
from dragoman.http.client.connecting import TlsSettings, open_connection
from dragoman.http.client.response import TURN_BYTES, ClientResponse, HttpTimeouts, request_head
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

_ONE_PIECE = 64 * 1024  # bytes of a body that are copied behind the head rather than passed beside it
_SWEEP_SECONDS = 0.25
_CLOSE_SECONDS = 1.0


class PoolExhausted(ConnectFailed):
    """We ask an upstream no more than we may: it was not asked, and has done nothing wrong."""


class ConnectionSlots:
    """A FIFO semaphore with a bounded queue. Every `take` or `wait` that succeeded needs its `leave`.

    At most `most` exchanges with `name` run at once. `waiting` others may wait, each for `seconds`.
    """

    __slots__ = ("_most", "_most_waiting", "_name", "_queue", "_seconds", "_status", "active")

    def __init__(self, name: str, most: int, waiting: int, seconds: float, status: int) -> None:
        self.active = 0
        self._name, self._most, self._most_waiting, self._seconds, self._status = name, most, waiting, seconds, status
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def take(self) -> bool:
        """A slot, if there is one at once."""
        if self.active >= self._most:
            return False
        self.active += 1
        return True

    async def wait(self, within: float = inf) -> None:
        """A slot, when it is our turn. Raises Busy."""
        if len(self._queue) >= self._most_waiting:
            raise self._busy(f"and {self._most_waiting} wait" if self._most_waiting else "and none may wait")
        seconds = min(within, self._seconds)
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.release()  # it came in the moment we gave up
            elif turn in self._queue:
                self._queue.remove(turn)
            if isinstance(error, TimeoutError):
                raise self._busy(f"and none ended within {seconds:g} s") from None
            raise

    def release(self) -> None:
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
    """Caps, each for one lane."""

    connections: int = 256
    idle: int = 64
    idle_seconds: float = 55.0  # under the 60 s and 75 s after which balancers and servers close by themselves
    waiting: int = 64
    wait_seconds: float = 5.0


class PoolState(Struct, frozen=True):
    """A look at one lane, for status and metrics."""

    origin: str
    active: int
    idle: int
    waiting: int


class ConnectionPool:
    def __init__(self, name: str, limits: PoolLimits) -> None:
        self.name = name
        self.connections: set[ClientConnection] = set()
        self.active_responses: set[ClientResponse] = set()
        self.loop = asyncio.get_running_loop()
        self.limits = limits
        self.idle: list[ClientConnection] = []
        self.slots = ConnectionSlots(name, limits.connections, limits.waiting, limits.wait_seconds, 503)
        self._poll = select.poll() if hasattr(select, "poll") else None  # one for all: each has a table of its own

    @property
    def state(self) -> PoolState:
        return PoolState(self.name, self.slots.active, len(self.idle), self.slots.waiting)

    def take(self) -> ClientConnection | None:
        """Give the connection used last, if one is idle and still good."""
        while self.idle:
            connection = self.idle.pop()
            transport = connection.transport
            if transport is None or transport.is_closing():
                continue
            if self._poll is None:
                return connection
            # Something to read would be its end, or bytes that belong to no request. What the loop has read of such
            # bytes has closed the connection already (`data_received`).
            descriptor = transport.get_extra_info("socket").fileno()
            self._poll.register(descriptor, select.POLLIN)
            has_unread = self._poll.poll(0)
            self._poll.unregister(descriptor)
            if not has_unread:
                return connection
            connection.abort()
        return None

    def forget(self, connection: ClientConnection) -> None:
        self.connections.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)

    def sweep(self, now: float) -> bool:
        """End what is overdue; False when nothing is left to watch."""
        for response in list(self.active_responses):
            response.check_deadlines(now)
        oldest = now - self.limits.idle_seconds
        for connection in [each for each in self.idle if each.idle_since <= oldest]:
            self.idle.remove(connection)
            connection.abort()
        return bool(self.active_responses or self.idle)

    def close(self) -> None:
        for response in list(self.active_responses):
            response.close()
        for connection in list(self.connections):
            connection.abort()


class ClientConnection(Struct, asyncio.Protocol, eq=False):
    """One connection to an upstream: its bytes go to the reply that is being read, as many as a turn may have."""

    _pool: ConnectionPool
    idle_since: float = 0.0
    is_paused: bool = False  # by the reader of the body
    response: ClientResponse | None = None
    is_reused: bool = False
    transport: asyncio.Transport | None = None
    _reading: bool = True
    _kept: bytes = b""  # bytes that were read and wait for the next turn
    _turning: bool = False  # `_next_turn` will be called
    _last: Callable[[], None] | None = None  # how the connection ended, if bytes were kept then

    __repr__ = object.__repr__

    # --- for the reply and the pool

    @property
    def is_writing(self) -> bool:
        """Whether part of the request is still here."""
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def release(self, *, keep: bool) -> None:
        """The answer is whole: keep the connection for the next exchange if it may be, else close it."""
        self.response, transport, pool = None, self.transport, self._pool
        keep = keep and not self._kept and len(pool.idle) < pool.limits.idle
        if not keep or transport is None or transport.is_closing():
            self.abort()
            return
        # With bytes still to write, the answer came before the request was sent: the rest of it would go first.
        # While paused, TLS may hold bytes behind the answer that no look at the socket shows.
        if transport.get_write_buffer_size() or (self.is_paused and transport.get_extra_info("ssl_object") is not None):
            self.abort()
            return
        if self.is_paused:
            self.resume()
        self.is_reused = True
        self.idle_since = monotonic()
        pool.idle.append(self)

    def pause(self) -> None:
        self.is_paused = True
        self._read_on()

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._read_on()
            if self._kept or self._last is not None:
                self._schedule()

    def abort(self) -> None:
        self.response = self._last = None
        self._kept = b""
        if self.transport is not None:
            self.transport.abort()

    # --- for the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._pool.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self.response is None:
            self.abort()  # bytes that no request asked for
        elif self._turning or self._kept or len(data) > TURN_BYTES:
            self._kept += data
            self._schedule()
            self._read_on()
        else:
            self.response.feed(data)

    def _next_turn(self) -> None:
        """Give on what was kept, as much as one turn may have; after the last of it, the end, or the next read."""
        self._turning = False
        if self.is_paused:
            return
        if self._kept:
            piece, self._kept = self._kept[:TURN_BYTES], self._kept[TURN_BYTES:]
            self._schedule()
            if self.response is None:
                self.abort()
            else:
                self.response.feed(piece)
        elif self._last is not None:
            last, self._last = self._last, None
            last()
        if not self._reading:
            self._read_on()

    def _schedule(self) -> None:
        if not self._turning:
            self._turning = True
            self._pool.loop.call_soon(self._next_turn)

    def _read_on(self) -> None:
        """Read from the socket exactly while the reader wants more and nothing is kept."""
        wanted, transport = not self.is_paused and not self._kept, self.transport
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

    def _end_with(self, last: Callable[[], None]) -> None:
        """The connection ended: now, or after the bytes that came before the end. Of two ends the first counts."""
        if self._last is not None:
            return
        if self._kept:
            self._last = last
        else:
            last()

    def _ended(self, in_order: bool) -> None:
        if self.response is not None:
            self.response.connection_ended(in_order=in_order)
        self.abort()  # a mere close would first wait until all is written, perhaps to a peer that does not read

    def _lost(self, exc: Exception | None) -> None:
        if self.response is None:
            return
        if exc is not None:
            self.response.connection_failed(Reset(f"{self._pool.name} broke the connection: {exc}"))
        else:  # an end that `eof_received` was not told of: uvloop does so when TCP ends and TLS has not
            self.response.connection_ended(in_order=False)

    def _closed_in_order(self) -> bool:
        """Whether TLS was ended, too: else anybody on the way could have cut the body."""
        tls = self.transport.get_extra_info("ssl_object") if self.transport is not None else None
        try:
            return tls is None or not tls.read(1)
        except ssl.SSLZeroReturnError:
            return True
        except ssl.SSLError:
            return False


@dataclass(frozen=True, slots=True)
class _Way:
    """A base URL, made ready: the lane its connections share and what begins every request."""

    address: BaseUrl
    tls: TlsSettings | None
    proxy: Proxy | None
    pool: ConnectionPool
    before: str  # the target's beginning
    fixed: str  # head fields that are always the same


class HttpClient:
    """With `unix` all connections go to that socket, whatever host a URL names."""

    def __init__(
        self, *, caps: PoolLimits | None = None, sweep_seconds: float = _SWEEP_SECONDS, unix: str = ""
    ) -> None:
        self._unix = unix
        self._caps = caps or PoolLimits()
        self._sweep_seconds = sweep_seconds
        self._ways: dict[tuple[str, TlsSettings | None, str | None, str], _Way] = {}
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
        """Send a request and give the reply when its head is here; `path` and `query` follow the base URL's own.

        With `fresh` it goes over a new connection, so it is never sent twice. Requests of another `lane` (an upstream
        and its credential) never use the same connection, though they go to the same address.

        Raises ConnectFailed (nothing was sent; Busy when the queue is full, kind `timeout` when time ran out),
        TimedOut, Reset, Truncated or BadFrame. Whatever ends it early, cancellation included, closes the connection.
        """
        began, limits = monotonic(), timeouts or HttpTimeouts()
        way = self._ways.get((base_url, tls, proxy, pool)) or self._find_way(base_url, tls, proxy, pool)
        shared, body = way.pool, request.body
        head = request_head(
            way.before, way.address.query, way.fixed, request.method, request.path, request.query, request.headers
        )
        if body or request.method not in ("GET", "HEAD"):
            head += b"content-length: %d\r\n" % len(body)
        payload = (b"%b\r\n%b" % (head, body),) if len(body) <= _ONE_PIECE else (head + b"\r\n", body)
        if not shared.slots.take():
            await shared.slots.wait(limits.total)
        response = ClientResponse(shared, limits, began + limits.total, request.method == "HEAD")
        try:
            connection = None if new_connection else shared.take()
            while not response.status:  # a kept connection may turn out to be closed, a new one answers or fails
                connection = connection or await self._connect(way, limits, began)
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
        """Say what runs, idles and waits, lane by lane."""
        return [pool.state for pool in self._pools.values()]

    async def aclose(self) -> None:
        """Close every connection, and with them the replies that are still read."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for pool in self._pools.values():
            pool.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while any(pool.connections for pool in self._pools.values()):
                    await asyncio.sleep(0)

    def _find_way(self, base_url: str, tls: TlsSettings | None, proxy_url: str | None, name: str) -> _Way:
        address = parse_base_url(base_url)
        proxy = parse_proxy(proxy_url) if proxy_url else None
        origin = f"{address.scheme}://{address.authority}"
        pool = self._pools.setdefault((origin, tls, proxy, name), ConnectionPool(origin, self._caps))
        before, fixed = address.prefix, f"host: {address.authority}\r\naccept-encoding: identity\r\n"
        if proxy is not None and address.scheme == "http":  # no tunnel: the proxy reads the request
            before = origin + before
            fixed += f"proxy-authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
        way = _Way(address, tls, proxy, pool, before, fixed)
        self._ways[base_url, tls, proxy_url, name] = way
        return way

    async def _connect(self, way: _Way, timeouts: HttpTimeouts, began: float) -> ClientConnection:
        self._must_be_open()
        if self._unix:
            loop = asyncio.get_running_loop()
            return (await loop.create_unix_connection(lambda: ClientConnection(way.pool), self._unix))[1]
        left = max(began + timeouts.total - monotonic(), 0.0)
        within = HttpTimeouts(
            dns=min(timeouts.dns, left), connect=min(timeouts.connect, left), tls=min(timeouts.tls, left)
        )
        connection = await open_connection(
            lambda: ClientConnection(way.pool), way.address, timeouts=within, tls=way.tls, proxy=way.proxy
        )
        self._must_be_open(connection)
        return connection

    def _must_be_open(self, connection: ClientConnection | None = None) -> None:
        if self._closed:
            if connection is not None:
                connection.abort()
            raise ConnectFailed("the upstream client was closed")

    def _sweep(self) -> None:
        now = monotonic()
        busy = [pool.sweep(now) for pool in self._pools.values()]
        again = any(busy) and not self._closed
        self._timer = asyncio.get_running_loop().call_later(self._sweep_seconds, self._sweep) if again else None
