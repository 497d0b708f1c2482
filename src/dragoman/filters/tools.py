"""Filters of the tools that are offered: which, in which order, and in which form.

`offered_tools` gives the tool list for a family that offers every tool from the start. The order never changes when the
conversation grows, since tools stand before the messages in every prompt cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import Literal

from msgspec import Struct, structs

from dragoman.errors import Unrepresentable
from dragoman.filters.calls import fit_alphabet
from dragoman.model.blocks import (
    Block,
    ClientTool,
    DefinedTool,
    Location,
    Media,
    Opaque,
    ShownTool,
    Summary,
    Text,
    ToolCall,
    ToolChange,
    ToolResult,
    Untranslatable,
)
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.events import ArgumentsDelta, BlockEnded, BlockKeys, BlockStarted, Event, TextBuffer
from dragoman.model.filter import (
    EventKinds,
    Facts,
    Features,
    Filter,
    MakeResponseFilter,
    MessageFilter,
    Notes,
    ResponseFilter,
    ToolFilter,
)
from dragoman.wire import jsonio

PLACEHOLDER = "DeferredToolPlaceholder"  # Claude Code declares it so that `tools` holds a deferred tool
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SEARCH = frozenset({"search", "find", "discover"})
_TOOL = frozenset({"tool", "tools"})


class ToolMentions:
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
                case Opaque(effects=effects):
                    self._read(effects)
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
    mentions = ToolMentions(conversation.messages)
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
    if not any(isinstance(tool, Opaque) and (tool.effects or tool.is_redundant) for tool in tools):
        return tools
    names = {tool.name for tool in tools if isinstance(tool, ToolSpec)}
    declared: list[ToolSpec | Opaque] = []
    for tool in tools:
        if isinstance(tool, ToolSpec) or not (tool.effects or tool.is_redundant):
            declared.append(tool)
        for meaning in tool.effects if isinstance(tool, Opaque) else ():
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


# --- wrap_text_tools: a free-text tool becomes one with a single string; its calls come back as free text.
#
# A target that has such tools gets them as they are. Not every server that declares them calls them so: a call that
# comes as JSON all the same is free text again for the client, which refuses anything else.


SCHEMA: dict[str, jsonio.Json] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as free text."}},
    "required": ["input"],
}

_IDLE: EventKinds = frozenset({ToolCall})
_IN_CALL: EventKinds = _IDLE | {ArgumentsDelta, BlockEnded}


class WrapTextTools(MessageFilter):
    name = "wrap_text_tools"
    applies_to: Features = frozenset({"text_tools", "text_calls"})

    def __init__(self, *, native: bool = False) -> None:
        self._native = native

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        wrapped = {tool.name for tool in conversation.tools if isinstance(tool, ToolSpec) and tool.schema is None}
        if self._native:
            return conversation, partial(_Unwrap, wrapped) if wrapped else None
        if [call for call in facts.inventory(conversation).calls if call.form == "text"]:
            conversation, _ = super().forward(conversation, notes, facts)
        if not wrapped:
            return conversation, None
        tools = tuple(_wrap_tool(tool, notes) for tool in conversation.tools)
        return structs.replace(conversation, tools=tools), partial(_Unwrap, wrapped)

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        if not isinstance(block, ToolCall) or block.form != "text":
            return (block,)
        notes.changed("tools.text_wrapped", block.at.path, f"the free text given to {block.name} stands in `input`")
        arguments = jsonio.encode({"input": block.arguments}).decode()
        return (structs.replace(block, form="json", arguments=arguments),)


def _wrap_tool(tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
    if not isinstance(tool, ToolSpec) or tool.schema is not None:
        return tool
    notes.changed(
        "tools.text_wrapped", tool.at.path, f"{tool.name} takes free text; it is offered with one string, `input`"
    )
    return structs.replace(tool, schema=SCHEMA)


class _Unwrap(Struct, ResponseFilter, eq=False):
    """Holds the arguments of a wrapped call until they are whole, for half a JSON string is no text."""

    _wrapped: set[str]
    _notes: Notes
    _keys: BlockKeys
    reads: EventKinds | None = _IDLE
    _held: dict[int, TextBuffer] = {}

    def take(self, event: Event) -> Iterable[Event]:
        match event:
            case BlockStarted(key, ToolCall(name=name, form="json") as call) if name in self._wrapped:
                self._held[key], self.reads = TextBuffer(self._keys.budget), _IN_CALL
                yield structs.replace(event, block=structs.replace(call, form="text"))
            case ArgumentsDelta(key, text) if key in self._held:
                self._held[key].add(text)
            case BlockEnded(key) if key in self._held:
                text = self._unwrapped(self._held.pop(key).take())
                if text:
                    yield ArgumentsDelta(key, text)
                self.reads = _IN_CALL if self._held else _IDLE
                yield event
            case _:
                yield event

    def _unwrapped(self, arguments: str) -> str:
        value = jsonio.try_decode(arguments) if arguments else {}
        if isinstance(value, dict):
            text = value.get("input", "")
            if isinstance(text, str) and not value.keys() - {"input"}:
                return text
        self._notes.changed(
            "tools.text_unwrapped",
            "",
            "the arguments of a free-text tool were not as asked for; they are given as they came",
        )
        return arguments


# --- flatten_tool_history: say to another family what blocks of the history do to the tools and to the past.
#
# Some families declare, show and withdraw tools in the middle of a conversation, hold tools back until a search has
# found them, and replace the past by a summary. No other family has a form for that. Every declared tool goes into
# the tool list; what the model was told at a place in the history becomes text, a call or a result at that place.


SUMMARY = "Summary of the conversation so far:"


class FlattenToolHistory(Filter):
    """Runs only where client and upstream are of different families. Raises Unrepresentable for what has no form."""

    name = "flatten_tool_history"
    applies_to: Features = frozenset({"opaque", "opaque_tools", "waiting_tools"})

    def __init__(self, upstream: Capabilities, family: str) -> None:
        self._target = upstream
        self._family = family

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        held = facts.inventory(conversation)
        nodes = (*held.others, *held.parts)
        messages = conversation.messages
        has_meaning = any(isinstance(node, Opaque) and node.effects for node in nodes)
        tools = offered_tools(conversation, notes)
        if has_meaning:
            history = _History(tools, self._target, self._family, notes)
            messages = tuple([told for message in messages for told in history.message(message)])
        if tools == conversation.tools and messages == conversation.messages:
            return conversation, None
        return structs.replace(conversation, tools=tools, messages=messages), None


class _History:
    def __init__(self, tools: Iterable[object], target: Capabilities, family: str, notes: Notes) -> None:
        self._tools: Mapping[str, ToolSpec] = {tool.name: tool for tool in tools if isinstance(tool, ToolSpec)}
        self._target = target
        self._family = family
        self._notes = notes

    def message(self, message: Message) -> Iterator[Message]:
        """The message; what it says about the past or the tools stands in a user turn before an assistant's."""
        blocks: list[Block] = []
        before: list[Block] = []
        for block in message.blocks:
            if isinstance(block, ToolResult):
                blocks.append(self._result(block))
            elif not isinstance(block, Opaque) or not self._is_ours(block):
                blocks.append(block)
            else:
                told = self._told(block)
                assistants = message.role == "assistant" and isinstance(told, Text)
                (before if assistants else blocks).append(told)
        if before:
            yield Message("user", tuple(before), at=message.at)
        if blocks == list(message.blocks):
            yield message
        elif blocks:
            yield structs.replace(message, blocks=tuple(blocks))

    def _is_ours(self, block: Opaque) -> bool:
        says = any(not isinstance(meaning, DefinedTool) for meaning in block.effects)
        return says and not block.is_redundant and block.family != self._family

    def _told(self, block: Opaque) -> Block:
        said: list[str] = []
        shown = list(dict.fromkeys(meaning.name for meaning in block.effects if isinstance(meaning, ShownTool)))
        if shown:
            said.append(self._shown(shown))
            self._notes.changed("tools.reference", block.at.path, f"definitions are given as text: {', '.join(shown)}")
        for meaning in block.effects:
            match meaning:
                case ToolCall():
                    self._notes.changed("tools.search", block.at.path, "a tool search became the call of a function")
                    return meaning
                case ToolResult():
                    self._notes.changed("tools.search", block.at.path, "what a tool search found became a result")
                    return self._result(meaning)
                case Untranslatable(reason):
                    raise Unrepresentable(reason, at=block.at.path)
                case Summary(text):
                    said.append(f"{SUMMARY}\n\n{text}")
                    self._notes.changed("compaction.as_text", block.at.path, "the summary of the past is given as text")
                case ToolChange(name, offered):
                    said.append(self._change(name, offered))
                    self._notes.changed("tools.changed", block.at.path, f"a change of the tool {name} is given as text")
                case _:
                    pass
        return Text("\n".join(said), cache=block.cache, at=block.at)

    # --- results that show tools

    def _result(self, result: ToolResult) -> ToolResult:
        content: list[Text | Media | Opaque] = []
        for shows, group in groupby(result.content, self._shows):
            parts = list(group)
            content += [self._shown_part(parts)] if shows else parts
        return result if content == list(result.content) else structs.replace(result, content=tuple(content))

    def _shows(self, part: Text | Media | Opaque) -> bool:
        return isinstance(part, Opaque) and self._is_ours(part)

    def _shown_part(self, parts: Sequence[Text | Media | Opaque]) -> Text:
        effects = [meaning for part in parts if isinstance(part, Opaque) for meaning in part.effects]
        names = list(dict.fromkeys(meaning.name for meaning in effects if isinstance(meaning, ShownTool)))
        first, last = parts[0], parts[-1]
        self._notes.changed("tools.reference", first.at.path, f"definitions are given as text: {', '.join(names)}")
        return Text(self._shown(names), cache=last.cache, at=first.at)

    def _shown(self, names: Sequence[str]) -> str:
        """The form in which Anthropic's service shows references, and which Claude Code's search promises the model."""
        known = [self._tools[name] for name in names if name in self._tools]
        lines = [f"<function>{self._definition(tool)}</function>" for tool in known]
        missing = [f"Tool {self._alias(name)} is not available." for name in names if name not in self._tools]
        return "\n".join([*(["<functions>", *lines, "</functions>"] if lines else []), *missing])

    def _definition(self, tool: ToolSpec) -> str:
        schema = tool.schema if tool.schema is not None else SCHEMA
        return jsonio.encode_to_text(
            {"description": tool.description, "name": self._alias(tool.name), "parameters": dict(schema)}
        )

    def _change(self, name: str, offered: bool) -> str:
        alias = self._alias(name)
        if not offered:
            return f"Tool {alias} is no longer available."
        return f"Tool {alias} is available from here on." if name in self._tools else f"Tool {alias} is not available."

    def _alias(self, name: str) -> str:
        """The name under which `rename_tools` sends the tool."""
        return fit_alphabet(name, self._target.names) if name else name


# --- GiveSchemas: a tool whose client gave no schema is sent with an empty one, where the target wants one


class AddEmptySchemas(ToolFilter):
    """Readers give such a tool the schema of no parameters and mark its place as bare."""

    name = "add_empty_schemas"
    applies_to: Features = frozenset({"bare_tools"})

    def tool(self, tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
        if not tool.at.is_absent or isinstance(tool, Opaque):
            return tool
        notes.added("tools.schema", tool.at.path, f"the tool {tool.name} has no schema; one without properties is sent")
        return structs.replace(tool, at=Location(tool.at.path))
