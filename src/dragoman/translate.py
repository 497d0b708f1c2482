"""Plan a translation: run the filters that fit a request to an upstream, and collect their response halves. Pure.

One table, `FILTER_ORDER`, gives the order of filters: requests top to bottom, responses bottom to top
(docs/decisions/signatures.md#d52).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct, structs

from dragoman import filters
from dragoman.dialects.base import ApiRequest, Dialect
from dragoman.errors import LocalMisuse, Unrepresentable
from dragoman.model.capabilities import Capabilities, Trait
from dragoman.model.conversation import Conversation, to_canonical
from dragoman.model.filter import Facts, Features, Filter, MakeResponseFilter, Note, Notes
from dragoman.wire.http import HttpRequest
from dragoman.wire.validation import explain_refusal


class TranslationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a translation that a caller may choose."""

    losses: Literal["note", "refuse"] = "note"
    think_tags: bool = False  # the upstream writes its thinking as <think>…</think> into the text
    raw_tools: str | None = None  # raw tool calls: auto, off, a format's name, file:PATH; None: the dialect's default
    raw_tools_mode: Literal["live", "buffered"] = "live"  # buffered: each such call is sent whole
    # Claude Code's accounting line; auto: kept for Anthropic only
    attribution: Literal["auto", "keep", "strip"] = "auto"
    repair: bool = False  # never pass bytes on unchanged (docs/decisions/responses.md#d51)

    @property
    def reads_responses(self) -> bool:
        """Whether a setting needs responses to be read rather than passed on."""
        return self.think_tags or self.repair or self.raw_tools not in (None, "off")


class Pair(Struct, frozen=True):
    """The capabilities of both sides of a translation, and the settings: the input of filter factories."""

    client: Capabilities
    client_family: str
    upstream: Capabilities
    upstream_family: str
    settings: TranslationSettings
    attribution: bool = False  # the upstream reads Claude Code's accounting line

    @property
    def strips_attribution(self) -> bool:
        """Whether Claude Code's accounting line is removed."""
        choice = self.settings.attribution
        return choice == "strip" or (choice == "auto" and not self.attribution)


_Maker: TypeAlias = Callable[[Pair], Filter | None]
_NO_QUESTION = "the request has no user message to answer"

FILTER_ORDER: tuple[_Maker, ...] = (
    lambda pair: filters.RefuseServerState(
        pair.upstream.server_state if pair.client_family == pair.upstream_family else frozenset()
    ),
    lambda pair: (
        filters.SerializeBlocks(calls_end="open_calls" not in pair.upstream.traits)
        if "one_block" in pair.client.traits
        else None
    ),
    lambda pair: filters.FixStopReason(
        pauses="pauses" in pair.client.traits or pair.client_family == pair.upstream_family
    ),
    lambda pair: filters.CompactHistory(pair.client_family, pair.upstream, pair.upstream_family),
    lambda _: filters.NoteAcceptedShapes(),
    lambda pair: filters.StripAttribution() if pair.strips_attribution else None,
    lambda pair: filters.CarrySignatures(pair.client, pair.client_family, pair.upstream),
    lambda pair: (
        None
        if pair.client_family == pair.upstream_family
        else filters.FlattenToolHistory(pair.upstream, pair.upstream_family)
    ),
    lambda pair: filters.DropForeign(pair.client, pair.client_family, pair.upstream, pair.upstream_family),
    lambda pair: (
        None
        if pair.client_family == pair.upstream_family or "tool_search" not in pair.upstream.traits
        else filters.TranslateToolSearch(pair.client_family, pair.upstream, pair.upstream_family)
    ),
    lambda pair: (
        None
        if pair.client_family == pair.upstream_family or pair.upstream.tools.web_search is None
        else filters.TranslateWebSearch(pair.client, pair.client_family, pair.upstream, pair.upstream_family)
    ),
    lambda pair: filters.WrapTextTools(native="text_tools" in pair.upstream.traits),
    lambda pair: None if "bare_tools" in pair.upstream.traits else filters.AddEmptySchemas(),
    lambda pair: filters.PairTools(in_order="results_in_call_order" in pair.upstream.traits),
    lambda pair: filters.SimplifyResults(pair.upstream),
    lambda pair: filters.RenameTools(pair.upstream, pair.upstream_family),
    lambda pair: None if pair.upstream.system == "native" else filters.FoldSystem(pair.upstream),
    lambda pair: filters.FillEmpty() if "no_blank_text" in pair.upstream.traits else None,
    lambda pair: filters.AlternateTurns(pair.upstream),
    lambda pair: (
        filters.HashUser(pair.upstream, foreign=pair.client_family != pair.upstream_family)
        if "user" in pair.upstream.traits
        else None
    ),
    lambda pair: filters.FitCacheMarks(pair.upstream, foreign=pair.client_family != pair.upstream_family),
    lambda pair: (
        filters.AddCacheKey(pair.upstream, pair.upstream_family) if "cache_key" in pair.upstream.traits else None
    ),
    lambda pair: filters.FitLimits(pair.upstream),
    lambda pair: filters.WrapArguments(pair.client, pair.upstream),
)
LAST_FILTERS: tuple[_Maker, ...] = (  # run after the upstream dialect's quirks, so they read the response first
    lambda pair: filters.FitThinkingBudget(pair.upstream) if pair.upstream.min_thinking_budget else None,
    lambda pair: _raw_tools(pair),  # noqa: PLW0108  # defined below
)


