"""The response halves of the filters that read replies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.filters import (
    CarrySignatures,
    DropForeign,
    FixStopReason,
    RawTools,
    SerializeBlocks,
    WrapArguments,
    WrapTextTools,
)
from dragoman.filters.signatures import MarkedSignature, mark_signature, unmark_signature
from dragoman.model import assemble
from dragoman.model.assemble import assemble_reply
from dragoman.model.blocks import Extra, Media, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.capabilities import Capabilities, traits
from dragoman.model.conversation import Conversation, Message, Stop, StopReason, ToolSpec, Usage
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockKeys,
    BlockStarted,
    CitationAdded,
    Event,
    Events,
    Failed,
    OpaqueEvent,
    ReasoningDelta,
    SignatureAdded,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
)
from dragoman.model.filter import Facts, Filter, Notes, ResponseFilter
from tests import strategies

EMPTY = Conversation("m", ())
OBJECT = Capabilities(arguments="object")


def back_of(filter_: Filter, conversation: Conversation = EMPTY) -> tuple[ResponseFilter, Notes]:
    maker = filter_.make_response_filter or filter_.forward(conversation, Notes(), Facts())[1]
    assert maker is not None
    notes = Notes()
    return maker(notes, BlockKeys(1 << 20)), notes  # the tests choose the keys of their own blocks


def stream(*items: Event, why: StopReason = StopReason.END) -> Events:
    return (Started("r", "m"), *items, Stopped(Stop(why)), FINISHED)


def call(key: int, name: str = "f", *pieces: str, end: bool = True) -> list[Event]:
    begun: list[Event] = [
        BlockStarted(key, ToolCall(f"id{key}", name)),
        *(ArgumentsDelta(key, each) for each in pieces),
    ]
    return [*begun, BlockEnded(key)] if end else begun


def rules(notes: Notes) -> list[str]:
    return [note.rule for note in notes]


# --- serialize_blocks


def in_turn(events: Sequence[Event]) -> bool:
    """Whether no block begins before the last has ended."""
    opened = 0
    for event in events:
        opened += isinstance(event, BlockStarted) - isinstance(event, BlockEnded)
        if opened > 1:
            return False
    return True


@given(strategies.events(choices=1), st.data())
def test_blocks_come_one_after_the_other_and_nothing_is_lost(events: Events, data: st.DataObject) -> None:
    back, _ = back_of(SerializeBlocks())
    out = [event for batch in data.draw(strategies.batches_of(events)) for event in back.feed(batch)]
    assemble.check(out)
    assert in_turn(out)
    if not isinstance(events[-1], Failed) and not isinstance(out[-1], Failed):
        assert assemble_reply(out).choices == assemble_reply(events).choices


def test_interleaved_calls_come_out_whole() -> None:
    mixed: list[Event] = [
        BlockStarted(0, ToolCall("a", "f")),
        BlockStarted(1, ToolCall("b", "g")),
        ArgumentsDelta(0, '{"x":'),
        ArgumentsDelta(1, '{"y":'),
        ArgumentsDelta(0, "1}"),
        ArgumentsDelta(1, "2}"),
        BlockEnded(0),
        BlockEnded(1),
    ]
    back, _ = back_of(SerializeBlocks())
    out = back.feed(stream(*mixed, why=StopReason.TOOL))
    assert [event.text for event in out if isinstance(event, ArgumentsDelta)] == ['{"x":', "1}", '{"y":', "2}"]


def test_calls_one_after_the_other_stream_live_although_their_end_is_not_sent() -> None:
    back, _ = back_of(SerializeBlocks())
    back.feed((Started("r", "m"), *call(0, "f", '{"a":1}', end=False)))
    started = BlockStarted(1, ToolCall("b", "g"))
    assert back.feed((started,)) == (BlockEnded(0), started)
    delta = (ArgumentsDelta(1, '{"b'),)
    assert back.feed(delta) is delta
    assert back.feed((ArgumentsDelta(0, "  \n"),)) == ()


def test_a_call_that_goes_on_after_its_json_was_whole_fails_the_stream() -> None:
    back, _ = back_of(SerializeBlocks())
    back.feed((Started("r", "m"), *call(0, "f", '{"a":1}', end=False), BlockStarted(1, ToolCall("b", "g"))))
    (failed,) = back.feed((ArgumentsDelta(0, "}"),))
    assert isinstance(failed, Failed)
    assert back.feed((FINISHED,)) == ()


def test_what_is_buffered_is_bounded_and_past_it_the_stream_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.filters.response.BUFFER_LIMIT", 10)
    back, _ = back_of(SerializeBlocks())
    back.feed((Started("r", "m"), BlockStarted(0, Text("")), BlockStarted(1, ToolCall("b", "g"))))
    assert back.feed((ArgumentsDelta(1, "x" * 10),)) == ()
    (failed,) = back.feed((ArgumentsDelta(1, "y"),))
    assert isinstance(failed, Failed)


# --- fix_stop_reason


@pytest.mark.parametrize(
    ("blocks", "reported", "right"),
    [
        (call(0), StopReason.END, StopReason.TOOL),
        (call(0), StopReason.SEQUENCE, StopReason.TOOL),
        (call(0), StopReason.PAUSE, StopReason.TOOL),
        (call(0), StopReason.LENGTH, StopReason.LENGTH),
        (call(0), StopReason.REFUSAL, StopReason.REFUSAL),
        ([], StopReason.TOOL, StopReason.END),
        ([], StopReason.PAUSE, StopReason.PAUSE),
        ([], StopReason.SEQUENCE, StopReason.SEQUENCE),
        ([BlockStarted(0, ToolCall("a", "f")), BlockEnded(0, is_complete=False)], StopReason.TOOL, StopReason.LENGTH),
    ],
)
def test_the_stop_reason_follows_the_content(blocks: list[Event], reported: StopReason, right: StopReason) -> None:
    """The stop reason follows from the calls (docs/decisions/responses.md#d6)."""
    back, notes = back_of(FixStopReason(pauses=True))
    out = back.feed(stream(*blocks, why=reported))
    (stopped,) = [event for event in out if isinstance(event, Stopped)]
    assert stopped.stop.reason is right
    assert rules(notes) == ([] if reported is right else ["stop.settled"])


# --- wrap_arguments


@pytest.mark.parametrize(
    ("pieces", "expected", "rule"),
    [
        (['{"a"', ":1}"], '{"a":1}', []),
        (["", ""], "", []),
        (["  ", " "], "", []),
        (['"{\\"a\\"', ':1}"'], '{"a":1}', ["arguments.wrapped"]),
        (['"\\', '"\\""'], '{"raw_arguments":"\\"\\\\\\"\\\\\\"\\""}', ["arguments.wrapped"]),
        (['""'], "", ["arguments.wrapped"]),
        (["[1", "]"], '{"raw_arguments":"[1]"}', ["arguments.wrapped"]),
        (["ls ", "-la"], '{"raw_arguments":"ls -la"}', ["arguments.wrapped"]),
        (['{"a":', '"cut'], '{"a":"cut', ["arguments.not_json"]),
        (['{"a":1}', "}"], '{"a":1}}', ["arguments.not_json"]),
        (['{"a":1}} '], '{"a":1}}', ["arguments.not_json"]),
    ],
)
def test_streamed_arguments_are_an_object(pieces: list[str], expected: str, rule: list[str]) -> None:
    """Arguments that are no JSON object are wrapped (docs/decisions/content.md#d3)."""
    back, notes = back_of(WrapArguments(OBJECT, OBJECT))
    out = [each for event in stream(*call(0, "f", *pieces)) for each in back.feed((event,))]
    assemble.check(out)
    assert "".join(event.text for event in out if isinstance(event, ArgumentsDelta)).strip() == expected
    assert rules(notes) == rule


def test_arguments_that_begin_as_an_object_stream_live() -> None:
    back, _ = back_of(WrapArguments(OBJECT, OBJECT))
    back.feed((Started("r", "m"), *call(0, "f", " ", end=False)))
    for piece in ('{"a', '": "b'):
        batch = (ArgumentsDelta(0, piece),)
        assert back.feed(batch) is batch


def test_arguments_that_are_no_object_are_buffered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.filters.calls.BUFFER_LIMIT", 5)
    back, _ = back_of(WrapArguments(OBJECT, OBJECT))
    out = back.feed((Started("r", "m"), *call(0, "f", "abcdef", end=False)))
    assert isinstance(out[-1], Failed)
    assert back.feed((FINISHED,)) == ()


@pytest.mark.parametrize("bad", ["[1]", "no json", '{"cut'])
def test_arguments_of_history_are_wrapped_and_noted_with_their_place(bad: str) -> None:
    conversation = Conversation("m", (Message("assistant", (ToolCall("a", "f", bad), ToolCall("b", "f"))),))
    notes = Notes()
    sent, _ = WrapArguments(OBJECT, OBJECT).forward(conversation, notes, Facts())
    first, second = sent.messages[0].blocks
    assert isinstance(first, ToolCall)
    assert first.arguments == '{"raw_arguments":%s}' % ('"' + bad.replace('"', '\\"') + '"')
    assert second == ToolCall("b", "f")
    assert rules(notes) == ["arguments.wrapped"]


# --- wrap_text_tools


PATCH = Conversation("m", (), tools=(ToolSpec("patch", "Patch."), ToolSpec("f", "", {})))


def test_a_free_text_tool_is_wrapped_and_its_call_comes_back_as_text() -> None:
    notes = Notes()
    sent, _ = WrapTextTools().forward(PATCH, notes, Facts())
    tool = sent.tools[0]
    assert isinstance(tool, ToolSpec)
    assert tool.schema is not None
    back, _ = back_of(WrapTextTools(), PATCH)
    out = [each for event in stream(*call(0, "patch", '{"inp', 'ut":"*** Beg\\n"}')) for each in back.feed((event,))]
    (block,) = assemble_reply(out).choices[0].blocks
    assert block == ToolCall("id0", "patch", "*** Beg\n", "text")


def test_other_arguments_of_a_wrapped_tool_come_as_they_are() -> None:
    back, notes = back_of(WrapTextTools(), PATCH)
    (block,) = assemble_reply(back.feed(stream(*call(0, "patch", '{"patch":"x"}')))).choices[0].blocks
    assert block == ToolCall("id0", "patch", '{"patch":"x"}', "text")
    assert rules(notes) == ["tools.text_unwrapped"]


def test_a_call_of_another_tool_is_unchanged() -> None:
    back, _ = back_of(WrapTextTools(), PATCH)
    events = stream(*call(0, "f", '{"input":"x"}'))
    assert back.feed(events) is events


# --- think_tags


@pytest.mark.parametrize(
    ("text", "reasoning", "rest"),
    [
        ("<think>\nplan</think>\n\nAnswer", "plan", "Answer"),
        ("  <thinking>a < b</thinking>x", "a < b", "x"),
        ("◁think▷p◁/think▷ q", "p", "q"),
        ("<think>never closed </thin", "never closed </thin", ""),
        ("<think></think>", "", ""),
        ("<thi", "", "<thi"),
        ("say <think>this</think>", "", "say <think>this</think>"),
        ("   ", "", "   "),
    ],
)
def test_thinking_at_the_head_of_a_text_is_reasoning_under_every_cut(text: str, reasoning: str, rest: str) -> None:
    for pieces in [[text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))]:
        back, notes = back_of(RawTools("off", think_tags=True, family="openai"))
        events = stream(BlockStarted(5, Text("")), *(TextDelta(5, piece) for piece in pieces), BlockEnded(5))
        out = [each for event in events for each in back.feed((event,))]
        assemble.check(out)
        blocks = assemble_reply(out).choices[0].blocks
        assert "".join(block.text for block in blocks if isinstance(block, Reasoning)) == reasoning
        assert "".join(block.text for block in blocks if isinstance(block, Text)) == rest
        assert rules(notes) == (["think.tags"] if text.strip().startswith(("<think", "◁think▷")) else [])


