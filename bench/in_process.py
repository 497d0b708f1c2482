"""The whole gateway in one process, with sockets in memory: the cost of an event and of an open stream.

`python -m bench.in_process [P PC]` prints the CPU of an event that comes alone in its read, which Python functions it
calls, and the memory of an open stream; the kernel, the loop and cold caches are not in it. `--where` shows which
lines took the memory.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import load
from bench.canned_responses import canned_response, chunk
from bench.gateways import HEADERS, KEY, PATHS
from bench.request_bodies import request_body
from bench.scenarios import BY_NAME, Scenario
from dragoman.gateway.app import Gateway
from dragoman.gateway.config import build_config
from dragoman.gateway.serve import loop_factory
from dragoman.http.client import client as upstream
from dragoman.http.server.connection import ServerConnection
from dragoman.http.server.serving import HttpServer

STREAMS, HELD, TURNS = 64, 500, 5
LINES = 60
_CONFIG = """
allow_literal_secrets = true
log.level = "error"
[upstreams.paced]
dialect = "openai"
base_url = "http://127.0.0.1:1"
key = "the-upstream-secret"
models = ["paced"]
limits.concurrency = 100000
"""


class Socket(asyncio.Transport):
    """Takes what is written, and knows how much it was."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self.written: list[bytes] | None = None
        self.closed = False

    def write(self, data: Any) -> None:
        self.size += len(data)
        if self.written is not None:
            self.written.append(data)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def writelines(self, pieces: Any) -> None:
        self.size += sum(map(len, pieces))

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.closed = True


class Bench:
    """A gateway, its clients and its upstream."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        config = build_config(_CONFIG, None, {"HOME": "/nowhere"}, {}).config
        self.gateway = Gateway(config, key=KEY, state=Path("/nowhere"))
        self.carrier = HttpServer(self.gateway.handle)
        self.dialled: list[Any] = []
        upstream.open_connection = self._dial  # type: ignore[attr-defined]
        headers = {**HEADERS[scenario.client], "content-type": "application/json"}
        body = request_body(scenario.client, scenario.question, "paced", stream=True)
        self.request = load.request("127.0.0.1:1", PATHS[scenario.client], headers, body)

    async def _dial(self, make: Callable[[], Any], *_: Any, **__: Any) -> Any:
        connection = make()
        connection.connection_made(Socket())
        self.dialled.append(connection)
        return connection

    async def open(self, count: int) -> list[tuple[Any, Socket]]:
        """Streams that have begun: the upstream's connection and the client's socket of each."""
        said = canned_response(self.scenario.upstream)
        opened = []
        for _ in range(count):
            protocol: Any = ServerConnection(self.carrier)
            socket = Socket()
            protocol.connection_made(socket)
            protocol.data_received(self.request)
            while not self.dialled:
                await asyncio.sleep(0)
            connection = self.dialled.pop()
            read(connection, said.head())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for event in said.events[:3]:
                read(connection, chunk(event))
            if not socket.size:
                raise SystemExit("a stream did not begin")
            opened.append((connection, socket))
        return opened

    async def event(self) -> float:
        """Microseconds of CPU for an event."""
        streams = await self.open(STREAMS)
        pieces = [chunk(event) for event in canned_response(self.scenario.upstream).events[3:-3]]
        part, best = len(pieces) // TURNS, float("inf")
        for turn in range(TURNS):
            gc.collect()
            began = time.process_time()
            for piece in pieces[turn * part : (turn + 1) * part]:
                for connection, _ in streams:
                    read(connection, piece)
            best = min(best, time.process_time() - began)
        _checked(streams[0], pieces[-1])
        return best / part / STREAMS * 1e6

    async def frames(self) -> Counter[str]:
        """The Python functions that one event calls."""
        connection, _ = (await self.open(1))[0]
        piece = chunk(canned_response(self.scenario.upstream).events[5])
        read(connection, piece)
        calls: Counter[str] = Counter()

        def seen(frame: Any, what: str, _: object) -> None:
            if what == "call":
                calls[f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}"] += 1

        sys.setprofile(seen)
        read(connection, piece)
        sys.setprofile(None)
        del calls["inside.py:read"]
        return calls

    async def memory(self) -> tuple[float, list[str]]:
        """KB of Python's memory for an open stream, and the lines that took it."""
        await self.open(3)
        gc.collect()
        tracemalloc.start(1)
        before = tracemalloc.take_snapshot()
        streams = await self.open(HELD)
        gc.collect()
        found = tracemalloc.take_snapshot().compare_to(before, "lineno")
        tracemalloc.stop()
        del streams
        others = (tracemalloc.__file__, __file__)
        kept = [each for each in found if each.traceback[0].filename not in others]
        lines = [f"{each.size_diff / HELD:7.0f} {each.count_diff / HELD:5.1f}  {each.traceback[0]}" for each in kept]
        return sum(each.size_diff for each in kept) / HELD / 1024, lines


def read(connection: Any, piece: bytes) -> None:
    """As the loop does it: the read, and the turn that the connection asked for, if it did."""
    connection.data_received(piece)
    if getattr(connection, "_turning", False):
        connection._next_turn()


def _checked(stream: tuple[Any, Socket], piece: bytes) -> None:
    """A fast wrong answer is none."""
    connection, socket = stream
    socket.written = []
    read(connection, piece)
    (told,) = socket.written
    if b" it" not in told:
        raise SystemExit(f"an event was lost: {told!r}")


async def _main(names: list[str], *, where: bool) -> None:
    for name in names:
        bench = Bench(BY_NAME[name])
        await bench.gateway.start()
        size, lines = await bench.memory()
        cost, calls = await bench.event(), await bench.frames()
        print(f"{name}: {cost:.2f} µs an event, {calls.total()} Python calls, {size:.1f} KB an open stream")
        print("".join(f"  {call}\n" for call in calls), end="")
        if where:
            print("\n".join(lines[:LINES]))


if __name__ == "__main__":
    given = sys.argv[1:]
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_main([name for name in given if name in BY_NAME] or ["P", "PC"], where="--where" in given))
