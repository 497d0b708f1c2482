"""Requests of other dialects translated to Bedrock: every change has its note."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman
from dragoman.dialects.base import ApiRequest
from dragoman.dialects.bedrock import DIALECT
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import CacheBreakpoint, Media, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Thinking, ToolSpec
from dragoman.translate import plan
from tests.unit.dialects.bedrock_wire import CLAUDE, NOVA

SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: Any = {"toolSpec": {"name": "get", "description": "d", "inputSchema": {"json": SCHEMA}}}
PROFILE = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abcdef123456"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def parsed(body: Any, model: str = CLAUDE) -> Conversation:
    return DIALECT.codec.parse_request(ApiRequest("generate", model, False, body))


def from_anthropic(body: Any, model: str = CLAUDE) -> tuple[Any, list[str]]:
    """The Converse body of a Messages request, and the rules of the notes."""
    translated = dragoman.translate_request(
        {"max_tokens": 99, **body, "model": "m"}, source="anthropic", target="bedrock", model=model
    )
    return translated.body, [note.rule for note in translated.notes]


def from_openai(body: Any, model: str = CLAUDE) -> tuple[Any, list[str]]:
    translated = dragoman.translate_request({**body, "model": "m"}, source="openai", target="bedrock", model=model)
    return translated.body, [note.rule for note in translated.notes]


# --- from other dialects: ids and names


@pytest.mark.parametrize("id_", ["i" * 64, "a.b:c"])
def test_a_legal_id_stays(id_: str) -> None:
    body, rules = from_openai(_called(id_))
    assert body["messages"][1]["content"][0]["toolUse"]["toolUseId"] == id_
    assert "ids.renamed" not in rules


@pytest.mark.parametrize("id_", ["i" * 65, "call_x|fc_y", "naïve id"])
def test_an_illegal_id_gets_one_alias_on_call_and_result(id_: str) -> None:
    body, rules = from_openai(_called(id_))
    alias = body["messages"][1]["content"][0]["toolUse"]["toolUseId"]
    assert alias != id_
    assert len(alias) <= 64
    assert body["messages"][2]["content"][0]["toolResult"]["toolUseId"] == alias
    assert "ids.renamed" in rules


def test_long_ids_with_the_same_prefix_stay_distinct() -> None:
    one, _ = from_openai(_called("i" * 80 + "1" * 10))
    other, _ = from_openai(_called("i" * 80 + "2" * 10))
    assert one["messages"][1] != other["messages"][1]


def _called(*ids: str, results: Any = "ok") -> dict[str, Any]:
    calls = [{"id": id_, "type": "function", "function": {"name": "get", "arguments": "{}"}} for id_ in ids]
    tool_messages = [{"role": "tool", "tool_call_id": id_, "content": results} for id_ in ids]
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *tool_messages,
    ]
    return {"messages": messages, "tools": [{"type": "function", "function": {"name": "get", "parameters": SCHEMA}}]}


# --- from other dialects: results and history


def test_consecutive_tool_messages_are_one_turn_with_one_result_for_each_call() -> None:
    request = _called("a", "b")
    request["messages"].append({"role": "tool", "tool_call_id": "a", "content": "ok"})
    body, _ = from_openai(request)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert [block["toolResult"]["toolUseId"] for block in body["messages"][2]["content"]] == ["a", "b"]


def test_a_history_with_tools_declares_them_if_the_request_does_not() -> None:
    request = _called("a")
    del request["tools"]
    body, rules = from_openai(request)
    assert [tool["toolSpec"]["name"] for tool in body["toolConfig"]["tools"]] == ["get"]
    assert "bedrock.tools.stub" in rules
    assert DIALECT.codec.breaches(ApiRequest("generate", CLAUDE, False, body)) == []


@pytest.mark.parametrize("more", [{"tool_choice": "auto"}, {"parallel_tool_calls": False}, {"tool_choice": "none"}])
def test_no_choice_without_tools(more: dict[str, Any]) -> None:
    body, _ = from_openai({"messages": [{"role": "user", "content": "x"}], **more})
    assert set(body) == {"messages"}


def test_choice_none_without_tool_history_offers_no_tools() -> None:
    body, rules = from_anthropic({**_anthropic("x"), "tool_choice": {"type": "none"}})
    assert "toolConfig" not in body
    assert "bedrock.tools.none" in rules


@pytest.mark.parametrize(("model", "free"), [(CLAUDE, {"tool_choice": {"type": "none"}}), (NOVA, None)])
def test_choice_none_with_tool_history_keeps_the_tools(model: str, free: Any) -> None:
    body, rules = from_openai({**_called("a"), "tool_choice": "none"}, model)
    assert body["toolConfig"] == {"tools": [{"toolSpec": {"name": "get", "inputSchema": {"json": SCHEMA}}}]}
    assert body.get("additionalModelRequestFields") == free
    assert ("tools.choice" in rules) == (free is None)


def test_parallel_calls_are_forbidden_where_there_is_a_field_for_it() -> None:
    body, _ = from_openai({**_called("a"), "parallel_tool_calls": False})
    assert body["additionalModelRequestFields"] == {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    body, rules = from_openai({**_called("a"), "parallel_tool_calls": False}, NOVA)
    assert "additionalModelRequestFields" not in body
    assert "tools.parallel" in rules


def _anthropic(*blocks: Any, **more: Any) -> dict[str, Any]:
    content = blocks[0] if len(blocks) == 1 and isinstance(blocks[0], str) else list(blocks)
    tools = [{"name": "get", "description": "d", "input_schema": SCHEMA}]
    return {"messages": [{"role": "user", "content": content}], "tools": tools, **more}


def test_nothing_blank_is_sent() -> None:
    calls = {"type": "tool_use", "id": "a", "name": "get", "input": {}}
    body, rules = from_anthropic(
        {
            **_anthropic("go"),
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "go"}, {"type": "text", "text": "  "}]},
                {"role": "assistant", "content": [{"type": "text", "text": ""}, calls]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": ""}]},
            ],
        }
    )
    assert [message["content"] for message in body["messages"]] == [
        [{"text": "go"}],
        [{"toolUse": {"toolUseId": "a", "name": "get", "input": {}}}],
        [{"toolResult": {"toolUseId": "a", "content": [{"text": "(no output)"}]}}],
    ]
    assert {"text.blank", "bedrock.result.empty"} <= set(rules)


def test_results_get_a_separate_message_where_the_model_wants_it() -> None:
    request = _called("a")
    request["messages"].append({"role": "user", "content": "and now?"})
    body, rules = from_openai(request, "mistral.mistral-large-2407-v1:0")
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert body["messages"][3]["content"] == [{"text": "."}]
    assert "bedrock.result.apart" in rules
    together, _ = from_openai(request)
    assert [list(block) for block in together["messages"][2]["content"]] == [["toolResult"], ["text"]]


VENDORS = (
    NOVA,
    "us.meta.llama4-maverick-17b-instruct-v1:0",
    "us.mistral.pixtral-large-2502-v1:0",
    "moonshot.kimi-k2-thinking",
    "openai.gpt-oss-120b-1:0",
    "deepseek.v3-v1:0",
    "qwen.qwen3-coder-480b-a35b-v1:0",
    "cohere.command-r-plus-v1:0",
    "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc",
)


@pytest.mark.parametrize("model", [None, *VENDORS])
def test_every_vendor_takes_the_status_of_a_result(model: str | None) -> None:
    """Recorded requests with `toolResult.status` were accepted by Nova, Llama 4, Pixtral and Kimi."""
    failed = {"type": "tool_result", "tool_use_id": "a", "content": "boom", "is_error": True}
    history = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "get", "input": {}}]},
        {"role": "user", "content": [failed]},
    ]
    named = () if model is None else (model,)
    body, rules = from_anthropic({**_anthropic("x"), "messages": history}, *named)
    expected = {"toolUseId": "a", "content": [{"text": "boom"}], "status": "error"}
    assert body["messages"][2]["content"][0]["toolResult"] == expected
    assert "result.error_text" not in rules


@pytest.mark.parametrize("model", VENDORS)
@pytest.mark.parametrize("status", ["success", "error"])
def test_a_status_of_the_client_itself_is_kept_and_breaks_no_rule(model: str, status: str) -> None:
    """The same dialect on both sides."""
    use = {"toolUse": {"toolUseId": "a", "name": "get", "input": {}}}
    result = {"toolResult": {"toolUseId": "a", "content": [{"text": "boom"}], "status": status}}
    body = {
        "toolConfig": {"tools": [TOOL]},
        "messages": [
            {"role": "user", "content": [{"text": "go"}]},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ],
    }
    translated = dragoman.translate_request(body, source="bedrock", target="bedrock", model=model)
    assert translated.body["messages"][2]["content"] == [result]
    assert not translated.notes
    assert not DIALECT.codec.breaches(ApiRequest("generate", model, False, translated.body))


def test_json_results_are_text_for_a_model_that_misreads_them() -> None:
    body = {
        "toolConfig": {"tools": [TOOL]},
        "messages": [
            {"role": "user", "content": [{"text": "go"}]},
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "a", "name": "get", "input": {}}}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "a", "content": [{"json": {"x": 1}}]}}]},
        ],
    }
    sent: Any = plan(DIALECT, DIALECT, parsed(body)).call().body
    translated: Any = plan(DIALECT, DIALECT, parsed(body, NOVA)).call().body
    assert sent["messages"][2]["content"][0]["toolResult"]["content"] == [{"json": {"x": 1}}]
    assert translated["messages"][2]["content"][0]["toolResult"]["content"] == [{"text": '{"x":1}'}]
    anthropic = dragoman.translate_request(body, source="bedrock", target="anthropic", model="m")
    assert anthropic.body["messages"][2]["content"][0]["content"] == '{"x":1}'


# --- from other dialects: cache points


def test_cache_marks_become_cache_points_after_their_blocks() -> None:
    hour = {"type": "ephemeral", "ttl": "1h"}
    body, _ = from_anthropic(
        {
            "system": [{"type": "text", "text": "s", "cache_control": hour}],
            "tools": [{"name": "get", "input_schema": SCHEMA}],
            "messages": [
                {"role": "user", "content": "go"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "a", "name": "get", "input": {}, "cache_control": hour}],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "a", "content": "ok", "cache_control": hour}],
                },
                {"role": "assistant", "content": "so"},
                {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": hour}]},
            ],
        }
    )
    point = {"cachePoint": {"type": "default", "ttl": "1h"}}
    assert body["system"] == [{"text": "s"}, point]
    assert body["messages"][1]["content"][1] == point
    assert body["messages"][2]["content"][1] == point
    assert body["messages"][4]["content"] == [{"text": "x"}, point]


def test_of_five_cache_marks_the_oldest_message_loses_its_mark() -> None:
    marked = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    turns = [{"role": role, "content": [marked]} for role in ("user", "assistant", "user", "assistant", "user")]
    body, rules = from_anthropic({"messages": turns})
    assert [len(message["content"]) for message in body["messages"]] == [1, 2, 2, 2, 2]
    assert "cache.marks" in rules


def test_a_mark_inside_a_result_moves_out_of_it() -> None:
    part = {"type": "text", "text": "ok", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    history = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "get", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [part]}]},
    ]
    body, rules = from_anthropic({**_anthropic("x"), "messages": history})
    assert body["messages"][2]["content"] == [
        {"toolResult": {"toolUseId": "a", "content": [{"text": "ok"}]}},
        {"cachePoint": {"type": "default", "ttl": "1h"}},
    ]
    assert "bedrock.cache.moved" in rules


def test_a_mark_before_one_of_an_hour_is_of_an_hour() -> None:
    short, hour = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
    body, rules = from_anthropic(
        {
            "system": [{"type": "text", "text": "s", "cache_control": short}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": hour}]}],
        }
    )
    assert body["system"][1] == body["messages"][0]["content"][1] == {"cachePoint": {"type": "default", "ttl": "1h"}}
    assert "cache.ttl" in rules


def test_tools_have_cache_marks_only_where_the_model_accepts_them() -> None:
    tools = [{"name": "get", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}]
    claude, _ = from_anthropic({**_anthropic("x"), "tools": tools})
    nova, rules = from_anthropic({**_anthropic("x"), "tools": tools}, NOVA)
    assert (len(claude["toolConfig"]["tools"]), len(nova["toolConfig"]["tools"])) == (2, 1)
    assert "bedrock.cache.tools" in rules


# --- from other dialects: reasoning


def _thought(*blocks: Any) -> dict[str, Any]:
    history = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [*blocks, {"type": "tool_use", "id": "a", "name": "get", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "ok"}]},
    ]
    return {**_anthropic("x"), "messages": history}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (
            {"type": "thinking", "thinking": "", "signature": "sig=="},
            {"reasoningText": {"text": "", "signature": "sig=="}},
        ),
        ({"type": "thinking", "thinking": "hm", "signature": "s"}, {"reasoningText": {"text": "hm", "signature": "s"}}),
        ({"type": "redacted_thinking", "data": "EpoBCkYI"}, {"redactedContent": "RXBvQkNrWUk="}),
    ],
)
def test_a_signature_is_sent_to_claude_and_round_trips(block: Any, expected: Any) -> None:
    body, _ = from_anthropic(_thought(block))
    assert body["messages"][1]["content"][0] == {"reasoningContent": expected}
    back = dragoman.translate_request(body, source="bedrock", target="anthropic", model="claude-x")
    assert back.body["messages"][1]["content"][0] == block


def test_signed_reasoning_is_sent_only_to_claude() -> None:
    signed = {"type": "thinking", "thinking": "hm", "signature": "s"}
    for model in (NOVA, "deepseek.r1-v1:0", "openai.gpt-oss-20b-1:0"):
        body, rules = from_anthropic(_thought(signed), model)
        assert not any("reasoningContent" in block for block in body["messages"][1]["content"])
        assert {"foreign.reasoning", "bedrock.reasoning.refused"} & set(rules)


def test_unsigned_reasoning_is_sent_to_models_other_than_claude_and_deepseek() -> None:
    thought = {"reasoningContent": {"reasoningText": {"text": "hm"}}}
    turns = [
        {"role": "user", "content": [{"text": "a"}]},
        {"role": "assistant", "content": [thought, {"text": "b"}]},
        {"role": "user", "content": [{"text": "c"}]},
    ]
    for model, expected in (
        (CLAUDE, False),
        ("deepseek.r1-v1:0", False),
        ("openai.gpt-oss-20b-1:0", True),
        (PROFILE, True),
    ):
        planned = plan(DIALECT, DIALECT, parsed({"messages": turns}, model))
        body: Any = planned.call().body
        assert (thought in body["messages"][1]["content"]) == expected
        assert bool(planned.notes) != expected


def test_a_thinking_budget_fits_its_limit() -> None:
    request = {**_anthropic("x"), "thinking": {"type": "enabled", "budget_tokens": 4096}, "max_tokens": 2000}
    body, rules = from_anthropic(request)
    assert body["additionalModelRequestFields"]["thinking"] == {"type": "enabled", "budget_tokens": 1999}
    assert "thinking.budget" in rules


def test_no_tool_is_forced_with_thinking() -> None:
    request = {
        **_anthropic("x"),
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tool_choice": {"type": "any"},
    }
    body, rules = from_anthropic({**request, "max_tokens": 9000})
    assert body["additionalModelRequestFields"]["thinking"] == {"type": "disabled"}
    assert body["toolConfig"]["toolChoice"] == {"any": {}}
    assert "thinking.off" in rules


# --- from other dialects: media


def test_images_are_sent_inside_results() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    history = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "get", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [image]}]},
    ]
    body, _ = from_anthropic({**_anthropic("x"), "messages": history})
    expected = {"image": {"format": "png", "source": {"bytes": PIXEL}}}
    assert body["messages"][2]["content"][0]["toolResult"]["content"] == [expected]


def test_documents_get_unique_legal_names_and_a_text() -> None:
    def document(name: str) -> Any:
        return {
            "type": "document",
            "title": name,
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
        }

    body, rules = from_anthropic(_anthropic(document("a/b  c.pdf"), document("a/b c.pdf"), document("")))
    blocks = body["messages"][0]["content"]
    assert [block["document"]["name"] for block in blocks[:3]] == ["a-b c-pdf", "a-b c-pdf (2)", "document"]
    assert blocks[3] == {"text": "."}
    assert {"bedrock.document.name", "bedrock.document.text"} <= set(rules)


def test_an_address_is_refused_now_and_replaced_in_the_past() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    with pytest.raises(Unrepresentable, match=r"messages\[0\].content\[0\]"):
        from_anthropic(_anthropic(image))
    turns = [
        {"role": "user", "content": [image]},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "y"},
    ]
    body, rules = from_anthropic({"messages": turns})
    assert body["messages"][0]["content"] == [
        {"text": "[image (https://example.org/a.png) left out: this model cannot take it]"}
    ]
    assert "media.replaced" in rules


def test_a_type_that_the_service_does_not_know_is_refused() -> None:
    conversation = Conversation(CLAUDE, (Message("user", (Media("image", "image/bmp", "base64", "aGk="),)),))
    with pytest.raises(Unrepresentable, match="image/bmp"):
        plan(DIALECT, DIALECT, conversation)


def test_a_type_by_another_name_is_the_same_type() -> None:
    conversation = Conversation(CLAUDE, (Message("user", (Media("image", "image/JPG; q=1", "base64", "aGk="),)),))
    planned = plan(DIALECT, DIALECT, conversation)
    assert planned.translated.messages[0].blocks == (Media("image", "image/jpeg", "base64", "aGk="),)
    assert [note.rule for note in planned.notes] == ["bedrock.media.type"]


# --- from other dialects: the rest


def test_a_system_message_between_turns_is_folded() -> None:
    body, rules = from_openai(
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "system", "content": "b"},
                {"role": "user", "content": "c"},
            ]
        }
    )
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert {"system.folded", "turn.merged"} <= set(rules)


def test_temperature_is_clamped_and_unknown_settings_are_dropped() -> None:
    body, rules = from_openai({"messages": [{"role": "user", "content": "a"}], "temperature": 1.7, "seed": 3})
    assert body["inferenceConfig"] == {"temperature": 1.0}
    assert {"knob.clamped", "knob.dropped"} <= set(rules)


def test_a_response_format_is_an_output_config() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    body, rules = from_openai({"messages": [{"role": "user", "content": "a"}], "response_format": form})
    schema = body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
    assert json.loads(schema["schema"]) == {**SCHEMA, "additionalProperties": False}
    assert schema["name"] == "n"
    assert {"output.closed", "bedrock.output.strict"} <= set(rules)


def test_the_user_is_request_metadata_in_legal_characters() -> None:
    body, rules = from_openai({"messages": [{"role": "user", "content": "a"}], "user": "me@example.org"})
    assert body["requestMetadata"] == {"user_id": "me@example.org"}
    body, rules = from_openai({"messages": [{"role": "user", "content": "a"}], "user": "jürgen"})
    assert body["requestMetadata"]["user_id"].startswith("j_rgen_")
    assert "bedrock.user" in rules


def test_tools_of_one_name_and_schemas_of_no_object_are_settled() -> None:
    tools = [ToolSpec("get", "", {"type": "string"}), ToolSpec("get", "", SCHEMA)]
    planned = plan(DIALECT, DIALECT, Conversation(CLAUDE, (Message("user", (Text("x"),)),), tools=tuple(tools)))
    assert planned.translated.tools == (ToolSpec("get", "", {"type": "object", "properties": {}}),)
    assert {note.rule for note in planned.notes} == {"tools.duplicate", "bedrock.tools.schema"}


@pytest.mark.parametrize(
    ("thinking", "sent", "rule"),
    [
        (Thinking(budget=2048), Thinking("on", budget=2048), "thinking.words"),
        (Thinking("adaptive", budget=2048), Thinking("adaptive"), "thinking.words"),
        (Thinking("off", show=True), Thinking("off"), "thinking.words"),
        (Thinking("on"), Thinking("on", budget=4096), "thinking.budget"),
        (Thinking("on", budget=5), Thinking("on", budget=1024), "thinking.budget"),
    ],
)
def test_thinking_is_sent_in_a_form_that_claude_accepts(thinking: Thinking, sent: Thinking, rule: str) -> None:
    conversation = Conversation(
        CLAUDE, (Message("user", (Text("x"),)),), thinking=thinking, sampling={"temperature": 0.5, "top_k": 3}
    )
    planned = plan(DIALECT, DIALECT, conversation)
    assert planned.translated.thinking == sent
    assert rule in [note.rule for note in planned.notes]
    assert bool(planned.translated.sampling) == (
        sent.mode == "off"
    )  # the service refuses sampling settings with thinking


@pytest.mark.parametrize(
    "conversation",
    [
        Conversation(CLAUDE, (Message("user", (Text("x"),)),), thinking=Thinking("on"), max_tokens=1000),
        Conversation(
            CLAUDE,
            (
                Message("user", (Text("x"),)),
                Message("assistant", (ToolCall("a", "get"),)),
                Message("user", (ToolResult("a", (Text("ok"),)),)),
            ),
            tools=(ToolSpec("get", "", SCHEMA),),
            thinking=Thinking("on", budget=1024),
        ),
    ],
)
def test_thinking_is_off_where_claude_would_refuse_it(conversation: Conversation) -> None:
    planned = plan(DIALECT, DIALECT, conversation)
    assert planned.translated.thinking == Thinking("off")
    assert "thinking.off" in [note.rule for note in planned.notes]


def test_media_that_is_unusual_is_settled() -> None:
    before = Message(
        "user", (Media("image", "image/png", "base64", "aGk=", "name"), Media("document", "text/plain", "text", " "))
    )
    conversation = Conversation("m", (before, Message("assistant", (Text("y"),)), Message("user", (Text("x"),))))
    planned = plan(DIALECT, DIALECT, conversation)
    assert planned.translated.messages[0].blocks == (Text("name"), Media("image", "image/png", "base64", "aGk="))
    assert {"media.name", "bedrock.media.blank"} <= {note.rule for note in planned.notes}


def test_a_document_that_is_no_pdf_loses_its_cache_mark() -> None:
    marked = Media("document", "text/csv", "base64", "aGk=", "n", CacheBreakpoint())
    planned = plan(DIALECT, DIALECT, Conversation(CLAUDE, (Message("user", (marked, Text("x"))),)))
    assert [note.rule for note in planned.notes] == ["bedrock.cache.document"]
