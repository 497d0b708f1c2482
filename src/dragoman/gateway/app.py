"""The gateway as an application: it answers a request, stage by stage, and writes a line about how it went.

    admission (head, key, body) → routing (dialect, targets) → attempts (an upstream) → delivery (the client)

Our own server calls `answer`. The gateway is an ASGI application, too, so it can be mounted in another one. Without
lifespan events it starts with its first request.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import sys
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import structs

import dragoman.dialects as registry
from dragoman._version import __version__
from dragoman.dialects.base import ApiRequest, Dialect
from dragoman.errors import ClientFault, DragomanError, Fault
from dragoman.gateway.access_log import AccessLog, Record
from dragoman.gateway.admission import Admission, upgrade_refusal
from dragoman.gateway.asgi import AsgiExchange, Receive, Scope, Send, refuse_websocket
from dragoman.gateway.backend import Upstreams
from dragoman.gateway.breaker import CircuitBreaker, CooldownFile
from dragoman.gateway.config import Config, load_config
from dragoman.gateway.context import RequestContext, Services
from dragoman.gateway.delivery import generate
from dragoman.gateway.explain import RefusalLog
from dragoman.gateway.large_requests import LargeRequest, match_in_worker
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.limits import MAX_MODEL_LENGTH, MemoryAccount, check_text, is_large, model_too_long
from dragoman.gateway.metrics import GaugeSnapshot, Metrics, render_metrics
from dragoman.gateway.operations import serve
from dragoman.gateway.redaction import KnownAddress, Redactor
from dragoman.gateway.retry_policy import RetrySettings
from dragoman.gateway.routing import BUG, ENDING, MatchedRequest, Router, UnreadableRequest, error_response
from dragoman.gateway.secrets import app_folders, gateway_key
from dragoman.gateway.worker_process import WorkerProcess
from dragoman.http.client.client import HttpClient, PoolLimits
from dragoman.http.exchange import ClientDisconnected, Exchange
from dragoman.wire.http import Headers, HttpRequest
from dragoman.wire.jsonio import Json

_PROBES = ("/healthz", "/readyz")
_TEXT = (("content-type", "text/plain; charset=utf-8"),)
_ONE_MODEL = "/v1/models/"
_CAPS = PoolLimits(connections=sys.maxsize)  # how many at once is counted by the gate of each upstream
_UNREAD = frozenset({408, 413})  # the body was not read to its end, so nothing can follow it


def asgi(config: Config | None = None) -> Gateway:
    """The application for somebody's own server: of this configuration, or of the one this environment has."""
    return Gateway(config or load_config(None, os.environ))


def _key(config: Config) -> str:
    return gateway_key(config.server.key, app_folders(os.environ).key_file).reveal()


def _learn(config: Config) -> None:
    """Look up the secrets that can be had at once, so that they are kept out of the log from its first line on."""
    for secret in config.secrets():
        if not secret.shown.startswith(("cmd:", "keyring:")):  # those take their time, and may ask somebody
            with suppress(ConfigError):  # whoever needs it will say so
                secret.reveal()


