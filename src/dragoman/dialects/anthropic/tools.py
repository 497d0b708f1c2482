"""Blocks and tools that only Anthropic's API has, described by their effect, for targets of other families. Pure.

Tools with a type that the client runs: those whose schema Claude knows (`bash_20250124`), and those in the form of
another dialect. Other families get each as a function; calls and results have the ordinary form, so they do not
change. Blocks that show or change tools, or compact the history, have effects that filters apply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from dragoman.dialects.anthropic.web_search import (
    RESULT,
    declared_web_search,
    is_our_search,
    render_web_search,
    web_search_effects,
)
from dragoman.model.blocks import (
    Block,
    ClientTool,
    DefinedTool,
    Effect,
    FoundTools,
    Opaque,
    ShownTool,
    Summary,
    ToolChange,
    ToolSearch,
    Untranslatable,
    WebSearch,
)
from dragoman.model.conversation import ServerState
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_STRING: Json = {"type": "string"}
_INTEGER: Json = {"type": "integer"}
_POINT: Json = {"type": "array", "items": _INTEGER, "description": "x and y"}
_EDITS: dict[str, Json] = {
    "path": _STRING,
    "view_range": {"type": "array", "items": _INTEGER, "description": "first and last line, for view"},
    "file_text": {"type": "string", "description": "the whole content, for create"},
    "old_str": {"type": "string", "description": "the text to replace, for str_replace"},
    "new_str": {"type": "string", "description": "the text in its place, for str_replace"},
    "insert_line": {"type": "integer", "description": "the line after which to insert, for insert"},
    "insert_text": {"type": "string", "description": "the text to insert, for insert"},
}


def _command(*names: str) -> Json:
    return {"type": "string", "enum": [*names]}


def _object(properties: dict[str, Json], *required: str) -> dict[str, Json]:
    schema: dict[str, Json] = {"type": "object", "properties": properties}
    return {**schema, "required": [*required]} if required else schema


# By the start of the tool's type; the rest of the type is a date.
_KNOWN: Mapping[str, tuple[str, dict[str, Json]]] = {
    "bash_": (
        "Run a command in a bash shell that stays open between calls.",
        _object({"command": _STRING, "restart": {"type": "boolean", "description": "start the shell anew"}}),
    ),
    "text_editor_": (
        "View, create and edit text files.",
        _object({"command": _command("view", "create", "str_replace", "insert"), **_EDITS}, "command", "path"),
    ),
    "memory_": (
        "View, create and edit the files of the memory directory, /memories.",
        _object(
            {
                "command": _command("view", "create", "str_replace", "insert", "delete", "rename"),
                **_EDITS,
                "old_path": {"type": "string", "description": "for rename"},
                "new_path": {"type": "string", "description": "for rename"},
            },
            "command",
        ),
    ),
    "computer_": (
        "Use the screen, the mouse and the keyboard of a computer.",
        _object(
            {
                "action": {"type": "string", "description": "such as screenshot, left_click, type, key, scroll, wait"},
                "coordinate": _POINT,
                "start_coordinate": _POINT,
                "text": {"type": "string", "description": "what to type, or the keys to press"},
                "scroll_direction": _command("up", "down", "left", "right"),
                "scroll_amount": _INTEGER,
                "duration": {"type": "number", "description": "seconds"},
            },
            "action",
        ),
    ),
}


def client_tool(kind: str, data: Mapping[str, Json]) -> tuple[ClientTool, ...]:
    """Return the function that replaces a tool of this type for other families; empty if the service runs the tool."""
    if kind == "function":
        return _function(data)
    name = data.get("name")
    known = next((each for start, each in _KNOWN.items() if kind.startswith(start)), None)
    if known is None or not isinstance(name, str) or not name:
        return ()
    description, schema = known
    width, height = data.get("display_width_px"), data.get("display_height_px")
    size = f" The screen is {width} by {height} pixels." if width and height else ""
    return (ClientTool(name, description + size, schema),)


def _function(data: Mapping[str, Json]) -> tuple[ClientTool, ...]:
    """Return a function in the form of Chat Completions or Responses as a client tool."""
    inner = data.get("function")
    function = inner if isinstance(inner, dict) else data
    name, description, schema = function.get("name"), function.get("description"), function.get("parameters")
    if not isinstance(name, str) or not name:
        return ()
    text = description if isinstance(description, str) else ""
    return (ClientTool(name, text, schema if isinstance(schema, dict) else _object({})),)


# --- Blocks of this dialect with an effect: they show or change tools, or compact the history


_SEARCH_TOOL = "tool_search_tool_"  # the start of the type and of the name of a tool search
_SEARCH_CALL, _SEARCH_RESULT = "server_tool_use", "tool_search_tool_result"
_SERVER_ID = "srvtoolu_"
_CLAUDE = re.compile(r"claude-[a-z]+-(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
ADDITION, COMPACTION = "tool_addition", "compaction"
_NO_COMPACTION = "the target cannot compact a conversation; leave this out, or send a summary as text"
_ENCRYPTED_HISTORY = "the history is compacted into encrypted_content, which only the service that wrote it can read"


def meaning_of(kind: str, data: Mapping[str, Json]) -> tuple[Effect, ...]:
    """Return the effects of a block on tools or history; most blocks have none."""
    read = _READERS.get(kind)
    return tuple(read(data)) if read else web_search_effects(kind, data)


def is_no_op(kind: str, data: Mapping[str, Json]) -> bool:
    """Return whether the block is a failed compaction, which the service ignores."""
    return kind == COMPACTION and not data.get("content") and not data.get("encrypted_content")


def find_definitions(blocks: Iterable[Block]) -> Iterator[tuple[dict[str, Json], str]]:
    """Yield the tools that blocks of messages define, each with its place in the request."""
    for block in blocks:
        if isinstance(block, Opaque) and block.effects and isinstance(block.data, dict):
            for change, at in _changes(block.kind, block.data, block.at.path):
                tool = change.get("tool")
                definition = tool.get("definition") if isinstance(tool, dict) else None
                if isinstance(definition, dict):
                    yield definition, f"{at}.tool.definition"


def _changes(kind: str, data: Mapping[str, Json], at: str) -> Iterator[tuple[Mapping[str, Json], str]]:
    if kind == ADDITION:
        yield data, at
    changes = data.get("tool_changes") if kind == COMPACTION else None
    for index, change in enumerate(changes if isinstance(changes, list) else ()):
        if isinstance(change, dict):
            yield change, f"{at}.tool_changes[{index}]"


def find_compaction(body: Mapping[str, Json]) -> Iterator[ServerState]:
    """Yield the fields that request a compaction of the conversation."""
    if body.get(COMPACTION) is not None:
        yield ServerState(COMPACTION, COMPACTION, _NO_COMPACTION)
    management = body.get("context_management")
    edits = management.get("edits") if isinstance(management, dict) else None
    for index, edit in enumerate(edits if isinstance(edits, list) else ()):
        kind = edit.get("type") if isinstance(edit, dict) else None
        if isinstance(kind, str) and kind.startswith("compact"):
            yield ServerState(COMPACTION, f"context_management.edits[{index}]", _NO_COMPACTION)


def _reference(data: Mapping[str, Json]) -> Iterator[Effect]:
    name = data.get("tool_name")
    if isinstance(name, str) and name:
        yield ShownTool(name)


def _found_tools(data: Mapping[str, Json]) -> Iterator[Effect]:
    content = data.get("content")
    references = content.get("tool_references") if isinstance(content, dict) else None
    shown = [each for each in references if isinstance(each, dict)] if isinstance(references, list) else []
    found = [effect for each in shown for effect in _reference(each)]
    search = data.get("tool_use_id")
    names = tuple(effect.name for effect in found if isinstance(effect, ShownTool))
    yield FoundTools(search if isinstance(search, str) else "", names)
    yield from found


def _search(data: Mapping[str, Json]) -> Iterator[Effect]:
    name, search, arguments = data.get("name"), data.get("id"), data.get("input")
    if isinstance(name, str) and name.startswith(_SEARCH_TOOL):
        yield ToolSearch(search if isinstance(search, str) else "", arguments if isinstance(arguments, dict) else {})
    else:
        yield from web_search_effects(_SEARCH_CALL, data)


def searches_tools(model: str) -> bool:
    """Return whether the service searches deferred tools for this model: Claude 4.5 and later."""
    found = _CLAUDE.search(model)
    return found is not None and (int(found[1]), int(found[2] or 0)) >= (4, 5)


def declared_search(kind: str, data: Mapping[str, Json]) -> tuple[ToolSearch | WebSearch, ...]:
    """Return the effect of a tool of this type: a search of tools or of the web that the service runs, or none."""
    return (ToolSearch(),) if kind.startswith(_SEARCH_TOOL) else declared_web_search(kind, data)


def search_effects(kind: str, data: Mapping[str, Json]) -> tuple[Effect, ...]:
    """Return the effects of a block of a reply that is a part of a search; most blocks have none."""
    return meaning_of(kind, data) if kind in (_SEARCH_CALL, _SEARCH_RESULT, RESULT) else ()


def is_written_here(kind: str, data: Mapping[str, Json]) -> bool:
    """Return whether the block is of a search that Anthropic's service did not make: its effects say all of it."""
    return kind in (_SEARCH_CALL, RESULT) and is_our_search(data)


