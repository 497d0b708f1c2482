"""What is done with a request between its dialect and its target: read it within limits, render it. Pure.

The gateway does it for most requests, and the worker process for large ones.
"""

from __future__ import annotations

from msgspec import Struct, structs

from dragoman.dialects.base import Call, Dialect, ExactRequest
from dragoman.errors import MalformedRequest, TooLarge, Unrepresentable
from dragoman.gateway.config import Server
from dragoman.gateway.limits import RequestLimits, Shape, check_conversation, check_tree
from dragoman.gateway.media_urls import MediaUrls, check_media_urls
from dragoman.model.conversation import Conversation
from dragoman.model.notes import Note
from dragoman.translate import Plan
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest


class Bounds(Struct, frozen=True):
    """What a request may be, as `[server]` says."""

    limits: RequestLimits
    max_body: int  # bytes, also of what is sent
    media_urls: MediaUrls

    @classmethod
    def of(cls, server: Server) -> Bounds:
        return cls(server.limits, server.max_body, server.media_urls)


def parse(
    dialect: Dialect, call: Call, size: int, bounds: Bounds, exact: ExactRequest | None = None
) -> tuple[Conversation, Shape]:
    """What a call asks, within the limits, and the shape of its body. Raises MalformedRequest, TooLarge."""
    shape = check_tree(call.body, size, bounds.limits, 0 if exact is None else exact.beside)
    try:
        asked = dialect.codec.parse_request(call) if exact is None else exact.asked
    except RecursionError:
        raise MalformedRequest("nested too deeply") from None
    check_conversation(asked, shape, bounds.limits)
    check_media_urls(asked, dialect.codec.family, bounds.media_urls)
    return asked, shape


def refuse_doubled(given: HttpRequest) -> None:
    """Refuse a name that stands twice in one object, where losses are refused. Raises MalformedRequest."""
    if name := jsonio.doubled(given.body, given.document):
        raise MalformedRequest(f"{name!r} stands twice in one object; losses are refused")


def rendered(made: Plan, given: HttpRequest, max_body: int) -> tuple[HttpRequest, Note | None]:
    """What is sent, and a note about it if there is something to say. Raises Unrepresentable, TooLarge."""
    note: Note | None = None
    if made.verbatim and made.sent.model == made.asked.model:
        if (name := jsonio.doubled(given.body, given.document)) is None:
            return structs.replace(made.upstream.binding.wrap(made.head()), body=given.body), None
        # The upstream might read the first of the two, which was not checked here.
        note = Note("json.duplicate_keys", "dropped", "", f"{name!r} stands twice in one object; the last one counts")
    try:
        request = made.request()
    except RecursionError:
        raise Unrepresentable("nested too deeply") from None
    if (size := len(request.body)) > max_body:
        what = f"the request has {size} bytes in the upstream's dialect; the limit is {max_body} (server.max_body)"
        raise TooLarge(what)
    return request, note


def counting(made: Plan) -> tuple[HttpRequest, None]:
    """The request that asks the target to count the tokens of this one."""
    call = structs.replace(made.call(), operation="count", stream=False)
    return made.upstream.binding.wrap(call), None
