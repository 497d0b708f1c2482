"""Our own HTTP/1.1 server: its connections, and one timer that looks after all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

from dragoman.gateway.exchange import Exchange
from dragoman.gateway.server.answering import HttpExchange
from dragoman.gateway.server.connection import Connection
from dragoman.gateway.server.usual import Mould


class OwnCarrier:
    """Gives each request to `answer`, in a task of its own."""

    def __init__(self, answer: Callable[[Exchange], Coroutine[Any, Any, None]]) -> None:
        self.connections: set[Connection] = set()
        self.slow: set[Connection] = set()  # whose clients do not keep up
        self.quiet_now = False
        self.mould: Mould | None = None  # of the last request that was one: other connections may bring the same
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # one for all: what ends an exchange reads nothing of it
        self.time = self._loop.time
        self.now = self._loop.time()  # as of the last sweep: near enough for deadlines of seconds

    @property
    def open(self) -> int:
        return len(self.connections)

    def protocol(self) -> asyncio.BaseProtocol:
        return Connection(self)

    def sweep(self, now: float) -> None:
        self.now = now
        for connection in [each for each in self.connections if each.deadline <= now]:
            connection.overdue(now)
        for connection in list(self.slow):
            connection.check_progress(now)

    def quiet(self) -> None:
        self.quiet_now = True
        for connection in list(self.connections):
            connection.quiet()

    def abort(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    # --- for connections

    def begin(self, exchange: HttpExchange) -> None:
        task = self._loop.create_task(self._answer(exchange))
        task.add_done_callback(exchange.drop, context=self._context)
        exchange.task(task)

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.slow.discard(connection)
