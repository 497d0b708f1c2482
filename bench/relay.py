"""A TCP relay in Python, the floor of the benchmark where there is no C compiler for relay.c.

Takes the ports of the upstreams as arguments, and prints the port of the relay to each.
"""

from __future__ import annotations

import asyncio
import sys

try:
    from uvloop import new_event_loop
except ImportError:
    new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]


class Side(asyncio.Protocol):
    """One side of a relayed connection; it copies its bytes to the other side."""

    def __init__(self, other: Side | None = None, port: int = 0) -> None:
        self.other, self.port = other, port
        self.buffered: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write, self.close = transport.write, transport.close  # type: ignore[attr-defined]
        if self.other is None:
            self.join_task = asyncio.create_task(self.join())
        else:
            self.other.other = self
            for data in self.other.buffered:
                self.write(data)

    async def join(self) -> None:
        """Connect the other side to the upstream."""
        await asyncio.get_running_loop().create_connection(lambda: Side(self), "127.0.0.1", self.port)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.buffered.append(data)
        else:
            self.other.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.close()


async def serve(ports: list[int]) -> None:
    """Listen on one port for each upstream port, until the process is stopped."""
    loop = asyncio.get_running_loop()
    for port in ports:
        server = await loop.create_server(lambda port=port: Side(port=port), "127.0.0.1", 0, backlog=2048)  # type: ignore[misc]
        print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve([int(port) for port in sys.argv[1:]]))
