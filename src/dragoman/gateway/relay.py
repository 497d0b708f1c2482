"""Relay requests to endpoints other than chat: the upstream has the same endpoint, and nothing is translated.

Keys, limits, routing, attempts, the ledger and the log are those of chat: a relayed request is a `ClientRequest` whose
plan translates nothing. A response in JSON is sent when it is complete; any other (audio, a stream of events) is sent
as it arrives. A stream that breaks ends with an error event, or, if it has no events, with a broken connection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode

from msgspec import structs

from dragoman.dialects.base import ApiRequest, Dialect, RequestSummary
from dragoman.dialects.endpoints import RelayedEndpoint
from dragoman.dialects.kit.binding import EVENT_STREAM, JSON
from dragoman.errors import (
    BadFrame,
    ClientFault,
    DragomanError,
    Fault,
    MalformedRequest,
    TooLarge,
    TransportError,
    UpstreamViolation,
)
from dragoman.gateway.admission import model_not_allowed
from dragoman.gateway.attempts import ClientRequest, InFlight, run_attempts
from dragoman.gateway.backend import Backend
from dragoman.gateway.context import PreparedRequest, RequestContext
from dragoman.gateway.planning import refuse_duplicate_keys
from dragoman.gateway.relayed_bodies import (
    is_form,
    read_model,
    read_stream_usage,
    read_usage,
    rename_model,
)
from dragoman.gateway.routing import MatchedRequest, UnreadableRequest
from dragoman.gateway.targets import Target
from dragoman.http.client.client import ClientResponse
from dragoman.model.conversation import Conversation, Usage
from dragoman.response_stream import MAX_WHOLE_REPLY
from dragoman.translate import Plan, TranslationSettings
from dragoman.upstream.credentials import with_headers
from dragoman.wire.http import Headers, HttpRequest
from dragoman.wire.ndjson import NDJSON

_KEY_PARAMETERS = frozenset({"key", "access_token", "api_key"})  # of the gateway itself
_PASSED_HEADERS = frozenset({"content-type", "accept"})
_TAIL_BYTES = 8 * 1024  # of a stream, which may contain its token counts
_SETTINGS = TranslationSettings()


class RelayMatch(MatchedRequest, frozen=True, kw_only=True):
    """A request to an endpoint that is relayed."""

    endpoint: RelayedEndpoint


def match_relayed(dialect: Dialect, endpoint: RelayedEndpoint, in_path: str, request: HttpRequest) -> RelayMatch:
    """Return the match of a request whose path is an endpoint's. Raises UnreadableRequest."""
    try:
        model = read_model(endpoint, request, in_path)
    except MalformedRequest as error:
        raise UnreadableRequest(dialect, error) from None
    summary = RequestSummary(Conversation(model.name, (), max_tokens=model.max_tokens), 0, None)
    call = ApiRequest("relay", model.name, False, None)
    return RelayMatch(dialect=dialect, call=call, plain=summary, endpoint=endpoint)


async def relay(context: RequestContext, matched: RelayMatch) -> None:
    """Relay a request and its response. The caller sends an error response for what is raised."""
    record, account = context.record, context.record.account
    record.operation = matched.endpoint.name
    if account is not None and account.models:
        if not context.call.model:
            raise model_not_allowed(account, "")
        if not is_form(context.exchange.request):
            refuse_duplicate_keys(context.exchange.request)  # The upstream might use the first name of two.
    client_request = RelayedRequest(context, matched)
    del matched
    delivery = RelayDelivery(context, client_request.estimate_input())
    await run_attempts(context, client_request, delivery)


class RelayedRequest(ClientRequest):
    """A request that is sent as it came, apart from the name of its model."""

    __slots__ = ("_endpoint", "_estimate")
    can_be_explained = False

    def __init__(self, context: RequestContext, matched: RelayMatch) -> None:
        super().__init__(context, matched)
        self._endpoint = matched.endpoint
        self._estimate = 0 if is_form(context.exchange.request) else super().estimate_input()

    def estimate_input(self) -> int:
        """Estimate the tokens of the request by its length; a form with a file has an unknown number, and counts 0."""
        return self._estimate

    async def targets(self) -> Sequence[Target]:
        """Return the targets whose upstreams have the endpoint. Raises UnknownModel, ClientFault (404).

        A default model answers chats, so a name that nothing names is not replaced. A request without a model goes to
        the first upstream that has the endpoint, which has a default of its own.
        """
        upstreams, name = self.context.upstreams, self.parameters.model
        if not name:
            found: Sequence[Target] = [Target(backend.upstream, "") for backend in upstreams.backends]
        else:
            found = [
                Target(each.upstream, name) if each.is_default else each
                for each in await upstreams.catalogue.find(name)
            ]
        able = [each for each in found if self._is_at(upstreams.by_name[each.upstream.name])]
        if not able:
            tried_upstreams = ", ".join(dict.fromkeys(each.upstream.name for each in found))
            others = ", ".join(each.name for each in upstreams.backends if self._is_at(each))
            message = f"{self.context.exchange.request.path} is not available at the upstream {tried_upstreams}"
            remedy = f"; ask for UPSTREAM/MODEL with one of: {others}" if others else "; no upstream has this endpoint"
            raise ClientFault(message + remedy, fault=Fault("not_found", message + remedy, 404, code="unknown_url"))
        return able

    def _is_at(self, backend: Backend) -> bool:
        relayed = backend.dialect.relayed
        return relayed is not None and self._endpoint in relayed.endpoints

    def plan(self, backend: Backend, model: str) -> PreparedRequest:
        original = self.parameters
        sent = structs.replace(original, model=model)
        plan = Plan(self.context.client, backend.dialect, original, sent, (), (), _SETTINGS, verbatim=True)
        return PreparedRequest(plan)

    def request(self, backend: Backend) -> HttpRequest:
        prepared, received, relayed = self.prepared, self.context.exchange.request, backend.dialect.relayed
        assert prepared is not None and relayed is not None  # `targets` returns only such upstreams.
        model, body = prepared.plan.translated.model, received.body
        if model != prepared.plan.original.model:
            body = rename_model(received, model)
            self.context.memory.hold("rendered", len(body))
        pairs = parse_qsl(received.query, keep_blank_values=True)
        query = urlencode([(name, value) for name, value in pairs if name not in _KEY_PARAMETERS])
        headers = tuple(field for field in received.headers if field[0] in _PASSED_HEADERS)
        path = f"{relayed.prefix}{self._endpoint.path_for(model)}"
        return with_headers(HttpRequest("POST", path, query, headers, body), backend.own_headers())


