"""Tools that items of the input declare, and the one name of each tool in all that speaks of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from dragoman.dialects.responses.nodes import FAMILY, JsonObject, extra_of, object_of, own_fields, text_of
from dragoman.dialects.responses.tools import ADDED, SEARCH, Declared, parse_tools, parted
from dragoman.model.blocks import Block, DefinedTool, Meaning, Opaque, ShownTool, Text, ToolCall, ToolResult, Where
from dragoman.model.conversation import Message, ToolSpec
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields

ADDING = "additional_tools"  # the items that declare tools
FOUND = "tool_search_output"
SEARCHING = "tool_search_call"
_NOTHING_FOUND = "No tool was found."


def with_added(tools: Sequence[ToolSpec | Opaque], messages: Iterable[Message]) -> tuple[ToolSpec | Opaque, ...]:
    """These tools, and those that items of the input bring: Codex's own model gets all of its tools so.

    What says the same of a tool again is left out.
    """
    known = {parted(tool.extra, tool.name): tool for tool in tools if isinstance(tool, ToolSpec)}
    added: list[ToolSpec | Opaque] = []
    for message in messages:
        for block in message.blocks:
            if isinstance(block, Opaque) and block.kind in (ADDING, FOUND) and block.family == FAMILY:
                added += _added(block, known)
    return (*tools, *added)


def _tools_in(item: Opaque) -> tuple[ToolSpec | Opaque, ...]:
    return parse_tools(Fields(item.data, item.at.path))


def _added(item: Opaque, known: dict[tuple[str, str], ToolSpec]) -> Iterator[ToolSpec | Opaque]:
    for tool in _tools_in(item):
        marked = structs.replace(tool, extra=extra_of({**own_fields(tool.extra), ADDED: True}))
        if isinstance(marked, Opaque):
            yield marked
            continue
        name = parted(tool.extra, marked.name)
        before = known.get(name)
        if before is None or not before.defines_the_same(marked):
            waits = item.kind == ADDING and marked.waits_for == "search" and before is None
            known[name] = marked if waits else structs.replace(marked, waits_for="block")
            yield known[name]


def name_tools(
    tools: Sequence[ToolSpec | Opaque], messages: Sequence[Message]
) -> tuple[tuple[ToolSpec | Opaque, ...], tuple[Message, ...]]:
    """The same with one name for each tool, in its definition, its calls and the items that bring it."""
    tools = _told_apart(tools)
    declared = Declared(tools)

    def block_of(block: Block) -> Block:
        if isinstance(block, ToolCall):
            return declared.called(block)
        if isinstance(block, Opaque) and block.family == FAMILY and block.kind in _MEANINGS:
            return structs.replace(block, means=_MEANINGS[block.kind](block, declared))
        return block

    turns: list[Message] = []
    for message in messages:
        blocks = tuple(map(block_of, message.blocks))
        turns.append(message if blocks == message.blocks else structs.replace(message, blocks=blocks))
    return tuple(tools), tuple(turns)


def _told_apart(tools: Sequence[ToolSpec | Opaque]) -> Sequence[ToolSpec | Opaque]:
    """The tools with a longer joint in each joined name that another tool has: `a__b` is not the `b` in `a`."""
    specs = [tool for tool in tools if isinstance(tool, ToolSpec)]
    wholes = {parted(tool.extra, tool.name): tool.name for tool in specs}
    if len(wholes) == len({tool.name for tool in specs}):
        return tools
    taken = {whole for (namespace, _), whole in wholes.items() if not namespace}
    for (namespace, name), whole in wholes.items():
        free = whole
        while namespace and free in taken:
            free = f"{free.removesuffix(name)}_{name}"
        taken.add(free)
        wholes[namespace, name] = free
    return [
        structs.replace(tool, name=wholes[parted(tool.extra, tool.name)]) if isinstance(tool, ToolSpec) else tool
        for tool in tools
    ]


# --- what the items mean


def _names(tools: Iterable[ToolSpec | Opaque], declared: Declared) -> list[str]:
    return [declared.whole(*parted(tool.extra, tool.name)) for tool in tools if isinstance(tool, ToolSpec)]


def _adding(item: Opaque, declared: Declared) -> tuple[Meaning, ...]:
    offered = [tool for tool in _tools_in(item) if isinstance(tool, ToolSpec) and tool.waits_for != "search"]
    return tuple(map(DefinedTool, _names(offered, declared)))


def _searching(item: Opaque, declared: Declared) -> tuple[Meaning, ...]:
    data = object_of(item.data)
    call_id = is_clients(data)
    if not call_id:
        return ()
    given = data.get("arguments")
    arguments = given if isinstance(given, str) else jsonio.text_of(given if given is not None else {})
    return (ToolCall(call_id, SEARCH, arguments, at=item.at),)


def _found(item: Opaque, declared: Declared) -> tuple[Meaning, ...]:
    data = object_of(item.data)
    call_id = is_clients(data)
    if not call_id:
        found = _names(_tools_in(item), declared)
        return (*map(DefinedTool, found), *map(ShownTool, found))
    parts: list[Text | Opaque] = []
    given = data.get("tools")
    for index, entry in enumerate(given if isinstance(given, list) else ()):
        at = f"{item.at.path}.tools[{index}]"
        names = _names(parse_tools(Fields({"tools": [entry]}, item.at.path)), declared)
        kind = text_of(object_of(entry).get("type")) or "tool"
        means: list[Meaning] = [*map(DefinedTool, names), *map(ShownTool, names)]
        parts.append(Opaque(FAMILY, entry, kind, means=tuple(means), at=Where(at)))
    return (ToolResult(call_id, tuple(parts) or (Text(_NOTHING_FOUND),), at=item.at),)


_MEANINGS = {ADDING: _adding, SEARCHING: _searching, FOUND: _found}


def is_clients(item: JsonObject) -> str:
    """The id of the call, if the client runs this search; "" if the service did."""
    return "" if item.get("execution") == "server" else text_of(item.get("call_id"))
