"""What the filters of one plan ask about the messages of a conversation, found once for all of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from msgspec import Struct

from dragoman.model.blocks import Block, Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message

_COMMON: frozenset[type[Block]] = frozenset({Text, ToolCall, ToolResult})


class Inventory(Struct, frozen=True, gc=False):
    """Blocks by their kind: a filter for one kind of thing need not look through all messages, and most of them find
    that there is nothing to do."""

    kinds: frozenset[type[Block]]
    texts: list[Text]
    calls: list[ToolCall]
    results: list[ToolResult]
    thoughts: list[Reasoning]
    others: list[Media | Opaque]
    parts: list[Text | Media | Opaque]  # what the results hold
    words: list[str]  # all texts, in results, too

    @property
    def media(self) -> list[Media]:
        """In results, too."""
        return [node for node in (*self.others, *self.parts) if type(node) is Media]

    @property
    def marked(self) -> list[Text | ToolCall | ToolResult | Media | Opaque]:
        """All that carries a cache mark, in results, too."""
        nodes = (*self.texts, *self.calls, *self.results, *self.parts, *self.others)
        return [node for node in nodes if node.cache]


def inventory(messages: tuple[Message, ...]) -> Inventory:
    """Look through messages."""
    found: defaultdict[type[Block], list[Any]] = defaultdict(list)
    for message in messages:
        for block in message.blocks:
            found[type(block)].append(block)
    kinds = frozenset(found)
    parts = [part for result in found[ToolResult] for part in result.content]
    others = found[Media] + found[Opaque]
    words = [text.text for text in found[Text]] + [part.text for part in parts if type(part) is Text]
    return Inventory(kinds, found[Text], found[ToolCall], found[ToolResult], found[Reasoning], others, parts, words)


class Facts:
    """Answers about the conversation of a plan. An answer holds until a filter changes the messages."""

    __slots__ = ("_inventory", "_messages", "_plain")

    def __init__(self) -> None:
        self._messages: tuple[Message, ...] | None = None
        self._inventory: Inventory | None = None
        self._plain: bool | None = None

    def inventory(self, conversation: Conversation) -> Inventory:
        """What its messages hold."""
        if self._inventory is None or conversation.messages is not self._messages:
            self._messages, self._plain = conversation.messages, None
            self._inventory = inventory(conversation.messages)
        return self._inventory

    def plain(self, conversation: Conversation) -> bool:
        """Whether its messages are texts, calls and results that say no more than that: nothing of one family's own."""
        held = self.inventory(conversation)
        if self._plain is None:
            self._plain = are_plain(conversation.messages, held)
        return self._plain


def are_plain(messages: tuple[Message, ...], held: Inventory) -> bool:
    texts = held.texts + [part for part in held.parts if type(part) is Text]
    if not held.kinds <= _COMMON or len(texts) < len(held.texts) + len(held.parts):
        return False
    nodes = (*messages, *held.calls, *held.results, *texts)
    foreign = [node for node in nodes if node.extra] or [call for call in held.calls if call.seal]
    return not (foreign or [text for text in texts if text.seal or text.citations])
