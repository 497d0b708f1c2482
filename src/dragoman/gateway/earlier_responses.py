"""The earlier responses that one request refers to: find them, and choose the upstream and credential that stores them.

A request that continues a response must go to the upstream that stores it, with the credential that created it: no
other upstream knows its id.
"""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.filters.request import server_state_error
from dragoman.gateway.backend import Backend
from dragoman.gateway.context import RequestContext
from dragoman.gateway.response_store import NOTHING_FOUND, FoundResponses, ResponseHolder
from dragoman.gateway.shared_responses import WantedResponses, missing_responses
from dragoman.model.conversation import Conversation
from dragoman.upstream.credentials import Credential


async def find_elsewhere(context: RequestContext, request: Conversation, items: Iterable[str]) -> FoundResponses:
    """Return what other processes store of the responses and items that a request refers to and this process lacks.

    Raises Overloaded.
    """
    services = context.services
    ids = dict.fromkeys([request.previous_id or "", *(each.reply_id for each in request.server_state)])
    wanted = WantedResponses(context.exchange.owner, tuple(filter(None, ids)), tuple(items))
    return await find_missing(context, missing_responses(wanted, services.response_store, services.holders))


async def find_missing(context: RequestContext, missing: WantedResponses) -> FoundResponses:
    """Return what other processes store of it; the bytes count as memory of this request. Raises Overloaded."""
    if not missing.responses and not missing.items:
        return NOTHING_FOUND
    return await context.services.shared.find(missing, context.memory.keep)


def check_holder(context: RequestContext, backend: Backend, translated: Conversation, found: FoundResponses) -> None:
    """Raise Unrepresentable if the request continues a response of another upstream or of another client."""
    for reference in translated.server_state:
        holder = _holder(context, reference.reply_id, found)
        if holder is None:
            continue
        if holder.address != backend.base_url or holder.owner != context.exchange.owner:
            raise server_state_error(reference)


def prefer_holders(
    context: RequestContext,
    request: Conversation,
    backend: Backend,
    credentials: list[Credential],
    found: FoundResponses,
) -> None:
    """Move the credentials to the front that got the response which this request continues."""
    holders = [_holder(context, each.reply_id, found) for each in request.server_state]
    preferred = {holder.credential for holder in holders if holder is not None and holder.upstream == backend.name}
    credentials.sort(key=lambda each: each.name not in preferred)


def _holder(context: RequestContext, response_id: str, found: FoundResponses) -> ResponseHolder | None:
    return context.services.holders.find(response_id) or found.holders.get(response_id)
