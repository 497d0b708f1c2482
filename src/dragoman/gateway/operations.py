"""What a client may ask the gateway beside an answer: to count tokens, list models, or serve a stored answer."""

from __future__ import annotations

from collections.abc import Awaitable

from dragoman.errors import ClientFault, Fault, TransportError, UpstreamFault, UpstreamViolation
from dragoman.gateway import listing
from dragoman.gateway.attempts import ClientRequest
from dragoman.gateway.context import JSON_BODY, RequestContext
from dragoman.gateway.retry_policy import Refused
from dragoman.gateway.routing import MatchedRequest
from dragoman.gateway.stored_responses import StoredResponseRequest
from dragoman.wire.http import Headers


def serve(context: RequestContext, matched: MatchedRequest) -> Awaitable[None]:
    """Do what a call asks for that generates no answer. The caller refuses what is raised."""
    if context.call.operation == "count":
        return _count(context, ClientRequest(context, matched))
    return _models(context) if context.call.operation == "models" else StoredResponseRequest(context).run()


async def _models(context: RequestContext) -> None:
    body = listing.render_models(context.client, listing.known_models(context.upstreams.config), context.call.model)
    context.send((JSON_BODY,), body)


async def _count(context: RequestContext, question: ClientRequest) -> None:
    counts = context.client.counts
    if counts is None:
        raise ClientFault("this dialect counts no tokens", fault=Fault("not_found", "nothing counts here", 404))
    tokens = await _counted(context, question)
    headers: Headers = (JSON_BODY,) if tokens is not None else (JSON_BODY, ("dragoman-estimate", "true"))
    estimated = tokens is None
    if tokens is None:
        tokens = listing.estimate_tokens(question.read()) if question.large is None else question.large.tokens
    context.send(headers, counts.render_count(tokens, estimated))


async def _counted(context: RequestContext, question: ClientRequest) -> int | None:
    """The upstream's own count; None if it has none to give. Raises what it has against the request."""
    target = context.upstreams.config.routes.resolve(context.call.model)[0]
    backend = context.upstreams.by_name[target.upstream.name]
    counts = backend.dialect.counts
    try:
        sent = (await question.prepare(backend, target.model, counts=counts is not None)).translated
        if counts is None:
            return None
        request = question.request_to_count(backend)
        credential = backend.credentials(question.session(), target.model)[0]
        if backend.is_cooling_down(credential, target.model):
            return None
        if not backend.slots.take():
            await backend.slots.wait()
        try:
            reply = await backend.open(request, credential, sent)
            return counts.parse_count((await backend.read(reply)).body)
        finally:
            backend.slots.release()
    except Refused as refused:
        fault = refused.fault
    except (TransportError, UpstreamViolation):
        return None
    if fault.kind in ("invalid", "context_full", "too_large") and fault.status in (400, 413, 422):
        raise UpstreamFault(fault.message, fault=fault)
    return None
