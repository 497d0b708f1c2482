"""generateContent requests, both directions."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman.dialects as registry
from dragoman.dialects.base import ApiRequest
from dragoman.dialects.gemini import DIALECT
from dragoman.errors import DragomanError, MalformedRequest
from dragoman.model.blocks import Media, Opaque, Reasoning, Signature, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Output, Thinking, ToolChoice, ToolSpec
from dragoman.translate import plan
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from tests import strategies

MODEL = "gemini-3-pro"


def parsed(body: Any, model: str = MODEL) -> Conversation:
    return DIALECT.codec.parse_request(ApiRequest("generate", model, False, body))


def rendered(conversation: Conversation) -> Any:
    return DIALECT.codec.render_request(conversation).body


def user(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts), **more}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def call(name: str = "read", call_id: str = "", **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {"n": 1}, **({"id": call_id} if call_id else {})}, **more}


def response(value: Any, name: str = "read", call_id: str = "") -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": value, **({"id": call_id} if call_id else {})}}


def part(value: Any, **more: Any) -> Any:
    return parsed({"contents": [model(value)], **more}).messages[0].blocks[0]


FULL: dict[str, Any] = {
    "systemInstruction": {"role": "user", "parts": [{"text": "Be brief."}, {"text": "Be kind.", "x": 1}], "y": 2},
    "contents": [
        user(
            {"text": "See"},
            {"inlineData": {"mimeType": "image/png", "data": "aGk=", "displayName": "a.png", "z": 1}},
            {"fileData": {"fileUri": "gs://b/v.mp4", "mimeType": "video/mp4"}, "videoMetadata": {"fps": 2}},
            note=1,
        ),
        model(
            {"text": "hm", "thought": True},
            {"text": "ok", "thoughtSignature": "c2ln"},
            call(thoughtSignature="Y2FsbA==", partMetadata={"k": 1}),
            call("read", "own"),
            {"executableCode": {"language": "PYTHON", "code": "1"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
            {"toolCall": {"id": "s"}, "thoughtSignature": "dG9vbA=="},
        ),
        user(response({"rows": [1, 2], "more": None}), response({"error": "no"}, call_id="own")),
        model({"text": "done"}),
        user({"text": "on"}),
    ],
    "tools": [
        {
            "functionDeclarations": [
                {"name": "read", "description": "d", "parametersJsonSchema": {"type": "object", "$schema": "x"}},
                {
                    "name": "old",
                    "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING", "nullable": True}}},
                },
                {"name": "bare", "behavior": "BLOCKING"},
            ]
        },
        {"googleSearch": {}, "urlContext": {}},
        {"functionDeclarations": [{"name": "last"}]},
    ],
    "toolConfig": {
        "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["read", "old"]},
        "retrievalConfig": {},
    },
    "generationConfig": {
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 40,
        "seed": 1,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.2,
        "maxOutputTokens": 100,
        "stopSequences": ["END"],
        "candidateCount": 2,
        "responseMimeType": "application/json",
        "responseSchema": {"type": "OBJECT", "properties": {"x": {"type": "INTEGER"}}, "propertyOrdering": ["x"]},
        "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "HIGH", "odd": 1},
        "responseModalities": ["TEXT"],
    },
    "safetySettings": [{"category": "HARM_CATEGORY_HATE_SPEECH", "threshold": "OFF"}],
    "cachedContent": "cachedContents/1",
    "labels": {"a": "b"},
    "unknown": [None, 1],
}


def test_a_body_round_trips_with_every_known_and_unknown_field() -> None:
    again = rendered(parsed(FULL))
    expected = {**FULL, "contents": [*FULL["contents"]]}
    assert again == expected


def snake(value: Any) -> Any:
    """Protocol names in the spelling of protobuf are read; names that users chose are unchanged."""
    unchanged = {"args", "response", "properties", "labels", "parametersJsonSchema"}
    if isinstance(value, list):
        return [snake(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        re.sub("(?<!^)(?=[A-Z])", "_", name).lower(): each if name in unchanged else snake(each)
        for name, each in value.items()
    }


def test_names_are_read_in_both_spellings() -> None:
    body = {name: FULL[name] for name in ("systemInstruction", "contents", "tools", "toolConfig", "generationConfig")}
    one, other = parsed(body), parsed(snake(body))
    assert one.messages[1].blocks[:4] == other.messages[1].blocks[:4]
    assert one.messages[2] == other.messages[2]
    assert one.tool_choice == other.tool_choice
    assert [tool.schema for tool in one.tools if isinstance(tool, ToolSpec)] == [
        tool.schema for tool in other.tools if isinstance(tool, ToolSpec)
    ]
    for field in ("thinking", "sampling", "stop", "max_tokens", "choices"):
        assert getattr(one, field) == getattr(other, field)
    assert one.output.schema == other.output.schema


@pytest.mark.parametrize(
    ("part_body", "block"),
    [
        ({"text": "a"}, Text("a")),
        ({"text": "a", "thoughtSignature": "cw=="}, Text("a", signature=Signature("gemini", "cw=="))),
        ({"thoughtSignature": "cw=="}, Text("", signature=Signature("gemini", "cw=="))),
        ({"text": "a", "thought": True}, Reasoning("a", "gemini")),
        (
            {"text": "", "thought": True, "thoughtSignature": "cw=="},
            Reasoning("", "gemini", Signature("gemini", "cw==")),
        ),
        (call("f", "i", thoughtSignature="cw=="), ToolCall("i", "f", '{"n":1}', signature=Signature("gemini", "cw=="))),
        ({"inlineData": {"mimeType": "image/png", "data": "aGk"}}, Media("image", "image/png", "base64", "aGk=")),
        ({"inlineData": {"mimeType": "audio/wav", "data": "aGk="}}, Media("audio", "audio/wav", "base64", "aGk=")),
        (
            {"inlineData": {"mimeType": "application/pdf", "data": "-_8="}},
            Media("document", "application/pdf", "base64", "+/8="),
        ),
        ({"fileData": {"fileUri": "https://x/a.png"}}, Media("image", "", "url", "https://x/a.png")),
        ({"executableCode": {"code": "1"}}, Opaque("gemini", {"executableCode": {"code": "1"}}, "executableCode")),
        ("a string", Text("a string")),
    ],
)
def test_every_kind_of_part_has_its_place(part_body: Any, block: Any) -> None:
    assert part(part_body) == block


@pytest.mark.parametrize("role", [None, "user", "function", "USER"])
def test_a_content_without_a_role_or_of_a_function_is_the_users(role: str | None) -> None:
    content = {"parts": [{"text": "x"}], **({"role": role} if role else {})}
    assert parsed({"contents": [content]}).messages[0].role == "user"


@pytest.mark.parametrize(
    "instruction", ["s", ["s"], [{"text": "s"}], {"parts": [{"text": "s"}]}, {"parts": {"text": "s"}}]
)
def test_a_system_instruction_has_many_shapes(instruction: Any) -> None:
    assert parsed({"contents": [user({"text": "x"})], "systemInstruction": instruction}).system == (Text("s"),)


def test_calls_without_ids_get_the_same_ones_in_every_request_and_results_find_them_by_name_and_order() -> None:
    turns = [
        user({"text": "x"}),
        model(call("a"), call("b"), call("a")),
        user(response({"output": "b1"}, "b"), response({"output": "a1"}, "a"), response({"output": "a2"}, "a")),
    ]
    conversation = parsed({"contents": turns})
    calls, results = conversation.messages[1].blocks, conversation.messages[2].blocks
    assert [block.id for block in calls] == ["call_gemini_1", "call_gemini_2", "call_gemini_3"]  # type: ignore[union-attr]
    assert [(block.call_id, block.content[0].text) for block in results] == [  # type: ignore[union-attr]
        ("call_gemini_2", "b1"),
        ("call_gemini_1", "a1"),
        ("call_gemini_3", "a2"),
    ]
    longer = parsed({"contents": [*turns, model(call("a")), user(response({}, "a"))]})
    assert longer.messages[: len(conversation.messages)] == conversation.messages


def test_a_result_belongs_to_the_call_of_its_id_before_one_of_its_name() -> None:
    turns = [
        user({"text": "x"}),
        model(call("a", "1"), call("a", "2")),
        user(response({}, "a", "2"), response({}, "a")),
    ]
    blocks = parsed({"contents": turns}).messages[2].blocks
    assert [block.call_id for block in blocks if isinstance(block, ToolResult)] == ["2", "1"]


@pytest.mark.parametrize(
    ("value", "text", "is_error"),
    [
        ({"output": "x"}, "x", False),
        ({"result": "x"}, "x", False),
        ({"result": {"a": [1]}}, '{"a":[1]}', False),
        ({"error": "x"}, "x", True),
        ({"error": {"code": 1}}, '{"code":1}', True),
        ({"temperature": 20}, '{"temperature":20}', False),
        ({"output": "x", "exit": 0}, '{"output":"x","exit":0}', False),
        ({}, "", False),
        (None, "", False),
    ],
)
def test_the_content_of_a_result_is_in_an_object(value: Any, text: str, is_error: bool) -> None:
    body = {"contents": [user({"text": "x"}), model(call()), user(response(value))]}
    conversation = parsed(body)
    (result,) = conversation.messages[2].blocks
    assert isinstance(result, ToolResult)
    assert "".join(each.text for each in result.content if isinstance(each, Text)) == text
    assert result.is_error == is_error
    again = rendered(conversation)["contents"][2]["parts"][0]["functionResponse"]["response"]
    assert again == ({"output": ""} if value is None else value)


def test_a_chat_that_recorded_chunks_is_read_as_one_turn() -> None:
    """Google's SDK records each chunk of a stream as a content of its own."""
    chunks = [
        model({"text": "Thin", "thought": True}),
        model({"text": "king", "thought": True}),
        model({"text": "", "thought": True, "thoughtSignature": "cw=="}),
        model({"text": "I "}),
        model({"text": "look"}),
        model(call()),
        model({"text": ""}),
    ]
    blocks = parsed({"contents": [user({"text": "x"}), *chunks, user(response({"output": "y"}))]}).messages[1].blocks
    assert blocks[:2] == (Reasoning("Thinking", "gemini", Signature("gemini", "cw==")), Text("I look"))
    assert len(blocks) == 3


