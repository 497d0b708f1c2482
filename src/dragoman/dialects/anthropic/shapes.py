"""Messages of just the documented shape: these Structs read them.

A message that has any other field, block or type is read by `Fields` (request.py, blocks.py), which keep what is
unknown and name what is wrong. Where both can read a message they give the same.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from dragoman.dialects.anthropic.nodes import FAMILY
from dragoman.model.blocks import Block, Cache, Reasoning, Seal, Text, ToolCall, ToolResult, Where
from dragoman.model.conversation import Message, Role
from dragoman.wire import jsonio
from dragoman.wire.fields import exactly
from dragoman.wire.jsonio import Json, Raw

_Filled: TypeAlias = Annotated[str, Meta(min_length=1)]


class _Object(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    pass


class _Mark(_Object, frozen=True):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class _Block(_Object, frozen=True, tag_field="type", kw_only=True):
    cache_control: _Mark | None = None


class _Text(_Block, frozen=True, tag="text"):
    text: str


class _Call(_Block, frozen=True, tag="tool_use"):
    id: _Filled
    name: _Filled
    input: dict[str, Any]


class RawCall(_Block, frozen=True, tag="tool_use"):
    """The same in bytes: arguments go on as text, so they are hardly read."""

    id: _Filled
    name: _Filled
    input: dict[str, Raw]


class _ToolResult(_Block, frozen=True, tag="tool_result"):
    tool_use_id: _Filled
    content: str | list[_Text]
    is_error: bool = False


class _Thinking(_Object, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


class _Message(_Object, frozen=True):
    role: Role
    content: str | list[_Text | _Call | _ToolResult | _Thinking]


class RawMessage(_Object, frozen=True):
    role: Role
    content: str | list[_Text | RawCall | _ToolResult | _Thinking]


_read = exactly(_Message)


def exact_message(item: Json, at: Where) -> Message | None:
    """Read a message of the documented shape; None for any other."""
    shape = _read(item)
    return None if shape is None else made_message(shape, at)


def made_message(shape: _Message | RawMessage, at: Where) -> Message | None:
    """The message that has this shape; None if it has arguments that cannot be written."""
    content, place = shape.content, Where(at, "content")
    if isinstance(content, str):
        return Message(shape.role, (Text(content, at=place),), at=at)
    try:
        return Message(shape.role, tuple(_blocks(content, place)), at=at)
    except jsonio.JsonError:
        return None


def _blocks(content: list[Any], place: Where) -> list[Block]:
    blocks: list[Block] = []
    for index, block in enumerate(content):
        at, kind = Where(place, index), type(block)  # isinstance is slow where a Struct class does not match
        mark = None if kind is _Thinking else block.cache_control
        cache = None if mark is None else Cache(mark.ttl)
        if kind is _Text:
            blocks.append(Text(block.text, cache, at=at))
        elif kind is _Call or kind is RawCall:
            text = (jsonio.text_of_parts if kind is RawCall else jsonio.text_of)(block.input)
            blocks.append(ToolCall(block.id, block.name, text, "json", cache, at=at))
        elif kind is _ToolResult:
            parts = _parts(block.content, Where(at, "content"))
            blocks.append(ToolResult(block.tool_use_id, parts, block.is_error, cache, at=at))
        else:
            seal = Seal(FAMILY, block.signature) if block.signature else None
            blocks.append(Reasoning(block.thinking, FAMILY, seal, at=at))
    return blocks


def _parts(content: str | list[_Text], at: Where) -> tuple[Text, ...]:
    """The texts of a result. One that says nothing is no part."""
    if isinstance(content, str):
        return (Text(content, at=at),) if content else ()
    parts: list[Text] = []
    for index, part in enumerate(content):
        if part.text or part.cache_control is not None:
            mark = part.cache_control
            parts.append(Text(part.text, None if mark is None else Cache(mark.ttl), at=Where(at, index)))
    return tuple(parts)
