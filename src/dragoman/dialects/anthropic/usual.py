"""The usual request, read in one go: its blocks into types of their own, and arguments, which go on as text, hardly.

None is given for all else, and for what is wrong: the long way knows it, or says what is wrong with it. Where both ways
can be gone they lead to the same conversation.
"""

from __future__ import annotations

from itertools import count, repeat
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from dragoman.dialects.anthropic.blocks import parse_block
from dragoman.dialects.anthropic.request import MESSAGES, conversation_of
from dragoman.dialects.base import Call, Extent
from dragoman.errors import DragomanError
from dragoman.model.blocks import Block, Text, ToolCall, ToolResult, Where
from dragoman.model.conversation import Message
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json, Raw

_QUOTE = 0x22
_CALL, _SOON = b'"tool_use"', 65536  # calls make it worth while; where bytes pass, the body is read once more


class _Block(Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type"):
    pass


class _Text(_Block, frozen=True, tag="text"):
    text: str
    cache_control: Any = UNSET
    citations: Any = UNSET


class _Use(_Block, frozen=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Raw]
    cache_control: Any = UNSET


class _Result(_Block, frozen=True, tag="tool_result"):
    tool_use_id: str
    content: Any = UNSET
    is_error: Any = UNSET
    cache_control: Any = UNSET


class _Thought(_Block, frozen=True, tag="thinking"):
    thinking: Any = UNSET
    signature: Any = UNSET


class _Image(_Block, frozen=True, tag="image"):
    source: Any = UNSET
    cache_control: Any = UNSET


class _Message(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Text | _Use | _Result | _Thought | _Image]


class _Request(Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    messages: list[_Message]
    stream: bool = False
    system: Any = UNSET
    tools: Any = UNSET
    tool_choice: Any = UNSET
    max_tokens: Any = UNSET
    stop_sequences: Any = UNSET
    temperature: Any = UNSET
    top_p: Any = UNSET
    top_k: Any = UNSET
    thinking: Any = UNSET
    output_config: Any = UNSET
    metadata: Any = UNSET
    service_tier: Any = UNSET
    context_management: Any = UNSET


_Some: TypeAlias = _Text | _Use | _Result | _Thought | _Image
_OWN = ("model", "messages", "stream")
_read = jsonio.fitting(_Request)


def read_usual(data: bytes, hints: dict[str, str]) -> Call | None:
    """The call that generates, with what is asked. Its body holds as many values as were sent, as deeply nested, and
    says nothing more: that is for those who set limits."""
    told = _read(data) if data.find(_CALL, 0, _SOON) >= 0 else None
    if told is None:
        return None
    body = {name: value for name, value in _given(told).items() if name not in _OWN}
    reading = _Reading()
    try:
        messages = tuple(map(reading.message, told.messages, map(Where, repeat(MESSAGES), count())))
        asked = conversation_of(Call("generate", told.model, told.stream, body, hints), messages, tidy=reading.tidy)
    except (DragomanError, jsonio.JsonError, RecursionError):
        return None
    if reading.plain:
        asked.__dict__["plain"] = True
    return Call("generate", told.model, told.stream, {"messages": reading.extent(), **body}, hints, asked)


class _Reading:
    """Makes the blocks, and counts the values that they came as."""

    __slots__ = ("_deep", "_items", "_values", "plain", "tidy")

    def __init__(self) -> None:
        self.plain = True  # as Conversation has it
        self.tidy = True  # each message as the canonical form has it
        self._values = 0
        self._items: list[Json] = []  # blocks that take Fields to read
        self._deep: list[Json] = []  # of arguments, what is no string

    def extent(self) -> Extent:
        # The lists stand for a message and its content, a call and its arguments, all of which were counted.
        if self._deep:
            return Extent([[[*self._items, [self._deep]]]], self._values - 4)
        return Extent([[self._items]], self._values - 2) if self._items else Extent((), self._values)

    def message(self, told: _Message, at: Where) -> Message:
        role, content, place = told.role, told.content, Where(at, "content")
        self._values += 3
        if isinstance(content, str):
            self.tidy = self.tidy and content != ""
            return Message(role, (Text(content, at=place),), at=at)
        blocks: list[Block] = []
        tidy, results = True, role == "user"  # whether a result may come next
        for index, block in enumerate(content):
            here = Where(place, index)
            if type(block) is _Text and block.cache_control is UNSET and block.citations is UNSET:
                self._values += 3
                blocks.append(Text(block.text, at=here))
                tidy, results = tidy and block.text != "", False
            elif type(block) is _Use and block.cache_control is UNSET and block.id and block.name:
                blocks.append(ToolCall(block.id, block.name, self._arguments(block.input), at=here))
                tidy = tidy and role == "assistant"
            elif type(block) is _Result and type(block.content) is str and _is_plain(block):
                self._values += 4
                parts = (Text(block.content, at=Where(here, "content")),) if block.content else ()
                blocks.append(ToolResult(block.tool_use_id, parts, at=here))
                tidy = tidy and results
            else:
                blocks.append(self._otherwise(block, here))
                tidy = self.plain = False
        self.tidy = self.tidy and tidy
        return Message(role, tuple(blocks), at=at)

    def _arguments(self, given: dict[str, Raw]) -> str:
        self._values += 5 + len(given)
        for value in given.values():
            if memoryview(value)[0] != _QUOTE:
                return self._mixed(given)
        return jsonio.text_of_parts(given)

    def _mixed(self, given: dict[str, Raw]) -> str:
        others = {name: jsonio.decode(value) for name, value in given.items() if memoryview(value)[0] != _QUOTE}
        self._values -= len(others)
        self._deep += others.values()
        return jsonio.text_of_parts({**given, **others})

    def _otherwise(self, block: _Some, at: Where) -> Block:
        item: dict[str, Any] = {"type": block.__struct_config__.tag, **_given(block)}
        if isinstance(block, _Use):
            item["input"] = {name: jsonio.decode(value) for name, value in block.input.items()}
        self._items.append(item)
        return parse_block(Fields(item, at.path))


def _is_plain(result: _Result) -> bool:
    return result.cache_control is UNSET and result.is_error is UNSET and bool(result.tool_use_id)


def _given(told: Struct) -> dict[str, Any]:
    values = {name: getattr(told, name) for name in told.__struct_fields__}
    return {name: value for name, value in values.items() if not isinstance(value, UnsetType)}