@pytest.mark.parametrize(
    ("config", "choice"),
    [
        ({"mode": "AUTO"}, ToolChoice()),
        ({"mode": "any"}, ToolChoice("any")),
        ({"mode": "ANY", "allowedFunctionNames": ["a"]}, ToolChoice("one", ("a",))),
        ({"mode": "ANY", "allowedFunctionNames": ["a", "b"]}, ToolChoice("any", ("a", "b"))),
        ({"mode": "NONE"}, ToolChoice("none")),
        ({"mode": "VALIDATED", "allowedFunctionNames": ["a"]}, ToolChoice("auto", ("a",))),
        ({"mode": "VALIDATED"}, ToolChoice()),
    ],
)
def test_choices_among_functions(config: Any, choice: ToolChoice) -> None:
    conversation = parsed({"contents": [], "toolConfig": {"functionCallingConfig": config}})
    assert conversation.tool_choice == choice
    again = rendered(conversation).get("toolConfig", {}).get("functionCallingConfig", {"mode": "AUTO"})
    assert again == {**config, "mode": config["mode"].upper()}


@pytest.mark.parametrize(
    ("config", "thinking"),
    [
        ({}, Thinking()),
        ({"includeThoughts": True}, Thinking(show=True)),
        ({"thinkingBudget": 0}, Thinking("off")),
        ({"thinkingBudget": -1}, Thinking("adaptive")),
        ({"thinkingBudget": 8192, "includeThoughts": False}, Thinking("on", "", 8192, False)),
        ({"thinkingLevel": "LOW"}, Thinking(effort="low")),
    ],
)
def test_how_to_think(config: Any, thinking: Thinking) -> None:
    conversation = parsed({"contents": [], "generationConfig": {"thinkingConfig": config}})
    assert conversation.thinking == thinking
    assert rendered(conversation).get("generationConfig", {"thinkingConfig": {}})["thinkingConfig"] == config


