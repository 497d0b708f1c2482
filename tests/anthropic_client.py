"""Read server-sent events as a strict client does, without the codecs of this project."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

# For each kind of block: the deltas it takes, and the field that each delta appends to.
_DELTAS = {
    ("text", "text_delta"): ("text", "text"),
    ("thinking", "thinking_delta"): ("thinking", "thinking"),
    ("tool_use", "input_json_delta"): ("partial_json", "json"),
}


def parse_sse(stream: bytes) -> list[dict[str, Any]]:
    """Return the JSON data of each server-sent event; OpenAI's `[DONE]` is skipped."""
    lines = [line.removeprefix("data: ") for line in stream.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def parse_message_stream(stream: bytes) -> dict[str, Any]:
    """Return an Anthropic stream as one message: content, stop_reason, usage, error."""
    return accumulate_message(parse_sse(stream))


def accumulate_message(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that these events describe; `json` of a tool call is its input as text.

    Fails if block indices have gaps or if two blocks are open at the same time.
    """
    content: list[dict[str, Any]] = []
    whole: dict[str, Any] = {"stop_reason": None, "usage": {}, "error": None, "content": content}
    opened: int | None = None
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert opened is None and event["index"] == len(content)
                opened = event["index"]
                content.append({**event["content_block"], **({"json": ""} if _starts_tool_call(event) else {})})
            case "content_block_delta":
                assert event["index"] == opened
                _append_delta(content[-1], event["delta"])
            case "content_block_stop":
                assert event["index"] == opened
                opened = None
            case "message_delta":
                whole |= {"stop_reason": event["delta"]["stop_reason"], "usage": event["usage"]}
            case "error":
                whole["error"] = event["error"]
            case _:
                pass
    assert opened is None or whole["error"]
    return whole


def _starts_tool_call(event: dict[str, Any]) -> bool:
    return bool(event["content_block"]["type"] == "tool_use")


def _append_delta(block: dict[str, Any], delta: dict[str, Any]) -> None:
    if (block["type"], delta["type"]) == ("thinking", "signature_delta"):
        block["signature"] = delta["signature"]
    elif (block["type"], delta["type"]) in _DELTAS:
        block_field, field = _DELTAS[block["type"], delta["type"]]
        block[field] += delta[block_field]
    else:
        pytest.fail(f"a {delta['type']} in a block of the type {block['type']}")