class RelayDelivery:
    """Delivers a response of a relayed request. It implements `attempts.Delivery`."""

    seconds_to_ping = math.inf

    def __init__(self, context: RequestContext, estimate: int) -> None:
        self._context, self._exchange = context, context.exchange
        self._estimate = estimate
        self._counted = 0
        self._tail = b""
        self._flight: InFlight | None = None
        self._headers: Headers = ()

    @property
    def has_started(self) -> bool:
        return self._exchange.is_started

    def discard(self) -> None:
        self._context.memory.free(self._counted)
        self._counted = 0
        self._exchange.source = None
        if self._context.record.capture is not None:
            self._context.record.capture.discard()

    async def deliver(self, response: ClientResponse, flight: InFlight) -> Fault | None:
        self._headers = tuple(field for field in response.headers if field[0] == "content-type")[:1]
        kind = self._headers[0][1].partition(";")[0].strip().lower() if self._headers else ""
        if kind == JSON or kind.endswith("+json"):
            await self._deliver_whole(response)
            return None
        return await self._deliver_stream(response, flight, kind)

    async def _deliver_whole(self, response: ClientResponse) -> None:
        try:
            body = await response.read(MAX_WHOLE_REPLY, self._count)
        except TooLarge as error:  # The upstream is to blame, not the client.
            raise BadFrame(str(error)).as_final() from None
        self._context.record.mark_first_byte()
        if (capture := self._context.record.capture) is not None:
            capture.add(body, b"")
        self._set_usage(read_usage(body))
        self._context.send(self._headers, body)

    def _count(self, size: int) -> None:
        self._context.memory.keep(size)
        self._counted += size

    async def _deliver_stream(self, response: ClientResponse, flight: InFlight, kind: str) -> Fault | None:
        exchange, record = self._exchange, self._context.record
        self._flight, exchange.source = flight, response
        if exchange.paused:
            response.pause()
        try:
            await response.pump(self._on_bytes)
        except (TransportError, UpstreamViolation) as error:
            if not exchange.is_started:
                raise
            self._break_off(error, kind)
            return error.fault
        finally:
            self._flight = None
            self._set_usage(read_stream_usage(self._tail) if kind in (EVENT_STREAM, NDJSON) else None)
        if not exchange.is_started:
            self._start()
        exchange.chunk(b"", last=True)
        record.status = 200
        return None

    def _start(self) -> None:
        self._exchange.head(200, self._headers)
        self._context.record.mark_first_byte()
        self._context.record.status, self._context.record.streamed = 200, True
        if self._flight is not None:
            self._flight.mark_started()

    def _on_bytes(self, chunk: bytes) -> None:
        if not self._exchange.is_started:
            self._start()
        if (capture := self._context.record.capture) is not None:
            capture.add(chunk, chunk)
        self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
        self._exchange.chunk(chunk)

    def _break_off(self, error: DragomanError, kind: str) -> None:
        """End a response whose upstream failed in the middle of it: with an error, or by breaking the connection."""
        record, client = self._context.record, self._context.client
        record.outcome, record.error = "broken", str(error)
        if kind not in (EVENT_STREAM, NDJSON):
            return  # The server breaks the connection, because the response is not finished.
        fault = client.codec.render_fault(self._context.services.log.redactor.upstream_fault(error.fault))
        event = b"%b\n" % fault if kind == NDJSON else b"\n\ndata: %b\n\n" % fault
        if record.capture is not None:
            record.capture.note_written(event)
        self._exchange.chunk(event, last=True)

    def _set_usage(self, usage: Usage | None) -> None:
        self._context.record.usage = usage or Usage(self._estimate, 0, estimated=True)