# --- carry_signatures

SLOT = Capabilities(traits=traits("reasoning", "signature_slot"), signatures=frozenset({"anthropic"}))


@given(strategies.signatures)
def test_a_marked_signature_returns_to_its_family(signature: Signature) -> None:
    assert unmark_signature(mark_signature(signature)) == MarkedSignature(signature)
    assert unmark_signature(signature.data) is None


@pytest.mark.parametrize(
    "text", ["", "dragoman1.", "dragoman1.x.odd.aGk", "dragoman1.x.signature.%%%", "dragoman2.x.signature.aGk"]
)
def test_what_we_did_not_mark_is_not_unmarked(text: str) -> None:
    assert unmark_signature(text) is None


def thought(family: str, signature: Signature | None) -> list[Event]:
    signature_events: list[Event] = [SignatureAdded(0, signature)] if signature else []
    return [BlockStarted(0, Reasoning("", family)), ReasoningDelta(0, "hm"), *signature_events, BlockEnded(0)]


@pytest.mark.parametrize(
    ("family", "signature", "marked"),
    [
        ("anthropic", Signature("anthropic", "s"), Signature("anthropic", "s")),
        ("anthropic", None, None),
        ("openai", None, Signature("anthropic", "dragoman1.openai.signature.")),
        ("gemini", Signature("gemini", "hi"), Signature("anthropic", "dragoman1.gemini.signature.aGk")),
        ("openai", Signature("openai", "hi", "encrypted"), Signature("anthropic", "dragoman1.openai.encrypted.aGk")),
    ],
)
def test_a_foreign_signature_travels_marked_and_is_restored(
    family: str, signature: Signature | None, marked: Signature | None
) -> None:
    """Reasoning goes back to the family that thought it (docs/decisions/signatures.md#d50)."""
    filter_ = CarrySignatures(SLOT, "anthropic", Capabilities())
    back, _ = back_of(filter_)
    (block,) = assemble_reply(back.feed(stream(*thought(family, signature)))).choices[0].blocks
    assert isinstance(block, Reasoning)
    assert block.signature == marked
    echoed = Conversation("m", (Message("assistant", (Reasoning("hm", "anthropic", marked),)),))
    sent, _ = filter_.forward(echoed, Notes(), Facts())
    assert sent.messages[0].blocks == (Reasoning("hm", family, signature),)


