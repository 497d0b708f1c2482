"""The laws of dragoman.conformance, over the registry, on whatever hypothesis invents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman.dialects as registry
from dragoman.answer import WaysBack
from dragoman.conformance import laws, run
from dragoman.conformance.laws import NOBODY, RequestLaw
from dragoman.dialects.base import Dialect
from dragoman.model.conversation import Conversation
from dragoman.model.events import BlockKeys, Events
from dragoman.translate import plan
from dragoman.wire import jsonio
from tests import strategies
from tests.stories.telling import Story, stories

NAMES = registry.names()
every_dialect = pytest.mark.parametrize("name", NAMES)
any_dialect = st.sampled_from(NAMES).map(registry.get)  # the other end: it matters less, so hypothesis picks it


@every_dialect
def test_the_kit_passes_on_its_own_samples(name: str) -> None:
    tried, failures = run(registry.get(name))
    assert tried > 200
    assert failures == []


@every_dialect
@pytest.mark.parametrize("law", laws.REQUEST_LAWS, ids=lambda law: law.__name__)
@given(client=any_dialect, asked=strategies.conversations())
def test_request_laws(law: RequestLaw, name: str, client: Dialect, asked: Conversation) -> None:
    law(client, registry.get(name), asked)


@every_dialect
@given(client=any_dialect, pair=strategies.conversations_that_go_on())
def test_prefix_is_stable(name: str, client: Dialect, pair: tuple[Conversation, Conversation]) -> None:
    earlier, later = pair
    more = later.messages[len(earlier.messages) :]
    if later.messages[: len(earlier.messages)] == earlier.messages:
        laws.prefix_is_stable(client, registry.get(name), earlier, more)


@every_dialect
@given(upstream=any_dialect, events=strategies.events(choices=1))
def test_nothing_is_lost_in_a_stream(name: str, upstream: Dialect, events: Events) -> None:
    laws.nothing_is_lost_in_a_stream(registry.get(name), upstream, events)


@every_dialect
@given(client=any_dialect, events=strategies.events(choices=1), data=st.data())
def test_cuts_do_not_matter(name: str, client: Dialect, events: Events, data: st.DataObject) -> None:
    source = registry.get(name)
    ways = WaysBack(plan(source, source, NOBODY), BlockKeys.after(events))
    stream = laws.encoded(source, ways.feed(events))
    if stream and data.draw(st.booleans(), "broken"):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream = data.draw(st.sampled_from([stream[:at], stream[:at] + b"\xff" + stream[at + 1 :]]))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    laws.cuts_do_not_matter(plan(client, source, NOBODY), stream, cuts)


@every_dialect
@given(events=strategies.events(choices=1))
def test_equal_steps_pass_as_they_came(name: str, events: Events) -> None:
    laws.equal_steps_pass_as_they_came(registry.get(name), events)


@every_dialect
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_our_errors(name: str, data: bytes) -> None:
    laws.only_our_errors(registry.get(name), data)


@every_dialect
@given(body=strategies.json_values)
def test_arbitrary_json_raises_only_our_errors(name: str, body: object) -> None:
    laws.only_our_errors(registry.get(name), jsonio.encode(body))


@pytest.mark.parametrize("story", stories(), ids=str)
def test_every_single_cut_of_every_story_gives_the_same_answer(story: Story) -> None:
    made = plan(registry.get(story.asked), registry.get(story.answered), NOBODY)
    for at in range(1, len(story.stream)):
        laws.cuts_do_not_matter(made, story.stream, [at])
    laws.cuts_do_not_matter(made, story.stream, range(len(story.stream)))


@pytest.mark.parametrize("story", stories(), ids=str)
def test_the_own_body_of_every_story_returns(story: Story) -> None:
    laws.own_body_returns(registry.get(story.asked), jsonio.decode(story.request))
