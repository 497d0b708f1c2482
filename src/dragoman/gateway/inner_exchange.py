"""Requests that the gateway derives from another one and serves like it: an exchange inside an exchange.

A message of a WebSocket, and a request to compact a conversation, become such requests: each is admitted, routed,
counted and logged like any other, and its response is rewritten for the outer exchange. The WebSocket session
(`websocket`) and `compaction` create them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from dragoman.gateway.limits import MemoryAccount
from dragoman.http.exchange import DEFAULT_BODY_TIMEOUT, BodyTimeout, Exchange, too_large
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Raw

Handle: TypeAlias = Callable[[Exchange[MemoryAccount]], Awaitable[None]]


class InnerExchange(Exchange[MemoryAccount], kw_only=True, eq=False):
    """A request whose body is known. Subclasses write its response."""

    async def body(self, limit: int, timeout: BodyTimeout = DEFAULT_BODY_TIMEOUT) -> bytes:
        body = self.request.body
        if len(body) > limit:
            raise too_large(limit)
        if self.memory is not None:
            self.memory.reserve(len(body))
        return body

    def flush(self) -> None:
        """There is no head to send."""


def inner_request(outer: HttpRequest, path: str, body: bytes, left_out: tuple[str, ...] = ()) -> HttpRequest:
    """Return a POST of this body with the headers of the outer request, without those about its own body."""
    about_body = ("content-length", "content-type", "transfer-encoding", "expect", *left_out)
    headers = tuple(each for each in outer.headers if not each[0].startswith(about_body))
    return HttpRequest("POST", path, outer.query, (*headers, ("content-type", "application/json")), body)


def input_items(value: Raw | None) -> bytes | None:
    """Return the items of an input as JSON text without the brackets; None if it is neither an array nor a string.

    A string is one message of the user.
    """
    data = b"" if value is None else bytes(value).strip()
    if data.startswith(b"["):
        return data[1:-1].strip()
    if data.startswith(b'"'):
        return b'{"type":"message","role":"user","content":%b}' % data
    return b"" if data in (b"", b"null") else None


async def run_inner(inner: Exchange[MemoryAccount], handle: Handle) -> None:
    """Serve the inner exchange in a task of its own; if this task is cancelled, so is that one."""

    async def serve() -> None:
        await handle(inner)

    inner.task = task = asyncio.get_running_loop().create_task(serve())
    try:
        await asyncio.wait((task,))
    finally:
        if not task.done():
            inner.disconnect()
            await asyncio.wait((task,))
    if not task.cancelled():
        task.result()
