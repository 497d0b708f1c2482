"""GiveSchemas: a tool whose client gave no schema is sent with an empty one, where the target wants one."""

from __future__ import annotations

from msgspec import structs

from dragoman.model.blocks import Opaque, Where
from dragoman.model.conversation import Conversation, ToolSpec
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes


class GiveSchemas(Filter):
    """Readers give such a tool the schema of no parameters and mark its place as bare."""

    name = "give_schemas"
    concerns: Features = frozenset({"bare_tools"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if not any(tool.at.bare for tool in conversation.tools):
            return conversation, None
        tools = tuple([_with_schema(tool, notes) for tool in conversation.tools])
        return structs.replace(conversation, tools=tools), None


def _with_schema(tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
    if not tool.at.bare or isinstance(tool, Opaque):
        return tool
    notes.added("tools.schema", tool.at.path, f"the tool {tool.name} has no schema; one without properties is sent")
    return structs.replace(tool, at=Where(tool.at.path))
