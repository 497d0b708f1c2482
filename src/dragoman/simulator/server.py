"""The server of the simulator: the HTTP server of `dragoman.http` on loopback, with a simulated service behind it.

The service decides the response; this module writes it, with its pauses and early ends. It records each request and
how its exchange ended, so that a test can count requests and see whether a disconnect was noticed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, get_args

from msgspec import structs

import dragoman.dialects as registry
from dragoman.dialects.rulebook import Severity
from dragoman.errors import ClientFault, Fault, LocalMisuse, TooLarge
from dragoman.http.addresses import is_loopback
from dragoman.http.exchange import ClientDisconnected, HttpExchange
from dragoman.http.server.connection import ServerConnection
from dragoman.http.server.serving import HttpServer, Listener
from dragoman.simulator.kiro.refusals import SimulatorLimits, StrictnessProfile
from dragoman.simulator.kiro.service import KiroService
from dragoman.simulator.response import BodyEnd, Pause, Response
from dragoman.simulator.script import Script, load_script
from dragoman.simulator.service import DialectService, SimulatedService
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

_MAX_CONNECTIONS = 1024
_POLL_SECONDS = 0.02  # between two checks whether the client has disconnected
_ORIGIN = re.compile(r"https?://[^/?]*")


class ReceivedRequest:
    """One request, and how its exchange ended: `whole`, `cut` by the simulator, or `gone` (the client left)."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self.at = time.monotonic()
        self.status = 0
        self.note = ""
        self.sent = 0  # bytes of body
        self.ended: Literal["", "whole", "cut", "gone"] = ""
        self._finished = threading.Event()

    def wait(self, timeout: float = 5.0) -> Literal["", "whole", "cut", "gone"]:
        """Wait for the end of the exchange and return how it ended; empty if it is still running.

        A client may have the whole response before the server has recorded the end.
        """
        self._finished.wait(timeout)
        return self.ended

    def end(self, how: Literal["whole", "cut", "gone"]) -> None:
        """Record how the exchange ended."""
        self.ended = how
        self._finished.set()

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.request.method

    @property
    def path(self) -> str:
        """The path, without the query."""
        return self.request.path

    @property
    def headers(self) -> dict[str, str]:
        """The headers; of a repeated one, the first value."""
        return dict(reversed(self.request.headers))

    @property
    def body(self) -> bytes:
        """The body."""
        return self.request.body

    @property
    def json(self) -> Json:
        """The body as JSON. Raises JsonError."""
        return jsonio.decode(self.request.body)

    def __repr__(self) -> str:
        return f"<{self.method} {self.path} {self.status} {self.ended or 'running'}>"