class Gateway:
    """Serves until it is stopped. Everything of the configuration is swapped at once by `reload`."""

    def __init__(
        self,
        config: Config,
        *,
        key: str | None = None,
        state: Path | None = None,
        journal: AccessLog | None = None,
        patience: RetrySettings | None = None,
        dialects: Sequence[Dialect] | None = None,
    ) -> None:
        ours = app_folders(os.environ)
        self.key = key or _key(config)
        self._key_is_given = key is not None
        self.started_at = time.time()
        self.draining = False  # tells balancers to send no more; what runs goes on
        self.url = ""  # where clients reach it, once somebody listens for it
        self.generation = 1  # of the configuration
        self.reload_refused = ""  # why the last one was not put in force
        self.redactor = Redactor(self._secrets, self._addresses)
        self.log = journal or AccessLog(self.redactor, form=config.log.format, level=config.log.level)
        self.log.redactor = self.redactor
        refusals = RefusalLog((state or ours.state) / "refusals", enabled=config.explain)
        dialects = dialects or [registry.get(name) for name in registry.names()]
        self.worker = WorkerProcess(dialects)
        self._services = Services(self.log, Metrics(), refusals, patience or RetrySettings(), worker=self.worker)
        self.breaker = CircuitBreaker(words=self.redactor.message)
        self._cooldowns = CooldownFile(state or ours.state, self.breaker)
        self._admission = Admission(config.server, self.key)
        self.memory_budget = self._admission.memory_budget
        self._router = Router(dialects)
        self._config = config
        self._client: HttpClient | None = None
        self.upstreams: Upstreams | None = None
        self._starting = asyncio.Lock()
        self._live: set[Exchange[MemoryAccount]] = set()
        self._ids, self._count = secrets.token_hex(6), itertools.count()  # of requests; those of workers differ
        self._beside: set[asyncio.Task[None]] = set()

    # --- life

    async def start(self) -> None:
        async with self._starting:
            if self.upstreams is None:
                self._client = HttpClient(caps=_CAPS)
                _learn(self._config)
                self._cooldowns.load()
                fleet = Upstreams(self._config, self._client, self.breaker)
                await fleet.start()
                self.upstreams = fleet

    async def stop(self) -> None:
        self.draining = True
        fleet, client = self.upstreams, self._client
        self.upstreams = self._client = None
        for task in self._beside:
            task.cancel()
        if fleet is not None:
            await fleet.close_credentials()
        await self._services.report_queue.close()
        self.worker.close()
        if client is not None:
            await client.aclose()
        if fleet is not None:
            await fleet.aclose()
            await self._cooldowns.aclose()
        self.log.close()

    async def reload(self, config: Config) -> None:
        """Put another configuration in force. Requests under way keep the old one. Raises ConfigError, and keeps it."""
        key = self.key if self._key_is_given else _key(config)
        await self.start()
        assert self._client is not None
        _learn(config)
        fleet = Upstreams(config, self._client, self.breaker)
        await fleet.start()
        old, self.upstreams, self._config = self.upstreams, fleet, config
        self.key = key
        self._admission.configure(config.server, key)
        self._services.refusals.enabled = config.explain
        self.generation, self.reload_refused = self.generation + 1, ""
        self.log.event("info", "reloaded", generation=self.generation, upstreams=len(config.upstreams))
        if old is not None:
            self.run_in_background(old.retire())

    def cut(self) -> None:
        """End what still runs, each stream with its dialect's error."""
        for exchange in list(self._live):
            exchange.cut()

    def run_in_background(self, work: Coroutine[object, object, None]) -> None:
        """Do it beside the requests."""
        task = asyncio.get_running_loop().create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    @property
    def in_flight(self) -> int:
        return len(self._live)

    def metrics(self) -> bytes:
        log, backends = self.log, self.upstreams.backends if self.upstreams else ()
        now = GaugeSnapshot(
            len(self._live),
            self.memory_budget.bytes,
            {"dropped": log.dropped, "capped": log.suppressed},
            list(self.breaker.cooldowns_left()),
            {(backend.name, name): seconds for backend in backends for name, seconds in backend.expiries()},
        )
        shown = render_metrics(self._services.metrics, now).decode()
        return self.redactor.text(shown).encode()  # a label may be a client's text

    def status(self) -> dict[str, Json]:
        """All that a person asks first: up since when, what runs, how the upstreams are."""
        backends = self.upstreams.backends if self.upstreams else ()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "url": self.url or None,
            "started_at": self.started_at,
            "state": "draining" if self.draining else "ready" if self._ready else "starting",
            "in_flight": self.in_flight,
            "config": str(self._config.file) if self._config.file else None,
            "generation": self.generation,
            "reload_refused": self.reload_refused or None,
            "explain": self._services.refusals.enabled,
            "in_flight_bytes": self.memory_budget.bytes,
            "dropped_log_lines": self.log.dropped,
            "suppressed_log_lines": self.log.suppressed,
            "upstreams": [self.redactor.tree(backend.describe()) for backend in backends],
        }

    def cooldowns(self) -> list[Json]:
        """Return the upstreams in cooldown, and why."""
        return [*self.breaker.describe()]

    def clear(self, upstream: str) -> dict[str, Json]:
        """Let everybody be asked again, or one upstream: how many that were, or what is wrong with that."""
        known = [backend.name for backend in self.upstreams.backends] if self.upstreams else []
        if upstream and upstream not in known:
            return {"problem": f"there is no upstream {upstream!r}; known: {', '.join(known)}"}
        cleared = self.breaker.clear(upstream)
        self.log.event("info", "cooldowns cleared", upstream=upstream or None, count=cleared)
        return {"cleared": cleared}

    @property
    def _ready(self) -> bool:
        return self.upstreams is not None and bool(self.upstreams.backends) and not self.draining

    def _secrets(self) -> Iterable[str]:
        """All that is known by now and may be written nowhere."""
        yield self.key
        yield from (found for secret in self._config.secrets() if (found := secret.revealed))
        for backend in self.upstreams.backends if self.upstreams else ():
            yield from backend.secrets()

    def _addresses(self) -> Iterable[KnownAddress]:
        """Where the upstreams are, which no client may learn."""
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
                await self._lifespan(receive, send)
            case _:
                request = HttpRequest("GET", scope["path"])
                refusal = error_response(self._router.error_dialect(request), upgrade_refusal(request, scope["type"]))
                await refuse_websocket(scope, send, refusal)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except (DragomanError, OSError) as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    # --- requests

    async def handle(self, exchange: Exchange[MemoryAccount]) -> None:
        """Serve one request to its end: admission, routing, attempts, delivery."""
        method, path = exchange.request.method, exchange.request.path  # no more of it: a stream may last
        exchange.last = exchange.last or self.draining
        if path in _PROBES and method in ("GET", "HEAD") and self._admission.serves(exchange):
            await self._probe(exchange)
            return
        exchange.id = f"req_{self._ids}{next(self._count):08x}"
        if (proxies := self._admission.proxies).networks:
            exchange.client = proxies.client_of(exchange.client, exchange.request.headers)
        record = Record(exchange.id, method, path, client=exchange.client)
        self._live.add(exchange)
        try:
            matched = await self._matched(exchange, await self._admission.request(exchange))
            if matched is None:
                self._refuse_unmatched(exchange, record)
                return
            if self.upstreams is None:
                await self.start()
            fleet, call, account = self.upstreams, matched.call, exchange.account
            assert fleet is not None and account is not None  # it was let in
            record.dialect, record.operation = matched.dialect.name, call.operation
            if len(call.model) > MAX_MODEL_LENGTH:
                raise model_too_long(call.model)
            record.model = call.model
            if call.body is not None:
                call = structs.replace(call, body=None)  # a stream may last, and the tree is large
            context = RequestContext(self._services, fleet, exchange, account, matched.dialect, call, record)
            with fleet:
                serving = generate(context, matched) if call.operation == "generate" else serve(context, matched)
                matched = None  # the body in it is not held while it is answered
                await serving
        except BaseException as error:
            if not self._refuse_error(exchange, record, error):
                raise
        finally:
            self._live.discard(exchange)
            if exchange.account is not None:
                exchange.account.leave()
            record.total = time.monotonic() - record.began
            if record.on_finished is not None:
                record.on_finished()
            self._services.metrics.request(record)
            self.log.request(record)

    def _refuse_unmatched(self, exchange: Exchange[MemoryAccount], record: Record) -> None:
        fault, allowed = self._router.unmatched(exchange.request)
        record.outcome = "refused"
        self._refuse(exchange, record, None, fault, (("allow", allowed),) if allowed else ())

    def _refuse_error(self, exchange: Exchange[MemoryAccount], record: Record, error: BaseException) -> bool:
        """Answer with what went wrong, if the client is there; False for what must be raised further."""
        match error:
            case ClientDisconnected():
                record.outcome = "gone"
            case asyncio.CancelledError():
                if not exchange.interrupted():
                    return False
                record.outcome = "gone" if exchange.is_disconnected else "cut"
                if not exchange.is_disconnected:
                    self._refuse(exchange, record, None, ENDING)
            case UnreadableRequest():
                record.outcome = "refused"
                self._refuse(exchange, record, error.dialect, error.error.fault)
            case DragomanError():
                record.outcome = "refused" if isinstance(error, ClientFault) else "failed"
                fault = error.fault
                if not isinstance(error, ClientFault):
                    record.error = record.error or fault.message  # with addresses, which the client is not told
                    fault = self.redactor.upstream_fault(fault)
                self._refuse(exchange, record, self._router.find_dialect(record.dialect), fault)
            case Exception():  # the last line: no client is left without an answer
                record.outcome, record.error = "bug", f"{type(error).__name__}: {error}"
                self.log.bug(exchange.id, error)
                self._refuse(exchange, record, None, BUG)
            case _:
                return False
        return True

    async def _probe(self, exchange: Exchange[MemoryAccount]) -> None:
        if exchange.request.path == "/healthz":
            exchange.whole(200, _TEXT, b"ok\n")
            return
        if self.upstreams is None and not self.draining:
            await self.start()
        state = b"draining\n" if self.draining else b"ready\n" if self._ready else b"no upstream\n"
        exchange.whole(200 if self._ready else 503, _TEXT, state)

    async def _matched(self, exchange: Exchange[MemoryAccount], request: HttpRequest) -> MatchedRequest | None:
        """The call that a request is, in a dialect. Raises ClientFault, Unreadable."""
        server = self._config.server
        if is_large(request.body, server.offload):
            large = LargeRequest(self.worker, exchange, server)
            return await match_in_worker(large, self._router) or self._one_model(request)
        check_text(request.body, server.limits)
        return self._router.match(request) or self._one_model(request)

    def _one_model(self, request: HttpRequest) -> MatchedRequest | None:
        """`GET /v1/models/ID`, which not every family's binding has."""
        if request.method != "GET" or not request.path.startswith(_ONE_MODEL):
            return None
        listed = structs.replace(request, path=_ONE_MODEL.rstrip("/"))
        matched = self._router.match(listed)
        wanted = request.path.removeprefix(_ONE_MODEL)
        return matched and structs.replace(matched, call=ApiRequest("models", wanted, False, None))

    def _refuse(
        self,
        exchange: Exchange[MemoryAccount],
        record: Record,
        dialect: Dialect | None,
        fault: Fault,
        headers: Headers = (),
    ) -> None:
        """Say no in the client's own words. One that has begun to read an answer was told by whoever wrote it."""
        record.error = record.error or fault.message
        if exchange.is_started:
            return
        fault = self.redactor.fault(fault)  # an upstream's words may quote the key it was given
        dialect = dialect or self._router.error_dialect(exchange.request)
        response = error_response(dialect, fault)
        record.dialect, record.status = record.dialect or dialect.name, response.status
        exchange.last = exchange.last or fault.status in _UNREAD
        exchange.whole(response.status, (*response.headers, *headers), response.body)
