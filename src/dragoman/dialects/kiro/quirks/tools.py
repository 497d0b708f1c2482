"""Filters that fit tools to Kiro: unsupported tools, descriptions, limits, schemas, tools of the history. Pure."""

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

# --- tools that the service does not support: their calls and results become text (docs/decisions/kiro.md#d13)


REFUSED = frozenset({"web_search", "websearch"})


class RemoveUnsupportedTools(Filter):
    """Remove web_search, and every tool that another family's service runs; their calls in history become text.

    The text for a call is prose on purpose: text that looks like a call teaches the model to write calls as text.
    """

    name = "kiro.leave_out"
    applies_to: Features = frozenset({"tools", "calls"})
    before = "drop_foreign"

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        names, before = [call.name for call in facts.inventory(conversation).calls], len(notes)
        tools, removed = list[ToolSpec | Opaque](), set[str]()
        for tool in conversation.tools:  # drop_foreign removes the tools of other families
            name = tool.name if isinstance(tool, ToolSpec) else tool_name(tool) or ""
            if name.lower() in REFUSED:
                notes.dropped("kiro.tools.web_search", tool.at.path, f"the service does not support the tool {name}")
            else:
                tools.append(tool)
            if name and (name.lower() in REFUSED or (isinstance(tool, Opaque) and tool.family != FAMILY)):
                removed.add(name)
        removed -= {tool.name for tool in tools if isinstance(tool, ToolSpec)}
        messages = conversation.messages
        if not removed.isdisjoint(names) or [name for name in names if name.lower() in REFUSED]:
            history = _HistoryRewriter(removed, notes)
            messages = tuple([history.message(message) for message in messages])
        if len(notes) == before:
            return conversation, None
        choice = _choice(conversation, removed, notes)
        changed = structs.replace(conversation, tools=tuple(tools), messages=messages, tool_choice=choice)
        return to_canonical(changed, conversation.messages), None


def _choice(conversation: Conversation, removed: set[str], notes: Notes) -> ToolChoice:
    """Return the tool choice without the removed tools."""
    choice = conversation.tool_choice
    names = tuple([name for name in choice.names if name not in removed])
    if names == choice.names:
        return choice
    notes.dropped("kiro.tools.choice", "tool_choice", "the tool choice named a tool that is left out")
    return structs.replace(choice, names=names, mode=choice.mode if names else "auto")


class _HistoryRewriter:
    """Turn the calls and results of removed tools into text."""

    def __init__(self, removed: set[str], notes: Notes) -> None:
        self._removed = removed
        self._notes = notes
        self._rewritten: dict[str, str] = {}  # ids of calls that became text, and the names of their tools

    def message(self, message: Message) -> Message:
        blocks = tuple([new for block in message.blocks for new in self._block(block)])
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
        if call.name not in self._removed and call.name.lower() not in REFUSED:
            self._rewritten.pop(call.id, None)  # A reused id refers to the new call.
            return call
        self._rewritten[call.id] = call.name
        self._notes.changed("kiro.tools.history", call.at.path, f"the call of {call.name} is sent as text of its turn")
        return Text(f"({call.name} was used with {call.arguments or 'no input'})", at=call.at)

    def _result(self, result: ToolResult) -> Iterable[Block]:
        name = self._rewritten.get(result.call_id)
        if name is None:
            return (result,)
        self._notes.changed("kiro.tools.history", result.at.path, f"the result of {name} is sent as text of its turn")
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


MAX_CHARACTERS = 9_216
MAX_BYTES = 10_240
_SPARE = 9  # tools beyond `max_tools` that only history needs; with the default, one fewer than the service refuses
STUB = "Used earlier in this conversation; not available now."


