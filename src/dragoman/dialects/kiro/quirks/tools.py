"""Tools as the service takes them: none it runs itself, each described, within limits, and all that history names."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from dragoman.dialects.kiro.nodes import called
from dragoman.dialects.kiro.quirks.schemas import ANNOTATIONS, clean
from dragoman.dialects.kiro.request import NO_PARAMETERS
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Opaque, Text
from dragoman.model.conversation import Conversation, ToolChoice, ToolSpec
from dragoman.model.filter import MakeBack
from dragoman.model.notes import Action, Notes

LONGEST_CHARACTERS = 9_216
LONGEST_BYTES = 10_240
STUB = "Used earlier in this conversation; not available now."


class GiveDescriptions:
    """A tool without a description is described by its name, as the client spells it (D13)."""

    name = "kiro.give_descriptions"
    before = "rename_tools"

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        tools = tuple([_given(tool, notes) if isinstance(tool, ToolSpec) else tool for tool in conversation.tools])
        return (conversation if len(notes) == before else structs.replace(conversation, tools=tools)), None


def _given(tool: ToolSpec, notes: Notes) -> ToolSpec:
    if tool.description.strip() or not tool.name.strip():
        return tool
    notes.added("kiro.tools.description", tool.at.path, f"{tool.name} has no description; its name is given")
    return structs.replace(tool, description=tool.name)


class DescribeTools:
    """Tools alone, each with a description that is not too long (rules 17, 18, 27)."""

    name = "kiro.describe_tools"
    before = "fold_system"

    def __init__(self, long_descriptions: str) -> None:
        self._tells = long_descriptions == "system"

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        tools: list[ToolSpec] = []
        told: list[Text] = []
        for tool in conversation.tools:
            if isinstance(tool, ToolSpec):
                tools.append(self._described(_given(tool, notes), told, notes))  # a blank name has an alias by now
            else:
                what = f"the service refuses a {tool.kind} among the tools"
                notes.dropped("kiro.tools.cache_point", tool.at.path, what)
        if len(notes) == before:
            return conversation, None
        system = (*conversation.system, *told)
        return structs.replace(conversation, tools=tuple(tools), system=system), None

    def _described(self, tool: ToolSpec, told: list[Text], notes: Notes) -> ToolSpec:
        words = tool.description
        short = _cut(words)
        if short == words:
            return tool
        where = "the whole stands in the system text" if self._tells else "the rest is left out"
        notes.add(
            "kiro.tools.description",
            "changed" if self._tells else "dropped",
            tool.at.path,
            f"the description of {tool.name} is cut to {len(short)} characters; {where}",
        )
        if self._tells:
            told.append(Text(f"The tool {tool.name}:\n{words}", at=tool.at))
        return structs.replace(tool, description=short)


def _cut(words: str) -> str:
    """At most so many characters and so many bytes, and never half a character."""
    short = words[:LONGEST_CHARACTERS]
    data = short.encode("utf-8", "surrogatepass")
    return short if len(data) <= LONGEST_BYTES else data[:LONGEST_BYTES].decode("utf-8", "ignore")


class FewTools:
    """No more tools than the service bears (rule 45): those that history or the choice name first, then in order."""

    name = "kiro.few_tools"
    before = "fold_system"

    def __init__(self, most: int) -> None:
        self._most = most

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        tools, known = conversation.tools, called(conversation)
        if conversation.tool_choice.mode == "none" and tools:
            return self._none(conversation, known, notes), None
        declared = {tool.name for tool in tools if isinstance(tool, ToolSpec)}
        if len(declared.union(known)) <= self._most:
            return conversation, None
        if len(known) > self._most:
            raise Unrepresentable(f"history calls {len(known)} tools; the service takes {self._most}", at="tools")
        room = self._most - len(known)
        wanted = set(known).union(conversation.tool_choice.names[:room])
        others = [tool for tool in tools if isinstance(tool, ToolSpec) and tool.name not in wanted]
        kept = wanted.union(tool.name for tool in others[: max(self._most - len(wanted), 0)])
        left = [tool.name for tool in others if tool.name not in kept]
        notes.dropped(
            "kiro.tools.too_many", "tools", f"{len(left)} of {len(tools)} tools are left out: {', '.join(left)}"
        )
        line = Text(f"{len(left)} more tools exist but cannot be called in this conversation.")
        return structs.replace(
            conversation,
            tools=tuple([tool for tool in tools if isinstance(tool, ToolSpec) and tool.name in kept]),
            system=(*conversation.system, line),
        ), None

    def _none(self, conversation: Conversation, known: list[str], notes: Notes) -> Conversation:
        """That no tool be called cannot be said; not offering any comes nearest. Those of history must stay."""
        tools = tuple([tool for tool in conversation.tools if getattr(tool, "name", "") in known])
        notes.add(
            "kiro.tools.none",
            "dropped" if tools else "changed",
            "tool_choice",
            "no tool shall be called: only those that history calls are offered",
        )
        return structs.replace(conversation, tools=tools, tool_choice=ToolChoice())


class CleanSchemas:
    """Schemas without what the service refuses (rules 19 to 26)."""

    name = "kiro.clean_schemas"

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        try:
            tools = tuple(self._cleaned(conversation, notes))
        except RecursionError:
            raise Unrepresentable("a schema is nested too deeply", at="tools") from None
        return (conversation if len(notes) == before else structs.replace(conversation, tools=tools)), None

    def _cleaned(self, conversation: Conversation, notes: Notes) -> Iterator[ToolSpec | Opaque]:
        for tool in conversation.tools:
            if isinstance(tool, Opaque) or tool.schema is None:
                yield tool
                continue
            schema, removed = clean(tool.schema)
            if schema == tool.schema:
                yield tool
                continue
            what = f" ({', '.join(removed)})" if removed else ""
            action: Action = "changed" if ANNOTATIONS.issuperset(removed) else "dropped"
            notes.add("kiro.schema.cleaned", action, tool.at.path, f"the schema of {tool.name} is made plain{what}")
            yield structs.replace(tool, schema=schema)


class StubTools:
    """Tools that only history knows are declared, last and in a stable order (rules 13, 14; D52)."""

    name = "kiro.stub_tools"

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        declared = {tool.name for tool in conversation.tools if isinstance(tool, ToolSpec)}
        missing = sorted(name for name in called(conversation) if name not in declared)
        if not missing:
            return conversation, None
        notes.added(
            "kiro.tools.stub",
            "tools",
            f"history calls tools that are not declared; stubs stand for {', '.join(missing)}",
        )
        stubs = tuple([ToolSpec(name, STUB, NO_PARAMETERS) for name in missing])
        return structs.replace(conversation, tools=(*conversation.tools, *stubs)), None
