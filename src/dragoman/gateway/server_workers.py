"""The supervisor of several gateway processes that serve one port, each with its own listening socket (SO_REUSEPORT).

A worker is `dragoman serve --worker N`. It ends when its parent ends, because its standard input then ends. A worker
that dies is started again, after longer and longer pauses if it keeps dying. Workers share no state: each has its own
cooldowns and counters.
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

_MIN_PAUSE, _MAX_PAUSE = 0.2, 10.0  # seconds before a dead worker is started again
_STABLE_AFTER = 10.0  # seconds after which the pause is the shortest again
_FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP")


class Worker:
    """One worker process, which is started again when it dies. `report` prints a message."""

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        report: Callable[[str], None],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.number = number
        self._environ = environ  # None: that of this process
        self.ready = asyncio.Event()
        self.process: asyncio.subprocess.Process | None = None
        self._command, self._report = command, report
        self._ending = asyncio.Event()

    async def run(self) -> int:
        """Run the worker until it is stopped; return its last exit status.

        A worker that fails before it was ever ready is not started again.
        """
        pause = _MIN_PAUSE
        while True:
            started = time.monotonic()
            status = await self._run_process()
            if self._ending.is_set() or not self.ready.is_set():
                return status
            pause = _MIN_PAUSE if time.monotonic() - started > _STABLE_AFTER else min(pause * 2, _MAX_PAUSE)
            self._report(f"worker {self.number} ended with status {status}; it is started again in {pause:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), pause)
                return 0

    async def _run_process(self) -> int:
        pipe = asyncio.subprocess.PIPE
        # In a session of its own the worker gets signals of the terminal once: this process forwards them.
        self.process = process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, start_new_session=True, env=self._environ
        )
        assert process.stdout is not None
        if await process.stdout.readline():  # The worker prints its address when it is ready.
            self.ready.set()
        await process.stdout.read()
        return await process.wait()

    def send(self, number: int) -> None:
        """Send a signal to the process. Any signal but SIGHUP also ends the restarts."""
        if number != signal.SIGHUP:
            self._ending.set()
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


def socket_of(path: Path, number: int) -> Path:
    """Return the path of a worker's own admin socket."""
    return path.with_name(f"{path.name}.{number}")


def serve_workers(config: Config, command: Sequence[str], *, ready: Callable[[str], None]) -> int:
    """Run `config.server.workers` processes of this command until a signal ends them; return the exit status.

    `ready` is called with the URL when all workers are ready. Raises OSError for an address that cannot be used,
    LocalMisuse for a system that cannot share one.
    """
    settings = config.server
    # The socket is bound but does not listen: it reserves the port and accepts no connections.
    reserved = listen(settings.host, settings.port, shared=True, backlog=None)
    port = reserved.getsockname()[1]
    commands = [[*command, "--port", str(port), "--worker", str(number + 1)] for number in range(settings.workers)]
    with reserved:
        return asyncio.run(_run_workers(config, commands, url_of(reserved), port, ready))


async def _run_workers(
    config: Config, commands: list[list[str]], url: str, port: int, ready: Callable[[str], None]
) -> int:
    path = admin.choose_socket(config.server.admin_socket, port, _print_error)
    environ = {**os.environ, "DRAGOMAN_SERVER__ADMIN_SOCKET": str(path)}
    workers = [Worker(number, command, _print_error, environ) for number, command in enumerate(commands, 1)]
    loop = asyncio.get_running_loop()

    def forward(number: int) -> None:
        for worker in workers:
            worker.send(number)

    for name in _FORWARDED:
        loop.add_signal_handler(number := getattr(signal, name), forward, number)
    running = [asyncio.create_task(worker.run()) for worker in workers]
    all_ready = asyncio.gather(*(worker.ready.wait() for worker in workers))
    key = gateway_key(config.server.key, app_folders(os.environ).key_file).reveal()
    sockets = [socket_of(path, worker.number) for worker in workers]
    try:
        async with admin.serve_admin(WorkerGroup(url, sockets, key), path, config.server.admin_port, _print_error):
            pending: list[asyncio.Future[Any]] = [all_ready, *running]
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if all_ready.done():
                ready(url)
                # A worker that ends and is not started again ends the others, too.
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if not all_ready.done():
                forward(signal.SIGTERM)
            return max(await asyncio.gather(*running), key=abs)
    finally:
        all_ready.cancel()


def _print_error(message: str) -> None:
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


class WorkerGroup:
    """The admin interface of all workers together. It reads the admin sockets of the workers."""

    def __init__(self, url: str, sockets: Sequence[Path], key: str) -> None:
        self._url, self._sockets, self.key = url, sockets, key

    def status(self) -> dict[str, Json]:
        """Return the first worker's status with summed counts, and the upstreams of every worker."""
        statuses = [status for status in self._request_json("/status") if isinstance(status, dict)]
        combined: dict[str, Json] = dict(statuses[0]) if statuses else {"state": "starting"}
        for name in ("in_flight", "in_flight_bytes", "dropped_log_lines", "suppressed_log_lines"):
            combined[name] = sum(count for each in statuses if isinstance(count := each.get(name), int))
        combined["pid"] = os.getpid()
        combined["workers"] = [
            {name: each.get(name) for name in ("pid", "state", "started_at", "in_flight")} for each in statuses
        ]
        combined["upstreams"] = [
            {**row, "worker": number} if isinstance(row, dict) else row
            for number, each in enumerate(statuses, 1)
            if isinstance(rows := each.get("upstreams"), list)
            for row in rows
        ]
        return combined

    def metrics(self) -> bytes:
        """Return the metrics of all workers, each with a label `worker`."""
        families: dict[str, list[str]] = {}
        for number, text in enumerate(self._request("/metrics"), 1):
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
        """Return the cooldowns of all workers."""
        return [row for rows in self._request_json("/cooldowns") if isinstance(rows, list) for row in rows]

    def clear(self, upstream: str) -> dict[str, Json]:
        """End the cooldowns of an upstream, or of all, in every worker; return how many, or a problem."""
        query = f"?{urlencode({'upstream': upstream})}" if upstream else ""
        responses = [each for each in self._request_json(f"/cooldowns/clear{query}", "POST") if isinstance(each, dict)]
        if any("problem" in each for each in responses):
            return next(each for each in responses if "problem" in each)
        return {"cleared": sum(count for each in responses if isinstance(count := each.get("cleared"), int))}

    def _request_json(self, path: str, method: str = "GET") -> list[Json]:
        return [jsonio.decode(text.encode()) for text in self._request(path, method)]

    def _request(self, path: str, method: str = "GET") -> list[str]:
        responses = []
        for socket in self._sockets:
            with suppress(OSError):  # The worker is not running now.
                responses.append(admin.send_admin_request(socket, path, method).decode())
        return responses


def _labelled(line: str, number: int) -> str:
    name, brace, rest = line.partition("{")
    if brace:
        return f'{name}{{worker="{number}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{worker="{number}"}} {value}'
