"""What the stages of a request hand to one another.

    admission → routing → attempts → delivery

`RequestContext` is the request as all of them see it. `Prepared` is a request that is planned for one target and not
sent yet; `attempts.InFlight` is one that was sent and whose answer is awaited. No stage calls back into the one before.
"""

from __future__ import annotations

from msgspec import Struct, field

from dragoman.dialects.base import ApiRequest, Dialect
from dragoman.errors import DragomanError
from dragoman.gateway.access_log import AccessLog, Record
from dragoman.gateway.backend import Fleet
from dragoman.gateway.explain import Explaining, RefusalLog
from dragoman.gateway.limits import Account
from dragoman.gateway.memory import AnswerStore, Holders, Memory
from dragoman.gateway.metrics import Meters
from dragoman.gateway.policy import Patience
from dragoman.gateway.preparing import CachedPlan
from dragoman.gateway.response_buffer import KeepAlive
from dragoman.gateway.worker_process import WorkerProcess
from dragoman.http.exchange import Exchange
from dragoman.model.filter import Note
from dragoman.translate import Plan
from dragoman.wire.http import Headers, HttpRequest

JSON_BODY = ("content-type", "application/json")


class Services(Struct, frozen=True):
    """What every request uses."""

    log: AccessLog
    meters: Meters
    refusals: RefusalLog
    patience: Patience
    explaining: Explaining = field(default_factory=Explaining)
    worker: WorkerProcess | None = None  # that reads large requests
    memory: Memory = field(default_factory=Memory)
    holders: Holders = field(default_factory=Holders)
    keep_alive: KeepAlive = field(default_factory=KeepAlive)


class RequestContext(Struct, frozen=True):
    """One request that was let in and whose dialect is known."""

    services: Services
    fleet: Fleet
    exchange: Exchange[Account]
    account: Account  # of the exchange: what is held for the request
    client: Dialect
    call: ApiRequest  # without its body
    record: Record

    def send(self, headers: Headers, body: bytes) -> None:
        """Send a whole answer."""
        self.record.status = 200
        self.exchange.whole(200, headers, body)


class Prepared(Struct, frozen=True):
    """A request that is planned for one target. It is sent as a cached plan says, as the worker has rendered it, or as
    it is rendered when it is sent.
    """

    plan: Plan
    store: AnswerStore | None = None  # that keeps the answer
    cached: CachedPlan | None = None
    sent: HttpRequest | None = None  # as the worker has rendered it
    refusal: DragomanError | None = None  # why the worker could not
    note: Note | None = None  # about what is sent
