"""uvicorn's protocol under our own rules: what it does not check or end by itself is checked and ended here."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from dragoman.gateway.app import Gateway
from dragoman.gateway.asgi import TARGET
from dragoman.gateway.guard import LONGEST_TARGET, MOST_HEADERS
from dragoman.gateway.server.carrier import (
    BAD_REQUEST,
    HEAD_BYTES,
    HEAD_SECONDS,
    HEAD_TOO_LONG,
    IDLE_SECONDS,
    MOST_PIPELINED,
    TARGET_TOO_LONG,
    TOO_SLOW,
)


class UvicornCarrier:
    """Its connections, without its server: the same acceptor, sweeper and drain serve both."""

    def __init__(self, gateway: Gateway) -> None:
        self._config = uvicorn.Config(
            gateway,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=int(IDLE_SECONDS),
        )
        self._config.load()
        self._state = ServerState()
        self._quiet = False

    @property
    def open(self) -> int:
        return len(self._state.connections)

    def protocol(self) -> asyncio.BaseProtocol:
        return Strict(config=self._config, server_state=self._state, app_state={})

    def sweep(self, now: float) -> None:
        for connection in self._connections():
            connection.check(now)
            if self._quiet:
                connection.shutdown()

    def quiet(self) -> None:
        self._quiet = True
        for connection in self._connections():
            connection.shutdown()

    def abort(self) -> None:
        for connection in self._connections():
            connection.transport.abort()

    def _connections(self) -> list[Strict]:
        return [each for each in self._state.connections if isinstance(each, Strict)]


class _Refused(Exception):
    """Out of a parser's callback: this head is not read on."""


class Strict(HttpToolsProtocol):
    """Counts heads while they come, knows how long they may take, and tells every request that its client has left."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._due: float | None = self.loop.time() + HEAD_SECONDS  # of a head
        self._in_head = False
        self._deaf = False
        self._barren = 0
        self._refusal = BAD_REQUEST
        self._running: RequestResponseCycle | None = None

    def check(self, now: float) -> None:
        """End a head that takes too long."""
        if self._due is not None and now >= self._due:
            self._due, self._refusal = None, TOO_SLOW
            self.send_400_response("")

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._barren += len(data)
            if self._barren > HEAD_BYTES:
                self._refusal = HEAD_TOO_LONG
                self.send_400_response("")
        elif self._due is None and (self._running is None or self._running.response_complete):
            self._due = self.loop.time() + HEAD_SECONDS  # its own timer is off by now

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._barren = True, 0
        self._due = self.loop.time() + HEAD_SECONDS

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > LONGEST_TARGET:
            self._refusal = TARGET_TOO_LONG
            raise _Refused

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value.rstrip())
        if len(self.headers) > MOST_HEADERS:
            self._refusal = HEAD_TOO_LONG
            raise _Refused

    def on_headers_complete(self) -> None:
        self._in_head, self._due = False, None
        if len(self.pipeline) >= MOST_PIPELINED or not self.url.startswith(b"/"):
            raise _Refused  # a target that is no path: its path alone would hide whom it names
        super().on_headers_complete()
        self.scope["extensions"] = {TARGET: {"target": self.url.decode("latin-1")}}
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """Refuse, unless that would be written into another answer, or instead of one."""
        self._deaf = True
        running = self._running
        if running is None or running.response_complete or (running.more_body and not running.response_started):
            self.transport.write(self._refusal)
            self.transport.close()
        else:
            running.keep_alive = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)
