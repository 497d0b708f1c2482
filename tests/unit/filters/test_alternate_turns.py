from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given

from dragoman.filters.turns import AlternateTurns
from dragoman.model.blocks import Extra, Text, ToolResult, Where
from dragoman.model.capabilities import Capabilities, traits
from dragoman.model.conversation import Conversation, Message
from dragoman.model.filter import Facts, Note, Notes
from tests import strategies
from tests.unit.filters.talk import applied, assistant, user

FREE = Capabilities(turns="free")
NO_PREFILL = Capabilities(turns="free", traits=traits("user_last"))
MERGE = Capabilities(turns="merge")
PAIR = Capabilities(turns="pair", traits=traits("user_last"))


def alternate(target: Capabilities, *messages: Message) -> tuple[tuple[Message, ...], list[Note]]:
    fitted, notes = applied(AlternateTurns(target), Conversation("m", messages))
    return fitted.messages, notes


UNDERSTOOD, CONTINUE = assistant("I understand."), user("Continue")


def test_a_free_target_takes_any_order() -> None:
    asked = (assistant("a"), assistant("b"), user("c"), user("d"), assistant("e"))
    assert alternate(FREE, *asked) == (asked, [])


def test_without_prefill_an_answer_at_the_end_is_followed_by_a_question() -> None:
    messages, notes = alternate(NO_PREFILL, user("a"), assistant("b"))
    assert messages == (user("a"), assistant("b"), CONTINUE)
    assert [(note.rule, note.action) for note in notes] == [("turn.placeholder", "added")]


def test_the_history_of_document_003_is_six_turns_and_the_current_one() -> None:
    asked = (user("1"), user("2"), assistant("3"), user("4"), user("now"))
    messages, notes = alternate(PAIR, *asked)
    assert messages == (user("1"), UNDERSTOOD, user("2"), assistant("3"), user("4"), UNDERSTOOD, user("now"))
    assert [note.rule for note in notes] == ["turn.placeholder"] * 2


@pytest.mark.parametrize(
    ("asked", "paired"),
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
def test_a_missing_question_is_asked(asked: list[Message], paired: list[Message]) -> None:
    messages, _ = alternate(PAIR, *asked)
    assert messages == tuple(paired)


def test_the_fillers_are_the_targets_own() -> None:
    target = Capabilities(turns="pair", fillers=("Yes.", "And?"))
    messages, _ = alternate(target, assistant("a"), user("b"), user("c"))
    assert messages == (user("And?"), assistant("a"), user("b"), assistant("Yes."), user("c"))


def test_merging_joins_turns_of_one_role_with_results_first() -> None:
    asked = (user("a"), user(ToolResult("1"), "b"), assistant("c"), assistant("d"))
    messages, notes = alternate(MERGE, *asked)
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
    _, notes = alternate(PAIR, user("a"), Message("user", (Text("b"),), at=Where("messages[1]")))
    assert [note.at for note in notes] == ["messages[1]"]


@given(asked=strategies.conversations())
def test_no_role_comes_twice_in_a_row_and_the_user_begins(asked: Conversation) -> None:
    for target in (MERGE, PAIR):
        fitted, _ = AlternateTurns(target).forward(asked, Notes(), Facts())
        roles = [message.role for message in fitted.messages]
        assert not any(one == other != "system" for one, other in pairwise(roles))
        assert next(role for role in roles if role != "system") == "user"
        assert "user_last" not in target.traits or roles[-1] != "assistant"
