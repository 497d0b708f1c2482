"""The fault proxy: an HTTP server on loopback that forwards each request and damages the response.

The proxy opens a new connection to the target for each request and passes the response through the faults. The faults
decide whether a client's connection stays open, is closed, is reset or hangs. Does network I/O, on loopback only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType

from dragoman.dialects.base import Dialect
from dragoman.errors import ClientFault, DragomanError, LocalMisuse, TransportError, UpstreamViolation
from dragoman.http.client.client import ClientResponse, HttpClient, PoolLimits
from dragoman.http.exchange import ClientDisconnected, HttpExchange
from dragoman.http.server.connection import ServerConnection
from dragoman.http.server.serving import HttpServer, Listener
from dragoman.simulator.faults.response import (
    Pieces,
    ProxiedResponse,
    ProxyFault,
    SilentlyClosedConnection,
    render_response,
)
from dragoman.simulator.response import BodyEnd, BodyPiece, Pause
from dragoman.simulator.server import FlowControl, break_off, pause, read_request
from dragoman.wire.http import HttpRequest

_MAX_BODY = 64 * 1024 * 1024
_MAX_CONNECTIONS = 10_000
_FRAMING = ("content-length", "transfer-encoding", "connection")


class FaultProxy:
    """A proxy that `async with` starts and stops. `faults` may be changed while it runs."""

    def __init__(
        self,
        target: str,
        faults: Sequence[ProxyFault] = (),
        *,
        dialect: Dialect | None = None,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.faults = tuple(faults)
        self.connections = 0
        self.exchanges = 0  # requests that were read to their end
        self.forwarded = 0  # requests that were sent to the target
        self.sent = 0  # bytes sent to clients
        self.disconnects: list[float] = []  # monotonic times at which a client left before its response ended
        self._target = target
        self._dialect = dialect
        self._tls = tls
        self._port = port
        self._uses: dict[ProxyFault, int] = {}
        self._served: dict[ServerConnection, int] = {}
        self._client: HttpClient | None = None
        self._listener: Listener | None = None

    @property
    def url(self) -> str:
        """The address of the proxy."""
        return f"{'https' if self._tls else 'http'}://{'localhost' if self._tls else '127.0.0.1'}:{self._port}"

    async def __aenter__(self) -> FaultProxy:
        self._client = HttpClient(caps=PoolLimits(idle=0))
        self._listener = Listener(HttpServer(self._exchange, write_buffer=0), most=_MAX_CONNECTIONS)
        self._port = await self._listener.listen("127.0.0.1", self._port, tls=self._tls, first=self._first)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            await self._listener.close()
        if self._client is not None:
            await self._client.aclose()

    # --- a connection

    def _first(self, own: ServerConnection) -> asyncio.BaseProtocol:
        self.connections += 1
        on_connect = [
            piece for fault in self._active_faults() if fault.on_connect() for piece in self._use(fault).on_connect()
        ]
        return UnreadConnection(own, on_connect, self.disconnects) if on_connect else own

    async def _exchange(self, exchange: HttpExchange) -> None:
        try:
            request = await read_request(exchange, _MAX_BODY)
            await self._serve(request, exchange)
        except ClientDisconnected:
            self.disconnects.append(time.monotonic())
            exchange.break_off()
        except (ClientFault, TransportError, UpstreamViolation):
            exchange.break_off()
        except asyncio.CancelledError:
            if not exchange.was_interrupted():
                raise
            self.disconnects.append(time.monotonic())

    async def _serve(self, request: HttpRequest, exchange: HttpExchange) -> None:
        number, self.exchanges = self.exchanges, self.exchanges + 1
        faults = [self._use(fault) for fault in self._active_faults() if not fault.on_connect()]
        served = self._served[exchange.connection] = self._served.get(exchange.connection, -1) + 1
        if any(isinstance(fault, SilentlyClosedConnection) and served >= fault.after for fault in faults):
            exchange.break_off()
            return
        replacements = (fault.replace_response(request, number) for fault in faults)
        response = next((replacement for replacement in replacements if replacement), None)
        async with contextlib.AsyncExitStack() as stack:
            if response is None:
                response = await self._forward(request, stack)
            await self._write(_damaged(response, faults), exchange)

    def _active_faults(self) -> list[ProxyFault]:
        return [fault for fault in self.faults if not fault.times or self._uses.get(fault, 0) < fault.times]

    def _use(self, fault: ProxyFault) -> ProxyFault:
        self._uses[fault] = self._uses.get(fault, 0) + 1
        return fault

    async def _write(self, pieces: Pieces, exchange: HttpExchange) -> None:
        flow = FlowControl(exchange)
        async for piece in pieces:
            await flow.writable()
            match piece:
                case Pause(seconds):
                    await pause(seconds, exchange)
                case BodyEnd():
                    await break_off(piece, exchange)
                    return
                case bytes():
                    if piece:
                        exchange.write_raw(piece)
                        self.sent += len(piece)
        await flow.writable()
        exchange.end_raw()

    # --- the target

    async def _forward(self, request: HttpRequest, stack: contextlib.AsyncExitStack) -> ProxiedResponse:
        self.forwarded += 1
        assert self._client is not None
        response = await self._client.open(self._target, request, new_connection=True)
        stack.callback(response.close)
        by_name = dict(response.headers)
        body = _body(response)
        if self._dialect is not None and "stream" in by_name.get("content-type", ""):
            body = _frames(body, self._dialect)
        headers = tuple(pair for pair in response.headers if pair[0] not in _FRAMING)
        return ProxiedResponse(response.status, headers, body, "length" if "content-length" in by_name else "chunked")


class UnreadConnection(asyncio.Protocol):
    """A connection that is never read: it waits, and is then closed or reset."""

    def __init__(self, own: ServerConnection, pieces: Sequence[BodyPiece], disconnects: list[float]) -> None:
        self._own, self._pieces, self._disconnects = own, pieces, disconnects
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._own.connection_made(transport)
        self._own.pause_reading()
        self._task = asyncio.create_task(self._run())

    def connection_lost(self, exc: Exception | None) -> None:
        self._own.connection_lost(exc)
        if self._task is not None and not self._task.done():
            self._task.cancel()
            self._disconnects.append(time.monotonic())

    async def _run(self) -> None:
        for piece in self._pieces:
            if isinstance(piece, Pause):
                await asyncio.sleep(piece.seconds)
            elif isinstance(piece, BodyEnd):
                await break_off(piece, self._own)


def _damaged(response: ProxiedResponse, faults: Sequence[ProxyFault]) -> Pieces:
    """Return the bytes of the response after all faults, level by level."""
    for fault in faults:
        response.body = fault.frames(response.body)
    for fault in faults:
        response = fault.change_response(response)
    pieces = render_response(response)
    for fault in faults:
        pieces = fault.wire(pieces)
    return pieces


async def _body(response: ClientResponse) -> AsyncIterator[BodyPiece]:
    """Yield the body without its framing; a truncated body ends with `BodyEnd("close")`."""
    try:
        async for piece in response.pieces():
            yield piece
    except (TransportError, UpstreamViolation):
        yield BodyEnd("close")


async def _frames(body: Pieces, dialect: Dialect) -> Pieces:
    decoder = dialect.binding.frame_decoder()
    async for piece in body:
        if not isinstance(piece, bytes):
            yield piece
            continue
        try:
            for frame in decoder.feed(piece):
                yield frame.raw
        except DragomanError as error:
            raise LocalMisuse(
                f"the target of the fault proxy sent a stream that its dialect does not allow: {error}"
            ) from error
    for frame in decoder.close():
        yield frame.raw
