"""The fake upstream: every answer is bytes made beforehand, chosen by the port that was asked. Reads no JSON.

`python -m bench.upstream` prints its ports as JSON and serves until its standard input ends. It must stay far cheaper
than any gateway, so a request is only counted to its end. Paced streams are fed by a thread of their own, in turns:
left to the timers of an event loop they would bunch, differently in each cell, and favour gateways
that read many at once.
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
except ImportError:  # it works without, at a price
    new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]

# Paced: 100 events a second and stream, the streams spread over the period on a grid of 1 ms, which is how finely the
# timers of event loops tick. BENCH_GRID=64 gives each of 64 streams a moment of its own: then a gateway is woken for
# every single event, and the kernel's part grows for all alike.
GRID, PERIOD = int(os.environ.get("BENCH_GRID", "10")), 0.01
HELD, HELD_PERIOD = 1000, 1.0


class Stream:
    """A stream written by the pacer, on a duplicated descriptor, so that the event loop cannot close it."""

    def __init__(self, descriptor: int, pieces: tuple[bytes, ...], *, endless: bool) -> None:
        self.descriptor = os.dup(descriptor)
        self.pieces = pieces
        self.endless = endless
        self.at = 0
        self.gone = False

    def step(self) -> bool:
        """Write the next piece; return whether there are more."""
        with suppress(BlockingIOError):  # the reader is slow: it loses this turn, not the piece
            os.write(self.descriptor, self.pieces[self.at % len(self.pieces)])
            self.at += 1
        return self.endless or self.at < len(self.pieces)


class Pacer(threading.Thread):
    """One slot after the other, evenly over the period. It never catches up: late is late."""

    def __init__(self, slots: int, period: float) -> None:
        super().__init__(daemon=True)
        self.slots: list[list[Stream]] = [[] for _ in range(slots)]
        self.gap = period / slots
        self.woken = threading.Event()

    def add(self, stream: Stream) -> None:
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
        try:
            more = not stream.gone and stream.step()
        except OSError:
            more = False
        if not more:
            slot.remove(stream)
            os.close(stream.descriptor)


class UpstreamConnection(asyncio.Protocol):
    def __init__(self, kind: str, sizes: dict[str, int], pacer: Pacer | None) -> None:
        self.kind, self.sizes, self.pacer = kind, sizes, pacer
        self.head = b""
        self.left = -1  # bytes of the body that are missing; -1: the head is; -2: the body comes in chunks
        self.size = 0
        self.stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self.stream is not None:
            self.stream.gone = True

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
            self.answer()

    def answer(self) -> None:
        if self.pacer is None:
            self.transport.write(_response(self.kind))  # type: ignore[attr-defined]
            return
        said = canned_response(self.kind)
        self.transport.write(said.head())  # type: ignore[attr-defined]
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
        return (chunk(events[0] + events[1]), chunk(events[1]))  # then that again and again
    return (*map(chunk, events[:-1]), chunk(events[-1]) + END)


def length_of(head: bytes) -> int:
    lower = head.lower()
    _, found, rest = lower.partition(b"\r\ncontent-length:")
    if found:
        return int(rest.partition(b"\r\n")[0])
    return -2 if b"\r\ntransfer-encoding:" in lower else 0


async def serve() -> None:
    loop = asyncio.get_running_loop()
    sizes: dict[str, int] = {}
    pacers = {"paced": Pacer(GRID, PERIOD), "held": Pacer(HELD, HELD_PERIOD)}
    ports = {}
    for kind in KINDS:
        made = partial(UpstreamConnection, kind, sizes, pacers.get(kind))
        server = await loop.create_server(made, "127.0.0.1", 0, backlog=2048)
        ports[kind] = server.sockets[0].getsockname()[1]
    told = await loop.create_server(lambda: SizeReport(sizes), "127.0.0.1", 0)
    ports["sizes"] = told.sockets[0].getsockname()[1]
    for pacer in pacers.values():
        pacer.start()
    print(json.dumps(ports), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())
