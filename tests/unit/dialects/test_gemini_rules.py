"""The lint of the service's rules, and the filters that keep to them."""

from __future__ import annotations

from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.dialects.base import Call
from dragoman.dialects.gemini import DIALECT
from dragoman.model.blocks import Block, Media, Reasoning, Seal, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Role, ToolChoice, ToolSpec
from dragoman.translate import Plan, plan

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
    found = CODEC.breaches(Call("generate", "gemini-3-pro", False, body))
    assert f"gemini.{rule}" in [breach.rule for breach in found]


def test_a_good_request_breaks_no_rule() -> None:
    body: Any = {
        "contents": [ASK, model(call(thoughtSignature="cw=="), call()), {**RESULT, "parts": RESULT["parts"] * 2}]
    }
    assert CODEC.breaches(Call("generate", "gemini-3-pro", False, body)) == []
    unsigned: Any = {"contents": [ASK, model(call()), RESULT]}
    assert CODEC.breaches(Call("generate", "gemini-2.5-pro", False, unsigned)) == []


def turn(role: Role, *blocks: Block) -> Message:
    return Message(role, blocks)


def fitted(*messages: Message, model: str = "gemini-3-pro", **more: Any) -> Plan:
    made = plan(ANTHROPIC, DIALECT, Conversation(model, messages, **more))
    assert CODEC.breaches(made.call()) == []
    return made


def rules(made: Plan) -> list[str]:
    return [note.rule for note in made.notes]


def test_several_texts_of_a_result_become_one_before_its_media() -> None:
    picture = Media("image", "image/png", "base64", "aGk=")
    asked = (
        turn("user", Text("x")),
        turn("assistant", ToolCall("a", "f", "{}", seal=Seal("gemini", "cw=="))),
        turn("user", ToolResult("a", (picture, Text("one"), Text("two\n"), Text("three")))),
    )
    made = fitted(*asked)
    (result,) = made.sent.messages[2].blocks
    assert isinstance(result, ToolResult) and result.content == (Text("one\ntwo\nthree"), picture)
    assert rules(made) == ["gemini.result"]
    older = fitted(*asked, model="gemini-2.5-pro")
    assert older.sent.messages[2].blocks[1:] == (picture,)
    assert "result.media_lifted" in rules(older)


def test_media_by_address_gets_a_type_and_its_name_is_text() -> None:
    made = fitted(
        turn("user", Media("document", "", "url", "https://x/a.pdf", "a"), Media("image", "", "url", "https://x/a"))
    )
    name, one, other = made.sent.messages[0].blocks
    assert isinstance(one, Media) and isinstance(other, Media)
    assert (name, one.mime, one.name, other.mime) == (Text("a"), "application/pdf", "", "image/jpeg")
    assert rules(made) == ["media.name", "gemini.media.type", "gemini.media.type"]


def test_a_choice_of_one_tool_is_told_as_such() -> None:
    tools = (ToolSpec("a", "", {"type": "object"}), ToolSpec("b", "", {"type": "object"}))
    made = fitted(turn("user", Text("x")), tools=tools, tool_choice=ToolChoice("any", ("a",)))
    assert made.sent.tool_choice == ToolChoice("one", ("a",))
    assert rules(made) == ["gemini.choice.one"]


def test_a_system_prompt_alone_is_asked_to_go_on() -> None:
    assert rules(fitted(system=(Text("Be brief."),))) == ["turn.placeholder"]


def test_a_signed_text_goes_back_even_if_it_is_empty() -> None:
    signed = Text("", seal=Seal("gemini", "cw=="))
    made = plan(
        DIALECT,
        DIALECT,
        Conversation(
            "gemini-3-pro", (turn("user", Text("x")), turn("assistant", Text("y"), signed), turn("user", Text("z")))
        ),
    )
    assert made.sent.messages[1].blocks == (Text("y"), signed)
    assert not made.notes


def test_thoughts_of_its_own_go_back_and_those_of_others_do_not() -> None:
    own, foreign = Reasoning("a", "gemini"), Reasoning("b", "openai")
    made = plan(
        DIALECT,
        DIALECT,
        Conversation(
            "gemini-3-pro",
            (turn("user", Text("x")), turn("assistant", own, foreign, Text("y")), turn("user", Text("z"))),
        ),
    )
    assert made.sent.messages[1].blocks == (own, Text("y"))
    assert rules(made) == ["foreign.reasoning"]
