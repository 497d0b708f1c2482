"""Unusual request shapes that real services accept are read with their meaning."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman
import dragoman.dialects as registry
from dragoman.dialects.base import ApiRequest
from dragoman.errors import MalformedRequest, Unrepresentable

MODEL = "claude-sonnet-4.5"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
every_target = pytest.mark.parametrize("target", registry.names())


def translated(body: dict[str, Any], source: str, target: str, model: str = MODEL) -> dragoman.Translated:
    return dragoman.translate_request(body, source=source, target=target, model=model)


def chatting(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], **fields}


# --- Gemini

DECLARED = {"name": "go", "description": "Goes.", "parametersJsonSchema": SCHEMA}
REQUEST = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}


@every_target
@pytest.mark.parametrize(
    "tools",
    [
        {"functionDeclarations": [DECLARED]},
        {"function_declarations": [DECLARED]},
        {"functionDeclarations": DECLARED},
        [{"functionDeclarations": DECLARED}],
        [{"function_declarations": [{**DECLARED, "parametersJsonSchema": None, "parameters_json_schema": SCHEMA}]}],
    ],
    ids=["object", "snake", "lone", "lone-in-list", "snake-schema"],
)
def test_gemini_tools_in_every_shape_the_service_reads(tools: Any, target: str) -> None:
    result = translated({**REQUEST, "tools": tools}, "gemini", target)
    usual = translated({**REQUEST, "tools": [{"functionDeclarations": [DECLARED]}]}, "gemini", target)
    assert result.body == usual.body


def test_gemini_names_the_place_of_an_error() -> None:
    with pytest.raises(MalformedRequest) as refused:
        translated({**REQUEST, "tools": {"functionDeclarations": {"name": 5}}}, "gemini", "openai")
    assert refused.value.fault.at == "tools.functionDeclarations.name"
    with pytest.raises(MalformedRequest):
        translated({**REQUEST, "tools": "go"}, "gemini", "openai")


@every_target
@pytest.mark.parametrize(
    "body",
    [
        {"contents": "hi"},
        {"contents": {"parts": [{"text": "hi"}]}},
        {"contents": {"role": "user", "parts": {"text": "hi"}}},
        {"contents": ["hi"]},
        {"contents": [{"role": "USER", "parts": ["hi"]}]},
    ],
)
def test_gemini_contents_in_every_shape(body: dict[str, Any], target: str) -> None:
    assert translated(body, "gemini", target).body == translated(REQUEST, "gemini", target).body


@pytest.mark.parametrize("system", ["Be brief.", {"parts": {"text": "Be brief."}}, {"parts": ["Be brief."]}])
@pytest.mark.parametrize("name", ["systemInstruction", "system_instruction"])
def test_gemini_system_in_every_shape(name: str, system: Any) -> None:
    result = translated({**REQUEST, name: system}, "gemini", "anthropic")
    assert result.body["system"] == "Be brief."


def test_gemini_stop_sequences_may_be_one_string() -> None:
    result = translated({**REQUEST, "generation_config": {"stop_sequences": "END"}}, "gemini", "anthropic")
    assert result.body["stop_sequences"] == ["END"]


# --- the choice of a tool

TOOL = {"type": "function", "function": {"name": "go", "parameters": SCHEMA}}
FORCED: list[Any] = ["required", "any", "ANY", {"type": "any"}, {"type": "required"}]
NAMED: list[Any] = [
    {"type": "function", "function": {"name": "go"}},
    {"type": "function", "name": "go"},
    {"type": "tool", "name": "go"},
]
FREE: list[Any] = ["auto", "validated", {"type": "auto"}]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        *((choice, {"type": "any"}) for choice in FORCED),
        *((choice, {"type": "tool", "name": "go"}) for choice in NAMED),
        *((choice, None) for choice in FREE),
        ("none", {"type": "none"}),
        ({"type": "none"}, {"type": "none"}),
    ],
    ids=json.dumps,
)
def test_chat_accepts_the_tool_choices_of_every_vendor(choice: Any, expected: Any) -> None:
    result = translated(chatting(tools=[TOOL], tool_choice=choice), "openai", "anthropic")
    assert result.body.get("tool_choice") == expected


def test_the_tool_choice_of_mistral_round_trips() -> None:
    result = translated(chatting(tools=[TOOL], tool_choice="any"), "openai", "openai")
    assert result.body["tool_choice"] == "any" and not result.notes


@pytest.mark.parametrize("choice", ["whatever", 5, ["auto"]])
def test_an_unknown_tool_choice_is_refused_with_its_place(choice: Any) -> None:
    for source in ("openai", "responses", "anthropic"):
        with pytest.raises(MalformedRequest) as refused:
            body = {"input": "hi"} if source == "responses" else chatting(max_tokens=9)
            translated({**body, "tool_choice": choice}, source, "openai")
        assert refused.value.fault.at.startswith("tool_choice")


@pytest.mark.parametrize("choice", [*FORCED, {"type": "tool", "name": "go"}], ids=json.dumps)
def test_responses_accepts_unusual_tool_choices(choice: Any) -> None:
    body = {"input": "hi", "tools": [{"type": "function", "name": "go", "parameters": SCHEMA}], "tool_choice": choice}
    one = isinstance(choice, dict) and "name" in choice
    expected = {"type": "tool", "name": "go"} if one else {"type": "any"}
    assert translated(body, "responses", "anthropic").body["tool_choice"] == expected


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("any", {"type": "any"}),
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        ({"type": "required"}, {"type": "any"}),
        ({"type": "function", "function": {"name": "go"}}, {"type": "tool", "name": "go"}),
    ],
)
def test_anthropic_accepts_unusual_tool_choices(choice: Any, expected: Any) -> None:
    body = chatting(max_tokens=9, tools=[{"name": "go", "input_schema": SCHEMA}], tool_choice=choice)
    assert translated(body, "anthropic", "anthropic").body["tool_choice"] == expected


@pytest.mark.parametrize("choice", ["any", {"any": {}}])
def test_bedrock_accepts_unusual_tool_choices(choice: Any) -> None:
    tools = [{"toolSpec": {"name": "go", "inputSchema": {"json": SCHEMA}}}]
    body = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    body["toolConfig"] = {"tools": tools, "toolChoice": choice}  # type: ignore[assignment]
    assert translated(body, "bedrock", "openai").body["tool_choice"] == "required"


# --- files by their address

FILE = {"type": "file", "file": {"filename": "a.pdf", "file_data": "https://example.org/a.pdf"}}


def test_the_address_of_a_file_is_sent_where_addresses_are_accepted() -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Read."}, FILE]}]}
    assert translated(body, "openai", "openai").body["messages"] == body["messages"]
    source = translated(body, "openai", "anthropic").body["messages"][0]["content"][1]["source"]
    assert source == {"type": "url", "url": "https://example.org/a.pdf"}
    part = translated(body, "openai", "responses").body["input"][0]["content"][1]
    assert (part["type"], part["file_url"]) == ("input_file", "https://example.org/a.pdf")
    with pytest.raises(Unrepresentable):
        translated(body, "openai", "kiro")


def test_openrouter_gets_addresses_of_other_dialects_too() -> None:
    document = {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}}
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": [document]}]}
    with pytest.raises(Unrepresentable):
        translated(body, "anthropic", "openai")
    result = dragoman.translate_request(body, source="anthropic", target="openai", model="m", file_urls=True)
    [part] = result.body["messages"][0]["content"]
    assert part["file"]["file_data"] == "https://example.org/a.pdf"


# --- tools that Nova runs itself

NOVA = "us.amazon.nova-2-lite-v1:0"


def interpreter(**typed: Any) -> dict[str, Any]:
    use = {"toolUseId": "t1", "name": "nova_code_interpreter", "input": {"snippet": "2**10"}, **typed}
    result = {"toolUseId": "t1", "content": [{"json": {"stdOut": "1024", "exitCode": 0}}], "status": "success"}
    if typed:
        result["type"] = "nova_code_interpreter_result"
    return {
        "messages": [
            {"role": "user", "content": [{"text": "What is 2**10?"}]},
            {"role": "assistant", "content": [{"toolUse": use}, {"toolResult": result}, {"text": "It is 1024."}]},
            {"role": "user", "content": [{"text": "Sure?"}]},
        ],
        "toolConfig": {"tools": [{"systemTool": {"name": "nova_code_interpreter"}}]},
    }


@pytest.mark.parametrize("typed", [{"type": "server_tool_use"}, {}], ids=["typed", "bare"])
def test_a_tool_that_nova_ran_round_trips(typed: dict[str, Any]) -> None:
    body = interpreter(**typed)
    result = translated(body, "bedrock", "bedrock", NOVA)
    assert result.body["messages"] == body["messages"] and not result.notes
    assert not registry.get("bedrock").codec.breaches(ApiRequest("generate", NOVA, False, result.body))


@pytest.mark.parametrize("target", [name for name in registry.names() if name != "bedrock"])
@pytest.mark.parametrize("typed", [{"type": "server_tool_use"}, {}], ids=["typed", "bare"])
def test_in_other_dialects_its_text_is_sent(typed: dict[str, Any], target: str) -> None:
    result = translated(interpreter(**typed), "bedrock", target)
    assert "2**10" in result.raw.decode() and "1024" in result.raw.decode().replace("It is 1024.", "")
    assert "It is 1024." in result.raw.decode()


# --- Cursor's tools in a Chat body

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
FLAT = [
    {"type": "function", "name": "go", "description": "Goes.", "parameters": SCHEMA, "strict": False},
    {"type": "custom", "name": "ApplyPatch", "description": "Patches.", "format": GRAMMAR},
]
OF_CLAUDE = [{"name": "go", "description": "Goes.", "input_schema": SCHEMA}]


@every_target
def test_flat_tools_among_nested_ones_are_offered(target: str) -> None:
    """Cursor's ask mode."""
    result = translated(chatting(tools=[TOOL | {"function": {"name": "look"}}, *FLAT]), "openai", target)
    for name in ("look", "go", "ApplyPatch"):
        assert f'"{name}"' in result.raw.decode()


