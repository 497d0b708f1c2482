"""The endpoint `POST /v1/responses/compact`, with which older clients of OpenAI compact a conversation.

Newer clients put an item that asks for it at the end of the input of an ordinary request (`filters/compaction.py`). The
gateway turns the older request into such a one, and its response has the output of that one.
"""

from __future__ import annotations

import asyncio

from dragoman.dialects.kit.values import members
from dragoman.gateway.inner_exchange import Handle, InnerExchange, inner_request, input_items, run_inner
from dragoman.gateway.limits import MemoryAccount
from dragoman.http.exchange import Exchange
from dragoman.wire import jsonio
from dragoman.wire.http import Headers
from dragoman.wire.jsonio import Raw

PATH = "/responses/compact"
_SETTINGS = ("model", "instructions", "reasoning", "service_tier", "prompt_cache_key", "tools", "parallel_tool_calls")
_REQUEST = b'{"type":"compaction_trigger"}'
_SHOWN = ("id", "created_at", "output", "usage")


async def compact(outer: Exchange[MemoryAccount], body: bytes, handle: Handle) -> int:
    """Serve a request to compact a conversation, and return the status of the response."""
    path = outer.request.path.rstrip("/").removesuffix("/compact")
    request = inner_request(outer.request, path, _with_item(body))
    now = asyncio.get_running_loop().time()
    inner = _CompactExchange(request, path, "1.1", now, client=outer.client, outer=outer)
    await run_inner(inner, handle)
    return inner.status


def _with_item(body: bytes) -> bytes:
    """Return the body of an ordinary request. A body of another form stays, and gets the error of its form."""
    fields = jsonio.optional_decoder(dict[str, Raw])(body)
    history = input_items(fields.get("input")) if fields else None
    if fields is None or history is None:
        return body
    settings = {name: fields[name] for name in _SETTINGS if name in fields}
    items = b",".join(filter(None, (history, _REQUEST)))
    return jsonio.encode({**settings, "store": False, "input": Raw(b"[%b]" % items)})


class _CompactExchange(InnerExchange, kw_only=True, eq=False):
    """The ordinary request. Its response becomes that of the outer exchange."""

    outer: Exchange[MemoryAccount]
    status: int = 0  # of the response

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        if self.is_disconnected or self.is_finished:
            return
        self.is_started = self.is_finished = True
        self.status = status
        self.outer.headers = self.headers
        self.outer.whole(status, headers, _compacted(body) if status == 200 else body)


def _compacted(body: bytes) -> bytes:
    reply = members(jsonio.decode(body))
    return jsonio.encode({**{name: reply.get(name) for name in _SHOWN}, "object": "response.compaction"})
