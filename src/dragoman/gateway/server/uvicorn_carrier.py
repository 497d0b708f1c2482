"""uvicorn's protocol under our own rules: what it does not check or end by itself is checked and ended here."""

from __future__ import annotations

import asyncio
from math import inf
from time import monotonic
from typing import Any

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from dragoman.gateway.app import Gateway
from dragoman.gateway.asgi import TARGET
from dragoman.gateway.guard import LONGEST_TARGET, MOST_HEADERS
from dragoman.gateway.peers import limit_key
from dragoman.gateway.server.answering import CONTINUE
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
from dragoman.gateway.server.roster import Roster
from dragoman.gateway.server.sockets import is_reset, probe

_PIECE = 8 * 1024  # bytes that are parsed before it is looked whether the pipeline is full
_PROBE_SECONDS = 0.02  # after a client has closed its sending side


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
            proxy_headers=False,  # who is trusted is ours to say (server.trusted_proxies)
            timeout_keep_alive=int(IDLE_SECONDS),
        )
        self._config.load()
        self._state = ServerState()
        self._quiet = False
        self.roster: Roster[Strict] = Roster()

    def protocol(self, client: str = "") -> Strict:
        return Strict(self.roster, client, config=self._config, server_state=self._state, app_state={})

    def sweep(self, now: float) -> None:
        for connection in list(self.roster.members):
            connection.check(now)
            if self._quiet:
                connection.shutdown()

    def quiet(self) -> None:
        self._quiet = True
        for connection in list(self.roster.members):
            connection.shutdown()

    def abort(self) -> None:
        for connection in list(self.roster.members):
            connection.abort()


class _Refused(Exception):
    """Out of a parser's callback: this head is not read on."""


class _Flow(FlowControl):
    """Does not go on reading while bytes are held: uvicorn asks for that after each answer and for each body."""

    holds = False

    def resume_reading(self) -> None:
        if not self.holds:
            super().resume_reading()


class Strict(HttpToolsProtocol):
    """Counts heads while they come, knows how long they may take, and tells every request that its client has left.

    Requests that come before their turn wait in uvicorn's pipeline. When it is full, the rest of what was read is held.
    A client that closes its sending side after whole requests gets their answers.
    """

    def __init__(self, roster: Roster[Strict], client: str, **given: Any) -> None:
        super().__init__(**given)
        self.peer = limit_key(client)
        self.deadline = monotonic() + HEAD_SECONDS  # of a head
        self._address, self._roster = client, roster
        self._late = self._in_head = self._deaf = self._half_closed = False
        self._held = b""
        self._barren = 0
        self._refusal = BAD_REQUEST
        self._running: RequestResponseCycle | None = None
        self._aborted = False
        self.since = self.idle_since = monotonic()
        self._silent = True  # nothing of it was read
        roster.add(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: _Flow = _Flow(transport)
        if self._aborted:
            transport.abort()

    def name_client(self, address: str) -> None:
        self._address = address
        self._roster.rename(self, limit_key(address))

    @property
    def is_busy(self) -> bool:
        return self._in_head or (self._running is not None and not self._running.response_complete)

    @property
    def is_slow(self) -> bool:
        return False

    @property
    def has_unread(self) -> bool:
        return False

    def abort(self) -> None:
        self._aborted = True
        if self.flow is not None:
            self.transport.abort()

    def check(self, now: float) -> None:
        """End a head that takes too long, if it did before too: after a slow turn bytes may wait to be read."""
        late, self._late = self._late, now >= self.deadline
        if late and self._late:
            self.deadline, self._refusal = inf, TOO_SLOW
            self.send_400_response("")
        elif self._half_closed:
            self._check_left()

    def data_received(self, data: bytes) -> None:
        if self._silent:
            self._silent = False
            self._roster.hear(self)
        if self._is_over():
            return
        if self.flow.holds:
            self._held += data
            return
        for at in range(0, len(data), _PIECE):
            super().data_received(data[at : at + _PIECE])
            if self._is_over():
                return
            self._barren += min(_PIECE, len(data) - at) if self._in_head else 0
            if self._barren > HEAD_BYTES + _PIECE:
                self._refusal = HEAD_TOO_LONG
                self.send_400_response("")
                return
            if len(self.pipeline) >= MOST_PIPELINED:
                self._hold(data[at + _PIECE :])
                break
        if not self._in_head and self.deadline == inf and (self._running is None or self._running.response_complete):
            self.deadline = monotonic() + HEAD_SECONDS  # its own timer is off by now

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.idle_since = monotonic()
        if self.flow.holds and len(self.pipeline) < MOST_PIPELINED and not self.transport.is_closing():
            held, self._held, self.flow.holds = self._held, b"", False
            self.data_received(held)
            self.flow.resume_reading()
        elif self._half_closed and not self.pipeline and not self.is_busy:
            self.transport.close()

    def _hold(self, rest: bytes) -> None:
        """Keep what does not fit into the pipeline, and read no more until it does."""
        self._held = rest
        self.deadline = inf  # it is we who do not read
        self.flow.pause_reading()
        self.flow.holds = True

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether the connection stays open: a client that has sent whole requests may wait for the answers."""
        if self._running is None or self._running.response_complete:
            return False
        if not self._held and (self.cycle.more_body or self._in_head):
            return False
        self._half_closed = True
        self.loop.call_later(_PROBE_SECONDS, self._probe)
        self.loop.call_later(2 * _PROBE_SECONDS, self._check_left)
        return True

    def _probe(self) -> None:
        running = self._running
        if self.transport.is_closing() or probe(self.transport):
            return
        if running is not None and not running.response_started:
            self.transport.write(CONTINUE)

    def _check_left(self) -> None:
        if not self.transport.is_closing() and is_reset(self.transport):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._roster.remove(self)
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
        self.deadline = monotonic() + HEAD_SECONDS

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
        self._in_head, self.deadline = False, inf
        if not self.url.startswith(b"/"):
            raise _Refused  # a target that is no path: its path alone would hide whom it names
        super().on_headers_complete()
        target = self.url.decode("latin-1")
        self.scope["extensions"] = {TARGET: {"target": target, "client": self._address, "admitted": self._prove}}
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False

    def _is_over(self) -> bool:
        return self._deaf or self.transport.is_closing()

    def _prove(self) -> None:
        self._roster.prove(self)

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
