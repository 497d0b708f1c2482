from __future__ import annotations

from hypothesis import given

from dragoman.filters.results import PairTools
from dragoman.model.blocks import Cache, Media, Opaque, Text, ToolCall, ToolResult, Where
from dragoman.model.conversation import Conversation, Message, canonical
from dragoman.model.filter import Facts, Note, Notes
from tests import strategies
from tests.unit.filters.talk import applied, assistant, user


def call(id_: str) -> ToolCall:
    return ToolCall(id_, "read", "{}", at=Where(f"call {id_}"))


def result(id_: str, text: str = "done") -> ToolResult:
    return ToolResult(id_, (Text(text),), at=Where(f"result {id_}"))


def no_result(id_: str) -> ToolResult:
    return ToolResult(id_, (Text("(no result)"),), is_error=True)


def pair(*messages: Message) -> tuple[tuple[Message, ...], list[Note]]:
    fitted, notes = applied(PairTools(), canonical(Conversation("m", messages)))
    return fitted.messages, notes


def rules(notes: list[Note]) -> list[str]:
    return [note.rule for note in notes]


ASK = user(Text("go"))


def test_results_keep_the_order_of_the_client_and_stand_before_its_text() -> None:
    asked = (ASK, assistant(call("a"), call("b")), user(result("b"), result("a"), Text("next")))
    assert pair(*asked) == (asked, [])


def test_a_call_without_a_result_gets_an_error_after_the_given_results() -> None:
    messages, notes = pair(ASK, assistant(call("a"), call("b")), user(result("b"), Text("next")))
    assert messages[2] == user(result("b"), no_result("a"), Text("next"))
    assert [(note.rule, note.action, note.at) for note in notes] == [("tools.missing_result", "added", "call a")]


def test_a_user_turn_is_made_where_none_follows_the_call() -> None:
    messages, notes = pair(ASK, assistant(call("a")), assistant(Text("hm")))
    assert messages == (ASK, assistant(call("a")), user(no_result("a")), assistant(Text("hm")))
    assert rules(notes) == ["tools.missing_result"]


def test_a_trailing_call_is_answered_too() -> None:
    messages, _ = pair(ASK, assistant(call("a")))
    assert messages == (ASK, assistant(call("a")), user(no_result("a")))


def test_a_result_without_its_call_becomes_text_and_media_of_its_turn() -> None:
    image = Media("image", "image/png", "base64", "aGk=")
    orphan = ToolResult("x", (Text("A"), image, Text(""), Text("B")), cache=Cache(), at=Where("here"))
    messages, notes = pair(user(orphan, Text("next")))
    assert messages == (user(Text("A"), image, Text("B", cache=Cache()), Text("next")),)
    assert [(note.rule, note.at) for note in notes] == [("tools.orphan_result", "here")]


def test_an_empty_orphan_still_says_something() -> None:
    messages, _ = pair(user(ToolResult("x")))
    assert messages == (user(Text("(no output)")),)


def test_l1_what_only_a_result_can_hold_becomes_text_with_an_orphan() -> None:
    reference = Opaque("anthropic", {"type": "tool_reference"}, at=Where("there"))
    messages, notes = pair(user(ToolResult("x", (Text("A"), reference))))
    assert messages == (user(Text("A"), Text('{"type":"tool_reference"}')),)
    assert [(note.action, note.at) for note in notes] == [("changed", ""), ("changed", "there")]


def test_l1_an_orphan_of_unreadable_media_is_not_without_output() -> None:
    blur = Opaque("anthropic", {"type": "image"}, "unreadable media", at=Where("there"))
    messages, notes = pair(user(ToolResult("x", (blur,))))
    assert messages == (user(Text("[media left out: it cannot be read]")),)
    assert [(note.action, note.at) for note in notes] == [("changed", ""), ("dropped", "there")]


def test_a_result_after_another_user_turn_moves_to_its_call() -> None:
    messages, notes = pair(ASK, assistant(call("a")), user(Text("wait")), user(result("a")), user(Text("now")))
    assert messages == (ASK, assistant(call("a")), user(result("a"), Text("wait"), Text("now")))
    assert [(note.rule, note.at) for note in notes] == [("tools.moved_result", "result a")]


def test_a_system_message_between_call_and_result_stands_after_the_result() -> None:
    reminder = Message("system", (Text("be brief"),))
    messages, notes = pair(ASK, assistant(call("a")), reminder, user(result("a"), Text("next")))
    assert messages == (ASK, assistant(call("a")), user(result("a")), reminder, user(Text("next")))
    assert rules(notes) == ["tools.moved_result"]