def render_search(effect: Effect, *, is_tool: bool = False) -> dict[str, Json]:
    """Write the tool that searches, or a block of a search, from its effect."""
    match effect:
        case ToolSearch() if is_tool:
            return {"type": f"{_SEARCH_TOOL}bm25_20251119", "name": f"{_SEARCH_TOOL}bm25"}
        case ToolSearch(search, arguments):
            query: Json = arguments.get("query", arguments.get("pattern"))
            if not isinstance(query, str):
                query = jsonio.encode_to_text({**arguments})
            name = f"{_SEARCH_TOOL}bm25"
            return {"type": _SEARCH_CALL, "id": _search_id(search), "name": name, "input": {"query": query}}
        case FoundTools(search, names):
            references: list[Json] = [{"type": "tool_reference", "tool_name": name} for name in names]
            content: Json = {"type": "tool_search_tool_search_result", "tool_references": references}
            return {"type": _SEARCH_RESULT, "tool_use_id": _search_id(search), "content": content}
        case _:
            return render_web_search(effect, is_tool=is_tool)


def _search_id(search: str) -> str:
    return search if search.startswith(_SERVER_ID) else _SERVER_ID + re.sub(r"[^A-Za-z0-9_]", "_", search)


def _change(data: Mapping[str, Json]) -> Iterator[Effect]:
    tool = data.get("tool")
    named = tool if isinstance(tool, dict) else {}
    definition = named.get("definition")
    named = definition if isinstance(definition, dict) else named
    name = named.get("name") or named.get("server_name") or named.get("mcp_server_name")
    if isinstance(name, str) and isinstance(definition, dict):
        yield DefinedTool(name)
    if isinstance(name, str):
        yield ToolChange(name, data.get("type") != "tool_removal")


def _compaction(data: Mapping[str, Json]) -> Iterator[Effect]:
    content = data.get("content")
    if isinstance(content, str) and content:
        yield Summary(content)
    elif data.get("encrypted_content"):
        yield Untranslatable(_ENCRYPTED_HISTORY)
    for change, _ in _changes(COMPACTION, data, ""):
        yield from _change(change)


_READERS: dict[str, Callable[[Mapping[str, Json]], Iterator[Effect]]] = {
    "tool_reference": _reference,
    _SEARCH_CALL: _search,
    _SEARCH_RESULT: _found_tools,
    ADDITION: _change,
    "tool_removal": _change,
    COMPACTION: _compaction,
}
