from __future__ import annotations

import pytest

from dragoman.filters.raw_tools import RawTools
from dragoman.filters.raw_tools.outputs import Carrier
from dragoman.model.conversation import Why
from dragoman.model.events import BlockKeys, Event
from tests.unit.raw_tools.cases import CASES, Case
from tests.unit.raw_tools.samples import (
    AB,
    REASONING,
    SB,
    TEXT,
    Call,
    Told,
    answered,
    call,
    carrier_cuts,
    conversation,
    section,
    stream,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.number)
@pytest.mark.parametrize(("choice", "interleaves"), [("auto", True), ("auto", False), ("kimi", True)])
def test_a_tricky_case_is_told_right_under_every_cut(case: Case, choice: str, interleaves: bool) -> None:
    filter_ = RawTools(choice, interleaves=interleaves)
    asked = conversation(case.tools)
    for pieces in carrier_cuts(case.said):
        told = answered(stream(pieces, case.finish), filter_, asked)
        assert told.calls == list(case.calls), pieces
        assert told.text() == case.text, pieces
        assert told.text(REASONING) == case.reasoning, pieces
        assert told.why is case.why, pieces


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.number)
def test_a_tricky_case_is_noted_the_same_under_every_cut(case: Case) -> None:
    rules = {
        answered(stream(pieces, case.finish), None, conversation(case.tools)).rules
        for pieces in carrier_cuts(case.said)
    }
    assert len(rules) == 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.number)
def test_buffered_tells_the_same_but_for_calls_that_were_cut_off(case: Case) -> None:
    for pieces in carrier_cuts(case.said):
        told = answered(stream(pieces, case.finish), RawTools(mode="buffered"), conversation(case.tools))
        assert told.calls == [call for call in case.calls if call.complete]
        assert (told.text(), told.text(REASONING)) == (case.text, case.reasoning)


def test_calls_stand_where_they_were_written() -> None:
    text = f"a {section(call('functions.bash:0', '{}'))} b"
    told = answered(stream([(TEXT, text)]), RawTools(interleaves=False))
    assert told.said == ((TEXT, "a "), Call("functions.bash:0", "bash", "{}"), (TEXT, " b"))


@pytest.mark.parametrize("size", [60_000, 8_000_000])
def test_long_arguments_come_whole_and_nothing_of_them_is_kept(size: int) -> None:  # case 31
    from dragoman.filters.raw_tools import Engine
    from dragoman.filters.raw_tools.outputs import Arguments

    engine = Engine("auto")
    engine.feed(f'{SB}<|tool_call_begin|>functions.write:0{AB}{{"content":"')
    piece = "0123456789abcdef" * 64
    sent = 0
    for _ in range(size // len(piece)):
        outputs = engine.feed(piece)
        assert outputs == [Arguments(piece)]
        sent += len(piece)
    assert engine.feed('"}<|tool_call_end|>') and engine.completed == 1
    assert engine.peak < 64


def test_thinking_that_holds_a_section_and_is_closed_after_it() -> None:  # case 36
    from dragoman.filters import ThinkTags
    from dragoman.model import grammar
    from dragoman.model.notes import Notes
    from tests.unit.raw_tools.samples import told_by

    text = f"<think>plan{section(call('functions.bash:0', '{}'))}</think>done"
    for pieces in carrier_cuts([(TEXT, text)]):
        asked, notes, keys = conversation(), Notes(), BlockKeys(1 << 20)
        backs = [
            make(notes, keys)
            for filter_ in (ThinkTags("openai"), RawTools())
            if (make := filter_.forward(asked, notes)[1])
        ]
        events: list[Event] = []
        for frame in stream(pieces):
            told_back = frame
            for back in backs:
                told_back = back.feed(told_back)
            events += told_back
        grammar.check(events)
        told = told_by(events)
        assert (told.text(REASONING), told.calls, told.text()) == (
            "plan",
            [Call("functions.bash:0", "bash", "{}")],
            "done",
        )
        assert told.why is Why.TOOL


def test_text_stays_in_the_field_it_came_in() -> None:
    said: list[tuple[Carrier, str]] = [(REASONING, "a <|tool"), (TEXT, "b <|tool"), (REASONING, "c"), (TEXT, "d")]
    for pieces in carrier_cuts(said):
        told: Told = answered(stream(pieces))
        assert (told.text(REASONING), told.text()) == ("a <|toolc", "b <|toold")
