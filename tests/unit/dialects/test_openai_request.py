"""Chat requests, both directions."""

# tables of payloads, one case a line
from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from msgspec import structs

from dragoman.conformance.laws import normalize_spelling
from dragoman.dialects.base import ApiRequest
from dragoman.dialects.openai import DIALECT, OpenaiCodec
from dragoman.errors import DragomanError, MalformedRequest, Unrepresentable
from dragoman.model.blocks import (
    CacheBreakpoint,
    Extra,
    Media,
    Opaque,
    Reasoning,
    Signature,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.model.conversation import Conversation, Message, Output, Thinking, ToolChoice, ToolSpec
from tests.wrong_values import WRONG_VALUES, body_paths, dotted_path, with_value, without_value

CODEC, BINDING = DIALECT.codec, DIALECT.binding
PNG = "iVBORw0KGgo="

FULL: dict[str, Any] = {
    "model": "gpt-5",
    "stream": True,
    "messages": [
        {"role": "developer", "name": "boss", "content": [{"type": "text", "text": "Be brief.", "x_part": 1}]},
        {"role": "system", "content": "Speak Latin."},
        {
            "role": "user",
            "name": "ann",
            "content": [
                {"type": "text", "text": "Look."},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
                {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "mp3"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
                {"type": "file", "file": {"file_id": "file_1"}},
                {"type": "video_url", "video_url": {"url": "https://x.test/a.mp4"}},
            ],
        },
        {
            "role": "assistant",
            "content": "I read",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"p": 1.0}'}},
                {"id": "call_2", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}, "x_call": True},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "one", "name": "read"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "two"}]},
        {"role": "user", "content": "And?"},
        {"role": "system", "content": "Hurry."},
        {"role": "assistant", "content": None, "refusal": "No.", "audio": {"id": "audio_1"}},
        {"role": "user", "content": "Why?"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "read", "description": "Read.", "parameters": {"type": "object"}, "strict": True},
        },
        {"type": "custom", "custom": {"name": "patch", "format": {"type": "text"}}},
        {"type": "web_search", "x_tool": 1},
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "read"}}]},
    },
    "parallel_tool_calls": False,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "out", "schema": {"type": "object"}, "strict": True, "description": "d"},
    },
    "max_completion_tokens": 100,
    "stop": ["END"],
    "n": 2,
    "reasoning_effort": "high",
    "temperature": 0.5,
    "top_p": 1,
    "seed": 7,
    "user": "u-1",
    "stream_options": {"include_usage": True},
    "logit_bias": {"50256": -100},
    "metadata": {"a": "b"},
    "x_unknown": [1, None],
}


def parse(body: dict[str, Any], codec: Any = CODEC) -> Conversation:
    conversation: Conversation = codec.parse_request(BINDING.unwrap(body))
    return conversation


def ask(*messages: dict[str, Any], **fields: Any) -> Conversation:
    return parse({"model": "m", "messages": list(messages), **fields})


def render(conversation: Conversation, codec: Any = CODEC) -> dict[str, Any]:
    body = codec.render_request(conversation).body
    assert isinstance(body, dict)
    return body


def again(conversation: Conversation) -> Conversation:
    call = BINDING.match(BINDING.wrap(CODEC.render_request(conversation)))
    assert call is not None
    return CODEC.parse_request(call)


USER = {"role": "user", "content": "hi"}


# ---- the whole


def test_a_full_body_round_trips_unchanged() -> None:
    body = {name: value for name, value in FULL.items() if name not in ("model", "stream")}
    expected = copy.deepcopy(body)
    expected["messages"][5]["content"] = "two"  # a list of one plain text is spelt as a string
    assert render(parse(FULL)) == expected
    assert again(parse(FULL)) == parse(FULL)


