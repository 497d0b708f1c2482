"""The tool list for a family that offers every tool from the start: which tools, and in which order.

The order never changes when the conversation grows, since tools stand before the messages in every prompt cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from msgspec import structs

from dragoman.errors import Unrepresentable
from dragoman.model.blocks import ClientTool, DefinedTool, Opaque, ShownTool, ToolCall, ToolChange, ToolResult
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.notes import Notes

PLACEHOLDER = "DeferredToolPlaceholder"  # Claude Code declares it so that `tools` holds a deferred tool
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SEARCH = frozenset({"search", "find", "discover"})
_TOOL = frozenset({"tool", "tools"})


class Mentions:
    """Where the history first names a tool (`named`), defines it (`defined`), and which tools it shows (`shown`)."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self.named: dict[str, int] = {}
        self.defined: dict[str, int] = {}
        self.shown: set[str] = set()
        self._count = 0
        for message in messages:
            self._read(message.blocks)

    def place(self, tool: ToolSpec) -> int:
        """Where the model is first told of a tool that it is not told of from the start."""
        places = self.defined if tool.waits_for == "block" else self.named
        return places.get(tool.name, 0)

    def _read(self, nodes: Iterable[object]) -> None:
        for node in nodes:
            match node:
                case DefinedTool(name):
                    self._note(self.defined, name)
                    self._note(self.named, name)
                case ToolCall(name=name):
                    self._note(self.named, name)
                case ShownTool(name) | ToolChange(name):
                    self._note(self.named, name)
                    self.shown.add(name)
                case ToolResult(content=parts):
                    self._read(parts)
                case Opaque(means=means):
                    self._read(means)
                case _:
                    pass

    def _note(self, places: dict[str, int], name: str) -> None:
        self._count += 1
        places.setdefault(name, self._count)


def offered_tools(conversation: Conversation, notes: Notes) -> tuple[ToolSpec | Opaque, ...]:
    """The tools to send, in their order.

    A tool that is held back is left out only if the client runs a search that can find it and nothing names it yet.
    """
    tools = _once_each(_declared(conversation.tools, notes), notes)
    held_back = [tool for tool in tools if isinstance(tool, ToolSpec) and tool.waits_for]
    if not held_back:
        return tools
    mentions = Mentions(conversation.messages)
    chosen = frozenset(conversation.tool_choice.names)
    search = _search(tools)
    known = mentions.named.keys() | chosen | {PLACEHOLDER}
    waiting = {tool.name for tool in held_back if tool.waits_for == "search" and tool.name not in known}
    # Without a search tool that we know, a client that declares a tool only once it is found has none waiting.
    moves = search == "client" or (
        not search and not waiting and any(tool.name in mentions.shown for tool in held_back)
    )
    places: list[tuple[int, int]] = []
    kept: list[ToolSpec | Opaque] = []
    sent: ToolSpec | Opaque
    for tool in tools:
        if not isinstance(tool, ToolSpec) or not tool.waits_for:
            place, sent = (0, 0), tool
        elif _is_left_out(tool, search == "client" and tool.name in waiting, chosen, notes):
            continue
        else:
            is_chosen = tool.waits_for == "search" and tool.name in chosen
            place = (0, 0) if not moves else (1, 0) if is_chosen else (2, mentions.place(tool))
            sent = _loaded(tool, notes)
        places.append(place)
        kept.append(sent)
    return tuple(kept[at] for at in sorted(range(len(kept)), key=places.__getitem__))


def _declared(tools: tuple[ToolSpec | Opaque, ...], notes: Notes) -> tuple[ToolSpec | Opaque, ...]:
    """The tools, those of a family's own shape that the client runs as functions, without what says others again."""
    if not any(isinstance(tool, Opaque) and (tool.means or tool.echo) for tool in tools):
        return tools
    names = {tool.name for tool in tools if isinstance(tool, ToolSpec)}
    declared: list[ToolSpec | Opaque] = []
    for tool in tools:
        if isinstance(tool, ToolSpec) or not (tool.means or tool.echo):
            declared.append(tool)
        for meaning in tool.means if isinstance(tool, Opaque) else ():
            if isinstance(meaning, ClientTool):
                if meaning.name in names:
                    raise Unrepresentable(f"another tool is called {meaning.name}, too", at=tool.at.path)
                detail = f"the client runs {meaning.name}; it is offered as a function"
                notes.changed("tools.as_function", tool.at.path, detail)
                declared.append(ToolSpec(meaning.name, meaning.description, meaning.schema, tool.cache, at=tool.at))
    return tuple(declared)


def _once_each(tools: tuple[ToolSpec | Opaque, ...], notes: Notes) -> tuple[ToolSpec | Opaque, ...]:
    """The tools, each defined once: as the tool list does; else as the last block that defines it, at its first place.

    The tool list is what the client says now; blocks say what it said at the time.
    """
    if not any(isinstance(tool, ToolSpec) and tool.waits_for == "block" for tool in tools):
        return tools
    kept: list[ToolSpec | Opaque] = []
    places: dict[str, int] = {}
    for tool in tools:
        if not isinstance(tool, ToolSpec) or tool.waits_for != "block" or tool.name not in places:
            if isinstance(tool, ToolSpec):
                places.setdefault(tool.name, len(kept))
            kept.append(tool)
            continue
        first = kept[places[tool.name]]
        which = "the one among the tools counts"
        if isinstance(first, ToolSpec) and first.waits_for == "block":
            kept[places[tool.name]], which = tool, "the last one counts"
        notes.changed("tools.redefined", tool.at.path, f"{tool.name} is defined more than once; {which}")
    return tuple(kept)


def _search(tools: Sequence[ToolSpec | Opaque]) -> Literal["", "client", "server"]:
    """Who runs the search for tools that the model is offered: no one, the client, or a server that is not there.

    This looks at the declared tools alone: were it to depend on the history, a longer one would change the tool list.
    """
    if any(isinstance(tool, Opaque) and _searches_tools(tool.kind) for tool in tools):
        return "server"
    specs = [tool for tool in tools if isinstance(tool, ToolSpec) and not tool.waits_for]
    return "client" if any(_searches_tools(tool.name) for tool in specs) else ""


def _searches_tools(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    pairs = [{one, other} for one, other in pairwise(words)]
    return any(pair & _SEARCH and pair & _TOOL for pair in pairs)


def _is_left_out(tool: ToolSpec, waits: bool, chosen: frozenset[str], notes: Notes) -> bool:
    if tool.name == PLACEHOLDER and tool.waits_for == "search" and tool.name not in chosen:
        notes.changed("tools.placeholder", tool.at.path, "a placeholder for deferred tools, which no model may call")
        return True
    if waits:
        notes.changed("tools.deferred", tool.at.path, f"{tool.name} is not sent until the client's search finds it")
    return waits


def _loaded(tool: ToolSpec, notes: Notes) -> ToolSpec:
    if tool.waits_for == "search":
        notes.changed("tools.deferred", tool.at.path, f"{tool.name} is sent loaded: the target has no deferred tools")
    return structs.replace(tool, waits_for="")