class FillToolDescriptions(ToolFilter):
    """Describe a tool without a description by its name, as the client spells it (docs/decisions/kiro.md#d13)."""

    name = "kiro.give_descriptions"
    before = "rename_tools"
    applies_to: Features = frozenset({"undescribed_tools"})

    def tool(self, tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
        return tool if isinstance(tool, Opaque) else _with_description(tool, notes)


def _with_description(tool: ToolSpec, notes: Notes) -> ToolSpec:
    if tool.description.strip() or not tool.name.strip():
        return tool
    notes.added("kiro.tools.description", tool.at.path, f"the tool {tool.name} has no description; its name is sent")
    return structs.replace(tool, description=tool.name)


class FitTools(Filter):
    """Limit the number of tools and the length of their descriptions (rules 17, 18, 27, 45 of docs/dialects/kiro.md).

    If there are too many tools, the one that must be called and the first ones of the client stay. Which tools are
    offered, and their order, does not depend on the calls in history, so that prompt caches stay valid. A tool that is
    not offered but called in history must be declared too: it comes after the others, and `_SPARE` leaves room for it.
    """

    name = "kiro.fit_tools"
    applies_to: Features = frozenset({"tools", "calls"})
    before = "fold_system"

    def __init__(self, long_descriptions: str, max_tools: int) -> None:
        self._moves_descriptions = long_descriptions == "system"
        self._max_tools = max_tools

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        specs = [tool for tool in conversation.tools if isinstance(tool, ToolSpec)]
        short = [spec for spec in specs if 0 < 4 * len(spec.description) <= MAX_BYTES]
        if len(short) < len(conversation.tools) or "undescribed_tools" in facts.features(conversation):
            conversation = self._describe(conversation, notes)
        content, choice = facts.inventory(conversation), conversation.tool_choice
        if choice.mode == "none" and conversation.tools:
            return self._none(conversation, _called(content), notes), None
        if len(conversation.tools) + len(content.calls) > self._max_tools:
            conversation = self._limit(conversation, _called(content), notes)
        return conversation, None

    def _describe(self, conversation: Conversation, notes: Notes) -> Conversation:
        before = len(notes)
        tools: list[ToolSpec] = []
        moved: list[Text] = []  # long descriptions, for the system text
        for tool in conversation.tools:
            if isinstance(tool, ToolSpec):
                tools.append(self._described(_with_description(tool, notes), moved, notes))
            else:
                detail = f"the service refuses a {tool.kind} among the tools"
                notes.dropped("kiro.tools.cache_point", tool.at.path, detail)
        if len(notes) == before:
            return conversation
        system = (*conversation.system, *moved)
        return structs.replace(conversation, tools=tuple(tools), system=system)

    def _described(self, tool: ToolSpec, moved: list[Text], notes: Notes) -> ToolSpec:
        words = tool.description
        short = _cut(words)
        if short == words:
            return tool
        where = "the system text has all of it" if self._moves_descriptions else "the rest is left out"
        notes.add(
            "kiro.tools.description",
            "changed" if self._moves_descriptions else "dropped",
            tool.at.path,
            f"the description of {tool.name} is cut to {len(short)} characters; {where}",
        )
        if self._moves_descriptions:
            moved.append(Text(f"The tool {tool.name}:\n{words}", at=tool.at))
        return structs.replace(tool, description=short)

    def _limit(self, conversation: Conversation, called: list[str], notes: Notes) -> Conversation:
        tools = conversation.tools
        declared = list(dict.fromkeys([tool.name for tool in tools if isinstance(tool, ToolSpec)]))
        offered = self._offered(declared, conversation.tool_choice.names, called)
        if len(offered) == len(declared):
            return conversation
        appended = [name for name in called if name not in offered]
        dropped = [name for name in declared if name not in offered and name not in appended]
        specs = {tool.name: tool for tool in reversed(tools) if isinstance(tool, ToolSpec)}
        stubs = _stubs([name for name in appended if name not in specs], notes)
        notes.dropped(
            "kiro.tools.too_many",
            "tools",
            f"{len(dropped)} of {len(declared)} tools are left out: {', '.join(dropped)}",
        )
        line = Text("More tools exist but cannot be called in this conversation.")
        return structs.replace(
            conversation,
            tools=(
                *[specs[name] for name in declared if name in offered],
                *[specs.get(name) or stubs[name] for name in appended],
            ),
            system=(*conversation.system, line),
        )

    def _offered(self, declared: list[str], chosen: tuple[str, ...], called: list[str]) -> set[str]:
        """Return the names of the tools to offer; some are dropped only if history calls very many others."""
        limit = self._max_tools
        required = [name for name in chosen if name in declared][:limit]
        offered = [*required, *[name for name in declared if name not in required]][:limit]
        appended = [name for name in called if name not in offered]
        surplus = len(offered) + len(appended) - limit - _SPARE
        unused = [name for name in offered if name not in called]
        if surplus > len(unused):
            raise Unrepresentable(f"history calls {len(called)} tools; the service accepts {limit}", at="tools")
        return set(offered).difference(unused[len(unused) - surplus :] if surplus > 0 else ())

    def _none(self, conversation: Conversation, called: list[str], notes: Notes) -> Conversation:
        """Offer no tools but those of history: the service has no setting that forbids calls.

        Tools that history calls must be declared. They are in the order of their first call, so that one more does not
        move the others.
        """
        declared = {tool.name: tool for tool in reversed(conversation.tools) if isinstance(tool, ToolSpec)}
        stubs = _stubs([name for name in called if name not in declared], notes)
        tools = tuple([declared.get(name) or stubs[name] for name in called])
        notes.add(
            "kiro.tools.none",
            "dropped" if tools else "changed",
            "tool_choice",
            "the service cannot forbid tool calls; only the tools that history calls are offered",
        )
        return structs.replace(conversation, tools=tools, tool_choice=ToolChoice())


def _cut(words: str) -> str:
    """Return the text cut to the limits of characters and bytes, without splitting a character."""
    short = words[:MAX_CHARACTERS]
    data = short.encode("utf-8", "surrogatepass")
    return short if len(data) <= MAX_BYTES else data[:MAX_BYTES].decode("utf-8", "ignore")


class CleanSchemas(Filter):
    """Remove what the service refuses from the schemas of tools (rules 19 to 26 of docs/dialects/kiro.md)."""

    name = "kiro.clean_schemas"
    applies_to: Features = frozenset({"tools"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        budget, tools, is_changed = ExpansionBudget(), list(conversation.tools), False
        for place, tool in enumerate(tools):
            if isinstance(tool, Opaque) or tool.schema is None:
                continue
            try:
                schema, removed = clean_schema(tool.schema, budget)
            except RecursionError:
                raise Unrepresentable("a schema is nested too deeply", at="tools") from None
            if schema != tool.schema:
                what = f" ({', '.join(removed)})" if removed else ""
                action: Action = "changed" if ANNOTATIONS.issuperset(removed) else "dropped"
                notes.add("kiro.schema.cleaned", action, tool.at.path, f"the schema of {tool.name} is simplified{what}")
                tools[place], is_changed = structs.replace(tool, schema=schema), True
        return (structs.replace(conversation, tools=tuple(tools)) if is_changed else conversation), None


_MAX_CACHED = 4096  # bytes of a schema whose cleaned form is cached
_MAX_CACHED_EXPANSION = 16 * 1024  # bytes that its references may add
_DEPTHS = (64, 4, 2, 1, 0)  # depths of nested references that are tried until the schema fits


def clean_schema(schema: Mapping[str, Json], budget: ExpansionBudget | None = None) -> tuple[Schema, list[str]]:
    """Return the schema as the service accepts it, and the removed keywords, sorted. Callers must not change them.

    The bytes that references add are taken from `budget`. If it is too small, nested references are removed and allow
    any value, like those of a cycle.
    """
    budget = budget or ExpansionBudget()
    try:
        text = jsonio.encode(schema)
        if len(text) <= _MAX_CACHED:
            cleaned, removed, added = _cached(text)
            if added <= budget.left:
                budget.left -= added
                return cleaned, removed
    except (jsonio.JsonError, _TooLong):
        pass
    left = budget.left
    for depth in _DEPTHS:
        budget.left = left
        try:
            return clean_schema_to_depth({**schema}, budget, depth)
        except ExpansionTooLarge:
            continue
    raise AssertionError("a schema without references cannot be too large")


class _TooLong(Exception):
    """The cleaned form of a short schema is too long for the cache."""


@lru_cache(maxsize=256)
def _cached(text: bytes) -> tuple[Schema, list[str], int]:
    """Return the cleaned schema, the removed keywords, and the bytes that references added.

    The result is cached because every request of a conversation has the same tools.
    """
    schema = jsonio.decode(text)
    assert isinstance(schema, dict)
    budget = ExpansionBudget(_MAX_CACHED_EXPANSION)
    try:
        cleaned, removed = clean_schema_to_depth(schema, budget, _DEPTHS[0])
    except ExpansionTooLarge:
        raise _TooLong from None
    return cleaned, removed, _MAX_CACHED_EXPANSION - budget.left


class StubTools(Filter):
    """Declare the tools that only history calls, last and in the order of their first call.

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


def _called(content: Inventory) -> list[str]:
    """Return the names of all tools that history calls, in the order of their first call."""
    return list(dict.fromkeys([call.name for call in content.calls]))


def _stubs(names: list[str], notes: Notes) -> dict[str, ToolSpec]:
    """Return a declaration for each of the tools, by name."""
    if names:
        notes.added(
            "kiro.tools.stub",
            "tools",
            f"history calls tools that are not declared; stubs are declared for {', '.join(names)}",
        )
    return {name: ToolSpec(name, STUB, NO_PARAMETERS) for name in names}