def test_a_full_body_is_understood() -> None:
    conversation = parse(FULL)
    assert conversation.stream and conversation.model == "gpt-5"
    assert [text.text for text in conversation.system] == ["Be brief.", "Speak Latin."]
    assert [message.role for message in conversation.messages] == [
        "user",
        "assistant",
        "user",
        "system",
        "assistant",
        "user",
    ]
    kinds = [(b.kind, b.form, b.mime) for b in conversation.messages[0].blocks if isinstance(b, Media)]
    assert kinds == [
        ("image", "base64", "image/png"),
        ("image", "url", ""),
        ("audio", "base64", "audio/mpeg"),
        ("document", "base64", "application/pdf"),
        ("document", "file", ""),
    ]
    assert conversation.messages[0].blocks[-1] == Opaque("openai", FULL["messages"][2]["content"][-1], "video_url")
    assert conversation.messages[1].blocks == (
        Reasoning("hm", "openai"),
        Text("I read"),
        ToolCall("call_1", "read", '{"p": 1.0}'),
        ToolCall("call_2", "patch", "*** Begin", "text", extra=Extra("openai", {"x_call": True})),
    )
    assert conversation.messages[2].blocks == (
        ToolResult("call_1", (Text("one"),), extra=Extra("openai", {"name": "read"})),
        ToolResult("call_2", (Text("two"),)),
        Text("And?"),
    )
    custom_format = frozenset({"custom.format"})  # a custom tool takes text anyway
    assert conversation.tools[1] == ToolSpec(
        "patch", extra=Extra("openai", {"custom.format": {"type": "text"}}, custom_format)
    )
    assert isinstance(conversation.tools[2], Opaque)
    assert conversation.tool_choice == ToolChoice("any", ("read",), False)
    assert conversation.output == Output(
        "schema", "out", {"type": "object"}, True, Extra("openai", {"json_schema": {"description": "d"}})
    )
    assert conversation.thinking == Thinking(effort="high")
    assert (conversation.max_tokens, conversation.stop, conversation.choices, conversation.user) == (
        100,
        ("END",),
        2,
        "u-1",
    )
    assert conversation.sampling == {"temperature": 0.5, "top_p": 1, "seed": 7}
    assert conversation.extra is not None and set(conversation.extra.fields) == {
        "stream_options",
        "logit_bias",
        "metadata",
        "x_unknown",
    }


def test_nodes_have_their_place_in_the_payload() -> None:
    conversation = parse(FULL)
    assert conversation.messages[0].blocks[1].at.path == "messages[2].content[1]"
    assert conversation.messages[1].blocks[3].at.path == "messages[3].tool_calls[1]"
    assert conversation.messages[2].blocks[1].at.path == "messages[5]"
    assert conversation.tools[0].at.path == "tools[0]"


@pytest.mark.parametrize("place", list(body_paths(FULL)), ids=dotted_path)
def test_a_wrong_type_anywhere_is_a_clear_refusal_or_is_understood(place: tuple[Any, ...]) -> None:
    for wrong in WRONG_VALUES:
        try:
            conversation = parse(with_value(FULL, place, wrong))
        except MalformedRequest as error:
            assert error.at
            continue
        with contextlib.suppress(Unrepresentable):
            assert normalize_spelling(again(conversation)) == normalize_spelling(conversation)


@pytest.mark.parametrize("place", list(body_paths(FULL)), ids=dotted_path)
def test_a_missing_field_anywhere_is_a_clear_refusal_or_is_understood(place: tuple[Any, ...]) -> None:
    try:
        conversation = parse(without_value(FULL, place))
    except MalformedRequest:
        return
    assert normalize_spelling(again(conversation)) == normalize_spelling(conversation)


def test_deep_nesting_is_a_client_error() -> None:
    deep: Any = "x"
    for _ in range(400):
        deep = [deep]
    assert ask({"role": "user", "content": deep}).messages[0].blocks == (Text("x"),)
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(MalformedRequest):
        CODEC.parse_request(ApiRequest("generate", "m", False, {"messages": [{"role": "user", "content": deep}]}))


# ---- messages


@pytest.mark.parametrize(
    ("content", "blocks"),
    [
        ("", ()),
        (None, ()),
        ([], ()),
        ("hi", (Text("hi"),)),
        (["a", ["b", [{"text": "c"}]]], (Text("a"), Text("b"), Text("c"))),
        ({"type": "text", "text": "x"}, (Text("x"),)),
        ({"content": {"text": "x"}}, (Text("x"),)),
        ([{"type": "text", "text": ["a", "b ", "c", {"text": "d"}]}], (Text("a\nb c\nd"),)),
        (5, (Text("5"),)),
        ([{"a": True}], (Text('{"a":true}'),)),
    ],
)
def test_content_of_any_shape(content: Any, blocks: tuple[Any, ...]) -> None:
    assert ask({"role": "User", "content": content}).messages[0].blocks == blocks


