"""L13: a structured result that goes from Gemini through another dialect comes back structured."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman
import dragoman.dialects as registry

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
def test_l13_a_result_comes_back_as_it_went(value: Any, other: str) -> None:
    assert there_and_back(value, other) == value


@pytest.mark.parametrize("other", WITH_ERRORS)
@pytest.mark.parametrize("value", [{"error": "no"}, {"error": {"code": 1}}, {"error": [1, 2]}], ids=json.dumps)
def test_l13_so_does_an_error(value: Any, other: str) -> None:
    assert there_and_back(value, other) == value


@pytest.mark.parametrize("other", OTHERS)
def test_l13_what_a_wrapper_holds_is_not_wrapped_again(other: str) -> None:
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
def test_l13_any_structured_result_comes_back(value: dict[str, Any], other: str) -> None:
    assert there_and_back(value, other) == value


TEXTS = st.text('ab{}[]":,1 ', max_size=12) | st.dictionaries(
    NAMES | st.sampled_from(["error", "result"]), VALUES, max_size=2
).map(lambda value: json.dumps(value, separators=(",", ":")))


@given(text=TEXTS, other=st.sampled_from(["anthropic", "openai", "responses"]))
def test_l13_any_text_of_another_dialect_is_kept(text: str, other: str) -> None:
    """What is told to Gemini is read as the same text again."""
    asked = {
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": text or "x"}]},
        ],
    }
    there = dragoman.translate_request(asked, source="anthropic", target="gemini", model=MODEL)
    back = dragoman.translate_request(there.body, source="gemini", target="anthropic", model=MODEL)
    said = back.body["messages"][2]["content"][0].get("content", "")
    assert said == ((text or "x") if (text or "x").strip() else "")
