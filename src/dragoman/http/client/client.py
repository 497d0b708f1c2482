"""The upstream client: HTTP/1.1 over kept connections, with a push interface. One client belongs to one event loop.

    reply = await client.open(base_url, request, timeouts=Timeouts())   # returns at the head
    await reply.pump(on_bytes)                                          # returns at the body's end

`ConnectFailed` always means that nothing was sent, so another try is safe. Redirects are not followed: a request
carries credentials. Only a kept connection that closes before it has answered a byte is tried again, once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from queue import SimpleQueue
from time import monotonic
from typing import Any

from dragoman.errors import ConnectFailed, LocalMisuse
from dragoman.http.addresses import Address, Proxy, parse_address, parse_proxy
from dragoman.http.client.dial import Tls, dial
from dragoman.http.client.pool import Connection, Lane, LaneState, PoolLimits
from dragoman.http.client.reply import Reply, Timeouts
from dragoman.wire.http import Headers, HttpRequest, HttpResponse, has_dot_segment

__all__ = ["Client", "LaneState", "PoolLimits", "Reply", "Timeouts", "Tls", "send"]

_ONE_PIECE = 64 * 1024  # bytes of a body that are copied behind the head rather than passed beside it
_SWEEP_SECONDS = 0.25
_CLOSE_SECONDS = 1.0
# What the connection is, and so is ours to say. `host` too: a client's own must never reach an upstream.
_OURS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


@dataclass(frozen=True, slots=True)
class _Way:
    """A base URL, made ready: the lane its connections share and what begins every request."""

    address: Address
    tls: Tls | None
    proxy: Proxy | None
    lane: Lane
    before: str  # the target's beginning
    fixed: str  # head fields that are always the same


class Client:
    """With `unix` all connections go to that socket, whatever host a URL names."""

    def __init__(
        self, *, caps: PoolLimits | None = None, sweep_seconds: float = _SWEEP_SECONDS, unix: str = ""
    ) -> None:
        self._unix = unix
        self._caps = caps or PoolLimits()
        self._sweep_seconds = sweep_seconds
        self._ways: dict[tuple[str, Tls | None, str | None, str], _Way] = {}
        self._lanes: dict[tuple[str, Tls | None, Proxy | None, str], Lane] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def open(
        self,
        base_url: str,
        request: HttpRequest,
        *,
        timeouts: Timeouts | None = None,
        tls: Tls | None = None,
        proxy: str | None = None,
        fresh: bool = False,
        lane: str = "",
    ) -> Reply:
        """Send a request and give the reply when its head is here; `path` and `query` follow the base URL's own.

        With `fresh` it goes over a new connection, so it is never sent twice. Requests of another `lane` (an upstream
        and its credential) never use the same connection, though they go to the same address.

        Raises ConnectFailed (nothing was sent; kind `overloaded` when the queue is full, `timeout` when time ran out),
        TimedOut, Reset, Truncated or BadFrame. Whatever ends it early, cancellation included, closes the connection.
        """
        began, limits = monotonic(), timeouts or Timeouts()
        way = self._ways.get((base_url, tls, proxy, lane)) or self._find_way(base_url, tls, proxy, lane)
        shared, body = way.lane, request.body
        head = _head(
            way.before, way.address.query, way.fixed, request.method, request.path, request.query, request.headers
        )
        if body or request.method not in ("GET", "HEAD"):
            head += b"content-length: %d\r\n" % len(body)
        payload = (b"%b\r\n%b" % (head, body),) if len(body) <= _ONE_PIECE else (head + b"\r\n", body)
        if not shared.take_slot():
            await shared.wait(limits.total)
        reply = Reply(shared, limits, began + limits.total, request.method == "HEAD")
        try:
            connection = None if fresh else shared.take()
            while not reply.status:  # a kept connection may turn out to be closed, a new one answers or fails
                connection = connection or await self._dial(way, limits, began)
                shared.live.add(reply)
                if self._timer is None:
                    self._timer = shared.loop.call_later(self._sweep_seconds, self._sweep)
                await reply.ask(connection, payload)
                connection = None
        except BaseException:
            reply.close()
            raise
        return reply

    def lanes(self) -> list[LaneState]:
        """Say what runs, idles and waits, lane by lane."""
        return [lane.state for lane in self._lanes.values()]

    async def aclose(self) -> None:
        """Close every connection, and with them the replies that are still read."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for lane in self._lanes.values():
            lane.shut()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while any(lane.connections for lane in self._lanes.values()):
                    await asyncio.sleep(0)

    def _find_way(self, base_url: str, tls: Tls | None, proxy_url: str | None, name: str) -> _Way:
        address = parse_address(base_url)
        proxy = parse_proxy(proxy_url) if proxy_url else None
        origin = f"{address.scheme}://{address.authority}"
        lane = self._lanes.setdefault((origin, tls, proxy, name), Lane(origin, self._caps))
        before, fixed = address.prefix, f"host: {address.authority}\r\naccept-encoding: identity\r\n"
        if proxy is not None and address.scheme == "http":  # no tunnel: the proxy reads the request
            before = origin + before
            fixed += f"proxy-authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
        way = _Way(address, tls, proxy, lane, before, fixed)
        self._ways[base_url, tls, proxy_url, name] = way
        return way

    async def _dial(self, way: _Way, timeouts: Timeouts, began: float) -> Connection:
        self._must_be_open()
        if self._unix:
            loop = asyncio.get_running_loop()
            return (await loop.create_unix_connection(lambda: Connection(way.lane), self._unix))[1]
        left = max(began + timeouts.total - monotonic(), 0.0)
        within = Timeouts(dns=min(timeouts.dns, left), connect=min(timeouts.connect, left), tls=min(timeouts.tls, left))
        connection = await dial(
            lambda: Connection(way.lane), way.address, timeouts=within, tls=way.tls, proxy=way.proxy
        )
        self._must_be_open(connection)
        return connection

    def _must_be_open(self, connection: Connection | None = None) -> None:
        if self._closed:
            if connection is not None:
                connection.abort()
            raise ConnectFailed("the upstream client was closed")

    def _sweep(self) -> None:
        now = monotonic()
        busy = [lane.sweep(now) for lane in self._lanes.values()]
        again = any(busy) and not self._closed
        self._timer = asyncio.get_running_loop().call_later(self._sweep_seconds, self._sweep) if again else None


