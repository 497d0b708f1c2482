"""A tool's result and an answer with its calls in their usual shapes, which take no Fields to read.

None is given for all else, and for what is wrong: the long way knows it, or says what is wrong with it.
"""

from __future__ import annotations

from dragoman.model.blocks import Block, Text, ToolCall, ToolResult, Where
from dragoman.model.conversation import Message
from dragoman.wire.jsonio import Json


def usual_message(item: dict[str, Json], at: Where) -> Message | None:
    if len(item) != 3:
        return None
    return _calls(item, at) if "tool_calls" in item else _result(item, at)


def _result(item: dict[str, Json], at: Where) -> Message | None:
    call_id, content = item.get("tool_call_id"), item.get("content")
    if item.get("role") != "tool" or not isinstance(content, str) or not isinstance(call_id, str) or not call_id:
        return None
    parts = (Text(content, at=Where(at, "content")),) if content else ()
    return Message("user", (ToolResult(call_id, parts, at=at),), at=at)


def _calls(item: dict[str, Json], at: Where) -> Message | None:
    content, entries = item.get("content", False), item["tool_calls"]
    if item.get("role") != "assistant" or not isinstance(content, str | None) or not isinstance(entries, list):
        return None
    blocks: list[Block] = [Text(content, at=Where(at, "content"))] if content else []
    place = Where(at, "tool_calls")
    for index, entry in enumerate(entries):
        call = _call(entry, Where(place, index))
        if call is None:
            return None
        blocks.append(call)
    return Message("assistant", tuple(blocks), at=at)


def _call(entry: Json, at: Where) -> ToolCall | None:
    if not isinstance(entry, dict) or len(entry) != 3 or entry.get("type") != "function":
        return None
    call_id, function = entry.get("id"), entry.get("function")
    if not isinstance(call_id, str) or not isinstance(function, dict) or len(function) != 2:
        return None
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, str) or not name or not call_id:
        return None
    return ToolCall(call_id, name, arguments, at=at)
