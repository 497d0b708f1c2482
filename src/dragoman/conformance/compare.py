"""When two canonical values say the same, whatever their spelling."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import structs

from dragoman.model.blocks import Block, Reasoning, Text, ToolCall
from dragoman.model.conversation import Conversation, Reply
from dragoman.wire import jsonio

Summary: TypeAlias = tuple[tuple[str, str, tuple[tuple[str, str, bytes], ...]], ...]


def arguments_value(call: ToolCall) -> bytes:
    """Arguments as a JSON value: empty is an empty object, and spelling does not count."""
    try:
        return jsonio.encode(jsonio.decode(call.arguments or "{}")) if call.form == "json" else call.arguments.encode()
    except jsonio.JsonError:
        return call.arguments.encode("utf-8", "surrogatepass")


def alike(conversation: Conversation) -> Conversation:
    """The conversation with every spelling settled, so that `==` asks whether two say the same."""
    messages = tuple(
        structs.replace(message, blocks=tuple(map(_alike_block, message.blocks))) for message in conversation.messages
    )
    return structs.replace(conversation, messages=messages, tokens=None)


def _alike_block(block: Block) -> Block:
    if not isinstance(block, ToolCall):
        return block
    return structs.replace(block, arguments=arguments_value(block).decode("utf-8", "surrogatepass"))


def summary(reply: Reply) -> Summary:
    """What must never be lost: text, reasoning, and every call, for each choice."""
    return tuple(
        (
            _joined(block.text for block in choice.blocks if isinstance(block, Text)),
            _joined(block.text for block in choice.blocks if isinstance(block, Reasoning)),
            tuple((call.id, call.name, arguments_value(call)) for call in choice.blocks if isinstance(call, ToolCall)),
        )
        for choice in reply.choices
    )


def _joined(pieces: Iterable[str]) -> str:
    return "".join(pieces)
