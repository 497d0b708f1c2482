"""A filter or response filter that a plan skips would have changed nothing."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from hypothesis import given, note
from hypothesis import strategies as st
from msgspec import structs

import dragoman.dialects as registry
from dragoman import translate
from dragoman.errors import DragomanError
from dragoman.model.blocks import Block, Media, Opaque
from dragoman.model.conversation import Conversation, Message
from dragoman.model.events import BlockKeys, Events
from dragoman.model.filter import Facts, Filter, MakeResponseFilter, Notes
from dragoman.response_stream import ResponseFilters
from dragoman.translate import Plan, plan
from tests import strategies
from tests.laws.test_block_keys import event_streams, make_request, translation_settings

DIALECTS = sorted(registry.names())


class Called(Filter):
    """A filter that is always called. It fails if a call that a plan would skip changes something."""

    def __init__(self, inner: Filter) -> None:
        self.inner, self.name, self.make_response_filter = inner, inner.name, inner.make_response_filter

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        applies_to = self.inner.applies_to
        if applies_to is None or not facts.features(conversation).isdisjoint(applies_to):
            return self.inner.forward(conversation, notes, facts)
        needless = Notes()
        note(self.name)
        assert self.inner.forward(conversation, needless, Facts()) == (conversation, None)
        assert not list(needless)
        return conversation, None


def outcome(client: str, upstream: str, conversation: Conversation, settings: translate.TranslationSettings) -> Any:
    try:
        planned = plan(registry.get(client), registry.get(upstream), conversation, settings=settings)
    except DragomanError as error:
        return type(error), str(error)
    return planned.translated, planned.notes, len(planned.response_filters)


def all_called(*pair: Any) -> translate._Pipeline:
    pipeline = translate._make_pipeline(*pair)
    return structs.replace(pipeline, filters=tuple(map(Called, pipeline.filters)))


@given(
    conversation=strategies.conversations(),
    client=st.sampled_from(DIALECTS),
    upstream=st.sampled_from(DIALECTS),
    settings=translation_settings,
)
def test_a_filter_that_is_not_called_would_have_changed_nothing(
    conversation: Conversation, client: str, upstream: str, settings: translate.TranslationSettings
) -> None:
    expected = outcome(client, upstream, conversation, settings)
    with patch.object(translate, "_cached_pipeline", all_called):
        outcome(client, upstream, conversation, settings)
    assert outcome(client, upstream, conversation, settings) == expected


def test_every_kind_of_block_has_its_feature() -> None:
    kinds: list[Block] = [Opaque("x", {}), Media("image", "image/png", "base64", "")]
    for block in kinds:
        found = Facts().features(Conversation("m", (Message("user", (block,)),)))
        assert {"opaque", "media"} & found


@given(
    events=event_streams(),
    client=st.sampled_from(DIALECTS),
    upstream=st.sampled_from(DIALECTS),
    settings=translation_settings,
    data=st.data(),
)
def test_a_response_filter_that_is_not_fed_would_have_changed_nothing(
    events: Events, client: str, upstream: str, settings: translate.TranslationSettings, data: st.DataObject
) -> None:
    planned = plan(
        registry.get(client), registry.get(upstream), make_request("kimi-k2", thinks=True), settings=settings
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, len(events)), max_size=len(events))))
    frames = [events[start:end] for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    response_filters = ResponseFilters(planned, BlockKeys.after(events))
    produced = tuple(event for frame in frames for event in response_filters.feed(frame))
    notes, expected = _feed_all_filters(planned, events, frames)
    assert (produced, list(response_filters.notes)) == (expected, list(notes))


def _feed_all_filters(planned: Plan, events: Events, frames: list[Events]) -> tuple[Notes, Events]:
    keys, notes = BlockKeys.after(events), Notes(most=1000)
    response_filters = [make(notes, keys) for make in reversed(planned.response_filters)]
    produced: list[Any] = []
    for frame in frames:
        changed = frame
        for each in response_filters:
            changed = each.feed(changed)
        produced += changed
    return notes, tuple(produced)
