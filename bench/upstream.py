"""The fake upstream: each port sends one prepared response, as bytes. Requests are not parsed.

`python -m bench.upstream` prints its ports as JSON and serves until its standard input ends. It must cost far less than
any gateway, so it only finds the end of each request. A separate thread writes the events of paced streams at even
intervals. The timers of an event loop would send them in bunches, differently in each measurement, which favours
gateways that read many events at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from contextlib import suppress
from functools import partial

from bench.canned_responses import END, KINDS, canned_response, chunk

try:
    from uvloop import new_event_loop
except ImportError:  # uvloop is optional, but faster
    new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]

# Paced streams send 100 events per second each, spread over the period in steps of 1 ms, the resolution of event loop
# timers. With BENCH_GRID=64 each of 64 streams has its own time slot: a gateway then wakes up for every single event,
# and the kernel's share of the cost grows for all gateways.
GRID, PERIOD = int(os.environ.get("BENCH_GRID", "10")), 0.01
OPEN_STREAMS, OPEN_PERIOD = 1000, 1.0


class Stream:
    """A stream that the pacer writes, on a duplicated descriptor, so that the event loop cannot close it."""

    def __init__(self, descriptor: int, pieces: tuple[bytes, ...], *, endless: bool) -> None:
        self.descriptor = os.dup(descriptor)
        self.pieces = pieces
        self.endless = endless
        self.at = 0
        self.is_disconnected = False

    def step(self) -> bool:
        """Write the next piece; return whether there are more."""
        with suppress(BlockingIOError):  # the reader is slow: the piece is written in a later turn
            os.write(self.descriptor, self.pieces[self.at % len(self.pieces)])
            self.at += 1
        return self.endless or self.at < len(self.pieces)


class Pacer(threading.Thread):
    """Writes one slot after the other, evenly over the period. A late slot is not made up for by shorter gaps."""

    def __init__(self, slots: int, period: float) -> None:
        super().__init__(daemon=True)
        self.slots: list[list[Stream]] = [[] for _ in range(slots)]
        self.gap = period / slots
        self.woken = threading.Event()

    def add(self, stream: Stream) -> None:
        """Add a stream to the emptiest slot."""
        min(self.slots, key=len).append(stream)
        self.woken.set()

    def run(self) -> None:
        while True:
            if not any(self.slots):
                self.woken.clear()
                self.woken.wait(0.5)
                continue
            due = time.monotonic()
            for slot in self.slots:
                due = max(due + self.gap, time.monotonic() - self.gap)
                wait = due - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                for stream in slot[:]:
                    self.step(slot, stream)

    def step(self, slot: list[Stream], stream: Stream) -> None:
        """Write the next piece of a stream, and remove the stream after its last piece."""
        try:
            more = not stream.is_disconnected and stream.step()
        except OSError:
            more = False
        if not more:
            slot.remove(stream)
            os.close(stream.descriptor)


class UpstreamConnection(asyncio.Protocol):
    """One connection: finds the end of each request and sends the prepared response."""

    def __init__(self, kind: str, sizes: dict[str, int], pacer: Pacer | None) -> None:
        self.kind, self.sizes, self.pacer = kind, sizes, pacer
        self.head = b""
        self.left = -1  # bytes left of the body; -1: the head is not complete; -2: the body is chunked
        self.size = 0
        self.stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self.stream is not None:
            self.stream.is_disconnected = True

    def data_received(self, data: bytes) -> None:
        if self.left == -1:
            self.head += data
            head, found, data = self.head.partition(b"\r\n\r\n")
            if not found:
                return
            self.head = b""
            self.size = 0
            self.left = length_of(head)
        self.size += len(data)
        if self.left >= 0:
            self.left -= len(data)
        if self.left == 0 or (self.left == -2 and data.endswith(END)):
            self.left = -1
            self.sizes[self.kind] = self.size
            self.respond()

    def respond(self) -> None:
        """Send the response, or give its stream to the pacer."""
        if self.pacer is None:
            self.transport.write(_response(self.kind))  # type: ignore[attr-defined]
            return
        response = canned_response(self.kind)
        self.transport.write(response.head())  # type: ignore[attr-defined]
        descriptor = self.transport.get_extra_info("socket").fileno()
        self.stream = Stream(descriptor, _paced(self.kind), endless=self.kind == "held")
        self.pacer.add(self.stream)


class SizeReport(asyncio.Protocol):
    """Sends the size of the last request of each kind."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(json.dumps(self.sizes).encode())  # type: ignore[attr-defined]
        transport.close()


_responses: dict[str, bytes] = {}


def _response(kind: str) -> bytes:
    found = _responses.get(kind)
    if found is None:
        found = _responses[kind] = canned_response(kind).response()
    return found


def _paced(kind: str) -> tuple[bytes, ...]:
    events = canned_response(kind).events
    if kind == "held":
        return (chunk(events[0] + events[1]), chunk(events[1]))  # the second piece is repeated
    return (*map(chunk, events[:-1]), chunk(events[-1]) + END)


def length_of(head: bytes) -> int:
    """Return the length of the body after this head; -2 if it is chunked."""
    lower = head.lower()
    _, found, rest = lower.partition(b"\r\ncontent-length:")
    if found:
        return int(rest.partition(b"\r\n")[0])
    return -2 if b"\r\ntransfer-encoding:" in lower else 0


async def serve() -> None:
    """Serve all kinds of responses, and print the ports."""
    loop = asyncio.get_running_loop()
    sizes: dict[str, int] = {}
    pacers = {"paced": Pacer(GRID, PERIOD), "held": Pacer(OPEN_STREAMS, OPEN_PERIOD)}
    ports = {}
    for kind in KINDS:
        factory = partial(UpstreamConnection, kind, sizes, pacers.get(kind))
        server = await loop.create_server(factory, "127.0.0.1", 0, backlog=2048)
        ports[kind] = server.sockets[0].getsockname()[1]
    size_server = await loop.create_server(lambda: SizeReport(sizes), "127.0.0.1", 0)
    ports["sizes"] = size_server.sockets[0].getsockname()[1]
    for pacer in pacers.values():
        pacer.start()
    print(json.dumps(ports), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())
