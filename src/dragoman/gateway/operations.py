"""The operations that generate no reply: count tokens, list models, serve stored responses, relay others."""

from __future__ import annotations

from collections.abc import Awaitable

from dragoman.errors import ClientFault, Fault, TransportError, UpstreamFault, UpstreamViolation
from dragoman.gateway import codex_models, model_entries, token_estimate
from dragoman.gateway.attempts import ClientRequest
from dragoman.gateway.context import JSON_BODY, RequestContext
from dragoman.gateway.relay import RelayMatch, relay
from dragoman.gateway.retry_policy import Refused
from dragoman.gateway.routing import MatchedRequest
from dragoman.gateway.stored_responses import StoredResponseRequest
from dragoman.wire.http import Headers
from dragoman.wire.jsonio import Json


def serve(context: RequestContext, matched: MatchedRequest) -> Awaitable[None]:
    """Serve a call that generates no reply. The caller turns errors into error responses."""
    if context.call.operation == "count":
        return _count(context, ClientRequest(context, matched))
    if isinstance(matched, RelayMatch):
        return relay(context, matched)
    return _models(context) if context.call.operation == "models" else StoredResponseRequest(context).run()


async def _models(context: RequestContext) -> None:
    catalogue, wanted, account = context.upstreams.catalogue, context.call.model, context.record.account
    if wanted:
        body = model_entries.render_model(context.client, await catalogue.entry(wanted))
    else:
        entries = await catalogue.entries()
        if account is not None and (account.models or account.upstreams):
            entries = [
                entry
                for entry in entries
                if account.allows_model(entry.name) and account.allows_upstream(entry.upstream)
            ]
        if catalogue.has_claude_aliases and context.client.name == "anthropic":
            entries = model_entries.with_claude_aliases(entries)
        codex: dict[str, Json] = {}
        if codex_models.is_requested(context.exchange.request.query):
            codex["models"] = codex_models.render_codex_models(entries)
        body = model_entries.render_models(context.client, entries, codex)
    context.send((JSON_BODY,), body)


async def _count(context: RequestContext, client_request: ClientRequest) -> None:
    counts = context.client.counts
    if counts is None:
        message = f"the dialect {context.client.name} has no endpoint to count tokens"
        raise ClientFault(message, fault=Fault("not_found", message, 404, code="unknown_url"))
    tokens = await _upstream_count(context, client_request)
    headers: Headers = (JSON_BODY,) if tokens is not None else (JSON_BODY, ("dragoman-estimate", "true"))
    estimated = tokens is None
    if tokens is None:
        tokens = (
            token_estimate.estimate_tokens(client_request.read())
            if client_request.large is None
            else client_request.large.tokens
        )
    context.send(headers, counts.render_count(tokens, estimated))


async def _upstream_count(context: RequestContext, client_request: ClientRequest) -> int | None:
    """Return the upstream's count; None if it cannot count. Raises UpstreamFault if it refuses the request."""
    target = (await context.upstreams.catalogue.find(context.call.model))[0]
    backend = context.upstreams.by_name[target.upstream.name]
    counts = backend.dialect.counts
    try:
        translated = (await client_request.prepare(backend, target.model, counts=counts is not None)).translated
        if counts is None:
            return None
        request = client_request.request_to_count(backend)
        credential = backend.credentials(client_request.session.affinity, target.model)[0]
        if backend.is_cooling_down(credential, target.model):
            return None
        if not backend.slots.take():
            await backend.slots.wait()
        try:
            response = await backend.open(request, credential, translated)
            return counts.parse_count((await backend.read(response)).body)
        finally:
            backend.slots.release()
    except Refused as refused:
        fault = refused.fault
    except (TransportError, UpstreamViolation):
        return None
    if fault.kind in ("invalid", "context_full", "too_large") and fault.status in (400, 413, 422):
        raise UpstreamFault(fault.message, fault=fault)
    return None
