"""L6: models whose templates print results without ids get them in the order of their calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman
from dragoman.model.capabilities import reads_results_by_order

KIMI = "kimi-k2-0905-preview"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
IDS = ("one", "two", "three")


def history(order: list[str], split: int | None = None, calls: tuple[str, ...] = IDS) -> dict[str, Any]:
    """A Messages request: calls of one turn, and their results in this order, in one message or two."""
    uses = [{"type": "tool_use", "id": id_, "name": "get", "input": {"of": id_}} for id_ in calls]
    results = [{"type": "tool_result", "tool_use_id": id_, "content": f"of {id_}"} for id_ in order]
    turns = [results] if split is None else [results[:split], results[split:]]
    return {
        "max_tokens": 99,
        "tools": [{"name": "get", "input_schema": {"type": "object", "properties": {}}}],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": uses},
            *({"role": "user", "content": turn} for turn in turns if turn),
        ],
    }


def said(body: dict[str, Any], target: str) -> list[str]:
    """What the results say, in the order the target gets them."""
    if target == "openai":
        return [message["content"] for message in body["messages"] if message["role"] == "tool"]
    if target == "responses":
        return [item["output"] for item in body["input"] if item["type"] == "function_call_output"]
    blocks = [block for message in body["messages"] if message["role"] == "user" for block in message["content"]]
    if target == "bedrock":
        return [block["toolResult"]["content"][0]["text"] for block in blocks if "toolResult" in block]
    return [block["content"] for block in blocks if isinstance(block, dict) and block["type"] == "tool_result"]


def translated(body: dict[str, Any], target: str, model: str = KIMI, source: str = "anthropic") -> dragoman.Translated:
    return dragoman.translate_request(body, source=source, target=target, model=model)


@pytest.mark.parametrize("target", ["openai", "responses", "anthropic", "bedrock"])
@given(order=st.permutations(IDS), split=st.none() | st.integers(1, 2))
def test_l6_results_stand_in_the_order_of_their_calls(target: str, order: list[str], split: int | None) -> None:
    model = "moonshot.kimi-k2-thinking" if target == "bedrock" else KIMI
    told = translated(history(order, split), target, model)
    assert said(told.body, target) == [f"of {id_}" for id_ in IDS]
    reordered = [note for note in told.notes if note.rule == "tools.reordered_results"]
    assert len(reordered) == (tuple(order) != IDS)


def test_l6_at_home_too() -> None:
    calls = [{"id": id_, "type": "function", "function": {"name": "get", "arguments": "{}"}} for id_ in IDS]
    body = {
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            *({"role": "tool", "tool_call_id": id_, "content": f"of {id_}"} for id_ in reversed(IDS)),
        ]
    }
    told = translated(body, "openai", source="openai")
    assert said(told.body, "openai") == ["of one", "of two", "of three"]


def test_l6_a_missing_result_has_its_place_and_a_second_one_is_text() -> None:
    told = translated(history(["three", "one", "one"]), "openai")
    assert said(told.body, "openai") == ["of one", "Error: (no result)", "of three"]
    body = history(["two", "one"], calls=("one", "two"))
    body["messages"][-1]["content"].append({"type": "tool_result", "tool_use_id": "two", "content": "another"})
    told = translated(body, "openai")
    assert said(told.body, "openai") == ["of one", "of two"]
    assert "another" in json.dumps(told.body["messages"][-1])


def test_l6_images_that_leave_their_results_follow_the_same_order() -> None:
    body = history(["two", "one"], calls=("one", "two"))
    for result, name in zip(body["messages"][-1]["content"], ("image/webp", "image/png"), strict=True):
        result["content"] = [{"type": "image", "source": {"type": "base64", "media_type": name, "data": PIXEL}}]
    told = translated(body, "openai")
    images = [part["image_url"]["url"] for part in told.body["messages"][-1]["content"] if part["type"] == "image_url"]
    assert [image.partition(";")[0] for image in images] == ["data:image/png", "data:image/webp"]


def test_l6_models_that_read_ids_get_results_as_they_came() -> None:
    for target in ("anthropic", "responses"):
        told = translated(history(["two", "one", "three"]), target, "claude-x")
        assert said(told.body, target) == ["of two", "of one", "of three"]
        assert not [note for note in told.notes if note.rule == "tools.reordered_results"]


@pytest.mark.parametrize("model", ["kimi-k2", "moonshotai/Kimi-K2.5", "Qwen3-Coder", "glm-4.6", "deepseek-v3.2"])
def test_l6_open_models_are_known_by_name(model: str) -> None:
    assert reads_results_by_order(model)
    assert not reads_results_by_order("claude-sonnet-4.5")