def test_roles_are_read_without_regard_to_case() -> None:
    conversation = ask({"role": "SYSTEM", "content": "s"}, {"role": "Assistant", "content": "a"})
    assert conversation.system == (Text("s"),)
    assert conversation.messages == (Message("assistant", (Text("a"),)),)


def test_system_messages_stay_where_they_are_and_leading_ones_lead() -> None:
    conversation = ask(
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        USER,
        {"role": "system", "content": "c"},
    )
    assert [text.text for text in conversation.system] == ["a", "b"]
    assert conversation.messages[-1] == Message("system", (Text("c"),))
    assert [m["role"] for m in render(conversation)["messages"]] == ["system", "developer", "user", "system"]


def test_system_texts_of_one_kind_are_one_message() -> None:
    conversation = Conversation("m", (Message("user", (Text("hi"),)),), (Text("a"), Text("b")))
    assert render(conversation)["messages"][0] == {
        "role": "system",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    assert normalize_spelling(again(conversation)) == normalize_spelling(conversation)


def test_echoed_nulls_of_an_sdk_are_ignored() -> None:
    message = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert ask(USER, message).messages[1] == Message("assistant", (Text("x"),))


def test_kimi_cli_shapes_are_accepted() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    conversation = ask(
        USER,
        {"role": "assistant", "content": [], "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": "c",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        reasoning_effort=None,
    )
    assert conversation.messages[1].blocks == (ToolCall("c", "f", "{}"),)
    assert conversation.messages[2].blocks == (ToolResult("c", (Text("a"), Text("b"))),)
    assert normalize_spelling(again(conversation)) == normalize_spelling(conversation)


def test_tool_messages_and_the_user_message_after_them_are_one_turn() -> None:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": ""}} for i in "ab"]
    conversation = ask(
        USER,
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "b", "content": "B"},
        {"role": "tool", "tool_call_id": "a", "content": ""},
        {"role": "user", "content": "go on"},
    )
    assert conversation.messages[2] == Message("user", (ToolResult("b", (Text("B"),)), ToolResult("a"), Text("go on")))
    assert [m["role"] for m in render(conversation)["messages"]] == ["user", "assistant", "tool", "tool", "user"]


@pytest.mark.parametrize("field", ["tool_call_id", "tool_use_id", "tool_useId"])
def test_the_call_id_of_a_result_has_three_names(field: str) -> None:
    conversation = ask(USER, {"role": "tool", "tool_call_id": "", field: "c1", "text": "found"})
    assert conversation.messages[1].blocks == (ToolResult("c1", (Text("found"),)),)


@pytest.mark.parametrize(
    ("fields", "is_error", "extra"),
    [
        ({}, False, None),
        ({"status": "success"}, False, None),
        ({"status": "error"}, True, None),
        ({"status": "Failed"}, True, None),
        ({"status": "failure"}, True, None),
        ({"status": "cancelled"}, False, Extra("openai", {"status": "cancelled"})),
        ({"status": "success", "is_error": True}, True, None),
        ({"status": "error", "is_error": False}, False, None),
    ],
)
def test_the_status_of_a_result(fields: dict[str, Any], is_error: bool, extra: Extra | None) -> None:
    part = {"type": "tool_result", "tool_use_id": "c", "content": "x", **fields}
    conversation = ask({"role": "user", "content": [part]})
    assert conversation.messages[0].blocks == (ToolResult("c", (Text("x"),), is_error, extra=extra),)


def test_blocks_of_another_dialect_inside_content() -> None:
    conversation = ask(
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "t"}, {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}],
        },
        {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "tool_result", "tool_use_id": "c"}]},
    )
    assert conversation.messages[0].blocks == (Text("t"), ToolCall("c", "f", '{"a":1}'))
    assert conversation.messages[1].blocks == (ToolResult("c"), Text("and"))


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}, "messages[0].tool_calls[0].id"),
        ({"role": "assistant", "tool_calls": [{"id": "a", "function": {"arguments": ""}}]}, "messages[0].tool_calls[0].function.name"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}, "messages[0].content[0].id"),
        ({"role": "user", "content": [{"type": "tool_result", "content": "x"}]}, "messages[0].content[0].tool_use_id"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,!!"}}]}, "messages[0].content[0].image_url.url"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:;base64,{PNG}"}}]}, "messages[0].content[0].image_url.url"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].image_url"),
        ({"role": "user", "content": [{"type": "file", "file": {"file_data": "AAAA"}}]}, "messages[0].content[0].file.file_data"),
        ({"role": "function", "content": "x"}, "messages[0].name"),
    ],
)  # fmt: skip
def test_a_missing_field_is_named_by_its_path(message: dict[str, Any], place: str) -> None:
    with pytest.raises(MalformedRequest) as caught:
        ask(message)
    assert caught.value.at == place
    assert caught.value.fault.status == 400


