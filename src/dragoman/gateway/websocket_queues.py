"""The queues of a WebSocket session: each answers one message at a time, as a request of the pipeline.

After a response the session remembers its items as JSON text (`session_memory`). A message that continues it by
`previous_response_id` sends only new items; the whole conversation goes to the upstream, whatever the request says
about storing. An id that the session does not remember is left to the response store and to the upstream.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from typing import Any, Protocol

from msgspec import structs

from dragoman.dialects.base import SYSTEM_ENVIRONMENT
from dragoman.dialects.kit.values import members, text
from dragoman.gateway.inner_exchange import Handle, InnerExchange, inner_request, input_items, run_inner
from dragoman.gateway.session_memory import SessionMemory, StoredTurns
from dragoman.http.exchange import HttpExchange
from dragoman.wire import jsonio
from dragoman.wire.http import Headers
from dragoman.wire.jsonio import Json, Raw
from dragoman.wire.sse import SseDecoder

MAX_WAITING = 1  # messages of a queue that may wait while another is answered
_ENDS = frozenset({"response.completed", "response.incomplete"})
_OF_HANDSHAKE = ("connection", "upgrade", "sec-websocket-")
_NO_EVENT = b"[DONE]"  # some services end a stream so


class ResponseIncomplete(Exception):
    """The pipeline ended without a whole response: a bug."""


class QueueOwner(Protocol):
    """The session of a queue."""

    exchange: HttpExchange
    session_memory: SessionMemory
    is_stopping: bool

    def send_event(self, data: bytes) -> None:
        """Send one event of a response, as its JSON text."""

    def release(self, message: bytes) -> None:
        """Count a message no longer."""

    def hold_items(self, size: int) -> None:
        """Count more or fewer bytes of items with which messages continue."""


class MessageQueue:
    """Messages with one `stream_id`, answered in their order. It ends when none waits."""

    def __init__(self, owner: QueueOwner, stream_id: str, handle: Handle) -> None:
        self.stream_id = stream_id
        # Messages, and the fields of each; None if it is no JSON object.
        self.waiting: deque[tuple[bytes, dict[str, Raw] | None]] = deque()
        self.is_new = True  # its first message still waits
        self._owner, self._handle = owner, handle
        self._prefix = b'{"stream_id":%b,' % jsonio.encode(stream_id) if stream_id else b""
        self._running: MessageExchange | None = None
        self.task = asyncio.get_running_loop().create_task(self._run())

    def send_event(self, data: bytes) -> None:
        """Send one event of a response, as its JSON text, with the `stream_id`."""
        self._owner.send_event(self._prefix + data[1:] if self._prefix else data)

    def pause(self) -> None:
        """Pause the upstream of the running message."""
        if self._running is not None:
            self._running.pause_source()

    def resume(self) -> None:
        """Resume the upstream of the running message."""
        if self._running is not None:
            self._running.resume_source()

    def disconnect(self) -> None:
        """Cancel the running message: the client is gone."""
        self.waiting.clear()
        if self._running is not None:
            self._running.disconnect()

    def cancel(self) -> None:
        """Cancel everything: the session ends."""
        self.waiting.clear()
        self.task.cancel()

    async def _run(self) -> None:
        while self.waiting and not self._owner.is_stopping:
            message, fields = self.waiting.popleft()
            self.is_new = False
            self._owner.release(message)  # the request that it becomes counts it
            if fields is None:
                await self._run_request(message, None)  # it gets the error of a body that is no JSON
            else:
                del message
                await self._create(fields)

    async def _create(self, fields: dict[str, Raw]) -> None:
        items, base = self._continued(fields)
        if items is None:  # of another form: the request gets the error of its form
            items = b""
        elif bytes(fields.pop("generate", Raw(b"true"))) == b"false":
            self._prepare_only(fields, StoredTurns("", items, base))
            return
        else:
            fields["input"] = Raw(b"[%b]" % items)
        has_conversation = _is_set(fields.get("conversation"))  # its items are known to the upstream only
        fields["stream"] = Raw(b"true")
        body = jsonio.encode(fields)
        fields.clear()  # a stream may last long
        self._owner.hold_items(len(items))
        try:
            await self._run_request(body, None if has_conversation else StoredTurns("", items, base))
        finally:
            self._owner.hold_items(-len(items))

    def _continued(self, fields: dict[str, Raw]) -> tuple[bytes | None, Raw | None]:
        """Return the items from the start of the conversation, or from the response whose id is returned, too.

        `previous_response_id` is changed to that id, or taken away. No items: the input is neither an array nor a
        string.
        """
        items, previous = input_items(fields.get("input")), fields.get("previous_response_id")
        if items is None or previous is None or not _is_set(previous):
            return items, None
        known = self._owner.session_memory.find(id(self._owner), jsonio.try_decode(bytes(previous)))
        if known is None:
            return items, previous
        if known.base is None:
            del fields["previous_response_id"]
        else:
            fields["previous_response_id"] = known.base
        return b",".join(filter(None, (known.items, items))), known.base

    def _prepare_only(self, fields: dict[str, Raw], prepared: StoredTurns) -> None:
        """Answer a message with `generate: false`, which only prepares the next one; no upstream is asked."""
        response_id = SYSTEM_ENVIRONMENT.new_id("resp_")
        response: dict[str, Any] = {"id": response_id, "object": "response", "model": fields.get("model")}
        response |= {"output": [], "usage": None, "error": None}
        for number, (kind, status) in enumerate((("created", "in_progress"), ("completed", "completed"))):
            event = {"type": f"response.{kind}", "sequence_number": number, "response": {**response, "status": status}}
            self.send_event(jsonio.encode(event))
        self._store(structs.replace(prepared, response_id=response_id))

    async def _run_request(self, body: bytes, sent: StoredTurns | None) -> None:
        """Answer one message in a task of its own, which the end of the session cancels. Raises ResponseIncomplete."""
        running = self._running = MessageExchange.of(self._owner.exchange, self, body)
        running.paused = self._owner.exchange.paused
        try:
            await run_inner(running, self._handle)
        finally:
            self._running = None
        if not (running.is_finished or running.is_disconnected):
            raise ResponseIncomplete
        if running.final and sent is not None:
            response = members(members(jsonio.decode(running.final)).get("response"))
            output = response.get("output")
            more = b",".join(map(jsonio.encode, output)) if isinstance(output, list) else b""
            items = b",".join(filter(None, (sent.items, more)))
            self._store(StoredTurns(text(response.get("id")), items, sent.base))

    def _store(self, turns: StoredTurns) -> None:
        self._owner.session_memory.keep(id(self._owner), turns)


def _is_set(value: Raw | None) -> bool:
    return value is not None and bytes(value) != b"null"


class MessageExchange(InnerExchange, kw_only=True, eq=False):
    """One message of a queue as a request, and its response, whose events become text frames."""

    queue: MessageQueue
    decoder: SseDecoder
    final: bytes = b""  # the last event of a complete response

    @classmethod
    def of(cls, outer: HttpExchange, queue: MessageQueue, body: bytes) -> MessageExchange:
        """Return the exchange of a message: a POST with the headers of the handshake."""
        request = inner_request(outer.request, outer.request.path, body, _OF_HANDSHAKE)
        now = asyncio.get_running_loop().time()
        decoder = SseDecoder(sys.maxsize)  # what a response may hold is limited where it is made
        return cls(request, outer.target, "1.1", now, client=outer.client, queue=queue, decoder=decoder)

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send an error. A message always asks for a stream, so a whole response is one."""
        if self.is_disconnected or self.is_finished:
            return
        self.is_started = self.is_finished = True
        error = members(jsonio.try_decode(body)).get("error")
        shown: dict[str, Json] = {name: value for name, value in headers if name in ("retry-after", "x-should-retry")}
        event: Json = {"type": "error", "status": status, "error": error, **({"headers": shown} if shown else {})}
        self.queue.send_event(jsonio.encode(event))

    def head(self, status: int, headers: Headers) -> None:
        self.is_started = True

    def chunk(self, data: bytes, *, last: bool = False) -> None:
        if self.is_disconnected or self.is_finished:
            return
        self.has_written = True
        for frame in self.decoder.feed(data):
            if frame.data == _NO_EVENT:
                continue
            self.queue.send_event(frame.data)
            # A service without `event:` lines has the type in the data only.
            if (frame.kind or text(members(jsonio.try_decode(frame.data)).get("type"))) in _ENDS:
                self.final = frame.data
        self.is_finished = last