def test_flat_tools_are_nested_for_chat() -> None:
    result = translated(chatting(tools=FLAT), "openai", "openai")
    form = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/"}}
    assert result.body["tools"] == [
        {
            "type": "function",
            "function": {"name": "go", "description": "Goes.", "parameters": SCHEMA, "strict": False},
        },
        {"type": "custom", "custom": {"name": "ApplyPatch", "description": "Patches.", "format": form}},
    ]


@every_target
def test_tools_and_blocks_of_claude_in_a_chat_body(target: str) -> None:
    """Cursor with Claude's models: Anthropic's tools and blocks in a Chat body."""
    body = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t1", "name": "go", "input": {"city": "Rome"}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Done."}]}
                ],
            },
        ],
        "tools": OF_CLAUDE,
        "user": "u",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    result = translated(body, "openai", target)
    plain = json.dumps(result.body)
    assert "Done." in plain and "Rome" in plain and "city" in plain
    if target == "openai":
        assert result.body["tools"] == [
            {"type": "function", "function": {"name": "go", "description": "Goes.", "parameters": SCHEMA}}
        ]


def test_a_message_with_calls_needs_no_content() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "go", "arguments": "{}"}}
    body = chatting(tools=OF_CLAUDE)
    body["messages"] += [
        {"role": "assistant", "content": [], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Done."},
    ]
    result = translated(body, "openai", "anthropic")
    assert [block["type"] for block in result.body["messages"][1]["content"]] == ["tool_use"]


# --- Cursor's agent mode: a Responses body on Chat's path

AGENT: dict[str, Any] = {
    "model": MODEL,
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Patch it."}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I think."}], "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I do."}]},
        {"type": "function_call", "call_id": "c1", "name": "go", "arguments": '{"city":"Rome"}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "ApplyPatch", "input": "*** Begin"},
        {"type": "function_call_output", "call_id": "c1", "output": "Went."},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "Patched."}]},
        {"role": "user", "content": "Go on."},
    ],
    "tools": FLAT,
    "tool_choice": "auto",
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"verbosity": "low"},
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 4000,
    "stream": True,
}


