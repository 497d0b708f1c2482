"""Kimi's ids in a request: every call and its result, in order, as `functions.NAME:N` (facts/kimi.md, point 9).

Its templates print the id and nothing else of a call, so that with foreign ids the model does not know what it called.
The count runs over the whole conversation: stateless, and the same for the same turns.
"""

from __future__ import annotations

from collections import deque

from msgspec import structs

from dragoman.filters.raw_tools.names import canonical_id
from dragoman.model.blocks import Block, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message
from dragoman.model.filter import Notes


def number_calls(conversation: Conversation, notes: Notes) -> Conversation:
    """Give every call of the history its running number, and every result its call's."""
    numbering = _Numbering(notes)
    messages = tuple([numbering.message(message) for message in conversation.messages])
    return conversation if messages == conversation.messages else structs.replace(conversation, messages=messages)


class _Numbering:
    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._count = 0
        self._latest: dict[str, str] = {}
        self._open: dict[str, deque[str]] = {}  # of the last turn with calls: an id may stand there twice

    def message(self, message: Message) -> Message:
        if message.role == "assistant" and any(isinstance(block, ToolCall) for block in message.blocks):
            self._open = {}
        blocks = tuple([self._block(block) for block in message.blocks])
        return message if blocks == message.blocks else structs.replace(message, blocks=blocks)

    def _block(self, block: Block) -> Block:
        if isinstance(block, ToolCall):
            id_ = canonical_id(block.name, self._count)
            self._count += 1
            self._latest[block.id] = id_
            self._open.setdefault(block.id, deque()).append(id_)
            if id_ == block.id:
                return block
            self._notes.renamed("raw_tools.ids", block.at.path, f"the call {block.id!r} is sent as {id_!r}")
            return structs.replace(block, id=id_)
        if isinstance(block, ToolResult):
            waiting = self._open.get(block.call_id)
            id_ = waiting.popleft() if waiting else self._latest.get(block.call_id, block.call_id)
            return block if id_ == block.call_id else structs.replace(block, call_id=id_)
        return block
