"""Requests and messages of just the documented shape: these Structs read them.

What has any other field, block or type is read by `Fields` (request.py, blocks.py), which keep what is unknown and name
what is wrong. Where both can read something they give the same.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from dragoman.dialects.anthropic.blocks import FAMILY
from dragoman.model.blocks import Block, Cache, Reasoning, Seal, Text, ToolCall, ToolResult, Where
from dragoman.model.conversation import Message, Role, Thinking, ToolSpec
from dragoman.wire import jsonio
from dragoman.wire.fields import exactly
from dragoman.wire.jsonio import Json, Raw

_Filled: TypeAlias = Annotated[str, Meta(min_length=1)]


class _Object(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    pass


class _Mark(_Object, frozen=True):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


def _cache(mark: _Mark | None) -> Cache | None:
    return None if mark is None else Cache(mark.ttl)


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


class _Tool(_Object, frozen=True):
    name: _Filled
    input_schema: dict[str, Any]
    description: str | None = None
    cache_control: _Mark | None = None
    strict: bool | None = None
    type: Literal["custom"] | None = None


class _Mode(_Object, frozen=True):
    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool | None = None

    @property
    def parallel(self) -> bool | None:
        return None if self.disable_parallel_tool_use is None else not self.disable_parallel_tool_use


class _Metadata(_Object, frozen=True):
    user_id: str = ""


class _Form(_Object, frozen=True):
    effort: str = ""


class _Enabled(_Object, frozen=True, tag_field="type", tag="enabled"):
    budget_tokens: int | None = None


class _Disabled(_Object, frozen=True, tag_field="type", tag="disabled"):
    pass


class _Adaptive(_Object, frozen=True, tag_field="type", tag="adaptive"):
    pass


class Settings(_Object, frozen=True):
    """A request without its model and `stream`; its messages are read one by one."""

    messages: list[dict[str, Any]] | UnsetType = UNSET
    system: str | list[_Text] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _Mode | None = None
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    temperature: int | float | None = None
    top_p: int | float | None = None
    top_k: int | float | None = None
    thinking: _Enabled | _Disabled | _Adaptive | None = None
    output_config: _Form | UnsetType = UNSET
    metadata: _Metadata | UnsetType = UNSET
    service_tier: Any = None
    context_management: Any = None

    def made_system(self) -> tuple[Text, ...]:
        """Return the system prompt."""
        if not isinstance(self.system, list):
            return () if self.system is None else (Text(self.system, at=Where("system")),)
        texts = enumerate(self.system)
        return tuple([Text(text.text, _cache(text.cache_control), at=Where(f"system[{at}]")) for at, text in texts])

    def made_tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools."""
        tools = []
        for index, tool in enumerate(self.tools or ()):
            cache, at = _cache(tool.cache_control), Where(f"tools[{index}]")
            tools.append(ToolSpec(tool.name, tool.description or "", tool.input_schema, cache, tool.strict, at=at))
        return tuple(tools)

    def made_thinking(self) -> Thinking:
        """Return how the model shall think."""
        effort, asked = "" if self.output_config is UNSET else self.output_config.effort, self.thinking
        if isinstance(asked, _Enabled):
            return Thinking("on", effort, asked.budget_tokens)
        if asked is None:
            return Thinking(effort=effort)
        return Thinking("off" if isinstance(asked, _Disabled) else "adaptive", effort)


_read = exactly(_Message)
exact_settings = exactly(Settings)


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
        cache = None if kind is _Thinking else _cache(block.cache_control)
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
            parts.append(Text(part.text, _cache(part.cache_control), at=Where(at, index)))
    return tuple(parts)
