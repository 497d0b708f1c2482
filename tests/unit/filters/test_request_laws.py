"""The laws of the filters that give a request its shape: each alone, and all of them in the order of translate.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, note

from dragoman.filters.calls import RenameTools
from dragoman.filters.results import PairTools, SimplifyResults
from dragoman.filters.turns import AlternateTurns, FillEmpty, FoldSystem
from dragoman.model.blocks import Block, CacheBreakpoint, Extra, Location, Opaque, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.capabilities import Capabilities, traits
from dragoman.model.conversation import Conversation, Message, to_canonical
from dragoman.model.filter import Facts, Filter, Note, Notes
from tests import strategies
from tests.unit.filters.messages import apply_filter, assistant, system, user

Fitting = Callable[[Capabilities], Sequence[Filter]]

# In the order of translate.py; FoldSystem and FillEmpty stand there only for the targets that need them.
ALL: Fitting = lambda target: [  # noqa: E731
    PairTools(),
    SimplifyResults(target),
    RenameTools(target),
    *([] if target.system == "native" else [FoldSystem(target)]),
    *([FillEmpty()] if "no_blank_text" in target.traits else []),
    AlternateTurns(target),
]
EACH: dict[str, Fitting] = {
    "pair_tools": lambda _: [PairTools()],
    "simplify_results": lambda target: [SimplifyResults(target)],
    "rename_tools": lambda target: [RenameTools(target)],
    "fold_system": lambda target: [FoldSystem(target)],
    "fill_empty": lambda _: [FillEmpty()],
    "alternate_turns": lambda target: [AlternateTurns(target)],
    "all": ALL,
}
UNTOUCHED = ("model", "output", "thinking", "max_tokens", "stop", "sampling", "choices", "stream", "user", "extra")


def fit(filters: Sequence[Filter], conversation: Conversation) -> tuple[Conversation, list[Note]]:
    notes = Notes()
    for each in filters:
        conversation, _ = each.forward(conversation, notes, Facts())
    return conversation, list(notes)


# One conversation is tried on every filter and law: to make one up takes longer than all of them together.


@given(target=strategies.capabilities, conversation=strategies.conversations())
def test_fitting_settles_is_noted_and_changes_the_shape_alone(target: Capabilities, conversation: Conversation) -> None:
    for name, fitting in EACH.items():
        note(name)
        fitted, notes = fit(fitting(target), conversation)
        assert bool(notes) == (fitted != conversation)  # there is a note exactly if there is a change
        assert fitted is conversation or notes
        assert to_canonical(fitted) == fitted
        for field in UNTOUCHED:
            assert getattr(fitted, field) == getattr(conversation, field)
        again, more = fit(fitting(target), fitted)
        assert more == []
        assert again is fitted


@given(target=strategies.capabilities, pair=strategies.continued_conversations())
def test_what_is_appended_leaves_the_prefix_as_it_was(
    target: Capabilities, pair: tuple[Conversation, Conversation]
) -> None:
    for name, fitting in EACH.items():
        note(name)
        earlier, later = (fit(fitting(target), each)[0] for each in pair)
        assert later.messages[: len(earlier.messages)] == earlier.messages
        assert later.system == earlier.system


# --- alternate turns

FREE = Capabilities(turns="free")
NO_PREFILL = Capabilities(turns="free", traits=traits("user_last"))
MERGE = Capabilities(turns="merge")
PAIR = Capabilities(turns="pair", traits=traits("user_last"))


def alternate(target: Capabilities, *messages: Message) -> tuple[tuple[Message, ...], list[Note]]:
    fitted, notes = apply_filter(AlternateTurns(target), Conversation("m", messages))
    return fitted.messages, notes


UNDERSTOOD, CONTINUE = assistant("I understand."), user("Continue")


def test_a_free_target_takes_any_order() -> None:
    messages = (assistant("a"), assistant("b"), user("c"), user("d"), assistant("e"))
    assert alternate(FREE, *messages) == (messages, [])


def test_without_prefill_a_reply_at_the_end_is_followed_by_a_question() -> None:
    messages, notes = alternate(NO_PREFILL, user("a"), assistant("b"))
    assert messages == (user("a"), assistant("b"), CONTINUE)
    assert [(note.rule, note.action) for note in notes] == [("turn.placeholder", "added")]


def test_the_history_of_document_003_is_six_turns_and_the_current_one() -> None:
    turns = (user("1"), user("2"), assistant("3"), user("4"), user("now"))
    messages, notes = alternate(PAIR, *turns)
    assert messages == (user("1"), UNDERSTOOD, user("2"), assistant("3"), user("4"), UNDERSTOOD, user("now"))
    assert [note.rule for note in notes] == ["turn.placeholder"] * 2


@pytest.mark.parametrize(
    ("turns", "paired"),
    [
        (
            [user("a"), assistant("b"), assistant("c"), user("d")],
            [user("a"), assistant("b"), CONTINUE, assistant("c"), user("d")],
        ),
        ([assistant("a"), user("b")], [CONTINUE, assistant("a"), user("b")]),
        ([user("a"), assistant("b")], [user("a"), assistant("b"), CONTINUE]),
        ([], [CONTINUE]),
    ],
)
def test_a_missing_question_is_asked(turns: list[Message], paired: list[Message]) -> None:
    messages, _ = alternate(PAIR, *turns)
    assert messages == tuple(paired)


def test_the_fillers_are_the_targets_own() -> None:
    target = Capabilities(turns="pair", fillers=("Yes.", "And?"))
    messages, _ = alternate(target, assistant("a"), user("b"), user("c"))
    assert messages == (user("And?"), assistant("a"), user("b"), assistant("Yes."), user("c"))


def test_merging_joins_turns_of_one_role_with_results_first() -> None:
    turns = (user("a"), user(ToolResult("1"), "b"), assistant("c"), assistant("d"))
    messages, notes = alternate(MERGE, *turns)
    assert messages == (user(ToolResult("1"), "a", "b"), assistant("c", "d"))
    assert [note.rule for note in notes] == ["turn.merged"] * 2


def test_a_merged_conversation_begins_with_the_user() -> None:
    messages, _ = alternate(MERGE, assistant("a"), user("b"))
    assert messages == (CONTINUE, assistant("a"), user("b"))


def test_merged_turns_keep_the_fields_of_both_and_the_first_rules() -> None:
    one, other = Extra("anthropic", {"a": 1, "b": 1}), Extra("anthropic", {"b": 2, "c": 2}, frozenset({"c"}))
    (message,), _ = alternate(MERGE, user("a", extra=one), user("b", extra=other))
    assert message.extra == Extra("anthropic", {"a": 1, "b": 1, "c": 2}, frozenset({"c"}))
    (message,), _ = alternate(MERGE, user("a", extra=one), user("b", extra=Extra("openai", {})))
    assert message.extra == one


def test_a_placeholder_is_noted_at_the_turn_that_needs_it() -> None:
    _, notes = alternate(PAIR, user("a"), Message("user", (Text("b"),), at=Location("messages[1]")))
    assert [note.at for note in notes] == ["messages[1]"]


@given(conversation=strategies.conversations())
def test_no_role_comes_twice_in_a_row_and_the_user_begins(conversation: Conversation) -> None:
    for target in (MERGE, PAIR):
        fitted, _ = AlternateTurns(target).forward(conversation, Notes(), Facts())
        roles = [message.role for message in fitted.messages]
        assert not any(one == other != "system" for one, other in pairwise(roles))
        assert next(role for role in roles if role != "system") == "user"
        assert "user_last" not in target.traits or roles[-1] != "assistant"


# --- fold system

LEADING = Capabilities(system="leading")
NONE = Capabilities(system="none", fillers=("Understood", "Go on"))


def fold(target: Capabilities, *messages: Message, leading: tuple[Text, ...] = ()) -> tuple[Conversation, list[Note]]:
    return apply_filter(FoldSystem(target), to_canonical(Conversation("m", messages, leading)))


@pytest.mark.parametrize(
    ("messages", "folded"),
    [
        pytest.param([user("a"), system("s"), assistant("b")], [user("a", "[System] s"), assistant("b")], id="before"),
        pytest.param(
            [user("a"), assistant("b"), system("s"), user("c")],
            [user("a"), assistant("b"), user("[System] s", "c")],
            id="after",
        ),
        pytest.param([user("a"), system("s"), user("b")], [user("a", "[System] s"), user("b")], id="before wins"),
        pytest.param(
            [user("a"), assistant("b"), system("s"), assistant("c")],
            [user("a"), assistant("b"), user("[System] s"), assistant("c")],
            id="between replies",
        ),
        pytest.param(
            [user("a"), assistant("b"), system("s")], [user("a"), assistant("b"), user("[System] s")], id="at the end"
        ),
        pytest.param(
            [user("a"), system("s", "t"), system("u")],
            [user("a", "[System] s", "[System] t", "[System] u")],
            id="several",
        ),
        pytest.param(
            [user("a"), assistant(ToolCall("1", "f")), system("s"), user(ToolResult("1"), "b")],
            [user("a"), assistant(ToolCall("1", "f")), user(ToolResult("1"), "[System] s", "b")],
            id="between a call and its result",
        ),
        pytest.param(
            [user("a"), assistant(ToolCall("1", "f")), user(ToolResult("1")), system("s"), user("b")],
            [user("a"), assistant(ToolCall("1", "f")), user(ToolResult("1"), "[System] s", "b")],
            id="after a result",
        ),
        pytest.param([user("a"), system(" "), assistant("b")], [user("a"), assistant("b")], id="blank"),
    ],
)
def test_a_system_message_joins_a_user_turn_beside_it(messages: list[Message], folded: list[Message]) -> None:
    fitted, notes = fold(LEADING, *messages)
    assert fitted.messages == tuple(folded)
    assert {(note.rule, note.at) for note in notes} == {("system.folded", "the system message")}


def test_a_folded_text_keeps_its_cache_mark() -> None:
    fitted, _ = fold(LEADING, user("a"), system(Text("s", CacheBreakpoint("1h"))))
    assert fitted.messages == (user("a", Text("[System] s", CacheBreakpoint("1h"))),)


SYSTEM = (Text("You are terse.", CacheBreakpoint()),)


def test_the_leading_system_text_stays_where_the_target_has_a_place_for_it() -> None:
    fitted, notes = fold(LEADING, user("a"), leading=SYSTEM)
    assert fitted.system == SYSTEM
    assert notes == []


def test_elsewhere_it_stands_before_the_first_user_turn() -> None:
    fitted, notes = fold(NONE, user("a"), assistant("b"), leading=SYSTEM)
    assert fitted.system == ()
    assert fitted.messages == (user(*SYSTEM, "a"), assistant("b"))
    assert [note.rule for note in notes] == ["system.folded"]


@pytest.mark.parametrize("rest", [(), (assistant("b"), user("a"))])
def test_the_system_text_comes_before_a_filler_where_the_user_does_not_begin(rest: tuple[Message, ...]) -> None:
    fitted, notes = fold(NONE, *rest, leading=SYSTEM)
    assert fitted.messages == (user(*SYSTEM, "Go on"), *rest)
    assert [note.rule for note in notes] == ["system.folded", "turn.placeholder"]


@given(strategies.conversations())
def test_no_system_message_is_left(conversation: Conversation) -> None:
    fitted, _ = FoldSystem(NONE).forward(conversation, Notes(), Facts())
    assert not fitted.system
    assert all(message.role != "system" for message in fitted.messages)


# --- fill empty


def fill(*messages: Message, leading: tuple[Text, ...] = ()) -> tuple[Conversation, list[Note]]:
    return apply_filter(FillEmpty(), Conversation("m", messages, leading))


CALL, RESULT = ToolCall("1", "f"), ToolResult("1")


@pytest.mark.parametrize(
    ("messages", "filled"),
    [
        ([user("a", " ")], [user("a")]),
        ([user("a"), assistant("", CALL)], [user("a"), assistant(CALL)]),
        ([user("a"), system("\n", "s")], [user("a"), system("s")]),
        ([user(ToolResult("1", (Text(" "),)), "a")], [user(RESULT, "a")]),
        ([user(ToolResult("1", (Text("x"), Text("\t"))))], [user(ToolResult("1", (Text("x"),)))]),
    ],
)
def test_text_without_content_goes(messages: list[Message], filled: list[Message]) -> None:
    fitted, notes = fill(*messages)
    assert fitted.messages == tuple(filled)
    assert [note.rule for note in notes] == ["text.blank"]


def test_an_empty_result_stays() -> None:
    assert fill(user(RESULT))[1] == []


def test_the_system_text_is_cleaned_too() -> None:
    fitted, notes = fill(user("a"), leading=(Text("s"), Text(" ", CacheBreakpoint(), at=Location("system[1]"))))
    assert fitted.system == (Text("s", CacheBreakpoint()),)
    assert [(note.rule, note.at) for note in notes] == [("text.blank", "system[1]")]


@pytest.mark.parametrize(
    ("messages", "filled"),
    [
        pytest.param([user("a"), assistant(" ")], [user("a")], id="a reply at the end is removed"),
        pytest.param([user("a"), user(" ")], [user("a")], id="a second question goes"),
        pytest.param([user("a"), system("s"), user("")], [user("a"), system("s")], id="over a system message too"),
        pytest.param(
            [user("a"), assistant("b"), assistant("")], [user("a"), assistant("b")], id="a second reply is removed"
        ),
        pytest.param([user("a"), system(" "), assistant("b")], [user("a"), assistant("b")], id="a system message goes"),
        pytest.param([user(" ")], [user(".")], id="the only question stays"),
        pytest.param(
            [user("a"), assistant("b"), user("")], [user("a"), assistant("b"), user(".")], id="the last stays"
        ),
        pytest.param(
            [user("a"), assistant(""), user("c")], [user("a"), assistant("."), user("c")], id="a reply between stays"
        ),
        pytest.param(
            [user(RESULT), assistant(), user("c")], [user(RESULT), assistant("."), user("c")], id="results stay apart"
        ),
    ],
)
def test_a_turn_without_content_goes_or_says_a_dot(messages: list[Message], filled: list[Message]) -> None:
    fitted, notes = fill(*messages)
    assert fitted.messages == tuple(filled)
    assert "turn.empty" in [note.rule for note in notes]


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ((Text("a"), Text(" ", CacheBreakpoint("1h"))), (Text("a", CacheBreakpoint("1h")),)),
        ((Text("a", CacheBreakpoint()), Text(" ", CacheBreakpoint("1h"))), (Text("a", CacheBreakpoint()),)),
        ((Opaque("anthropic", {}), Text("", CacheBreakpoint())), (Opaque("anthropic", {}, cache=CacheBreakpoint()),)),
        ((Text(" ", CacheBreakpoint()), Text("a")), (Text("a"),)),
        ((Reasoning("r"), Text(" ", CacheBreakpoint()), CALL), (Reasoning("r"), CALL)),
    ],
)
def test_a_cache_mark_moves_to_the_block_before_if_that_can_carry_it(
    blocks: tuple[Block, ...], expected: tuple[Block, ...]
) -> None:
    fitted, _ = fill(user("q"), assistant(*blocks), user("r"))
    assert fitted.messages[1].blocks == expected


def test_the_last_reply_does_not_end_with_white_space() -> None:
    fitted, notes = fill(user("a"), assistant("{ "), assistant(" "))
    assert fitted.messages == (user("a"), assistant("{"))
    assert [note.rule for note in notes] == ["text.blank", "turn.empty", "text.trailing_space"]


def test_turns_that_meet_where_a_system_message_went_are_joined_as_a_reader_would() -> None:
    assert fill(user(RESULT), system(" "), user("a"))[0].messages == (user(RESULT, "a"),)


def test_earlier_replies_and_questions_may() -> None:
    assert fill(user("a "), assistant("b "), user("c "))[1] == []


@given(strategies.conversations())
def test_no_blank_text_and_no_empty_turn_is_left(conversation: Conversation) -> None:
    fitted, _ = FillEmpty().forward(conversation, Notes(), Facts())
    blocks: list[Block] = [*fitted.system, *(block for message in fitted.messages for block in message.blocks)]
    blocks += [part for block in blocks if isinstance(block, ToolResult) for part in block.content]
    assert all(block.text.strip() for block in blocks if isinstance(block, Text) and not block.signature)
    assert all(message.blocks for message in fitted.messages)
