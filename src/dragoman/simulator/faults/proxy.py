"""The proxy: one asyncio server on loopback. Each exchange is asked of the target on a connection of its own, and its
answer goes through the faults; the client's connections are kept, closed, reset or left hanging as they say.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from urllib.parse import urlsplit

from dragoman.dialects.base import Dialect
from dragoman.errors import DragomanError, LocalMisuse
from dragoman.simulator import http1
from dragoman.simulator.faults.answer import Answer, Fault, Pieces, pieces_of, rendered
from dragoman.simulator.faults.toxics import Stale
from dragoman.simulator.pieces import Break, Pause, Piece
from dragoman.simulator.server import Gone, pause, reset
from dragoman.wire.http import HttpRequest

_MOST_BODY = 64 * 1024 * 1024
_READ = 64 * 1024
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})")


class FaultProxy:
    """`async with` starts and stops it. `faults` may be changed while it runs."""

    def __init__(
        self,
        target: str,
        faults: Sequence[Fault] = (),
        *,
        dialect: Dialect | None = None,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.faults = tuple(faults)
        self.connections = 0
        self.exchanges = 0  # requests that came whole
        self.asked = 0  # requests that the target got
        self.sent = 0  # bytes
        self.left: list[float] = []  # when a client went before its answer had ended, by the monotonic clock
        self._target = urlsplit(target)
        self._dialect = dialect
        self._tls = tls
        self._port = port
        self._struck: dict[Fault, int] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{'localhost' if self._tls else '127.0.0.1'}:{self._port}"

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", self._port, limit=http1.MAX_HEAD, ssl=self._tls
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- a connection

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        writer.transport.set_write_buffer_limits(0)
        try:
            greeting = [piece for fault in self._striking() if fault.greet() for piece in self._strikes(fault).greet()]
            if not greeting or await self._write(pieces_of(*greeting), reader, writer):
                await self._serve(reader, writer)
        except (ConnectionError, TimeoutError, Gone):
            self.left.append(time.monotonic())
        except (http1.Unreadable, http1.BodyTooLong):
            pass
        except asyncio.CancelledError:  # the proxy ends
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served = 0
        while True:
            head = await http1.read_head(reader)
            if head is None:
                return
            request = await http1.read_body(reader, head, _MOST_BODY, _go_on)
            number, self.exchanges = self.exchanges, self.exchanges + 1
            faults = [self._strikes(fault) for fault in self._striking() if not fault.greet()]
            if any(isinstance(fault, Stale) and served >= fault.after for fault in faults):
                return
            async with contextlib.AsyncExitStack() as stack:
                answer = next((made for fault in faults if (made := fault.instead(request, number))), None)
                if answer is None:
                    answer = await self._ask(request, stack)
                if not await self._write(_spoilt(answer, faults), reader, writer):
                    return
            served += 1
            if not head.keeps_alive:
                return

    def _striking(self) -> list[Fault]:
        return [fault for fault in self.faults if not fault.times or self._struck.get(fault, 0) < fault.times]

    def _strikes(self, fault: Fault) -> Fault:
        self._struck[fault] = self._struck.get(fault, 0) + 1
        return fault

    async def _write(self, pieces: Pieces, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Write; tell whether the connection goes on."""
        async for piece in pieces:
            match piece:
                case Pause(seconds):
                    await pause(seconds, reader, writer)
                case Break(how):
                    if how == "reset":
                        await reset(writer)
                    return False
                case bytes():
                    if piece:
                        writer.write(piece)
                        self.sent += len(piece)
                        await writer.drain()
        return True

    # --- the target

    async def _ask(self, request: HttpRequest, stack: contextlib.AsyncExitStack) -> Answer:
        self.asked += 1
        target = self._target
        reader, writer = await asyncio.open_connection(target.hostname, target.port, limit=http1.MAX_HEAD)
        stack.callback(_abort, writer)  # which also keeps the writer: one that nobody holds closes
        own = ("host", "connection", "content-length", "transfer-encoding", "expect")
        fields = [f"{name}: {value}" for name, value in request.headers if name not in own]
        fields += [f"host: {target.netloc}", "connection: close", f"content-length: {len(request.body)}"]
        where = target.path.rstrip("/") + request.path + (f"?{request.query}" if request.query else "")
        writer.write("\r\n".join((f"{request.method} {where} HTTP/1.1", *fields, "", "")).encode("latin-1"))
        writer.write(request.body)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        found = _STATUS.match(lines[0])
        if found is None:
            raise ConnectionError("the target does not speak HTTP")
        pairs = [line.decode("latin-1").partition(":") for line in lines[1:] if line]
        headers = tuple((name.strip().lower(), value.strip()) for name, _, value in pairs)
        told = dict(headers)
        body = _body(reader, told.get("content-length"))
        if self._dialect is not None and "stream" in told.get("content-type", ""):
            body = _frames(body, self._dialect)
        kept = tuple(pair for pair in headers if pair[0] not in ("content-length", "transfer-encoding", "connection"))
        return Answer(int(found[1]), kept, body, "length" if "content-length" in told else "chunked")


def _spoilt(answer: Answer, faults: Sequence[Fault]) -> Pieces:
    for fault in faults:
        answer.body = fault.frames(answer.body)
    for fault in faults:
        answer = fault.answer(answer)
    pieces = rendered(answer)
    for fault in faults:
        pieces = fault.wire(pieces)
    return pieces


async def _body(reader: asyncio.StreamReader, length: str | None) -> AsyncIterator[Piece]:
    """The body without its framing; Break if it ends before its end."""
    try:
        if length is not None:
            left = int(length)
            while left:
                piece = await reader.read(min(left, _READ))
                if not piece:
                    yield Break("close")
                    return
                left -= len(piece)
                yield piece
            return
        while count := int((await reader.readuntil(b"\r\n")), 16):
            yield (await reader.readexactly(count + 2))[:-2]
    except (asyncio.IncompleteReadError, ConnectionError):
        yield Break("close")


async def _frames(body: Pieces, dialect: Dialect) -> Pieces:
    decoder = dialect.binding.frames()
    async for piece in body:
        if not isinstance(piece, bytes):
            yield piece
            continue
        try:
            for frame in decoder.feed(piece):
                yield frame.raw
        except DragomanError as error:
            raise LocalMisuse(f"the target breaks its own dialect: {error}") from error
    for frame in decoder.close():
        yield frame.raw


def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _go_on() -> None:
    pass
