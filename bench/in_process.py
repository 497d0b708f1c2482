"""Measure the cost of an event and of an open stream: the whole gateway in one process, with sockets in memory.

`python -m bench.in_process [P PC]` prints the CPU time of an event that arrives alone in its read, the Python functions
that it calls, and the memory of an open stream. The kernel, the event loop and cold caches are not included. `--where`
also prints the lines that allocated the memory.
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

STREAMS, OPEN_STREAMS, TURNS = 64, 500, 5
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
    """A transport that counts the written bytes and drops them, unless `written` collects them."""

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
    """A gateway with simulated client and upstream connections."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        config = build_config(_CONFIG, None, {"HOME": "/nowhere"}, {}).config
        self.gateway = Gateway(config, key=KEY, state=Path("/nowhere"))
        self.carrier = HttpServer(self.gateway.handle)
        self.connections: list[Any] = []
        upstream.open_connection = self._dial  # type: ignore[attr-defined]
        headers = {**HEADERS[scenario.client], "content-type": "application/json"}
        body = request_body(scenario.client, scenario.question, "paced", stream=True)
        self.request = load.request("127.0.0.1:1", PATHS[scenario.client], headers, body)

    async def _dial(self, make: Callable[[], Any], *_: Any, **__: Any) -> Any:
        connection = make()
        connection.connection_made(Socket())
        self.connections.append(connection)
        return connection

    async def open(self, count: int) -> list[tuple[Any, Socket]]:
        """Open streams that have begun; return the upstream connection and the client socket of each."""
        response = canned_response(self.scenario.upstream)
        opened = []
        for _ in range(count):
            protocol: Any = ServerConnection(self.carrier)
            socket = Socket()
            protocol.connection_made(socket)
            protocol.data_received(self.request)
            while not self.connections:
                await asyncio.sleep(0)
            connection = self.connections.pop()
            read(connection, response.head())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for event in response.events[:3]:
                read(connection, chunk(event))
            if not socket.size:
                raise SystemExit("a stream did not begin")
            opened.append((connection, socket))
        return opened

    async def event(self) -> float:
        """Return the CPU time of an event, in microseconds."""
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
        _check_event(streams[0], pieces[-1])
        return best / part / STREAMS * 1e6

    async def frames(self) -> Counter[str]:
        """Return the Python functions that one event calls."""
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
        del calls["in_process.py:read"]
        return calls

    async def memory(self) -> tuple[float, list[str]]:
        """Return the KB of Python memory of an open stream, and the lines that allocated it."""
        await self.open(3)
        gc.collect()
        tracemalloc.start(1)
        before = tracemalloc.take_snapshot()
        streams = await self.open(OPEN_STREAMS)
        gc.collect()
        found = tracemalloc.take_snapshot().compare_to(before, "lineno")
        tracemalloc.stop()
        del streams
        others = (tracemalloc.__file__, __file__)
        own = [each for each in found if each.traceback[0].filename not in others]
        lines = [
            f"{each.size_diff / OPEN_STREAMS:7.0f} {each.count_diff / OPEN_STREAMS:5.1f}  {each.traceback[0]}"
            for each in own
        ]
        return sum(each.size_diff for each in own) / OPEN_STREAMS / 1024, lines


def read(connection: Any, piece: bytes) -> None:
    """Deliver a read as the event loop does, and run the turn that the connection scheduled, if any."""
    connection.data_received(piece)
    if getattr(connection, "_turning", False):
        connection._next_turn()


def _check_event(stream: tuple[Any, Socket], piece: bytes) -> None:
    """Check that the client gets the event: a wrong response must not count as a fast one."""
    connection, socket = stream
    socket.written = []
    read(connection, piece)
    (output,) = socket.written
    if b" it" not in output:
        raise SystemExit(f"an event was lost: {output!r}")


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
    arguments = sys.argv[1:]
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_main([name for name in arguments if name in BY_NAME] or ["P", "PC"], where="--where" in arguments))
