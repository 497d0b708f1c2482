"""Changes of the Kiro dialect to tools, schemas, images, thinking and characters."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from dragoman.dialects.kiro.models import find_model, normalize_model_name
from dragoman.dialects.kiro.quirks.request import FitImages, ReplaceSurrogates
from dragoman.dialects.kiro.quirks.schemas import MAX_EXPANSION
from dragoman.dialects.kiro.quirks.tools import CleanSchemas, clean_schema
from dragoman.dialects.kiro.rules import schema_breaches
from dragoman.errors import MalformedRequest, UnknownModel, Unrepresentable
from dragoman.model.blocks import Media, Text, ToolCall
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.filter import Facts, Notes
from dragoman.wire import jsonio
from tests.unit.dialects.kiro_helpers import (
    WEATHER,
    anthropic_request,
    assistant,
    current,
    history,
    result,
    results,
    rules,
    state,
    tools,
    translate_to_kiro,
    use,
    user,
)

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"


def png(width: int = 1, height: int = 1) -> str:
    return base64.b64encode(PNG + struct.pack(">II", width, height)).decode()


def image(data: str, mime: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}}


def text_block(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


# --- models (docs/dialects/kiro.md#models)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4.5"),
        ("claude-sonnet-4-5", "claude-sonnet-4.5"),
        ("claude-opus-4-5-20251101", "claude-opus-4.5"),
        ("claude-opus-4-7[1m]", "claude-opus-4.7"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("claude-sonnet-4-0", "claude-sonnet-4"),
        ("claude-3-7-sonnet-20250219", "CLAUDE_3_7_SONNET_20250219_V1_0"),
        ("claude-4.5-sonnet", "claude-sonnet-4.5"),
        ("kiro/Claude-Haiku-4-5-thinking", "claude-haiku-4.5"),
        ("kiro-claude-opus-5-high", "claude-opus-5"),
        ("CLAUDE_SONNET_4_20250514_V1_0", "CLAUDE_SONNET_4_20250514_V1_0"),
        ("gpt-5.6-sol", "gpt-5.6-sol"),
        ("auto", "auto"),
        ("a-model-of-2031", "a-model-of-2031"),
    ],
)
def test_models_have_the_services_names(model: str, named: str) -> None:
    assert normalize_model_name(model) == named
    assert normalize_model_name(named) == named


def test_a_name_that_no_model_can_have_is_refused() -> None:
    with pytest.raises(UnknownModel, match=r"^model: "):
        translate_to_kiro(anthropic_request(user("a"), model="two words"))


def test_windows_follow_the_model() -> None:
    assert find_model("claude-opus-4-7").window == 1_000_000
    assert find_model("claude-haiku-4-5").window == 200_000
    assert find_model("gpt-5.6-luna").window == 272_000


# --- tools (docs/decisions/kiro.md#d13)


def test_more_tools_than_the_service_accepts() -> None:
    declared = [{**WEATHER, "name": f"tool_{number}"} for number in range(130)]
    body = anthropic_request(user("a"), assistant([use("t", "tool_125")]), user([result("t")]), tools=declared)
    request = translate_to_kiro({**body, "tool_choice": {"type": "tool", "name": "tool_127"}})
    names = list(tools(request))
    first = [f"tool_{number}" for number in range(109)]
    assert names == [*first, "tool_127", "tool_125"], "the chosen one at its place, what only history needs at the end"
    assert tools(request)["tool_125"]["description"] == WEATHER["description"]
    assert rules(request).count("kiro.tools.too_many") == 1
    assert "More tools exist" in history(request)[0][1]


def test_which_tools_are_offered_does_not_depend_on_history() -> None:
    declared = [{**WEATHER, "name": f"tool_{number}"} for number in range(130)]
    turns = [user("a"), assistant([use("t", "tool_5")]), user([result("t")])]
    first, later = (translate_to_kiro(anthropic_request(*each, tools=declared)) for each in (turns[:1], turns))
    assert list(tools(first)) == list(tools(later)) == [f"tool_{number}" for number in range(110)]
    assert current(first)["content"] == history(later)[0][1]


def test_where_history_needs_very_many_tools_the_last_declared_are_dropped() -> None:
    declared = [{**WEATHER, "name": f"tool_{number}"} for number in range(110)]
    called = [use(f"t{number}", f"old_{number}") for number in range(20)]
    body = anthropic_request(
        user("a"), assistant(called), user([result(each["id"]) for each in called]), tools=declared
    )
    names = list(tools(translate_to_kiro(body)))
    assert len(names) == 119
    assert names[:99] == [f"tool_{number}" for number in range(99)]


def test_history_may_call_more_tools_than_the_service_accepts() -> None:
    called = [use(f"t{number}", f"tool_{number}") for number in range(120)]
    body = anthropic_request(user("a"), assistant(called), user([result(each["id"]) for each in called]))
    with pytest.raises(Unrepresentable, match="history calls 120 tools"):
        translate_to_kiro(body)


def test_a_second_tool_of_one_name_is_left_out() -> None:
    request = translate_to_kiro(anthropic_request(user("a"), tools=[WEATHER, {**WEATHER, "description": "other"}]))
    assert tools(request)["get_weather"]["description"] == "Tell the weather."
    assert "tools.duplicate" in rules(request)


def test_no_tool_shall_be_called() -> None:
    body = anthropic_request(
        user("a"), assistant([use("t")]), user([result("t")]), tools=[WEATHER, {**WEATHER, "name": "other"}]
    )
    request = translate_to_kiro({**body, "tool_choice": {"type": "none"}})
    assert list(tools(request)) == ["get_weather"]
    assert "kiro.tools.none" in rules(request)


def test_stubs_are_last_and_in_a_stable_order() -> None:
    calls = [use("1", "zeta"), use("2", "alpha"), use("3", "get_weather")]
    body = anthropic_request(
        user("a"), assistant(calls), user([result("1"), result("2"), result("3")]), tools=[WEATHER]
    )
    assert list(tools(translate_to_kiro(body))) == ["get_weather", "zeta", "alpha"], "in the order of their first call"


def test_calls_of_a_left_out_tool_and_their_results_become_text() -> None:
    body = anthropic_request(
        user("a"),
        assistant([text_block("I look."), use("t", "web_search", {"query": "x"}), use("u")]),
        user([result("t", "found it"), result("u", "sunny")]),
        assistant([use("t", "WebSearch")]),
        user([result("t", "", is_error=True)]),
        tools=[WEATHER],
    )
    request = translate_to_kiro(body)
    assert history(request)[1][1] == 'I look.\n(web_search was used with {"query":"x"})'
    turn = state(request)["history"][2]["userInputMessage"]
    assert turn["content"] == "(web_search gave: found it)"
    assert [each["toolUseId"] for each in turn["userInputMessageContext"]["toolResults"]] == ["u"]
    assert history(request)[3][1] == "(WebSearch was used with {})"
    assert current(request)["content"] == "(WebSearch failed: nothing)"


def test_an_id_reused_by_a_kept_tool_belongs_to_that_tool() -> None:
    body = anthropic_request(
        user("a"),
        assistant([use("t", "web_search")]),
        user([result("t", "found")]),
        assistant([use("t")]),
        user([result("t", "sunny")]),
        tools=[WEATHER],
    )
    assert results(translate_to_kiro(body))[0]["content"] == [{"text": "sunny"}]


def test_typed_tools_of_another_service_take_their_history_with_them() -> None:
    body = anthropic_request(user("a"), assistant([use("t", "runner", {"command": "ls"})]), user([result("t", "x")]))
    request = translate_to_kiro({**body, "tools": [{"type": "code_execution_20250825", "name": "runner"}]})
    assert tools(request) == {}
    assert current(request)["content"] == "(runner gave: x)"


def test_typed_tools_that_the_client_runs_stay() -> None:
    """The client declared the tool and runs it, so it reaches the service with its calls and results."""
    body = anthropic_request(user("a"), assistant([use("t", "bash", {"command": "ls"})]), user([result("t", "x")]))
    request = translate_to_kiro({**body, "tools": [{"type": "bash_20250124", "name": "bash"}]})
    assert list(tools(request)) == ["bash"]
    assert results(request)[0]["content"] == [{"text": "x"}]


def test_calls_that_a_server_ran_become_readable_text() -> None:
    searched = {"type": "web_search_result", "title": "T", "url": "https://x", "encrypted_content": "SECRET"}
    turn = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [searched]},
        {"type": "code_execution_tool_result", "tool_use_id": "s", "content": {"stdout": "42"}},
        {"type": "mcp_tool_result", "tool_use_id": "s", "content": []},
        {"type": "x_widget"},
        text_block("So."),
    ]
    request = translate_to_kiro(anthropic_request(user("a"), assistant(turn), user("b")))
    assert history(request)[1][1] == (
        '(web_search was used with {"query":"q"})\n(web_search gave: T\nhttps://x)\n'
        "(code_execution gave: 42)\n(mcp gave: nothing to read)\nSo."
    )
    assert "foreign.block" in rules(request)


@pytest.mark.parametrize(
    ("turns", "at"),
    [
        ((user([text_block("a"), use("t")]),), "messages[0].content[1]"),
        ((user("a"), assistant([text_block("b"), result("t", "r")]), user("c")), "messages[1].content[1]"),
    ],
)
def test_calls_and_results_in_the_wrong_turn_are_refused_by_their_place(turns: tuple[Any, ...], at: str) -> None:
    with pytest.raises(MalformedRequest) as refused:
        translate_to_kiro(anthropic_request(*turns, tools=[WEATHER]))
    assert refused.value.fault.at == at


def test_a_choice_of_a_left_out_tool_is_none() -> None:
    body = anthropic_request(user("a"), tools=[WEATHER, {**WEATHER, "name": "web_search"}])
    request = translate_to_kiro({**body, "tool_choice": {"type": "tool", "name": "web_search"}})
    assert "kiro.tools.choice" in rules(request)


# --- schemas (rules 19 to 26 of docs/dialects/kiro.md)

STRING = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "cleaned"),
    [
        ({"type": "object", "properties": {}}, {"type": "object", "properties": {}}),
        ({"type": "array", "items": STRING}, {"type": "object", "properties": {}}),
        ({"properties": None, "required": None}, {"type": "object", "properties": {}}),
        (
            {"type": "object", "properties": {"a": STRING}, "required": ["a", "gone", 7]},
            {"type": "object", "properties": {"a": STRING}, "required": ["a"]},
        ),
        (
            {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 1, "enum": [1, 2]}}},
            {"type": "object", "properties": {"a": {"enum": [1]}, "b": {"enum": [1, 2]}}},
        ),
        (
            {"type": "object", "properties": {"a": {"type": "object", "properties": {}, "required": []}, "b": True}},
            {"type": "object", "properties": {"a": {"type": "object"}, "b": {}}},
        ),
        (
            {
                "$defs": {"D": {"type": "string", "pattern": "x"}},
                "properties": {"a": {"$ref": "#/$defs/D", "title": "t"}},
            },
            {"type": "object", "properties": {"a": {"type": "string", "title": "t"}}},
        ),
        (
            {"$ref": "#/definitions/Root", "definitions": {"Root": {"properties": {"a": STRING}, "required": ["a"]}}},
            {"type": "object", "properties": {"a": STRING}, "required": ["a"]},
        ),
        (
            {"properties": {"a": {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1}}},
            {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}},
        ),
        (
            {"properties": {"a": {"anyOf": [{"type": "string", "format": "uri"}, {"type": "null"}], "default": None}}},
            {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
        ),
        (
            {
                "allOf": [
                    {"properties": {"a": STRING}, "required": ["a"]},
                    {"oneOf": [{"properties": {"b": STRING}}]},
                    7,
                ]
            },
            {"type": "object", "properties": {"a": STRING, "b": STRING}, "required": ["a"]},
        ),
        ({"anyOf": "nonsense", "items": 3}, {"type": "object", "properties": {}}),
        (
            {"properties": {"a": {"items": [STRING, {"format": "x"}]}}},
            {"type": "object", "properties": {"a": {"items": [STRING, {}]}}},
        ),
        ({"properties": {"a": {"$ref": "other.json"}}}, {"type": "object", "properties": {"a": {}}}),
        ({"properties": {"a": {"$ref": "#/none/x~1y"}}}, {"type": "object", "properties": {"a": {}}}),
        ({"properties": {"a": {"type": "string", "enum": ["format"], "examples": [{"pattern": 1}]}}}, None),
    ],
)
def test_schemas_are_cleaned(schema: Any, cleaned: Any) -> None:
    found, _ = clean_schema(schema)
    assert found == (cleaned or {"type": "object", **schema})
    assert clean_schema(found)[0] == found
    assert list(schema_breaches(found, "json")) == []


def test_a_schema_that_refers_to_itself_ends() -> None:
    tree: Any = {"type": "object", "properties": {"child": {"$ref": "#/$defs/T"}, "self": {"$ref": "#"}}}
    found, removed = clean_schema({**tree, "$defs": {"T": tree}})
    assert list(schema_breaches(found, "json")) == []
    assert removed == ["$defs", "$ref"]


def test_references_that_multiply_are_bounded() -> None:
    wide: Any = {str(number): {"$ref": f"#/$defs/{number}"} for number in range(12)}
    found, removed = clean_schema(
        {"properties": wide, "$defs": {str(number): {"properties": wide} for number in range(12)}}
    )
    assert len(jsonio.encode(found)) < 2 * MAX_EXPANSION and "$ref (as any value)" in removed
    assert isinstance(found["properties"], dict) and {*found["properties"]} == {*wide}


def test_a_cleaned_schema_has_a_note_of_the_removed_keywords() -> None:
    request = translate_to_kiro(
        anthropic_request(
            user("a"),
            tools=[{**WEATHER, "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}],
        )
    )
    (note,) = [note for note in request.notes if note.rule == "kiro.schema.cleaned"]
    assert note.at == "tools[0]"
    assert "(additionalProperties)" in note.detail


def test_an_empty_description_is_the_name_that_the_client_gave() -> None:
    request = translate_to_kiro(
        anthropic_request(user("a"), tools=[{**WEATHER, "name": "files/read all", "description": " "}])
    )
    (tool,) = tools(request).values()
    assert tool["name"] != "files/read all"
    assert tool["description"] == "files/read all"
    assert rules(request).count("kiro.tools.description") == 1


def test_a_tool_whose_name_is_blank_is_described_by_its_alias() -> None:
    (tool,) = tools(
        translate_to_kiro(anthropic_request(user("a"), tools=[{**WEATHER, "name": " ", "description": ""}]))
    ).values()
    assert tool["description"] == tool["name"]


# --- images (rules 35 to 39 of docs/dialects/kiro.md)


def test_jpg_is_jpeg() -> None:
    request = translate_to_kiro(anthropic_request(user([text_block("a"), image(png(), "image/JPG")])))
    assert current(request)["images"][0]["format"] == "jpeg"
    assert "kiro.image.format" in rules(request)


@pytest.mark.parametrize(
    ("bad", "because"),
    [
        (image(png(), "image/bmp"), "image/bmp is not one of"),
        (image("A" * 5_242_884), "image exceeds 5 MB maximum: 5242884 bytes > 5242880 bytes"),
    ],
)
def test_an_image_that_cannot_be_sent_is_refused_now_and_a_line_later(bad: Any, because: str) -> None:
    with pytest.raises(Unrepresentable, match=because):
        translate_to_kiro(anthropic_request(user([text_block("a"), bad])))
    request = translate_to_kiro(anthropic_request(user([text_block("a"), bad]), assistant("b"), user("c")))
    assert history(request)[0][1].startswith("a\n[image left out: ")
    assert "kiro.image.replaced" in rules(request)


def test_an_image_by_address_is_refused_now_and_a_line_later() -> None:
    linked = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    with pytest.raises(Unrepresentable, match=r"image .*given as url"):
        translate_to_kiro(anthropic_request(user([linked])))
    assert "media.replaced" in rules(translate_to_kiro(anthropic_request(user([linked]), assistant("b"), user("c"))))


def test_the_newest_ten_images_of_a_turn_stay() -> None:
    many = [image(png(number + 1)) for number in range(12)]
    request = translate_to_kiro(anthropic_request(user([text_block("a"), *many]), assistant("b"), user("c")))
    images = state(request)["history"][0]["userInputMessage"]["images"]
    assert [each["source"]["bytes"] for each in images] == [png(number + 1) for number in range(2, 12)]
    with pytest.raises(Unrepresentable, match="more than 10 images"):
        translate_to_kiro(anthropic_request(user(many)))


def test_large_images_only_matter_when_there_are_many() -> None:
    few = translate_to_kiro(anthropic_request(user([text_block("a"), image(png(3000))])))
    assert len(current(few)["images"]) == 1
    turns = [each for _ in range(3) for each in (user([text_block("a"), *[image(png())] * 7]), assistant("b"))]
    request = translate_to_kiro(
        anthropic_request(user([text_block("big"), image(png(1, 2001))]), assistant("b"), *turns, user("c"))
    )
    assert (
        history(request)[0][1]
        == "big\n[image left out: it has an edge of 2001 pixels, and the request has more than 20 images]"
    )


def test_only_some_models_take_images() -> None:
    with pytest.raises(Unrepresentable):
        translate_to_kiro(anthropic_request(user([image(png())]), model="deepseek-3.2"))


def test_an_image_in_a_reply_becomes_a_line() -> None:
    request = translate_to_kiro(anthropic_request(user("a"), assistant([image(png()), text_block("b")]), user("c")))
    assert history(request)[1][1] == "[image left out: the model's own turns hold no images]\nb"


# --- thinking (docs/decisions/kiro.md#d14)


@pytest.mark.parametrize(
    ("more", "tags"),
    [
        (
            {"thinking": {"type": "enabled", "budget_tokens": 4096}},
            "<thinking_mode>enabled</thinking_mode><max_thinking_length>4096</max_thinking_length>",
        ),
        (
            {"thinking": {"type": "adaptive"}},
            "<thinking_mode>adaptive</thinking_mode><thinking_effort>high</thinking_effort>",
        ),
        (
            {"output_config": {"effort": "max"}},
            "<thinking_mode>adaptive</thinking_mode><thinking_effort>max</thinking_effort>",
        ),
    ],
)
def test_older_models_are_asked_to_think_by_tags(more: Any, tags: str) -> None:
    request = translate_to_kiro(anthropic_request(user("a"), system="S", **more))
    assert current(request)["content"] == f"{tags}\nS\n\na"
    assert "additionalModelRequestFields" not in request.body


def test_tags_are_never_next_to_tool_results() -> None:
    body = anthropic_request(
        user("a"),
        assistant([use("t")]),
        user([result("t")]),
        tools=[WEATHER],
        thinking={"type": "enabled", "budget_tokens": 2048},
    )
    request = translate_to_kiro(body)
    assert "<thinking_mode>" not in current(request)["content"]
    assert history(request)[0][1].startswith("<thinking_mode>")


@pytest.mark.parametrize(
    ("model", "more", "fields"),
    [
        (
            "claude-opus-4-7",
            {"thinking": {"type": "enabled", "budget_tokens": 20_000}},
            {"output_config": {"effort": "high"}, "thinking": {"type": "adaptive", "display": "summarized"}},
        ),
        (
            "claude-opus-5",
            {"thinking": {"type": "adaptive"}},
            {"thinking": {"type": "adaptive", "display": "summarized"}},
        ),
        (
            "claude-sonnet-5",
            {"output_config": {"effort": "low"}},
            {"output_config": {"effort": "low"}, "thinking": {"type": "adaptive", "display": "summarized"}},
        ),
        ("gpt-5.6-sol", {"output_config": {"effort": "max"}}, {"reasoning": {"effort": "xhigh"}}),
        ("gpt-5.6-sol", {"thinking": {"type": "enabled", "budget_tokens": 2048}}, {"reasoning": {"effort": "low"}}),
    ],
)
def test_newer_models_are_asked_to_think_by_fields(model: str, more: Any, fields: Any) -> None:
    request = translate_to_kiro(anthropic_request(user("a"), model=model, **more))
    assert request.body["additionalModelRequestFields"] == fields
    assert current(request)["content"] == "a"


@pytest.mark.parametrize("model", ["deepseek-3.2", "claude-sonnet-4.5"])
@pytest.mark.parametrize("more", [{"thinking": {"type": "disabled"}}, {"thinking": {"type": "between_tools"}}])
def test_dropped_thinking_has_a_note(model: str, more: Any) -> None:
    request = translate_to_kiro(anthropic_request(user("a"), model=model, **more))
    assert "thinking.dropped" in rules(request)
    assert current(request)["content"] == "a"


def test_thinking_in_the_form_of_openai_clients() -> None:
    request = translate_to_kiro(
        {"model": "claude-sonnet-4.5", "messages": [user("a")], "reasoning_effort": "high"}, "openai"
    )
    assert current(request)["content"].startswith("<thinking_mode>adaptive</thinking_mode>")


def test_hidden_thinking_of_another_service_is_left_out() -> None:
    hidden = {"type": "redacted_thinking", "data": "xyz"}
    request = translate_to_kiro(anthropic_request(user("a"), assistant([hidden, text_block("b")]), user("c")))
    assert history(request)[1] == ("assistant", "b")
    assert "kiro.thinking.unreadable" in rules(request)


# --- characters (rule 34 of docs/dialects/kiro.md)


def test_half_characters_become_the_replacement_character() -> None:
    tool = {
        **WEATHER,
        "description": "d\ud800",
        "input_schema": {"type": "object", "properties": {"\udc00": {"title": "\ud800"}}},
    }
    body = anthropic_request(
        user("a\ud83d"),
        assistant([use("t", arguments={"k\ud800": ["\udfff", "🐉", 1]})]),
        user([result("t", "r\udc00")]),
        tools=[tool],
    )
    request = translate_to_kiro(body)
    assert history(request)[0][1] == "a\ufffd"
    assert results(request)[0]["content"] == [{"text": "r\ufffd"}]
    uses = state(request)["history"][1]["assistantResponseMessage"]["toolUses"]
    assert uses[0]["input"] == {"k\ufffd": ["\ufffd", "🐉", 1]}
    assert tools(request)["get_weather"]["description"] == "d\ufffd"
    assert rules(request).count("kiro.text.surrogate") == 1


def test_whole_characters_stay_even_escaped() -> None:
    arguments = r'{"a": "\ud83d\udc09"}'
    body = {
        "model": "claude-sonnet-4.5",
        "messages": [
            user("a"),
            {
                "role": "assistant",
                "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": arguments}}],
            },
            {"role": "tool", "tool_call_id": "t", "content": "r"},
        ],
    }
    request = translate_to_kiro(body, "openai")
    assert "kiro.text.surrogate" not in rules(request)
    assert request.plan.translated.messages[1].blocks[1].arguments == arguments  # type: ignore[union-attr]


@pytest.mark.parametrize(("data", "because"), [("?", "it is not base64"), ("", "it is empty")])
def test_an_image_that_is_none(data: str, because: str) -> None:
    turn = Message("user", (Text("a"), Media("image", "image/png", "base64", data)))
    with pytest.raises(Unrepresentable, match=because):
        FitImages().forward(Conversation("m", (turn,)), Notes(), Facts())


def test_arguments_that_are_no_json_lose_their_half_characters_too() -> None:
    turn = Message("assistant", (ToolCall("t", "f", "{\ud800"),))
    fitted, _ = ReplaceSurrogates().forward(Conversation("m", (turn,)), Notes(), Facts())
    assert fitted.messages[0].blocks == (ToolCall("t", "f", "{\ufffd"),)


def test_a_bottomless_schema_is_refused() -> None:
    schema: Any = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(Unrepresentable, match="nested too deeply"):
        CleanSchemas().forward(
            Conversation("m", (), tools=(ToolSpec("f", "d", {"properties": {"a": schema}}),)), Notes(), Facts()
        )