def test_an_aside_of_the_model_does_not_split_a_batch() -> None:
    """facts/kiro.md, tricky case 10."""
    batch, aside = assistant(call("a"), call("b")), assistant(Text("thinking aloud"))
    messages, notes = pair(ASK, batch, user(result("a")), aside, user(result("b"), Text("go")))
    assert messages == (ASK, batch, user(result("a"), result("b")), aside, user(Text("go")))
    assert rules(notes) == ["tools.moved_result"]


def test_a_turn_whose_results_moved_away_keeps_its_place() -> None:
    batch, aside = assistant(call("a"), call("b")), assistant(Text("thinking aloud"))
    messages, _ = pair(ASK, batch, user(result("a")), aside, user(result("b")))
    assert messages == (ASK, batch, user(result("a"), result("b")), aside, user(Text("(tool result above)")))


def test_what_the_model_says_between_its_calls_and_their_results_joins_the_calls() -> None:
    """Codex 0.80 over chat completions: a turn's calls come first, its text as a message of its own."""
    one, other = assistant(Text("I will "), call("a")), (assistant(Text("call ")), assistant(Text("it.")))
    messages, notes = pair(ASK, one, *other, user(result("a"), Text("next")))
    assert messages == (
        ASK,
        assistant(Text("I will "), Text("call "), Text("it."), call("a")),
        user(result("a"), Text("next")),
    )
    assert rules(notes) == ["turn.merged", "turn.merged"]


def test_calls_told_in_several_turns_get_their_results_one_by_one() -> None:
    messages, _ = pair(ASK, assistant(call("a")), assistant(call("b")), user(result("a"), result("b"), Text("next")))
    assert messages == (
        ASK,
        assistant(call("a")),
        user(result("a")),
        assistant(call("b")),
        user(result("b"), Text("next")),
    )


def test_an_equal_duplicate_goes_and_a_different_one_becomes_text() -> None:
    same, other = result("a"), result("a", "other")
    messages, notes = pair(ASK, assistant(call("a")), user(result("a"), same, other))
    assert messages[2] == user(result("a"), Text("other"))
    assert rules(notes) == ["tools.duplicate_result", "tools.duplicate_result"]


def test_one_id_twice_in_a_turn_becomes_two_with_the_results_in_order() -> None:
    messages, notes = pair(ASK, assistant(call("a"), call("a")), user(result("a", "1"), result("a", "2")))
    assert messages == (ASK, assistant(call("a"), call("a_2")), user(result("a", "1"), result("a_2", "2")))
    assert [(note.rule, note.action) for note in notes] == [("ids.duplicate", "renamed")]


def test_an_id_reused_in_every_turn_means_the_nearest_call() -> None:
    first = (assistant(call("f:0")), user(result("f:0", "1")))
    messages, _ = pair(ASK, *first, assistant(call("f:0")), user(result("f:0", "2")), assistant(call("f:0_2")))
    assert messages[:5] == (ASK, *first, assistant(call("f:0_2")), user(result("f:0_2", "2")))
    assert messages[5:] == (assistant(call("f:0_2_2")), user(no_result("f:0_2_2")))


def test_a_late_result_of_a_reused_id_does_not_answer_the_old_call() -> None:
    messages, _ = pair(ASK, assistant(call("a")), user(Text("no")), assistant(call("a")), user(result("a")))
    assert messages[2] == user(no_result("a"), Text("no"))
    assert messages[4] == user(result("a_2"))


@given(strategies.conversations())
def test_every_call_is_answered_once_right_after_it_and_every_result_has_its_call(asked: Conversation) -> None:
    fitted, _ = PairTools().forward(asked, Notes(), Facts())
    ids: list[str] = []
    for before, message in zip((None, *fitted.messages), (*fitted.messages, None), strict=True):
        calls = [block.id for block in before.blocks if isinstance(block, ToolCall)] if before else []
        blocks = message.blocks if message else ()
        results = [block.call_id for block in blocks if isinstance(block, ToolResult)]
        assert sorted(calls) == sorted(results)
        assert all(isinstance(block, ToolResult) for block in blocks[: len(results)])
        ids.extend(calls)
    assert len(set(ids)) == len(ids)
    assert {*_texts(asked)} <= {*_texts(fitted)}  # only a result that is there twice may go


def _texts(conversation: Conversation) -> list[str]:
    blocks = [block for message in conversation.messages for block in message.blocks]
    blocks += [part for block in blocks if isinstance(block, ToolResult) for part in block.content]
    return [block.text for block in blocks if isinstance(block, Text) and block.text]
