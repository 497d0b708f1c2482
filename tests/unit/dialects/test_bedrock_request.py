"""Converse requests, both directions, and translations from other dialects."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman
from dragoman.dialects.base import ApiRequest
from dragoman.dialects.bedrock import DIALECT
from dragoman.errors import MalformedRequest, Unrepresentable
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
from dragoman.translate import configure_dialect
from dragoman.wire.http import HttpRequest
from tests.unit.dialects.bedrock_wire import CLAUDE, NOVA

SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: Any = {"toolSpec": {"name": "get", "description": "d", "inputSchema": {"json": SCHEMA}}}
PROFILE = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abcdef123456"


def parsed(body: Any, model: str = CLAUDE) -> Conversation:
    return DIALECT.codec.parse_request(ApiRequest("generate", model, False, body))


def rendered(conversation: Conversation) -> Any:
    return DIALECT.codec.render_request(conversation).body


def content(*blocks: Any, model: str = CLAUDE, role: str = "user") -> tuple[Any, ...]:
    return parsed(asking(*blocks, role=role), model).messages[0].blocks


def asking(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


# --- reading


def test_every_known_block_is_read() -> None:
    blocks = content(
        {"text": "hi"},
        {"image": {"format": "png", "source": {"bytes": "aGk="}}},
        {"document": {"format": "pdf", "name": "a", "source": {"bytes": "aGk="}}},
        {"document": {"name": "b", "source": {"text": "words"}}},
        {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://b/k", "bucketOwner": "123456789012"}}}},
        {"video": {"format": "three_gp", "source": {"bytes": "aGk="}}},
        {"audio": {"format": "wav", "source": {"bytes": "aGk="}}},
        {"toolUse": {"toolUseId": "t1", "name": "get", "input": {"a": 1}}},
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}},
        {"reasoningContent": {"redactedContent": "aGk="}},
        role="assistant",
    )
    assert blocks == (
        Text("hi"),
        Media("image", "image/png", "base64", "aGk="),
        Media("document", "application/pdf", "base64", "aGk=", "a"),
        Media("document", "text/plain", "text", "words", "b"),
        Media(
            "image",
            "image/png",
            "url",
            "s3://b/k",
            extra=Extra("bedrock", {"source": {"s3Location": {"bucketOwner": "123456789012"}}}),
        ),
        Media("video", "video/3gpp", "base64", "aGk="),
        Media("audio", "audio/wav", "base64", "aGk="),
        ToolCall("t1", "get", '{"a":1}'),
        Reasoning("hm", "bedrock", Signature("bedrock", "s")),
        Reasoning("", "bedrock", Signature("bedrock", "hi", "redacted")),
    )


def test_results_are_read_with_all_they_may_hold() -> None:
    (result,) = content(
        {
            "toolResult": {
                "toolUseId": "t1",
                "status": "error",
                "content": [
                    {"text": "a"},
                    {"json": {"b": 1.5}},
                    {"image": {"format": "jpeg", "source": {"bytes": "aGk="}}},
                    {"image": {"format": "jpeg", "source": {"bytes": "???"}}},
                    {"searchResult": {"source": "s", "title": "t", "content": []}},
                ],
            }
        }
    )
    assert result == ToolResult(
        "t1",
        (
            Text("a"),
            Text('{"b":1.5}', extra=Extra("bedrock", {"~json": True}, frozenset({"~json"}))),
            Media("image", "image/jpeg", "base64", "aGk="),
            Opaque("bedrock", {"image": {"format": "jpeg", "source": {"bytes": "???"}}}, "unreadable media"),
            Opaque("bedrock", {"searchResult": {"source": "s", "title": "t", "content": []}}, "searchResult"),
        ),
        is_error=True,
    )


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_use", "toolUseId": "t1", "name": "q", "input": {}},
        {"toolUse": {"toolUseId": "t1", "name": "q", "input": {}}},
    ],
)
def test_a_call_is_read_flat_or_true_and_always_written_true(block: Any) -> None:
    conversation = parsed({"messages": [{"role": "assistant", "content": [block]}]})
    assert conversation.messages[0].blocks == (ToolCall("t1", "q", "{}"),)
    assert rendered(conversation)["messages"][0]["content"] == [
        {"toolUse": {"toolUseId": "t1", "name": "q", "input": {}}}
    ]


def test_a_cache_point_marks_the_block_before_it() -> None:
    conversation = parsed(
        {
            "system": [{"text": "s"}, {"cachePoint": {"type": "default", "ttl": "1h"}}],
            "toolConfig": {"tools": [TOOL, {"cachePoint": {"type": "default"}}]},
            "messages": [{"role": "user", "content": [{"text": "x"}, {"cachePoint": {"type": "default"}}]}],
        }
    )
    assert (conversation.system[0].cache, conversation.tools[0].cache) == (CacheBreakpoint("1h"), CacheBreakpoint())
    assert conversation.messages[0].blocks == (Text("x", CacheBreakpoint()),)


def test_a_cache_point_that_marks_nothing_stays_a_block() -> None:
    point = {"cachePoint": {"type": "default"}}
    body = asking(point, {"text": "x"}, point, point)
    assert rendered(parsed(body))["messages"][0]["content"] == [point, {"text": "x"}, point, point]


def test_settings_are_read_where_each_vendor_has_them() -> None:
    free = {"top_k": 5, "thinking": {"type": "enabled", "budget_tokens": 2048}, "anthropic_beta": ["b"]}
    config = {"maxTokens": 9, "temperature": 0.5, "topP": 0.9, "stopSequences": ["X"]}
    body: Any = {**asking({"text": "x"}), "inferenceConfig": config, "additionalModelRequestFields": free}
    body["outputConfig"] = {"effort": "high"}
    conversation = parsed(body)
    assert (conversation.max_tokens, conversation.stop) == (9, ("X",))
    assert conversation.sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 5}
    assert conversation.thinking == Thinking("on", "high", 2048)
    assert conversation.extra == Extra("bedrock", {"additionalModelRequestFields": {"anthropic_beta": ["b"]}})
    assert rendered(conversation) == body
    nova = parsed({**body, "additionalModelRequestFields": {"inferenceConfig": {"topK": 3}}}, NOVA)
    assert nova.sampling["top_k"] == 3
    gpt = parsed(
        {**asking({"text": "x"}), "additionalModelRequestFields": {"reasoning_effort": "low"}}, "openai.gpt-oss-20b"
    )
    assert gpt.thinking.effort == "low"


def test_an_output_schema_is_a_text() -> None:
    form = {
        "type": "json_schema",
        "structure": {"jsonSchema": {"schema": '{"type":"object"}', "name": "n", "description": "d"}},
    }
    conversation = parsed({**asking({"text": "x"}), "outputConfig": {"textFormat": form}})
    assert conversation.output == Output(
        "schema", "n", {"type": "object"}, extra=Extra("bedrock", {"structure": {"jsonSchema": {"description": "d"}}})
    )
    assert rendered(conversation)["outputConfig"]["textFormat"] == form


@pytest.mark.parametrize(
    ("config", "choice"),
    [
        ({"toolChoice": {"auto": {}}}, ToolChoice()),
        ({"toolChoice": {"any": {}}}, ToolChoice("any")),
        ({"toolChoice": {"tool": {"name": "get"}}}, ToolChoice("one", ("get",))),
    ],
)
def test_tool_choices(config: Any, choice: ToolChoice) -> None:
    assert parsed({**asking({"text": "x"}), "toolConfig": {"tools": [TOOL], **config}}).tool_choice == choice


def test_fields_that_only_this_service_knows_are_kept() -> None:
    body = {
        **asking(
            {"guardContent": {"text": {"text": "check me", "qualifiers": ["query"]}}},
            {"toolAddition": {"tool": {"name": "x"}}},
        ),
        "system": [{"guardContent": {"text": {"text": "sys"}}}],
        "toolConfig": {"tools": [{"systemTool": {"name": "nova_grounding"}}]},
        "guardrailConfig": {"guardrailIdentifier": "g", "guardrailVersion": "1"},
        "performanceConfig": {"latency": "optimized"},
        "requestMetadata": {"user_id": "me", "team": "a"},
        "promptVariables": {"v": {"text": "x"}},
    }
    conversation = parsed(body)
    assert conversation.messages[0].blocks[0].text == "check me"  # type: ignore[union-attr]
    assert conversation.user == "me"
    assert rendered(conversation) == body


def test_guarded_text_reaches_a_model_that_has_no_guardrails() -> None:
    body = asking({"guardContent": {"text": {"text": "check me"}}})
    translated = dragoman.translate_request(body, source="bedrock", target="anthropic", model="m")
    assert translated.body["messages"][0]["content"] == "check me"
    assert "foreign.field" in [note.rule for note in translated.notes]


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({"messages": 1}, "messages"),
        ({"messages": [{"role": "bot", "content": []}]}, "messages[0].role"),
        (
            asking({"toolUse": {"toolUseId": None, "name": "q", "input": {}}}),
            "messages[0].content[0].toolUse.toolUseId",
        ),
        (asking({"toolUse": {"toolUseId": "t", "name": "", "input": {}}}), "messages[0].content[0].toolUse.name"),
        (asking({"type": "tool_use", "name": "q"}), "messages[0].content[0].toolUseId"),
        (asking({"toolResult": {"content": []}}), "messages[0].content[0].toolResult.toolUseId"),
        (asking({"image": {"format": "png", "source": {"bytes": "%%"}}}), "messages[0].content[0].image.source.bytes"),
        (asking({"image": {"format": "png", "source": {}}}), "messages[0].content[0].image.source"),
        (asking({"image": {"source": {"bytes": "aGk="}}}), "messages[0].content[0].image.format"),
        (asking({"document": {"format": "pdf", "source": {"bytes": "aGk="}}}), "messages[0].content[0].document.name"),
        (asking({}), "messages[0].content[0]"),
        (asking("text"), "messages[0].content[0]"),
        ({**asking(), "system": [{"text": 1}]}, "system[0].text"),
        ({**asking(), "inferenceConfig": {"maxTokens": "9"}}, "inferenceConfig.maxTokens"),
        (
            {**asking(), "toolConfig": {"tools": [{"toolSpec": {"inputSchema": {}}}]}},
            "toolConfig.tools[0].toolSpec.name",
        ),
        ({**asking(), "toolConfig": {"tools": [TOOL], "toolChoice": {"tool": {}}}}, "toolConfig.toolChoice.tool.name"),
    ],
)
def test_unreadable_content_is_named(body: Any, at: str) -> None:
    with pytest.raises(MalformedRequest) as refused:
        parsed(body)
    assert refused.value.at == at


# --- the path


@pytest.mark.parametrize(
    ("path", "model", "stream"),
    [
        ("/model/anthropic.claude-v1%3A0/converse", "anthropic.claude-v1:0", False),
        ("/model/anthropic.claude-v1:0/converse-stream", "anthropic.claude-v1:0", True),
        (f"/model/{PROFILE.replace(':', '%3A').replace('/', '%2F')}/converse", PROFILE, False),
        (f"/model/{PROFILE}/converse", PROFILE, False),
    ],
)
def test_the_path_has_the_model_and_whether_to_stream(path: str, model: str, stream: bool) -> None:
    call = DIALECT.binding.match(HttpRequest("POST", path, body=b'{"messages":[]}'))
    assert call == ApiRequest("generate", model, stream, {"messages": []})
    assert DIALECT.binding.match(DIALECT.binding.wrap(call)) == call


@pytest.mark.parametrize("path", ["/model/m/invoke", "/v1/messages", "/model/converse", "/"])
def test_other_paths_are_not_ours(path: str) -> None:
    assert DIALECT.binding.match(HttpRequest("POST", path, body=b"{}")) is None
    assert DIALECT.binding.match(HttpRequest("GET", "/model/m/converse", body=b"{}")) is None


def test_the_sdks_arguments_are_a_body_too() -> None:
    call = DIALECT.binding.unwrap({"modelId": "m", "messages": []})
    assert (call.model, call.body) == ("m", {"messages": []})


def test_a_count_request_has_only_the_fields_that_count() -> None:
    call = ApiRequest(
        "count", "m", False, {"messages": [], "inferenceConfig": {"maxTokens": 1}, "toolConfig": {"tools": [TOOL]}}
    )
    request = DIALECT.binding.wrap(call)
    assert json.loads(request.body) == {"input": {"converse": {"messages": [], "toolConfig": {"tools": [TOOL]}}}}
    assert DIALECT.binding.match(request) == ApiRequest(
        "count", "m", False, {"messages": [], "toolConfig": {"tools": [TOOL]}}
    )


@pytest.mark.parametrize(
    ("conversation", "at"),
    [
        (Conversation("m", (), choices=2), "n"),
        (Conversation("m", (), previous_id="r"), "previous_response_id"),
        (Conversation("m", (), output=Output("json")), "response_format"),
        (Conversation("m", (), sampling={"seed": 1}), "seed"),
        (Conversation("m", (), tool_choice=ToolChoice("any")), "tool_choice"),
        (Conversation(NOVA, (), thinking=Thinking("on")), "thinking"),
        (Conversation("m", (), tools=(ToolSpec("t"),)), ""),
    ],
)
def test_unrepresentable_content_is_refused(conversation: Conversation, at: str) -> None:
    with pytest.raises(Unrepresentable) as refused:
        rendered(conversation)
    assert refused.value.at == at


def test_a_setting_names_the_vendor_of_an_opaque_id() -> None:
    claude = configure_dialect(DIALECT, {"vendor": "anthropic"})
    assert "signed_reasoning" not in DIALECT.codec.capabilities(PROFILE).traits
    assert "signed_reasoning" in claude.codec.capabilities(PROFILE).traits
    assert "signed_reasoning" not in claude.codec.capabilities(NOVA).traits


# --- round trips of unusual bodies in the same dialect

BASE: Any = asking({"text": "x"})
FREE = "additionalModelRequestFields"


@pytest.mark.parametrize(
    "body",
    [
        {**BASE, "toolConfig": {"tools": [TOOL]}, FREE: {"tool_choice": {"type": "none"}}},
        {
            **BASE,
            "toolConfig": {"tools": [TOOL]},
            FREE: {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        },
        {
            **BASE,
            "toolConfig": {"tools": [TOOL], "toolChoice": {"tool": {"name": "get"}}},
            FREE: {"tool_choice": {"type": "tool", "name": "get", "disable_parallel_tool_use": False}},
        },
        {**BASE, "toolConfig": {"tools": [TOOL]}, FREE: {"tool_choice": {"type": "novel"}}},
        {**BASE, "toolConfig": {"tools": [TOOL]}, FREE: {"tool_choice": "auto"}},
        {**BASE, "toolConfig": {"tools": [TOOL], "toolChoice": {"novel": {}}, "x": 1}},
        {**BASE, FREE: {"thinking": {"type": "novel"}}},
        {**BASE, FREE: {"thinking": {"type": "disabled", "budget_tokens": 5}}},
        {**BASE, FREE: {"thinking": {"type": "adaptive", "display": "omitted"}}},
        {**BASE, FREE: {"thinking": {"type": "enabled", "budget_tokens": "many"}}},
        {**BASE, FREE: [1]},
        {**BASE, FREE: {"top_k": "many"}},
        {**BASE, "outputConfig": {"textFormat": {"type": "novel"}}},
        {**BASE, "inferenceConfig": {"maxTokens": 3, "x": 1}},
        {**BASE, "requestMetadata": {"user_id": 3}},
        {**BASE, "system": [{"text": "s", "x": 1}, {"guardContent": {"image": {"format": "png"}}}]},
        {
            **BASE,
            "toolConfig": {
                "tools": [
                    {"toolSpec": {"name": "a", "inputSchema": {"json": "x"}}, "y": 2},
                    {"cachePoint": {"type": "novel"}},
                ]
            },
        },
        {**BASE, "toolConfig": {"tools": [{"cachePoint": {"type": "default"}}, TOOL]}},
        asking({"toolUse": {"toolUseId": "t", "name": "n", "input": {}, "x": 1}, "y": 2}, role="assistant"),
        asking({"toolUse": {"toolUseId": "t", "name": "n", "input": {}, "type": "server_tool_use"}}),
        asking(
            {
                "toolResult": {
                    "toolUseId": "t",
                    "content": [{"text": "a"}, {"cachePoint": {"type": "default"}}],
                    "status": "odd",
                }
            }
        ),
        asking({"image": {"format": "novel", "source": {"bytes": "aGk="}}}),
        asking({"document": {"format": "pdf", "name": "n", "source": {"content": [{"text": "a"}]}}}),
        asking({"document": {"format": "pdf", "name": "n", "source": {"bytes": "aGk=", "x": 1}, "context": "c"}}),
        asking({"citationsContent": {"content": [{"text": "a"}, {"text": "b"}], "citations": []}}),
        asking({"citationsContent": {"content": [{"text": "a"}], "citations": [{"title": "t"}]}}),
        asking({"reasoningContent": {"novel": 1}}),
        asking({"reasoningContent": {"reasoningText": {"text": "a", "x": 1}}}, {"cachePoint": {"type": "default"}}),
        asking({"reasoningContent": {"redactedContent": "/w=="}}),
        asking({"guardContent": {"novel": 1}}),
        asking(
            {"text": "x"}, {"cachePoint": {"type": "default", "x": 1}}, {"cachePoint": {"type": "default", "ttl": "9h"}}
        ),
        {"messages": [{"role": "user", "content": [{"text": "x"}], "y": 1}]},
    ],
)
def test_an_unusual_body_round_trips_unchanged(body: Any) -> None:
    assert rendered(parsed(body)) == body


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({**BASE, "toolConfig": {"tools": [TOOL], "toolChoice": 3}}, "toolConfig.toolChoice"),
        ({**BASE, "toolConfig": {"tools": [TOOL], "toolChoice": {"tool": {"name": ""}}}}, "toolConfig.toolChoice.tool"),
        ({**BASE, "system": [{"toolUse": {"toolUseId": "t", "name": "n"}}]}, "system[0]"),
        (
            {
                **BASE,
                "outputConfig": {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": {"schema": "{"}}}},
            },
            "outputConfig.textFormat.structure.jsonSchema.schema",
        ),
        (
            {
                **BASE,
                "outputConfig": {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": {"schema": "[]"}}}},
            },
            "outputConfig.textFormat.structure.jsonSchema.schema",
        ),
        (
            asking({"image": {"format": "png", "source": {"s3Location": {"uri": "https://x"}}}}),
            "messages[0].content[0].image.source.s3Location.uri",
        ),
        (
            asking({"reasoningContent": {"redactedContent": "%"}}),
            "messages[0].content[0].reasoningContent.redactedContent",
        ),
    ],
)
def test_unreadable_content_of_an_unusual_body_is_named(body: Any, at: str) -> None:
    with pytest.raises(MalformedRequest) as refused:
        parsed(body)
    assert refused.value.at == at


def test_a_message_may_be_a_text_and_so_may_a_result() -> None:
    conversation = parsed(
        {
            "messages": [
                {"role": "User", "content": "hi"},
                {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": "ok"}}]},
            ]
        }
    )
    assert conversation.messages[0] == Message("user", (Text("hi"),))
    assert conversation.messages[1].blocks == (ToolResult("t", (Text("ok"),)),)


def test_bytes_that_are_no_text_round_trip_as_a_signature() -> None:
    (block,) = content({"reasoningContent": {"redactedContent": "/w=="}})
    assert isinstance(block, Reasoning)
    assert rendered(Conversation(CLAUDE, (Message("assistant", (block,)),)))["messages"][0]["content"][0] == {
        "reasoningContent": {"redactedContent": "/w=="}
    }
