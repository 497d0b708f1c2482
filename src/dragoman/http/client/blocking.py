"""The client for code that is not async: each exchange runs an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from queue import SimpleQueue

from dragoman.http.client.client import Client, Timeouts
from dragoman.wire.http import HttpRequest, HttpResponse


def send(
    base_url: str, request: HttpRequest, *, timeouts: Timeouts
) -> tuple[HttpResponse, Generator[bytes, None, None]]:
    """Send a request over a connection of its own; return the head, and the body as it comes.

    Raises what `Client.open` does, and from the body what `Reply.pump` does. To close the body closes the connection.
    """
    exchange = _Exchange(base_url, request, timeouts)
    try:
        head = exchange.next()
    except BaseException:
        exchange.end()
        raise
    assert isinstance(head, HttpResponse)
    return head, _body(exchange)


def _body(exchange: _Exchange) -> Generator[bytes, None, None]:
    try:
        while isinstance(piece := exchange.next(), bytes):
            yield piece
    finally:
        exchange.end()


class _Exchange:
    def __init__(self, base_url: str, request: HttpRequest, timeouts: Timeouts) -> None:
        self._asked = base_url, request, timeouts
        self._came: SimpleQueue[HttpResponse | bytes | Exception | None] = SimpleQueue()  # None is the end
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._talk())
        threading.Thread(target=self._run, name="http", daemon=True).start()

    def next(self) -> HttpResponse | bytes | None:
        came = self._came.get()
        if isinstance(came, Exception):
            raise came
        return came

    def end(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(asyncio.wait([self._task]))

    async def _talk(self) -> None:
        base_url, request, timeouts = self._asked
        client = Client()
        try:
            reply = await client.open(base_url, request, timeouts=timeouts, fresh=True)
            self._came.put(HttpResponse(reply.status, reply.headers))
            await reply.pump(self._came.put)
            self._came.put(None)
        except Exception as error:  # noqa: BLE001  it is raised where the exchange was begun
            self._came.put(error)
        finally:
            await client.aclose()
