"""Translate a tool search that the service runs between the families that have one.

The client declares the search and defers tools (`defer_loading`); the service searches them, and its reply contains the
search and what it found. Both families have a tool and two blocks for that. A block without data is written by the
codec from its effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec import Struct, structs

from dragoman.model import events as ev
from dragoman.model.blocks import Block, FoundTools, Opaque, ToolSearch
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.filter import (
    BLOCK_STARTS,
    EventKinds,
    Facts,
    Features,
    Filter,
    MakeResponseFilter,
    Notes,
    ResponseFilter,
)

_TO_TARGET = "a tool search of the service is written in the form of the target"
_TO_CLIENT = "a tool search of the service is written in the form of the client"


def search_of(node: Block | ToolSpec) -> ToolSearch | FoundTools | None:
    """Return the tool search of the service that a tool declares, or that a block is a part of."""
    effects = node.effects if isinstance(node, Opaque) else ()
    return next((effect for effect in effects if isinstance(effect, ToolSearch | FoundTools)), None)


def is_carried(node: Block | ToolSpec, target: Capabilities) -> bool:
    """Return whether the node belongs to a tool search of the service that the target has, too."""
    return "tool_search" in target.traits and search_of(node) is not None


def has_search(tools: Iterable[ToolSpec | Opaque], target: Capabilities) -> bool:
    """Return whether the tools declare a search that the target runs."""
    return any(is_carried(tool, target) for tool in tools)


def found_names(messages: Iterable[Message]) -> set[str]:
    """Return the names of all tools that searches of the service have found."""
    effects = [search_of(block) for message in messages for block in message.blocks]
    return {name for effect in effects if isinstance(effect, FoundTools) for name in effect.names}


class _Searches:
    """Writes the searches of one conversation for a family. A result without an id belongs to the search before it."""

    def __init__(self, family: str) -> None:
        self._family = family
        self._last = ""
        self._count = 0

    def translate(self, block: Opaque, effect: ToolSearch | FoundTools) -> Opaque:
        if isinstance(effect, ToolSearch):
            self._count += 1
            self._last = effect.id or f"search_{self._count}"
        own = structs.replace(effect, id=effect.id or self._last)
        return structs.replace(block, family=self._family, data={}, effects=(own,), extra=None)


class TranslateToolSearch(Filter):
    """Write a tool search of the service in the form of the target, and that of a reply in the form of the client."""

    name = "translate_tool_search"
    applies_to: Features = frozenset({"opaque", "opaque_tools"})

    def __init__(self, client_family: str, upstream: Capabilities, upstream_family: str) -> None:
        self._client_family = client_family
        self._target = upstream
        self._family = upstream_family

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        searches = _Searches(self._family)

        def translate(block: Opaque) -> Opaque:
            effect = search_of(block)
            if effect is None or block.family == self._family:
                return block
            notes.changed("tools.search", block.at.path, _TO_TARGET)
            return searches.translate(block, effect)

        messages: list[Message] = []
        for message in conversation.messages:
            blocks = tuple(translate(block) if isinstance(block, Opaque) else block for block in message.blocks)
            messages.append(message if blocks == message.blocks else structs.replace(message, blocks=blocks))
        tools = tuple(tool if isinstance(tool, ToolSpec) else translate(tool) for tool in conversation.tools)
        maker = partial(_ReplySearches, self._client_family) if has_search(tools, self._target) else None
        changed = structs.replace(conversation, messages=tuple(messages), tools=tools)
        return (conversation if changed == conversation else changed), maker


class _ReplySearches(Struct, ResponseFilter, eq=False):
    """Writes the searches of a reply in the form of the client."""

    _family: str
    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = BLOCK_STARTS
    _searches: _Searches | None = None

    def take(self, event: ev.Event) -> ev.Events:
        if not isinstance(event, ev.BlockStarted) or not isinstance(event.block, Opaque):
            return (event,)
        effect = search_of(event.block)
        if effect is None or event.block.family == self._family:
            return (event,)
        self._searches = self._searches or _Searches(self._family)
        self._notes.changed("tools.search", "", _TO_CLIENT)
        return (structs.replace(event, block=self._searches.translate(event.block, effect), wire_index=None),)