@pytest.mark.parametrize(
    ("model_name", "thinking", "config"),
    [
        ("gemini-2.5-pro", Thinking(effort="high"), {"thinkingBudget": 24576}),
        ("gemini-3-pro", Thinking(effort="xhigh"), {"thinkingLevel": "HIGH"}),
        ("gemini-3-pro", Thinking("on", "low", 4096), {"thinkingLevel": "LOW"}),
        ("gemini-3-pro", Thinking("on", "", 4096, True), {"thinkingBudget": 4096, "includeThoughts": True}),
        ("gemini-3-pro", Thinking("adaptive"), {"thinkingBudget": -1}),
        ("gemini-2.5-pro", Thinking("on"), {"thinkingBudget": -1}),
    ],
)
def test_thinking_is_sent_as_a_budget_or_a_level_but_not_both(model_name: str, thinking: Thinking, config: Any) -> None:
    conversation = Conversation(model_name, parsed({"contents": [user({"text": "x"})]}).messages, thinking=thinking)
    sent = plan(registry.get("anthropic"), DIALECT, conversation).translated
    assert rendered(sent)["generationConfig"]["thinkingConfig"] == config


def test_schemas_in_openapis_spelling_become_json_schema() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "a": {"type": "ARRAY", "items": {"type": "STRING"}, "min_items": "1"},
            "type": {"anyOf": [{"type": "NUMBER"}, {"type": "NULL"}]},
            "n": {"type": "INTEGER", "nullable": True, "enum": ["A"]},
        },
    }
    body = {"contents": [], "tools": [{"functionDeclarations": [{"name": "f", "parameters": schema}]}]}
    (tool,) = parsed(body).tools
    assert isinstance(tool, ToolSpec)
    assert tool.schema == {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "type": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "n": {"type": ["integer", "null"], "enum": ["A"]},
        },
    }


