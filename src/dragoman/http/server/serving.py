"""The server: its connections, one timer that looks after all of them, and two ways to listen.

`Listener` closes connections past its limit. `Acceptor`, which the gateway uses, closes those that are worth least to
make room for new ones; `ConnectionRegistry` knows which these are.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from enum import Enum, auto
from time import monotonic
from typing import Any

from msgspec import Struct

from dragoman.http.addresses import limit_key, normalize_address
from dragoman.http.exchange import HttpExchange
from dragoman.http.framing import GRACE_SECONDS, HEAD_SECONDS, SWEEP_SECONDS
from dragoman.http.server.connection import ServerConnection
from dragoman.http.server.sockets import defers_accept

_SHORT_GRACE = 0.1  # seconds
_SHED_AT_ONCE = 16  # connections that are closed together: idle and slow ones are found by looking at all
_AT_ONCE = 64  # connections taken in one go, so that those that are open are served in between
_GRACE = 0.02  # seconds for those that were accepted to be read, before it is tried again
_REST = 0.5  # seconds without file descriptors, before it is tried again
_SILENCE = 10.0  # seconds between two complaints about that
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ShedResult(Enum):
    """What came of an attempt to make room."""

    CLOSED = auto()  # a connection, or several
    LATER = auto()  # none, but some that have their grace now can be closed soon
    NOTHING = auto()  # every connection has a request that runs, or arrives as it should


class _Group(Struct):
    """The connections of one peer, or of all."""

    members: set[ServerConnection] = set()
    # None of their requests was let in yet; oldest first.
    silent: dict[ServerConnection, None] = {}  # nothing was read of them
    unadmitted: dict[ServerConnection, None] = {}  # something was, and it was no request that is let in


class ConnectionRegistry:
    """The open connections of a server: by peer, and in the order in which they are closed when room runs short."""

    def __init__(self) -> None:
        self._all = _Group()
        self._by_peer: dict[str, _Group] = {}
        self.members = self._all.members
        self.slow_readers: set[ServerConnection] = set()  # whose clients do not read as fast as we write
        self.half_closed: set[ServerConnection] = set()  # whose clients send nothing more, and wait for an answer

    def __len__(self) -> int:
        return len(self.members)

    @property
    def unadmitted(self) -> int:
        """How many connections have sent something, but no request that was let in."""
        return len(self._all.unadmitted)

    def count_of_peer(self, peer: str) -> int:
        """How many connections this peer has."""
        group = self._by_peer.get(peer)
        return len(group.members) if group is not None else 0

    def has_room(self, peer: str, most: int) -> bool:
        """Whether one more connection of this peer may be. If it has `most`, one of them is closed for it."""
        return self.count_of_peer(peer) < most or self.shed(peer) is not ShedResult.NOTHING

    def add(self, member: ServerConnection) -> None:
        for group in (self._all, self._by_peer.setdefault(member.peer, _Group())):
            group.members.add(member)
            group.silent[member] = None

    def move_to_peer(self, member: ServerConnection, peer: str) -> None:
        """Count a connection for another peer: the client that its proxy has named."""
        if member not in self.members:
            return
        heard = member not in self._all.silent
        self.remove(member)
        member.peer = peer
        self.add(member)
        if heard:
            self.mark_received(member)

    def shorten_grace(self, member: ServerConnection) -> None:
        """Give a connection a short grace: the system has probably waited for its first byte already.

        It has not where a flood of connections fills its queue.
        """
        if member in self.members:
            member.since = monotonic() - GRACE_SECONDS + _SHORT_GRACE

    def mark_received(self, member: ServerConnection, *, is_admitted: bool = False) -> None:
        """The first bytes of this connection were read, or a request of it was let in."""
        if member in self.members:
            for group in (self._all, self._by_peer[member.peer]):
                group.silent.pop(member, None)
                if is_admitted:
                    group.unadmitted.pop(member, None)
                else:
                    group.unadmitted[member] = None

    def remove(self, member: ServerConnection) -> None:
        if member not in self.members:
            return
        for group in (self._all, of_peer := self._by_peer[member.peer]):
            group.members.discard(member)
            group.silent.pop(member, None)
            group.unadmitted.pop(member, None)
        if not of_peer.members:
            del self._by_peer[member.peer]
        self.slow_readers.discard(member)
        self.half_closed.discard(member)

    def shed(self, peer: str = "") -> ShedResult:
        """Close what is worth least, of this peer or of all.

        First the oldest connection that sent something which is no request, or not yet; a client that means well sends
        its whole head at once. Then the oldest that has sent nothing for `GRACE_SECONDS` seconds. While others have
        that grace,
        nothing more is closed. Then come those that have been idle for longest, and last those whose request arrives
        more slowly than `server.min_body_rate`. A request that has arrived, or arrives as it should, is never closed.
        """
        group = self._by_peer.get(peer, _Group()) if peer else self._all
        for member in group.unadmitted:
            self._close(member)
            return ShedResult.CLOSED
        for member in group.silent:
            if monotonic() < member.since + GRACE_SECONDS or member.has_unread:
                return ShedResult.LATER
            self._close(member)
            return ShedResult.CLOSED
        idle = sorted((each for each in group.members if not each.is_busy), key=lambda each: each.idle_since)
        weakest = idle or [each for each in group.members if each.is_slow]
        for member in weakest[: _SHED_AT_ONCE if not peer else 1]:
            self._close(member)
        return ShedResult.CLOSED if weakest else ShedResult.NOTHING

    def _close(self, member: ServerConnection) -> None:
        self.remove(member)
        member.abort()


class HttpServer:
    """Gives each request to `answer`, in a task of its own."""

    def __init__(
        self, answer: Callable[[HttpExchange], Coroutine[Any, Any, None]], *, write_buffer: int | None = None
    ) -> None:
        self.connections = ConnectionRegistry()
        self.keeps_no_connections = False
        self.write_buffer = write_buffer  # bytes that a transport holds before it pauses the writer; None: its default
        self.answer = answer
        self.loop = asyncio.get_running_loop()
        self.context = copy_context()  # one for all: what ends an exchange reads nothing of it
        self.clock: Callable[[], float] = time.monotonic  # for deadlines: uvloop's own stands still during a turn
        self._late: set[ServerConnection] = set()

    def sweep(self, now: float) -> None:
        """End what is overdue; called `SWEEP_SECONDS` apart."""
        # After a slow turn of the loop bytes may wait to be read: only who was late before, too, is judged.
        late = {each for each in self.connections.members if each.deadline <= now}
        for connection in late & self._late:
            connection.deadline_passed(now)
        self._late = late - self._late
        for connection in list(self.connections.slow_readers):
            connection.check_progress(now)
        for connection in list(self.connections.half_closed):
            connection.check_disconnected()

    def stop_keep_alive(self) -> None:
        """Keep no connection for another request."""
        self.keeps_no_connections = True
        for connection in list(self.connections.members):
            connection.stop_keep_alive()

    def abort(self) -> None:
        """Close every connection at once."""
        for connection in list(self.connections.members):
            connection.abort()


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
        first: Callable[[ServerConnection], asyncio.BaseProtocol] | None = None,
    ) -> int:
        """Listen, and return the port. Raises OSError.

        `first` makes the protocol that a connection begins with, if that is not the server's own.
        """

        def made() -> asyncio.BaseProtocol:
            connection = self._connection()
            return connection if first is None else first(connection)

        self._listening = await asyncio.get_running_loop().create_server(
            made, host, port, ssl=tls, ssl_handshake_timeout=None if tls is None else HEAD_SECONDS
        )
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
        while self._server.connections:
            await asyncio.sleep(0)

    def _connection(self) -> ServerConnection:
        connection = ServerConnection(self._server)
        self._server.connections.add(connection)
        if len(self._server.connections) > self._most:
            connection.abort()
        return connection

    async def _sweep(self) -> None:
        while True:
            self._server.sweep(time.monotonic())
            await asyncio.sleep(SWEEP_SECONDS)


class Acceptor:
    """Accepts while fewer than `most` connections are open, and of one peer fewer than `max_of_peer`.

    Past that, a connection is shed for each new one. Only where all have running requests, the new ones wait in the
    backlog, or are closed if it is their peer that has too many.
    """

    def __init__(
        self,
        listening: socket.socket,
        server: HttpServer,
        *,
        most: int,
        max_of_peer: Callable[[str], int],
        on_exhausted: Callable[[OSError], None],
        first: Callable[[ServerConnection], asyncio.BaseProtocol] | None = None,
    ) -> None:
        self._listening, self._server = listening, server
        self._most, self._max_of_peer, self._exhausted = most, max_of_peer, on_exhausted
        self._first = first  # what reads the first bytes of a connection, if that is not the server's own
        self._defers = defers_accept(listening)
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._waits = self._closed = False
        self._rest: asyncio.TimerHandle | None = None
        self._silent_until = 0.0
        self._pending = select.poll()
        self._pending.register(listening, select.POLLIN)
        self._loop.add_reader(listening, self._accept)

    def resume_accepting(self) -> None:
        """Go on if there is room by now, or something to shed."""
        if self._waits and self._rest is None and not self._closed:
            self._waits = False
            self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._pause()
            self._listening.close()

    def _accept(self) -> None:
        connections, shed_now = self._server.connections, 0
        for _ in range(_AT_ONCE):
            if len(connections.members) >= self._most:
                # Not all in one turn: the newest of them may have sent a request that is let in in the next.
                if (shed_now and shed_now >= connections.unadmitted) or not self._makes_room():
                    return
                shed_now += 1
            try:
                client, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._exhausted_by(error)
                return
            name = normalize_address(address[0])
            most, peer = self._max_of_peer(name), limit_key(name)
            if len(connections.members) >= most and not connections.has_room(peer, most):
                client.close()
                continue
            client.setblocking(False)
            connection = ServerConnection(self._server, name, peer)
            connections.add(connection)
            opening = self._loop.create_task(self._open(client, connection))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    def _makes_room(self) -> bool:
        """Close a connection for one that waits. Where none can be closed now, wait with accepting."""
        if not self._pending.poll(0):  # no connection waits
            return False
        shed = self._server.connections.shed()
        if shed is not ShedResult.CLOSED:
            self._pause()
            if shed is ShedResult.LATER:
                self._rest = self._loop.call_later(_GRACE, self._rested)
        return shed is ShedResult.CLOSED

    def _exhausted_by(self, error: OSError) -> None:
        """The system gives no more connections. What is shed is closed at the end of this turn of the loop."""
        now = self._loop.time()
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE
            self._exhausted(error)
        if self._server.connections.shed() is not ShedResult.CLOSED:
            self._pause()
            self._rest = self._loop.call_later(_REST, self._rested)

    async def _open(self, client: socket.socket, protocol: ServerConnection) -> None:
        if self._defers:
            try:
                client.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                self._server.connections.shorten_grace(protocol)  # it had its grace before it was accepted
            except OSError:
                pass
        first = protocol if self._first is None else self._first(protocol)
        try:
            await self._loop.connect_accepted_socket(lambda: first, client)
        except OSError:
            self._server.connections.remove(protocol)
            client.close()

    def _pause(self) -> None:
        if not self._waits:
            self._waits = True
            self._loop.remove_reader(self._listening)
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _rested(self) -> None:
        self._rest = None
        self.resume_accepting()
