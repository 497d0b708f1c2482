"""The gateway as an application: it serves each request stage by stage and writes one access log line about it.

    admission (head, key, body) → routing (dialect, targets) → attempts (an upstream) → delivery (the client)

The server of `dragoman.http` calls `handle`. The gateway is also an ASGI application, so it can be mounted in another
application. Without lifespan events it starts with its first request.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

import dragoman.dialects as registry
from dragoman._version import __version__
from dragoman.dialects.base import Dialect
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.activity import Activity, measure_activity
from dragoman.gateway.admission import Admission, KeyCheck, check_model, upgrade_refusal
from dragoman.gateway.asgi import AsgiExchange, Receive, Scope, Send, refuse_websocket, serve_lifespan
from dragoman.gateway.breaker import CircuitBreaker
from dragoman.gateway.compaction import PATH, compact
from dragoman.gateway.config import Config, Server
from dragoman.gateway.context import RequestContext, Services
from dragoman.gateway.cooldown_file import CooldownFile
from dragoman.gateway.cooldown_log import CooldownLog
from dragoman.gateway.delivery import generate
from dragoman.gateway.error_responses import ErrorResponses
from dragoman.gateway.explain import RefusalLog
from dragoman.gateway.job_process import JobProcess
from dragoman.gateway.large_requests import LargeRequest, match_in_job_process
from dragoman.gateway.limits import MAX_MODEL_LENGTH, MemoryAccount, check_text, is_large, model_too_long
from dragoman.gateway.metrics import GaugeSnapshot, Metrics, render_metrics
from dragoman.gateway.operations import serve
from dragoman.gateway.recent import LogPage, LogQuery, RecentLog
from dragoman.gateway.recording_control import RecordingControl
from dragoman.gateway.records import LoggedRequest, Record
from dragoman.gateway.redaction import KnownAddress, Redactor
from dragoman.gateway.relay import match_relayed
from dragoman.gateway.reload import NOT_RELOADABLE, Reloader, ReloadResult
from dragoman.gateway.retry_policy import RetrySettings
from dragoman.gateway.routing import REVOKED, MatchedRequest, Router
from dragoman.gateway.secrets import app_folders, gateway_key
from dragoman.gateway.upstream_credentials import report_missing_secrets
from dragoman.gateway.upstreams import Upstreams
from dragoman.http.client.client import HttpClient, PoolLimits
from dragoman.http.exchange import Exchange
from dragoman.response_stream import error_response
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

if TYPE_CHECKING:
    from dragoman.gateway.accounting import Accounting
    from dragoman.gateway.worker_sharing import WorkerSharing

_READY = "/readyz"
_BY_INNER_REQUESTS = ("websocket", "compact")  # operations whose inner requests are in the ledger
# Of operators, and of clients: Claude Code requests `/` or `/api/hello` to learn whether the address answers.
_PROBES = frozenset({"/healthz", _READY, "/", "/api/hello"})
_TEXT = (("content-type", "text/plain; charset=utf-8"),)
_POOL_LIMITS = PoolLimits(connections=sys.maxsize)  # `ConnectionSlots` of each upstream limit the connections.
_MAX_FORMER_KEYS = 4


def _key(config: Config) -> str:
    return gateway_key(config.server.key, app_folders(os.environ).key_file).reveal()


async def _serve(upstreams: Upstreams, serving: Awaitable[None]) -> None:
    """Serve a request; `Upstreams.retire` waits for its end."""
    upstreams.users += 1
    try:
        await serving
    finally:
        upstreams.users -= 1
        if not upstreams.users:
            upstreams.idle.set()


class Gateway:
    """A running gateway. `start` and `stop` begin and end its work; `reload` replaces the configuration at once."""

    def __init__(
        self,
        config: Config,
        *,
        key: str | None = None,
        state: Path | None = None,
        access_log: AccessLog | None = None,
        retry_settings: RetrySettings | None = None,
        dialects: Sequence[Dialect] | None = None,
    ) -> None:
        self.key = key or _key(config)
        self._has_fixed_key = key is not None
        self.started_at = time.time()
        self.draining = False  # /readyz then reports 503; running requests continue
        self.url = ""  # set when a server listens for the gateway
        self.generation = 1  # of the configuration
        self.reloader: Reloader | None = None  # set if the gateway can read its configuration again
        self.on_reloaded: Callable[[], None] = lambda: None
        self._former_keys: list[str] = []  # which the log still masks
        self._set_log(access_log, config)
        self._state = state or app_folders(os.environ).state
        self.recording = RecordingControl(self._state, config.inspector, self.log, self._secrets)
        refusals = RefusalLog(self._state / "refusals", enabled=config.explain)
        dialects = dialects or [registry.get(name) for name in registry.names()]
        self.job_process = JobProcess(dialects)
        self._config = config
        self._live: dict[Exchange[MemoryAccount], Record] = {}
        self.accounting = self._create_accounting()
        shared = self.log, Metrics(), refusals, retry_settings or RetrySettings()
        self._services = Services(*shared, job_process=self.job_process, accounting=self.accounting)
        self.breaker = CircuitBreaker(redact=self.redactor.message)
        self._cooldowns = CooldownFile(self._state, self.breaker)
        CooldownLog(self.log, self.breaker)
        self._admission = Admission(config.server, self._key_check(self.key))
        self.memory_budget = self._admission.memory_budget
        self._router = Router(dialects)
        self._errors = ErrorResponses(self._router, self.redactor, self.log)
        self._client: HttpClient | None = None
        self.upstreams: Upstreams | None = None
        self._retired: set[Upstreams] = set()  # of earlier configurations, which running requests may still use
        self._starting = asyncio.Lock()
        # Request ids sort by time: milliseconds, the random part of this process, a counter.
        self._ids, self._count = secrets.token_hex(6), itertools.count()
        self._background: set[asyncio.Task[None]] = set()

    def _set_log(self, access_log: AccessLog | None, config: Config) -> None:
        self.redactor = Redactor(self._secrets, self._addresses)
        self.log = access_log or AccessLog(self.redactor, form=config.log.format, level=config.log.level)
        self.log.redactor = self.redactor
        self.recent = RecentLog(self.log)

    def _key_check(self, key: str) -> KeyCheck:
        return KeyCheck(key, None if self.accounting is None else self.accounting.book)

    # --- start, stop, reload

    async def start(self) -> None:
        """Load the cooldowns and create the upstreams; later calls do nothing."""
        async with self._starting:
            if self.upstreams is None:
                self._client = HttpClient(caps=_POOL_LIMITS)
                self._warn_of_missing_secrets(self._config)
                self._cooldowns.load()
                if self.accounting is not None:
                    await self.accounting.book.open()
                upstreams = Upstreams(self._config, self._client, self.breaker, state=self._state, log=self.log)
                await upstreams.start()
                self.upstreams = upstreams
                self.recording.start(self._config.server.workers)

    def share_with(self, siblings: Sequence[Path]) -> WorkerSharing:
        """Share earlier responses and cooldowns with other workers, which listen at these admin sockets."""
        from dragoman.gateway.worker_sharing import WorkerSharing  # noqa: PLC0415  only with several workers

        sharing = WorkerSharing(siblings, self._services, self.breaker)
        self._services = structs.replace(self._services, shared=sharing.responses)
        return sharing

    async def stop(self) -> None:
        """Stop background tasks, credentials, the job process, connections and the log."""
        self.draining = True
        upstreams, client = self.upstreams, self._client
        self.upstreams = self._client = None
        for task in self._background:
            task.cancel()
        if upstreams is not None:
            await upstreams.close_credentials()
        await self._services.report_queue.close()
        self.job_process.close()
        if client is not None:
            await client.aclose()
        for retired in self._retired:
            await retired.aclose()
        if upstreams is not None:
            await upstreams.aclose()
            await self._cooldowns.aclose()
        if self.accounting is not None:
            await self.accounting.book.close()
        self.recording.close()
        self.log.close()

    async def reload(self, config: Config) -> None:
        """Switch to another configuration. Running requests keep the old one.

        Raises ConfigError; the old configuration then stays.
        """
        key = self.key if self._has_fixed_key else _key(config)
        await self.start()
        assert self._client is not None
        apply_accounts = None if self.accounting is None else self.accounting.prepare(config)
        self._warn_of_missing_secrets(config)
        upstreams = Upstreams(config, self._client, self.breaker, state=self._state, log=self.log)
        await upstreams.start()
        old, self.upstreams, before, self._config = self.upstreams, upstreams, self._config, config
        if key != self.key:
            self._former_keys = [*self._former_keys[-_MAX_FORMER_KEYS:], self.key]
        self.key = key
        self._admission.configure(config.server, self._key_check(key))
        if apply_accounts is not None:
            apply_accounts()
        self._services.refusals.enabled = config.explain
        if config.log != before.log:
            self.log.configure(config.log.format, config.log.level)
        self.recording.configure(config.inspector)
        self.generation += 1
        self.on_reloaded()
        if old is not None:
            self._retired.add(old)
            self.run_in_background(self._retire(old))

    async def _retire(self, old: Upstreams) -> None:
        await old.retire()
        self._retired.discard(old)

    def _warn_of_missing_secrets(self, config: Config) -> None:
        def warn(problem: str) -> None:
            self.log.event("warning", "upstream_key", message=problem)

        report_missing_secrets(config.upstreams.values(), os.environ, warn)

    def _create_accounting(self) -> Accounting | None:
        """Return the accounts of `[store]`, not opened yet; None without it."""
        if self._config.store is None:
            return None
        from dragoman.gateway.accounting import create_accounting  # noqa: PLC0415  only with a store

        return create_accounting(self._config, self._state, self.log, self._end_revoked)

    def _end_revoked(self, key_id: str) -> None:
        """End the running requests of a key that was revoked, if the setting says so."""
        ends = self._config.accounts.revoked_streams == "end"
        running = [(exchange, record) for exchange, record in self._live.items() if record.has_key(key_id)]
        self.log.event("info", "key_revoked", key=key_id, running=len(running), ended=len(running) if ends else 0)
        for exchange, record in running if ends else ():
            record.end_reason = REVOKED
            exchange.cut()

    def cut(self) -> None:
        """End all running requests; each stream ends with an error in its dialect."""
        for exchange in list(self._live):
            exchange.cut()

    def run_in_background(self, work: Coroutine[object, object, None]) -> None:
        """Run a coroutine as a task; `stop` cancels it."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    @property
    def in_flight(self) -> int:
        """The number of running requests."""
        return len(self._live)

    def metrics(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        log, backends = self.log, self.upstreams.backends if self.upstreams else ()
        now = GaugeSnapshot(
            len(self._live),
            self.memory_budget.bytes,
            {"dropped": log.dropped, "capped": log.suppressed},
            list(self.breaker.remaining_cooldowns()),
            {(backend.name, name): seconds for backend in backends for name, seconds in backend.expiries()},
            None if self.accounting is None else self.accounting.gauges(),
        )
        shown = render_metrics(self._services.metrics, now).decode()
        return self.redactor.text(shown).encode()  # A label may contain text of a client.

    def status(self) -> dict[str, Json]:
        """Return the state of the gateway for `dragoman status`: start time, running requests, upstreams."""
        backends = self.upstreams.backends if self.upstreams else ()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "url": self.url or None,
            "started_at": self.started_at,
            "state": "draining" if self.draining else "ready" if self._ready else "starting",
            "in_flight": self.in_flight,
            "config": str(self._config.file) if self._config.file else None,
            "config_digest": self._config.digest or None,
            "generation": self.generation,
            "reload_refused": (self.reloader.refused if self.reloader else "") or None,
            "restart_needed": [*self.reloader.restart] if self.reloader else [],
            "log": {"level": self.log.level},
            "explain": self._services.refusals.enabled,
            "in_flight_bytes": self.memory_budget.bytes,
            "dropped_log_lines": self.log.dropped,
            "suppressed_log_lines": self.log.suppressed,
            "accounts": None if self.accounting is None else self.accounting.describe(),
            "recording": self.recording.describe(),
            "upstreams": [self.redactor.tree(backend.describe()) for backend in backends],
        }

    async def models(self) -> dict[str, Json]:
        """Return the models that can be asked for, with the lists that upstreams return within a short time."""
        await self.start()
        assert self.upstreams is not None
        described = await self.upstreams.catalogue.describe()
        return {name: self.redactor.tree(value) for name, value in described.items()}

    def cooldowns(self) -> list[Json]:
        """Return the upstreams in cooldown, and why."""
        return [*self.breaker.describe()]

    def clear(self, upstream: str) -> dict[str, Json]:
        """End the cooldowns of one upstream, or of all for an empty name. Return `cleared` or `problem`."""
        known = [backend.name for backend in self.upstreams.backends] if self.upstreams else []
        if upstream and upstream not in known:
            return {"problem": f"there is no upstream {upstream!r}; the upstreams are: {', '.join(known)}"}
        cleared = self.breaker.clear(upstream)
        self.log.event("info", "cooldowns cleared", upstream=upstream or None, count=cleared)
        return {"cleared": cleared}

    # --- for `dragoman log`, `explain`, `top` and `reload`

    def identity(self) -> dict[str, Json]:
        """Return what distinguishes this gateway from the one after its restart."""
        about: dict[str, Json] = {"pid": os.getpid(), "version": __version__, "url": self.url}
        return {"instance": self.recent.instance, "started_at": self.started_at, **about}

    async def log_page(self, query: LogQuery) -> LogPage:
        """Return recent requests and events."""
        return await self.recent.page(query)

    async def find_requests(self, prefix: str) -> list[LoggedRequest]:
        """Return the recent requests whose id begins so, with details.

        For an empty prefix, return those that failed or lost content.
        """
        return self.recent.requests_with_details(prefix)

    async def activities(self) -> list[Activity]:
        """Return what this process does now."""
        backends = self.upstreams.backends if self.upstreams else ()
        return [measure_activity(self._live.values(), self.recent, backends, self.redactor, self.started_at)]

    async def reload_configuration(self, *, quiet: bool = False) -> ReloadResult:
        """Read the configuration again and apply it."""
        return ReloadResult(refused=NOT_RELOADABLE) if self.reloader is None else await self.reloader.run(quiet=quiet)

    @property
    def server_settings(self) -> Server:
        """The current settings of `[server]`."""
        return self._config.server

    @property
    def _ready(self) -> bool:
        return self.upstreams is not None and bool(self.upstreams.backends) and not self.draining

    def _secrets(self) -> Iterable[str]:
        """Yield all secrets known so far, for the redactor."""
        yield self.key
        yield from self._former_keys
        yield from (value for secret in self._config.secrets() if (value := secret.revealed))
        for backend in self.upstreams.backends if self.upstreams else ():
            yield from backend.secrets()

    def _addresses(self) -> Iterable[KnownAddress]:
        """Return the addresses of the upstreams, which clients must not see."""
        return (
            known for backend in (self.upstreams.backends if self.upstreams else ()) for known in backend.addresses()
        )

    # --- ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                exchange = AsgiExchange.of(scope, receive, send)
                try:
                    await self.handle(exchange)
                finally:
                    await exchange.close()
            case "lifespan":
                await serve_lifespan(receive, send, self.start, self.stop)
            case _:
                request = HttpRequest("GET", scope["path"])
                refusal = error_response(self._router.error_dialect(request), upgrade_refusal(request, scope["type"]))
                await refuse_websocket(scope, send, refusal)

    # --- requests

    async def handle(self, exchange: Exchange[MemoryAccount]) -> None:
        """Serve one request to its end: admission, routing, attempts, delivery."""
        # A local reference to the request would keep its body in memory while a long stream lasts.
        method, path = exchange.request.method, exchange.request.path
        exchange.last = exchange.last or self.draining
        if path in _PROBES and method in ("GET", "HEAD") and self._admission.serves(exchange):
            await self._probe(exchange)
            return
        exchange.id = f"req_{int(time.time() * 1000):012x}{self._ids}{next(self._count):08x}"
        if (proxies := self._admission.proxies).networks:
            exchange.client = proxies.client_of(exchange.client, exchange.request.headers)
        record = Record(exchange.id, method, path, client=exchange.client)
        self._live[exchange] = record
        try:
            request = await self._admission.request(exchange, record)
            if (recorder := self.recording.recorder) is not None:
                record.capture = recorder.begin(request, record.began)
            if await self._served_by_inner_requests(exchange, record):
                return
            matched = await self._matched(exchange, request)
            del request
            if matched is None:
                self._errors.send_unmatched(exchange, record)
                return
            if self.upstreams is None:
                await self.start()
            upstreams, call, memory = self.upstreams, matched.call, exchange.memory
            assert upstreams is not None and memory is not None  # set by `start` and by admission
            record.dialect, record.operation = matched.dialect.name, call.operation
            if len(call.model) > MAX_MODEL_LENGTH:
                raise model_too_long(call.model)
            record.model, account = call.model, record.account
            if account is not None and account.models and call.model:
                check_model(account, upstreams.catalogue.own_name(call.model))
            if call.body is not None:
                call = structs.replace(call, body=None)  # The decoded body is large, and a stream may last long.
            context = RequestContext(self._services, upstreams, exchange, memory, matched.dialect, call, record)
            serving = generate(context, matched) if call.operation == "generate" else serve(context, matched)
            matched = None  # releases the body in it
            await _serve(upstreams, serving)
        except BaseException as error:
            if not self._errors.send(exchange, record, error):
                raise
        finally:
            self._finish(exchange, record)

    async def _served_by_inner_requests(self, exchange: Exchange[MemoryAccount], record: Record) -> bool:
        """Serve a request that the gateway answers by other requests: a WebSocket, or a compaction."""
        request = exchange.request
        if request.header("upgrade"):  # admission accepts no other upgrade than a WebSocket
            from dragoman.gateway.websocket import serve_session  # noqa: PLC0415  few clients use it

            record.dialect, record.operation, record.status, record.streamed = "responses", "websocket", 101, True
            server, memory = self._config.server, self._services.session_memory
            await serve_session(exchange, self.handle, server, memory, is_draining=self.draining)
            return True
        if request.method == "POST" and request.path.rstrip("/").endswith(PATH):
            record.dialect, record.operation = "responses", "compact"
            record.status = await compact(exchange, request.body, self.handle)
            if record.status != 200:
                record.outcome = "refused" if record.status < 500 else "failed"
            return True
        return False

    def _finish(self, exchange: Exchange[MemoryAccount], record: Record) -> None:
        """Release what the request used, and count, settle and log it."""
        del self._live[exchange]
        # The memory account may refer to its exchange, and so to the body.
        memory, exchange.memory = exchange.memory, None
        if memory is not None:
            memory.leave()
        record.total = time.monotonic() - record.began
        if record.on_finished is not None:
            record.on_finished()
        if self.accounting is not None and record.operation not in _BY_INNER_REQUESTS:
            self.accounting.finish(record)
        self._services.metrics.request(record)
        line = self.log.request(record)
        if record.capture is not None:
            self.recording.finish(record, line)

    async def _probe(self, exchange: Exchange[MemoryAccount]) -> None:
        if exchange.request.path != _READY:
            exchange.whole(200, _TEXT, b"ok\n")
            return
        if self.upstreams is None and not self.draining:
            await self.start()
        state = b"draining\n" if self.draining else b"ready\n" if self._ready else b"no upstream\n"
        exchange.whole(200 if self._ready else 503, _TEXT, state)

    async def _matched(self, exchange: Exchange[MemoryAccount], request: HttpRequest) -> MatchedRequest | None:
        """Return the request matched to a dialect; None if no route fits. Raises ClientFault, UnreadableRequest."""
        server = self._config.server
        if (relayed := self._router.find_relayed(request.path)) is not None:
            return match_relayed(*relayed, request) if request.method == "POST" else None
        if is_large(request.body, server.offload):
            large = LargeRequest(self.job_process, exchange, server)
            return await match_in_job_process(large, self._router) or self._router.match_model(request)
        check_text(request.body, server.limits)
        return self._router.match(request) or self._router.match_model(request)
