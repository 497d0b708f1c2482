"""Messages of just the documented shape: these Structs read them.

A message that has any other field, part or type is read by `Fields` (messages.py, parts.py, tools.py), which keep what
is unknown and name what is wrong. Where both can read a message they give the same.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from dragoman.model.blocks import Text, ToolCall, ToolResult, Where
from dragoman.model.conversation import Message
from dragoman.wire.fields import exactly
from dragoman.wire.jsonio import Json

_Filled: TypeAlias = Annotated[str, Meta(min_length=1)]


class _Object(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    pass


class _TextPart(_Object, frozen=True):
    type: Literal["text"]
    text: str


class _Function(_Object, frozen=True):
    name: _Filled
    arguments: str


class _Call(_Object, frozen=True):
    id: _Filled
    type: Literal["function"]
    function: _Function


class _Message(_Object, frozen=True):
    """Fields that SDKs write as null when they echo a message say nothing."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[_TextPart] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: _Filled | None = None
    name: None = None
    refusal: None = None
    audio: None = None
    annotations: None = None
    function_call: None = None


_read = exactly(_Message)


def exact_message(item: Json, at: Where) -> Message | None:
    """Read a message of the documented shape; None for any other."""
    shape = _read(item)
    if shape is None:
        return None
    role, content, calls = shape.role, shape.content, shape.tool_calls
    if role == "tool":
        return _result(shape, at)
    if shape.tool_call_id is not None or (role != "assistant" and (content is None or calls is not None)):
        return None
    said = _texts(content, Where(at, "content"))
    return Message(role, said if calls is None else (*said, *_calls(calls, Where(at, "tool_calls"))), at=at)


def _result(shape: _Message, at: Where) -> Message | None:
    content = shape.content
    if not isinstance(content, str) or not shape.tool_call_id or shape.tool_calls is not None:
        return None
    return Message("user", (ToolResult(shape.tool_call_id, _texts(content, Where(at, "content")), at=at),), at=at)


def _texts(content: str | list[_TextPart] | None, at: Where) -> tuple[Text, ...]:
    if isinstance(content, list):
        return tuple([Text(part.text, at=Where(at, index)) for index, part in enumerate(content)])
    return (Text(content, at=at),) if content else ()


def _calls(calls: list[_Call], at: Where) -> list[ToolCall]:
    return [
        ToolCall(call.id, call.function.name, call.function.arguments, at=Where(at, index))
        for index, call in enumerate(calls)
    ]
