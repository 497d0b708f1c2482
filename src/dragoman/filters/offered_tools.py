"""The tool list for a family that offers every tool from the start: which tools, and in which order.

The order never changes when the conversation grows, since tools stand before the messages in every prompt cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct, structs

from dragoman.errors import Unrepresentable
from dragoman.model.blocks import ClientTool, Opaque, ShownTool, ToolCall, ToolChange, ToolResult
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.notes import Notes

PLACEHOLDER = "DeferredToolPlaceholder"  # Claude Code declares it so that `tools` holds a deferred tool
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SEARCH = frozenset({"search", "find", "discover"})
_TOOL = frozenset({"tool", "tools"})


class Mentions(Struct, frozen=True):
    """Tools that the history names: `order` by first mention; `shown` are those that a block shows or adds."""

    order: Mapping[str, int]
    shown: frozenset[str]


def mentioned(messages: Iterable[Message]) -> Mentions:
    order: dict[str, int] = {}
    shown: set[str] = set()
    for message in messages:
        for name, is_shown in _names(message.blocks):
            order.setdefault(name, len(order))
            if is_shown:
                shown.add(name)
    return Mentions(order, frozenset(shown))


def _names(blocks: Iterable[object]) -> Iterable[tuple[str, bool]]:
    for block in blocks:
        match block:
            case ToolCall(name=name):
                yield name, False
            case ShownTool(name) | ToolChange(name):
                yield name, True
            case ToolResult(content=parts):
                yield from _names(parts)
            case Opaque(means=means):
                yield from _names(means)
            case _:
                pass


def offered_tools(conversation: Conversation, known: Mentions | None, notes: Notes) -> tuple[ToolSpec | Opaque, ...]:
    """The tools to send; `known` is what the history mentions, where it was looked through already.

    A tool that is held back is left out only if the client runs a search that can find it and nothing names it yet.
    """
    tools = _declared(conversation.tools)
    held_back = [tool for tool in tools if isinstance(tool, ToolSpec) and tool.offered != "always"]
    if not held_back:
        return tools
    mentions = known or mentioned(conversation.messages)
    chosen = frozenset(conversation.tool_choice.names)
    search = _search(tools)
    waiting = {
        tool.name
        for tool in held_back
        if tool.name not in mentions.order and tool.name not in chosen and tool.name != PLACEHOLDER
    }
    # Without a search tool that we know, a client that declares a tool only once it is found has none waiting.
    moves = search == "client" or (
        not search and not waiting and any(tool.name in mentions.shown for tool in held_back)
    )
    places: list[tuple[int, int]] = []
    kept: list[ToolSpec | Opaque] = []
    sent: ToolSpec | Opaque
    for tool in tools:
        if not isinstance(tool, ToolSpec) or tool.offered == "always":
            place, sent = (0, 0), tool
        elif _is_left_out(tool, search == "client" and tool.name in waiting, chosen, notes):
            continue
        else:
            place = (0, 0) if not moves else (1, 0) if tool.name in chosen else (2, mentions.order.get(tool.name, 0))
            sent = _loaded(tool, notes)
        places.append(place)
        kept.append(sent)
    return tuple(kept[at] for at in sorted(range(len(kept)), key=places.__getitem__))


def _declared(tools: tuple[ToolSpec | Opaque, ...]) -> tuple[ToolSpec | Opaque, ...]:
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
                declared.append(ToolSpec(meaning.name, meaning.description, meaning.schema, at=tool.at))
    return tuple(declared)


def _search(tools: Sequence[ToolSpec | Opaque]) -> Literal["", "client", "server"]:
    """Who runs the search for tools that the model is offered: nobody, the client, or a server that is not there.

    This looks at the declared tools alone: were it to depend on the history, a longer one would change the tool list.
    """
    if any(isinstance(tool, Opaque) and _searches_tools(tool.kind) for tool in tools):
        return "server"
    specs = [tool for tool in tools if isinstance(tool, ToolSpec) and tool.offered == "always"]
    return "client" if any(_searches_tools(tool.name) for tool in specs) else ""


def _searches_tools(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    pairs = [{one, other} for one, other in pairwise(words)]
    return any(pair & _SEARCH and pair & _TOOL for pair in pairs)


def _is_left_out(tool: ToolSpec, waits: bool, chosen: frozenset[str], notes: Notes) -> bool:
    if tool.name == PLACEHOLDER and tool.offered == "found" and tool.name not in chosen:
        notes.changed("tools.placeholder", tool.at.path, "a placeholder for deferred tools, which nobody may call")
        return True
    if waits:
        notes.changed("tools.deferred", tool.at.path, f"{tool.name} is not sent until the client's search finds it")
    return waits


def _loaded(tool: ToolSpec, notes: Notes) -> ToolSpec:
    if tool.offered == "found":
        notes.changed("tools.deferred", tool.at.path, f"{tool.name} is sent loaded: the target has no deferred tools")
    return structs.replace(tool, offered="always")
