"""The rules of Gemini's API for requests and streams, and the filters that make requests follow them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman
import dragoman.dialects as registry
from dragoman.dialects.base import ApiRequest
from dragoman.dialects.gemini import DIALECT
from dragoman.dialects.kit.values import ToolCallIds
from dragoman.model.blocks import Block, Media, Reasoning, Signature, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Role, ToolChoice, ToolSpec
from dragoman.translate import Plan, plan
from tests.growth import Work, check_linear_growth

CODEC = DIALECT.codec
ANTHROPIC = registry.get("anthropic")
ASK: dict[str, Any] = {"role": "user", "parts": [{"text": "x"}]}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def call(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {}}, **more}


RESULT: dict[str, Any] = {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]}


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ({"contents": []}, "contents.required"),
        ({"contents": [{"role": "assistant", "parts": [{"text": "x"}]}]}, "contents.role"),
        ({"contents": [{"role": "user", "parts": []}]}, "contents.empty"),
        ({"contents": [{"role": "user", "parts": [{"text": ""}]}]}, "text.empty"),
        ({"contents": [{"role": "user", "parts": [{"thought": True}]}]}, "part.data"),
        ({"contents": [model({"text": "x"}), ASK]}, "contents.first"),
        ({"contents": [ASK, model({"text": "x"})]}, "contents.last"),
        ({"contents": [ASK, model(call(), call()), RESULT]}, "results.count"),
        ({"contents": [ASK, model(call()), ASK]}, "results.count"),
        ({"contents": [RESULT]}, "results.count"),
        ({"contents": [ASK, model(call("no name")), RESULT]}, "name"),
        ({"contents": [ASK, model({"functionCall": {"name": "f", "args": []}}), RESULT]}, "call.args"),
        ({"contents": [ASK, model(call()), RESULT]}, "call.signature"),
        ({"contents": [{"parts": [{"fileData": {"fileUri": "x"}}]}]}, "media.fields"),
        ({"contents": [ASK], "tools": [{"functionDeclarations": [{"name": "a"}, {"name": "a"}]}]}, "tools.duplicate"),
        ({"contents": [ASK], "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "choice.no_tools"),
        (
            {
                "contents": [ASK],
                "toolConfig": {"functionCallingConfig": {"mode": "AUTO", "allowedFunctionNames": ["a"]}},
            },
            "choice.names",
        ),
        ({"contents": [ASK], "generationConfig": {"temperature": 3}}, "temperature.range"),
        ({"contents": [ASK], "generationConfig": {"maxOutputTokens": 0}}, "maxOutputTokens.range"),
        ({"contents": [ASK], "generationConfig": {"stopSequences": ["a"] * 6}}, "stopSequences"),
        (
            {"contents": [ASK], "generationConfig": {"thinkingConfig": {"thinkingBudget": 1, "thinkingLevel": "LOW"}}},
            "thinking.both",
        ),
        ({"contents": [ASK], "generationConfig": {"responseSchema": {"type": "OBJECT"}}}, "output.mime"),
    ],
)
def test_each_rule_is_broken_by_something(body: Any, rule: str) -> None:
    found = CODEC.breaches(ApiRequest("generate", "gemini-3-pro", False, body))
    assert f"gemini.{rule}" in [breach.rule for breach in found]


def test_a_good_request_breaks_no_rule() -> None:
    body: Any = {
        "contents": [ASK, model(call(thoughtSignature="cw=="), call()), {**RESULT, "parts": RESULT["parts"] * 2}]
    }
    assert CODEC.breaches(ApiRequest("generate", "gemini-3-pro", False, body)) == []
    unsigned: Any = {"contents": [ASK, model(call()), RESULT]}
    assert CODEC.breaches(ApiRequest("generate", "gemini-2.5-pro", False, unsigned)) == []


def turn(role: Role, *blocks: Block) -> Message:
    return Message(role, blocks)


def fitted(*messages: Message, model: str = "gemini-3-pro", **more: Any) -> Plan:
    planned = plan(ANTHROPIC, DIALECT, Conversation(model, messages, **more))
    assert CODEC.breaches(planned.call()) == []
    return planned


def rules(planned: Plan) -> list[str]:
    return [note.rule for note in planned.notes]


def test_several_texts_of_a_result_become_one_before_its_media() -> None:
    picture = Media("image", "image/png", "base64", "aGk=")
    messages = (
        turn("user", Text("x")),
        turn("assistant", ToolCall("a", "f", "{}", signature=Signature("gemini", "cw=="))),
        turn("user", ToolResult("a", (picture, Text("one"), Text("two\n"), Text("three")))),
    )
    planned = fitted(*messages)
    (result,) = planned.translated.messages[2].blocks
    assert isinstance(result, ToolResult) and result.content == (Text("one\ntwo\nthree"), picture)
    assert rules(planned) == ["gemini.result"]
    older = fitted(*messages, model="gemini-2.5-pro")
    assert older.translated.messages[2].blocks[1:] == (picture,)
    assert "result.media_lifted" in rules(older)


def test_media_by_address_gets_a_type_and_its_name_is_text() -> None:
    planned = fitted(
        turn("user", Media("document", "", "url", "https://x/a.pdf", "a"), Media("image", "", "url", "https://x/a"))
    )
    name, one, other = planned.translated.messages[0].blocks
    assert isinstance(one, Media) and isinstance(other, Media)
    assert (name, one.mime, one.name, other.mime) == (Text("a"), "application/pdf", "", "image/jpeg")
    assert rules(planned) == ["media.name", "gemini.media.type", "gemini.media.type"]


def test_a_choice_of_one_tool_is_sent_as_such() -> None:
    tools = (ToolSpec("a", "", {"type": "object"}), ToolSpec("b", "", {"type": "object"}))
    planned = fitted(turn("user", Text("x")), tools=tools, tool_choice=ToolChoice("any", ("a",)))
    assert planned.translated.tool_choice == ToolChoice("one", ("a",))
    assert rules(planned) == ["gemini.choice.one"]


def test_a_system_prompt_alone_gets_a_user_message() -> None:
    assert rules(fitted(system=(Text("Be brief."),))) == ["turn.placeholder"]


def test_a_signed_text_is_sent_even_if_it_is_empty() -> None:
    signed = Text("", signature=Signature("gemini", "cw=="))
    planned = plan(
        DIALECT,
        DIALECT,
        Conversation(
            "gemini-3-pro", (turn("user", Text("x")), turn("assistant", Text("y"), signed), turn("user", Text("z")))
        ),
    )
    assert planned.translated.messages[1].blocks == (Text("y"), signed)
    assert not planned.notes


def test_thoughts_of_the_same_family_are_sent_and_others_are_not() -> None:
    own, foreign = Reasoning("a", "gemini"), Reasoning("b", "openai")
    planned = plan(
        DIALECT,
        DIALECT,
        Conversation(
            "gemini-3-pro",
            (turn("user", Text("x")), turn("assistant", own, foreign, Text("y")), turn("user", Text("z"))),
        ),
    )
    assert planned.translated.messages[1].blocks == (own, Text("y"))
    assert rules(planned) == ["foreign.reasoning"]


# --- a structured result that goes from Gemini through another dialect stays structured

MODEL = "claude-sonnet-4.5"
OTHERS = [name for name in registry.names() if name != "gemini"]
WITH_ERRORS = ["anthropic", "bedrock", "bedrock.invoke", "kiro"]  # their results can say that they are errors


def asking(value: Any) -> dict[str, Any]:
    return {
        "contents": [
            {"role": "user", "parts": [{"text": "go"}]},
            {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "look", "args": {"a": 1}}}]},
            {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "look", "response": value}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "look"}]}],
    }


def there_and_back(value: Any, other: str) -> Any:
    """The response object after a way to another dialect and back."""
    there = dragoman.translate_request(asking(value), source="gemini", target=other, model=MODEL)
    back = dragoman.translate_request(there.body, source=other, target="gemini", model=MODEL)
    [found] = [
        part["functionResponse"]["response"]
        for content in back.body["contents"]
        for part in content["parts"]
        if "functionResponse" in part
    ]
    return found


STRUCTURED: list[Any] = [
    {"temperature": 20, "unit": "C"},
    {"rows": [1, 2, {"deep": None}], "more": False},
    {"only": "one"},
    {"only": None},
    {"only": {"nested": [[]]}},
    {"output": [1, 2]},
    {"output": {"a": 1}},
    {"output": 5},
    {"output": True},
    {"output": "x", "exit": 0},
    {"result": [1, 2]},
    {"result": 2.5},
    {"output": "plain"},
    {"output": "[1, 2]"},
    {"output": "5"},
    {"error": "not an error", "code": 1},
]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("value", STRUCTURED, ids=json.dumps)
def test_a_result_round_trips_unchanged(value: Any, other: str) -> None:
    assert there_and_back(value, other) == value


@pytest.mark.parametrize("other", WITH_ERRORS)
@pytest.mark.parametrize("value", [{"error": "no"}, {"error": {"code": 1}}, {"error": [1, 2]}], ids=json.dumps)
def test_an_error_round_trips_unchanged(value: Any, other: str) -> None:
    assert there_and_back(value, other) == value


@pytest.mark.parametrize("other", OTHERS)
def test_wrapped_content_is_not_wrapped_again(other: str) -> None:
    assert there_and_back({"result": {"a": 1}}, other) == {"a": 1}
    assert there_and_back({"result": "x"}, other) == {"output": "x"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text('abc {}[]"\\:,0', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["a", "output", "rows", "status"])


def _is_no_wrapper(value: dict[str, Any]) -> bool:
    return len(value) > 1 or "output" not in value


@given(
    value=st.dictionaries(NAMES, VALUES, min_size=1, max_size=3).filter(_is_no_wrapper), other=st.sampled_from(OTHERS)
)
def test_any_structured_result_round_trips(value: dict[str, Any], other: str) -> None:
    assert there_and_back(value, other) == value


TEXTS = st.text('ab{}[]":,1 ', max_size=12) | st.dictionaries(
    NAMES | st.sampled_from(["error", "result"]), VALUES, max_size=2
).map(lambda value: json.dumps(value, separators=(",", ":")))


@given(text=TEXTS, other=st.sampled_from(["anthropic", "openai", "responses"]))
def test_any_text_of_another_dialect_is_kept(text: str, other: str) -> None:
    """A result that is sent to Gemini is read as the same text again."""
    body = {
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": text or "x"}]},
        ],
    }
    there = dragoman.translate_request(body, source="anthropic", target="gemini", model=MODEL)
    back = dragoman.translate_request(there.body, source="gemini", target="anthropic", model=MODEL)
    content = back.body["messages"][2]["content"][0].get("content", "")
    assert content == ((text or "x") if (text or "x").strip() else "")


# --- results find their calls in any order, and that takes no time with the square of their number

IDS = st.sampled_from(["", "a", "b", "call_gemini_1", "call_gemini_2"])
TOOL_NAMES = st.sampled_from(["f", "g"])


class LinearToolCallIds:
    """Pairs results with calls as `ToolCallIds` does, by a search through all calls that wait."""

    def __init__(self) -> None:
        self.ids = ToolCallIds("call_gemini_")
        self.names: set[str] = set()
        self.waiting: list[tuple[str, str]] = []

    def called(self, call_id: str, name: str) -> None:
        self.names.add(call_id)
        self.waiting.append((call_id, name))

    def answered(self, call_id: str, name: str) -> str:
        place = 0 if call_id in self.names else 1
        wanted = call_id if call_id in self.names else name
        found = next((each for each in self.waiting if each[place] == wanted), None)
        if found is not None:
            self.waiting.remove(found)
        return call_id if call_id in self.names else found[0] if found else call_id


@given(st.lists(st.tuples(st.booleans(), IDS, TOOL_NAMES), max_size=30))
def test_a_result_belongs_to_the_first_call_without_one(items: list[tuple[bool, str, str]]) -> None:
    pairs, reference = ToolCallIds("call_gemini_"), LinearToolCallIds()
    for is_call, call_id, name in items:
        if is_call:
            reference.called(pairs.add_call(call_id, name), name)
            continue
        matched, expected = pairs.match_result(call_id, name), reference.answered(call_id, name)
        assert matched == expected or not expected  # without an id and a call, an id is generated


def reversed_by_id(count: int) -> Work:
    def work() -> None:
        pairs = ToolCallIds("call_gemini_")
        ids = [pairs.add_call(f"{number}", "f") for number in range(count)]
        for call_id in reversed(ids):
            pairs.match_result(call_id, "f")

    return work


def reversed_by_name(count: int) -> Work:
    def work() -> None:
        pairs = ToolCallIds("call_gemini_")
        for number in range(count):
            pairs.add_call("", f"f{number}")
        for number in reversed(range(count)):
            pairs.match_result("", f"f{number}")

    return work


def test_results_in_reverse_order_take_no_square_time() -> None:
    check_linear_growth(reversed_by_id, 200)
    check_linear_growth(reversed_by_name, 200)
