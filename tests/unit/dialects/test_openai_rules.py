"""The rules of Chat, each broken once; and the filters that only Chat needs."""

# tables of payloads, one case a line
from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.openai import DIALECT, OpenaiCodec
from dragoman.model.blocks import Extra, Reasoning, Text, ToolCall
from dragoman.model.conversation import Conversation, Message, Output
from dragoman.model.filter import Facts, Notes
from dragoman.wire.frame import Frame

CODEC = DIALECT.codec
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "x"}


def broken(body: Any, stream: bool = False) -> list[str]:
    return [breach.rule.removeprefix("openai.") for breach in CODEC.breaches(ApiRequest("generate", "m", stream, body))]


def broken_rules(*messages: Any, **fields: Any) -> list[str]:
    return broken({"messages": list(messages), **fields})


def test_good_requests_break_nothing() -> None:
    assert broken_rules(USER) == []
    assert (
        broken_rules({"role": "system", "content": "s"}, USER, CALLING, RESULT, USER, tools=[TOOL], tool_choice="auto")
        == []
    )
    assert broken_rules(USER, {"role": "assistant", "content": None, "refusal": "no"}) == []
    assert (
        broken_rules(USER, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}}, n=2, stop=["a"])
        == []
    )
    assert broken({"messages": [USER], "stream_options": {"include_usage": True}}, stream=True) == []


@pytest.mark.parametrize(
    ("messages", "rule"),
    [
        ([5], "message.shape"),
        ([{"role": "robot", "content": ""}], "message.role_unknown"),
        ([{"role": 5, "content": ""}], "message.role"),
        ([{"role": "user"}], "message.no_content"),
        ([{"role": "user", "content": 5}], "message.content"),
        ([{"role": "user", "content": []}], "message.empty_parts"),
        ([{"role": "assistant"}], "message.no_content"),
        ([{"role": "function", "content": "x"}], "message.name"),
        ([USER, {"role": "system", "content": [{"type": "image_url"}]}], "message.part"),
        ([{"role": "user", "content": [{}]}], "message.part_type"),
        ([CALLING, {**RESULT, "content": [{"type": "image_url"}]}], "message.part"),
        ([USER, CALLING], "tool.unanswered_call"),
        ([USER, CALLING, USER, RESULT], "tool.unanswered_call"),
        ([USER, RESULT], "tool.unknown_call"),
        ([USER, CALLING, RESULT, RESULT], "tool.answered_twice"),
        ([USER, CALLING, RESULT, USER, RESULT], "tool.unknown_call"),
        ([{**CALLING, "tool_calls": []}], "call.none"),
        ([{**CALLING, "tool_calls": [{**CALL, "id": ""}]}], "call.id"),
        ([{**CALLING, "tool_calls": [{**CALL, "id": "i" * 65}]}], "call.id_length"),
        ([{**CALLING, "tool_calls": [CALL, CALL]}, RESULT], "call.duplicate_id"),
        ([{**CALLING, "tool_calls": [{**CALL, "type": "x"}]}, RESULT], "call.type"),
        (
            [{**CALLING, "tool_calls": [{**CALL, "function": {"name": "a.b", "arguments": ""}}]}, RESULT],
            "call.name_letters",
        ),
        ([{**CALLING, "tool_calls": [{**CALL, "function": {"arguments": ""}}]}, RESULT], "call.name"),
        ([{**CALLING, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}]}, RESULT], "call.arguments"),
    ],
)
def test_rules_of_messages(messages: list[Any], rule: str) -> None:
    assert rule in broken_rules(*messages)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"tools": []}, "tools.empty"),
        ({"tools": [{"function": {}}]}, "tools.type"),
        ({"tools": [{"type": "function", "function": {"name": "n" * 65}}]}, "tools.name_letters"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.name"),
        ({"tools": [5]}, "tools.shape"),
        ({"tools": [TOOL, TOOL]}, "tools.duplicate"),
        ({"tools": [TOOL] * 129}, "tools.limit"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools.parameters"),
        ({"tool_choice": "auto"}, "tool_choice.without_tools"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice.shape"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.unknown_tool"),
        ({"parallel_tool_calls": True}, "parallel.without_tools"),
        ({"n": 0}, "n.range"),
        ({"n": True}, "n.range"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop.shape"),
        ({"stop": [""]}, "stop.shape"),
        ({"temperature": 2.1}, "knob.range"),
        ({"max_tokens": 0}, "max_tokens.range"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens.both"),
        ({"reasoning_effort": "huge"}, "effort.unknown"),
        ({"stream_options": {}}, "stream_options.without_stream"),
        ({"top_logprobs": 2}, "top_logprobs.without_logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format.shape"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}}, "response_format.name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}}},
            "response_format.schema",
        ),
    ],
)
def test_rules_of_settings(fields: dict[str, Any], rule: str) -> None:
    assert broken_rules(USER, **fields) == [rule] or rule in broken_rules(USER, **fields)


def test_bodies_that_are_none() -> None:
    assert broken(None) == ["body.shape"]
    assert broken({}) == ["messages.missing"]
    assert broken({"messages": []}) == ["messages.empty"]


# ---- streams

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def frame(delta: Any, finish: str | None = None, **fields: Any) -> Any:
    return {**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **fields}


START, END = frame({"role": "assistant", "content": ""}), frame({}, "stop")
USAGE = {**HEAD, "choices": [], "usage": {"prompt_tokens": 1}}


