"""The HTTP client for code that is not async. Each exchange runs an event loop in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import Any

from dragoman.http.client.client import HttpClient, HttpTimeouts
from dragoman.wire.http import HttpRequest, HttpResponse


def send(
    base_url: str, request: HttpRequest, *, timeouts: HttpTimeouts
) -> tuple[HttpResponse, Generator[bytes, None, None]]:
    """Send a request over a new connection; return the head and an iterator over the body.

    Raises the errors of `HttpClient.open`; the iterator raises those of `ClientResponse.pump`. Closing the iterator
    closes the connection.
    """
    items: SimpleQueue[HttpResponse | bytes | Exception | None] = SimpleQueue()  # None is the end
    loop = asyncio.new_event_loop()
    task = loop.create_task(_exchange(base_url, request, timeouts, items.put))

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(asyncio.wait([task]))

    def receive() -> Generator[Any, None, None]:
        try:
            while (item := items.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

    threading.Thread(target=run, name="http", daemon=True).start()
    body = receive()
    return next(body), body  # the head comes first


async def _exchange(
    base_url: str,
    request: HttpRequest,
    timeouts: HttpTimeouts,
    put: Callable[[HttpResponse | bytes | Exception | None], None],
) -> None:
    client = HttpClient()
    try:
        response = await client.open(base_url, request, timeouts=timeouts, new_connection=True)
        put(HttpResponse(response.status, response.headers))
        await response.pump(put)
        put(None)
    except Exception as error:  # noqa: BLE001  it is raised in the thread of the caller
        put(error)
    finally:
        await client.aclose()
