from __future__ import annotations

import pytest

from dragoman.filters.raw_tools import RawTools
from dragoman.filters.raw_tools.outputs import Carrier
from dragoman.model.conversation import Why
from dragoman.model.filter import Facts, Notes
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
        assert told.text() == _text_of(case, choice), pieces
        assert told.text(REASONING) == case.reasoning, pieces
        assert told.why is case.why, pieces


def _text_of(case: Case, choice: str) -> str:
    return case.text if case.auto_text is None or choice != "auto" else case.auto_text


NO_TOOLS = [
    (section(call("functions.task:1", "{}")), Call("functions.task:1", "task", "{}")),
    (section(call("call_1", "{}")), Call("functions.call_1:0", "call_1", "{}")),
]


@pytest.mark.parametrize(("text", "expected"), NO_TOOLS)
def test_without_declared_tools_only_a_named_table_parses(text: str, expected: Call) -> None:
    """L26, L31: the name comes without `functions.`; where the request declares no tools `auto` parses nothing."""
    asked = conversation(())
    for pieces in carrier_cuts([(TEXT, text)]):
        told = answered(stream(pieces), RawTools("kimi"), asked)
        assert (told.calls, told.text(), told.why) == ([expected], "", Why.TOOL)
    assert RawTools("auto").forward(asked, Notes(), Facts()) == (asked, None)


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
        assert told.calls == [call for call in case.calls if call.complete or case.finish is not Why.LENGTH]
        assert (told.text(), told.text(REASONING)) == (_text_of(case, "auto"), case.reasoning)


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


@pytest.mark.parametrize("choice", ["auto", "kimi"])
def test_thinking_that_holds_a_section_and_is_closed_after_it(choice: str) -> None:  # case 36
    text = f"<think>plan{section(call('functions.bash:0', '{}'))}</think>done"
    for pieces in carrier_cuts([(TEXT, text)]):
        told = answered(stream(pieces), RawTools(choice, think_tags=True))
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