def test_media_in_a_result_is_read_and_unreadable_media_is_kept() -> None:
    good = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    other = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    bad: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}}
    conversation = ask(USER, {"role": "tool", "tool_call_id": "c", "content": [good, other, bad]})
    image = Media("image", "image/png", "base64", PNG)
    assert conversation.messages[1].blocks == (
        ToolResult("c", (image, image, Opaque("openai", bad, "unreadable media"))),
    )


def test_a_bare_base64_file_is_known_by_its_name() -> None:
    part = {"type": "file", "file": {"filename": "notes.TXT", "file_data": "aGk="}}
    assert ask({"role": "user", "content": [part]}).messages[0].blocks == (
        Media("document", "text/plain", "base64", "aGk=", "notes.TXT"),
    )


# ---- the older functions


def test_function_messages_become_calls_and_results_with_stable_ids() -> None:
    body = (
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "1"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "2"},
    )
    conversation = ask(*body, functions=[{"name": "f", "parameters": {"type": "object"}}], function_call={"name": "f"})
    ids = [
        b.id if isinstance(b, ToolCall) else b.call_id
        for m in conversation.messages[1:]
        for b in m.blocks
        if isinstance(b, ToolCall | ToolResult)
    ]
    assert ids == ["call_function_1", "call_function_1", "call_function_2", "call_function_2"]
    assert conversation.tools == (ToolSpec("f", "", {"type": "object"}),)
    assert conversation.tool_choice == ToolChoice("one", ("f",))
    assert conversation == ask(
        *body, functions=[{"name": "f", "parameters": {"type": "object"}}], function_call={"name": "f"}
    )
    assert conversation.extra == Extra("openai", {"~older": True}, frozenset({"~older"}))
    assert normalize_spelling(again(conversation)) == normalize_spelling(
        structs.replace(conversation, extra=None)
    )  # upstreams are asked in the newer form
    assert [m["role"] for m in render(conversation)["messages"]] == ["user", "assistant", "tool", "assistant", "tool"]


def test_a_client_that_offers_tools_as_well_knows_the_newer_form() -> None:
    tool = {"type": "function", "function": {"name": "g"}}
    assert ask(USER, functions=[{"name": "f"}], tools=[tool]).extra is None
    assert ask(USER, functions=[]).extra is None


# ---- reasoning


def test_details_win_over_the_plain_field() -> None:
    details = [
        {"type": "reasoning.text", "text": "think", "signature": "sig", "index": 0, "format": "anthropic-claude-v1"},
        {"type": "reasoning.encrypted", "data": "blob", "id": "r1", "index": 1},
        {"type": "reasoning.summary", "summary": "in short", "index": 2},
        {"type": "reasoning.new", "x": 1},
    ]
    message = {"role": "assistant", "content": "a", "reasoning": "think", "reasoning_details": details}
    conversation = ask(USER, message)
    assert conversation.messages[1].blocks[:3] == (
        Reasoning(
            "think", "openai", Signature("openai", "sig"), extra=Extra("openai", {"format": "anthropic-claude-v1"})
        ),
        Reasoning("", "openai", Signature("openai", "blob", "encrypted"), extra=Extra("openai", {"id": "r1"})),
        Reasoning("in short", "openai", extra=Extra("openai", {"type": "reasoning.summary"})),
    )
    assert normalize_spelling(again(conversation)) == normalize_spelling(conversation)
    written = render(conversation)["messages"][1]
    assert written["reasoning_details"] == details
    assert written["reasoning_content"] == "thinkin short"


