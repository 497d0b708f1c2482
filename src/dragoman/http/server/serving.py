"""The HTTP server: its connections, one timer that enforces all their deadlines, and two listeners.

`Listener` (simulator, admin socket) closes connections past its limit. `Acceptor` (gateway) makes room for new
connections: it closes the open ones that matter least. `ConnectionRegistry` keeps the order in which they are closed.
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

_SHORT_GRACE = 0.1  # seconds, for a connection whose first byte the system has already waited for
_SHED_AT_ONCE = 16  # idle or slow connections closed together, because finding them scans all connections
_MAX_ACCEPTS = 64  # connections accepted in one turn of the loop; open connections are served in between
_RETRY_SECONDS = 0.02  # until the next attempt to accept, while accepted connections are read
_EXHAUSTED_SECONDS = 0.5  # until the next attempt to accept, after file descriptors or memory ran out
_REPORT_SECONDS = 10.0  # between two reports of that
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ShedResult(Enum):
    """The result of an attempt to make room."""

    CLOSED = auto()  # at least one connection was closed
    LATER = auto()  # none was closed, but some can be when their grace period ends
    NOTHING = auto()  # every connection has a request that runs or arrives fast enough


class _Group(Struct):
    """The connections of one peer, or of all."""

    members: set[ServerConnection] = set()
    # Connections without an admitted request, oldest first.
    silent: dict[ServerConnection, None] = {}  # they have sent nothing
    unadmitted: dict[ServerConnection, None] = {}  # they have sent bytes, but no admitted request


class ConnectionRegistry:
    """The open connections of a server, by peer and in the order in which `shed` closes them."""

    def __init__(self) -> None:
        self._all = _Group()
        self._by_peer: dict[str, _Group] = {}
        self.members = self._all.members
        self.slow_readers: set[ServerConnection] = set()  # with clients that read more slowly than the server writes
        self.half_closed: set[ServerConnection] = (
            set()
        )  # with clients that closed their sending side and wait for a response

    def __len__(self) -> int:
        return len(self.members)

    @property
    def unadmitted(self) -> int:
        """Return how many connections have sent bytes, but no admitted request."""
        return len(self._all.unadmitted)

    def count_of_peer(self, peer: str) -> int:
        """Return how many connections this peer has."""
        group = self._by_peer.get(peer)
        return len(group.members) if group is not None else 0

    def make_room(self, peer: str, most: int) -> bool:
        """Close a connection of this peer if it has `most`. Return whether it may open one more."""
        return self.count_of_peer(peer) < most or self.shed(peer) is not ShedResult.NOTHING

    def add(self, member: ServerConnection) -> None:
        """Register a new connection, as one that has sent nothing."""
        for group in (self._all, self._by_peer.setdefault(member.peer, _Group())):
            group.members.add(member)
            group.silent[member] = None

    def move_to_peer(self, member: ServerConnection, peer: str) -> None:
        """Count a connection for another peer: the client that the PROXY header named."""
        if member not in self.members:
            return
        has_received = member not in self._all.silent
        self.remove(member)
        member.peer = peer
        self.add(member)
        if has_received:
            self.mark_received(member)

    def shorten_grace(self, member: ServerConnection) -> None:
        """Shorten the grace period of a connection whose first byte the system has waited for (`defer_accept`).

        Some grace is still needed: the system does not wait when a flood of connections fills its queue.
        """
        if member in self.members:
            member.since = monotonic() - GRACE_SECONDS + _SHORT_GRACE

    def mark_received(self, member: ServerConnection, *, is_admitted: bool = False) -> None:
        """Record that the first bytes of a connection were read, or that a request of it was admitted."""
        if member in self.members:
            for group in (self._all, self._by_peer[member.peer]):
                group.silent.pop(member, None)
                if is_admitted:
                    group.unadmitted.pop(member, None)
                else:
                    group.unadmitted[member] = None

    def remove(self, member: ServerConnection) -> None:
        """Forget a connection that is closed. Does nothing if it is not registered."""
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
        """Close the connection that matters least, of one peer or of all.

        The order: (1) the oldest connection that has sent bytes but no admitted request, since a normal client sends
        its whole head at once; (2) the oldest that has sent nothing for GRACE_SECONDS; while others are within that
        period, nothing more is closed; (3) those that have been idle for longest; (4) those with a request body that
        arrives more slowly than `server.min_body_rate`. A complete request, or one that arrives fast enough, is safe.
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
        candidates = idle or [each for each in group.members if each.is_slow]
        for member in candidates[: _SHED_AT_ONCE if not peer else 1]:
            self._close(member)
        return ShedResult.CLOSED if candidates else ShedResult.NOTHING

    def _close(self, member: ServerConnection) -> None:
        self.remove(member)
        member.abort()


