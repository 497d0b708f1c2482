"""What `dragoman translate` prints, `dragoman check` takes: requests, replies and streams, for every pair of
dialects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given, note
from hypothesis import strategies as st

import dragoman
import dragoman.dialects as registry
from dragoman.api import Translated
from dragoman.cli.check import breaches_of
from dragoman.conformance import laws
from dragoman.conformance.laws import EMPTY_REQUEST
from dragoman.dialects.base import Dialect
from dragoman.dialects.kiro import DIALECT, KiroBinding, KiroTargetBinding
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.events import BlockKeys, Events
from dragoman.response_stream import ResponseFilters
from dragoman.simulator.kiro.rules import refusals
from dragoman.translate import configure_dialect, plan
from dragoman.wire import jsonio
from tests import strategies
from tests.stories.story import Story, stories

NAMES = registry.names()
# The model is in the path of bedrock and gemini: the check of a bare body must hold for whatever it was.
MODELS = {
    "bedrock": ("anthropic.claude-sonnet-5", "amazon.nova-pro", "deepseek.r1", "meta.llama4", "arn:aws:x"),
    "gemini": ("gemini-3-pro", "gemini-2.5-flash"),
    "kiro": ("claude-sonnet-4.5", "gpt-5.6-sol"),
}


def rules(dialect: str, what: str, data: bytes) -> Sequence[str]:
    return [f"{breach.rule} {breach.at}" for breach in breaches_of(registry.get(dialect), what, data)]


def errors(dialect: str, data: bytes) -> Sequence[str]:
    """Return the errors of a stream. Without its request the model is unknown, and same-dialect frames pass unchanged."""
    found = breaches_of(registry.get(dialect), "stream", data)
    return [f"{breach.rule} {breach.at}" for breach in found if breach.severity == "error"]


def printed(done: Translated) -> bytes:
    return jsonio.encode(done.body)


@pytest.mark.parametrize("story", stories(), ids=str)
@pytest.mark.parametrize("target", NAMES)
def test_requests_of_stories(story: Story, target: str) -> None:
    for model in MODELS.get(target, ("m",)):
        try:
            done = dragoman.translate_request(story.request, source=story.client, target=target, model=model)
        except Unrepresentable:
            continue
        assert rules(target, "request", printed(done)) == []


@pytest.mark.parametrize("story", stories(), ids=str)
@pytest.mark.parametrize("target", NAMES)
def test_streams_of_stories(story: Story, target: str) -> None:
    stream = dragoman.stream_translator(source=story.upstream, target=target)
    data = stream.feed(story.stream) + stream.close()
    assert errors(target, data) == []


# One conversation and one stream are tried on every target: to make one up takes longer than all targets together.


@given(client=st.sampled_from(NAMES).map(registry.get), conversation=strategies.conversations(), data=st.data())
def test_requests(client: Dialect, conversation: Conversation, data: st.DataObject) -> None:
    assume(conversation.messages or conversation.system)  # otherwise it asks nothing: check is right to say so
    for target in NAMES:
        model = data.draw(st.sampled_from(MODELS.get(target, ("m",))))
        note(f"{target} {model}")
        upstream = registry.get(target)
        try:
            planned = plan(client, upstream, conversation, model=model)
        except Unrepresentable:
            continue
        assert rules(target, "request", upstream.binding.wrap(planned.call()).body) == []


@given(source=st.sampled_from(NAMES).map(registry.get), events=strategies.events(choices=1))
def test_streams(source: Dialect, events: Events) -> None:
    payloads = laws.encode_events(
        source, ResponseFilters(plan(source, source, EMPTY_REQUEST), BlockKeys.after(events)).feed(events)
    )
    for target in NAMES:
        note(target)
        stream = dragoman.stream_translator(source=source.name, target=target)
        data = stream.feed(payloads) + stream.close()
        if data:
            assert errors(target, data) == []


# --- Whatever valid conversation hypothesis invents, what Kiro is sent passes the strictest profile of its simulator
#
# Our own clear refusal (Unrepresentable) counts as a pass. `make laws-long` tries many more conversations.

KIRO_MODELS = ("claude-sonnet-4-5", "claude-opus-4.7", "gpt-5.6-sol", "auto")
BINDINGS = (KiroBinding(), KiroTargetBinding())


@given(conversation=strategies.conversations(), model=st.sampled_from(KIRO_MODELS), binding=st.sampled_from(BINDINGS))
def test_what_is_sent_passes_the_paranoid_simulator(
    conversation: Conversation, model: str, binding: KiroBinding
) -> None:
    for client in ("anthropic", "openai"):
        for pairing in ("placeholders", "merge"):
            note(f"{client}, {pairing}")
            upstream = configure_dialect(DIALECT, {"pairing": pairing})
            try:
                planned = plan(registry.get(client), upstream, conversation, model=model)
            except Unrepresentable:
                continue
            assert [str(refusal) for refusal in refusals(binding.wrap(planned.call()), "paranoid")] == []
            assert upstream.codec.breaches(planned.call()) == []


# Schemas as wild as tools have them: keywords with right and wrong values, properties that are named like keywords.
_WORDS = [
    "type",
    "properties",
    "required",
    "items",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "$defs",
    "const",
    "enum",
    "default",
]
_WORDS += ["format", "pattern", "additionalProperties", "$schema", "minimum", "if", "not", "description", "x-own"]
_LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 3, "object", "string", [], {}, ["a"], ["string", "null"], "#/$defs/a", "#", "elsewhere.json", [1, "a"]]
)
schemas: st.SearchStrategy[Any] = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(_WORDS), inner, max_size=5),
        st.dictionaries(st.sampled_from(["a", "b", "format", "required"]), inner, max_size=3),
        st.fixed_dictionaries(
            {"properties": st.dictionaries(st.sampled_from(["a", "items"]), inner)}, optional={"required": inner}
        ),
        st.fixed_dictionaries(
            {"$defs": st.dictionaries(st.sampled_from(["a", "b"]), inner), "$ref": st.just("#/$defs/a")}
        ),
        st.lists(inner, max_size=3),
    ),
    max_leaves=12,
)


@given(schema=schemas.filter(lambda value: isinstance(value, dict)))
def test_every_schema_becomes_one_the_service_takes(schema: dict[str, Any]) -> None:
    tool = ToolSpec("f", "d", schema)
    conversation = Conversation("claude-sonnet-4.5", (Message("user", (Text("a"),)),), tools=(tool,))
    planned = plan(DIALECT, DIALECT, conversation)
    assert [str(refusal) for refusal in refusals(BINDINGS[0].wrap(planned.call()), "paranoid")] == []
    assert plan(DIALECT, DIALECT, planned.translated).translated == planned.translated
