"""Responses over WebSocket, as Codex and the OpenAI SDKs offer it: each message becomes a request of the pipeline.

    text frame ──> {"type": "response.create", …} ──> POST /v1/responses ──> SSE ──> one text frame for each event

One connection is one session. It answers one message at a time, and one more may wait. Each `stream_id` has a queue of
its own (`websocket_queues`), and queues do not wait for each other. Every message goes through admission, routing,
attempts and delivery like an HTTP request with the headers of the handshake, so keys, limits, accounts and the log
apply to it. A client that reads slowly pauses the upstreams of its own messages only, and its frames are not read until
it has caught up.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from typing import TYPE_CHECKING

from dragoman.dialects.kit.openai_errors import render_error
from dragoman.errors import ClientFault, Fault
from dragoman.gateway.admission import WEBSOCKET_OFFERED
from dragoman.gateway.config import Server
from dragoman.gateway.inner_exchange import Handle
from dragoman.gateway.limits import MemoryAccount
from dragoman.gateway.session_memory import SessionMemory
from dragoman.gateway.websocket_queues import MAX_WAITING, MessageQueue
from dragoman.http.exchange import Exchange, HttpExchange
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json, Raw

if TYPE_CHECKING:
    from wsproto.connection import Connection
    from wsproto.events import Event

SESSION_SECONDS = 3600.0  # a session ends after the response that is running then; OpenAI does the same
MAX_QUEUES = 32  # streams whose messages are answered at once
_TURN = 16 * 1024  # bytes of frames that are read before other connections have their turn
_VERSION = "13"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455
_CREATE, _STEER = "response.create", "response.steer"
_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_GOING_AWAY, _PROTOCOL_ERROR, _UNSUPPORTED, _POLICY, _TOO_BIG, _TRY_LATER = 1001, 1002, 1003, 1008, 1009, 1013
_INTERNAL_ERROR = 1011
_NO_TEXT = "a message must be a JSON object of the type response.create, in a text frame"
_NO_STREAM_ID = "stream_id: expected 1 to 256 ASCII letters, digits, underscores, hyphens and periods"
_NO_STEERING = "a running response cannot be steered; send the input with the next response.create"


def accept_token(request: HttpRequest) -> str:
    """Return the token that accepts the handshake. Raises ClientFault for a handshake of another version or form."""
    key, version = request.header("sec-websocket-key"), request.header("sec-websocket-version")
    try:
        is_valid = len(base64.b64decode(key, validate=True)) == 16 and version == _VERSION
    except (binascii.Error, ValueError):
        is_valid = False
    if not is_valid or "upgrade" not in request.header("connection").lower():
        message = "not a WebSocket handshake of version 13: Connection, Sec-WebSocket-Key or -Version is wrong"
        raise ClientFault(message, fault=Fault("invalid", message, 426))
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


async def serve_session(
    exchange: Exchange[MemoryAccount],
    handle: Handle,
    settings: Server,
    session_memory: SessionMemory,
    *,
    is_draining: bool,
) -> None:
    """Serve a WebSocket until it ends. Raises ClientFault if its server or its handshake is of another kind."""
    if not isinstance(exchange, HttpExchange):  # an ASGI server has its own protocol for WebSockets
        raise ClientFault(WEBSOCKET_OFFERED.message, fault=WEBSOCKET_OFFERED)
    assert exchange.memory is not None  # set by admission
    session = Session(exchange, exchange.memory, handle, settings, session_memory)
    if is_draining:
        session.stop()
    await session.run()


class Session:
    """One WebSocket connection."""

    def __init__(
        self,
        exchange: HttpExchange,
        memory: MemoryAccount,
        handle: Handle,
        settings: Server,
        session_memory: SessionMemory,
    ) -> None:
        from wsproto.connection import Connection, ConnectionType  # noqa: PLC0415  few gateways need it

        self.exchange, self.session_memory = exchange, session_memory
        self._memory, self._handle = memory, handle
        self._max_message, self._ping_seconds = settings.max_body, settings.ping
        self._websocket: Connection = Connection(ConnectionType.SERVER)
        self._unread = b""  # bytes of frames; the connection is not read while there are any
        self._arriving = bytearray()  # of a message
        self._queues: dict[str, MessageQueue] = {}  # that have messages, by stream_id; "" for messages without one
        self._continued_size = 0  # bytes of the items with which running messages continue
        self._wake = asyncio.Event()
        self._is_closed = False
        self.is_stopping = False
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()

    async def run(self) -> None:
        """Accept the handshake, and answer messages until the client or the server ends the session."""
        exchange = self.exchange
        exchange.headers = (("sec-websocket-version", _VERSION),)  # of a refusal
        token = accept_token(exchange.request)
        exchange.upgrade((("upgrade", "websocket"), ("connection", "Upgrade"), ("sec-websocket-accept", token)), self)
        exchange.source = self
        ending = self._loop.call_later(SESSION_SECONDS, self.stop)
        pinging = self._loop.create_task(self._ping())
        try:
            while not self._is_closed and not (self.is_stopping and not self._queues):
                self._wake.clear()
                await self._wake.wait()
        finally:
            ending.cancel()
            pinging.cancel()
            queues = [*self._queues.values()]
            for queue in queues:
                queue.cancel()
            await asyncio.gather(*[queue.task for queue in queues], return_exceptions=True)
            self.session_memory.forget_session(id(self))
            self._close(_GOING_AWAY)
            exchange.end_upgraded()

    def stop(self) -> None:
        """End the session after the response that is running: the server shuts down, or the session's time is over."""
        self.is_stopping = True
        self._wake.set()

    # --- called by the connection

    def data_received(self, data: bytes) -> None:
        """Read frames of the client."""
        self._unread += data
        self._read_more()

    def pause(self) -> None:
        """Pause the upstreams of the running messages, and read no frames: the client reads too slowly."""
        self.exchange.connection.pause_reading()
        for queue in self._queues.values():
            queue.pause()

    def resume(self) -> None:
        """Resume the upstreams of the running messages, and reading."""
        for queue in self._queues.values():
            queue.resume()
        if not self._unread:
            self.exchange.connection.resume_reading()

    # --- frames

    def _read_more(self) -> None:
        if not self._is_closed:
            self._read_frames()

    def _read_frames(self) -> None:
        """Read the frames of `_TURN` bytes; the rest is read in another turn, and no bytes arrive until then."""
        from wsproto.utilities import RemoteProtocolError  # noqa: PLC0415

        piece, self._unread = self._unread[:_TURN], self._unread[_TURN:]
        try:
            self._websocket.receive_data(piece)
            for event in self._websocket.events():
                self._take(event)
                if self._is_closed:
                    self._unread = b""
                    return
        except RemoteProtocolError as error:
            self._close(_PROTOCOL_ERROR, str(error))
            return
        if self._unread:
            self.exchange.connection.pause_reading()
            self._loop.call_soon(self._read_more)
        elif not self.exchange.paused:
            self.exchange.connection.resume_reading()

    def _take(self, event: Event) -> None:
        from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage  # noqa: PLC0415

        match event:
            case TextMessage(data=data, message_finished=is_last):
                self._add(data.encode(), is_last)
            case BytesMessage():
                self._close(_UNSUPPORTED, _NO_TEXT)
            case Ping():
                self._write(event.response())
            case CloseConnection():
                self._write(event.response())
                self._end()
            case _:
                pass

    def _add(self, data: bytes, is_last: bool) -> None:
        """Add a piece of a message, and count its memory."""
        if len(self._arriving) + len(data) > self._max_message:
            self._close(_TOO_BIG, f"a message may have {self._max_message} bytes (server.max_body)")
            return
        try:
            self._memory.reserve(len(data))
        except ClientFault:
            self._close(_TRY_LATER, "the gateway has no memory left for this message")
            return
        self._arriving += data
        if not is_last:
            return
        message, self._arriving = bytes(self._arriving), bytearray()
        self._dispatch(message)

    def _write(self, event: Event) -> None:
        if not self._is_closed:
            self._sent_at = self._loop.time()
            self.exchange.write_upgraded(self._websocket.send(event))

    def _close(self, code: int, reason: str = "") -> None:
        from wsproto.events import CloseConnection  # noqa: PLC0415

        self._write(CloseConnection(code, reason[:120] or None))
        self._end()

    def _end(self) -> None:
        """Read no more messages, and cancel the running ones."""
        self._is_closed = True
        for queue in self._queues.values():
            queue.disconnect()
        self._wake.set()

    async def _ping(self) -> None:
        """Send a ping after each period in which nothing was sent."""
        from wsproto.events import Ping  # noqa: PLC0415

        while not self._is_closed:
            wait = self._sent_at + self._ping_seconds - self._loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            else:
                self._write(Ping())

    def send_event(self, data: bytes) -> None:
        """Send one event of a response, as its JSON text."""
        from wsproto.events import TextMessage  # noqa: PLC0415

        self._write(TextMessage(data.decode("utf-8", "replace")))

    # --- messages

    def _dispatch(self, message: bytes) -> None:
        """Put a message into its queue, or answer it here if it is no request."""
        fields, stream_id = jsonio.optional_decoder(dict[str, Raw])(message), ""
        if fields is not None:
            kind, name = (_decoded(fields.pop(each, None)) for each in ("type", "stream_id"))
            has_name = isinstance(name, str) and _STREAM_ID.fullmatch(name)
            if kind != _CREATE or not (name is None or has_name):
                self._memory.release(len(message))
                self._refuse(kind, fields)
                return
            stream_id = name if isinstance(name, str) else ""
        queue = self._queues.get(stream_id)
        if queue is None or queue.task.done():
            if len(self._queues) >= MAX_QUEUES:
                self._close(_POLICY, f"a session answers messages of {MAX_QUEUES} streams at once")
                return
            queue = self._queues[stream_id] = MessageQueue(self, stream_id, self._handle)
            queue.task.add_done_callback(lambda task: self._queue_ended(queue, task))
        if len(queue.waiting) >= MAX_WAITING + queue.is_new:
            self._close(_POLICY, "a session answers one message at a time, and one more may wait")
            return
        queue.waiting.append((message, fields))

    def _refuse(self, kind: Json, fields: dict[str, Raw]) -> None:
        """Answer a message that is no request for a response."""
        if kind == _STEER:
            steer = {name: fields.get(name) for name in ("previous_response_id", "input")}
            error = {"type": "invalid_request_error", "code": "steering_not_supported", "message": _NO_STEERING}
            failed = {"type": "response.steer.failed", "sequence_number": 0, "error": error, "steer": steer}
            self.send_event(jsonio.encode(failed))
            return
        fault = Fault("invalid", _NO_STREAM_ID if kind == _CREATE else _NO_TEXT, 400)
        body: Json = {"type": "error", "status": fault.status, "error": render_error(fault)}
        self.send_event(jsonio.encode(body))

    def _queue_ended(self, queue: MessageQueue, task: asyncio.Task[None]) -> None:
        if self._queues.get(queue.stream_id) is queue:
            del self._queues[queue.stream_id]
        if not task.cancelled() and task.exception() is not None:
            self._close(_INTERNAL_ERROR, "the response was not completed")
        self._wake.set()

    def release(self, message: bytes) -> None:
        """Count a message no longer: the request that it becomes is counted."""
        self._memory.release(len(message))

    def hold_items(self, size: int) -> None:
        """Count more bytes of items with which messages continue; fewer if `size` is negative."""
        self._continued_size += size
        self._memory.hold("rendered", self._continued_size)


def _decoded(value: Raw | None) -> Json:
    return None if value is None else jsonio.try_decode(bytes(value))
