"""Half characters: a lone surrogate makes the service refuse the whole body as no JSON (rule 34)."""

from __future__ import annotations

import re
from typing import TypeVar

from msgspec import structs

from dragoman.model.blocks import Block, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.facts import Facts, Inventory
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json, ObjectText, Raw

REPLACEMENT = "\ufffd"
_LONE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")
N = TypeVar("N", Text, ToolCall, ToolResult, ToolSpec)


class WholeCharacters(Filter):
    """Each lone surrogate becomes U+FFFD. A thought is no longer what was sealed, then."""

    name = "kiro.whole_characters"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if jsonio.is_whole(conversation.tools) and _are_whole(facts.inventory(conversation)):
            return conversation, None
        messages = tuple([_message(message) for message in conversation.messages])
        tools = tuple([_tool(tool) if isinstance(tool, ToolSpec) else tool for tool in conversation.tools])
        if messages == conversation.messages and tools == conversation.tools:
            return conversation, None
        places = [new.at.path for new, old in zip(messages, conversation.messages, strict=True) if new != old]
        notes.changed(
            "kiro.text.surrogate", next(iter(places), "tools"), "half a character became the replacement character"
        )
        return structs.replace(conversation, messages=messages, tools=tools), None


def _are_whole(held: Inventory) -> bool:
    suspects = [text for text in held.words if not text.isascii()]
    suspects += [thought.text for thought in held.thoughts]
    return all(map(_is_whole, suspects)) and not any(map(_has_halves, [call.arguments for call in held.calls]))


def _message(message: Message) -> Message:
    blocks = tuple([_block(block) for block in message.blocks])
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


def _block(block: Block) -> Block:
    match block:
        case Text(text):
            return _with(block, text=_whole(text))
        case Reasoning(text) if not _is_whole(text):
            return structs.replace(block, text=_whole(text), seal=None)
        case ToolCall(arguments=arguments):
            return _with(block, arguments=_arguments(arguments))
        case ToolResult(content=content):
            return _with(block, content=tuple([_block(part) for part in content]))
        case _:
            return block


def _tool(tool: ToolSpec) -> ToolSpec:
    return _with(
        tool, description=_whole(tool.description), schema=_value({**tool.schema}) if tool.schema else tool.schema
    )


def _with(node: N, **changes: object) -> N:
    """The node with these fields, or itself if they are as they were."""
    return (
        node
        if all(getattr(node, name) == value for name, value in changes.items())
        else structs.replace(node, **changes)
    )


def _whole(text: str) -> str:
    return text if _is_whole(text) else _LONE.sub(REPLACEMENT, text)


def _is_whole(text: str) -> bool:
    """Whether there is no half character in it; the text keeps its bytes for whoever writes it."""
    if type(text) is ObjectText:
        return True
    try:
        Raw(text)
    except UnicodeEncodeError:
        return False
    return True


def _has_halves(arguments: str) -> bool:
    """Whether there may be half a character in it, plainly or escaped."""
    if isinstance(arguments, jsonio.ObjectText):
        return False
    return not _is_whole(arguments) or _ESCAPED.search(arguments) is not None


def _arguments(arguments: str) -> str:
    if not _has_halves(arguments):
        return arguments
    try:
        value = jsonio.decode(arguments)
    except jsonio.JsonError:
        return _whole(arguments)
    whole = _value(value)
    return arguments if whole == value else jsonio.encode(whole).decode()


def _value(value: Json) -> Json:
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, list):
        return [_value(each) for each in value]
    if isinstance(value, dict):
        return {_whole(name): _value(each) for name, each in value.items()}
    return value
