"""The server frame: one asyncio HTTP/1.1 server on loopback that any face answers through.

Faces decide what is said; the frame only moves it: keep-alive, chunks, pauses, early ends. It keeps what it received,
and how each exchange ended, so that a test can count calls and see whether a client that left was let go at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, get_args

import dragoman.dialects as registry
from dragoman.dialects.rulebook import Severity
from dragoman.errors import LocalMisuse
from dragoman.simulator import http1
from dragoman.simulator.face import DialectFace, Face
from dragoman.simulator.kiro.face import KiroFace
from dragoman.simulator.kiro.verdict import Limits, Profile
from dragoman.simulator.pieces import Break, Pause, Response
from dragoman.simulator.script import Script, load
from dragoman.wire import jsonio
from dragoman.wire.http import Headers, HttpRequest
from dragoman.wire.jsonio import Json

_MOST_CONNECTIONS = 1024
_IDLE = 75.0  # seconds a connection may wait for its next request
_GLANCE = 0.02  # seconds between two looks at whether the client is still there
_DRAINED = 4 * 1024 * 1024  # bytes of a refused body that are read, so that the client can read the answer


class Received:
    """One request as it came, and how its exchange went."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self.at = time.monotonic()
        self.status = 0
        self.note = ""
        self.sent = 0  # bytes of body
        self.ended: Literal["", "whole", "cut", "gone"] = ""
        self._over = threading.Event()

    def wait(self, timeout: float = 5.0) -> Literal["", "whole", "cut", "gone"]:
        """How the exchange ended; empty if it has not, in time. A client may have all before the server is done."""
        self._over.wait(timeout)
        return self.ended

    def end(self, how: Literal["whole", "cut", "gone"]) -> None:
        self.ended = how
        self._over.set()

    @property
    def method(self) -> str:
        return self.request.method

    @property
    def path(self) -> str:
        return self.request.path

    @property
    def headers(self) -> dict[str, str]:
        return dict(reversed(self.request.headers))

    @property
    def body(self) -> bytes:
        return self.request.body

    @property
    def json(self) -> Json:
        return jsonio.decode(self.request.body)

    def __repr__(self) -> str:
        return f"<{self.method} {self.path} {self.status} {self.ended or 'running'}>"


class Gone(Exception):
    """The client left."""


