from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.filters.calls import RenameTools, rename
from dragoman.model import assemble
from dragoman.model.blocks import Opaque, Text, ToolCall, ToolResult, Where
from dragoman.model.capabilities import Alphabet, Capabilities
from dragoman.model.conversation import Conversation, Message, ToolChoice, ToolSpec
from dragoman.model.events import BlockKeys, BlockStarted, Event, Events, Started, TextDelta
from dragoman.model.filter import Back, Facts, Note, Notes
from tests import strategies

NARROW = Alphabet("a-zA-Z0-9_-", 64)
BEDROCK = Alphabet("a-zA-Z0-9_.:-", 64)
TARGET = Capabilities(names=NARROW, ids=NARROW)


def forward(asked: Conversation, target: Capabilities = TARGET) -> tuple[Conversation, list[Note], Back]:
    notes = Notes()
    fitted, make_back = RenameTools(target).forward(asked, notes, Facts())
    assert make_back is not None
    return fitted, list(notes), make_back(notes, BlockKeys())


def answer(back: Back, *calls: tuple[str, str], id_: str = "msg_1") -> list[tuple[str, str]]:
    stream: Events = (Started(id_, "m"), *(BlockStarted(key, ToolCall(*each)) for key, each in enumerate(calls)))
    return [
        (e.block.id, e.block.name)
        for e in back.feed(stream)
        if isinstance(e, BlockStarted) and isinstance(e.block, ToolCall)
    ]


@pytest.mark.parametrize(
    ("text", "alphabet", "same"),
    [
        ("i" * 64, NARROW, True),
        ("i" * 65, NARROW, False),
        ("call_x|fc_y", BEDROCK, False),
        ("a.b:c", BEDROCK, True),
        ("a.b:c", NARROW, False),
        ("naïve", NARROW, False),
        ("line\n", NARROW, False),
        ("", NARROW, False),
        ("\ud800", NARROW, False),
    ],
)
def test_only_an_illegal_text_changes(text: str, alphabet: Alphabet, same: bool) -> None:
    alias = rename(text, alphabet)
    assert (alias == text) == same
    assert re.fullmatch(f"[{alphabet.pattern}]{{1,{alphabet.limit}}}", alias)


def test_an_alias_can_be_recognised_by_people() -> None:
    assert re.fullmatch("mcp_a_b_[0-9a-f]{8}", rename("mcp.a.b", NARROW))


@given(st.text(), st.text(), strategies.alphabets)
def test_aliases_are_legal_and_distinct_and_settle(one: str, other: str, alphabet: Alphabet) -> None:
    alias = rename(one, alphabet)
    assert re.fullmatch(f"[{alphabet.pattern}]{{1,{alphabet.limit}}}", alias)
    assert rename(alias, alphabet) == alias
    assert (one == other) == (alias == rename(other, alphabet))


def test_ids_alike_in_their_first_characters_stay_distinct() -> None:
    assert rename("x" * 80 + "1", NARROW) != rename("x" * 80 + "2", NARROW)


def test_a_name_is_the_same_everywhere_and_comes_back_in_the_answer() -> None:
    asked = Conversation(
        "m",
        (
            Message("user", (Text("go"),)),
            Message("assistant", (ToolCall("a|b", "mcp.a.b", at=Where("the call")),)),
            Message("user", (ToolResult("a|b"),)),
        ),
        tools=(ToolSpec("mcp.a.b", at=Where("tools[0]")), ToolSpec("mcp_a_b"), Opaque("anthropic", {"name": "a b"})),
        tool_choice=ToolChoice("one", ("mcp.a.b",)),
    )
    fitted, notes, back = forward(asked)
    name, id_ = rename("mcp.a.b", NARROW), rename("a|b", NARROW)
    assert fitted.tools == (ToolSpec(name), ToolSpec("mcp_a_b"), asked.tools[2])
    assert fitted.tool_choice == ToolChoice("one", (name,))
    assert fitted.messages[1].blocks == (ToolCall(id_, name),)
    assert fitted.messages[2].blocks == (ToolResult(id_),)
    assert [(note.rule, note.action, note.at) for note in notes] == [
        ("tools.renamed", "renamed", "tools[0]"),
        ("ids.renamed", "renamed", "the call"),
    ]
    assert answer(back, ("1", name), ("2", "mcp_a_b"), ("3", "mcp.a.b")) == [
        ("1", "mcp.a.b"),
        ("2", "mcp_a_b"),
        ("3", "mcp.a.b"),
    ]


