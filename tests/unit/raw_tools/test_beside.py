"""Calls and markers beside something else: a native call, `tool_choice: none`, thinking tags, wrappers of channels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import structs

from dragoman.filters.raw_tools import DeclaredTools, Engine, RawTools
from dragoman.filters.raw_tools.outputs import EngineNote
from dragoman.filters.raw_tools.readers import BUFFER_LIMIT
from dragoman.model.blocks import Text, ToolCall
from dragoman.model.conversation import Stop, StopReason, ToolChoice
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    Event,
    Events,
    Started,
    Stopped,
    TextDelta,
)
from tests.unit.raw_tools.renderers import BY_NAME_ONLY, RENDER, CallToWrite
from tests.unit.raw_tools.samples import (
    AB,
    BASH,
    CB,
    CE,
    LS,
    ONE,
    REASONING,
    SB,
    SE,
    TEXT,
    TOOLS,
    Call,
    ChannelText,
    FilteredResponse,
    all_cuts,
    call,
    channel_cuts,
    conversation,
    run_filter,
    section,
    stream,
)

NATIVE = Call("call_1", "bash", "{}")
TAG = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
MARKERS = [
    SB, SE, CB, CE, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁end｜>", "<｜DSML｜function_calls>", "<|close|>tools<|sep|>",
]  # fmt: skip


def example(table: str) -> str:
    return RENDER[table]([CallToWrite("bash", {"command": "ls"}, {})])


# --- residue beside a native call


def _native(key: int) -> Iterator[Events]:
    yield (BlockStarted(key, ToolCall("call_1", "bash")),)
    yield (ArgumentsDelta(key, "{}"),)
    yield (BlockEnded(key),)


def _text(key: int, pieces: list[str]) -> Iterator[Events]:
    yield (BlockStarted(key, Text("")),)
    yield from ((TextDelta(key, piece),) for piece in pieces)
    yield (BlockEnded(key),)


def _around(before: list[str], after: list[str] | None = None) -> Iterator[Events]:
    """Text, a native call in frames of its own, and more text."""
    yield (Started("r", "m"),)
    if before:
        yield from _text(0, before)
    yield from _native(1)
    if after is not None:
        yield from _text(2, after)
    yield (Stopped(Stop(StopReason.TOOL)),)
    yield (FINISHED,)


def _before_and_after(text: str) -> Iterator[FilteredResponse]:
    """The text before a native call, and after it, under every cut."""
    for cut in all_cuts(text):
        yield run_filter(_around(cut))
        yield run_filter(_around([], cut))


@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_beside_a_native_call_is_removed(marker: str) -> None:
    for filtered in _before_and_after(f"Done. {marker}"):
        assert (filtered.calls, filtered.text().rstrip()) == ([NATIVE], "Done.")
        assert filtered.rules == {"raw_tools.residue"}


@pytest.mark.parametrize("marker", MARKERS)
def test_a_text_that_is_nothing_but_residue_is_no_text(marker: str) -> None:
    for filtered in _before_and_after(marker):
        assert (filtered.calls, filtered.text()) == ([NATIVE], "")
        assert filtered.rules == {"raw_tools.residue"}


@pytest.mark.parametrize("marker", [SB, CB, "<｜tool▁calls▁begin｜>", "<|open|>tools<|sep|>"])
def test_half_a_marker_before_a_native_call_is_removed(marker: str) -> None:
    for size in range(4, len(marker)):
        for cut in all_cuts(f"Done.{marker[:size]}"):
            filtered = run_filter(_around(cut))
            assert (filtered.calls, filtered.text()) == ([NATIVE], "Done."), cut
            assert filtered.rules == {"raw_tools.residue"}


@pytest.mark.parametrize("text", ["a <", "a <|", "if a <|b", "a < b", "[", "`<|tool_calls`"])
def test_what_is_too_short_to_be_half_a_marker_stays(text: str) -> None:
    for filtered in _before_and_after(text):
        assert (filtered.calls, filtered.text(), filtered.rules) == ([NATIVE], text, frozenset())


@pytest.mark.parametrize("marker", MARKERS)
def test_without_a_native_call_the_same_marker_is_text(marker: str) -> None:
    for cut in all_cuts(f"Done. {marker}"):
        filtered = run_filter(stream([(TEXT, piece) for piece in cut]))
        assert (filtered.text(), filtered.rules) == (f"Done. {marker}", frozenset())


@pytest.mark.parametrize("marker", MARKERS)
def test_a_quoted_marker_beside_a_native_call_stays(marker: str) -> None:
    for text in (f"```\n{marker}\n```\n", f"The marker `{marker}` it is."):
        for filtered in _before_and_after(text):
            assert (filtered.calls, filtered.text(), filtered.rules) == ([NATIVE], text, frozenset())


def test_tags_beside_a_native_call_are_text() -> None:
    for text in (TAG, "Use <tool_call> and </tool_call>.", "<function_calls>"):
        for cut in all_cuts(text):
            filtered = run_filter(_around([], cut))
            assert (filtered.calls, filtered.text(), filtered.rules) == ([NATIVE], text, frozenset())


def test_a_whole_section_beside_a_native_call_is_a_call() -> None:
    for cut in all_cuts(ONE):
        assert run_filter(_around(cut)).calls == [BASH, NATIVE]
        assert run_filter(_around([], cut)).calls == [NATIVE, BASH]


def test_residue_in_the_frame_of_the_native_call() -> None:
    frames: list[Events] = [
        (Started("r", "m"),),
        (BlockStarted(0, Text("")), TextDelta(0, f"Done.{SB}"), BlockEnded(0), BlockStarted(1, ToolCall("call_1", "bash"))),
        (ArgumentsDelta(1, "{}"), BlockEnded(1)),
        (Stopped(Stop(StopReason.TOOL)), FINISHED),
    ]  # fmt: skip
    filtered = run_filter(frames)
    assert (filtered.calls, filtered.text(), filtered.rules) == ([NATIVE], "Done.", frozenset({"raw_tools.residue"}))


def test_residue_of_another_choice_is_text() -> None:
    frames: list[Events] = [
        (Started("r", "m"),),
        (BlockStarted(0, Text(""), 0), TextDelta(0, f"Done.{SB}")),
        (BlockStarted(1, ToolCall("call_1", "bash"), 1), ArgumentsDelta(1, "{}"), BlockEnded(1)),
        (BlockEnded(0),),
        (Stopped(Stop(StopReason.END), 0), Stopped(Stop(StopReason.TOOL), 1), FINISHED),
    ]
    filtered = run_filter(frames)
    assert (filtered.text(), filtered.rules) == (f"Done.{SB}", frozenset())


# --- tool_choice: none


@pytest.mark.parametrize("table", RENDER)
def test_with_tool_choice_none_no_call_of_any_format_comes_out(table: str) -> None:
    """Neither the call nor its markers; the text around it stays."""
    request = structs.replace(conversation(), tool_choice=ToolChoice("none"))
    choices = [table] if table in BY_NAME_ONLY else ["auto", table]
    for choice in choices:
        for cut in all_cuts(example(table)):
            filtered = run_filter(stream([(TEXT, piece) for piece in cut]), RawTools(choice), request)
            assert (filtered.calls, filtered.text().strip(), filtered.why) == ([], "", StopReason.END), (choice, cut)
            assert filtered.rules == {"raw_tools.suppressed"}, (choice, cut)


def test_with_tool_choice_none_a_call_that_has_to_wait_is_read_too() -> None:
    """Without its section, or in a quotation that nothing closes, a call is held until it is whole."""
    request = structs.replace(conversation(), tool_choice=ToolChoice("none"))
    for before, text in (("I look.\n", call("functions.bash:0", LS)), ("```\n", ONE), ("> ", ONE)):
        for cut in all_cuts(before + text):
            filtered = run_filter(stream([(TEXT, piece) for piece in cut]), None, request)
            assert (filtered.calls, filtered.text(), filtered.rules) == (
                [],
                before,
                frozenset({"raw_tools.suppressed"}),
            ), cut
    for text in (call("functions.bash:0", "{}"), "```\n" + section(call("functions.bash:0", "{}"))):
        for cut in all_cuts(text):
            filtered = run_filter(stream([(TEXT, piece) for piece in cut]), None, request)
            assert (filtered.text(), filtered.rules) == (text, frozenset()), cut


def test_with_tool_choice_none_long_arguments_are_not_kept() -> None:
    engine = Engine("auto", DeclaredTools(TOOLS), muted=True)
    engine.feed(f'{SB}{CB}functions.bash:0{AB}{{"command":"')
    for _ in range(100):
        assert engine.feed("x" * BUFFER_LIMIT) == []
    assert engine.peak < 100
    assert [type(each) for each in engine.feed(f'"}}{CE}{SE}')] == [EngineNote]


@pytest.mark.parametrize("text", [ONE, TAG], ids=["special", "tag"])
def test_with_tool_choice_none_the_text_around_a_call_stays(text: str) -> None:
    request = structs.replace(conversation(), tool_choice=ToolChoice("none"))
    for cut in all_cuts(f"a\n{text} b"):
        filtered = run_filter(stream([(TEXT, piece) for piece in cut]), None, request)
        assert (filtered.calls, filtered.text(), filtered.why) == ([], "a\n b", StopReason.END)
        assert filtered.rules == {"raw_tools.suppressed"}


# --- thinking tags and raw tools together


THINKING: list[tuple[str, str, str, list[Call], str]] = [
    ("no call", "<think>plan</think>answer", "plan", [], "answer"),
    ("call after it", f"<think>plan</think>{ONE}", "plan", [BASH], ""),
    ("call and text after it", f"<think>\nplan</think>\n\nI look.{ONE}", "plan", [BASH], "I look."),
    ("call in it", f"<think>plan{ONE}</think>done", "plan", [BASH], "done"),
    ("call in the middle of it", f"<think>plan{ONE} more</think>done", "plan more", [BASH], "done"),
    ("tag in it", f"<think>plan\n{TAG}\n</think>done", "plan\n", [Call("", "bash", LS)], "done"),
    ("never closed", f"<think>plan{ONE}", "plan", [BASH], ""),
    ("never closed, no call", "<think>plan </thin", "plan </thin", [], ""),
    ("quoted in it", f"<think>I write `{ONE}` now</think>done", f"I write `{ONE}` now", [], "done"),
    ("not at the beginning", "I use <think> here", "", [], "I use <think> here"),
]  # fmt: skip


@pytest.mark.parametrize("choice", ["auto", "kimi"])
@pytest.mark.parametrize(
    ("text", "reasoning", "calls", "rest"), [row[1:] for row in THINKING], ids=[row[0] for row in THINKING]
)
def test_thinking_in_tags_beside_calls(choice: str, text: str, reasoning: str, calls: list[Call], rest: str) -> None:
    if choice == "kimi" and (TAG in text or "`" in text):
        pytest.skip("a named table reads its own format alone, in quotations too")
    for cut in all_cuts(text):
        filtered = run_filter(stream([(TEXT, piece) for piece in cut]), RawTools(choice, think_tags=True))
        found = [structs.replace(each, id="", arguments=each.arguments.replace(" ", "")) for each in filtered.calls]
        assert found == [structs.replace(each, id="") for each in calls], cut
        assert (filtered.text(REASONING), filtered.text()) == (reasoning, rest), cut
        assert ("think.tags" in filtered.rules) is text.startswith("<think>"), cut
        assert filtered.why is (StopReason.TOOL if calls else StopReason.END)


@pytest.mark.parametrize("space", ["", "\n", "\n\n"])
def test_reasoning_that_closes_late_closes_before_the_call(space: str) -> None:
    """Without an opening tag: a template wrote it. The end of thinking goes, whatever carries it."""
    for channel in (TEXT, REASONING):
        for pieces in channel_cuts([(channel, f"plan</think>{space}{ONE}")]):
            filtered = run_filter(stream(pieces), RawTools())
            assert (filtered.calls, filtered.text(channel)) == ([BASH], "plan"), pieces


def test_reasoning_that_closes_late_in_another_carrier() -> None:
    texts: list[ChannelText] = [
        (REASONING, f"plan{SB}{call('functions.bash:0', LS)}"),
        (TEXT, f"{SE}</think>\n\nDone."),
    ]
    for pieces in channel_cuts(texts):
        filtered = run_filter(stream(pieces), RawTools())
        assert (filtered.calls, filtered.text(REASONING), filtered.text().strip()) == ([BASH], "plan", "Done."), pieces


def test_an_end_of_thinking_without_a_call_is_text() -> None:
    for cut in all_cuts("The tag </think> ends it."):
        filtered = run_filter(stream([(TEXT, piece) for piece in cut]), RawTools())
        assert (filtered.text(), filtered.rules) == ("The tag </think> ends it.", frozenset())


def test_each_text_block_may_begin_with_thinking() -> None:
    frames: list[Event] = [Started("r", "m")]
    for key, text in enumerate(("<think>one</think>a", "<think>two</think>b")):
        frames += [BlockStarted(key, Text("")), *(TextDelta(key, char) for char in text), BlockEnded(key)]
    filtered = run_filter(
        [(event,) for event in (*frames, Stopped(Stop(StopReason.END)), FINISHED)], RawTools(think_tags=True)
    )
    assert filtered.content == ((REASONING, "one"), (TEXT, "a"), (REASONING, "two"), (TEXT, "b"))
    assert filtered.rules == {"think.tags"}


def test_off_with_thinking_tags_reads_no_calls() -> None:
    for cut in all_cuts(f"<think>plan</think>{ONE}"):
        filtered = run_filter(stream([(TEXT, piece) for piece in cut]), RawTools("off", think_tags=True))
        assert filtered.content == ((REASONING, "plan"), (TEXT, ONE))


# --- channels and wrappers


HARMONY = (
    "<|channel|>analysis<|message|>I plan.<|end|><|start|>assistant<|channel|>commentary to=functions.bash "
    f"<|constrain|>json<|message|>{LS}<|call|>"
)


@pytest.mark.parametrize("choice", ["auto", "harmony"])
@pytest.mark.parametrize(
    ("text", "reasoning", "shown", "calls"),
    [
        ("<|channel|>analysis<|message|>I plan.<|end|><|start|>assistant<|channel|>final<|message|>Hi.", "I plan.", "Hi.", 0),
        ("<|channel|>final<|message|>Hi.<|return|>", "", "Hi.", 0),
        (HARMONY, "I plan.", "", 1),
    ],
)  # fmt: skip
def test_channels_say_what_is_reasoning_and_what_is_text(
    choice: str, text: str, reasoning: str, shown: str, calls: int
) -> None:
    for cut in all_cuts(text):
        filtered = run_filter(stream([(TEXT, piece) for piece in cut]), RawTools(choice))
        assert (filtered.text(REASONING), filtered.text()) == (reasoning, shown), cut
        assert [each.name for each in filtered.calls] == ["bash"] * calls, cut
        assert "raw_tools.wrapper" in filtered.rules, cut


@pytest.mark.parametrize("choice", ["auto", "kimi_k3"])
def test_wrappers_of_kimi_k3_are_removed(choice: str) -> None:
    response = "<|open|>response<|sep|>Hi.<|close|>response<|sep|>"
    for cut in all_cuts(response):
        filtered = run_filter(stream([(TEXT, piece) for piece in cut]), RawTools(choice))
        assert (filtered.text(), filtered.text(REASONING)) == ("Hi.", ""), cut
        assert filtered.rules == {"raw_tools.wrapper"}, cut


@pytest.mark.parametrize("text", ["The marker <|open|>response<|sep|> opens it.", "`<|channel|>final<|message|>`"])
def test_a_wrapper_in_the_middle_of_a_text_is_text(text: str) -> None:
    for cut in all_cuts(text):
        filtered = run_filter(stream([(TEXT, piece) for piece in cut]))
        assert (filtered.text(), filtered.rules) == (text, frozenset()), cut


# --- what a cut may bring


@pytest.mark.parametrize("text", [f"<think>plan</think>{ONE}", "<think>plan</think>hello", ONE])
def test_an_empty_delta_does_not_open_the_text_before_what_comes_first(text: str) -> None:
    """Many services begin with an empty text. Blocks come in the order in which they are written."""
    whole = run_filter(stream([(TEXT, text)]), RawTools(think_tags=True))
    filtered = run_filter(stream([(TEXT, ""), (TEXT, ""), (TEXT, text)]), RawTools(think_tags=True))
    assert filtered == whole
    assert (TEXT, "") not in filtered.content
