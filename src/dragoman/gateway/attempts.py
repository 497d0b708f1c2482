"""Asks one question of its targets until one of them answers: every credential, every retry, every fallback is here.

Until the client has seen something, a failure means another credential, another try, the next target or an HTTP error.
After that nothing is asked twice behind its back. How an answer is delivered is the delivery's affair.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec import Struct, field, structs

from dragoman.dialects.base import Dialect, PlainRequest
from dragoman.errors import (
    ClientFault,
    ConnectFailed,
    DragomanError,
    Fault,
    MalformedRequest,
    UpstreamFault,
)
from dragoman.filters.request import refusal_of
from dragoman.gateway.backend import Backend, Busy, Fleet, Refused
from dragoman.gateway.breaker import Resting, Ticket
from dragoman.gateway.exchange import Exchange
from dragoman.gateway.explain import Ring
from dragoman.gateway.explaining import Case, Explaining
from dragoman.gateway.holders import Holder, Holders
from dragoman.gateway.limits import beside_messages, json_memory
from dragoman.gateway.memory import Memory, is_stored
from dragoman.gateway.meters import Meters
from dragoman.gateway.observe import Journal, Record
from dragoman.gateway.offload.jobs import Bounds, ExplainJob, PlanJob, counting, refuse_doubled, rendered
from dragoman.gateway.offload.large import LargeRequest, Prepared
from dragoman.gateway.offload.process import Unavailable, WorkerFailed, WorkerProcess
from dragoman.gateway.outlet import Pulse
from dragoman.gateway.plan_cache import CachedPlan
from dragoman.gateway.policy import Patience, next_step, not_held, to_tell
from dragoman.http.client.client import Reply
from dragoman.model.conversation import Conversation, without_messages
from dragoman.model.filter import Note
from dragoman.translate import Plan
from dragoman.upstream.credentials import Credential, CredentialFault
from dragoman.wire.http import HttpRequest, HttpResponse

_SESSION_HEADERS = ("x-claude-code-session-id", "x-session-id", "session-id", "session_id", "x-session-affinity")

_FORGOTTEN = Conversation("", ())
_MOST_VIOLATIONS = 2  # answers of one request that may break their own dialect: a violation is retried once
_NOT_STARTED = frozenset({503, 529})  # statuses of a service that took no work


class Desk(Struct, frozen=True):
    """What every request uses."""

    journal: Journal
    meters: Meters
    ring: Ring
    patience: Patience
    explaining: Explaining = field(default_factory=Explaining)
    worker: WorkerProcess | None = None  # that reads large requests
    memory: Memory = field(default_factory=Memory)
    holders: Holders = field(default_factory=Holders)
    pulse: Pulse = field(default_factory=Pulse)


class Delivery(Protocol):
    """Brings an answer to the client, whole or as a stream."""

    @property
    def seen(self) -> bool:
        """Whether the client has seen anything."""

    @property
    def left(self) -> float:
        """Seconds until the client will see something in any case."""

    async def take(
        self, reply: Reply, made: Plan, begun: Callable[[], None], named: Callable[[str], None]
    ) -> Fault | None:
        """Deliver this answer; gives the fault that ended it after the client had seen something. Raises others.

        `begun` is called once it says something, `named` with its id, if it has one.
        """

    def drop(self) -> None:
        """Forget what is held of an answer that failed."""


class Question(Struct, frozen=True):
    """What is asked, and by whom. Of a plain or large one, `asked` is bare, and `read` tells all of it."""

    exchange: Exchange
    client: Dialect
    asked: Conversation
    plain: PlainRequest | None
    read: Callable[[], Conversation]
    large: LargeRequest | None = None


class Attempts:
    """One question on its way to an answer."""

    __slots__ = (
        "_bound",
        "_cached",
        "_client",
        "_desk",
        "_exchange",
        "_fleet",
        "_forgotten",
        "_large",
        "_made",
        "_plain",
        "_prepared",
        "_read",
        "_record",
        "_ticket",
        "_tries",
        "_violations",
        "asked",
    )

    def __init__(self, desk: Desk, fleet: Fleet, question: Question, record: Record) -> None:
        self._desk, self._fleet, self._record = desk, fleet, record
        self._exchange, self._client = question.exchange, question.client
        self.asked = question.asked  # without its messages once it is sent
        self._forgotten = False  # whether only the client's own bytes tell it
        self._plain, self._large = question.plain, question.large
        self._prepared: Prepared | None = None  # of a large request: what the worker process made of it
        bare = question.plain or question.large
        self._read: Callable[[], Conversation] | None = question.read if bare else None  # until it was
        self._cached: CachedPlan | None = None
        self._tries = 0  # beyond the first
        self._violations = 0  # answers that broke their own dialect
        self._made: Plan | None = None  # until the answer has begun; when it is sent, the question in it goes
        self._ticket: Ticket | None = None
        self._bound = False  # the request names what only one service stores

    async def through(self, delivery: Delivery) -> None:
        """Ask the targets in turn. Raises what the first of them said if none has answered."""
        told: DragomanError | None = None
        targets = self._fleet.config.resolve(self.asked.model)
        for target in targets:
            backend = self._fleet.backend(target.upstream.name)
            try:
                await self._ask(backend, target.model, delivery, last=target is targets[-1])
                return
            except DragomanError as error:
                told = to_tell(told, error)
                if delivery.seen or next_step(error) == "tell" or self._may_run(error) or self._is_bound(error):
                    break
                if self._violations >= _MOST_VIOLATIONS:
                    break
        if told is not None:
            raise told

    def _may_run(self, error: DragomanError) -> bool:
        """Whether a job that was asked for may have started all the same: then asking again would start another."""
        if not self.asked.is_job or isinstance(error, ConnectFailed | CredentialFault | ClientFault):
            return False
        return not (isinstance(error, Refused) and (error.fault.status < 500 or error.fault.status in _NOT_STARTED))

    def _is_bound(self, error: DragomanError) -> bool:
        """Whether the request names what the target that failed may store: then no other target gets it."""
        return self._bound and not (isinstance(error, ClientFault) or not_held(error))

    def _check_holder(self, backend: Backend, sent: Conversation) -> None:
        """Raise Unrepresentable for a request that continues an answer of another upstream, or of another client."""
        for held in sent.held:
            holder = self._desk.holders.find(held.answer)
            if holder is None:
                continue
            if holder.address != backend.base_url or holder.owner != self._exchange.owner:
                raise refusal_of(held)

    async def _ask(self, backend: Backend, model: str, delivery: Delivery, *, last: bool) -> None:
        """Ask one target, with each of its credentials if need be, and again if that may help."""
        self._made = await self.prepared(backend, model)
        self._bound = self._made.sent.is_bound
        self._check_holder(backend, self._made.sent)
        credentials = self._credentials(backend, model)
        backend.budget.request(time.monotonic())
        told: DragomanError | None = None
        while True:
            try:
                await self._attempt(backend, credentials[0], delivery)
                return
            except DragomanError as error:
                told = to_tell(told, error)
                if self._may_run(error):
                    raise told from None
                if not delivery.seen:
                    delivery.drop()
                    if next_step(error) == "key" and len(credentials) > 1:
                        del credentials[0]
                        continue
                wait = None if delivery.seen else self._wait(backend, error, last=last)
                if wait is None or wait >= delivery.left:
                    raise told from None
                await asyncio.sleep(wait)
                if delivery.seen:
                    raise told from None

    def _credentials(self, backend: Backend, model: str) -> list[Credential]:
        """Those of the upstream, in the order to try: first the one that made the response which is continued."""
        credentials = backend.credentials(self.session(), model)
        holders = [holder for held in self.asked.held if (holder := self._desk.holders.find(held.answer)) is not None]
        made_with = {holder.credential for holder in holders if holder.upstream == backend.name}
        return sorted(credentials, key=lambda each: each.name not in made_with) if made_with else credentials

    def _wait(self, backend: Backend, error: DragomanError, *, last: bool) -> float | None:
        """How long before the same is asked again; None if it is not."""
        step, patience = next_step(error), self._desk.patience
        if error.fault.violation and (not last or self._violations >= _MOST_VIOLATIONS):
            return None  # an upstream that broke its dialect may do so every time
        resting = isinstance(error, Resting)
        # There is no other credential. One who asked for a pause is waited for, if there is nobody else either.
        if (error.hinted and last) if isinstance(error, Resting) else error.fault.kind == "rate_limit":
            step = "again"
        if step != "again" or self._tries >= patience.retries:
            return None
        wait = patience.wait(error, self._tries)
        if wait is None or not (resting or backend.budget.allows(time.monotonic())):
            return None
        self._tries += 1
        return wait

    async def _attempt(self, backend: Backend, credential: Credential, delivery: Delivery) -> None:
        gate, reply, inside = backend.gate, None, False
        ticket = self._ticket = backend.enter(credential, self._plan(backend).sent.model)
        self._record.attempts += 1
        try:
            if not gate.take():
                await gate.wait()
            inside = True
            try:
                reply = await backend.open(self._request(backend), credential, self._waiting().sent)
            finally:
                self._count_rendered(0)
            fault = await delivery.take(reply, self._waiting(), self._begun, self._named(backend, credential))
            if fault is None:
                backend.went_well(ticket)
            else:
                self._keep_stream(backend, reply, fault)
                backend.went_wrong(ticket, UpstreamFault("", fault=fault))
        except DragomanError as error:
            self._failed(backend, ticket, reply, error)
            raise
        finally:
            if reply is not None:
                reply.close()
            if inside:
                gate.leave()
            ticket.close()

    def _named(self, backend: Backend, credential: Credential) -> Callable[[str], None]:
        """What is called with the id of an answer that the upstream may hold: requests about it go there."""
        may_hold = self._client.stored is not None or bool(self.asked.held)
        if not may_hold or backend.dialect.codec.family != self._client.codec.family:
            return lambda _: None
        holder = Holder(self._exchange.owner, backend.name, backend.base_url, credential.name)
        return lambda answer_id: self._desk.holders.remember(answer_id, holder)

    def _failed(self, backend: Backend, ticket: Ticket, reply: Reply | None, error: DragomanError) -> None:
        if isinstance(error, Refused):
            self._keep(backend, error.response, error.fault)
        elif isinstance(error, UpstreamFault):
            self._keep_stream(backend, reply, error.fault)
        self._violations += error.fault.violation
        if not isinstance(error, ClientFault | Busy | WorkerFailed):
            backend.went_wrong(ticket, error)
            self._desk.meters.retry(backend.name, error.fault.kind)
            self._record.tried.append(f"{backend.name}: {error.fault.kind} {error.fault.status}")

    def _begun(self) -> None:
        """The answer says something, so nothing is asked again. A stream may last: the question is let go of, and only
        the client's own bytes are kept where `explain` may want to know what was asked.
        """
        if self._ticket is not None:
            self._ticket.accepted()
        self._made = self._read = self._cached = self._plain = self._prepared = None
        if self._large is not None:
            self._large.forget()
        self.asked, self._forgotten = _FORGOTTEN, True
        if not self._desk.ring.enabled:
            self._exchange.forget_body()

    # --- what is sent

    def _plan(self, backend: Backend) -> Plan:
        """The plan in force, made again if the question was let go of."""
        if self._made is None or self._forgotten:
            self._plain = None
            self._made = self.planned(backend, self._record.used_model)
        return self._made

    def _waiting(self) -> Plan:
        """As much of the plan as an answer is read with. It may take long to come, and a long question takes several
        times the room of the client's bytes, which tell it again if need be.
        """
        made = self._made
        assert made is not None  # it is what was sent
        if self._plain is None and self._prepared is None and not self._forgotten:
            made = self._made = structs.replace(
                made, asked=without_messages(made.asked), sent=without_messages(made.sent)
            )
            self._drop_decoded()
            self.asked, self._forgotten = without_messages(self.asked), True
        return made

    async def prepared(self, backend: Backend, model: str, *, counts: bool = False) -> Plan:
        """The question as this target can be asked it: a large one by the worker process.

        Raises MalformedRequest, Unrepresentable, WorkerFailed.
        """
        self._tell_target(backend, model)
        if self._large is not None:
            try:
                self._prepared = await self._large.prepare(
                    self._client, backend, model, self._desk.memory, counts=counts
                )
            except Unavailable:  # it cannot be handed over
                self._large = None
            else:
                self.asked = self._prepared.made.asked
                self._tell_plan(backend, self._prepared.made)
                return self._prepared.made
        return self.planned(backend, model)

    def _tell_target(self, backend: Backend, model: str) -> None:
        record = self._record
        record.upstream, record.upstream_dialect, record.used_model = backend.name, backend.dialect.name, model

    def _tell_plan(self, backend: Backend, made: Plan) -> None:
        self._record.notes, self._record.verbatim = list(made.notes), made.verbatim
        self._announce(backend)

    def planned(self, backend: Backend, model: str) -> Plan:
        """The question as this target can be asked it. Raises MalformedRequest, Unrepresentable."""
        self._tell_target(backend, model)
        plain = self._plain
        self._cached = None if plain is None else backend.plans.find(self._client, plain, model)
        if plain is not None and self._cached is not None:
            made = self._cached.plan(plain)
            self._desk.meters.plan_cache_hits[backend.name] += 1
        else:
            made = self._planned(backend, model)
        self._tell_plan(backend, made)
        return made

    def _planned(self, backend: Backend, model: str) -> Plan:
        if self._read is not None:
            self.asked, self._read = self._read(), None
        elif self._forgotten:
            call = self._client.binding.match(self._exchange.request)
            assert call is not None  # it was matched before
            self.asked, self._forgotten = self._client.codec.parse_request(call), False
            if (account := self._exchange.account) is not None:
                account.decoded(json_memory(self._exchange.request.body))
        try:
            made = self._desk.memory.plan(
                self._exchange.owner,
                self._client,
                backend.dialect,
                self.asked,
                model=model,
                settings=backend.upstream.settings,
            )
        except RecursionError:
            raise MalformedRequest("nested too deeply") from None
        refuse_doubled(self._exchange.request, backend.upstream.settings)
        return made

    def _announce(self, backend: Backend) -> None:
        told = str(len(self._record.notes))
        self._exchange.headers = (("dragoman-notes", told), ("dragoman-upstream", backend.name))

    def session(self) -> str:
        """What ties the requests of one conversation together, so that they share a credential and its caches."""
        told = {name: value for name, value in self._exchange.request.headers if name in _SESSION_HEADERS and value}
        return next(told[name] for name in _SESSION_HEADERS if name in told) if told else self.asked.user

    def _request(self, backend: Backend) -> HttpRequest:
        made, given = self._plan(backend), self._exchange.request
        if self._cached is not None:
            return self._cached.request(given.body)
        if self._prepared is not None:
            self._tell_note(backend, self._prepared.note)
            return backend.dressed(self._prepared.request())
        self._exchange.request = structs.replace(given)  # what was read of its body is not kept while it is answered
        request, note = rendered(made, given, self._fleet.config.server.max_body)
        if request.body is not given.body:
            self._count_rendered(len(request.body))
        self._tell_note(backend, note)
        request = backend.dressed(request)
        if self._plain is not None:
            backend.plans.keep(self._plain, made, given, request)
        return request

    def _tell_note(self, backend: Backend, note: Note | None) -> None:
        if note is not None and note not in self._record.notes:
            self._record.notes.append(note)
            self._announce(backend)

    def request_to_count(self, backend: Backend, made: Plan) -> HttpRequest:
        """The request that asks a target to count the tokens of a question that was `prepared` with `counts`."""
        return backend.dressed(counting(made)[0] if self._prepared is None else self._prepared.request())

    # --- what is counted

    def _count_rendered(self, size: int) -> None:
        if (account := self._exchange.account) is not None:
            account.rendered(size)

    def _drop_decoded(self) -> None:
        """The messages of the question are held no more, unless its answer is to be stored with them."""
        account, made = self._exchange.account, self._made
        if account is not None and made is not None and not is_stored(made):
            account.decoded(beside_messages(made.asked, made.sent))

    # --- what is kept of a refusal

    def _keep_stream(self, backend: Backend, reply: Reply | None, fault: Fault) -> None:
        """A refusal inside an answer that had begun well."""
        if reply is not None and reply.status:
            said = HttpResponse(reply.status, reply.headers, backend.dialect.codec.render_fault(fault))
            self._keep(backend, said, fault)

    def _keep(self, backend: Backend, response: HttpResponse, fault: Fault) -> None:
        """Have the refusal described, when the client has its answer. Of several, the last is kept."""
        desk, request = self._desk, self._exchange.request
        if not desk.ring.enabled:
            return
        told = (backend.own_headers(), response, fault, desk.journal.redactor.known())
        job = ExplainJob(self._job(backend), (self._exchange.id, self._client.name, backend.name), *told)
        worker = None if self._large is None else self._large.worker
        case = Case(job, self._client, request.body, desk.memory, self._exchange.owner, worker)
        self._record.afterwards = partial(desk.explaining.later, case, desk.ring)

    def _job(self, backend: Backend) -> PlanJob:
        model = self._record.used_model
        if self._large is not None:
            return self._large.job(backend, model, self._desk.memory)
        head, server = structs.replace(self._exchange.request, body=b""), self._fleet.config.server
        return PlanJob(head, Bounds.of(server), backend.dialect, model, backend.upstream.settings)