@lru_cache(maxsize=64)
def _head(before: str, asked: str, fixed: str, method: str, path: str, query: str, headers: Headers) -> bytes:
    """Write a head up to the length of the body: many requests differ in their bodies only.

    Raises LocalMisuse for what would break out of the head.
    """
    query = "&".join(filter(None, (asked, query)))
    target = f"{before}{path}?{query}" if query else f"{before}{path}"
    fields = [f"{name}: {value}\r\n" for name, value in headers if name.lower() not in _OURS]
    head = f"{method} {target} HTTP/1.1\r\n{fixed}{''.join(fields)}"
    lines = len(fields) + fixed.count("\n") + 1
    if head.count("\n") != lines or head.count("\r") != lines or "\0" in head:
        raise LocalMisuse("a request's method, path or header holds a line break or a NUL")
    if has_dot_segment(path):  # whoever made it should have refused it: it names another place than it seems to
        raise LocalMisuse("a request's path has a segment `.` or `..`")
    if not method.isalpha() or not path.startswith("/") or " " in target or not target.isascii():
        raise LocalMisuse("a request's method or path is not written as HTTP needs it")
    try:
        return head.encode("latin-1")
    except UnicodeEncodeError as error:
        raise LocalMisuse("a request's header holds characters that HTTP cannot carry") from error


# --- for code that is not async: each exchange runs an event loop in a thread of its own


def send(
    base_url: str, request: HttpRequest, *, timeouts: Timeouts
) -> tuple[HttpResponse, Generator[bytes, None, None]]:
    """Send a request over a connection of its own; return the head, and the body as it comes.

    Raises what `Client.open` does, and from the body what `Reply.pump` does. To close the body closes the connection.
    """
    came: SimpleQueue[HttpResponse | bytes | Exception | None] = SimpleQueue()  # None is the end
    loop = asyncio.new_event_loop()
    task = loop.create_task(_talk(base_url, request, timeouts, came.put))

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(asyncio.wait([task]))

    def received() -> Generator[Any, None, None]:
        try:
            while (item := came.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

    threading.Thread(target=run, name="http", daemon=True).start()
    body = received()
    return next(body), body  # the head comes first


async def _talk(
    base_url: str,
    request: HttpRequest,
    timeouts: Timeouts,
    put: Callable[[HttpResponse | bytes | Exception | None], None],
) -> None:
    client = Client()
    try:
        reply = await client.open(base_url, request, timeouts=timeouts, fresh=True)
        put(HttpResponse(reply.status, reply.headers))
        await reply.pump(put)
        put(None)
    except Exception as error:  # noqa: BLE001  it is raised where the exchange was begun
        put(error)
    finally:
        await client.aclose()