@pytest.mark.parametrize(
    ("config", "output"),
    [
        ({"responseMimeType": "application/json"}, Output("json")),
        ({"responseMimeType": "text/plain"}, Output()),
        ({"responseMimeType": "text/x.enum", "responseSchema": {"type": "STRING"}}, Output()),
        (
            {"responseMimeType": "application/json", "responseJsonSchema": {"type": "object"}},
            Output("schema", schema={"type": "object"}),
        ),
    ],
)
def test_forms_of_output(config: Any, output: Output) -> None:
    assert parsed({"contents": [], "generationConfig": config}).output == output


def test_a_foreign_call_gets_a_placeholder_where_signatures_are_required() -> None:
    """Gemini 3 refuses the first call of a turn without one; the value is Google's own for this case."""
    turns = [user({"text": "x"}), model(call("a"), call("b")), user(response({}, "a"), response({}, "b"))]
    for name, signatures in (
        ("gemini-3-pro", ["skip_thought_signature_validator", None]),
        ("gemini-2.5-pro", [None, None]),
    ):
        planned = plan(DIALECT, DIALECT, parsed({"contents": turns}, name))
        parts = rendered(planned.translated)["contents"][1]["parts"]
        assert [each.get("thoughtSignature") for each in parts] == signatures
        assert [note.rule for note in planned.notes] == (["gemini.signature.skip"] if signatures[0] else [])


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"contents": 1}, "contents"),
        ({"contents": [{"role": "x", "parts": []}]}, "contents[0].role"),
        ({"contents": [user({"text": 1})]}, "contents[0].parts[0].text"),
        ({"contents": [model({"functionCall": {"args": {}}})]}, "contents[0].parts[0].functionCall.name"),
        ({"contents": [model({"functionCall": {"name": "f", "args": []}})]}, "contents[0].parts[0].functionCall.args"),
        (
            {"contents": [user({"functionResponse": {"name": "f", "response": "x"}})]},
            "contents[0].parts[0].functionResponse.response",
        ),
        (
            {"contents": [user({"inlineData": {"mimeType": "image/png", "data": "%"}})]},
            "contents[0].parts[0].inlineData.data",
        ),
        ({"contents": [], "generationConfig": {"topK": "x"}}, "generationConfig.topK"),
        ({"contents": [], "tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
        ({"contents": [user(call())]}, "contents[0].parts"),
    ],
)
def test_a_bad_request_names_its_place(body: Any, place: str) -> None:
    with pytest.raises(MalformedRequest) as refused:
        parsed(body)
    assert refused.value.at == place


FIELDS = ("contents", "systemInstruction", "tools", "toolConfig", "generationConfig")
NESTED = (
    *("parts", "role", "functionCall", "functionResponse", "inlineData", "fileData", "text", "thoughtSignature"),
    *(
        "functionDeclarations",
        "parameters",
        "functionCallingConfig",
        "thinkingConfig",
        "responseSchema",
        "name",
        "args",
    ),
)
wild = st.recursive(
    strategies.json_values,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NESTED), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(FIELDS), wild, max_size=3))
def test_wrong_types_anywhere_raise_only_our_errors(body: Any) -> None:
    try:
        conversation = parsed(body)
        rendered(conversation)
    except DragomanError:
        pass


