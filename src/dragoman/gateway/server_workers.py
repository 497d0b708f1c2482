"""Several processes that serve one port, each with its own listening socket (SO_REUSEPORT); this one looks after them.

A worker is `dragoman serve --worker N`. It ends when its parent does, since its standard input then ends. One that dies
is started again, ever more slowly if it keeps dying. What each of them knows (health, counts) is its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from dragoman.gateway import admin
from dragoman.gateway.config import Config
from dragoman.gateway.secrets import app_folders, gateway_key
from dragoman.gateway.serve import listen, url_of
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_SHORTEST, _LONGEST = 0.2, 10.0  # seconds before a dead worker is started again
_LONG_ENOUGH = 10.0  # that it ran: then it begins anew
_FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP")


class Worker:
    """One process, kept alive."""

    def __init__(
        self, number: int, command: Sequence[str], tell: Callable[[str], None], environ: Mapping[str, str] | None = None
    ) -> None:
        self.number = number
        self._environ = environ  # None: this process's own
        self.ready = asyncio.Event()
        self.process: asyncio.subprocess.Process | None = None
        self._command, self._tell = command, tell
        self._ending = asyncio.Event()

    async def run(self) -> int:
        """Until it is ended; its last exit status. One that fails before it was ever ready is not started again."""
        wait = _SHORTEST
        while True:
            began = time.monotonic()
            status = await self._live()
            if self._ending.is_set() or not self.ready.is_set():
                return status
            wait = _SHORTEST if time.monotonic() - began > _LONG_ENOUGH else min(wait * 2, _LONGEST)
            self._tell(f"worker {self.number} ended with status {status}; another starts in {wait:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), wait)
                return 0

    async def _live(self) -> int:
        pipe = asyncio.subprocess.PIPE
        # A session of its own: what a terminal sends comes once, through us.
        self.process = process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, start_new_session=True, env=self._environ
        )
        assert process.stdout is not None
        if await process.stdout.readline():  # its address: it serves
            self.ready.set()
        await process.stdout.read()
        return await process.wait()

    def send(self, number: int) -> None:
        if number != signal.SIGHUP:
            self._ending.set()
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


def socket_of(path: Path, number: int) -> Path:
    """Where a worker has its own admin socket."""
    return path.with_name(f"{path.name}.{number}")


def serve_workers(config: Config, command: Sequence[str], *, ready: Callable[[str], None]) -> int:
    """Run `config.server.workers` processes of this command until a signal ends them; the exit status.

    Raises OSError for an address that cannot be had, LocalMisuse for a system that cannot share one.
    """
    settings = config.server
    # Bound, not listening: it takes no connection, and keeps the port.
    held = listen(settings.host, settings.port, shared=True, backlog=None)
    port = held.getsockname()[1]
    commands = [[*command, "--port", str(port), "--worker", str(number + 1)] for number in range(settings.workers)]
    with held:
        return asyncio.run(_together(config, commands, url_of(held), port, ready))


async def _together(
    config: Config, commands: list[list[str]], url: str, port: int, ready: Callable[[str], None]
) -> int:
    path = admin.choose_socket(config.server.admin_socket, port, _complain)
    environ = {**os.environ, "DRAGOMAN_SERVER__ADMIN_SOCKET": str(path)}
    workers = [Worker(number, command, _complain, environ) for number, command in enumerate(commands, 1)]
    loop = asyncio.get_running_loop()

    def forward(number: int) -> None:
        for worker in workers:
            worker.send(number)

    for name in _FORWARDED:
        loop.add_signal_handler(number := getattr(signal, name), forward, number)
    running = [asyncio.create_task(worker.run()) for worker in workers]
    up = asyncio.gather(*(worker.ready.wait() for worker in workers))
    key = gateway_key(config.server.key, app_folders(os.environ).key_file).reveal()
    sockets = [socket_of(path, worker.number) for worker in workers]
    try:
        async with admin.serve_admin(WorkerGroup(url, sockets, key), path, config.server.admin_port, _complain):
            begun: list[asyncio.Future[Any]] = [up, *running]
            await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
            if up.done():
                ready(url)
                # One that ends by itself and is not started again takes the others with it.
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if not up.done():
                forward(signal.SIGTERM)
            return max(await asyncio.gather(*running), key=abs)
    finally:
        up.cancel()


def _complain(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


class WorkerGroup:
    """The status of all workers as one."""

    def __init__(self, url: str, sockets: Sequence[Path], key: str) -> None:
        self._url, self._sockets, self.key = url, sockets, key

    def status(self) -> dict[str, Json]:
        """Return the first worker's status with summed counts, and the upstreams of every worker."""
        found = [status for status in self._asked("/status") if isinstance(status, dict)]
        told: dict[str, Json] = dict(found[0]) if found else {"state": "starting"}
        for name in ("in_flight", "in_flight_bytes", "dropped_log_lines", "suppressed_log_lines"):
            told[name] = sum(count for each in found if isinstance(count := each.get(name), int))
        told["pid"] = os.getpid()
        told["workers"] = [
            {name: each.get(name) for name in ("pid", "state", "started_at", "in_flight")} for each in found
        ]
        told["upstreams"] = [
            {**row, "worker": number} if isinstance(row, dict) else row
            for number, each in enumerate(found, 1)
            if isinstance(rows := each.get("upstreams"), list)
            for row in rows
        ]
        return told

    def metrics(self) -> bytes:
        """Return the metrics of all workers, each with a label `worker`."""
        families: dict[str, list[str]] = {}
        for number, text in enumerate(self._words("/metrics"), 1):
            name = ""
            for line in text.splitlines():
                if line.startswith("#"):
                    name = line.split(" ", 3)[2] if line.startswith("# HELP") else name
                    lines = families.setdefault(name, [])
                    if line not in lines:
                        lines.append(line)
                elif line:
                    families.setdefault(name, []).append(_labelled(line, number))
        return ("\n".join(line for lines in families.values() for line in lines) + "\n").encode()

    def cooldowns(self) -> list[Json]:
        return [row for found in self._asked("/cooldowns") if isinstance(found, list) for row in found]

    def clear(self, upstream: str) -> dict[str, Json]:
        query = f"?{urlencode({'upstream': upstream})}" if upstream else ""
        answers = [each for each in self._asked(f"/cooldowns/clear{query}", "POST") if isinstance(each, dict)]
        if any("problem" in each for each in answers):
            return next(each for each in answers if "problem" in each)
        return {"cleared": sum(count for each in answers if isinstance(count := each.get("cleared"), int))}

    def _asked(self, what: str, method: str = "GET") -> list[Json]:
        return [jsonio.decode(text.encode()) for text in self._words(what, method)]

    def _words(self, what: str, method: str = "GET") -> list[str]:
        found = []
        for path in self._sockets:
            with suppress(OSError):  # one that is not there at the moment
                found.append(admin.send_admin_request(path, what, method).decode())
        return found


def _labelled(line: str, number: int) -> str:
    name, brace, rest = line.partition("{")
    if brace:
        return f'{name}{{worker="{number}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{worker="{number}"}} {value}'
