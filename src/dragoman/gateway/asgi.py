"""Exchanges under any ASGI server, so that the gateway can be mounted in somebody's application.

`send` waits and does not fail when the client has left, so a writer task stands between it and those who answer, and
another watches `receive`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, TypeAlias

from msgspec import field

from dragoman.errors import ClientFault, Fault
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

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_DRAINED = 2  # times the limit: so much of a body that is too long is read, since clients read only after they wrote
_LAST_LOOK = 0.25  # seconds: after a slow turn of the loop, what has come is read before it is judged
_FAREWELL = 1.0  # seconds to write the last words when the server ends


class AsgiExchange(Exchange[MemoryAccount], kw_only=True, eq=False):
    receive: Receive
    send: Send
    stall: float  # seconds that the client may read nothing
    _patience: asyncio.Timeout | None = None  # of the wait for the body
    _broken: Fault | None = None
    _start: Message | None = None
    _pending: list[bytes] = field(default_factory=list)
    _size: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _writer: asyncio.Task[None] | None = None  # only where a stream needs one
    _watcher: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, scope: Scope, receive: Receive, send: Send, *, stall: float | None = None) -> AsgiExchange:
        """Make the exchange of a request, in the task that answers it."""
        request, now = _head(scope), asyncio.get_running_loop().time()
        client, task = normalize_address((scope.get("client") or ("",))[0]), asyncio.current_task()
        version, stall = scope.get("http_version", "1.1"), STALL_SECONDS if stall is None else stall
        return cls(
            request, request.path, version, now, client=client, task=task, receive=receive, send=send, stall=stall
        )

    # --- in

    async def body(self, limit: int, pace: BodyTimeout = DEFAULT_BODY_TIMEOUT) -> bytes:
        clock = asyncio.get_running_loop().time
        watch = BodyTimer(pace, clock())
        counts = self._reserve(limit)
        pieces: list[bytes] = []
        size = 0
        more = True
        while more and size <= limit * _DRAINED:
            piece, more = await self._piece(watch.due) or await self._piece(clock() + _LAST_LOOK) or (b"", True)
            size += len(piece)
            fault = self._broken or (watch.fault(size, clock()) if more else None)
            if fault is not None:
                raise ClientFault(fault.message, fault=fault)
            if size > limit:
                pieces.clear()
                continue
            if counts and self.account is not None:
                self.account.reserve(len(piece))
            pieces.append(piece)
        if size > limit:
            raise too_large(limit)
        self._watcher = asyncio.create_task(self._watch())
        return b"".join(pieces)

    def _reserve(self, limit: int) -> bool:
        """Take room for the body that the head announces. Return whether its pieces are counted as they come."""
        announced = self.request.header("content-length")
        if not announced.isdecimal():
            return True
        if len(announced) > 18 or int(announced) > limit * _DRAINED:
            raise too_large(limit)
        if int(announced) > limit:  # it is read to its end and then refused
            return True
        if self.account is not None:
            self.account.reserve(int(announced))
        return False

    def fail_body(self, fault: Fault) -> None:
        self._broken = fault
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def _piece(self, until: float) -> tuple[bytes, bool] | None:
        """The next piece of the body, and whether there are more; None if none comes until then."""
        if self._broken is not None:
            return None
        try:
            async with asyncio.timeout_at(until) as self._patience:
                message = await self.receive()
        except TimeoutError:
            return None
        finally:
            self._patience = None
        if message["type"] == "http.disconnect":
            self.is_disconnected = True
            raise ClientDisconnected
        return message.get("body", b""), message.get("more_body", False)

    # --- out

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
        if last:  # `close` writes it
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
        """Wait until all is written, or nobody reads it."""
        self.task = None
        try:
            if self.is_finished and not self.is_disconnected:
                writing = self._writer or asyncio.create_task(self._write())
                await asyncio.wait([writing], timeout=_FAREWELL if self.is_shut_down else None)
        finally:
            for task in (self._writer, self._watcher):
                if task is not None:
                    task.cancel()

    async def _write(self) -> None:
        """Write until the end, all that has gathered at a time."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                async with asyncio.timeout(self.stall):
                    if await self._written():
                        return
                if self._size <= LOW_WATER:
                    self.resume_source()
        except (OSError, TimeoutError):  # it left, where the server tells; or it does not read
            self.is_disconnected = True
            self._interrupt()

    async def _written(self) -> bool:
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
    # The raw path: a model's name in it may hold an encoded slash. A server that has none gives the decoded one.
    path = scope.get("raw_path") or scope["path"].encode()
    headers = tuple([(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]])
    root = scope.get("root_path", "")
    text = path.decode("latin-1").partition("?")[0].removeprefix(root)
    return HttpRequest(scope["method"], text or "/", scope.get("query_string", b"").decode("latin-1"), headers)


async def refuse_websocket(scope: Scope, send: Send, refusal: HttpResponse) -> None:
    """Answer a WebSocket offer with an HTTP refusal, where the server can send one; else close it (403)."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1000})
        return
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers]
    await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": refusal.body})
