"""The supervisor of several gateway processes that serve one port, each with its own listening socket (SO_REUSEPORT).

A worker is `dragoman serve --worker N`. It ends when its parent ends, because its standard input then ends. A worker
that dies is started again, after longer and longer pauses if it keeps dying. Workers share earlier responses and
cooldowns through their admin sockets (`worker_sharing`); each has its own counters and limits.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from msgspec import structs

from dragoman._version import __version__
from dragoman.errors import LocalMisuse
from dragoman.gateway import admin
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.activity import Activity
from dragoman.gateway.config import Config, LoadedConfig
from dragoman.gateway.inspector_config import RecordLevel
from dragoman.gateway.recent import MAX_FOUND, LogPage, LogQuery, RecentLog, join_cursors
from dragoman.gateway.records import LoggedRequest
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.reload import NOT_RELOADABLE, Reloader, ReloadResult
from dragoman.gateway.secrets import app_folders, gateway_key
from dragoman.gateway.serve import listen, url_of
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_MIN_PAUSE, _MAX_PAUSE = 0.2, 10.0  # seconds before a dead worker is started again
_WORKER_SECONDS = 5.0  # for the response of a worker
_STABLE_AFTER = 10.0  # seconds after which the pause is the shortest again
_FORWARDED = ("SIGTERM", "SIGINT")


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
        """Send a signal to the process; it is not started again."""
        self._ending.set()
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


def socket_of(path: Path, number: int) -> Path:
    """Return the path of a worker's own admin socket."""
    return path.with_name(f"{path.name}.{number}")


def sibling_sockets(own: Path, number: int, count: int) -> list[Path]:
    """Return the admin sockets of the other workers; `own` is that of worker `number`."""
    path = own.with_name(own.name.removesuffix(f".{number}"))
    return [socket_of(path, each) for each in range(1, count + 1) if each != number]


def serve_workers(
    loaded: LoadedConfig, command: Sequence[str], *, read: Callable[[], LoadedConfig], ready: Callable[[str], None]
) -> int:
    """Run `server.workers` processes of this command until a signal ends them; return the exit status.

    `ready` is called with the URL when all workers are ready; `read` loads the configuration again for a reload. Raises
    OSError for an address that cannot be used, LocalMisuse for a system that cannot share one.
    """
    settings = loaded.config.server
    # The socket is bound but does not listen: it reserves the port and accepts no connections.
    reserved = listen(settings.host, settings.port, shared=True, backlog=None)
    port = reserved.getsockname()[1]
    command = [*command, "--port", str(port), "--workers", str(settings.workers)]
    commands = [[*command, "--worker", str(number + 1)] for number in range(settings.workers)]
    with reserved:
        return asyncio.run(_run_workers(loaded, read, commands, url_of(reserved), port, ready))


async def _run_workers(
    loaded: LoadedConfig,
    read: Callable[[], LoadedConfig],
    commands: list[list[str]],
    url: str,
    port: int,
    ready: Callable[[str], None],
) -> int:
    config = loaded.config
    log = AccessLog(Redactor(lambda: _secrets(config)), form=config.log.format, level=config.log.level)
    warn = partial(_warn, log)
    path = admin.choose_socket(config.server.admin_socket, port, warn)
    environ = {**os.environ, "DRAGOMAN_SERVER__ADMIN_SOCKET": str(path)}
    workers = [Worker(number, command, warn, environ) for number, command in enumerate(commands, 1)]
    loop = asyncio.get_running_loop()

    def forward(number: int) -> None:
        for worker in workers:
            worker.send(number)

    for name in _FORWARDED:
        loop.add_signal_handler(number := getattr(signal, name), forward, number)
    running = [asyncio.create_task(worker.run()) for worker in workers]
    all_ready = asyncio.gather(*(worker.ready.wait() for worker in workers))
    sockets = [socket_of(path, worker.number) for worker in workers]
    group = WorkerGroup(url, sockets, config, log)
    group.reloader = Reloader(loaded, read, group.reload, log)
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, group.start_reload)
    try:
        async with admin.serve_admin(group, path, config.server.admin_port, warn):
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


def _warn(log: AccessLog, message: str) -> None:
    log.event("warning", "workers", message=message)


def _key(config: Config) -> str:
    return gateway_key(config.server.key, app_folders(os.environ).key_file).reveal()


def _secrets(config: Config) -> Iterator[str]:
    return (found for secret in config.secrets() if (found := secret.revealed))


