"""What the upstream client costs: CPU per request and per event, against aiohttp and httpx where they are installed.

Each cell runs in a process of its own, against a server in another; rounds are interleaved and the median is shown,
with the least and the most. CPU is user and system time of the client's process alone; `f` are page faults per unit,
since a client that asks for a large buffer at every read pays for it there. Run: python -m bench.codecs.client [rounds]
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

SIZE = 2048
REQUESTS, AT_ONCE = 3000, 16
STREAMS, EVENTS, GAP = 64, 150, 0.01
BURSTS, BURST = 300, 325
EVENT = b'data: {"id":"chatcmpl-9x8y7z","choices":[{"index":0,"delta":{"content":" world"},"finish_reason":null}]}\n\n'
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ndate: now\r\nserver: bench\r\nx-request-id: req_1\r\n"
BODY = b'{"model":"kimi-k2","messages":[{"role":"user","content":"' + b"x" * SIZE + b'"}]}'
# scenario: what is counted, asked at once, asked in a row, units in a reply, bytes in a reply
SCENARIOS = {
    "request": ("us/request", AT_ONCE, REQUESTS // AT_ONCE, 1, SIZE + 11),
    "paced": ("us/event", STREAMS, 1, EVENTS, len(EVENT) * EVENTS),
    "burst": ("us/event", 4, BURSTS // 4, BURST, len(EVENT) * BURST),
}
CLIENTS = ("dragoman", "aiohttp", "httpx")

Ask = Callable[[str, Callable[[bytes], None]], Awaitable[None]]


class Server(asyncio.Protocol):
    """Sends the response of each path, with as little work as possible."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not self.received.endswith(BODY):
            return
        path, self.received = self.received.split(b" ", 2)[1], b""
        stream = HEAD % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n"
        if path == b"/request":
            result = b'{"text":"' + b"y" * SIZE + b'"}'
            self.write(HEAD % b"application/json" + b"content-length: %d\r\n\r\n%s" % (len(result), result))
        elif path == b"/burst":
            self.write(stream + CHUNK * BURST + b"0\r\n\r\n")
        else:
            self.write(stream)
            self.tick(EVENTS)

    def tick(self, left: int) -> None:
        """Send an event, and the `left - 1` others after a pause each."""
        if left:
            self.write(CHUNK)
            asyncio.get_running_loop().call_later(GAP, self.tick, left - 1)
        else:
            self.write(b"0\r\n\r\n")

    def write(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


async def serve(cert: str) -> None:
    """Serve until the process ends, and print the port; with TLS if `cert` names a chain."""
    context = None
    if cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert)
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.asynccontextmanager
async def asking(client: str, url: str, ca: str):  # type: ignore[no-untyped-def]
    """Yield a function that requests a path and passes the body to a sink, in the fastest mode of this client."""
    headers = {"content-type": "application/json", "authorization": "Bearer key"}
    if client == "dragoman":
        from dragoman.http.client.client import HttpClient, HttpTimeouts, TlsSettings  # noqa: PLC0415
        from dragoman.wire.http import HttpRequest  # noqa: PLC0415

        ours, timeouts, tls = HttpClient(), HttpTimeouts(), TlsSettings(ca_file=ca) if ca else None

        async def ask(path: str, sink: Callable[[bytes], None]) -> None:
            request = HttpRequest("POST", path, headers=tuple(headers.items()), body=BODY)
            reply = await ours.open(url, request, timeouts=timeouts, tls=tls)
            await reply.pump(sink)

        yield ask
        await ours.aclose()
    elif client == "aiohttp":
        import aiohttp  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

        context = ssl.create_default_context(cafile=ca) if ca else True
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256, ssl=context)) as session:

            async def ask(path: str, sink: Callable[[bytes], None]) -> None:
                async with session.post(url + path, data=BODY, headers=headers) as response:
                    async for piece in response.content.iter_any():
                        sink(piece)

            yield ask
    else:
        import httpx  # noqa: PLC0415

        limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
        verify = ssl.create_default_context(cafile=ca) if ca else False
        async with httpx.AsyncClient(limits=limits, verify=verify, timeout=60) as session:

            async def ask(path: str, sink: Callable[[bytes], None]) -> None:
                async with session.stream("POST", url + path, content=BODY, headers=headers) as response:
                    async for piece in response.aiter_raw():
                        sink(piece)

            yield ask