# --- the binding


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1beta/models/gemini-3-pro:generateContent", "gemini-3-pro"),
        ("/v1/models/gemini-3-pro:generateContent", "gemini-3-pro"),
        ("/v1beta/models/models%2Fa%2Fb:generateContent", "a/b"),
        ("/v1beta/models/a/b%3Ac:generateContent", "a/b:c"),
        ("/v1beta1/projects/p/locations/l/publishers/google/models/g:generateContent", "g"),
        ("/v1/publishers/google/models/g%3AgenerateContent", "g"),
        ("/v1beta/tunedModels/t:generateContent", "tunedModels/t"),
    ],
)
def test_models_are_found_in_every_kind_of_path(path: str, name: str) -> None:
    found = DIALECT.binding.match(HttpRequest("POST", path, body=b'{"contents": []}'))
    assert found == ApiRequest("generate", name, False, {"contents": []})


def test_the_method_selects_streaming_and_alt_the_framing() -> None:
    path = "/v1beta/models/g:streamGenerateContent"
    assert DIALECT.binding.match(HttpRequest("POST", path, "alt=sse", body=b"{}")) == ApiRequest(
        "generate", "g", True, {}
    )
    found = DIALECT.binding.match(HttpRequest("POST", path, body=b"{}"))
    assert found == ApiRequest("generate", "g", True, {}, {"alt": "json"})


def test_counting_accepts_contents_or_a_whole_request() -> None:
    path = "/v1beta/models/g:countTokens"
    whole = {"generateContentRequest": {"model": "models/g", "contents": [user({"text": "x"})]}}
    for body in ({"contents": [user({"text": "x"})]}, whole):
        found = DIALECT.binding.match(HttpRequest("POST", path, body=jsonio.encode(body)))
        assert found is not None and found.operation == "count"
        assert DIALECT.codec.parse_request(found).messages[0].blocks == (Text("x"),)


@pytest.mark.parametrize(
    ("path", "headers", "dialect"),
    [
        ("/v1beta/models", (), "gemini"),
        ("/v1beta/models/x", (), "gemini"),
        ("/v1/models", (("x-goog-api-key", "k"),), "gemini"),
        ("/v1/models", (("authorization", "Bearer k"),), "openai"),
        ("/v1/models", (("anthropic-version", "2023-06-01"),), "anthropic"),
    ],
)
def test_a_models_request_matches_the_dialect_of_its_client(path: str, headers: Any, dialect: str) -> None:
    request = HttpRequest("GET", path, headers=headers)
    matched = [name for name in registry.names() if registry.get(name).binding.match(request) is not None]
    assert matched[0] == dialect


def test_a_generated_id_never_equals_the_id_of_a_call() -> None:
    calls = model({"functionCall": {"id": "call_gemini_1", "name": "f"}}, {"functionCall": {"name": "g"}})
    results = user(
        {"functionResponse": {"name": "g", "response": {"output": "of g"}}},
        {"functionResponse": {"id": "call_gemini_1", "name": "f", "response": {"output": "of f"}}},
    )
    read = parsed({"contents": [user({"text": "go"}), calls, results]})
    names = {block.id: block.name for block in read.messages[1].blocks if isinstance(block, ToolCall)}
    contents_by_name = {
        names[block.call_id]: block.content for block in read.messages[2].blocks if isinstance(block, ToolResult)
    }
    assert contents_by_name == {"g": (Text("of g"),), "f": (Text("of f"),)}


def test_a_result_that_a_filter_made_has_no_id_where_its_call_has_none() -> None:
    contents = [user({"text": "go"}), model({"functionCall": {"name": "f", "args": {}}}), user({"text": "on"})]
    planned = plan(DIALECT, DIALECT, parsed({"contents": contents}))
    body: Any = planned.call().body
    assert body["contents"][2]["parts"][0]["functionResponse"].keys() == {"name", "response"}


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({"generationConfig": {"maxOutputTokens": -1}}, "generationConfig.maxOutputTokens"),
        ({"contents": [user({"inlineData": {"data": "aGk="}})]}, "contents[0].parts[0].inlineData.mimeType"),
    ],
)
def test_unrepresentable_content_is_refused_with_its_place(body: dict[str, Any], at: str) -> None:
    with pytest.raises(MalformedRequest) as caught:
        parsed({"contents": "go", **body})
    assert caught.value.at == at
