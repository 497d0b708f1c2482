"""Tools as the service takes them: none it runs itself, each described, within limits, and all that history names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from msgspec import structs

from dragoman.dialects.kiro.quirks.schemas import (
    ANNOTATIONS,
    ExpansionBudget,
    ExpansionTooLarge,
    Schema,
    clean_schema_to_depth,
)
from dragoman.dialects.kiro.request import FAMILY, NO_PARAMETERS
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Block, Media, Opaque, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, ToolChoice, ToolSpec, to_canonical, tool_name
from dragoman.model.filter import Action, Facts, Features, Filter, Inventory, MakeResponseFilter, Notes, ToolFilter
from dragoman.model.parts import UNREADABLE, UNREADABLE_LINE, UNREADABLE_NOTE, join_texts, opaque_as_parts
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

# --- Tools that cannot be offered here: their calls and their results become text (docs/decisions/kiro.md#d13)


REFUSED = frozenset({"web_search", "websearch"})


class RemoveUnsupportedTools(Filter):
    """web_search, and every tool that only another family runs, with all that history holds of them.

    The words for a call are prose on purpose: what looks like a call teaches the model to write calls as text.
    """

    name = "kiro.leave_out"
    applies_to: Features = frozenset({"tools", "calls"})
    before = "drop_foreign"

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        names, before = [call.name for call in facts.inventory(conversation).calls], len(notes)
        kept, gone = list[ToolSpec | Opaque](), set[str]()
        for tool in conversation.tools:  # those of other families are drop_foreign's to leave out
            name = tool.name if isinstance(tool, ToolSpec) else tool_name(tool) or ""
            if name.lower() in REFUSED:
                notes.dropped("kiro.tools.web_search", tool.at.path, f"the service does not take {name}")
            else:
                kept.append(tool)
            if name and (name.lower() in REFUSED or (isinstance(tool, Opaque) and tool.family != FAMILY)):
                gone.add(name)
        gone -= {tool.name for tool in kept if isinstance(tool, ToolSpec)}
        messages = conversation.messages
        if not gone.isdisjoint(names) or [name for name in names if name.lower() in REFUSED]:
            history = _History(gone, notes)
            messages = tuple([history.message(message) for message in messages])
        if len(notes) == before:
            return conversation, None
        choice = _choice(conversation, gone, notes)
        changed = structs.replace(conversation, tools=tuple(kept), messages=messages, tool_choice=choice)
        return to_canonical(changed, conversation.messages), None


def _choice(conversation: Conversation, gone: set[str], notes: Notes) -> ToolChoice:
    """A choice of a tool that is gone is no choice."""
    choice = conversation.tool_choice
    names = tuple([name for name in choice.names if name not in gone])
    if names == choice.names:
        return choice
    notes.dropped("kiro.tools.choice", "tool_choice", "it named a tool that is left out")
    return structs.replace(choice, names=names, mode=choice.mode if names else "auto")


class _History:
    def __init__(self, gone: set[str], notes: Notes) -> None:
        self._gone = gone
        self._notes = notes
        self._told: dict[str, str] = {}  # ids of calls that became text, and what they called

    def message(self, message: Message) -> Message:
        blocks = tuple([told for block in message.blocks for told in self._block(block)])
        return message if blocks == message.blocks else structs.replace(message, blocks=blocks)

    def _block(self, block: Block) -> Iterable[Block]:
        match block:
            case ToolCall():
                return (self._call(block),)
            case ToolResult():
                return self._result(block)
            case _:
                return (block,)

    def _call(self, call: ToolCall) -> Block:
        if call.name not in self._gone and call.name.lower() not in REFUSED:
            self._told.pop(call.id, None)  # an id used anew means the new call
            return call
        self._told[call.id] = call.name
        self._notes.changed("kiro.tools.history", call.at.path, f"the call of {call.name} became text of its turn")
        return Text(f"({call.name} was used with {call.arguments or 'no input'})", at=call.at)

    def _result(self, result: ToolResult) -> Iterable[Block]:
        name = self._told.get(result.call_id)
        if name is None:
            return (result,)
        self._notes.changed("kiro.tools.history", result.at.path, f"the result of {name} became text of its turn")
        parts = [text for part in result.content for text in self._parts(part)]
        text = join_texts(part.text for part in parts if isinstance(part, Text))
        words = f"({name} {'failed' if result.is_error else 'gave'}: {text.strip() or 'nothing'})"
        others = [part for part in parts if isinstance(part, Media)]
        return (Text(words, at=result.at), *others)

    def _parts(self, part: Text | Media | Opaque) -> list[Text | Media]:
        if not isinstance(part, Opaque):
            return [part]
        if part.kind == UNREADABLE:
            self._notes.dropped("result.unreadable_media", part.at.path, UNREADABLE_NOTE)
            return [Text(UNREADABLE_LINE, at=part.at)]
        return opaque_as_parts(part, self._notes, "kiro.tools.history")


LONGEST_CHARACTERS = 9_216
LONGEST_BYTES = 10_240
_SPARE = 9  # tools beyond `max_tools` that only history needs: with its default, one below what the service refuses
STUB = "Used earlier in this conversation; not available now."


class FillToolDescriptions(ToolFilter):
    """A tool without a description is described by its name, as the client spells it (docs/decisions/kiro.md#d13)."""

    name = "kiro.give_descriptions"
    before = "rename_tools"
    applies_to: Features = frozenset({"undescribed_tools"})

    def tool(self, tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
        return tool if isinstance(tool, Opaque) else _given(tool, notes)


def _given(tool: ToolSpec, notes: Notes) -> ToolSpec:
    if tool.description.strip() or not tool.name.strip():
        return tool
    notes.added("kiro.tools.description", tool.at.path, f"{tool.name} has no description; its name is given")
    return structs.replace(tool, description=tool.name)


class FitTools(Filter):
    """Tools alone, each with a description that is not too long (rules 17, 18, 27 of docs/dialects/kiro.md), and no
    more than the service bears (rule 45 of docs/dialects/kiro.md): the one that must be called, then the first of the
    client's.

    Which are offered, and in which order, does not depend on what history calls, so that prompt caches stay warm. A
    tool that history calls and that is not among them must be declared all the same: it stands after them, and
    `_SPARE` leaves room for it.
    """

    name = "kiro.fit_tools"
    applies_to: Features = frozenset({"tools", "calls"})
    before = "fold_system"

    def __init__(self, long_descriptions: str, most: int) -> None:
        self._tells = long_descriptions == "system"
        self._most = most

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        specs = [tool for tool in conversation.tools if isinstance(tool, ToolSpec)]
        short = [spec for spec in specs if 0 < 4 * len(spec.description) <= LONGEST_BYTES]
        if len(short) < len(conversation.tools) or "undescribed_tools" in facts.features(conversation):
            conversation = self._describe(conversation, notes)
        held, chosen = facts.inventory(conversation), conversation.tool_choice
        if chosen.mode == "none" and conversation.tools:
            return self._none(conversation, _called(held), notes), None
        if len(conversation.tools) + len(held.calls) > self._most:
            conversation = self._limit(conversation, _called(held), notes)
        return conversation, None

    def _describe(self, conversation: Conversation, notes: Notes) -> Conversation:
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
            return conversation
        system = (*conversation.system, *told)
        return structs.replace(conversation, tools=tuple(tools), system=system)

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

    def _limit(self, conversation: Conversation, known: list[str], notes: Notes) -> Conversation:
        tools = conversation.tools
        declared = list(dict.fromkeys([tool.name for tool in tools if isinstance(tool, ToolSpec)]))
        offered = self._offered(declared, conversation.tool_choice.names, known)
        if len(offered) == len(declared):
            return conversation
        late = [name for name in known if name not in offered]
        left = [name for name in declared if name not in offered and name not in late]
        specs = {tool.name: tool for tool in reversed(tools) if isinstance(tool, ToolSpec)}
        stubs = _stubs([name for name in late if name not in specs], notes)
        notes.dropped(
            "kiro.tools.too_many", "tools", f"{len(left)} of {len(declared)} tools are left out: {', '.join(left)}"
        )
        line = Text("More tools exist but cannot be called in this conversation.")
        return structs.replace(
            conversation,
            tools=(
                *[specs[name] for name in declared if name in offered],
                *[specs.get(name) or stubs[name] for name in late],
            ),
            system=(*conversation.system, line),
        )

    def _offered(self, declared: list[str], chosen: tuple[str, ...], known: list[str]) -> set[str]:
        """The names of the tools to offer. Only where history calls very many others must some of them give way."""
        wanted = [name for name in chosen if name in declared][: self._most]
        offered = [*wanted, *[name for name in declared if name not in wanted]][: self._most]
        late = [name for name in known if name not in offered]
        surplus = len(offered) + len(late) - self._most - _SPARE
        idle = [name for name in offered if name not in known]
        if surplus > len(idle):
            raise Unrepresentable(f"history calls {len(known)} tools; the service takes {self._most}", at="tools")
        return set(offered).difference(idle[len(idle) - surplus :] if surplus > 0 else ())

    def _none(self, conversation: Conversation, known: list[str], notes: Notes) -> Conversation:
        """That no tool be called cannot be said; not offering any comes nearest. Those of history must stay, in the
        order of their first call, so that one more does not move the others."""
        declared = {tool.name: tool for tool in reversed(conversation.tools) if isinstance(tool, ToolSpec)}
        stubs = _stubs([name for name in known if name not in declared], notes)
        tools = tuple([declared.get(name) or stubs[name] for name in known])
        notes.add(
            "kiro.tools.none",
            "dropped" if tools else "changed",
            "tool_choice",
            "no tool shall be called: only those that history calls are offered",
        )
        return structs.replace(conversation, tools=tools, tool_choice=ToolChoice())


def _cut(words: str) -> str:
    """At most so many characters and so many bytes, and never half a character."""
    short = words[:LONGEST_CHARACTERS]
    data = short.encode("utf-8", "surrogatepass")
    return short if len(data) <= LONGEST_BYTES else data[:LONGEST_BYTES].decode("utf-8", "ignore")


class CleanSchemas(Filter):
    """Schemas without what the service refuses (rules 19 to 26 of docs/dialects/kiro.md)."""

    name = "kiro.clean_schemas"
    applies_to: Features = frozenset({"tools"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        room, tools, changed = ExpansionBudget(), list(conversation.tools), False
        for place, tool in enumerate(tools):
            if isinstance(tool, Opaque) or tool.schema is None:
                continue
            try:
                schema, removed = clean_schema(tool.schema, room)
            except RecursionError:
                raise Unrepresentable("a schema is nested too deeply", at="tools") from None
            if schema != tool.schema:
                what = f" ({', '.join(removed)})" if removed else ""
                action: Action = "changed" if ANNOTATIONS.issuperset(removed) else "dropped"
                notes.add("kiro.schema.cleaned", action, tool.at.path, f"the schema of {tool.name} is made plain{what}")
                tools[place], changed = structs.replace(tool, schema=schema), True
        return (structs.replace(conversation, tools=tuple(tools)) if changed else conversation), None


_LONGEST_KEPT = 4096  # bytes of a schema whose plain form is remembered
_MOST_KEPT = 16 * 1024  # bytes that its references may add
_DEPTHS = (64, 4, 2, 1, 0)  # of references within references that are tried, until the schema fits


def clean_schema(schema: Mapping[str, Json], room: ExpansionBudget | None = None) -> tuple[Schema, list[str]]:
    """The schema as the service takes it, and the keywords that are gone, sorted. Both are cached: do not change them.

    What references add is taken from `room`. Where that is not enough, references within references stand for any
    value, as those of a circle do.
    """
    room = room or ExpansionBudget()
    try:
        text = jsonio.encode(schema)
        if len(text) <= _LONGEST_KEPT:
            cleaned, removed, added = _kept(text)
            if added <= room.left:
                room.left -= added
                return cleaned, removed
    except (jsonio.JsonError, _TooLong):
        pass
    left = room.left
    for depth in _DEPTHS:
        room.left = left
        try:
            return clean_schema_to_depth({**schema}, room, depth)
        except ExpansionTooLarge:
            continue
    raise AssertionError("without references nothing is added")


class _TooLong(Exception):
    """The plain form of a short schema is too long to be remembered."""


@lru_cache(maxsize=256)
def _kept(text: bytes) -> tuple[Schema, list[str], int]:
    """The tools of a conversation come again with every turn. Gives how much the references added, too."""
    schema = jsonio.decode(text)
    assert isinstance(schema, dict)
    room = ExpansionBudget(_MOST_KEPT)
    try:
        cleaned, removed = clean_schema_to_depth(schema, room, _DEPTHS[0])
    except ExpansionTooLarge:
        raise _TooLong from None
    return cleaned, removed, _MOST_KEPT - room.left


class StubTools(Filter):
    """Tools that only history calls are declared, last and in the order of their first call.

    See rules 13, 14 of docs/dialects/kiro.md.
    """

    name = "kiro.stub_tools"
    applies_to: Features = frozenset({"calls"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        declared = {tool.name for tool in conversation.tools if isinstance(tool, ToolSpec)}
        missing = [name for name in _called(facts.inventory(conversation)) if name not in declared]
        if not missing:
            return conversation, None
        return structs.replace(conversation, tools=(*conversation.tools, *_stubs(missing, notes).values())), None


def _called(held: Inventory) -> list[str]:
    """The names of all tools that history calls, in the order of their first call."""
    return list(dict.fromkeys([call.name for call in held.calls]))


def _stubs(names: list[str], notes: Notes) -> dict[str, ToolSpec]:
    """A declaration for each tool that only history knows, by its name."""
    if names:
        notes.added(
            "kiro.tools.stub", "tools", f"history calls tools that are not declared; stubs stand for {', '.join(names)}"
        )
    return {name: ToolSpec(name, STUB, NO_PARAMETERS) for name in names}