class WorkerGroup:
    """The admin interface of all workers together. It reads the admin sockets of the workers."""

    def __init__(self, url: str, sockets: Sequence[Path], config: Config, log: AccessLog) -> None:
        self._url, self._sockets, self._config, self._log = url, sockets, config, log
        self.key = _key(config)
        self._recent = RecentLog(log)
        self._started_at = time.time()
        self.reloader: Reloader | None = None
        self._reloading: asyncio.Task[ReloadResult] | None = None

    # --- reload

    def start_reload(self) -> None:
        """Reload in the background: the handler of SIGHUP."""
        self._reloading = asyncio.get_running_loop().create_task(self.reload_configuration())

    async def reload_configuration(self, *, quiet: bool = False) -> ReloadResult:
        """Read the configuration again and let all workers apply it."""
        return ReloadResult(refused=NOT_RELOADABLE) if self.reloader is None else await self.reloader.run(quiet=quiet)

    async def reload(self, config: Config) -> None:
        """Let all workers reload. Raises LocalMisuse if one refuses; a worker that does not run now reads it later."""
        key = _key(config)
        for number, response in await self._fetch_all("/reload?quiet=1", "POST", admin.RELOAD_TIMEOUT):
            result = _read_result(response)
            if result.refused:
                raise LocalMisuse(f"worker {number}: {result.refused}")
        self.key = key
        if config.log != self._config.log:
            self._log.configure(config.log.format, config.log.level)
        self._config = config

    # --- recent requests

    def identity(self) -> dict[str, Json]:
        """Return what distinguishes this gateway from the one after its restart."""
        about: dict[str, Json] = {"pid": os.getpid(), "version": __version__, "url": self._url}
        return {"instance": self._recent.instance, "started_at": self._started_at, **about}

    async def log_page(self, query: LogQuery) -> LogPage:
        """Return recent requests and events of all workers and of this process, in the order of time.

        All clocks are the same. An entry of an earlier time than `until` was written before a worker gets the query, so
        no later page has an entry that belongs before this page.
        """
        query = structs.replace(query, until=time.time())
        own = await self._recent.page(query)
        given = {"cursor": query.cursor, "until": query.until, "details": int(query.details), "filter": query.filter}
        last = {} if query.last is None else {"n": query.last}
        responses = await self._fetch_all(f"/log?{urlencode({**given, **last})}")
        pages = [own, *(_parse_page(response) for _, response in responses)]
        lines = sorted((line for page in pages for line in page.lines), key=lambda line: line[:_TIME])
        if not query.cursor and query.last is not None:
            lines = lines[max(len(lines) - query.last, 0) :]
        cursor = join_cursors(query.cursor, [page.cursor for page in pages])
        return LogPage(tuple(lines), cursor, sum(page.missed for page in pages))

    async def find_requests(self, prefix: str) -> list[LoggedRequest]:
        """Return the recent requests of all workers whose id begins so.

        For an empty prefix, return those that failed or lost content.
        """
        responses = await self._fetch_all(f"/requests?{urlencode({'id': prefix})}")
        found = [each for _, response in responses for each in _read_requests(response)]
        found.sort(key=lambda each: each.ts, reverse=True)
        return found[:1] if prefix == "last" else found[:MAX_FOUND]

    async def activities(self) -> list[Activity]:
        """Return what each worker does now."""
        return [
            each for _, response in await self._fetch_all("/activity?each=1") for each in _read_activities(response)
        ]

    async def _fetch_all(
        self, what: str, method: str = "GET", timeout: float = _WORKER_SECONDS
    ) -> list[tuple[int, bytes]]:
        """Return the response of each worker that runs now, with its number."""

        async def fetch(number: int, socket: Path) -> tuple[int, bytes] | None:
            try:
                return number, await admin.fetch(socket, what, method, timeout)
            except OSError:
                return None

        fetched = await asyncio.gather(*(fetch(number, socket) for number, socket in enumerate(self._sockets, 1)))
        return [each for each in fetched if each is not None]

    # --- recording

    @property
    def recording(self) -> WorkerRecording:
        """The switch of the recording in all workers."""
        return WorkerRecording(self._request_json)

    # --- status and metrics

    def status(self) -> dict[str, Json]:
        """Return the first worker's status with summed counts, and the upstreams of every worker."""
        statuses = [status for status in self._request_json("/status") if isinstance(status, dict)]
        combined: dict[str, Json] = dict(statuses[0]) if statuses else {"state": "starting"}
        for name in ("in_flight", "in_flight_bytes", "dropped_log_lines", "suppressed_log_lines"):
            combined[name] = sum(count for each in statuses if isinstance(count := each.get(name), int))
        combined["pid"] = os.getpid()
        combined["reload_refused"] = (self.reloader.refused if self.reloader else "") or None
        combined["restart_needed"] = [*self.reloader.restart] if self.reloader else []
        combined["recording"] = combine_recordings(each.get("recording") for each in statuses)
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

    async def models(self) -> dict[str, Json]:
        """Return the models of the first worker: all have the same configuration."""
        for socket in self._sockets:
            with suppress(OSError):  # The worker is not running now.
                found = jsonio.decode(await asyncio.to_thread(admin.send_admin_request, socket, "/models"))
                return found if isinstance(found, dict) else {}
        return {}

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
        """Return the cooldowns of the gateway. Workers share them: of each scope one row is returned."""
        found: dict[str, Json] = {}
        for row in (row for rows in self._request_json("/cooldowns") if isinstance(rows, list) for row in rows):
            if isinstance(row, dict):
                scope = str([row.get(name) for name in ("upstream", "credential", "models")])
                found[scope] = row if row.get("state") == "probing" else found.get(scope, row)
        return [*found.values()]

    def clear(self, upstream: str) -> dict[str, Json]:
        """End the cooldowns of an upstream, or of all, in every worker; return how many, or a problem."""
        before = [row for row in self.cooldowns() if isinstance(row, dict) and upstream in ("", row.get("upstream"))]
        query = f"?{urlencode({'upstream': upstream})}" if upstream else ""
        for response in self._request_json(f"/cooldowns/clear{query}", "POST"):
            if isinstance(response, dict) and "problem" in response:
                return response
        return {"cleared": len(before)}

    def _request_json(self, path: str, method: str = "GET") -> list[Json]:
        return [jsonio.decode(text.encode()) for text in self._request(path, method)]

    def _request(self, path: str, method: str = "GET") -> list[str]:
        responses = []
        for socket in self._sockets:
            with suppress(OSError):  # The worker is not running now.
                responses.append(admin.send_admin_request(socket, path, method).decode())
        return responses


