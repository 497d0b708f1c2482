"""Anthropic requests, both directions."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from msgspec import structs

from dragoman.dialects.anthropic import DIALECT
from dragoman.dialects.base import ApiRequest
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
from tests.wrong_values import WRONG_VALUES, body_paths, dotted_path, with_value

CODEC, BINDING = DIALECT.codec, DIALECT.binding
PNG = "iVBORw0KGgo="

FULL: dict[str, Any] = {
    "model": "claude-opus-5-5",
    "max_tokens": 4096,
    "stream": True,
    "system": [
        {"type": "text", "text": "Be brief."},
        {"type": "text", "text": "Speak Latin.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look.", "cache_control": {"type": "ephemeral"}},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
                {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
                {
                    "type": "document",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
                    "title": "Report",
                    "context": "of last year",
                    "citations": {"enabled": True},
                },
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
                {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}},
                {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "found"}]},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig=="},
                {"type": "redacted_thinking", "data": "hidden"},
                {"type": "text", "text": "I read", "citations": [{"type": "char_location", "cited_text": "x"}]},
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
                {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"p": 1}, "caller": {"type": "direct"}},
                {"type": "tool_use", "id": "toolu_2", "name": "read", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "done", "is_error": True},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": [
                        {"type": "text", "text": "seen"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                        {"type": "tool_reference", "tool_name": "read"},
                    ],
                    "cache_control": {"type": "ephemeral"},
                },
                {"type": "text", "text": "go on"},
            ],
        },
        {"role": "system", "content": "From here on, Greek.", "clear_at": "end"},
        {"role": "user", "content": "Well?"},
    ],
    "tools": [
        {
            "name": "read",
            "description": "Reads.",
            "input_schema": {"type": "object", "properties": {"p": {"type": "integer"}}},
            "strict": True,
            "defer_loading": True,
        },
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3, "cache_control": {"type": "ephemeral"}},
    ],
    "tool_choice": {"type": "tool", "name": "read", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2048, "display": "omitted"},
    "output_config": {
        "effort": "high",
        "format": {"type": "json_schema", "schema": {"type": "object"}},
        "task_budget": 7,
    },
    "stop_sequences": ["END"],
    "temperature": 1,
    "top_p": 0.99,
    "top_k": 40,
    "metadata": {"user_id": "u1", "team": "t"},
    "service_tier": "auto",
    "context_management": {"edits": []},
}


def read(body: dict[str, Any], hints: dict[str, str] | None = None) -> Conversation:
    return CODEC.parse_request(structs.replace(BINDING.unwrap(body), hints=hints or {}))


def ask(*messages: dict[str, Any], **more: Any) -> Conversation:
    return read({"model": "m", "max_tokens": 9, "messages": list(messages), **more})


def first_block(content: Any) -> Any:
    return ask({"role": "user", "content": content}).messages[0].blocks[0]


def written(conversation: Conversation) -> dict[str, Any]:
    body = CODEC.render_request(conversation).body
    assert isinstance(body, dict)
    return body


# --- round trips in the same dialect


def test_a_full_body_round_trips_unchanged() -> None:
    body = written(read(FULL))
    assert body == {name: value for name, value in FULL.items() if name not in ("model", "stream")}


def test_the_call_keeps_model_stream_and_hints() -> None:
    hints = {"anthropic-beta": "a,b", "anthropic-version": "2024-01-01"}
    call = CODEC.render_request(read(FULL, hints))
    assert (call.operation, call.model, call.stream, call.hints) == ("generate", "claude-opus-5-5", True, hints)


def test_reading_leaves_the_body_untouched() -> None:
    body = copy.deepcopy(FULL)
    written(read(body))
    assert body == FULL


def test_one_plain_text_is_written_as_a_string() -> None:
    body = written(
        ask(
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "ok"}]}],
            },
            system=[{"type": "text", "text": "s"}],
        )
    )
    assert body["system"] == "s"
    assert body["messages"][0]["content"] == "hi"
    assert body["messages"][2]["content"][0]["content"] == "ok"


def test_unknown_fields_of_known_objects_round_trip() -> None:
    body = {
        "model": "m",
        "max_tokens": 5,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "x", "new": 1},
                    {
                        "type": "image",
                        "source": {"type": "url", "url": "u", "new": None},
                        "cache_control": {"type": "ephemeral", "new": 2},
                    },
                ],
                "new": 3,
            }
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "new": [4]}],
        "tool_choice": {"type": "any", "new": 5},
        "thinking": {"type": "adaptive", "display": "updates", "new": 6},
        "metadata": {"new": 7},
        "output_config": {"format": {"type": "json_schema", "schema": {}, "new": 8}, "new": {"a": 9}},
        "new": None,
    }
    assert written(read(body)) == {name: value for name, value in body.items() if name != "model"}


@pytest.mark.parametrize(
    "extra",
    [
        {"thinking": {"type": "dreaming", "depth": 3}},
        {"output_config": {"format": {"type": "grammar", "rules": "x"}}},
        {"output_format": {"type": "grammar"}},
        {"cache_control": {"type": "ephemeral"}},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "forever"}}]}
            ]
        },
        {"tools": [{"name": "f", "input_schema": "anything"}]},
        {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "auto", "new": 5}},
        {"messages": [{"role": "system", "content": "x", "text": "not what it says"}]},
        {"tools": [{"type": "custom_20990101", "no": "name"}]},
    ],
)
def test_unknown_forms_round_trip_whole(extra: dict[str, Any]) -> None:
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], **extra}
    assert written(read({"model": "m", **body})) == body


# --- reading


def test_every_field_has_its_canonical_place() -> None:
    got = read(FULL, {"anthropic-beta": "b"})
    assert got.model == "claude-opus-5-5"
    assert got.stream
    assert got.system == (Text("Be brief."), Text("Speak Latin.", CacheBreakpoint("1h")))
    assert got.max_tokens == 4096
    assert got.stop == ("END",)
    assert got.sampling == {"temperature": 1, "top_p": 0.99, "top_k": 40}
    assert got.user == "u1"
    assert got.tool_choice == ToolChoice("one", ("read",), parallel=False)
    assert got.thinking == Thinking("on", "high", 2048, show=False)
    assert got.output == Output("schema", schema={"type": "object"})
    assert got.hints == Extra("anthropic", {"anthropic-beta": "b"})
    assert got.extra is not None
    assert got.extra.fields == {
        "metadata": {"team": "t"},
        "output_config": {"task_budget": 7},
        "service_tier": "auto",
        "context_management": {"edits": []},
    }
    read_tool, search = got.tools
    assert isinstance(read_tool, ToolSpec)
    assert (read_tool.name, read_tool.strict) == ("read", True)
    assert isinstance(search, Opaque)
    assert (search.kind, search.cache) == ("web_search_20250305", CacheBreakpoint())


def test_every_block_has_its_canonical_form() -> None:
    user, assistant, results, system, last = read(FULL).messages
    image = Media("image", "image/png", "base64", PNG)
    assert user.blocks[:4] == (
        Text("Look.", CacheBreakpoint()),
        image,
        Media("image", "", "url", "https://x.test/a.png"),
        Media("image", "", "file", "file_1"),
    )
    pdf = user.blocks[4]
    assert isinstance(pdf, Media)
    assert (pdf.kind, pdf.mime, pdf.name) == ("document", "application/pdf", "Report")
    assert user.blocks[5] == Media("document", "text/plain", "text", "plain")
    assert [block.kind for block in user.blocks[6:] if isinstance(block, Opaque)] == ["document", "search_result"]
    assert assistant.blocks[:3] == (
        Reasoning("hm", "anthropic", Signature("anthropic", "sig==")),
        Reasoning("", "anthropic", Signature("anthropic", "hidden", "redacted")),
        Text("I read", citations=(Opaque("anthropic", {"type": "char_location", "cited_text": "x"}, "char_location"),)),
    )
    assert [block.kind for block in assistant.blocks[3:5] if isinstance(block, Opaque)] == [
        "server_tool_use",
        "web_search_tool_result",
    ]
    assert assistant.blocks[5] == ToolCall(
        "toolu_1", "read", '{"p":1}', extra=Extra("anthropic", {"caller": {"type": "direct"}})
    )
    assert results.blocks[0] == ToolResult("toolu_1", (Text("done"),), is_error=True)
    second = results.blocks[1]
    assert isinstance(second, ToolResult)
    assert second.content[:2] == (Text("seen"), image)
    assert second.cache == CacheBreakpoint()
    assert system == Message("system", (Text("From here on, Greek."),), extra=Extra("anthropic", {"clear_at": "end"}))
    assert last == Message("user", (Text("Well?"),))


def test_places_are_those_of_the_payload() -> None:
    got = read(FULL)
    assert got.system[1].at.path == "system[1]"
    assert got.messages[2].blocks[1].at.path == "messages[2].content[1]"
    result = got.messages[2].blocks[1]
    assert isinstance(result, ToolResult)
    assert result.content[1].at.path == "messages[2].content[1].content[1]"
    assert got.tools[1].at.path == "tools[1]"


def test_yesterdays_output_format_is_read_and_written_as_todays() -> None:
    got = ask({"role": "user", "content": "x"}, output_format={"type": "json_schema", "schema": {"type": "object"}})
    assert got.output == Output("schema", schema={"type": "object"})
    assert written(got)["output_config"] == {"format": {"type": "json_schema", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, Thinking("on", budget=1024)),
        ({"type": "disabled"}, Thinking("off")),
        ({"type": "adaptive", "display": "summarized"}, Thinking("adaptive", show=True)),
        ({"type": "between_tools"}, Thinking("between_tools")),
    ],
)
def test_modes_of_thinking(thinking: dict[str, Any], expected: Thinking) -> None:
    got = ask({"role": "user", "content": "x"}, thinking=thinking)
    assert got.thinking == expected
    assert written(got)["thinking"] == thinking


def test_a_missing_or_null_schema_takes_no_parameters() -> None:
    got = ask(
        {"role": "user", "content": "x"}, tools=[{"name": "a"}, {"name": "b", "input_schema": None, "type": "custom"}]
    )
    assert [tool.schema for tool in got.tools if isinstance(tool, ToolSpec)] == [
        {"type": "object", "properties": {}}
    ] * 2


def test_a_missing_limit_is_read_as_none() -> None:
    assert read({"model": "m", "messages": []}).max_tokens is None
    assert ask({"role": "user", "content": "x"}, max_tokens=0).max_tokens == 0


def test_an_unsigned_thinking_block_has_no_signature() -> None:
    for block in ({"thinking": "t"}, {"thinking": "t", "signature": ""}, {"thinking": "t", "signature": None}):
        got = ask({"role": "assistant", "content": [{"type": "thinking", **block}]}).messages[0].blocks[0]
        assert got == Reasoning("t", "anthropic")


def test_a_signed_thinking_block_without_text_stays() -> None:
    blocks = [{"type": "thinking", "thinking": "", "signature": "s"}, {"type": "text", "text": "a"}]
    body = written(ask({"role": "user", "content": "x"}, {"role": "assistant", "content": blocks}))
    assert body["messages"][1]["content"] == blocks


def test_the_input_of_a_call_is_text_and_keeps_its_value() -> None:
    for value, text in (({"a": [1.5, "é", None]}, '{"a":[1.5,"é",null]}'), ("x", '"x"'), ([1], "[1]"), (None, "")):
        block = ask({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": value}]})
        assert block.messages[0].blocks[0] == ToolCall("a", "f", text)


def test_lone_surrogates_and_huge_integers_survive() -> None:
    value = {"a": "\ud800", "b": 10**30}
    message = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": value}]}
    body = written(ask({"role": "user", "content": "\udfff"}, message))
    assert body["messages"][1]["content"][0]["input"] == value
    assert body["messages"][0]["content"] == "\udfff"


# --- lenient readers (docs/decisions/content.md#d1, #d2)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"content": "sunny"}, ("sunny",)),
        ({"content": [{"type": "text", "text": "sunny"}]}, ("sunny",)),
        (
            {
                "content": [
                    {"type": "text", "text": [{"type": "text", "text": "is sunny"}]},
                    {"type": "text", "text": " and 75"},
                ]
            },
            ("is sunny", " and 75"),
        ),
        ({"content": [["a", ["b"]], "c"]}, ("a", "b", "c")),
        ({"content": []}, ()),
        ({}, ()),
        ({"content": None}, ()),
        ({"content": ""}, ()),
        ({"content": [{"type": "text", "text": ""}, None, {"type": "text", "text": None}]}, ()),
        ({"text": "fallback"}, ("fallback",)),
        ({"content": None, "text": ["a", "b"]}, ("a", "b")),
        ({"content": {"text": "t"}}, ("t",)),
        ({"content": {"content": ["c"]}}, ("c",)),
        ({"content": {"temperature": 75}}, ('{"temperature":75}',)),
        ({"content": [75, True, 1.5]}, ("75", "true", "1.5")),
    ],
)
def test_a_result_of_any_shape_is_read(fields: dict[str, Any], expected: tuple[str, ...]) -> None:
    for message in ({"role": "Tool", "tool_use_id": "t1", **fields}, _result_in_user(fields)):
        (block,) = ask({"role": "user", "content": "x"}, message).messages[1].blocks
        assert isinstance(block, ToolResult)
        assert tuple(part.text for part in block.content if isinstance(part, Text)) == expected
        assert len(block.content) == len(expected)


def _result_in_user(fields: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", **fields}]}


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ({"tool_use_id": "a"}, "a"),
        ({"tool_useId": "a"}, "a"),
        ({"tool_call_id": "a"}, "a"),
        ({"tool_use_id": "primary", "tool_useId": "secondary"}, "primary"),
        ({"tool_call_id": "", "tool_use_id": None, "tool_useId": "last"}, "last"),
    ],
)
def test_the_id_of_a_result_is_the_first_that_is_set(ids: dict[str, Any], expected: str) -> None:
    (block,) = ask({"role": "tool", "content": "x", **ids}).messages[0].blocks
    assert isinstance(block, ToolResult)
    assert block.call_id == expected


@pytest.mark.parametrize(
    ("fields", "error", "extra"),
    [
        ({}, False, {}),
        ({"status": "success"}, False, {}),
        ({"status": "error"}, True, {}),
        ({"status": "failed"}, True, {"status": "failed"}),
        ({"status": "FAILURE"}, True, {"status": "FAILURE"}),
        ({"status": "running"}, False, {"status": "running"}),
        ({"status": "success", "is_error": True}, True, {}),
        ({"status": "error", "is_error": False}, True, {}),
    ],
)
def test_the_status_of_a_result_sets_is_error(fields: dict[str, Any], error: bool, extra: dict[str, Any]) -> None:
    (block,) = ask(_result_in_user(fields)).messages[0].blocks
    assert isinstance(block, ToolResult)
    assert block.is_error is error
    assert (dict(block.extra.fields) if block.extra else {}) == extra


@pytest.mark.parametrize(
    "image",
    [
        {"type": "image", "source": {"data": "base64data"}},
        {"type": "image"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "no base64!"}},
        {"type": "image", "source": {"type": "base64", "data": PNG}},
        {"type": "document", "source": {"type": "url"}},
    ],
)
def test_unreadable_media_is_opaque_in_a_result_and_an_error_elsewhere(image: dict[str, Any]) -> None:
    result = (
        ask(_result_in_user({"content": [image, {"type": "text", "text": "Image processed"}]})).messages[0].blocks[0]
    )
    assert isinstance(result, ToolResult)
    assert result.content == (Opaque("anthropic", image, "unreadable media"), Text("Image processed"))
    with pytest.raises(MalformedRequest, match=r"messages\[0\]\.content\[0\]\.source"):
        first_block([image])


def test_a_text_of_another_type_in_a_result_is_text_and_round_trips() -> None:
    part = {"type": "output_text", "text": "hi", "n": 1}
    got = ask(_result_in_user({"content": [part]}))
    result = got.messages[0].blocks[0]
    assert isinstance(result, ToolResult)
    assert isinstance(result.content[0], Text)
    assert result.content[0].text == "hi"
    assert written(got)["messages"][0]["content"][0]["content"] == [part]


def test_result_blocks_in_a_tool_message_are_read_as_a_users() -> None:
    got = ask({"role": "tool", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]})
    assert got.messages == (Message("user", (ToolResult("a", (Text("x"),)),)),)


def test_roles_are_read_in_any_case_and_developer_is_system() -> None:
    got = ask(
        {"role": "USER", "content": "a"}, {"role": "Developer", "content": "b"}, {"role": "Assistant", "content": "c"}
    )
    assert [message.role for message in got.messages] == ["user", "system", "assistant"]


def test_leading_system_messages_belong_to_the_system_prompt() -> None:
    got = ask({"role": "system", "content": "b"}, {"role": "user", "content": "c"}, system="a")
    assert got.system == (Text("a"), Text("b"))


def test_calls_in_the_other_dialects_shape_are_read() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    got = ask({"role": "assistant", "content": None, "tool_calls": [call]})
    assert got.messages[0].blocks == (ToolCall("c1", "f", '{"a": 1}'),)


def test_strings_and_untyped_texts_are_text_blocks() -> None:
    assert first_block(["hi"]) == Text("hi")
    assert first_block([{"text": "hi"}]) == Text("hi")


def test_a_result_and_the_message_after_it_are_one_turn() -> None:
    got = ask({"role": "tool", "tool_use_id": "a", "content": "x"}, {"role": "user", "content": "y"})
    assert got.messages == (Message("user", (ToolResult("a", (Text("x"),)), Text("y"))),)


# --- refused requests


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "x"}]}, r"messages\[0\]\.role"),
        ({"messages": [{"role": "bogus", "content": "x"}]}, r"messages\[0\]\.role"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\]\.content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, r"messages\[0\]\.content\[0\]\.text"),
        ({"messages": [{"role": "user", "content": [{"no": "type"}]}]}, r"messages\[0\]\.content\[0\]\.type"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}]}, r"content\[0\]\.id"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "", "name": "f"}]}]},
            r"content\[0\]\.id",
        ),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]}, r"content\[0\]\.name"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, r"content\[0\]\.tool_use_id"),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\]\.tool_use_id"),
        ({"tools": [{"input_schema": {}}]}, r"tools\[0\]\.name"),
        ({"tool_choice": {"type": "tool"}}, r"tool_choice\.name"),
        ({"tool_choice": {"type": "maybe"}}, r"tool_choice\.type"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"system": [{"type": "image"}]}, r"system\[0\]\.type"),
    ],
)
def test_a_bad_field_is_named_by_its_place(change: dict[str, Any], place: str) -> None:
    with pytest.raises(MalformedRequest, match=f"^{place}|{place}: ") as caught:
        read({"model": "m", "max_tokens": 1, "messages": [], **change})
    assert caught.value.fault.status == 400


@pytest.mark.parametrize("path", [(), *body_paths(FULL)], ids=dotted_path)
def test_a_wrong_type_anywhere_is_read_or_refused_with_our_error(path: tuple[Any, ...]) -> None:
    for wrong in WRONG_VALUES:
        try:
            got = CODEC.parse_request(BINDING.unwrap(with_value(FULL, path, wrong)))
        except MalformedRequest:
            continue
        try:
            CODEC.render_request(got)
        except Unrepresentable:
            continue


def test_json_nested_too_deeply_is_refused() -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    with pytest.raises(DragomanError):
        ask({"role": "tool", "tool_use_id": "a", "content": deep}, {"role": "user", "content": deep})


USER = Message("user", (Text("x"),))


@pytest.mark.parametrize(
    "conversation",
    [
        Conversation("m", (Message("user", (Media("audio", "audio/wav", "base64", "AA=="),)),)),
        Conversation("m", (Message("user", (Media("image", "image/png", "text", "AA=="),)),)),
        Conversation("m", (Message("user", (Opaque("openai", {"type": "x"}),)),)),
        Conversation("m", (Message("assistant", (ToolCall("a", "f", "[1]"),)),)),
        Conversation("m", (Message("assistant", (ToolCall("a", "f", "{"),)),)),
        Conversation("m", (Message("assistant", (ToolCall("a", "f", "*** Begin", form="text"),)),)),
        Conversation("m", (Message("assistant", (ToolCall("a", "f", signature=Signature("x", "y")),)),)),
        Conversation("m", (Message("assistant", (Reasoning("t", "x", Signature("x", "y", "encrypted")),)),)),
        Conversation("m", (USER,), tools=(ToolSpec("f"),)),
        Conversation("m", (USER,), tool_choice=ToolChoice("any", ("a", "b"))),
        Conversation("m", (USER,), tool_choice=ToolChoice("one")),
        Conversation("m", (USER,), output=Output("json")),
        Conversation("m", (USER,), sampling={"seed": 1}),
        Conversation("m", (USER,), choices=2),
        Conversation("m", (USER,), previous_id="resp_1"),
    ],
)
def test_unrepresentable_content_is_refused(conversation: Conversation) -> None:
    with pytest.raises(Unrepresentable):
        CODEC.render_request(conversation)


def test_another_familys_extra_fields_are_not_rendered() -> None:
    foreign = Extra("openai", {"logprobs": True})
    conversation = Conversation(
        "m", (Message("user", (Text("x", extra=foreign),), extra=foreign),), extra=foreign, hints=foreign
    )
    assert CODEC.render_request(conversation) == ApiRequest(
        "generate", "m", False, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}
    )
