"""Attempts: ask the targets of a request in turn until one answers. Every credential, retry and fallback is here.

    Question ──prepare──> Prepared ──send──> InFlight ──Delivery.take──> the client

Until the client has seen something, a failure means another credential, another try, the next target or an HTTP error.
After that nothing is asked a second time. A request that was sent is held only as the client's own bytes, because a
decoded one takes several times their room and an answer may take long; for another try it is read again.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Protocol

from msgspec import Struct, structs

from dragoman.dialects.base import ApiRequest, RequestSummary, TypedRequest
from dragoman.errors import (
    ClientFault,
    DragomanError,
    Fault,
    MalformedRequest,
    UpstreamFault,
)
from dragoman.filters.request import server_state_error
from dragoman.gateway.backend import Backend
from dragoman.gateway.breaker import Permit
from dragoman.gateway.context import PreparedRequest, RequestContext
from dragoman.gateway.explain import ExplainJob, PendingReport
from dragoman.gateway.jobs import PlanJob
from dragoman.gateway.large_requests import LargeMatch, LargeRequest
from dragoman.gateway.limits import base_memory
from dragoman.gateway.planning import parse_within_limits, refuse_duplicate_keys, render_planned, token_count_request
from dragoman.gateway.response_store import PickledConversation, ResponseHolder, ResponseSaver, item_references
from dragoman.gateway.retry_policy import REQUEST, Refused, Retries, is_not_held, pick_error, retry_action
from dragoman.gateway.routing import MatchedRequest
from dragoman.gateway.worker_process import WorkerFailed, WorkerUnavailable
from dragoman.http.client.client import ClientResponse, PoolExhausted
from dragoman.model.conversation import Conversation, without_messages
from dragoman.model.filter import Note
from dragoman.translate import Plan, plan
from dragoman.upstream.credentials import Credential, with_headers
from dragoman.wire.http import HttpRequest, HttpResponse

_SESSION_HEADERS = ("x-claude-code-session-id", "x-session-id", "session-id", "session_id", "x-session-affinity")
_FORGOTTEN = Conversation("", ())
_WORTH_COUNTING = 16 * 1024  # bytes of a decoded request: of a smaller one it does not matter what is still held
_PLAIN_NODES = 16  # JSON values of a message of a plain request, with a share in the rest: at most


class ClientRequest:
    """What a client asks, and as much of it as is in memory.

    `asked` has no messages. A plain request is read only where no cached plan fits, and a large one by the worker
    process; any other is read at once.
    """

    __slots__ = ("_call", "_conversation", "_exact", "_plain", "context", "large", "parameters", "prepared")

    def __init__(self, context: RequestContext, matched: MatchedRequest) -> None:
        """Raises MalformedRequest, TooLarge."""
        self.context = context
        self._call: ApiRequest | None = matched.call  # with the body, until that is read
        self._exact: TypedRequest | None = matched.exact
        self._conversation: Conversation | None = None  # with its messages, until it is sent
        self.prepared: PreparedRequest | None = None  # for the target that is asked, until it is sent
        self.large = matched.large if isinstance(matched, LargeMatch) else None
        plain, limits = matched.plain, context.upstreams.config.server.limits
        fits = plain is not None and plain.message_count <= min(limits.messages, limits.nodes // _PLAIN_NODES)
        self._plain: RequestSummary | None = plain if fits else None
        if self.large is not None:
            self.parameters = self.large.parameters()
        elif self._plain is not None:
            self.parameters = self._plain.asked
        else:
            self.parameters = without_messages(self.read())
            if self.parameters.previous_id is not None:
                self._continue_large()

    def read(self) -> Conversation:
        """Everything that is asked. Raises MalformedRequest, TooLarge, Overloaded."""
        if self._conversation is None:
            context, call = self.context, self._call
            if call is None or call.body is None:
                call = context.client.binding.match(context.exchange.request)
                assert call is not None  # it was matched before
            size = len(context.exchange.request.body)
            self._conversation, shape = parse_within_limits(
                context.client, call, size, context.upstreams.bounds, self._exact
            )
            self._call = self._exact = None
            context.account.hold("decoded", shape.memory)
        return self._conversation

    def _continue_large(self) -> None:
        """Let the worker process plan a request that continues a large conversation."""
        context, server = self.context, self.context.upstreams.config.server
        services = context.services
        if services.worker is None or not server.offload:
            return
        if isinstance(services.response_store.earlier(context.exchange.owner, self.parameters), PickledConversation):
            self.large = LargeRequest(services.worker, context.exchange, server)
            self.large.set_parameters(self.parameters, item_references(context.client, self.read()))
            self._conversation = None

    def session(self) -> str:
        """What ties the requests of one conversation together, so that they share a credential and its caches."""
        headers = self.context.exchange.request.headers
        given = {name: value for name, value in headers if name in _SESSION_HEADERS and value}
        return next(given[name] for name in _SESSION_HEADERS if name in given) if given else self.parameters.user

    async def prepare(self, backend: Backend, model: str, *, counts: bool = False) -> Plan:
        """Plan the request for a target. Raises MalformedRequest, Unrepresentable, WorkerFailed, Overloaded."""
        context, record, prepared = self.context, self.context.record, None
        record.upstream, record.upstream_dialect, record.used_model = backend.name, backend.dialect.name, model
        if self.large is not None:
            memory = context.services.response_store
            try:
                prepared = await self.large.prepare(context.client, backend, model, memory, counts=counts)
                self.parameters = prepared.plan.original
            except WorkerUnavailable:  # it cannot be handed over
                self.large = None
        self.prepared = prepared = prepared or self.plan(backend, model)
        record.notes, record.verbatim = list(prepared.plan.notes), prepared.plan.verbatim
        context.exchange.headers = (("dragoman-notes", str(len(record.notes))), ("dragoman-upstream", backend.name))
        return prepared.plan

    def plan(self, backend: Backend, model: str) -> PreparedRequest:
        """Plan the request in this process. Raises as `prepare` does."""
        context, plain = self.context, self._plain
        client, settings = context.client, backend.upstream.settings
        if plain is not None and (cached := backend.plans.find(client, plain, model)) is not None:
            context.services.metrics.plan_cache_hits[backend.name] += 1
            return PreparedRequest(cached.plan(plain), cached=cached)
        conversation = self.read()
        store: ResponseSaver | None = None
        try:
            if client.continuation is None and not conversation.is_job:
                made = plan(client, backend.dialect, conversation, model=model, settings=settings)
            else:
                made, store = context.services.response_store.plan(
                    context.exchange.owner, client, backend.dialect, conversation, model=model, settings=settings
                )
        except RecursionError:
            raise MalformedRequest("nested too deeply") from None
        if settings.losses == "refuse":
            refuse_duplicate_keys(context.exchange.request)
        return PreparedRequest(made, store)

    def _add_note(self, note: Note, backend: Backend) -> None:
        notes = self.context.record.notes
        if note not in notes:
            notes.append(note)
        self.context.exchange.headers = (("dragoman-notes", str(len(notes))), ("dragoman-upstream", backend.name))

    def request(self, backend: Backend) -> HttpRequest:
        """What is sent. Raises Unrepresentable, TooLarge."""
        context, prepared = self.context, self.prepared
        assert prepared is not None
        given = context.exchange.request
        if prepared.cached is not None:
            return prepared.cached.request(given.body)
        if prepared.request is not None:
            if prepared.note is not None:
                self._add_note(prepared.note, backend)
            return with_headers(prepared.request, backend.own_headers())
        if prepared.refusal is not None:
            raise prepared.refusal
        context.exchange.request = structs.replace(given)  # what was read of its body is not kept while it is answered
        request, note = render_planned(prepared.plan, given, context.upstreams.config.server.max_body)
        if request.body is not given.body:
            context.account.hold("rendered", len(request.body))
        if note is not None:
            self._add_note(note, backend)
        request = with_headers(request, backend.own_headers())
        if self._plain is not None:
            backend.plans.keep(self._plain, prepared.plan, given, request)
        return request

    def request_to_count(self, backend: Backend) -> HttpRequest:
        """The request that asks a target to count the tokens of a question that was prepared with `counts`."""
        assert self.prepared is not None
        if self.large:
            return self.request(backend)
        return with_headers(token_count_request(self.prepared.plan)[0], backend.own_headers())

    def mark_sent(self, ticket: Permit, backend: Backend, credential: Credential) -> InFlight:
        """The request is sent: its messages are held no more, unless it is small or its answer is kept with them."""
        context, prepared, holder = self.context, self.prepared, None
        assert prepared is not None
        may_hold = context.client.stored is not None or self.parameters.server_state
        if may_hold and backend.dialect.codec.family == context.client.codec.family:
            holder = ResponseHolder(context.exchange.owner, backend.name, backend.base_url, credential.name)
        made = prepared.plan
        if self._plain is None and self.large is None:
            made = structs.replace(
                made, original=without_messages(made.original), translated=without_messages(made.translated)
            )
            self.prepared = self._conversation = None
            if prepared.saver is None and context.account.bytes_by_kind["decoded"] > _WORTH_COUNTING:
                context.account.hold("decoded", base_memory(made.original, made.translated))
        return InFlight(self, ticket, holder, made, prepared.saver)


class InFlight(Struct):
    """A request that was sent, while its answer is awaited."""

    client_request: ClientRequest
    permit: Permit
    holder: ResponseHolder | None  # the upstream, if requests about the answer go there
    plan: Plan | None  # that the answer is read with, until it has begun
    saver: ResponseSaver | None  # that keeps the answer

    def mark_started(self) -> None:
        """The answer says something, so nothing is asked again: only what `explain` may need is held."""
        if self.permit.probes:
            self.permit.accepted()
        self.plan = self.saver = None
        question, context = self.client_request, self.client_request.context
        question.prepared = question._conversation = question._plain = None
        question.parameters = _FORGOTTEN
        if question.large is not None:
            question.large.forget()
        if not context.services.refusals.enabled:
            context.exchange.request = structs.replace(context.exchange.request, body=b"")
            context.account.hold("body", 0)

    def remember_id(self, answer_id: str) -> None:
        """The answer has this id: requests about it go to the upstream that holds it."""
        if self.holder is not None:
            self.client_request.context.services.holders.remember(answer_id, self.holder)


class Delivery(Protocol):
    """Brings an answer to the client, whole or as a stream."""

    @property
    def has_started(self) -> bool:
        """Whether the client has seen anything."""

    @property
    def seconds_to_ping(self) -> float:
        """Seconds until the client will see something in any case."""

    async def deliver(self, reply: ClientResponse, flight: InFlight) -> Fault | None:
        """Deliver this answer; gives the fault that ended it after the client had seen something. Raises others."""

    def discard(self) -> None:
        """Forget what is held of an answer that failed."""


async def run_attempts(context: RequestContext, question: ClientRequest, delivery: Delivery) -> None:
    """Ask the targets in turn. Raises what the first of them answered if none has served the request."""
    failure: DragomanError | None = None
    retries = Retries(context.services.retry_settings, question.parameters.is_job)
    targets = context.upstreams.config.routes.resolve(question.parameters.model)
    for target in targets:
        backend, is_bound = context.upstreams.by_name[target.upstream.name], False
        try:
            sent = (await question.prepare(backend, target.model)).translated
            is_bound = sent.needs_same_service
            if sent.server_state:
                _check_holder(context, backend, sent)
            del sent  # it is not held while the request is answered
            await _ask_target(context, question, delivery, backend, target.model, retries, last=target is targets[-1])
            return
        except DragomanError as error:
            failure = pick_error(failure, error)
            # A request that names what this target may store goes to no other one.
            stays = is_bound and not (isinstance(error, ClientFault) or is_not_held(error))
            if delivery.has_started or stays or retry_action(error) == "tell" or not retries.may_ask_another(error):
                break
    if failure is not None:
        raise failure


async def _ask_target(
    context: RequestContext,
    question: ClientRequest,
    delivery: Delivery,
    backend: Backend,
    model: str,
    retries: Retries,
    *,
    last: bool,
) -> None:
    """Ask one target, with each of its credentials if need be, and again if that may help."""
    credentials = list(backend.all_credentials)
    if len(credentials) > 1:
        credentials = backend.credentials(question.session(), model)
        if question.parameters.server_state:
            _holders_first(context, question, backend, credentials)
    backend.budget.recent.add(time.monotonic(), REQUEST)
    failure: DragomanError | None = None
    while True:
        try:
            await _attempt(context, question, delivery, backend, model, credentials[0])
            return
        except DragomanError as error:
            failure = pick_error(failure, error)
            retries.violations += error.fault.is_violation
            if delivery.has_started or retries.may_have_started(error):
                raise failure from None
            delivery.discard()
            if retry_action(error) == "key" and len(credentials) > 1:
                del credentials[0]
                continue
            wait = retries.wait(error, backend.budget, last=last)
            if wait is None or wait >= delivery.seconds_to_ping:
                raise failure from None
            await asyncio.sleep(wait)
            if delivery.has_started:
                raise failure from None


async def _attempt(
    context: RequestContext,
    question: ClientRequest,
    delivery: Delivery,
    backend: Backend,
    model: str,
    credential: Credential,
) -> None:
    """Send the request once and deliver the answer to it."""
    question.prepared = question.prepared or question.plan(backend, model)
    model = question.prepared.plan.translated.model
    ticket = backend.breaker.enter(backend.name, credential.name, model, guarded=backend.upstream.limits.breaker)
    context.record.attempts += 1
    reply, is_inside = None, False
    try:
        if not backend.slots.take():
            await backend.slots.wait()
        is_inside = True
        request = question.request(backend)
        flight = question.mark_sent(ticket, backend, credential)
        assert flight.plan is not None
        try:
            reply = await backend.open(request, credential, flight.plan.translated)
        finally:
            del request
            context.account.hold("rendered", 0)
        if (fault := await delivery.deliver(reply, flight)) is None:
            ticket.succeeded()
            backend.failures, backend.last_ok_at = 0, time.time()
        else:
            failed = UpstreamFault("", fault=fault)
            _explain(context, question, backend, reply, failed)
            backend.record_failure(ticket, failed)
    except DragomanError as error:
        _explain(context, question, backend, reply, error)
        if not isinstance(error, ClientFault | PoolExhausted | WorkerFailed):
            backend.record_failure(ticket, error)
            _count_failure(context, backend, error.fault)
        raise
    finally:
        if reply is not None:
            reply.close()
        if is_inside:
            backend.slots.release()
        ticket.close()


def _count_failure(context: RequestContext, backend: Backend, fault: Fault) -> None:
    context.services.metrics.retries[backend.name, fault.kind] += 1
    context.record.failed_attempts.append(f"{backend.name}: {fault.kind} {fault.status}")


def _check_holder(context: RequestContext, backend: Backend, sent: Conversation) -> None:
    """Raise Unrepresentable for a request that continues an answer of another upstream, or of another client."""
    for held in sent.server_state:
        holder = context.services.holders.find(held.reply_id)
        if holder is None:
            continue
        if holder.address != backend.base_url or holder.owner != context.exchange.owner:
            raise server_state_error(held)


def _holders_first(
    context: RequestContext, question: ClientRequest, backend: Backend, credentials: list[Credential]
) -> None:
    """Put the credential first that made the response which is continued."""
    holders = [context.services.holders.find(held.reply_id) for held in question.parameters.server_state]
    made_with = {holder.credential for holder in holders if holder is not None and holder.upstream == backend.name}
    credentials.sort(key=lambda each: each.name not in made_with)


def _explain(
    context: RequestContext,
    question: ClientRequest,
    backend: Backend,
    reply: ClientResponse | None,
    error: DragomanError,
) -> None:
    """Have a refusal described, when the client has its answer. Of several, the last is kept."""
    services, exchange = context.services, context.exchange
    if not services.refusals.enabled or not isinstance(error, UpstreamFault):
        return
    if isinstance(error, Refused):
        response = error.response
    elif reply is not None and reply.status:  # a refusal inside an answer that had begun well
        response = HttpResponse(reply.status, reply.headers, backend.dialect.codec.render_fault(error.fault))
    else:
        return
    model, large = context.record.used_model, question.large
    if large is not None:
        job = large.job(backend, model, services.response_store)
    else:
        head = structs.replace(exchange.request, body=b"")
        job = PlanJob(head, context.upstreams.bounds, backend.dialect, model, backend.upstream.settings)
    way, secrets = (exchange.id, context.client.name, backend.name), services.log.redactor.known()
    explained = ExplainJob(job, way, backend.own_headers(), response, error.fault, secrets)
    worker = None if large is None else large.worker
    case = PendingReport(
        explained, context.client, exchange.request.body, services.response_store, exchange.owner, worker
    )
    context.record.on_finished = partial(services.report_queue.add, case, services.refusals)
