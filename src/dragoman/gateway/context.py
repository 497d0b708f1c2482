"""The values that the stages of one request pass from each to the next: services, context, prepared request.

    admission → routing → attempts → delivery

`RequestContext` is what all stages share. `PreparedRequest` is a request that is planned for one target and not sent
yet; `attempts.InFlight` is one that was sent and whose response is awaited. No stage calls the one before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from dragoman.dialects.base import ApiRequest, Dialect
from dragoman.errors import DragomanError
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.backend import CacheHolders
from dragoman.gateway.explain import RefusalLog, ReportQueue
from dragoman.gateway.job_process import JobProcess
from dragoman.gateway.limits import MemoryAccount
from dragoman.gateway.metrics import Metrics
from dragoman.gateway.planning import CachedPlan
from dragoman.gateway.records import Record
from dragoman.gateway.response_buffer import KeepAlive
from dragoman.gateway.response_store import ResponseHolders, ResponseSaver, ResponseStore
from dragoman.gateway.retry_policy import RetrySettings
from dragoman.gateway.session_memory import SessionMemory
from dragoman.gateway.shared_responses import NoSharedResponses, SharedResponses
from dragoman.gateway.upstreams import Upstreams
from dragoman.http.exchange import Exchange
from dragoman.model.filter import Note
from dragoman.translate import Plan
from dragoman.wire.http import Headers, HttpRequest

if TYPE_CHECKING:
    from dragoman.gateway.accounting import Accounting

JSON_BODY = ("content-type", "application/json")


class Services(Struct, frozen=True):
    """The objects that all requests of one gateway share."""

    log: AccessLog
    metrics: Metrics
    refusals: RefusalLog
    retry_settings: RetrySettings
    report_queue: ReportQueue = field(default_factory=ReportQueue)
    job_process: JobProcess | None = None  # parses large requests
    response_store: ResponseStore = field(default_factory=ResponseStore)
    holders: ResponseHolders = field(default_factory=ResponseHolders)
    cache_holders: CacheHolders = field(default_factory=CacheHolders)
    session_memory: SessionMemory = field(default_factory=SessionMemory)  # of WebSockets
    shared: SharedResponses = field(default_factory=NoSharedResponses)  # what other processes of this gateway store
    keep_alive: KeepAlive = field(default_factory=KeepAlive)
    accounting: Accounting | None = None  # None: no store of accounts


class RequestContext(Struct, frozen=True):
    """One admitted request whose dialect is known."""

    services: Services
    upstreams: Upstreams
    exchange: Exchange[MemoryAccount]
    memory: MemoryAccount  # that the request uses
    client: Dialect
    call: ApiRequest  # without its body
    record: Record

    def send(self, headers: Headers, body: bytes) -> None:
        """Send a whole response with status 200."""
        self.record.status = 200
        if self.record.capture is not None:
            self.record.capture.note_whole_response(200, headers, body)
        self.exchange.whole(200, headers, body)


class PreparedRequest(Struct, frozen=True):
    """A request that is planned for one target.

    Its HTTP request comes from a cached plan, or from the job process, or is rendered when it is sent.
    """

    plan: Plan
    saver: ResponseSaver | None = None  # stores the response
    cached: CachedPlan | None = None
    request: HttpRequest | None = None  # rendered by the job process
    refusal: DragomanError | None = None  # why the job process could not render it
    note: Note | None = None  # about the rendered request