def test_a_request_without_illegal_names_is_the_same_object() -> None:
    asked = Conversation("m", (Message("assistant", (ToolCall("a", "read"),)),), tools=(ToolSpec("read"),))
    fitted, notes, _ = forward(asked)
    assert fitted is asked
    assert notes == []


EMPTY = Conversation("m", ())


def test_a_call_without_an_id_gets_one_that_is_the_same_every_time() -> None:
    notes = Notes()
    _, make_back = RenameTools(TARGET).forward(EMPTY, notes, Facts())
    assert make_back is not None
    first = answer(make_back(notes, BlockKeys()), ("", "read"), ("", "read"))
    assert first == answer(make_back(Notes(), BlockKeys()), ("", "read"), ("", "read"))
    assert len({id_ for id_, _ in first}) == 2
    assert all(re.fullmatch("call_[0-9a-f]{24}", id_) for id_, _ in first)
    assert [(note.rule, note.action) for note in notes] == [("ids.minted", "added")] * 2


def test_minted_ids_of_one_conversation_differ_even_if_the_upstream_names_no_answer() -> None:
    _, _, first = forward(EMPTY)
    _, _, second = forward(Conversation("m", (Message("user", (Text("go"),)),)))
    assert answer(first, ("", "read"), id_="") != answer(second, ("", "read"), id_="")


def test_an_id_that_the_conversation_has_used_is_not_given_again() -> None:
    """Some upstreams begin with call_0 in every answer; clients that pair by id alone then loop."""
    notes = Notes()
    asked = Conversation("m", (Message("assistant", (ToolCall("call_0", "read"),)),))
    _, make_back = RenameTools(TARGET).forward(asked, notes, Facts())
    assert make_back is not None
    (first, _), (second, _), (third, _) = answer(
        make_back(notes, BlockKeys()), ("call_0", "read"), ("call_1", "read"), ("call_1", "read")
    )
    assert second == "call_1"
    assert len({"call_0", first, second, third}) == 4
    assert [(note.rule, note.action) for note in notes] == [("ids.reused", "renamed")] * 2


def test_choices_have_ids_of_their_own() -> None:
    _, _, back = forward(EMPTY)
    events: Events = (BlockStarted(0, ToolCall("a", "read"), 0), BlockStarted(1, ToolCall("a", "read"), 1))
    assert back.feed(events) is events


def test_events_without_a_change_are_the_same_tuple() -> None:
    _, _, back = forward(EMPTY)
    for events in ((Started("1", "m"),), (BlockStarted(0, Text("")),), (TextDelta(0, "a"), TextDelta(0, "b")), ()):
        assert back.feed(events) is events


@given(strategies.conversations(), strategies.events(), st.data())
def test_the_way_back_keeps_the_grammar_and_does_not_depend_on_batches(
    asked: Conversation, stream: Events, data: st.DataObject
) -> None:
    _, make_back = RenameTools(TARGET).forward(asked, Notes(), Facts())
    assert make_back is not None
    whole = make_back(Notes(), BlockKeys()).feed(stream)
    back = make_back(Notes(), BlockKeys())
    pieces: list[Event] = [each for batch in data.draw(strategies.batches_of(stream)) for each in back.feed(batch)]
    assert tuple(pieces) == whole
    assemble.check(whole)
    calls = [(e.choice, e.block.id) for e in whole if isinstance(e, BlockStarted) and isinstance(e.block, ToolCall)]
    assert len(set(calls)) == len(calls)
    assert all(id_ for _, id_ in calls)


def test_the_choice_of_a_tool_that_is_not_ours_to_rename_keeps_its_name() -> None:
    tools = (Opaque("anthropic", {"type": "new", "name": "odd name"}, "new"), ToolSpec("a.b", "", {}))
    asked = Conversation("m", (), tools=tools, tool_choice=ToolChoice("any", ("odd name", "a.b")))
    fitted, _, _ = forward(asked)
    assert fitted.tools[0] is tools[0]
    assert fitted.tool_choice.names == ("odd name", rename("a.b", NARROW))
