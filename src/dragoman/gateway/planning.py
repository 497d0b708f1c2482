"""What is done with a request between its dialect and its target: read it within limits, plan it, render it. Pure.

The gateway does it for most requests, and the worker process for large ones. `PlanCache` lets small requests of one
shape follow the plan of the first.
"""

from __future__ import annotations

from collections.abc import Hashable

from msgspec import Struct, structs

from dragoman.dialects.base import ApiRequest, Dialect, RequestSummary, TypedRequest
from dragoman.errors import MalformedRequest, TooLarge, Unrepresentable
from dragoman.gateway.config import Server
from dragoman.gateway.limits import RequestLimits, TreeStats, check_conversation, check_tree
from dragoman.gateway.media_urls import MediaUrls, check_media_urls
from dragoman.model.blocks import Media, Opaque
from dragoman.model.conversation import Conversation
from dragoman.model.filter import Note, inventory
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


def parse_within_limits(
    dialect: Dialect, call: ApiRequest, size: int, bounds: Bounds, exact: TypedRequest | None = None
) -> tuple[Conversation, TreeStats]:
    """What a call asks, within the limits, and the shape of its body. Raises MalformedRequest, TooLarge."""
    shape = check_tree(call.body, size, bounds.limits, 0 if exact is None else exact.other_values)
    try:
        asked = dialect.codec.parse_request(call) if exact is None else exact.asked
    except RecursionError:
        raise MalformedRequest("nested too deeply") from None
    check_conversation(asked, shape, bounds.limits)
    if bounds.media_urls != "any":
        held = inventory(asked.messages)
        media = [*held.others, *(part for part in held.parts if isinstance(part, Media | Opaque))]
        if media or asked.extra is not None:
            check_media_urls(media, asked.extra, dialect.codec.family, bounds.media_urls)
    return asked, shape


def refuse_duplicate_keys(given: HttpRequest) -> None:
    """Refuse a name that stands twice in one object, where losses are refused. Raises MalformedRequest."""
    if name := jsonio.find_duplicate_name(given.body, given.document):
        raise MalformedRequest(f"{name!r} stands twice in one object; losses are refused")


def render_planned(made: Plan, given: HttpRequest, max_body: int) -> tuple[HttpRequest, Note | None]:
    """What is sent, and a note about it if there is something to say. Raises Unrepresentable, TooLarge."""
    note: Note | None = None
    if made.verbatim and made.translated.model == made.original.model:
        if (name := jsonio.find_duplicate_name(given.body, given.document)) is None:
            return structs.replace(made.upstream.binding.wrap(made.request_head()), body=given.body), None
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


def token_count_request(made: Plan) -> tuple[HttpRequest, None]:
    """The request that asks the target to count the tokens of this one."""
    call = structs.replace(made.call(), operation="count", stream=False)
    return made.upstream.binding.wrap(call), None


# --- PlanCache: a plain request that passes unchanged follows the plan of the first request of its shape.
#
# Requests of one shape (`Dialect.summary_reader`) differ only in texts and figures that no filter reads. The first one
# is read, planned and rendered by the codec, and the others take its plan and its head. A law demands that they are
# sent and answered as if they were planned themselves (`tests/laws/test_plan_cache.py`). `dragoman_plan_cache_hits`
# counts them.


_MOST, _LONGEST = 256, 256  # entries, and characters of a model's name: clients name any model they like


class CachedPlan(Struct, frozen=True):
    """What became of the first request: its HTTP request without the body, its plan without conversations, and the
    fields that were added to the body.
    """

    head: HttpRequest
    made: Plan
    added: bytes

    def plan(self, plain: RequestSummary) -> Plan:
        """The plan of another request of this shape."""
        made, asked = self.made, plain.asked
        sent = structs.replace(asked, extra=made.translated.extra) if self.added else asked
        return structs.replace(made, original=asked, translated=sent, response_filters=(), finds_calls=False)

    def request(self, body: bytes) -> HttpRequest:
        if self.added:
            body = b"%b,%b" % (body.rstrip()[:-1], self.added)
        head = self.head
        return HttpRequest(head.method, head.path, head.query, head.headers, body)


class PlanCache:
    """The cached plans of one upstream."""

    def __init__(self) -> None:
        self._plans: dict[Hashable, CachedPlan] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def find(self, client: Dialect, plain: RequestSummary, model: str) -> CachedPlan | None:
        """The plan for this shape; None if there is none, or if the upstream calls the model by another name."""
        return self._plans.get((client.name, model, plain.shape)) if model == plain.asked.model else None

    def keep(self, plain: RequestSummary, made: Plan, given: HttpRequest, sent: HttpRequest) -> None:
        """Keep a plan that leaves the body as it was given, but for fields that it adds."""
        model = made.translated.model
        if not made.passes or model != plain.asked.model or len(model) > _LONGEST:
            return
        before, after = given.document, jsonio.decode(sent.body)
        if not isinstance(before, dict) or not isinstance(after, dict):
            return
        if any(name not in after or after[name] != value for name, value in before.items() if name != "stream"):
            return
        added = {name: value for name, value in after.items() if name not in before}
        if len(self._plans) >= _MOST:
            self._plans.clear()
        like = structs.replace(plain.asked, extra=made.translated.extra if added else plain.asked.extra)
        self._plans[made.client.name, model, plain.shape] = CachedPlan(
            structs.replace(sent, body=b""),
            structs.replace(made, original=like, translated=like, response_filters=()),
            jsonio.encode(added)[1:] if added else b"",
        )
