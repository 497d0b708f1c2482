"""Exchanges of any ASGI server, so that the gateway can be mounted in another application. `app` creates them.

ASGI's `send` may wait, and does not fail when the client has disconnected. So a writer task sends the buffered
response, and another task watches `receive` for the disconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, TypeAlias

from msgspec import field

from dragoman.errors import ClientFault, DragomanError, Fault
from dragoman.gateway.limits import MemoryAccount
from dragoman.http.addresses import normalize_address
from dragoman.http.exchange import (
    DEFAULT_BODY_TIMEOUT,
    HIGH_WATER,
    ID_HEADERS,
    LOW_WATER,
    STALL_SECONDS,
    BodyTimeout,
    BodyTimer,
    ClientDisconnected,
    Exchange,
    too_large,
)
from dragoman.http.framing import header_value
from dragoman.wire.http import Headers, HttpRequest, HttpResponse

AsgiMessage: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[AsgiMessage]]
Send: TypeAlias = Callable[[AsgiMessage], Awaitable[None]]

# A body that is too long is read up to this multiple of the limit: clients read the refusal only after sending it.
_DRAIN_FACTOR = 2
_LATE_READ = 0.25  # seconds for data that arrived while the event loop was slow, before the timeout is judged
_SHUTDOWN_WRITE = 1.0  # seconds to write the rest of a response when the server shuts down


class AsgiExchange(Exchange[MemoryAccount], kw_only=True, eq=False):
    """One HTTP request and its response, over the `receive` and `send` of an ASGI server."""

    receive: Receive
    send: Send
    stall: float  # seconds that the client may take to read what was sent
    _body_wait: asyncio.Timeout | None = None
    _broken: Fault | None = None
    _start: AsgiMessage | None = None
    _pending: list[bytes] = field(default_factory=list)
    _size: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _writer: asyncio.Task[None] | None = None  # only where a stream needs one
    _watcher: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, scope: Scope, receive: Receive, send: Send, *, stall: float | None = None) -> AsgiExchange:
        """Create the exchange of a request; call it in the task that serves the request."""
        request, now = _head(scope), asyncio.get_running_loop().time()
        client, task = normalize_address((scope.get("client") or ("",))[0]), asyncio.current_task()
        version, stall = scope.get("http_version", "1.1"), STALL_SECONDS if stall is None else stall
        return cls(
            request, request.path, version, now, client=client, task=task, receive=receive, send=send, stall=stall
        )

    # --- the request

    async def body(self, limit: int, pace: BodyTimeout = DEFAULT_BODY_TIMEOUT) -> bytes:
        clock = asyncio.get_running_loop().time
        watch = BodyTimer(pace, clock())
        counts = self._reserve(limit)
        pieces: list[bytes] = []
        size = 0
        more = True
        while more and size <= limit * _DRAIN_FACTOR:
            piece, more = await self._piece(watch.due) or await self._piece(clock() + _LATE_READ) or (b"", True)
            size += len(piece)
            fault = self._broken or (watch.fault(size, clock()) if more else None)
            if fault is not None:
                raise ClientFault(fault.message, fault=fault)
            if size > limit:
                pieces.clear()
                continue
            if counts and self.memory is not None:
                self.memory.reserve(len(piece))
            pieces.append(piece)
        if size > limit:
            raise too_large(limit)
        self._watcher = asyncio.create_task(self._watch())
        return b"".join(pieces)

    def _reserve(self, limit: int) -> bool:
        """Reserve memory for the announced body. Return whether its pieces must be counted as they arrive."""
        announced = self.request.header("content-length")
        if not announced.isdecimal():
            return True
        if len(announced) > 18 or int(announced) > limit * _DRAIN_FACTOR:
            raise too_large(limit)
        if int(announced) > limit:  # The body is read to its end and then refused.
            return True
        if self.memory is not None:
            self.memory.reserve(int(announced))
        return False

    def fail_body(self, fault: Fault) -> None:
        self._broken = fault
        if self._body_wait is not None and not self._body_wait.expired():
            self._body_wait.reschedule(asyncio.get_running_loop().time())

    async def _piece(self, until: float) -> tuple[bytes, bool] | None:
        """Return the next piece of the body, and whether more follow; None if none arrives in time."""
        if self._broken is not None:
            return None
        try:
            async with asyncio.timeout_at(until) as self._body_wait:
                message = await self.receive()
        except TimeoutError:
            return None
        finally:
            self._body_wait = None
        if message["type"] == "http.disconnect":
            self.is_disconnected = True
            raise ClientDisconnected
        return message.get("body", b""), message.get("more_body", False)

    # --- the response

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        self.head(status, (*headers, ("content-length", str(len(body)))))
        self.chunk(body, last=True)

    def head(self, status: int, headers: Headers) -> None:
        self.is_started = True
        last: Headers = (("connection", "close"),) if self.last else ()
        ids = [(name, self.id) for name in ID_HEADERS] if self.id else []
        lines = [
            (name.encode("latin-1"), header_value(value).encode("latin-1", "replace"))
            for name, value in (*headers, *ids, *self.headers, *last)
        ]
        self._start = {"type": "http.response.start", "status": status, "headers": lines}

    def chunk(self, data: bytes, *, last: bool = False) -> None:
        self._pending.append(data)
        if last:  # `close` starts the writer if there is none.
            self.is_finished = True
            self._wake.set()
            return
        self.has_written = True
        self._size += len(data)
        if self._size > HIGH_WATER:
            self.pause_source()
        self.flush()

    def flush(self) -> None:
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        self._wake.set()

    # --- the end

    async def close(self) -> None:
        """Wait until the response is written or the client has disconnected."""
        self.task = None
        try:
            if self.is_finished and not self.is_disconnected:
                writing = self._writer or asyncio.create_task(self._write())
                await asyncio.wait([writing], timeout=_SHUTDOWN_WRITE if self.is_shut_down else None)
        finally:
            for task in (self._writer, self._watcher):
                if task is not None:
                    task.cancel()

    async def _write(self) -> None:
        """Write everything that is pending, again and again, until the end of the response."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                async with asyncio.timeout(self.stall):
                    if await self._write_pending():
                        return
                if self._size <= LOW_WATER:
                    self.resume_source()
        except (OSError, TimeoutError):  # The client has disconnected, or does not read.
            self.is_disconnected = True
            self._interrupt()

    async def _write_pending(self) -> bool:
        """Send what is pending. Return whether that was the end of the response."""
        if self._start is not None:
            start, self._start = self._start, None
            await self.send(start)
        last, data = self.is_finished, b"".join(self._pending)
        self._pending.clear()
        self._size = 0
        if data or last:
            await self.send({"type": "http.response.body", "body": data, "more_body": not last})
        return last

    async def _watch(self) -> None:
        with suppress(OSError):
            while (await self.receive())["type"] != "http.disconnect":
                pass
        self.disconnect()


def _head(scope: Scope) -> HttpRequest:
    # The raw path is needed because a model name in it may contain an encoded slash. Some servers send none.
    path = scope.get("raw_path") or scope["path"].encode()
    headers = tuple([(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]])
    root = scope.get("root_path", "")
    text = path.decode("latin-1").partition("?")[0].removeprefix(root)
    return HttpRequest(scope["method"], text or "/", scope.get("query_string", b"").decode("latin-1"), headers)


async def serve_lifespan(
    receive: Receive, send: Send, start: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]
) -> None:
    """Start and stop the application by the lifespan events of the server."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                await start()
            except (DragomanError, OSError) as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await stop()
            await send({"type": "lifespan.shutdown.complete"})
            return


async def refuse_websocket(scope: Scope, send: Send, refusal: HttpResponse) -> None:
    """Refuse a WebSocket with an HTTP response, if the server supports that; otherwise close it (403)."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1000})
        return
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers]
    await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": refusal.body})