def _raw_tools(pair: Pair) -> Filter | None:
    choice = pair.settings.raw_tools or ("auto" if "raw_tools" in pair.upstream.traits else "off")
    if choice == "off" and not pair.settings.think_tags:
        return None
    return filters.RawTools(
        choice,
        pair.settings.raw_tools_mode,
        ids=None if pair.client_family == pair.upstream_family else pair.client.ids,
        interleaves="one_block" not in pair.client.traits,
        think_tags=pair.settings.think_tags,
        family=pair.upstream_family,
    )


class Plan(Struct, frozen=True):
    """A translated request and the factories of its response filters. Immutable: every retry uses it again."""

    client: Dialect
    upstream: Dialect
    original: Conversation
    translated: Conversation
    notes: tuple[Note, ...]
    response_filters: tuple[MakeResponseFilter, ...]
    settings: TranslationSettings
    passes: bool = False  # a response may pass frame by frame, without frames that only the changed request asked for
    finds_calls: bool = False  # a response may contain raw tool calls, so a whole one is always read

    verbatim: bool = False  # a response may pass byte for byte: same dialect and framing, nothing changed
    same_wire: bool = False  # same dialect and framing on both sides
    keeps_frames: bool = False  # frames in which nothing changes are sent unchanged
    traits: frozenset[Trait] = frozenset()  # of the upstream's model

    def call(self) -> ApiRequest:
        """Return the rendered API request."""
        return self.upstream.codec.render_request(self.translated)

    def request(self) -> HttpRequest:
        """Return the HTTP request to send."""
        return self.upstream.binding.wrap(self.upstream.codec.render_request(self.translated))

    def request_head(self) -> ApiRequest:
        """Return the API request without a body, for a body that is already in the upstream's dialect."""
        sent, extra = self.translated, self.translated.hints
        fields = {name: value for name, value in extra.fields.items() if name not in extra.spelling} if extra else {}
        hints = {name: value for name, value in fields.items() if isinstance(value, str)}
        return ApiRequest("generate", sent.model, sent.stream, {}, hints)


