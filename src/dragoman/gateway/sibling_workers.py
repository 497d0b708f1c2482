"""Requests of one worker of a gateway to its siblings, the other workers, through their private admin sockets.

Only the user who runs the gateway can open these sockets, and only that user can create one in their folder. So a
worker may unpickle what a sibling sends. The version is a part of each path: after an upgrade, a worker that was
started again does not understand the others, and gets no response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from dragoman._version import __version__
from dragoman.errors import TooLarge, TransportError, UpstreamViolation
from dragoman.gateway.admin import MAX_MESSAGE_BYTES
from dragoman.http.client.client import HttpClient, HttpTimeouts, PoolLimits
from dragoman.wire.http import HttpRequest

RESPONSE_SECONDS = 2.0  # A sibling that does not begin to respond within them counts as one that has nothing.
CONNECTIONS = 2  # to each sibling
_TRANSFER_SECONDS = 30.0  # for a whole response, which may be a long conversation
_WAITING = 1024  # requests that wait for a connection to one sibling
_IDLE_SECONDS = 30.0
_TIMEOUTS = HttpTimeouts(write=RESPONSE_SECONDS, head=RESPONSE_SECONDS, idle=RESPONSE_SECONDS, total=_TRANSFER_SECONDS)
_LIMITS = PoolLimits(
    connections=CONNECTIONS,
    idle=CONNECTIONS,
    idle_seconds=_IDLE_SECONDS,
    waiting=_WAITING,
    wait_seconds=RESPONSE_SECONDS,
)
_PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0)  # seconds before a message is sent again
_NO_RESPONSE = (TransportError, UpstreamViolation, TooLarge, OSError, TimeoutError)


def sibling_path(name: str) -> str:
    """Return the path of a request to siblings of the same version."""
    return f"/workers/{__version__}/{name}"


class Sibling:
    """Another worker of this gateway."""

    def __init__(self, socket: Path) -> None:
        self._client = HttpClient(unix=socket, caps=_LIMITS, sweep_seconds=RESPONSE_SECONDS / 8)

    async def request(
        self, name: str, body: bytes, limit: int = MAX_MESSAGE_BYTES, count: Callable[[int], None] | None = None
    ) -> bytes | None:
        """Return the sibling's response of at most `limit` bytes; None if it sends none in time.

        `count` gets the size of each piece before it is received. Raises the errors of `count`.
        """
        if len(body) > MAX_MESSAGE_BYTES:
            return None
        request = HttpRequest("POST", sibling_path(name), body=body)
        try:
            async with asyncio.timeout(_TRANSFER_SECONDS):
                response = await self._client.open("http://localhost", request, timeouts=_TIMEOUTS)
                try:
                    return await response.read(limit, count) if response.status == 200 else None
                finally:
                    response.close()
        except _NO_RESPONSE:
            return None

    async def request_with_retries(self, name: str, body: bytes) -> bytes | None:
        """Send a message, and again after a pause if there is no response. Return the response; None if none came."""
        for pause in _PAUSES:
            if (response := await self.request(name, body)) is not None:
                return response
            await asyncio.sleep(pause)
        return await self.request(name, body)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


class Siblings:
    """All other workers of this gateway, and the tasks that send messages to them."""

    def __init__(self, sockets: Sequence[Path]) -> None:
        self.each = [Sibling(socket) for socket in sockets]
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task; `aclose` cancels it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """Cancel all tasks and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sibling in self.each:
            await sibling.aclose()
