"""The load generator: raw HTTP/1.1 on keep-alive connections, callbacks only. Reads as little as ends an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.canned_responses import END
from bench.upstream import length_of

PATIENCE = 60.0  # seconds for the last answers


@dataclass
class LoadCounts:
    """What a cell saw. Times in seconds; `sizes` are of whole bodies."""

    requests: int = 0
    events: int = 0
    errors: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    seconds: float = 0.0


class LoadConnection(asyncio.Protocol):
    """One connection that asks the same question again and again, as long as `more` says yes."""

    def __init__(self, request: bytes, tally: LoadCounts, more: Callable[[], bool], done: Callable[[], None]) -> None:
        self.request, self.tally, self.more, self.done = request, tally, more, done
        self.began = self.first = 0.0
        self.head = self.tail = b""
        self.left = -1  # as the upstream counts
        self.size = 0
        self.over = False

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
                self.tally.errors.append(head[:60].decode("latin-1") + " " + data[:300].decode("utf-8", "replace"))
                self.end()
                return
            self.left = length_of(head)
        self.size += len(data)
        self.tally.events += data.count(b"\n\n")
        if self.left > 0:
            self.left -= len(data)
            if self.left == 0:
                self.answered()
        elif (self.tail + data[-5:]).endswith(END):  # it may come in two reads
            self.answered()
        else:
            self.tail = (self.tail + data[-4:])[-4:]

    def answered(self) -> None:
        tally = self.tally
        tally.requests += 1
        tally.times.append(time.perf_counter() - self.began)
        tally.firsts.append(self.first - self.began)
        tally.sizes.append(self.size)
        if self.more():
            self.ask()
        else:
            self.end()

    def end(self) -> None:
        self.over = True
        self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over:
            self.tally.errors.append(f"the connection was closed in mid-answer ({error})")
        self.done()


def request(host: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = {"host": host, "content-type": "application/json", "content-length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


class RunningLoad:
    """Callers at work on one port."""

    def __init__(self, port: int, raw: bytes, callers: int, more: Callable[[], bool]) -> None:
        self.tally = LoadCounts()
        self.callers: list[LoadConnection] = []
        self._port, self._raw, self._wanted, self._more = port, raw, callers, more
        self._left = callers
        self._done = asyncio.Event()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self._wanted):
            _, caller = await loop.create_connection(self._made, "127.0.0.1", self._port)
            self.callers.append(caller)

    def _made(self) -> LoadConnection:
        return LoadConnection(self._raw, self.tally, self._more, self._one_done)

    def _one_done(self) -> None:
        self._left -= 1
        if not self._left:
            self._done.set()

    async def finish(self) -> LoadCounts:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._done.wait()
        except TimeoutError:
            self.tally.errors.append(f"{self._left} answers did not end within {PATIENCE:g} s")
            self.abort()
        return self.tally

    def abort(self) -> None:
        for caller in self.callers:
            caller.over = True
            caller.transport.abort()  # type: ignore[attr-defined]


async def closed(port: int, raw: bytes, callers: int, seconds: float, least: int = 1) -> LoadCounts:
    """Each caller asks anew when it has its answer, until the time is over; every answer begun is waited for."""
    began = time.perf_counter()
    asked = callers

    def more() -> bool:
        nonlocal asked
        if asked >= least and time.perf_counter() - began >= seconds:
            return False
        asked += 1
        return True

    running = RunningLoad(port, raw, callers, more)
    await running.start()
    tally = await running.finish()
    tally.seconds = time.perf_counter() - began
    return tally


async def flowing(port: int, raw: bytes, streams: int) -> RunningLoad:
    """Streams that are asked for once; returns when every one of them has begun."""
    running = RunningLoad(port, raw, streams, lambda: False)
    await running.start()
    until = time.perf_counter() + PATIENCE
    while any(not caller.size and not caller.over for caller in running.callers) and time.perf_counter() < until:
        await asyncio.sleep(0.02)
    return running
