"""wrap_text_tools: a free-text tool becomes one with a single string; its calls come back as free text.

A target that has such tools is told them as they are. Not every server that says so calls them so: a call that comes as
JSON all the same is free text again for the client, which refuses anything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec import structs

from dragoman.model.blocks import Block, Opaque, ToolCall
from dragoman.model.budget import KeptText
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.events import ArgumentsDelta, BlockEnded, BlockKeys, BlockStarted, Event
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Back, Filter, MakeBack, Reads
from dragoman.model.notes import Notes
from dragoman.wire import jsonio

SCHEMA: dict[str, jsonio.Json] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as free text."}},
    "required": ["input"],
}

_IDLE: Reads = frozenset({ToolCall})
_IN_CALL: Reads = _IDLE | {ArgumentsDelta, BlockEnded}


class WrapTextTools(Filter):
    name = "wrap_text_tools"
    concerns: Features = frozenset({"text_tools", "text_calls"})

    def __init__(self, *, native: bool = False) -> None:
        self._native = native

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        wrapped = {tool.name for tool in conversation.tools if isinstance(tool, ToolSpec) and tool.schema is None}
        if self._native:
            return conversation, partial(_Unwrap, wrapped) if wrapped else None
        messages = conversation.messages
        if [call for call in facts.inventory(conversation).calls if call.form == "text"]:
            messages = tuple([_wrap_message(message, notes) for message in messages])
        tools = tuple(_wrap_tool(tool, notes) for tool in conversation.tools)
        if not wrapped and messages == conversation.messages:
            return conversation, None
        changed = structs.replace(conversation, messages=messages, tools=tools)
        return changed, partial(_Unwrap, wrapped) if wrapped else None


def _wrap_tool(tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
    if not isinstance(tool, ToolSpec) or tool.schema is not None:
        return tool
    notes.changed(
        "tools.text_wrapped", tool.at.path, f"{tool.name} takes free text; it is offered with one string, `input`"
    )
    return structs.replace(tool, schema=SCHEMA)


def _wrap_message(message: Message, notes: Notes) -> Message:
    if not any(isinstance(block, ToolCall) and block.form == "text" for block in message.blocks):
        return message
    return structs.replace(message, blocks=tuple(_wrap_call(block, notes) for block in message.blocks))


def _wrap_call(block: Block, notes: Notes) -> Block:
    if not isinstance(block, ToolCall) or block.form != "text":
        return block
    notes.changed("tools.text_wrapped", block.at.path, f"the free text given to {block.name} stands in `input`")
    return structs.replace(block, form="json", arguments=jsonio.encode({"input": block.arguments}).decode())


class _Unwrap(Back):
    """Holds the arguments of a wrapped call until they are whole, for half a JSON string is no text."""

    def __init__(self, wrapped: set[str], notes: Notes, keys: BlockKeys) -> None:
        self.reads = _IDLE
        self._budget = keys.budget
        self._wrapped = wrapped
        self._notes = notes
        self._held: dict[int, KeptText] = {}

    def take(self, event: Event) -> Iterable[Event]:
        match event:
            case BlockStarted(key, ToolCall(name=name, form="json") as call) if name in self._wrapped:
                self._held[key], self.reads = KeptText(self._budget), _IN_CALL
                yield structs.replace(event, block=structs.replace(call, form="text"))
            case ArgumentsDelta(key, text) if key in self._held:
                self._held[key].add(text)
            case BlockEnded(key) if key in self._held:
                text = self._unwrapped(self._held.pop(key).take())
                if text:
                    yield ArgumentsDelta(key, text)
                self.reads = _IN_CALL if self._held else _IDLE
                yield event
            case _:
                yield event

    def _unwrapped(self, arguments: str) -> str:
        try:
            value = jsonio.decode(arguments) if arguments else {}
        except jsonio.JsonError:
            value = None
        if isinstance(value, dict):
            text = value.get("input", "")
            if isinstance(text, str) and not value.keys() - {"input"}:
                return text
        self._notes.changed(
            "tools.text_unwrapped",
            "",
            "the arguments of a free-text tool were not as asked for; they are given as they came",
        )
        return arguments
