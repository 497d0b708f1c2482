"""Parse a request within the limits, and render a planned one; and the cache of plans. Pure.

The gateway calls these functions for most requests, and the job process for large ones. With `PlanCache`, small
requests of the same shape reuse one plan.
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
    """The settings of `[server]` that limit requests."""

    limits: RequestLimits
    max_body: int  # bytes, also of the rendered request
    media_urls: MediaUrls

    @classmethod
    def of(cls, server: Server) -> Bounds:
        """Return the bounds of this configuration."""
        return cls(server.limits, server.max_body, server.media_urls)


def parse_within_limits(
    dialect: Dialect, call: ApiRequest, size: int, bounds: Bounds, typed: TypedRequest | None = None
) -> tuple[Conversation, TreeStats]:
    """Return the conversation of a call and the figures of its body. Raises MalformedRequest, TooLarge."""
    shape = check_tree(call.body, size, bounds.limits, 0 if typed is None else typed.other_values)
    try:
        conversation = dialect.codec.parse_request(call) if typed is None else typed.conversation
    except RecursionError:
        raise MalformedRequest("the request is nested too deeply") from None
    check_conversation(conversation, shape, bounds.limits)
    if bounds.media_urls != "any":
        contents = inventory(conversation.messages)
        media = [*contents.others, *(part for part in contents.parts if isinstance(part, Media | Opaque))]
        if media or conversation.extra is not None:
            check_media_urls(media, conversation.extra, dialect.codec.family, bounds.media_urls)
    return conversation, shape


def refuse_duplicate_keys(request: HttpRequest) -> None:
    """Raise MalformedRequest for a name that occurs twice in one object; called if losses are refused."""
    if name := jsonio.find_duplicate_name(request.body, request.document):
        raise MalformedRequest(f'the name {name!r} occurs twice in one object, and losses = "refuse"')


def render_planned(plan: Plan, received: HttpRequest, max_body: int) -> tuple[HttpRequest, Note | None]:
    """Return the HTTP request to send, and a note about it or None. Raises Unrepresentable, TooLarge."""
    note: Note | None = None
    if plan.verbatim and plan.translated.model == plan.original.model:
        if (name := jsonio.find_duplicate_name(received.body, received.document)) is None:
            return structs.replace(plan.upstream.binding.wrap(plan.request_head()), body=received.body), None
        # The upstream might use the first value, which was not checked here.
        detail = f"the name {name!r} occurs twice in one object; the last value is used"
        note = Note("json.duplicate_keys", "dropped", "", detail)
    try:
        request = plan.request()
    except RecursionError:
        raise Unrepresentable("the request is nested too deeply") from None
    if (size := len(request.body)) > max_body:
        what = f"the request has {size} bytes in the upstream's dialect; the limit is {max_body} (server.max_body)"
        raise TooLarge(what)
    return request, note


def token_count_request(plan: Plan) -> tuple[HttpRequest, None]:
    """Return the HTTP request to count the tokens of a planned request."""
    call = structs.replace(plan.call(), operation="count", stream=False)
    return plan.upstream.binding.wrap(call), None


# --- PlanCache: a plain request that passes unchanged reuses the plan of the first request of its shape.
#
# Requests of one shape (`Dialect.summary_reader`) differ only in texts and numbers that no filter reads. The first one
# is parsed, planned and rendered by the codec; the others reuse its plan and its head. A law checks that requests and
# responses are the same as without the cache (`tests/laws/test_plan_cache.py`). `dragoman_plan_cache_hits` counts them.


_MAX_PLANS, _LONGEST_MODEL = 256, 256  # Clients may send any model name, so both must be bounded.


class CachedPlan(Struct, frozen=True):
    """The HTTP request without its body, the plan without conversations, and the JSON fields to add to the body."""

    head: HttpRequest
    bare_plan: Plan
    added: bytes

    def plan(self, plain: RequestSummary) -> Plan:
        """Return the plan of another request of this shape."""
        plan, conversation = self.bare_plan, plain.conversation
        sent = structs.replace(conversation, extra=plan.translated.extra) if self.added else conversation
        return structs.replace(plan, original=conversation, translated=sent, response_filters=(), finds_calls=False)

    def request(self, body: bytes) -> HttpRequest:
        """Return the HTTP request for this body."""
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
        """Return the plan for this shape; None if there is none, or if the model has another name upstream."""
        return self._plans.get((client.name, model, plain.shape)) if model == plain.conversation.model else None

    def keep(self, plain: RequestSummary, plan: Plan, received: HttpRequest, sent: HttpRequest) -> None:
        """Cache a plan, if it changes nothing in the body except for added fields."""
        model = plan.translated.model
        if not plan.passes or model != plain.conversation.model or len(model) > _LONGEST_MODEL:
            return
        before, after = received.document, jsonio.decode(sent.body)
        if not isinstance(before, dict) or not isinstance(after, dict):
            return
        if any(name not in after or after[name] != value for name, value in before.items() if name != "stream"):
            return
        added = {name: value for name, value in after.items() if name not in before}
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        like = structs.replace(plain.conversation, extra=plan.translated.extra if added else plain.conversation.extra)
        self._plans[plan.client.name, model, plain.shape] = CachedPlan(
            structs.replace(sent, body=b""),
            structs.replace(plan, original=like, translated=like, response_filters=()),
            jsonio.encode(added)[1:] if added else b"",
        )
