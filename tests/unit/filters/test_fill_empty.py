from __future__ import annotations

import pytest
from hypothesis import given

from dragoman.filters.turns import FillEmpty
from dragoman.model.blocks import Block, Cache, Opaque, Reasoning, Text, ToolCall, ToolResult, Where
from dragoman.model.conversation import Conversation, Message
from dragoman.model.filter import Facts, Note, Notes
from tests import strategies
from tests.unit.filters.talk import applied, assistant, system, user


def fill(*messages: Message, leading: tuple[Text, ...] = ()) -> tuple[Conversation, list[Note]]:
    return applied(FillEmpty(), Conversation("m", messages, leading))


CALL, RESULT = ToolCall("1", "f"), ToolResult("1")


@pytest.mark.parametrize(
    ("asked", "filled"),
    [
        ([user("a", " ")], [user("a")]),
        ([user("a"), assistant("", CALL)], [user("a"), assistant(CALL)]),
        ([user("a"), system("\n", "s")], [user("a"), system("s")]),
        ([user(ToolResult("1", (Text(" "),)), "a")], [user(RESULT, "a")]),
        ([user(ToolResult("1", (Text("x"), Text("\t"))))], [user(ToolResult("1", (Text("x"),)))]),
    ],
)
def test_text_without_content_goes(asked: list[Message], filled: list[Message]) -> None:
    fitted, notes = fill(*asked)
    assert fitted.messages == tuple(filled)
    assert [note.rule for note in notes] == ["text.blank"]


def test_an_empty_result_stays() -> None:
    assert fill(user(RESULT))[1] == []


def test_the_system_text_is_cleaned_too() -> None:
    fitted, notes = fill(user("a"), leading=(Text("s"), Text(" ", Cache(), at=Where("system[1]"))))
    assert fitted.system == (Text("s", Cache()),)
    assert [(note.rule, note.at) for note in notes] == [("text.blank", "system[1]")]


@pytest.mark.parametrize(
    ("asked", "filled"),
    [
        pytest.param([user("a"), assistant(" ")], [user("a")], id="an answer at the end goes"),
        pytest.param([user("a"), user(" ")], [user("a")], id="a second question goes"),
        pytest.param([user("a"), system("s"), user("")], [user("a"), system("s")], id="over a system message too"),
        pytest.param(
            [user("a"), assistant("b"), assistant("")], [user("a"), assistant("b")], id="a second answer goes"
        ),
        pytest.param([user("a"), system(" "), assistant("b")], [user("a"), assistant("b")], id="a system message goes"),
        pytest.param([user(" ")], [user(".")], id="the only question stays"),
        pytest.param(
            [user("a"), assistant("b"), user("")], [user("a"), assistant("b"), user(".")], id="the last stays"
        ),
        pytest.param(
            [user("a"), assistant(""), user("c")], [user("a"), assistant("."), user("c")], id="an answer between stays"
        ),
        pytest.param(
            [user(RESULT), assistant(), user("c")], [user(RESULT), assistant("."), user("c")], id="results stay apart"
        ),
    ],
)
def test_a_turn_without_content_goes_or_says_a_dot(asked: list[Message], filled: list[Message]) -> None:
    fitted, notes = fill(*asked)
    assert fitted.messages == tuple(filled)
    assert "turn.empty" in [note.rule for note in notes]


@pytest.mark.parametrize(
    ("blocks", "kept"),
    [
        ((Text("a"), Text(" ", Cache("1h"))), (Text("a", Cache("1h")),)),
        ((Text("a", Cache()), Text(" ", Cache("1h"))), (Text("a", Cache()),)),
        ((Opaque("anthropic", {}), Text("", Cache())), (Opaque("anthropic", {}, cache=Cache()),)),
        ((Text(" ", Cache()), Text("a")), (Text("a"),)),
        ((Reasoning("r"), Text(" ", Cache()), CALL), (Reasoning("r"), CALL)),
    ],
)
def test_a_cache_mark_moves_to_the_block_before_if_that_can_carry_it(
    blocks: tuple[Block, ...], kept: tuple[Block, ...]
) -> None:
    fitted, _ = fill(user("q"), assistant(*blocks), user("r"))
    assert fitted.messages[1].blocks == kept


def test_the_last_answer_does_not_end_with_white_space() -> None:
    fitted, notes = fill(user("a"), assistant("{ "), assistant(" "))
    assert fitted.messages == (user("a"), assistant("{"))
    assert [note.rule for note in notes] == ["text.blank", "turn.empty", "text.trailing_space"]


def test_turns_that_meet_where_a_system_message_went_are_joined_as_a_reader_would() -> None:
    assert fill(user(RESULT), system(" "), user("a"))[0].messages == (user(RESULT, "a"),)


def test_earlier_answers_and_questions_may() -> None:
    assert fill(user("a "), assistant("b "), user("c "))[1] == []


@given(strategies.conversations())
def test_no_blank_text_and_no_empty_turn_is_left(asked: Conversation) -> None:
    fitted, _ = FillEmpty().forward(asked, Notes(), Facts())
    blocks: list[Block] = [*fitted.system, *(block for message in fitted.messages for block in message.blocks)]
    blocks += [part for block in blocks if isinstance(block, ToolResult) for part in block.content]
    assert all(block.text.strip() for block in blocks if isinstance(block, Text) and not block.seal)
    assert all(message.blocks for message in fitted.messages)
