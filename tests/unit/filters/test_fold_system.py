from __future__ import annotations

import pytest
from hypothesis import given

from dragoman.filters.turns import FoldSystem
from dragoman.model.blocks import Cache, Text, ToolCall, ToolResult
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Message, canonical
from dragoman.model.filter import Facts, Note, Notes
from tests import strategies
from tests.unit.filters.talk import applied, assistant, system, user

LEADING = Capabilities(system="leading")
NONE = Capabilities(system="none", fillers=("Understood", "Go on"))


def fold(target: Capabilities, *messages: Message, leading: tuple[Text, ...] = ()) -> tuple[Conversation, list[Note]]:
    return applied(FoldSystem(target), canonical(Conversation("m", messages, leading)))


@pytest.mark.parametrize(
    ("asked", "folded"),
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
            id="between answers",
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
def test_a_system_message_joins_a_user_turn_beside_it(asked: list[Message], folded: list[Message]) -> None:
    fitted, notes = fold(LEADING, *asked)
    assert fitted.messages == tuple(folded)
    assert {(note.rule, note.at) for note in notes} == {("system.folded", "the system message")}


def test_a_folded_text_keeps_its_cache_mark() -> None:
    fitted, _ = fold(LEADING, user("a"), system(Text("s", Cache("1h"))))
    assert fitted.messages == (user("a", Text("[System] s", Cache("1h"))),)


SYSTEM = (Text("You are terse.", Cache()),)


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
def test_it_stands_before_a_filler_where_the_user_does_not_begin(rest: tuple[Message, ...]) -> None:
    fitted, notes = fold(NONE, *rest, leading=SYSTEM)
    assert fitted.messages == (user(*SYSTEM, "Go on"), *rest)
    assert [note.rule for note in notes] == ["system.folded", "turn.placeholder"]


@given(strategies.conversations())
def test_no_system_message_is_left(asked: Conversation) -> None:
    fitted, _ = FoldSystem(NONE).forward(asked, Notes(), Facts())
    assert not fitted.system
    assert all(message.role != "system" for message in fitted.messages)
