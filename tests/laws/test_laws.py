"""The laws of dragoman.conformance, over the registry, on whatever hypothesis invents."""

from __future__ import annotations

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import dragoman.dialects as registry
from dragoman.answer import Answer, ResponseFilters
from dragoman.conformance import laws, run
from dragoman.conformance.laws import NOBODY, still_world
from dragoman.dialects.base import Dialect
from dragoman.model.conversation import Conversation
from dragoman.model.events import BlockKeys, Events
from dragoman.translate import plan
from dragoman.wire import jsonio
from tests import strategies
from tests.budget import LONG
from tests.stories.telling import Story, stories

NAMES = registry.names()
every_dialect = pytest.mark.parametrize("name", NAMES)
any_dialect = st.sampled_from(NAMES).map(registry.get)  # the other end: it matters less, so hypothesis picks it


@every_dialect
def test_the_kit_passes_on_its_own_samples(name: str) -> None:
    tried, failures = run(registry.get(name))
    assert tried > 200
    assert failures == []


# One conversation is tried on every target and law: to make one up takes longer than all of them together.


@given(client=any_dialect, asked=strategies.conversations())
def test_request_laws(client: Dialect, asked: Conversation) -> None:
    for name in NAMES:
        for law in laws.REQUEST_LAWS:
            note(f"{law.__name__} of {name}")
            law(client, registry.get(name), asked)


@given(client=any_dialect, pair=strategies.conversations_that_go_on())
def test_prefix_is_stable(client: Dialect, pair: tuple[Conversation, Conversation]) -> None:
    earlier, later = pair
    more = later.messages[len(earlier.messages) :]
    if later.messages[: len(earlier.messages)] != earlier.messages:
        return
    for name in NAMES:
        note(name)
        laws.prefix_is_stable(client, registry.get(name), earlier, more)


@given(upstream=any_dialect, events=strategies.events(choices=1))
def test_nothing_is_lost_in_a_stream(upstream: Dialect, events: Events) -> None:
    for name in NAMES:
        note(name)
        laws.nothing_is_lost_in_a_stream(registry.get(name), upstream, events)


@given(client=any_dialect, events=strategies.events(choices=1), data=st.data())
def test_cuts_do_not_matter(client: Dialect, events: Events, data: st.DataObject) -> None:
    for name in NAMES:
        note(name)
        _cuts_do_not_matter(registry.get(name), client, events, data)


def _cuts_do_not_matter(source: Dialect, client: Dialect, events: Events, data: st.DataObject) -> None:
    ways = ResponseFilters(plan(source, source, NOBODY), BlockKeys.after(events))
    stream = laws.encoded(source, ways.feed(events))
    if stream and data.draw(st.booleans(), "broken"):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream = data.draw(st.sampled_from([stream[:at], stream[:at] + b"\xff" + stream[at + 1 :]]))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    laws.cuts_do_not_matter(plan(client, source, NOBODY), stream, cuts)


@given(events=strategies.events(choices=1))
def test_equal_steps_pass_as_they_came(events: Events) -> None:
    for name in NAMES:
        note(name)
        laws.equal_steps_pass_as_they_came(registry.get(name), events)


@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_our_errors(data: bytes) -> None:
    for name in NAMES:
        note(name)
        laws.only_our_errors(registry.get(name), data)


@given(body=strategies.json_values)
def test_arbitrary_json_raises_only_our_errors(body: object) -> None:
    for name in NAMES:
        note(name)
        laws.only_our_errors(registry.get(name), jsonio.encode(body))


@pytest.mark.parametrize("story", stories(), ids=str)
def test_every_single_cut_of_every_story_gives_the_same_answer(story: Story) -> None:
    """The two stories that are longer than 3,000 bytes are cut at every ninth one; `make laws-long` tries all."""
    made = plan(registry.get(story.asked), registry.get(story.answered), NOBODY)
    stream = story.stream
    whole = Answer(made, still_world())
    expected = whole.feed(stream) + whole.close()
    for at in range(1, len(stream), 1 if len(stream) < 3000 or LONG else 9):
        answer = Answer(made, still_world())
        assert answer.feed(stream[:at]) + answer.feed(stream[at:]) + answer.close() == expected, at
    laws.cuts_do_not_matter(made, stream, range(len(stream)))


@pytest.mark.parametrize("story", stories(), ids=str)
def test_the_own_body_of_every_story_returns(story: Story) -> None:
    laws.own_body_returns(registry.get(story.asked), jsonio.decode(story.request))