class Simulator:
    """A fake upstream of one dialect. `async with` starts and stops it; sync code uses `running_simulator`."""

    def __init__(
        self,
        dialect: str = "kiro",
        *,
        profile: str = "observed",
        script: Script | str | Path | None = None,
        limits: SimulatorLimits | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        keep: int = 1000,
        on_exchange: Callable[[ReceivedRequest], None] | None = None,
    ) -> None:
        self.requests: list[ReceivedRequest] = []  # the last `keep` requests
        self.total = 0
        self._service = make_service(dialect, profile, script, limits)
        self._host, self._port = _loopback(host), port
        self._keep = keep
        self._on_exchange = on_exchange
        self._listener: Listener | None = None

    @property
    def url(self) -> str:
        """The base URL."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def __aenter__(self) -> Simulator:
        self._listener = Listener(HttpServer(self._exchange, write_buffer=0), most=_MAX_CONNECTIONS)
        self._port = await self._listener.listen(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listener is not None:
            await self._listener.close()

    # --- an exchange

    async def _exchange(self, exchange: HttpExchange) -> None:
        limit = self._service.max_body
        try:
            request = await read_request(exchange, limit)
        except TooLarge:
            request = strip_origin(exchange)
            await self._write(exchange, self._service.too_large(request), self._received(request))
        except ClientFault as error:
            exchange.last = True
            exchange.whole(error.fault.status, (), b"")
        except ClientDisconnected:
            return
        else:
            await self._write(exchange, self._service.handle(request), self._received(request))

    def _received(self, request: HttpRequest) -> ReceivedRequest:
        received = ReceivedRequest(request)
        self.requests.append(received)
        self.total += 1
        del self.requests[: -self._keep]
        return received

    async def _write(self, exchange: HttpExchange, response: Response, received: ReceivedRequest) -> None:
        received.status, received.note = response.status, response.note
        how: Literal["whole", "cut", "gone"] = "gone"
        try:
            how = await self._write_body(exchange, response, received)
        except ClientDisconnected:
            exchange.break_off()
        except asyncio.CancelledError:
            if not exchange.was_interrupted():
                raise
        finally:
            received.end(how)
            if self._on_exchange is not None:
                self._on_exchange(received)

    async def _write_body(
        self, exchange: HttpExchange, response: Response, received: ReceivedRequest
    ) -> Literal["whole", "cut"]:
        if received.method == "HEAD" or response.status in (204, 304):
            exchange.whole(response.status, response.headers, b"")
            return "whole"
        flow = FlowControl(exchange)
        exchange.head(response.status, response.headers, response.length)
        exchange.flush()
        for piece in response.pieces:
            await flow.writable()
            if isinstance(piece, Pause):
                await pause(piece.seconds, exchange)
            elif isinstance(piece, BodyEnd):
                if piece.how == "end" and response.length in (None, received.sent):
                    break
                await break_off(piece, exchange)
                return "cut"
            elif piece:
                exchange.chunk(piece)
                received.sent += len(piece)
        await flow.writable()
        exchange.chunk(b"", last=True)
        return "whole"


class FlowControl:
    """Makes the writer of a response wait while the client does not read."""

    def __init__(self, exchange: HttpExchange) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.pause, self.resume, self.writable = self._open.clear, self._open.set, self._open.wait
        exchange.source = self
        if exchange.paused:
            self.pause()


async def read_request(exchange: HttpExchange, limit: int) -> HttpRequest:
    """Read the whole request. Raises ClientFault if it is not valid, TooLarge, ClientDisconnected."""
    if exchange.version not in ("1.0", "1.1"):
        raise ClientFault("only HTTP/1 is supported", fault=Fault("invalid", "only HTTP/1 is supported", 400))
    try:
        body = await exchange.body(limit)
    except asyncio.CancelledError:
        if exchange.was_interrupted():
            raise ClientDisconnected from None
        raise
    return structs.replace(strip_origin(exchange), body=body)


def strip_origin(exchange: HttpExchange) -> HttpRequest:
    """Return the request without the origin of an absolute target, which clients send to proxies."""
    target = _ORIGIN.sub("", exchange.target).partition("#")[0]
    path, _, query = target.partition("?")
    return structs.replace(exchange.request, path=path or "/", query=query)


async def pause(seconds: float, exchange: HttpExchange) -> None:
    """Wait. Raises ClientDisconnected as soon as the client closes its sending side."""
    until = asyncio.get_running_loop().time() + seconds
    while (left := until - asyncio.get_running_loop().time()) > 0:
        if exchange.is_half_closed:
            raise ClientDisconnected
        await asyncio.sleep(min(left, _POLL_SECONDS))


async def break_off(piece: BodyEnd, exchange: HttpExchange | ServerConnection) -> None:
    """Close or reset the connection inside a response, or before it."""
    if piece.how == "reset":
        await asyncio.sleep(_POLL_SECONDS)  # a reset discards what the client has not read yet
    exchange.break_off(reset=piece.how == "reset")


# --- creating a simulator


def make_service(
    dialect: str, profile: str, script: Script | str | Path | None, limits: SimulatorLimits | None
) -> SimulatedService:
    """Return the service of a dialect. Raises LocalMisuse for an unknown dialect or profile, or a wrong script."""
    loaded = script if isinstance(script, Script) else Script() if script is None else load_script(script)
    limits = limits or SimulatorLimits()
    if dialect == "kiro":
        for known in get_args(StrictnessProfile):
            if profile == known:
                return KiroService(known, loaded, limits)
        raise LocalMisuse(f"unknown profile {profile!r} (known: {', '.join(get_args(StrictnessProfile))})")
    if profile not in _REFUSED:
        raise LocalMisuse(f"unknown profile {profile!r} (known: {', '.join(_REFUSED)})")
    return DialectService(registry.get(dialect), loaded, refuses=_REFUSED[profile], max_body=limits.body_bytes)


# The severities that a profile refuses, for dialects other than kiro.
_REFUSED: dict[str, tuple[Severity, ...]] = {
    "official": ("error",),
    "observed": ("error",),
    "strict": ("error", "advice"),
    "paranoid": ("error", "advice"),
    "lenient": (),
}


def _loopback(host: str) -> str:
    if is_loopback(host):
        return "127.0.0.1" if host == "localhost" else host
    raise LocalMisuse(f"the simulator listens on loopback only, not on {host!r}")


@contextlib.contextmanager
def running_simulator(
    dialect: str = "kiro",
    *,
    profile: str = "observed",
    script: Script | str | Path | None = None,
    limits: SimulatorLimits | None = None,
    port: int = 0,
) -> Iterator[Simulator]:
    """Run a simulator in a thread, for code that is not async."""
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
        except OSError as error:  # for example, the port is in use
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
