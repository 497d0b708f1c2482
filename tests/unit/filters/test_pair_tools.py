"""The filter that pairs tool calls with their results."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import dragoman
import dragoman.dialects as registry
from dragoman.errors import Unrepresentable
from dragoman.filters.results import PairTools, SimplifyResults
from dragoman.model.blocks import Block, CacheBreakpoint, Location, Media, Opaque, Text, ToolCall, ToolResult
from dragoman.model.capabilities import Capabilities, reads_results_by_order, traits
from dragoman.model.conversation import Conversation, Message, to_canonical
from dragoman.model.filter import Facts, Note, Notes
from dragoman.translate import TranslationSettings, plan
from dragoman.wire.jsonio import Json
from tests import strategies
from tests.growth import Work, check_linear_growth
from tests.unit.filters.messages import apply_filter, assistant, user


def call(id_: str) -> ToolCall:
    return ToolCall(id_, "read", "{}", at=Location(f"call {id_}"))


def result(id_: str, text: str = "done") -> ToolResult:
    return ToolResult(id_, (Text(text),), at=Location(f"result {id_}"))


def no_result(id_: str) -> ToolResult:
    return ToolResult(id_, (Text("(no result)"),), is_error=True)


def pair(*messages: Message) -> tuple[tuple[Message, ...], list[Note]]:
    fitted, notes = apply_filter(PairTools(), to_canonical(Conversation("m", messages)))
    return fitted.messages, notes


def rules(notes: list[Note]) -> list[str]:
    return [note.rule for note in notes]


ASK = user(Text("go"))


def test_results_keep_the_order_of_the_client_and_stand_before_its_text() -> None:
    messages = (ASK, assistant(call("a"), call("b")), user(result("b"), result("a"), Text("next")))
    assert pair(*messages) == (messages, [])


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
    orphan = ToolResult("x", (Text("A"), image, Text(""), Text("B")), cache=CacheBreakpoint(), at=Location("here"))
    messages, notes = pair(user(orphan, Text("next")))
    assert messages == (user(Text("A"), image, Text("B", cache=CacheBreakpoint()), Text("next")),)
    assert [(note.rule, note.at) for note in notes] == [("tools.orphan_result", "here")]


def test_an_empty_orphan_still_says_something() -> None:
    messages, _ = pair(user(ToolResult("x")))
    assert messages == (user(Text("(no output)")),)


def test_what_only_a_result_can_hold_becomes_text_with_an_orphan() -> None:
    reference = Opaque("anthropic", {"type": "tool_reference"}, at=Location("there"))
    messages, notes = pair(user(ToolResult("x", (Text("A"), reference))))
    assert messages == (user(Text("A"), Text('{"type":"tool_reference"}')),)
    assert [(note.action, note.at) for note in notes] == [("changed", ""), ("changed", "there")]


def test_an_orphan_of_unreadable_media_is_not_without_output() -> None:
    unreadable = Opaque("anthropic", {"type": "image"}, "unreadable media", at=Location("there"))
    messages, notes = pair(user(ToolResult("x", (unreadable,))))
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
    """A user turn between two results does not separate them from their calls."""
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


def test_calls_in_several_turns_get_their_results_one_by_one() -> None:
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
def test_every_call_is_answered_once_right_after_it_and_every_result_has_its_call(conversation: Conversation) -> None:
    fitted, _ = PairTools().forward(conversation, Notes(), Facts())
    ids: list[str] = []
    for before, message in zip((None, *fitted.messages), (*fitted.messages, None), strict=True):
        calls = [block.id for block in before.blocks if isinstance(block, ToolCall)] if before else []
        blocks = message.blocks if message else ()
        results = [block.call_id for block in blocks if isinstance(block, ToolResult)]
        assert sorted(calls) == sorted(results)
        assert all(isinstance(block, ToolResult) for block in blocks[: len(results)])
        ids.extend(calls)
    assert len(set(ids)) == len(ids)
    assert {*_texts(conversation)} <= {*_texts(fitted)}  # only a result that is there twice may go


def _texts(conversation: Conversation) -> list[str]:
    blocks = [block for message in conversation.messages for block in message.blocks]
    blocks += [part for block in blocks if isinstance(block, ToolResult) for part in block.content]
    return [block.text for block in blocks if isinstance(block, Text) and block.text]


# --- models whose templates print results without ids get them in the order of their calls

KIMI = "kimi-k2-0905-preview"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
IDS = ("one", "two", "three")


def history(order: list[str], split: int | None = None, calls: tuple[str, ...] = IDS) -> dict[str, Any]:
    """A Messages request: calls of one turn, and their results in this order, in one message or two."""
    uses = [{"type": "tool_use", "id": id_, "name": "get", "input": {"of": id_}} for id_ in calls]
    results = [{"type": "tool_result", "tool_use_id": id_, "content": f"of {id_}"} for id_ in order]
    turns = [results] if split is None else [results[:split], results[split:]]
    return {
        "max_tokens": 99,
        "tools": [{"name": "get", "input_schema": {"type": "object", "properties": {}}}],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": uses},
            *({"role": "user", "content": turn} for turn in turns if turn),
        ],
    }


def texts_of(body: dict[str, Any], target: str) -> list[str]:
    """What the results say, in the order the target gets them."""
    if target == "openai":
        return [message["content"] for message in body["messages"] if message["role"] == "tool"]
    if target == "responses":
        return [item["output"] for item in body["input"] if item["type"] == "function_call_output"]
    blocks = [block for message in body["messages"] if message["role"] == "user" for block in message["content"]]
    if target == "bedrock":
        return [block["toolResult"]["content"][0]["text"] for block in blocks if "toolResult" in block]
    return [block["content"] for block in blocks if isinstance(block, dict) and block["type"] == "tool_result"]


def translated(body: dict[str, Any], target: str, model: str = KIMI, source: str = "anthropic") -> dragoman.Translated:
    return dragoman.translate_request(body, source=source, target=target, model=model)


@pytest.mark.parametrize("target", ["openai", "responses", "anthropic", "bedrock"])
@given(order=st.permutations(IDS), split=st.none() | st.integers(1, 2))
def test_results_stand_in_the_order_of_their_calls(target: str, order: list[str], split: int | None) -> None:
    model = "moonshot.kimi-k2-thinking" if target == "bedrock" else KIMI
    translation = translated(history(order, split), target, model)
    assert texts_of(translation.body, target) == [f"of {id_}" for id_ in IDS]
    reordered = [note for note in translation.notes if note.rule == "tools.reordered_results"]
    assert len(reordered) == (tuple(order) != IDS)


def test_in_the_same_dialect_too() -> None:
    calls = [{"id": id_, "type": "function", "function": {"name": "get", "arguments": "{}"}} for id_ in IDS]
    body = {
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            *({"role": "tool", "tool_call_id": id_, "content": f"of {id_}"} for id_ in reversed(IDS)),
        ]
    }
    translation = translated(body, "openai", source="openai")
    assert texts_of(translation.body, "openai") == ["of one", "of two", "of three"]


def test_a_missing_result_has_its_place_and_a_second_one_is_text() -> None:
    translation = translated(history(["three", "one", "one"]), "openai")
    assert texts_of(translation.body, "openai") == ["of one", "Error: (no result)", "of three"]
    body = history(["two", "one"], calls=("one", "two"))
    body["messages"][-1]["content"].append({"type": "tool_result", "tool_use_id": "two", "content": "another"})
    translation = translated(body, "openai")
    assert texts_of(translation.body, "openai") == ["of one", "of two"]
    assert "another" in json.dumps(translation.body["messages"][-1])


def test_images_that_leave_their_results_follow_the_same_order() -> None:
    body = history(["two", "one"], calls=("one", "two"))
    for result, name in zip(body["messages"][-1]["content"], ("image/webp", "image/png"), strict=True):
        result["content"] = [{"type": "image", "source": {"type": "base64", "media_type": name, "data": PIXEL}}]
    translation = translated(body, "openai")
    images = [
        part["image_url"]["url"] for part in translation.body["messages"][-1]["content"] if part["type"] == "image_url"
    ]
    assert [image.partition(";")[0] for image in images] == ["data:image/png", "data:image/webp"]


def test_models_that_read_ids_get_results_as_they_came() -> None:
    for target in ("anthropic", "responses"):
        translation = translated(history(["two", "one", "three"]), target, "claude-x")
        assert texts_of(translation.body, target) == ["of two", "of one", "of three"]
        assert not [note for note in translation.notes if note.rule == "tools.reordered_results"]


@pytest.mark.parametrize("model", ["kimi-k2", "moonshotai/Kimi-K2.5", "Qwen3-Coder", "glm-4.6", "deepseek-v3.2"])
def test_open_models_are_known_by_name(model: str) -> None:
    assert reads_results_by_order(model)
    assert not reads_results_by_order("claude-sonnet-4.5")


# --- plain results

PLAIN = Capabilities()
RICH = Capabilities(result_media=frozenset({"image", "document"}), traits=traits("result_errors"))
IMAGE = Media("image", "image/png", "base64", "aGk=", cache=CacheBreakpoint(), at=Location("the image"))
PDF = Media("document", "application/pdf", "base64", "JVBERg==")
UNREADABLE = Opaque("anthropic", {"type": "image"}, "unreadable media", at=Location("the blur"))


def plain(target: Capabilities, *blocks: Block) -> tuple[tuple[Block, ...], list[Note]]:
    fitted, notes = apply_filter(SimplifyResults(target), Conversation("m", (Message("user", blocks),)))
    return fitted.messages[0].blocks, notes


def test_rich_results_pass_where_the_target_takes_them() -> None:
    blocks = (ToolResult("a", (Text("A"), IMAGE), is_error=True), Text("next"))
    assert plain(RICH, *blocks) == (blocks, [])


def test_media_of_all_results_stand_after_the_results_in_order() -> None:
    one, two = ToolResult("a", (Text("A"), IMAGE, Text("B"))), ToolResult("b", (Text("C"), PDF))
    blocks, notes = plain(PLAIN, one, two, Text("next"))
    assert blocks == (
        ToolResult("a", (Text("A"), Text("(image 1 below)"), Text("B"))),
        ToolResult("b", (Text("C"), Text("(document 1 below)"))),
        IMAGE,
        PDF,
        Text("next"),
    )
    assert [(note.rule, note.at) for note in notes] == [
        ("result.media_lifted", "the image"),
        ("result.media_lifted", ""),
    ]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ((IMAGE,), ("(image 1 below)",)),
        ((IMAGE, IMAGE), ("(image 1 below)", "(image 2 below)")),
        ((IMAGE, PDF), ("(image 1 below)", "(document 1 below)")),
        ((Text("see"), IMAGE), ("see", "(image 1 below)")),
    ],
)
def test_a_result_says_where_its_media_is(content: tuple[Text | Media, ...], texts: tuple[str, ...]) -> None:
    blocks, _ = plain(PLAIN, ToolResult("a", content))
    assert blocks[0] == ToolResult("a", tuple(map(Text, texts)))


def test_each_of_two_parallel_results_names_its_own_image() -> None:
    other = structs.replace(IMAGE, data="aGkgaGk=")
    blocks, _ = plain(PLAIN, ToolResult("a", (IMAGE,)), ToolResult("b", (Text("B"), other)), Text("next"))
    assert blocks == (
        ToolResult("a", (Text("(image 1 below)"),)),
        ToolResult("b", (Text("B"), Text("(image 2 below)"))),
        IMAGE,
        other,
        Text("next"),
    )


def test_media_of_a_kind_that_results_cannot_hold_is_lifted_alone() -> None:
    sound = Media("audio", "audio/wav", "base64", "UklGRg==")
    blocks, _ = plain(RICH, ToolResult("a", (IMAGE, sound)))
    assert blocks == (ToolResult("a", (IMAGE, Text("(audio 1 below)"))), sound)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ((Text("boom"),), (Text("Error: boom"),)),
        ((Text("boom", CacheBreakpoint()), Text("bang")), (Text("Error: boom", CacheBreakpoint()), Text("bang"))),
        ((), (Text("Error"),)),
        ((Text(" "), Text("boom")), (Text(" "), Text("Error: boom"))),
        ((IMAGE,), (Text("Error: (image 1 below)"),)),
    ],
)
def test_an_error_says_so_in_words(content: tuple[Text | Media, ...], expected: tuple[Text, ...]) -> None:
    blocks, notes = plain(PLAIN, ToolResult("a", content, is_error=True, at=Location("here")))
    assert blocks[0] == ToolResult("a", expected, is_error=False)
    assert [note.at for note in notes if note.rule == "result.error_text"] == ["here"]


@pytest.mark.parametrize("target", [PLAIN, RICH])
def test_unreadable_media_is_left_out_everywhere(target: Capabilities) -> None:
    blocks, notes = plain(target, ToolResult("a", (Text("A"), UNREADABLE)))
    assert blocks == (ToolResult("a", (Text("A"),)),)
    assert [(note.rule, note.action, note.at) for note in notes] == [("result.unreadable_media", "dropped", "the blur")]


def test_a_result_of_unreadable_media_alone_says_so() -> None:
    blocks, _ = plain(RICH, ToolResult("a", (UNREADABLE,)))
    assert blocks == (ToolResult("a", (Text("[media left out: it cannot be read]"),)),)


def test_unreadable_media_is_refused_where_losses_are() -> None:
    conversation = Conversation("m", (Message("user", (ToolResult("a", (UNREADABLE,)),)),))
    with pytest.raises(Unrepresentable, match="the blur"):
        SimplifyResults(RICH).forward(conversation, Notes(refuse=True), Facts())


def test_other_unknown_parts_stay() -> None:
    blocks = (ToolResult("a", (Opaque("anthropic", {"type": "search_result"}, "search_result"),)),)
    assert plain(PLAIN, *blocks) == (blocks, [])


def with_images(count: int) -> Work:
    client, target = registry.get("anthropic"), registry.get("openai")
    source: Json = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    image: Json = {"type": "image", "source": source}
    call: Json = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    result: Json = {"type": "tool_result", "tool_use_id": "1", "content": [image] * count}
    talk: Json = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    conversation = client.codec.parse_request(client.binding.unwrap({"model": "m", "max_tokens": 1, "messages": talk}))
    return lambda: plan(client, target, conversation, model="m", settings=TranslationSettings())


def test_images_in_results_are_counted_once() -> None:
    check_linear_growth(with_images, 100)
