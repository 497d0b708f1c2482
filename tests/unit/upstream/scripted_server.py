"""A server on loopback that sends exactly the bytes of a test's script, and a runner for both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from dragoman.http.client.client import HttpClient

T = TypeVar("T")
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class ServerConnection:
    """The server's side of one connection."""

    def __init__(
        self, run_server: ScriptedServer, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.peer, self.number, self.reader, self.writer = run_server, number, reader, writer

    async def request(self) -> bytes:
        """Read one request and give its head; it is kept, with its body, in `run_server.requests`."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next((int(v) for k, v in header_fields(head) if k == "content-length"), 0)
        self.peer.requests.append((head, await self.reader.readexactly(length)))
        return head

    async def send(self, data: bytes) -> None:
        if self.writer.transport.is_closing():  # uvloop says so by a RuntimeError
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the client has closed."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


def record_idle_checks(monkeypatch: pytest.MonkeyPatch, *, is_readable: bool | None = None) -> list[int]:
    """Note each kept connection that is looked at before it is used again; with `is_readable`, that is what is seen."""
    checks: list[int] = []
    make = select.poll

    class Poll:
        def __init__(self) -> None:
            self.poll_now, self.register, self.unregister = (poll := make()).poll, poll.register, poll.unregister

        def poll(self, timeout: float) -> list[tuple[int, int]]:
            found = self.poll_now(timeout)
            checks.append(len(found))
            return found if is_readable is None else [(0, select.POLLIN)] if is_readable else []

    monkeypatch.setattr(select, "poll", Poll)
    return checks


ConnectionScript = Callable[[ServerConnection], Awaitable[None]]


class ScriptedServer:
    def __init__(self) -> None:
        self.url = ""
        self.port = 0
        self.connections = 0
        self.open = 0
        self.requests: list[tuple[bytes, bytes]] = []


@contextlib.asynccontextmanager
async def run_server(
    script: ConnectionScript, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[ScriptedServer]:
    it = ScriptedServer()
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        it.connections += 1
        it.open += 1
        try:
            await script(ServerConnection(it, it.connections, reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            it.open -= 1
            writer.close()

    server = await asyncio.start_server(serve, host, 0, ssl=tls, limit=1 << 20)
    it.port = server.sockets[0].getsockname()[1]
    it.url = f"{'https' if tls else 'http'}://{'localhost' if tls else host}:{it.port}"
    try:
        yield it
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # transports that close, TLS ones above all, need a turn or two


@contextlib.asynccontextmanager
async def run_client_and_server(
    script: ConnectionScript, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", **settings: Any
) -> AsyncIterator[tuple[ScriptedServer, HttpClient]]:
    """Such a server and a client with these settings, which is closed at the end."""
    async with run_server(script, tls=tls, host=host) as server:
        client = HttpClient(**settings)
        try:
            yield server, client
        finally:
            await client.aclose()


async def wait_until(true: Callable[[], object]) -> None:
    """Wait for what must come; `run_on` ends what waits for a minute."""
    while not true():
        await asyncio.sleep(0.002)


def header_fields(head: bytes) -> list[tuple[str, str]]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines if line)]


def respond_with(*responses: bytes) -> ConnectionScript:
    """Answer the n-th request of a connection with the n-th response, and the last of them for ever."""

    async def script(connection: ServerConnection) -> None:
        count = 0
        while True:
            await connection.request()
            await connection.send(responses[min(count, len(responses) - 1)])
            count += 1

    return script


def respond_once(
    response: bytes, *, size: int = 0, end: Callable[[ServerConnection], None] | None = ServerConnection.close
) -> ConnectionScript:
    """Answer one request, in writes of `size` bytes, then end the connection; `end=None` keeps it open."""

    async def script(connection: ServerConnection) -> None:
        await connection.request()
        step = size or len(response) or 1
        for at in range(0, len(response), step):
            await connection.send(response[at : at + step])
            if size:
                await asyncio.sleep(0)
        if end is not None:
            end(connection)
        else:
            await connection.gone()

    return script


def run_on(loop: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, T]) -> T:
    """Run to the end within a minute; fail if the loop's exception handler got an unhandled error."""
    errors: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        async with asyncio.timeout(60):
            return await main

    with asyncio.Runner(loop_factory=loop) as runner:
        result = runner.run(watched())
    # In debug mode the loop also reports clients that refuse the certificate of the test server.
    ours = [context for context in errors if "incoming connection" not in context["message"]]
    assert not ours, ours
    return result
