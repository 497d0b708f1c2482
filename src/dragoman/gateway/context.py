"""What the stages of a request hand to one another.

    admission → routing → attempts → delivery

`RequestContext` is the request as all of them see it. `PreparedRequest` is a request that is planned for one target
and not
sent yet; `attempts.InFlight` is one that was sent and whose answer is awaited. No stage calls back into the one before.
"""

from __future__ import annotations

from msgspec import Struct, field

from dragoman.dialects.base import ApiRequest, Dialect
from dragoman.errors import DragomanError
from dragoman.gateway.access_log import AccessLog, Record
from dragoman.gateway.backend import Upstreams
from dragoman.gateway.explain import RefusalLog, ReportQueue
from dragoman.gateway.limits import MemoryAccount
from dragoman.gateway.metrics import Metrics
from dragoman.gateway.planning import CachedPlan
from dragoman.gateway.response_buffer import KeepAlive
from dragoman.gateway.response_store import ResponseHolders, ResponseSaver, ResponseStore
from dragoman.gateway.retry_policy import RetrySettings
from dragoman.gateway.worker_process import WorkerProcess
from dragoman.http.exchange import Exchange
from dragoman.model.filter import Note
from dragoman.translate import Plan
from dragoman.wire.http import Headers, HttpRequest

JSON_BODY = ("content-type", "application/json")


class Services(Struct, frozen=True):
    """What every request uses."""

    log: AccessLog
    metrics: Metrics
    refusals: RefusalLog
    retry_settings: RetrySettings
    report_queue: ReportQueue = field(default_factory=ReportQueue)
    worker: WorkerProcess | None = None  # that reads large requests
    response_store: ResponseStore = field(default_factory=ResponseStore)
    holders: ResponseHolders = field(default_factory=ResponseHolders)
    keep_alive: KeepAlive = field(default_factory=KeepAlive)


class RequestContext(Struct, frozen=True):
    """One request that was let in and whose dialect is known."""

    services: Services
    upstreams: Upstreams
    exchange: Exchange[MemoryAccount]
    account: MemoryAccount  # of the exchange: what is held for the request
    client: Dialect
    call: ApiRequest  # without its body
    record: Record

    def send(self, headers: Headers, body: bytes) -> None:
        """Send a whole answer."""
        self.record.status = 200
        self.exchange.whole(200, headers, body)


class PreparedRequest(Struct, frozen=True):
    """A request that is planned for one target. It is sent as a cached plan says, as the worker has rendered it, or as
    it is rendered when it is sent.
    """

    plan: Plan
    saver: ResponseSaver | None = None  # that keeps the answer
    cached: CachedPlan | None = None
    request: HttpRequest | None = None  # as the worker has rendered it
    refusal: DragomanError | None = None  # why the worker could not
    note: Note | None = None  # about what is sent