def test_an_encrypted_detail_does_not_change_the_plain_text() -> None:
    message = {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "think",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "blob"}],
    }
    conversation = ask(USER, message)
    assert conversation.messages[1].blocks[:2] == (
        Reasoning("think", "openai"),
        Reasoning("", "openai", Signature("openai", "blob", "encrypted")),
    )
    assert normalize_spelling(again(conversation)) == normalize_spelling(conversation)


def test_an_empty_signed_thought_round_trips() -> None:
    conversation = ask(
        USER,
        {
            "role": "assistant",
            "content": "a",
            "reasoning_details": [{"type": "reasoning.text", "text": "", "signature": "s"}],
        },
    )
    assert conversation.messages[1].blocks[0] == Reasoning("", "openai", Signature("openai", "s"))
    assert normalize_spelling(again(conversation)) == normalize_spelling(conversation)


def test_thinking_blocks_round_trip() -> None:
    blocks = [{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "redacted_thinking", "data": "d"}]
    conversation = ask(USER, {"role": "assistant", "content": "a", "thinking_blocks": blocks})
    assert [b.signature for b in conversation.messages[1].blocks if isinstance(b, Reasoning)] == [
        Signature("openai", "s"),
        Signature("openai", "d", "redacted"),
    ]
    assert render(conversation)["messages"][1]["thinking_blocks"] == blocks
    assert normalize_spelling(again(conversation)) == normalize_spelling(conversation)


def test_the_reasoning_field_is_the_clients_for_chat_and_the_setting_for_others() -> None:
    conversation = ask(USER, {"role": "assistant", "content": "a", "reasoning": "t"})
    assert render(conversation)["messages"][1]["reasoning"] == "t"
    foreign = Conversation("m", (Message("assistant", (Reasoning("t", "openai"),)),))
    assert render(foreign)["messages"][0]["reasoning_content"] == "t"
    assert render(foreign, OpenaiCodec(reasoning_field="reasoning"))["messages"][0]["reasoning"] == "t"


def test_foreign_reasoning_is_refused_by_the_codec() -> None:
    with pytest.raises(Unrepresentable, match="anthropic"):
        render(Conversation("m", (Message("assistant", (Reasoning("t", "anthropic"),)),)))


# ---- tools


@pytest.mark.parametrize("parameters", [None, "missing", 5, [], "text"])
def test_a_tool_without_a_schema_gets_the_empty_one(parameters: Any) -> None:
    function = {"name": "f"} if parameters == "missing" else {"name": "f", "parameters": parameters}
    conversation = ask(USER, tools=[{"type": "function", "function": function}])
    tool = conversation.tools[0]
    assert isinstance(tool, ToolSpec) and tool.schema == {"type": "object", "properties": {}}
    assert normalize_spelling(again(conversation)) == normalize_spelling(conversation)
    if parameters not in (None, "missing"):
        assert render(conversation)["tools"][0]["function"]["parameters"] == parameters


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("any")),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice("one", ("f",))),
        ({"type": "custom", "custom": {"name": "p"}}, ToolChoice("one", ("p",))),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "custom", "custom": {"name": "p"}}]}}, ToolChoice("auto", ("p",))),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}, ToolChoice("any", ("f",))),
    ],
)  # fmt: skip
def test_every_tool_choice(choice: Any, meant: ToolChoice) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "p"}}]
    conversation = ask(USER, tools=tools, tool_choice=choice)
    assert conversation.tool_choice == meant
    assert normalize_spelling(again(conversation)) == normalize_spelling(conversation)
    if isinstance(choice, dict) and "mode" not in choice:
        assert render(conversation)["tool_choice"] == choice


def test_an_unknown_tool_choice_is_kept_unchanged() -> None:
    choice = {"type": "hosted", "x": 1}
    conversation = ask(USER, tools=[{"type": "hosted"}], tool_choice=choice)
    assert conversation.tool_choice == ToolChoice()
    assert render(conversation)["tool_choice"] == choice


