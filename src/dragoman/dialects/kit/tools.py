"""Tools and calls, where services that are otherwise different demand the same."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import structs

from dragoman.errors import DragomanError, Unrepresentable
from dragoman.model.blocks import Opaque, ToolCall
from dragoman.model.conversation import Conversation, ToolChoice, ToolSpec
from dragoman.model.filter import Facts, Features, Filter, MakeBack, Notes
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


def render_arguments(call: ToolCall, blame: type[DragomanError] = Unrepresentable) -> Json:
    """Return a call's arguments as an object. Raises `blame` for arguments that are none."""
    if not call.arguments and call.form == "json":
        return {}
    value = jsonio.object_of(call.arguments) if call.form == "json" else None
    if value is None:
        raise blame(f"the arguments of {call.name} are no JSON object", at=call.at.path)
    return value


def tool_body(tool: ToolSpec) -> dict[str, Json]:
    """Return name and description of a tool with a schema. Raises Unrepresentable for any other tool."""
    if tool.schema is None:
        raise Unrepresentable(f"the tool {tool.name} takes free text, which has no place here", at=tool.at.path)
    if tool.waits_for:
        raise Unrepresentable(f"the tool {tool.name} cannot be held back here", at=tool.at.path)
    return {"name": tool.name, "description": tool.description} if tool.description else {"name": tool.name}


CLAUDE_MODES = {"auto": "auto", "any": "any", "none": "none", "tool": "one"}
_CLAUDE_CHOICES = {mode: name for name, mode in CLAUDE_MODES.items()}


def render_claude_choice(choice: ToolChoice) -> dict[str, Json]:
    """Return a tool choice in Claude's words."""
    body: dict[str, Json] = {"type": _CLAUDE_CHOICES[choice.mode]}
    if choice.names:
        body["name"] = choice.names[0]
    if choice.parallel is not None:
        body["disable_parallel_tool_use"] = not choice.parallel
    return body


def with_object_schema(tool: ToolSpec | Opaque, rule: str, notes: Notes) -> ToolSpec | Opaque:
    """Return the tool with parameters that are an object; `rule` notes the change."""
    if isinstance(tool, Opaque) or tool.schema is None or tool.schema.get("type") == "object":
        return tool
    schema = _object_schema(tool.schema)
    lost = tool.schema.keys() - schema.keys()
    detail = f"the parameters of {tool.name} are said to be an object"
    notes.add(rule, "dropped" if lost else "changed", tool.at.path, detail)
    return structs.replace(tool, schema=schema)


def _object_schema(schema: Mapping[str, Json]) -> dict[str, Json]:
    declared = schema.get("type")
    if declared is None or (isinstance(declared, list) and "object" in declared):
        return {**schema, "type": "object"}
    return {"type": "object", "properties": {}}


class NameOutput(Filter):
    """A filter: an output schema gets a name, of the letters that tools have. `at` is the field that holds it."""

    concerns: Features = frozenset({"output"})

    def __init__(self, name: str, at: str) -> None:
        self.name = name
        self._at = at

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        output = conversation.output
        if output.kind != "schema" or _NAME.fullmatch(output.name):
            return conversation, None
        name = _FOREIGN.sub("_", output.name)[:64] or "answer"
        detail = f"an output schema needs a name of letters, digits, _ and -: it is called {name}"
        notes.add(self.name, "changed" if output.name else "added", self._at, detail)
        return structs.replace(conversation, output=structs.replace(output, name=name)), None