def named(index: Any = 0, **fields: Any) -> Any:
    return {
        "tool_calls": [
            {"index": index, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}, **fields}
        ]
    }


@pytest.mark.parametrize(
    ("frames", "rules"),
    [
        ([START, frame({"content": "a"}), END, USAGE, "[DONE]"], []),
        ([START, frame(named()), frame({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}), END, "[DONE]"], []),
        ([START, {"error": {"message": "m"}}], []),
        ([START, END], ["no_end"]),
        ([START, "[DONE]"], ["no_finish"]),
        ([START, END, "[DONE]", "[DONE]"], ["after_end"]),
        ([START, {"error": {"message": "m"}}, "[DONE]"], []),
        ([START, {"error": "m"}], ["error_shape"]),
        ([START, "", END, "[DONE]"], ["no_json"]),
        ([START, "null", END, "[DONE]"], ["no_json"]),
        ([frame({"content": "a"}), END, "[DONE]"], ["no_role"]),
        ([START, START, END, "[DONE]"], ["role_twice"]),
        ([START, END, END, "[DONE]"], ["finish_twice"]),
        ([START, END, frame({"content": "a"}), "[DONE]"], ["after_finish"]),
        ([START, frame({}, "eos"), "[DONE]"], ["finish_reason"]),
        ([START, USAGE, END, "[DONE]"], ["after_usage"]),
        ([START, {**HEAD, "choices": []}, END, "[DONE]"], ["empty"]),
        ([START, {**HEAD, "choices": None}, END, "[DONE]"], ["choices"]),
        ([START, {**HEAD, "choices": [{"index": 0, "delta": None}]}, END, "[DONE]"], ["choice_fields"]),
        ([START, {**HEAD, "choices": [{"index": "0", "delta": {}}]}, END, "[DONE]"], ["choice"]),
        ([START, {**END, "id": "d"}, "[DONE]"], ["envelope_changed"]),
        ([START, {"choices": END["choices"]}, "[DONE]"], ["envelope"]),
        ([START, frame(named(1)), END, "[DONE]"], ["call_index"]),
        ([START, frame(named(None)), END, "[DONE]"], ["call_no_index"]),
        ([START, frame(named(id="")), END, "[DONE]"], ["call_start"]),
        ([START, frame(named(type=None)), END, "[DONE]"], ["call_start"]),
        ([START, frame(named()), frame(named()), END, "[DONE]"], ["call_repeated"]),
        ([START, frame(named(function={"name": "f", "arguments": {}})), END, "[DONE]"], ["arguments"]),
        ([START, frame({"content": 5}), END, "[DONE]"], ["content"]),
        ([START, frame({"reasoning_details": [{"type": "x"}]}), END, "[DONE]"], ["details_index"]),
    ],
)  # fmt: skip
def test_rules_of_streams(frames: list[Any], rules: list[str]) -> None:
    data = [f.encode() if isinstance(f, str) else json.dumps(f).encode() for f in frames]
    found = CODEC.stream_breaches([Frame("", each, b"") for each in data])
    assert [breach.rule.removeprefix("openai.stream.") for breach in found] == rules


def test_named_frames_break_a_rule() -> None:
    assert CODEC.stream_breaches([Frame("x", b"[DONE]", b"")])[0].rule == "openai.stream.named"


# ---- filters


def fit(conversation: Conversation, codec: OpenaiCodec | None = None) -> tuple[Conversation, list[str]]:
    notes = Notes()
    for each in (codec or CODEC).quirks("m"):
        conversation, back = each.forward(conversation, notes, Facts())
        assert back is None
    return conversation, [note.rule for note in notes]


def test_usage_is_requested_for_a_stream_unless_the_client_decides() -> None:
    conversation = Conversation(
        "m", (), stream=True, extra=Extra("openai", {"~max_tokens": "max_tokens"}, frozenset({"~max_tokens"}))
    )
    fitted, rules = fit(conversation)
    assert rules == ["openai.ask_usage"]
    assert fitted.extra is not None and fitted.extra.fields["stream_options"] == {"include_usage": True}
    assert fitted.extra.spelling == {"~max_tokens"}
    assert fit(fitted) == (fitted, [])
    for silent in (
        Conversation("m", ()),
        Conversation("m", (), stream=True, extra=Extra("openai", {"stream_options": {}})),
    ):
        assert fit(silent) == (silent, [])
    assert fit(conversation, OpenaiCodec(ask_usage=False)) == (conversation, [])


def test_an_assistants_blocks_are_put_in_order() -> None:
    blocks = (ToolCall("a", "f"), Text("x"), Reasoning("t", "openai"), ToolCall("b", "f"), Text("y"))
    fitted, rules = fit(Conversation("m", (Message("assistant", blocks), Message("user", (Text("u"),)))))
    assert fitted.messages[0].blocks == (blocks[2], blocks[1], blocks[4], blocks[0], blocks[3])
    assert rules == ["openai.order_blocks"]
    assert fit(fitted) == (fitted, [])


@pytest.mark.parametrize(
    ("name", "expected"), [("", "answer"), ("my output", "my_output"), ("n" * 70, "n" * 64), ("ok", "ok")]
)
def test_an_output_schema_has_a_name(name: str, expected: str) -> None:
    fitted, rules = fit(Conversation("m", (), output=Output("schema", name, {})))
    assert fitted.output.name == expected
    assert rules == ([] if name == expected else ["openai.name_output"])
