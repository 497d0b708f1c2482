"""Our own HTTP/1.1 server: its connections, and one timer that looks after all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

from dragoman.gateway.exchange import Exchange
from dragoman.gateway.server.answering import HttpExchange
from dragoman.gateway.server.connection import Connection
from dragoman.gateway.server.roster import Roster


class OwnCarrier:
    """Gives each request to `answer`, in a task of its own."""

    def __init__(self, answer: Callable[[Exchange], Coroutine[Any, Any, None]]) -> None:
        self.roster: Roster[Connection] = Roster()
        self.slow: set[Connection] = set()  # whose clients do not keep up
        self.quiet_now = False
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # one for all: what ends an exchange reads nothing of it
        self.time = self._loop.time
        self.clock: Callable[[], float] = time.monotonic  # for deadlines: uvloop's own stands still during a turn
        self._late: set[Connection] = set()
        self._half_closed: set[Connection] = set()  # whose clients send nothing more, and wait for an answer

    def protocol(self, client: str = "") -> Connection:
        return Connection(self, client)

    def sweep(self, now: float) -> None:
        # After a slow turn of the loop bytes may wait to be read: only who was late before, too, is judged.
        late = {each for each in self.roster.members if each.deadline <= now}
        for connection in late & self._late:
            connection.overdue(now)
        self._late = late - self._late
        for connection in list(self.slow):
            connection.check_progress(now)
        for connection in list(self._half_closed):
            connection.check_left()

    def quiet(self) -> None:
        self.quiet_now = True
        for connection in list(self.roster.members):
            connection.quiet()

    def abort(self) -> None:
        for connection in list(self.roster.members):
            connection.abort()

    # --- for connections

    def begin(self, exchange: HttpExchange) -> None:
        task = self._loop.create_task(self._answer(exchange))
        task.add_done_callback(exchange.drop, context=self._context)
        exchange.task(task)

    def half_closed(self, connection: Connection, seconds: float) -> None:
        """The client sends nothing more. Find out soon, and then at each sweep, whether it still waits."""
        self._half_closed.add(connection)
        self._loop.call_later(seconds, connection.probe)
        self._loop.call_later(2 * seconds, connection.check_left)

    def forget(self, connection: Connection) -> None:
        self.roster.remove(connection)
        self.slow.discard(connection)
        self._half_closed.discard(connection)
