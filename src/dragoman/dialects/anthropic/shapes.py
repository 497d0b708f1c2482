"""Structs for requests and messages of exactly the documented shape, read from bytes or from JSON values.

Bodies with any other field, block or type are read with `Fields` (request.py, blocks.py), which keeps unknown fields
and reports errors. Where both can read a body, their results are equal.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, convert

from dragoman.dialects.anthropic.blocks import FAMILY
from dragoman.dialects.anthropic.tools import find_compaction
from dragoman.dialects.base import ApiRequest
from dragoman.model.blocks import (
    Block,
    CacheBreakpoint,
    Extra,
    Location,
    Reasoning,
    Signature,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.model.conversation import Conversation, Message, Role, Thinking, ToolChoice, ToolSpec, to_canonical
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json, Raw

_Filled: TypeAlias = Annotated[str, Meta(min_length=1)]


class _Object(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    pass


class _Mark(_Object, frozen=True):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


_CACHES: dict[_Mark | None, CacheBreakpoint | None] = {
    None: None,
    _Mark("ephemeral", "5m"): CacheBreakpoint("5m"),
    _Mark("ephemeral", "1h"): CacheBreakpoint("1h"),
}


class _Block(_Object, frozen=True, tag_field="type", kw_only=True):
    cache_control: _Mark | None = None


class _Text(_Block, frozen=True, tag="text"):
    text: str


class _Call(_Block, frozen=True, tag="tool_use"):
    id: _Filled
    name: _Filled
    input: dict[str, Any]


class AnthropicToolUse(_Block, frozen=True, tag="tool_use"):
    """A tool_use block of a body in bytes. Its arguments stay JSON text, so their values are not decoded."""

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


class AnthropicMessage(_Object, frozen=True):
    """A message of a body in bytes."""

    role: Role
    content: str | list[_Text | AnthropicToolUse | _ToolResult | _Thinking]


class AnthropicRequest(_Object, frozen=True):
    """A whole request in bytes. Its settings are of any type here; `AnthropicSettings` or `Fields` reads them."""

    model: str
    messages: list[AnthropicMessage]
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


decode_request = jsonio.strict_decoder(AnthropicRequest)


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


_MODES: dict[type, Literal["default", "on", "off", "adaptive"]] = {
    type(None): "default",
    _Enabled: "on",
    _Disabled: "off",
    _Adaptive: "adaptive",
}
_EXTRA = ("service_tier", "context_management")  # known fields that become extra fields


class AnthropicSettings(_Object, frozen=True):
    """A request without `model` and `stream`; its messages are read one by one."""

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

    def conversation(self, call: ApiRequest, messages: tuple[Message, ...]) -> Conversation:
        """Return the conversation of a call whose body has these settings."""
        assert isinstance(call.body, dict)
        extra = {name: call.body[name] for name in call.body if name in _EXTRA}
        system: tuple[Text, ...] = ()
        if isinstance(self.system, list):
            texts = enumerate(self.system)
            system = tuple(
                [Text(text.text, _CACHES[text.cache_control], at=Location(f"system[{at}]")) for at, text in texts]
            )
        elif self.system is not None:
            system = (Text(self.system, at=Location("system")),)
        tools = []
        for index, tool in enumerate(self.tools or ()):
            cache, at = _CACHES[tool.cache_control], Location(f"tools[{index}]")
            tools.append(ToolSpec(tool.name, tool.description or "", tool.input_schema, cache, tool.strict, at=at))
        choice = ToolChoice()
        if (mode := self.tool_choice) is not None:
            disabled = mode.disable_parallel_tool_use
            choice = ToolChoice(mode.type, (), None if disabled is None else not disabled)
        effort = "" if self.output_config is UNSET else self.output_config.effort
        budget = self.thinking.budget_tokens if isinstance(self.thinking, _Enabled) else None
        sampling = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        conversation = Conversation(
            call.model,
            messages,
            system=system,
            tools=tuple(tools),
            tool_choice=choice,
            thinking=Thinking(_MODES[type(self.thinking)], effort, budget),
            max_tokens=self.max_tokens,
            stop=tuple(self.stop_sequences or ()),
            sampling={name: value for name, value in sampling.items() if value is not None},
            stream=call.stream,
            user="" if self.metadata is UNSET else self.metadata.user_id,
            hints=Extra(FAMILY, {**call.hints}) if call.hints else None,
            server_state=tuple(find_compaction(extra)) if extra else (),
            extra=Extra(FAMILY, extra) if extra else None,
        )
        return to_canonical(conversation)


def read_typed_message(item: Json, at: Location) -> Message | None:
    """Read a message of the documented shape; None for any other."""
    try:
        return build_message(convert(item, _Message), at)
    except jsonio.DECODE_ERRORS:
        return None


def build_message(shape: _Message | AnthropicMessage, at: Location) -> Message:
    """Return the canonical message. Raises JsonError for arguments that JSON cannot express."""
    content, place = shape.content, Location(at, "content")
    if isinstance(content, str):
        return Message(shape.role, (Text(content, at=place),), at=at)
    return Message(shape.role, tuple(_blocks(content, place)), at=at)


def _blocks(content: list[Any], place: Location) -> list[Block]:
    blocks: list[Block] = []
    for index, block in enumerate(content):
        at, kind = Location(place, index), type(block)  # isinstance is slow for Structs of another class
        cache = None if kind is _Thinking else _CACHES[block.cache_control]
        if kind is _Text:
            blocks.append(Text(block.text, cache, at=at))
        elif kind is _Call or kind is AnthropicToolUse:
            text = (jsonio.encode_raw_parts if kind is AnthropicToolUse else jsonio.encode_to_text)(block.input)
            blocks.append(ToolCall(block.id, block.name, text, "json", cache, at=at))
        elif kind is _ToolResult:
            parts = _parts(block.content, Location(at, "content"))
            blocks.append(ToolResult(block.tool_use_id, parts, block.is_error, cache, at=at))
        else:
            signature = Signature(FAMILY, block.signature) if block.signature else None
            blocks.append(Reasoning(block.thinking, FAMILY, signature, at=at))
    return blocks


def _parts(content: str | list[_Text], at: Location) -> tuple[Text, ...]:
    """Return the texts of a tool result, without empty ones."""
    if isinstance(content, str):
        return (Text(content, at=at),) if content else ()
    parts: list[Text] = []
    for index, part in enumerate(content):
        if part.text or part.cache_control is not None:
            parts.append(Text(part.text, _CACHES[part.cache_control], at=Location(at, index)))
    return tuple(parts)
