"""The load generator: raw HTTP/1.1 on keep-alive connections, with callbacks only.

It parses no more than it needs to find the end of a response, so that it stays cheap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.canned_responses import END
from bench.upstream import length_of

MAX_WAIT = 60.0  # seconds to wait for the last responses


@dataclass
class LoadCounts:
    """The counts of one measurement. Times are in seconds; `sizes` are the sizes of whole bodies."""

    requests: int = 0
    events: int = 0
    errors: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    seconds: float = 0.0


class LoadConnection(asyncio.Protocol):
    """One connection that sends the same request again and again, as long as `more` returns true."""

    def __init__(self, request: bytes, counts: LoadCounts, more: Callable[[], bool], done: Callable[[], None]) -> None:
        self.request, self.counts, self.more, self.done = request, counts, more, done
        self.began = self.first = 0.0
        self.head = self.tail = b""
        self.left = -1  # bytes left of the body; -1: the head is not complete; -2: the body is chunked
        self.size = 0
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.left, self.size, self.tail = -1, 0, b""
        self.began = time.perf_counter()
        self.transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if self.left == -1:
            self.head += data
            head, found, data = self.head.partition(b"\r\n\r\n")
            if not found:
                return
            self.first = time.perf_counter()
            self.head = b""
            if not head.startswith(b"HTTP/1.1 200"):
                self.counts.errors.append(head[:60].decode("latin-1") + " " + data[:300].decode("utf-8", "replace"))
                self.end()
                return
            self.left = length_of(head)
        self.size += len(data)
        self.counts.events += data.count(b"\n\n")
        if self.left > 0:
            self.left -= len(data)
            if self.left == 0:
                self.answered()
        elif (self.tail + data[-5:]).endswith(END):  # the end may be split over two reads
            self.answered()
        else:
            self.tail = (self.tail + data[-4:])[-4:]

    def answered(self) -> None:
        counts = self.counts
        counts.requests += 1
        counts.times.append(time.perf_counter() - self.began)
        counts.firsts.append(self.first - self.began)
        counts.sizes.append(self.size)
        if self.more():
            self.ask()
        else:
            self.end()

    def end(self) -> None:
        self.is_over = True
        self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_over:
            self.counts.errors.append(f"the connection was closed during a response ({error})")
        self.done()


def request(host: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    """Return a POST request as bytes."""
    lines = {"host": host, "content-type": "application/json", "content-length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


class RunningLoad:
    """Open connections of several callers to one port."""

    def __init__(self, port: int, raw: bytes, callers: int, more: Callable[[], bool]) -> None:
        self.counts = LoadCounts()
        self.callers: list[LoadConnection] = []
        self._port, self._raw, self._wanted, self._more = port, raw, callers, more
        self._left = callers
        self._done = asyncio.Event()

    async def start(self) -> None:
        """Open all connections; each sends its first request at once."""
        loop = asyncio.get_running_loop()
        for _ in range(self._wanted):
            _, caller = await loop.create_connection(self._new_connection, "127.0.0.1", self._port)
            self.callers.append(caller)

    def _new_connection(self) -> LoadConnection:
        return LoadConnection(self._raw, self.counts, self._more, self._one_done)

    def _one_done(self) -> None:
        self._left -= 1
        if not self._left:
            self._done.set()

    async def finish(self) -> LoadCounts:
        """Wait for the last responses and return the counts."""
        try:
            async with asyncio.timeout(MAX_WAIT):
                await self._done.wait()
        except TimeoutError:
            self.counts.errors.append(f"{self._left} responses did not end within {MAX_WAIT:g} s")
            self.abort()
        return self.counts

    def abort(self) -> None:
        """Close all connections at once."""
        for caller in self.callers:
            caller.is_over = True
            caller.transport.abort()  # type: ignore[attr-defined]


async def closed(port: int, raw: bytes, callers: int, seconds: float, least: int = 1) -> LoadCounts:
    """Run a closed loop: each caller sends the next request when its response ends, until the time is over.

    Every response that has begun is read to its end. At least `least` requests are sent.
    """
    began = time.perf_counter()
    sent_requests = callers

    def more() -> bool:
        nonlocal sent_requests
        if sent_requests >= least and time.perf_counter() - began >= seconds:
            return False
        sent_requests += 1
        return True

    running = RunningLoad(port, raw, callers, more)
    await running.start()
    counts = await running.finish()
    counts.seconds = time.perf_counter() - began
    return counts


async def flowing(port: int, raw: bytes, streams: int) -> RunningLoad:
    """Open streams with one request each; return when all of them have begun."""
    running = RunningLoad(port, raw, streams, lambda: False)
    await running.start()
    until = time.perf_counter() + MAX_WAIT
    while any(not caller.size and not caller.is_over for caller in running.callers) and time.perf_counter() < until:
        await asyncio.sleep(0.02)
    return running
