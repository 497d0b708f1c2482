"""Takes connections from a listening socket. When room runs short, those that are worth least are closed first."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from collections.abc import Callable
from typing import Any

from dragoman.http.addresses import limit_key, plain_address
from dragoman.http.server.connection import Connection
from dragoman.http.server.roster import Shed
from dragoman.http.server.serving import HttpServer
from dragoman.http.server.sockets import defers_accept, has_data

_AT_ONCE = 64  # connections taken in one go, so that those that are open are served in between
_GRACE = 0.02  # seconds for those that were accepted to be read, before it is tried again
_REST = 0.5  # seconds without file descriptors, before it is tried again
_SILENCE = 10.0  # seconds between two complaints about that
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts while fewer than `most` connections are open, and of one peer fewer than `most_of_peer`.

    Past that, a connection is shed for each new one. Only where all have running requests, the new ones wait in the
    backlog, or are closed if it is their peer that has too many.
    """

    def __init__(
        self,
        listening: socket.socket,
        server: HttpServer,
        *,
        most: int,
        most_of_peer: Callable[[str], int],
        exhausted: Callable[[OSError], None],
        first: Callable[[Connection, str], asyncio.BaseProtocol] | None = None,
    ) -> None:
        self._listening, self._server = listening, server
        self._most, self._most_of_peer, self._exhausted = most, most_of_peer, exhausted
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

    def look_again(self) -> None:
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
        roster, shed_now = self._server.roster, 0
        for _ in range(_AT_ONCE):
            if len(roster) >= self._most:
                if not self._pending.poll(0):  # nobody is shed for nobody
                    return
                # Not all in one turn: the newest of them may have sent a request that is let in in the next.
                if shed_now and shed_now >= roster.unproven:
                    return
                shed_now += 1
                if (shed := roster.shed()) is not Shed.CLOSED:
                    self._pause()
                    if shed is Shed.LATER:
                        self._rest = self._loop.call_later(_GRACE, self._rested)
                    return
            try:
                client, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._make_room(error)
                return
            self._take(client, address)

    def _make_room(self, error: OSError) -> None:
        """The system gives no more connections. What is shed is closed at the end of this turn of the loop."""
        now = self._loop.time()
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE
            self._exhausted(error)
        if self._server.roster.shed() is not Shed.CLOSED:
            self._pause()
            self._rest = self._loop.call_later(_REST, self._rested)

    def _take(self, client: socket.socket, address: Any) -> None:
        name, roster = plain_address(address[0]), self._server.roster
        peer = limit_key(name)
        if not roster.has_room(peer, self._most_of_peer(name)):
            client.close()
            return
        client.setblocking(False)
        protocol = self._server.protocol(name)
        if self._defers and not has_data(client):
            roster.hurry(protocol)  # it had its grace before it was accepted
        opening = self._loop.create_task(self._open(client, protocol, name))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, client: socket.socket, protocol: Connection, name: str) -> None:
        first = protocol if self._first is None else self._first(protocol, name)
        try:
            await self._loop.connect_accepted_socket(lambda: first, client)
        except OSError:
            self._server.roster.remove(protocol)
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
        self.look_again()