class HttpServer:
    """Passes each request as an exchange to `answer`, in a task of its own."""

    def __init__(
        self, answer: Callable[[HttpExchange], Coroutine[Any, Any, None]], *, write_buffer: int | None = None
    ) -> None:
        self.connections = ConnectionRegistry()
        self.keeps_no_connections = False
        self.write_buffer = (
            write_buffer  # bytes that a transport buffers before it pauses the writer; None: its default
        )
        self.answer = answer
        self.loop = asyncio.get_running_loop()
        self.context = copy_context()  # shared: the done callback of an exchange reads no context variable
        self.clock: Callable[[], float] = time.monotonic  # for deadlines; uvloop's clock does not advance during a turn
        self._late: set[ServerConnection] = set()

    def sweep(self, now: float) -> None:
        """Enforce all deadlines; called every SWEEP_SECONDS."""
        # After a slow turn of the loop, unread bytes may wait: act only on connections that were late last time too.
        late = {each for each in self.connections.members if each.deadline <= now}
        for connection in late & self._late:
            connection.deadline_passed(now)
        self._late = late - self._late
        for connection in list(self.connections.slow_readers):
            connection.check_progress(now)
        for connection in list(self.connections.half_closed):
            connection.check_disconnected()

    def stop_keep_alive(self) -> None:
        """Close every connection after its current response; idle ones now."""
        self.keeps_no_connections = True
        for connection in list(self.connections.members):
            connection.stop_keep_alive()

    def abort(self) -> None:
        """Close every connection at once."""
        for connection in list(self.connections.members):
            connection.abort()


class Listener:
    """Listens, and serves at most `most` connections; further ones are closed at once."""

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
        """Listen on a TCP port, and return the port. Raises OSError.

        `first` creates the protocol that reads the start of a connection; the default is the ServerConnection itself.
        """

        def make_protocol() -> asyncio.BaseProtocol:
            connection = self._connection()
            return connection if first is None else first(connection)

        self._listening = await asyncio.get_running_loop().create_server(
            make_protocol, host, port, ssl=tls, ssl_handshake_timeout=None if tls is None else HEAD_SECONDS
        )
        self._sweeping = asyncio.create_task(self._sweep())
        return int(self._listening.sockets[0].getsockname()[1])

    async def listen_at(self, listening: socket.socket) -> None:
        """Listen on a Unix socket that is already bound."""
        self._listening = await asyncio.get_running_loop().create_unix_server(self._connection, sock=listening)
        self._sweeping = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Stop listening, and close every connection."""
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
    """Accepts connections: at most `most` in total, and at most `max_of_peer` for one peer.

    At the limit, it closes an open connection for each new one (`ConnectionRegistry.shed`). If all open connections
    have running requests, new ones wait in the backlog, or are closed if their peer has too many.
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
        self._most, self.max_of_peer, self._exhausted = most, max_of_peer, on_exhausted
        self.first = first  # creates the protocol that reads the start of a connection
        self._defers = defers_accept(listening)
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._is_paused = self._closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._next_report = 0.0
        self._pending = select.poll()
        self._pending.register(listening, select.POLLIN)
        self._loop.add_reader(listening, self._accept)

    def resume_accepting(self) -> None:
        """Accept connections again, after a request has ended or a connection was closed."""
        if self._is_paused and self._retry is None and not self._closed:
            self._is_paused = False
            self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        """Stop accepting, and close the listening socket; open connections stay open."""
        if not self._closed:
            self._closed = True
            self._pause()
            self._listening.close()

    def _accept(self) -> None:
        connections, shed_now = self._server.connections, 0
        for _ in range(_MAX_ACCEPTS):
            if len(connections.members) >= self._most:
                # Do not shed all in one turn: the newest may have sent a request that is admitted in the next.
                if (shed_now and shed_now >= connections.unadmitted) or not self._make_room():
                    return
                shed_now += 1
            try:
                client, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._handle_exhausted(error)
                return
            name = normalize_address(address[0])
            most, peer = self.max_of_peer(name), limit_key(name)
            if len(connections.members) >= most and not connections.make_room(peer, most):
                client.close()
                continue
            client.setblocking(False)
            connection = ServerConnection(self._server, name, peer)
            connections.add(connection)
            opening = self._loop.create_task(self._open(client, connection))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    def _make_room(self) -> bool:
        """Close a connection for one in the backlog. If none can be closed now, pause accepting."""
        if not self._pending.poll(0):  # the backlog is empty
            return False
        shed = self._server.connections.shed()
        if shed is not ShedResult.CLOSED:
            self._pause()
            if shed is ShedResult.LATER:
                self._retry = self._loop.call_later(_RETRY_SECONDS, self._resume)
        return shed is ShedResult.CLOSED

    def _handle_exhausted(self, error: OSError) -> None:
        """Report that the system has no more resources, and shed; the loop closes sockets at the end of this turn."""
        now = self._loop.time()
        if now >= self._next_report:
            self._next_report = now + _REPORT_SECONDS
            self._exhausted(error)
        if self._server.connections.shed() is not ShedResult.CLOSED:
            self._pause()
            self._retry = self._loop.call_later(_EXHAUSTED_SECONDS, self._resume)

    async def _open(self, client: socket.socket, protocol: ServerConnection) -> None:
        if self._defers:
            try:
                client.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                self._server.connections.shorten_grace(protocol)  # the system has waited for its first byte
            except OSError:
                pass
        first = protocol if self.first is None else self.first(protocol)
        try:
            await self._loop.connect_accepted_socket(lambda: first, client)
        except OSError:
            self._server.connections.remove(protocol)
            client.close()

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._loop.remove_reader(self._listening)
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _resume(self) -> None:
        self._retry = None
        self.resume_accepting()