def test_a_signature_without_a_place_is_dropped_with_a_note() -> None:
    back, notes = back_of(CarrySignatures(SLOT, "anthropic", Capabilities()))
    text: list[Event] = [BlockStarted(1, Text("")), SignatureAdded(1, Signature("gemini", "x")), BlockEnded(1)]
    assert not any(isinstance(event, SignatureAdded) for event in back.feed(stream(*text)))
    assert rules(notes) == ["signature.no_place"]


# --- drop_foreign, the reply half


def test_what_the_client_does_not_know_is_left_out_of_the_reply() -> None:
    extra = Extra("openai", {"fingerprint": 1, "created": 2}, frozenset({"created"}))
    client = Capabilities(media=frozenset())
    back, notes = back_of(DropForeign(client, "anthropic", Capabilities(), "openai"))
    out = back.feed(
        (
            Started("r", "m", extra=extra),
            BlockStarted(0, Opaque("openai", {}, "odd")),
            BlockEnded(0),
            BlockStarted(1, Media("image", "image/png", "base64", "x")),
            BlockEnded(1),
            BlockStarted(2, Reasoning("", "openai")),
            ReasoningDelta(2, "hm"),
            BlockEnded(2),
            BlockStarted(3, Text("", extra=extra)),
            TextDelta(3, "hi"),
            CitationAdded(3, Opaque("openai", {})),
            BlockEnded(3),
            OpaqueEvent("openai", "logprobs", {}),
            UsageReported(Usage(1, 2, extra=extra)),
            Stopped(Stop(StopReason.END, extra=extra)),
            FINISHED,
        )
    )
    assert out == (
        Started("r", "m"),
        BlockStarted(3, Text("")),
        TextDelta(3, "hi"),
        BlockEnded(3),
        UsageReported(Usage(1, 2)),
        Stopped(Stop(StopReason.END)),
        FINISHED,
    )
    expected = ["foreign.field", "foreign.block", "foreign.block", "foreign.block", "foreign.citation", "foreign.event"]
    assert rules(notes) == expected


def test_what_the_client_knows_passes_as_the_same_tuple() -> None:
    back, _ = back_of(DropForeign(SLOT, "anthropic", Capabilities(), "anthropic"))
    events = stream(*thought("anthropic", Signature("anthropic", "s")))
    assert back.feed(events) is events
