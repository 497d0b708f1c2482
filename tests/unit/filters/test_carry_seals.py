"""Signatures of calls and texts go through clients of other families and come home (D50)."""

from __future__ import annotations

import base64

import pytest

import dragoman.dialects as registry
from dragoman.answer import ResponseFilters
from dragoman.conformance.laws import NOBODY, encoded, read_back, still_world
from dragoman.filters import CarrySeals
from dragoman.filters.carry_seals import Mark, mark, unmark
from dragoman.model import grammar
from dragoman.model.assemble import fold, unfold
from dragoman.model.blocks import Block, Reasoning, Seal, Text, ToolCall, ToolResult
from dragoman.model.capabilities import Capabilities, traits
from dragoman.model.conversation import Choice, Conversation, Message, Reply, Stop, Why
from dragoman.model.events import BlockStarted, Events, Sealed
from dragoman.model.facts import Facts
from dragoman.model.notes import Notes
from dragoman.translate import plan

GEMINI = registry.get("gemini")
USER = Message("user", (Text("hi"),))
SIGNED = (
    Reasoning("hm", "gemini"),
    Text("I will look."),
    ToolCall("call_1", "read", '{"path":"a"}', seal=Seal("gemini", "c2lnbmVk")),
    ToolCall("call_2", "read", '{"path":"b"}'),
    ToolCall("call_3", "read", '{"path":"c"}', seal=Seal("gemini", "dGhpcmQ=")),
)
WITH_A_SLOT = [
    name for name in registry.names() if name not in ("gemini", "kiro", "ollama")
]  # nobody is a client of kiro's


def told(client: str, blocks: tuple[Block, ...], why: Why = Why.TOOL) -> tuple[Events, list[str]]:
    ways = ResponseFilters(plan(registry.get(client), GEMINI, NOBODY))
    events = ways.feed(unfold(Reply("r", "claude-x", (Choice(blocks, Stop(why)),)), ways.keys))
    grammar.check(events)
    return events, [note.rule for note in ways.notes]


def said_again(client: str, blocks: tuple[Block, ...], upstream: str = "gemini") -> tuple[Block, ...]:
    """What the upstream is told when the client repeats its history: through the client's own request and back."""
    dialect = registry.get(client)
    results = tuple(ToolResult(block.id, (Text("ok"),)) for block in blocks if isinstance(block, ToolCall))
    history = Conversation("claude-x", (USER, Message("assistant", blocks), Message("user", (*results, Text("on")))))
    asked = dialect.codec.parse_request(dialect.codec.render_request(history))
    return plan(dialect, registry.get(upstream), asked).sent.messages[1].blocks


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("client", WITH_A_SLOT)
def test_the_signatures_of_calls_come_home_through_every_client_that_has_a_slot(client: str, streamed: bool) -> None:
    events, rules = told(client, SIGNED)
    assert "seal.no_place" not in rules
    dialect = registry.get(client)
    got = fold(read_back(dialect, encoded(dialect, events))) if streamed else fold(events)
    seen = dialect.codec.parse_reply(dialect.codec.render_reply(got, NOBODY, still_world()), NOBODY)
    again = said_again(client, seen.choices[0].blocks)
    calls = [block for block in again if isinstance(block, ToolCall)]
    assert [(call.id, call.name) for call in calls] == [(f"call_{n}", "read") for n in (1, 2, 3)]
    assert [call.seal and call.seal.data for call in calls] == ["c2lnbmVk", None, "dGhpcmQ="]
    assert "".join(block.text for block in again if isinstance(block, Reasoning)) == "hm"
    assert "".join(block.text for block in again if isinstance(block, Text)) == "I will look."


@pytest.mark.parametrize("upstream", ["anthropic", "openai"])
@pytest.mark.parametrize("streamed", [True, False])
def test_signed_thinking_comes_home_through_a_gemini_client(upstream: str, streamed: bool) -> None:
    sealed = (Reasoning("hm", upstream, Seal(upstream, "s1")), ToolCall("call_1", "read", "{}"))
    ways = ResponseFilters(plan(GEMINI, registry.get(upstream), NOBODY))
    events = ways.feed(unfold(Reply("r", "claude-x", (Choice(sealed, Stop(Why.TOOL)),)), ways.keys))
    if streamed:
        seen = fold(read_back(GEMINI, encoded(GEMINI, events)))
    else:
        seen = GEMINI.codec.parse_reply(GEMINI.codec.render_reply(fold(events), NOBODY, still_world()), NOBODY)
    assert said_again("gemini", seen.choices[0].blocks, upstream)[0] == Reasoning("hm", upstream, Seal(upstream, "s1"))


def test_a_calls_signature_rides_on_an_empty_thought_right_before_it() -> None:
    events, _ = told("anthropic", SIGNED)
    begun = [event.block for event in events if isinstance(event, BlockStarted)]
    kinds = [type(block).__name__ for block in begun]
    assert kinds == ["Reasoning", "Text", "Reasoning", "ToolCall", "ToolCall", "Reasoning", "ToolCall"]
    rider = next(event.seal for event in events if isinstance(event, Sealed) and unmark(event.seal.data))
    assert rider.family == "anthropic"


def test_a_texts_signature_rides_before_what_comes_next_and_no_answer_ends_with_a_thought() -> None:
    """`claude -p` prints the last block if it is a text: a thought after it would be an empty answer."""
    text, closing = Text("a", seal=Seal("gemini", "MQ==")), Text("", seal=Seal("gemini", "Mg=="))
    events, rules = told("anthropic", (text, Text("b"), closing), Why.END)
    begun = [event.block for event in events if isinstance(event, BlockStarted)]
    assert [type(block).__name__ for block in begun] == ["Text", "Reasoning", "Text"]
    assert rules == ["seal.no_place"]
    assert said_again("anthropic", fold(events).choices[0].blocks) == (text, Text("b"))


def test_a_signature_without_its_call_is_dropped_with_a_note() -> None:
    rider = Reasoning("", "anthropic", Seal("anthropic", mark(Seal("gemini", "MQ=="), "gone")))
    notes = Notes()
    filter_ = CarrySeals(Capabilities(), "anthropic", Capabilities(traits=traits("sealed_words")))
    sent, _ = filter_.forward(Conversation("m", (USER, Message("assistant", (rider, Text("x"))))), notes, Facts())
    assert sent.messages[1].blocks == (Text("x"),)
    assert [note.rule for note in notes] == ["seal.no_call"]


@pytest.mark.parametrize("owner", [None, "", "call_1", "naïve id.with dots"])
def test_a_mark_is_read_as_it_was_written_also_as_bytes(owner: str | None) -> None:
    text = mark(Seal("gemini", "ü/=", "redacted"), owner)
    assert unmark(text) == Mark(Seal("gemini", "ü/=", "redacted"), owner)
    assert unmark(base64.b64encode(text.encode()).decode()) == unmark(text)
    assert unmark(base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")) == unmark(text)