class WorkerRecording:
    """Turns recording on and off in all workers."""

    def __init__(self, request: Callable[[str, str], list[Json]]) -> None:
        self._request = request

    def set_level(self, level: RecordLevel) -> None:
        """Record at this level from now on."""
        self._request(f"/recording?level={level}", "POST")

    def purge(self) -> None:
        """Delete all recordings. A worker cannot delete those that another one is writing, so each does it."""
        self._request("/recordings/purge", "POST")

    def describe(self) -> dict[str, Json]:
        """Return what is recorded."""
        statuses = self._request("/status", "GET")
        return combine_recordings(each.get("recording") for each in statuses if isinstance(each, dict))


def combine_recordings(described: Iterable[Json]) -> dict[str, Json]:
    """Return what all workers record: they have the same settings, and each drops requests of its own."""
    rows = [row for row in described if isinstance(row, dict)]
    dropped = sum(count for row in rows if isinstance(count := row.get("dropped"), int))
    return {**rows[0], "dropped": dropped} if rows else {}


_read_result = jsonio.typed_decoder(ReloadResult)
_read_requests = jsonio.typed_decoder(list[LoggedRequest])
_read_activities = jsonio.typed_decoder(list[Activity])


def _parse_page(response: bytes) -> LogPage:
    """Return the page in the response of a worker: lines of JSON, of which some are about the log itself."""
    lines: list[bytes] = []
    cursor, missed = "", 0
    for line in response.split(b"\n"):
        if not line.startswith(_CONTROL_LINE):
            lines += [line] if line else []
            continue
        control = jsonio.decode_object(line) or {}
        cursor = str(control.get("cursor") or cursor)
        missed += int(str(control.get("lines") or 0))
    return LogPage(tuple(lines), cursor, missed)


_CONTROL_LINE = b'{"control":'
_TIME = len('{"ts":"2026-08-03T12:03:11.042Z"')  # Every other line begins with its time.


def _labelled(line: str, number: int) -> str:
    name, brace, rest = line.partition("{")
    if brace:
        return f'{name}{{worker="{number}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{worker="{number}"}} {value}'
