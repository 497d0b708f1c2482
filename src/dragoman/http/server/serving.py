"""The server: its connections, one timer that looks after all of them, and a plain way to listen."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

from dragoman.http.server.answering import HttpExchange
from dragoman.http.server.connection import Connection
from dragoman.http.server.limits import SWEEP_SECONDS
from dragoman.http.server.roster import Roster


class HttpServer:
    """Gives each request to `answer`, in a task of its own."""

    def __init__(
        self, answer: Callable[[HttpExchange], Coroutine[Any, Any, None]], *, write_buffer: int | None = None
    ) -> None:
        self.roster: Roster[Connection] = Roster()
        self.slow: set[Connection] = set()  # whose clients do not keep up
        self.quiet_now = False
        self.write_buffer = write_buffer  # bytes that a transport holds before it pauses the writer; None: its default
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # one for all: what ends an exchange reads nothing of it
        self.time = self._loop.time
        self.clock: Callable[[], float] = time.monotonic  # for deadlines: uvloop's own stands still during a turn
        self._late: set[Connection] = set()
        self._half_closed: set[Connection] = set()  # whose clients send nothing more, and wait for an answer

    def protocol(self, client: str = "") -> Connection:
        """Make the protocol of a new connection from this address."""
        return Connection(self, client)

    def sweep(self, now: float) -> None:
        """End what is overdue; called `SWEEP_SECONDS` apart."""
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
        """Keep no connection for another request."""
        self.quiet_now = True
        for connection in list(self.roster.members):
            connection.quiet()

    def abort(self) -> None:
        """Close every connection at once."""
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


class Listener:
    """Serves at most `most` connections; further ones are closed at once."""

    def __init__(self, server: HttpServer, *, most: int) -> None:
        self._server, self._most = server, most
        self._sweeping: asyncio.Task[None] | None = None
        self._listening: asyncio.Server | None = None

    async def listen(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        first: Callable[[Connection], asyncio.BaseProtocol] | None = None,
    ) -> int:
        """Listen, and return the port. Raises OSError.

        `first` makes the protocol that a connection begins with, if that is not the server's own.
        """

        def made() -> asyncio.BaseProtocol:
            connection = self._connection()
            return connection if first is None else first(connection)

        self._listening = await asyncio.get_running_loop().create_server(made, host, port, ssl=tls)
        self._sweeping = asyncio.create_task(self._sweep())
        return int(self._listening.sockets[0].getsockname()[1])

    async def listen_at(self, listening: socket.socket) -> None:
        """Listen at a Unix socket that is bound."""
        self._listening = await asyncio.get_running_loop().create_unix_server(self._connection, sock=listening)
        self._sweeping = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Listen no more, and end every connection."""
        if self._listening is not None:
            self._listening.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._server.abort()
        while self._server.roster:
            await asyncio.sleep(0)

    def _connection(self) -> Connection:
        connection = self._server.protocol()
        if len(self._server.roster) > self._most:
            connection.abort()
        return connection

    async def _sweep(self) -> None:
        while True:
            self._server.sweep(time.monotonic())
            await asyncio.sleep(SWEEP_SECONDS)