class Simulator:
    """An upstream in one dialect. `async with` starts and stops it; `running_simulator` does so from plain code."""

    def __init__(
        self,
        dialect: str = "kiro",
        *,
        profile: str = "observed",
        script: Script | str | Path | None = None,
        limits: Limits | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        keep: int = 1000,
        on_exchange: Callable[[Received], None] | None = None,
    ) -> None:
        self.requests: list[Received] = []  # the last `keep`
        self.total = 0
        self._face = make_face(dialect, profile, script, limits)
        self._host, self._port = _loopback(host), port
        self._keep = keep
        self._on_exchange = on_exchange
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def __aenter__(self) -> Simulator:
        self._server = await asyncio.start_server(self._connected, self._host, self._port, limit=http1.MAX_HEAD)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    # --- a connection

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= _MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(task)
        writer.transport.set_write_buffer_limits(0)  # so that drain() waits until all is with the kernel
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, TimeoutError, Gone):
            pass
        except asyncio.CancelledError:  # the simulator ends; a client that reads no more must not hold it
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; tell whether the connection goes on."""
        try:
            async with asyncio.timeout(_IDLE):
                head = await http1.read_head(reader)
                if head is None:
                    return False
                request = await http1.read_body(reader, head, self._face.max_body, lambda: _go_on(writer))
        except http1.Unreadable as error:
            writer.write(http1.render_head(error.status, (("content-length", "0"), ("connection", "close"))))
            await writer.drain()
            return False
        except http1.BodyTooLong as error:
            received = self._received(error.request)
            await self._write(self._face.too_large(error.request), received, reader, writer, keeps_alive=False)
            await _drain(reader, writer)
            return False
        received = self._received(request)
        return await self._write(self._face.answer(request), received, reader, writer, head.keeps_alive, head.chunks)

    def _received(self, request: HttpRequest) -> Received:
        received = Received(request)
        self.requests.append(received)
        self.total += 1
        del self.requests[: -self._keep]
        return received

    async def _write(
        self,
        response: Response,
        received: Received,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        keeps_alive: bool,
        chunks: bool = True,
    ) -> bool:
        received.status, received.note = response.status, response.note
        body = _Body(response, received.method, keeps_alive, chunks)
        try:
            writer.write(http1.render_head(response.status, body.headers))
            await writer.drain()
            received.end(await self._write_body(response, body, received, reader, writer))
        except (ConnectionError, Gone):
            received.end("gone")
            raise
        finally:
            if self._on_exchange is not None:
                self._on_exchange(received)
        return body.keeps_alive and received.ended == "whole"

    async def _write_body(
        self,
        response: Response,
        body: _Body,
        received: Received,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> Literal["whole", "cut"]:
        for piece in response.pieces:
            if isinstance(piece, Pause):
                await pause(piece.seconds, reader, writer)
            elif isinstance(piece, Break):
                if piece.how == "end" and body.may_end(received.sent):
                    break
                if piece.how == "reset":
                    await reset(writer)
                return "cut"
            elif piece and body.carried:
                writer.write(body.framed(piece))
                received.sent += len(piece)
                await writer.drain()
        writer.write(body.last)
        await writer.drain()
        return "whole"


class _Body:
    """How a response's body goes over the connection."""

    def __init__(self, response: Response, method: str, keeps_alive: bool, chunks: bool) -> None:
        self.carried = method != "HEAD" and response.status not in (204, 304)
        self._length = response.length
        self._chunked = response.length is None and chunks and self.carried
        self.keeps_alive = keeps_alive and (self._chunked or response.length is not None or not self.carried)
        self.last = b"0\r\n\r\n" if self._chunked else b""
        framing: Headers = ()
        if self._chunked:
            framing = (("transfer-encoding", "chunked"),)
        elif response.length is not None and self.carried:
            framing = (("content-length", str(response.length)),)
        connection = "keep-alive" if self.keeps_alive else "close"
        self.headers = (*response.headers, *framing, ("connection", connection))

    def framed(self, piece: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece

    def may_end(self, sent: int) -> bool:
        """Whether the body can end here cleanly."""
        return self._length is None or sent == self._length


async def _go_on(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    await writer.drain()


async def pause(seconds: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait, unless the client leaves: nobody would be told otherwise while nothing is written."""
    until = asyncio.get_running_loop().time() + seconds
    while (left := until - asyncio.get_running_loop().time()) > 0:
        if reader.at_eof() or writer.is_closing():
            raise Gone
        await asyncio.sleep(min(left, _GLANCE))


async def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with RST instead of FIN."""
    await asyncio.sleep(_GLANCE)  # a reset overtakes what the client has not read yet
    raw = writer.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _drain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read on for a while after a refusal: closing at once would reset the connection and lose the answer."""
    if writer.can_write_eof():
        writer.write_eof()
    left = _DRAINED
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(2):
            while left > 0 and (piece := await reader.read(65536)):
                left -= len(piece)


# --- making one


def make_face(dialect: str, profile: str, script: Script | str | Path | None, limits: Limits | None) -> Face:
    """The face of a dialect. Raises LocalMisuse for a dialect, profile or script that cannot be."""
    played = script if isinstance(script, Script) else Script() if script is None else load(script)
    limits = limits or Limits()
    if dialect == "kiro":
        for known in get_args(Profile):
            if profile == known:
                return KiroFace(known, played, limits)
        raise LocalMisuse(f"unknown profile {profile!r} (known: {', '.join(get_args(Profile))})")
    if profile not in _REFUSED:
        raise LocalMisuse(f"unknown profile {profile!r} (known: {', '.join(_REFUSED)})")
    return DialectFace(registry.get(dialect), played, refuses=_REFUSED[profile], max_body=limits.body_bytes)


# What a profile refuses in a dialect other than kiro: breaches of these severities.
_REFUSED: dict[str, tuple[Severity, ...]] = {
    "official": ("error",),
    "observed": ("error",),
    "strict": ("error", "advice"),
    "paranoid": ("error", "advice"),
    "lenient": (),
}


def _loopback(host: str) -> str:
    if host == "localhost":
        return "127.0.0.1"
    try:
        if ipaddress.ip_address(host).is_loopback:
            return host
    except ValueError:
        pass
    raise LocalMisuse(f"the simulator listens on loopback only, not on {host!r}")


@contextlib.contextmanager
def running_simulator(
    dialect: str = "kiro",
    *,
    profile: str = "observed",
    script: Script | str | Path | None = None,
    limits: Limits | None = None,
    port: int = 0,
) -> Iterator[Simulator]:
    """A simulator in a thread of its own, for code that is not async."""
    simulator = Simulator(dialect, profile=profile, script=script, limits=limits, port=port)
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    failed: list[OSError] = []
    ready = threading.Event()

    async def serve() -> None:
        try:
            async with simulator:
                stop = asyncio.Event()
                started.append((asyncio.get_running_loop(), stop))
                ready.set()
                await stop.wait()
        except OSError as error:  # the port is taken
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name=f"simulator-{dialect}", daemon=True)
    thread.start()
    ready.wait()
    if failed:
        raise failed[0]
    try:
        yield simulator
    finally:
        loop, stop = started[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