@pytest.mark.parametrize("arguments", ["{}", '{"a":1.0, "b": 1e2}', "no json", '"\\"\\""'])
def test_arguments_are_text_from_wire_to_wire(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    conversation = ask(
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": ""},
    )
    assert render(conversation)["messages"][1]["tool_calls"] == [call]


def test_arguments_sent_as_an_object_become_json_text() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": {"a": [1]}}}
    assert ask({"role": "assistant", "tool_calls": [call]}).messages[0].blocks == (ToolCall("c", "f", '{"a":[1]}'),)


# ---- settings


def test_the_name_of_the_limit_field_is_kept() -> None:
    assert render(ask(USER, max_tokens=5))["max_tokens"] == 5
    assert render(ask(USER, max_completion_tokens=5))["max_completion_tokens"] == 5
    vllm = OpenaiCodec(max_tokens_field="max_tokens")
    assert render(ask(USER, max_completion_tokens=5), vllm)["max_tokens"] == 5
    both = render(ask(USER, max_completion_tokens=5, max_tokens=6))
    assert (both["max_completion_tokens"], both["max_tokens"]) == (5, 6)


def test_the_name_of_the_user_field_is_kept() -> None:
    conversation = ask(USER, safety_identifier="s")
    assert conversation.user == "s"
    assert render(conversation)["safety_identifier"] == "s" and "user" not in render(conversation)


def test_spellings_are_marked_as_such() -> None:
    conversation = ask({"role": "developer", "content": "d"}, USER, max_tokens=5, safety_identifier="s")
    assert conversation.extra is not None and conversation.extra.spelling == set(conversation.extra.fields)
    assert conversation.system[0].extra is not None and conversation.system[0].extra.spelling == {"~role"}


def test_efforts() -> None:
    assert ask(USER, reasoning_effort="none").thinking == Thinking("off")
    assert render(ask(USER, reasoning_effort="none"))["reasoning_effort"] == "none"
    assert ask(USER, reasoning_effort="xhigh").thinking == Thinking(effort="xhigh")


@pytest.mark.parametrize(
    "form",
    [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        {"type": "grammar", "g": 1},
    ],
)
def test_response_formats(form: dict[str, Any]) -> None:
    conversation = ask(USER, response_format=form)
    assert normalize_spelling(again(conversation)) == normalize_spelling(conversation)
    if form["type"] != "text":
        assert render(conversation)["response_format"] == form


def test_extra_sampling_fields_are_a_setting_and_unknown_ones_stay_fields() -> None:
    body = {"model": "m", "messages": [USER], "top_k": 5}
    assert parse(body).sampling == {} and render(parse(body))["top_k"] == 5
    assert parse(body, OpenaiCodec(more_sampling=("top_k",))).sampling == {"top_k": 5}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"n": 0}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stop": [1]}, "stop[0]"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"response_format": {"type": 5}}, "response_format.type"),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ],
)
def test_wrong_settings_are_named(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(MalformedRequest) as caught:
        ask(USER, **fields)
    assert caught.value.at == place


# ---- content that Chat cannot express


@pytest.mark.parametrize(
    "block",
    [
        ToolCall("c", "f", "{}", cache=CacheBreakpoint()),
        Text("x", signature=Signature("openai", "s")),
        Text("x", citations=(Opaque("openai", {}),)),
        Media("image", "", "file", "f"),
        Media("document", "text/plain", "text", "t"),
        Media("video", "video/mp4", "base64", "AAAA"),
        Opaque("anthropic", {"type": "x"}),
        ToolResult("c", (), True),
        ToolResult("c", (Text("x"),), cache=CacheBreakpoint()),
    ],
)
def test_unrepresentable_content_is_refused_with_its_place(block: Any) -> None:
    with pytest.raises(Unrepresentable):
        render(Conversation("m", (Message("user", (block,)),)))


@pytest.mark.parametrize(
    "conversation",
    [
        Conversation("m", (), previous_id="resp_1"),
        Conversation("m", (), thinking=Thinking("adaptive")),
        Conversation("m", (), thinking=Thinking(budget=1024)),
        Conversation("m", (), thinking=Thinking("off", "high")),
        Conversation("m", (), tool_choice=ToolChoice("none", ("f",))),
        Conversation("m", (), tools=(Opaque("anthropic", {}),)),
        Conversation("m", (Message("assistant", (ToolCall("c", "f"), Text("after"))),)),
    ],
)
def test_settings_that_chat_cannot_express_are_refused(conversation: Conversation) -> None:
    with pytest.raises(Unrepresentable):
        render(conversation)


def test_only_our_errors_for_bodies_that_are_no_objects() -> None:
    for body in (None, 1, "x", [], [1]):
        with pytest.raises(DragomanError):
            CODEC.parse_request(structs.replace(ApiRequest("generate", "m", False, None), body=body))
