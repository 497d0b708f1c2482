"""The floor where there is no C compiler: bytes from socket to socket on the event loop. Takes and prints ports."""

from __future__ import annotations

import asyncio
import sys

try:
    from uvloop import new_event_loop
except ImportError:
    new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]


class Side(asyncio.Protocol):
    def __init__(self, other: Side | None = None, port: int = 0) -> None:
        self.other, self.port = other, port
        self.early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write, self.close = transport.write, transport.close  # type: ignore[attr-defined]
        if self.other is None:
            self.joining = asyncio.create_task(self.join())
        else:
            self.other.other = self
            for data in self.other.early:
                self.write(data)

    async def join(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: Side(self), "127.0.0.1", self.port)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early.append(data)
        else:
            self.other.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.close()


async def serve(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    for port in ports:
        server = await loop.create_server(lambda port=port: Side(port=port), "127.0.0.1", 0, backlog=2048)  # type: ignore[misc]
        print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve([int(port) for port in sys.argv[1:]]))
