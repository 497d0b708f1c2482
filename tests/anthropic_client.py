"""What a careful client makes of server-sent events, read without our codecs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

# The kinds of block, and which delta adds to which of its fields.
_DELTAS = {
    ("text", "text_delta"): ("text", "text"),
    ("thinking", "thinking_delta"): ("thinking", "thinking"),
    ("tool_use", "input_json_delta"): ("partial_json", "json"),
}


def parse_sse(stream: bytes) -> list[dict[str, Any]]:
    """The data of a stream of server-sent events; OpenAI's [DONE] is left out."""
    lines = [line.removeprefix("data: ") for line in stream.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def parse_message_stream(stream: bytes) -> dict[str, Any]:
    """An Anthropic stream as one message: content, stop_reason, usage, error."""
    return accumulate_message(parse_sse(stream))


def accumulate_message(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The message of these events. Blocks are dense, and never open side by side; `json` is the input of a call."""
    content: list[dict[str, Any]] = []
    whole: dict[str, Any] = {"stop_reason": None, "usage": {}, "error": None, "content": content}
    opened: int | None = None
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert opened is None and event["index"] == len(content)
                opened = event["index"]
                content.append({**event["content_block"], **({"json": ""} if _calls(event) else {})})
            case "content_block_delta":
                assert event["index"] == opened
                _grow(content[-1], event["delta"])
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


def _calls(event: dict[str, Any]) -> bool:
    return bool(event["content_block"]["type"] == "tool_use")


def _grow(block: dict[str, Any], delta: dict[str, Any]) -> None:
    if (block["type"], delta["type"]) == ("thinking", "signature_delta"):
        block["signature"] = delta["signature"]
    elif (block["type"], delta["type"]) in _DELTAS:
        given, field = _DELTAS[block["type"], delta["type"]]
        block[field] += delta[given]
    else:
        pytest.fail(f"a {delta['type']} in a block of the type {block['type']}")
