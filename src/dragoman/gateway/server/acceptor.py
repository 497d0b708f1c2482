"""Takes connections from a listening socket, as many as may be; waits where the system has no more to give."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

from dragoman.gateway.server.carrier import Carrier

_AT_ONCE = 64  # connections taken in one go, so that those that are open are served in between
_REST = 0.5  # seconds without file descriptors, before it is tried again
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    def __init__(
        self, listening: socket.socket, carrier: Carrier, *, most: int, exhausted: Callable[[OSError], None]
    ) -> None:
        self._listening, self._carrier = listening, carrier
        self._most, self._exhausted = most, exhausted
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._waits = self._closed = False
        self._rest: asyncio.TimerHandle | None = None
        self._loop.add_reader(listening, self._accept)

    def look_again(self) -> None:
        """Go on if there is room."""
        if self._waits and self._rest is None and not self._closed and self._carrier.open < self._most:
            self._waits = False
            self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._pause()
            self._listening.close()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if self._carrier.open + len(self._opening) >= self._most:
                self._pause()
                return
            try:
                client, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._exhausted(error)
                self._pause()
                self._rest = self._loop.call_later(_REST, self._rested)
                return
            client.setblocking(False)
            opening = self._loop.create_task(self._open(client))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._carrier.protocol, client)
        except OSError:
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
