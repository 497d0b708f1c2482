"""The laws of dragoman.conformance, over the registry, on whatever hypothesis invents."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman.dialects as registry
from dragoman.conformance import laws, run
from dragoman.conformance.laws import NOBODY, RequestLaw
from dragoman.model.conversation import Conversation
from dragoman.model.events import Events
from dragoman.translate import WaysBack, plan
from dragoman.wire import jsonio
from tests import strategies
from tests.stories.telling import Story, stories

NAMES = registry.names()
every_dialect = pytest.mark.parametrize("name", NAMES)
every_pair = pytest.mark.parametrize(
    ("client", "upstream"), [pytest.param(*pair, id="-".join(pair)) for pair in itertools.product(NAMES, NAMES)]
)


@every_dialect
def test_the_kit_passes_on_its_own_samples(name: str) -> None:
    tried, failures = run(registry.get(name))
    assert tried > 90
    assert failures == []


@every_pair
@pytest.mark.parametrize("law", laws.REQUEST_LAWS, ids=lambda law: law.__name__)
@given(asked=strategies.conversations())
def test_request_laws(law: RequestLaw, client: str, upstream: str, asked: Conversation) -> None:
    law(registry.get(client), registry.get(upstream), asked)


@every_pair
@given(pair=strategies.conversations_that_go_on())
def test_prefix_is_stable(client: str, upstream: str, pair: tuple[Conversation, Conversation]) -> None:
    earlier, later = pair
    more = later.messages[len(earlier.messages) :]
    if later.messages[: len(earlier.messages)] == earlier.messages:
        laws.prefix_is_stable(registry.get(client), registry.get(upstream), earlier, more)


@every_pair
@given(events=strategies.events(choices=1))
def test_nothing_is_lost_in_a_stream(client: str, upstream: str, events: Events) -> None:
    laws.nothing_is_lost_in_a_stream(registry.get(client), registry.get(upstream), events)


@every_pair
@given(events=strategies.events(choices=1), data=st.data())
def test_cuts_do_not_matter(client: str, upstream: str, events: Events, data: st.DataObject) -> None:
    source = registry.get(upstream)
    ways = WaysBack(plan(source, source, NOBODY))
    stream = laws.encoded(source, ways.feed(events))
    if stream and data.draw(st.booleans(), "broken"):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream = data.draw(st.sampled_from([stream[:at], stream[:at] + b"\xff" + stream[at + 1 :]]))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    laws.cuts_do_not_matter(plan(registry.get(client), source, NOBODY), stream, cuts)


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