def plan(
    client: Dialect,
    upstream: Dialect,
    conversation: Conversation,
    *,
    model: str | None = None,
    settings: TranslationSettings | None = None,
) -> Plan:
    """Fit a client's request to an upstream. Raises Unrepresentable (docs/decisions/content.md#d9)."""
    has_content = bool(conversation.messages or conversation.system)
    is_foreign = client.codec.family != upstream.codec.family
    if not has_content and not conversation.server_state and conversation.extra is not None and is_foreign:
        raise Unrepresentable(_NO_QUESTION, at="messages")  # the content is in a field that only its family knows
    settings = settings or TranslationSettings()
    notes = Notes(refuse=settings.losses == "refuse")
    sent = conversation if model in (None, conversation.model) else structs.replace(conversation, model=model)
    facts, makers, canonical = Facts(), list[MakeResponseFilter](), conversation.messages  # readers return that form
    features: Features | None = None  # None: not computed since the last change
    pipeline = _pipeline(client, upstream, sent.model, settings)
    altered, noted, finds_calls, keeps_frames = False, 0, False, pipeline.keeps_frames
    for each in pipeline.filters:
        if each.make_response_filter is not None:
            makers.append(each.make_response_filter)
        if each.applies_to is not None:
            if each.applies_to and features is None:
                features = facts.features(sent)
            if features is None or features.isdisjoint(each.applies_to):
                continue
        changed, maker = each.forward(sent, notes, facts)
        if changed is not sent:
            moved = changed.messages is not sent.messages or changed.system is not sent.system
            if moved and not each.keeps_canonical:
                changed = to_canonical(changed, canonical)  # a filter may leave an empty text
            sent, features, canonical = changed, None, changed.messages
        if len(notes) > noted:
            altered, noted = altered or not each.keeps_replies, len(notes)
        if maker is not None:
            makers.append(maker)
            finds_calls = finds_calls or isinstance(each, filters.RawTools)
            keeps_frames = keeps_frames and not each.replaces_blocks
    if has_content and not (sent.messages or sent.system):
        raise Unrepresentable(_NO_QUESTION, at="messages")
    passes = not altered and not settings.reads_responses and pipeline.same_wire
    rest = passes and not notes, pipeline.same_wire, keeps_frames, pipeline.traits
    return Plan(client, upstream, conversation, sent, tuple(notes), tuple(makers), settings, passes, finds_calls, *rest)


class _Pipeline(Struct, frozen=True):
    """The parts that all plans of one pair of dialects share, for one model and the same settings."""

    filters: tuple[Filter, ...]  # they keep no state of a request
    same_wire: bool
    keeps_frames: bool
    traits: frozenset[Trait]


def _make_pipeline(client: Dialect, upstream: Dialect, model: str, settings: TranslationSettings) -> _Pipeline:
    codec = upstream.codec
    pair = Pair(
        client.codec.capabilities(model),
        client.codec.family,
        codec.capabilities(model),
        codec.family,
        settings,
        upstream.attribution,
    )
    shared = [each for make in FILTER_ORDER if (each := make(pair)) is not None]
    last = [each for make in LAST_FILTERS if (each := make(pair)) is not None]
    same_wire = type(client.codec) is type(codec) and type(client.binding) is type(upstream.binding)
    # A filter may hold back a block that an earlier frame has announced: the announcement would be wrong.
    announces = settings.reads_responses and "announces" in pair.upstream.traits
    keeps_frames = same_wire and not settings.repair and not announces
    return _Pipeline((*_placed(shared, codec.quirks(model)), *last), same_wire, keeps_frames, pair.upstream.traits)


_cached_pipeline = lru_cache(maxsize=256)(_make_pipeline)


def _pipeline(client: Dialect, upstream: Dialect, model: str, settings: TranslationSettings) -> _Pipeline:
    try:
        return _cached_pipeline(client, upstream, model, settings)
    except TypeError:  # a third-party dialect that cannot be hashed
        return _make_pipeline(client, upstream, model, settings)


def _placed(shared: Sequence[Filter], quirks: Sequence[Filter]) -> Iterator[Filter]:
    """Yield all filters in order: quirks after the shared filters, except those whose `before` names one of them."""
    for each in shared:
        yield from (quirk for quirk in quirks if quirk.before == each.name)
        yield each
    names = {each.name for each in shared}
    yield from (quirk for quirk in quirks if quirk.before not in names)


def configure_dialect(dialect: Dialect, settings: dict[str, object]) -> Dialect:
    """Return the dialect with changed codec settings. Raises LocalMisuse for an unknown setting."""
    codec = dialect.codec
    known = getattr(codec, "__struct_fields__", ())
    for name in settings:
        if name not in known:
            raise LocalMisuse(f"{dialect.name} has no setting {name!r} (it has: {', '.join(known) or 'none'})")
    if not settings:
        return dialect
    try:
        checked = msgspec.convert({**{name: getattr(codec, name) for name in known}, **settings}, type(codec))
    except msgspec.ValidationError as error:
        raise LocalMisuse(f"a setting of {dialect.name}: {explain_refusal(error)}") from None
    return structs.replace(dialect, codec=checked)
