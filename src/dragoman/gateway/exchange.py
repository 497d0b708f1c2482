"""The client's side of one request under ASGI: its head and body in, the response out, and whether it is still there.

`send` does not fail when the client has left, so somebody must watch `receive`: `watched` cancels the work when it says
so. A response is begun once; whoever answers asks `begun` first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from dragoman.errors import ClientFault, Fault, TooLarge
from dragoman.wire.http import Headers, HttpRequest

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_BODY_SECONDS = 120.0
_DRAINED = 2  # times the limit: so much of a body that is too long is read, since clients read only after they wrote


class Gone(Exception):
    """The client left."""


class Cut(Exception):
    """The server stops and waits no longer."""


class Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send, identity: str) -> None:
        self.id = identity
        self.request = _head(scope)
        self.headers: Headers = ()  # of every response to it
        self.began = asyncio.get_running_loop().time()
        self.begun = False
        self.gone = False
        self._cut = False
        self._finished = False
        self._receive, self._send = receive, send
        self._task: asyncio.Task[Any] | None = None

    # --- in

    async def body(self, limit: int) -> bytes:
        """The whole body. Raises TooLarge, Gone."""
        said = self.request.header("content-length")
        if said.isdigit() and int(said) > limit * _DRAINED:
            raise _too_large(limit)
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                return await self._gathered(limit)
        except TimeoutError:
            message = f"the request did not come whole within {_BODY_SECONDS:g} s"
            raise ClientFault(message, fault=Fault("timeout", message, 408)) from None

    async def _gathered(self, limit: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        more = True
        while more and size <= limit * _DRAINED:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                raise Gone
            piece = message.get("body", b"")
            size += len(piece)
            if size <= limit:
                pieces.append(piece)
            else:
                pieces.clear()
            more = message.get("more_body", False)
        if size > limit:
            raise _too_large(limit)
        return b"".join(pieces)

    # --- out

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer with a body that is there already."""
        await self.start(status, (*headers, ("content-length", str(len(body)))))
        await self.write(body, more=False)

    async def start(self, status: int, headers: Headers) -> None:
        self.begun = True
        lines = [(name.encode("latin-1"), _value(value)) for name, value in (*headers, *self.headers)]
        await self._send({"type": "http.response.start", "status": status, "headers": lines})

    async def write(self, data: bytes, *, more: bool) -> None:
        """Send a piece of the body; waits as long as the client does not read. Raises Gone where the server tells."""
        if not more:
            self._finished = True
        try:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except OSError:
            self.gone = True
            raise Gone from None

    # --- the end

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While this runs, a client that leaves ends it with Gone, and `cut` with Cut, wherever it waits."""
        self._task = asyncio.current_task()
        watcher = asyncio.create_task(self._watch())
        try:
            yield
        except asyncio.CancelledError:
            if (self.gone or self._cut) and self._task is not None and self._task.uncancel() == 0:
                raise Gone if self.gone else Cut from None
            raise
        finally:
            self._task = None
            watcher.cancel()

    def leave(self) -> None:
        """Give the client up: it left, or reads no more."""
        if not self._finished:
            self.gone = True
            self._cancel()

    def cut(self) -> None:
        """End this exchange because the server ends."""
        if not self._finished and not self.gone:
            self._cut = True
            self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.leave()


def _head(scope: Scope) -> HttpRequest:
    # The raw path: a model's name in it may hold an encoded slash. A server that has none gives the decoded one.
    path = scope.get("raw_path") or scope["path"].encode()
    headers = tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"])
    root = scope.get("root_path", "")
    text = path.decode("latin-1").partition("?")[0].removeprefix(root)
    return HttpRequest(scope["method"], text or "/", scope.get("query_string", b"").decode("latin-1"), headers)


def _value(text: str) -> bytes:
    """A header's value, whatever somebody else's words in it are."""
    return "".join(char if char.isprintable() else " " for char in text).encode("latin-1", "replace")


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the request is longer than {limit} bytes, which is the limit here (server.max_body)")