@every_target
def test_a_responses_body_on_chats_path_is_read(target: str) -> None:
    result = translated(AGENT, "openai", target)
    plain = json.dumps(result.body)
    for words in ("Be brief.", "Patch it.", "I do.", "Rome", "*** Begin", "Went.", "Patched.", "Go on.", "ApplyPatch"):
        assert words in plain
    assert [note.action for note in result.notes if note.rule == "openai.responses_body"] == ["changed", "dropped"]


def test_a_responses_body_on_chats_path_becomes_a_chat_body() -> None:
    body = translated(AGENT, "openai", "openai").body
    assert not {"input", "instructions", "reasoning", "text", "include", "max_output_tokens"} & body.keys()
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool", "tool", "user"]
    response = body["messages"][2]
    assert (response["content"], response["reasoning_content"]) == ("I do.", "I think.")
    assert [call["type"] for call in response["tool_calls"]] == ["function", "custom"]
    assert (body["reasoning_effort"], body["verbosity"], body["max_completion_tokens"]) == ("low", "low", 4000)


def test_its_reply_is_a_chat_reply() -> None:
    translation = translated(AGENT, "openai", "anthropic")
    use = {"type": "tool_use", "id": "toolu_1", "name": "ApplyPatch", "input": {"input": "*** Begin"}}
    reply: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [use]}
    reply |= {"stop_reason": "tool_use", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    reply_body = dragoman.translate_reply(reply, source="anthropic", target="openai", request=translation).body
    [call] = reply_body["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "ApplyPatch", "input": "*** Begin"})


def test_an_empty_request_is_refused_with_its_place() -> None:
    with pytest.raises(MalformedRequest) as refused:
        translated({"model": "m"}, "openai", "anthropic")
    assert refused.value.fault.at == "messages"
    with pytest.raises(MalformedRequest) as refused:
        translated({**AGENT, "previous_response_id": "r"}, "openai", "anthropic")
    assert refused.value.fault.at == "previous_response_id"
    with pytest.raises(MalformedRequest) as refused:
        translated({**AGENT, "input": [5]}, "openai", "anthropic")
    assert refused.value.fault.at == "input[0]"
