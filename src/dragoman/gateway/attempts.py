"""Attempts: send a request to its targets in turn until one responds. All credential choice, retries and fallbacks.

    ClientRequest ──prepare──> PreparedRequest ──mark_sent──> InFlight ──Delivery.deliver──> the client

Until the client has received a part of the response, a failure leads to another credential, a retry, the next target or
an HTTP error. After that the request is not sent again. While a response is awaited, the request is kept only as the
client's bytes, because a decoded one takes several times the memory and a response may take long. A retry parses it
again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
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
from dragoman.gateway.backend import Backend, find_session
from dragoman.gateway.breaker import Permit
from dragoman.gateway.context import PreparedRequest, RequestContext
from dragoman.gateway.earlier_responses import check_holder, find_elsewhere, prefer_holders
from dragoman.gateway.explain import SignedRequest
from dragoman.gateway.failed_attempts import mark_failed, name_upstream
from dragoman.gateway.job_process import JobProcessFailed, JobProcessUnavailable
from dragoman.gateway.large_requests import LargeMatch, LargeRequest
from dragoman.gateway.limits import base_memory
from dragoman.gateway.planning import parse_within_limits, refuse_duplicate_keys, render_planned, token_count_request
from dragoman.gateway.records import header_text
from dragoman.gateway.refusal_reports import schedule_report
from dragoman.gateway.response_store import (
    NOTHING_FOUND,
    FoundResponses,
    PickledConversation,
    ResponseHolder,
    ResponseSaver,
    item_references,
)
from dragoman.gateway.retry_policy import (
    REQUEST,
    Retries,
    is_unknown_there,
    pick_error,
    retry_action,
)
from dragoman.gateway.routing import MatchedRequest
from dragoman.gateway.targets import Target
from dragoman.gateway.token_estimate import approximate_text, estimate_tokens
from dragoman.http.client.client import ClientResponse, PoolExhausted
from dragoman.model.conversation import Conversation, without_messages
from dragoman.model.filter import Note
from dragoman.translate import Plan, plan
from dragoman.upstream.credentials import Credential, with_headers
from dragoman.wire.http import HttpRequest

_EMPTY = Conversation("", ())
_MIN_COUNTED = 16 * 1024  # bytes; the account of a smaller decoded request is not updated when it is released
_BYTES_PER_TOKEN = 4
_PLAIN_NODES = 16  # the most JSON values per message of a plain request, its share of the other fields included


class ClientRequest:
    """The request of a client, and the parts of it that are in memory.

    `parameters` is the conversation without its messages. A plain request is parsed only if no cached plan fits, and a
    large one by the job process; any other is parsed at once.
    """

    __slots__ = (
        "_call",
        "_conversation",
        "_found",
        "_plain",
        "_typed",
        "context",
        "large",
        "parameters",
        "prepared",
        "session",
        "signed",
    )
    can_be_explained = True  # by a report about its refusal

    def __init__(self, context: RequestContext, matched: MatchedRequest) -> None:
        """Raises MalformedRequest, TooLarge."""
        self.context = context
        self._call: ApiRequest | None = matched.call  # with the body, until that is parsed
        self._typed: TypedRequest | None = matched.typed
        self._conversation: Conversation | None = None  # with its messages, until it is sent
        self.prepared: PreparedRequest | None = None  # for the current target, until it is sent
        self.signed: SignedRequest | None = None  # the last request that was sent, for `explain`
        self._found: FoundResponses | None = None  # stored by other processes; None: they were not asked
        self.large = matched.large if isinstance(matched, LargeMatch) else None
        plain, limits = matched.plain, context.upstreams.config.server.limits
        fits = plain is not None and plain.message_count <= min(limits.messages, limits.nodes // _PLAIN_NODES)
        self._plain: RequestSummary | None = plain if fits else None
        if self.large is not None:
            self.parameters = self.large.parameters()
        elif self._plain is not None:
            self.parameters = self._plain.conversation
        else:
            self.parameters = without_messages(self.read())
        self.session = find_session(context.exchange.request, self.parameters, context.exchange.owner)
        if self.session.key:
            self._plain = None  # a cached plan has no key of a session
            if self.large is not None:
                self.large.session = self.session.key

    @property
    def found(self) -> FoundResponses:
        """The earlier responses that the request refers to, as far as other processes store them."""
        return self._found or NOTHING_FOUND

    def read(self) -> Conversation:
        """Return the whole conversation, parsed if needed. Raises MalformedRequest, TooLarge, Overloaded."""
        if self._conversation is None:
            context, call = self.context, self._call
            if call is None or call.body is None:
                call = context.client.binding.match(context.exchange.request)
                assert call is not None  # it was matched before
            size = len(context.exchange.request.body)
            self._conversation, shape = parse_within_limits(
                context.client, call, size, context.upstreams.bounds, self._typed
            )
            self._call = self._typed = None
            context.memory.hold("decoded", shape.memory)
        return self._conversation

    async def _find_earlier(self) -> None:
        """Ask other processes for what the request refers to; let the job process plan a large conversation."""
        context, server = self.context, self.context.upstreams.config.server
        services, is_large = context.services, self.large is not None
        items = self.large.items if self.large is not None else item_references(context.client, self.read())
        self._found = await find_elsewhere(context, self.parameters, items)
        if is_large or services.job_process is None or not server.offload:
            return
        earlier = services.response_store.earlier(context.exchange.owner, self.parameters, self._found)
        if isinstance(earlier, PickledConversation):
            self.large = LargeRequest(services.job_process, context.exchange, server)
            self.large.set_parameters(self.parameters, items)
            self.large.session = self.session.key
            self._conversation = None

    async def targets(self) -> Sequence[Target]:
        """Return the targets of the request, first choice first. Raises UnknownModel, MalformedRequest."""
        catalogue, model = self.context.upstreams.catalogue, self.parameters.model
        return catalogue.cached.get(model) or await catalogue.find(model)

    def estimate_input(self) -> int:
        """Estimate the tokens of the request by the length of its texts; of one that is not parsed, by its own."""
        if self.large is not None:
            return self.large.tokens
        if self._conversation is None:
            return len(self.context.exchange.request.body) // _BYTES_PER_TOKEN
        return estimate_tokens(self._conversation, approximate_text)

    async def prepare(self, backend: Backend, model: str, *, counts: bool = False) -> Plan:
        """Plan the request for a target. Raises MalformedRequest, Unrepresentable, JobProcessFailed, Overloaded."""
        context, record, prepared = self.context, self.context.record, None
        record.upstream, record.upstream_dialect, record.used_model = backend.name, backend.dialect.name, model
        if self.parameters.server_state and self._found is None:
            await self._find_earlier()
        if self.large is not None:
            store = context.services.response_store
            try:
                prepared = await self.large.prepare(context.client, backend, model, store, self.found, counts=counts)
                self.parameters = prepared.plan.original
            except JobProcessUnavailable:  # This process plans the request.
                self.large = None
        self.prepared = prepared = prepared or self.plan(backend, model)
        record.notes, record.verbatim = list(prepared.plan.notes), prepared.plan.verbatim
        record.used_model = prepared.plan.translated.model
        self._set_headers(backend)
        return prepared.plan

    def plan(self, backend: Backend, model: str) -> PreparedRequest:
        """Plan the request in this process. Raises as `prepare` does."""
        context, plain = self.context, self._plain
        client, settings = context.client, backend.upstream.settings
        if plain is not None and (cached := backend.plans.find(client, plain, model)) is not None:
            context.services.metrics.plan_cache_hits[backend.name] += 1
            return PreparedRequest(cached.plan(plain), cached=cached)
        conversation = self.read()
        if self.session.key:
            conversation = structs.replace(conversation, session=self.session.key)
        saver: ResponseSaver | None = None
        try:
            if client.continuation is None and not conversation.is_job:
                planned = plan(client, backend.dialect, conversation, model=model, settings=settings)
            else:
                planned, saver = context.services.response_store.plan(
                    context.exchange.owner,
                    client,
                    backend.dialect,
                    conversation,
                    model=model,
                    settings=settings,
                    found=self.found,
                )
        except RecursionError:
            raise MalformedRequest("the request is nested too deeply") from None
        if settings.losses == "refuse":
            refuse_duplicate_keys(context.exchange.request)
        return PreparedRequest(planned, saver)

    def _add_note(self, note: Note, backend: Backend) -> None:
        notes = self.context.record.notes
        if note not in notes:
            notes.append(note)
        self._set_headers(backend)

    def _set_headers(self, backend: Backend) -> None:
        """Set the headers of the response that say how the request was answered."""
        record = self.context.record
        self.context.exchange.headers = (
            ("dragoman-notes", str(len(record.notes))),
            ("dragoman-upstream", backend.name),
            ("dragoman-model", header_text(record.used_model)),
            *record.limit_headers,
        )

    def request(self, backend: Backend) -> HttpRequest:
        """Return the HTTP request to send. Raises Unrepresentable, TooLarge."""
        context, prepared = self.context, self.prepared
        assert prepared is not None
        received = context.exchange.request
        if prepared.cached is not None:
            return prepared.cached.request(received.body)
        if prepared.request is not None:
            if prepared.note is not None:
                self._add_note(prepared.note, backend)
            return with_headers(prepared.request, backend.own_headers())
        if prepared.refusal is not None:
            raise prepared.refusal
        context.exchange.request = structs.replace(received)  # The copy does not keep the decoded body.
        request, note = render_planned(prepared.plan, received, context.upstreams.config.server.max_body)
        if request.body is not received.body:
            context.memory.hold("rendered", len(request.body))
        if note is not None:
            self._add_note(note, backend)
        request = with_headers(request, backend.own_headers())
        if self._plain is not None:
            backend.plans.keep(self._plain, prepared.plan, received, request)
        return request

    def request_to_count(self, backend: Backend) -> HttpRequest:
        """Return the HTTP request to count tokens, of a request that was prepared with `counts`."""
        assert self.prepared is not None
        if self.large:
            return self.request(backend)
        return with_headers(token_count_request(self.prepared.plan)[0], backend.own_headers())

    def mark_signed(self, base_url: str, rendered: HttpRequest, signed: HttpRequest) -> None:
        """Remember the head of a request as it is sent, and what the credential added to its body."""
        if self.context.record.capture is not None:
            self.context.record.capture.note_request(self.context.record, base_url, signed)
        if self.context.services.refusals.enabled:
            added = len(signed.body) - len(rendered.body)
            prefix = signed.body[: added + 1] if added > 0 else b""
            self.signed = SignedRequest(base_url, signed.method, signed.path, signed.query, signed.headers, prefix)

    def mark_sent(self, permit: Permit, backend: Backend, credential: Credential) -> InFlight:
        """Record that the request is sent, and release its messages unless it is small or is stored with its reply."""
        context, prepared, holder = self.context, self.prepared, None
        assert prepared is not None
        may_hold = context.client.stored is not None or self.parameters.server_state
        if may_hold and backend.dialect.codec.family == context.client.codec.family:
            holder = ResponseHolder(context.exchange.owner, backend.name, backend.base_url, credential.name)
        planned = prepared.plan
        if self._plain is None and self.large is None:
            planned = structs.replace(
                planned, original=without_messages(planned.original), translated=without_messages(planned.translated)
            )
            self.prepared = self._conversation = None
            if prepared.saver is None and context.memory.bytes_by_kind["decoded"] > _MIN_COUNTED:
                context.memory.hold("decoded", base_memory(planned.original, planned.translated))
        return InFlight(self, permit, holder, planned, prepared.saver)


class InFlight(Struct):
    """A request that was sent and whose response is awaited."""

    client_request: ClientRequest
    permit: Permit
    holder: ResponseHolder | None  # the upstream, if it stores the response
    plan: Plan | None  # translates the response; None when the response has begun
    saver: ResponseSaver | None  # stores the response

    def mark_started(self) -> None:
        """Record that the response has content, so there is no retry: release all but what `explain` may need."""
        if self.permit.probes:
            self.permit.report_accepted()
        self.plan = self.saver = None
        client_request, context = self.client_request, self.client_request.context
        client_request.prepared = client_request._conversation = client_request._plain = None
        client_request.parameters = _EMPTY
        if client_request._found is not None:
            context.memory.free(client_request._found.size)
            client_request._found = None
        if client_request.large is not None:
            client_request.large.forget()
        if not context.services.refusals.enabled:
            context.exchange.request = structs.replace(context.exchange.request, body=b"")
            context.memory.hold("body", 0)

    def remember_id(self, response_id: str) -> None:
        """Remember the id of the response, so that requests about it go to the upstream that stores it."""
        if self.holder is not None:
            self.client_request.context.services.holders.remember(response_id, self.holder)


class Delivery(Protocol):
    """Sends a response to the client, whole or as a stream."""

    @property
    def has_started(self) -> bool:
        """Whether the client has received anything."""

    @property
    def seconds_to_ping(self) -> float:
        """Seconds until the client gets a keep-alive, which starts the response."""

    async def deliver(self, response: ClientResponse, flight: InFlight) -> Fault | None:
        """Deliver this response. Return the fault that ended it after the client had received a part of it.

        Raises DragomanError if it failed before.
        """

    def discard(self) -> None:
        """Release the buffered part of a response that failed."""


async def run_attempts(context: RequestContext, client_request: ClientRequest, delivery: Delivery) -> None:
    """Send the request to its targets in turn. Raises the error to report to the client if all of them failed."""
    failure: DragomanError | None = None
    failed_upstream = ""  # that the failure is of
    retries = Retries(context.services.retry_settings, client_request.parameters.is_job)
    catalogue, targets = context.upstreams.catalogue, await client_request.targets()
    if context.record.capture is not None:
        context.record.capture.session = client_request.session.affinity
    if (accounting := context.services.accounting) is not None:
        targets = await accounting.reserve(context, client_request, targets)
    if len(targets) > 1 and (session := client_request.session.cache):
        holders, model = context.services.cache_holders, client_request.parameters.model
        targets = holders.order_targets(session, model, targets, context.upstreams.by_name)
    for target in targets:
        backend, is_bound, is_tried = context.upstreams.by_name[target.upstream.name], False, False
        try:
            translated = (await client_request.prepare(backend, target.model)).translated
            is_bound = translated.needs_same_service
            if translated.server_state:
                check_holder(context, backend, translated, client_request.found)
            del translated  # releases the messages
            is_tried = True
            await _try_target(
                context, client_request, delivery, backend, target.model, retries, last=target is targets[-1]
            )
            return
        except DragomanError as error:
            if not is_tried and len(targets) > 1:
                mark_failed(context, backend, "", error)
            if (picked := pick_error(failure, error)) is not failure:
                failure, failed_upstream = picked, backend.name
            if error.fault.kind == "not_found":
                catalogue.drop_list(target)
            # A request that refers to data which this target may store goes to no other target.
            stays = is_bound and not (isinstance(error, ClientFault) or is_unknown_there(error))
            if delivery.has_started or stays or retry_action(error) == "fail" or not retries.may_try_another(error):
                break
    if failure is not None:
        if failed_upstream != context.record.upstream:
            name_upstream(context, failed_upstream, failure)
        raise failure


async def _try_target(
    context: RequestContext,
    client_request: ClientRequest,
    delivery: Delivery,
    backend: Backend,
    model: str,
    retries: Retries,
    *,
    last: bool,
) -> None:
    """Send the request to one target: with another credential after some errors, and again after others."""
    credentials = list(backend.all_credentials)
    if len(credentials) > 1:
        session, cache_holders = client_request.session, context.services.cache_holders
        credentials = backend.credentials(session.affinity, model)
        credentials = cache_holders.order_credentials(session.cache, context.record.model, backend, credentials, model)
        if client_request.parameters.server_state:
            prefer_holders(context, client_request.parameters, backend, credentials, client_request.found)
    backend.budget.recent.add(time.monotonic(), REQUEST)
    failure: DragomanError | None = None
    while True:
        try:
            await _attempt(context, client_request, delivery, backend, model, credentials[0])
            return
        except DragomanError as error:
            mark_failed(context, backend, credentials[0].name, error)
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
    client_request: ClientRequest,
    delivery: Delivery,
    backend: Backend,
    model: str,
    credential: Credential,
) -> None:
    """Send the request once and deliver its response."""
    client_request.prepared = client_request.prepared or client_request.plan(backend, model)
    model = client_request.prepared.plan.translated.model
    permit = backend.breaker.enter(backend.name, credential.name, model, guarded=backend.upstream.limits.breaker)
    record = context.record
    record.attempts, record.credential = record.attempts + 1, credential.name
    response, is_inside = None, False
    try:
        if not backend.slots.take():
            await backend.slots.wait()
        is_inside = True
        response, flight = await _send(client_request, backend, permit, credential)
        record.response = response
        if (fault := await delivery.deliver(response, flight)) is None:
            permit.report_succeeded()
            backend.failures, backend.last_ok_at = 0, time.time()
            if session := client_request.session.cache:
                context.services.cache_holders.remember(session, record.model, backend, credential.name, record.usage)
        else:
            failed = UpstreamFault("", fault=fault)
            schedule_report(context, client_request, backend, response, failed)
            backend.record_failure(permit, failed)
    except DragomanError as error:
        schedule_report(context, client_request, backend, response, error)
        if not isinstance(error, ClientFault | PoolExhausted | JobProcessFailed):
            backend.record_failure(permit, error)
            context.services.metrics.retries[backend.name, error.fault.kind] += 1
        raise
    finally:
        if response is not None:
            record.reads += response.reads
            response.close()
        record.response = record.progress = None
        if is_inside:
            backend.slots.release()
        permit.close()


async def _send(
    client_request: ClientRequest, backend: Backend, permit: Permit, credential: Credential
) -> tuple[ClientResponse, InFlight]:
    """Send the request, and return the response when its head has arrived."""
    request = client_request.request(backend)
    flight = client_request.mark_sent(permit, backend, credential)
    assert flight.plan is not None
    try:
        sent, context = flight.plan.translated, client_request.context
        is_watched = context.services.refusals.enabled or context.record.capture is not None
        response = await backend.open(request, credential, sent, client_request.mark_signed if is_watched else None)
        if (capture := context.record.capture) is not None:
            capture.note_response(response.status, response.headers)
        return response, flight
    finally:
        del request
        client_request.context.memory.hold("rendered", 0)
