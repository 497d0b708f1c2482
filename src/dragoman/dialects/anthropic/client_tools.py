"""Tools of a type of their own that the client runs: those whose schema Claude knows, and other dialects' shapes.

For other families each is a function. Calls and results have the ordinary form, so nothing else changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.model.blocks import ClientTool
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


# By the beginning of the tool's type, which ends with its date.
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
    """Return the function that a tool of this type is for other families; nothing if the service runs it."""
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
    """A function in the shape of Chat Completions, or flat as Responses has it."""
    inner = data.get("function")
    given = inner if isinstance(inner, dict) else data
    name, description, schema = given.get("name"), given.get("description"), given.get("parameters")
    if not isinstance(name, str) or not name:
        return ()
    text = description if isinstance(description, str) else ""
    return (ClientTool(name, text, schema if isinstance(schema, dict) else _object({})),)