async def measure(client: str, scenario: str, url: str, ca: str) -> dict[str, float]:
    """Return the CPU time and page faults per unit of one client in one scenario."""
    size = 0
    _, wide, rounds, per, each = SCENARIOS[scenario]

    def sink(piece: bytes) -> None:
        nonlocal size
        size += len(piece)

    async with asking(client, url, ca) as ask:

        async def worker(times: int, path: str) -> None:
            for _ in range(times):
                await ask(path, sink)

        await asyncio.gather(*(worker(2, "/request") for _ in range(wide)))  # connections and caches
        size = 0
        faults, began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
        await asyncio.gather(*(worker(rounds, f"/{scenario}") for _ in range(wide)))
        cpu = time.process_time() - began
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    units = wide * rounds * per
    if size != wide * rounds * each:
        raise SystemExit(f"{client} read {size} bytes of {wide * rounds * each}")
    return {"us": cpu / units * 1e6, "faults": faults / units}


def cell(client: str, loop: str, scenario: str, url: str, ca: str) -> dict[str, float]:
    """Run `measure` in a process of its own and return its figures."""
    command = [sys.executable, "-m", "bench.codecs.client", "--cell", client, loop, scenario, url, ca]
    seen: dict[str, float] = json.loads(subprocess.run(pinned(0, command), check=True, capture_output=True).stdout)
    return seen


def pinned(core: int, command: list[str]) -> list[str]:
    """Return the command pinned to a core, if there are several cores and `taskset` exists."""
    return (
        ["taskset", "-c", str(core), *command]
        if (os.cpu_count() or 1) > 1 and Path("/usr/bin/taskset").exists()
        else command
    )


def certificate(folder: Path) -> tuple[str, str]:
    """A chain for 127.0.0.1 and its authority, or nothing where trustme is not installed."""
    if importlib.util.find_spec("trustme") is None:
        return "", ""
    import trustme  # noqa: PLC0415

    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "chain.pem")
    return str(folder / "chain.pem"), str(folder / "ca.pem")


def compare(title: str, rounds: int, url: str, ca: str) -> None:
    """Measure all clients and loops, and print one table."""
    loops = ["asyncio", *(["uvloop"] if importlib.util.find_spec("uvloop") else [])]
    clients = [name for name in CLIENTS if name == "dragoman" or importlib.util.find_spec(name)]
    columns = [(client, loop) for client in clients for loop in loops if client != "httpx" or loop == loops[-1]]
    seen: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for scenario in SCENARIOS:
        for _ in range(rounds):
            for client, loop in columns:
                seen.setdefault((scenario, client, loop), []).append(cell(client, loop, scenario, url, ca))
    print(f"\n{title}, median of {rounds} (least-most), page faults per unit")
    print(f"{'':22}" + "".join(f"{f'{name} ({SCENARIOS[name][0]})':>34}" for name in SCENARIOS))
    for client, loop in columns:
        row = f"{f'{client}, {loop}':22}"
        for scenario in SCENARIOS:
            values = sorted(one["us"] for one in seen[scenario, client, loop])
            faults = statistics.median(one["faults"] for one in seen[scenario, client, loop])
            row += f"{f'{statistics.median(values):.1f} ({values[0]:.1f}-{values[-1]:.1f}) {faults:.2f} f':>34}"
        print(row)


def main(arguments: list[str]) -> None:
    """Compare the clients; `--serve` and `--cell` are the child processes of a comparison."""
    if arguments[:1] == ["--serve"]:
        asyncio.run(serve(arguments[1]))
    elif arguments[:1] == ["--cell"]:
        client, loop, scenario, url, ca = arguments[1:]
        factory = None
        if loop == "uvloop":
            import uvloop  # noqa: PLC0415

            factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            print(json.dumps(runner.run(measure(client, scenario, url, ca))))
    else:
        rounds = int(arguments[0]) if arguments else 3
        with tempfile.TemporaryDirectory() as folder:
            chain, ca = certificate(Path(folder))
            for title, cert, authority in (("plain TCP", "", ""), ("TLS", chain, ca)):
                if title == "TLS" and not cert:
                    continue
                command = pinned(1, [sys.executable, "-m", "bench.codecs.client", "--serve", cert])
                with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
                    assert server.stdout is not None
                    port = int(server.stdout.readline())
                    try:
                        compare(title, rounds, f"http{'s' if cert else ''}://127.0.0.1:{port}", authority)
                    finally:
                        server.terminate()


if __name__ == "__main__":
    main(sys.argv[1:])
