"""Filters of the tool list: which tools are offered, in which order, and in which form.

`offered_tools` returns the tool list for a family that offers every tool from the start. Its order never changes as the
conversation grows, since tools precede the messages in every prompt cache.
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
from dragoman.filters.compaction import SUMMARY, SUMMARY_AS_TEXT
from dragoman.filters.tool_search import found_names, has_search, is_carried
from dragoman.model.blocks import (
    Block,
    ClientTool,
    DefinedTool,
    FoundTools,
    Location,
    Media,
    Opaque,
    ShownTool,
    Summary,
    Text,
    ToolCall,
    ToolChange,
    ToolResult,
    ToolSearch,
    Untranslatable,
    WebResults,
    WebSearch,
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

PLACEHOLDER = "DeferredToolPlaceholder"  # Claude Code declares it so that `tools` contains a deferred tool
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SEARCH = frozenset({"search", "find", "discover"})
_TOOL = frozenset({"tool", "tools"})


class ToolMentions:
    """Where the history first mentions each tool.

    `named` and `defined` map a tool's name to the position where the history first names or defines it; `shown` are the
    tools whose definitions the history shows.
    """

    def __init__(self, messages: Iterable[Message]) -> None:
        self.named: dict[str, int] = {}
        self.defined: dict[str, int] = {}
        self.shown: set[str] = set()
        self._count = 0
        for message in messages:
            self._read(message.blocks)

    def place(self, tool: ToolSpec) -> int:
        """Return the position where the model first learns of a deferred tool; 0 if nowhere."""
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
    """Return the tools to send, in order.

    A deferred tool is left out only if the client runs a tool search that can find it and nothing names it so far.
    """
    tools = _without_redefinitions(_with_client_tools(conversation.tools, notes), notes)
    deferred = [tool for tool in tools if isinstance(tool, ToolSpec) and tool.waits_for]
    if not deferred:
        return tools
    mentions = ToolMentions(conversation.messages)
    chosen = frozenset(conversation.tool_choice.names)
    search = _search(tools)
    known = mentions.named.keys() | chosen | {PLACEHOLDER}
    waiting = {tool.name for tool in deferred if tool.waits_for == "search" and tool.name not in known}
    # If no known search tool is declared, the client may declare tools only once they are found: then none waits.
    sorts_by_place = search == "client" or (
        not search and not waiting and any(tool.name in mentions.shown for tool in deferred)
    )
    places: list[tuple[int, int]] = []
    offered: list[ToolSpec | Opaque] = []
    sent: ToolSpec | Opaque
    for tool in tools:
        if not isinstance(tool, ToolSpec) or not tool.waits_for:
            place, sent = (0, 0), tool
        elif _is_left_out(tool, search == "client" and tool.name in waiting, chosen, notes):
            continue
        else:
            is_chosen = tool.waits_for == "search" and tool.name in chosen
            place = (0, 0) if not sorts_by_place else (1, 0) if is_chosen else (2, mentions.place(tool))
            sent = _loaded(tool, notes)
        places.append(place)
        offered.append(sent)
    return tuple(offered[at] for at in sorted(range(len(offered)), key=places.__getitem__))


def _with_client_tools(tools: tuple[ToolSpec | Opaque, ...], notes: Notes) -> tuple[ToolSpec | Opaque, ...]:
    """Return the tools; a family's own tools that the client runs become functions, and redundant entries are dropped.

    Raises Unrepresentable if such a function would have the name of another tool.
    """
    if not any(isinstance(tool, Opaque) and _is_replaced(tool) for tool in tools):
        return tools
    names = {tool.name for tool in tools if isinstance(tool, ToolSpec)}
    declared: list[ToolSpec | Opaque] = []
    for tool in tools:
        if isinstance(tool, ToolSpec) or not _is_replaced(tool):
            declared.append(tool)
        for effect in tool.effects if isinstance(tool, Opaque) else ():
            if isinstance(effect, ClientTool):
                if effect.name in names:
                    raise Unrepresentable(
                        f"another tool has the name {effect.name} too; rename one of them", at=tool.at.path
                    )
                detail = f"the client runs {effect.name}; it is offered as a function"
                notes.changed("tools.as_function", tool.at.path, detail)
                declared.append(ToolSpec(effect.name, effect.description, effect.schema, tool.cache, at=tool.at))
    return tuple(declared)


def _is_replaced(tool: Opaque) -> bool:
    return tool.is_redundant or any(isinstance(effect, ClientTool) for effect in tool.effects)


def searched_tools(conversation: Conversation, notes: Notes) -> tuple[ToolSpec | Opaque, ...]:
    """Return the tools to send to a service that searches them itself: deferred tools stay deferred.

    A tool that a result of a search defines is a deferred one, too; other blocks define tools that are offered at once.
    """
    tools = _without_redefinitions(_with_client_tools(conversation.tools, notes), notes)
    found = found_names(conversation.messages)
    return tuple(
        structs.replace(tool, waits_for="search" if tool.name in found else "")
        if isinstance(tool, ToolSpec) and tool.waits_for == "block"
        else tool
        for tool in tools
    )


def _without_redefinitions(tools: tuple[ToolSpec | Opaque, ...], notes: Notes) -> tuple[ToolSpec | Opaque, ...]:
    """Return the tools, each defined once.

    A definition in the tool list wins, since it is current. Otherwise the last block that defines the tool wins, at the
    position of the first.
    """
    if not any(isinstance(tool, ToolSpec) and tool.waits_for == "block" for tool in tools):
        return tools
    unique: list[ToolSpec | Opaque] = []
    places: dict[str, int] = {}
    for tool in tools:
        if not isinstance(tool, ToolSpec) or tool.waits_for != "block" or tool.name not in places:
            if isinstance(tool, ToolSpec):
                places.setdefault(tool.name, len(unique))
            unique.append(tool)
            continue
        first = unique[places[tool.name]]
        which = "the one in the tool list is used"
        if isinstance(first, ToolSpec) and first.waits_for == "block":
            unique[places[tool.name]], which = tool, "the last one is used"
        notes.changed("tools.redefined", tool.at.path, f"{tool.name} is defined more than once; {which}")
    return tuple(unique)


def _search(tools: Sequence[ToolSpec | Opaque]) -> Literal["", "client", "server"]:
    """Return who runs the tool search that the model is offered: "" (there is none), the client, or a server.

    Only the declared tools count. If this depended on the history, a longer history would change the tool list.
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
        notes.changed("tools.placeholder", tool.at.path, "a placeholder for deferred tools is left out")
        return True
    if waits:
        notes.changed("tools.deferred", tool.at.path, f"{tool.name} is not sent until the client's search finds it")
    return waits


def _loaded(tool: ToolSpec, notes: Notes) -> ToolSpec:
    if tool.waits_for == "search":
        notes.changed("tools.deferred", tool.at.path, f"{tool.name} is sent at once: the target has no deferred tools")
    return structs.replace(tool, waits_for="")


# --- WrapTextTools


SCHEMA: dict[str, jsonio.Json] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as free text."}},
    "required": ["input"],
}

_IDLE: EventKinds = frozenset({ToolCall})
_IN_CALL: EventKinds = _IDLE | {ArgumentsDelta, BlockEnded}


class WrapTextTools(MessageFilter):
    """Offer a free-text tool as a function with one string, `input`; turn its calls back into free text.

    `native`: the target has free-text tools and gets them unchanged. Some servers of such dialects still send calls as
    JSON, so the response filter runs for them too: the client accepts only free text.
    """

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
        notes.changed("tools.text_wrapped", block.at.path, f"the free text for {block.name} was put into `input`")
        arguments = jsonio.encode({"input": block.arguments}).decode()
        return (structs.replace(block, form="json", arguments=arguments),)


def _wrap_tool(tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
    if not isinstance(tool, ToolSpec) or tool.schema is not None:
        return tool
    notes.changed(
        "tools.text_wrapped",
        tool.at.path,
        f"{tool.name} accepts free text; it is offered as a function with one string, `input`",
    )
    return structs.replace(tool, schema=SCHEMA)


class _Unwrap(Struct, ResponseFilter, eq=False):
    """Buffers the arguments of a wrapped call until its end: the text cannot be read from incomplete JSON."""

    _wrapped: set[str]
    _notes: Notes
    _keys: BlockKeys
    reads: EventKinds | None = _IDLE
    _buffered: dict[int, TextBuffer] = {}

    def take(self, event: Event) -> Iterable[Event]:
        match event:
            case BlockStarted(key, ToolCall(name=name, form="json") as call) if name in self._wrapped:
                self._buffered[key], self.reads = TextBuffer(self._keys.budget), _IN_CALL
                yield structs.replace(event, block=structs.replace(call, form="text"))
            case ArgumentsDelta(key, text) if key in self._buffered:
                self._buffered[key].add(text)
            case BlockEnded(key) if key in self._buffered:
                text = self._unwrapped(self._buffered.pop(key).take())
                if text:
                    yield ArgumentsDelta(key, text)
                self.reads = _IN_CALL if self._buffered else _IDLE
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
            "the arguments of a free-text tool are not an object with one string, `input`; they are passed unchanged",
        )
        return arguments


# --- FlattenToolHistory


_OF_SERVICES = DefinedTool | ToolSearch | FoundTools | WebSearch | WebResults  # effects that other filters translate


class FlattenToolHistory(Filter):
    """Translate blocks of the history that change the tools or summarize the past.

    Some families declare, show and withdraw tools in the middle of a conversation, defer tools until a search finds
    them, and replace the past by a summary. Other families have no blocks for that. Every declared tool goes into the
    tool list; each such block becomes text, a call or a result at its place.

    Runs only if client and upstream are of different families. Raises Unrepresentable for a block without translation.
    """

    name = "flatten_tool_history"
    applies_to: Features = frozenset({"opaque", "opaque_tools", "waiting_tools"})

    def __init__(self, upstream: Capabilities, family: str) -> None:
        self._target = upstream
        self._family = family

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        inventory = facts.inventory(conversation)
        nodes = (*inventory.others, *inventory.parts)
        messages = conversation.messages
        has_meaning = any(isinstance(node, Opaque) and node.effects for node in nodes)
        is_searched = has_search(conversation.tools, self._target)
        tools = searched_tools(conversation, notes) if is_searched else offered_tools(conversation, notes)
        if has_meaning:
            history = _History(tools, self._target, self._family, notes)
            messages = tuple([block_out for message in messages for block_out in history.message(message)])
        if tools == conversation.tools and messages == conversation.messages:
            return conversation, None
        return structs.replace(conversation, tools=tools, messages=messages), None


class _History:
    """Translates the messages of one request."""

    def __init__(self, tools: Iterable[object], target: Capabilities, family: str, notes: Notes) -> None:
        self._tools: Mapping[str, ToolSpec] = {tool.name: tool for tool in tools if isinstance(tool, ToolSpec)}
        self._target = target
        self._family = family
        self._notes = notes

    def message(self, message: Message) -> Iterator[Message]:
        """Yield the translated message; text that replaces blocks of an assistant turn is a user turn before it."""
        blocks: list[Block] = []
        before: list[Block] = []
        for block in message.blocks:
            if isinstance(block, ToolResult):
                blocks.append(self._result(block))
            elif not isinstance(block, Opaque) or not self._is_foreign(block):
                blocks.append(block)
            else:
                block_out = self._translated(block)
                moves_before = message.role == "assistant" and isinstance(block_out, Text)
                (before if moves_before else blocks).append(block_out)
        if before:
            yield Message("user", tuple(before), at=message.at)
        if blocks == list(message.blocks):
            yield message
        elif blocks:
            yield structs.replace(message, blocks=tuple(blocks))

    def _is_foreign(self, block: Opaque) -> bool:
        has_effect = any(not isinstance(effect, _OF_SERVICES) for effect in block.effects)
        is_own = block.family == self._family or is_carried(block, self._target)
        return has_effect and not block.is_redundant and not is_own

    def _translated(self, block: Opaque) -> Block:
        lines: list[str] = []
        shown = list(dict.fromkeys(effect.name for effect in block.effects if isinstance(effect, ShownTool)))
        if shown:
            lines.append(self._definitions(shown))
            self._notes.changed("tools.reference", block.at.path, f"tool definitions became text: {', '.join(shown)}")
        for effect in block.effects:
            match effect:
                case ToolCall():
                    self._notes.changed("tools.search", block.at.path, "a tool search became a function call")
                    return effect
                case ToolResult():
                    self._notes.changed(
                        "tools.search", block.at.path, "the results of a tool search became a tool result"
                    )
                    return self._result(effect)
                case Untranslatable(reason):
                    raise Unrepresentable(reason, at=block.at.path)
                case Summary(text):
                    lines.append(f"{SUMMARY}\n\n{text}")
                    self._notes.changed("compaction.as_text", block.at.path, SUMMARY_AS_TEXT)
                case ToolChange(name, offered):
                    lines.append(self._change(name, offered))
                    self._notes.changed("tools.changed", block.at.path, f"a change of the tool {name} became text")
                case _:
                    pass
        return Text("\n".join(lines), cache=block.cache, at=block.at)

    # --- results that show tools

    def _result(self, result: ToolResult) -> ToolResult:
        content: list[Text | Media | Opaque] = []
        for shows, group in groupby(result.content, self._shows_tools):
            parts = list(group)
            content += [self._definitions_part(parts)] if shows else parts
        return result if content == list(result.content) else structs.replace(result, content=tuple(content))

    def _shows_tools(self, part: Text | Media | Opaque) -> bool:
        return isinstance(part, Opaque) and self._is_foreign(part)

    def _definitions_part(self, parts: Sequence[Text | Media | Opaque]) -> Text:
        effects = [effect for part in parts if isinstance(part, Opaque) for effect in part.effects]
        names = list(dict.fromkeys(effect.name for effect in effects if isinstance(effect, ShownTool)))
        first, last = parts[0], parts[-1]
        self._notes.changed("tools.reference", first.at.path, f"tool definitions became text: {', '.join(names)}")
        return Text(self._definitions(names), cache=last.cache, at=first.at)

    def _definitions(self, names: Sequence[str]) -> str:
        """Return definitions in the form of Anthropic's service, which Claude Code's search announces to the model."""
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
        """Return the name under which `RenameTools` sends the tool."""
        return fit_alphabet(name, self._target.names) if name else name


# --- AddEmptySchemas


class AddEmptySchemas(ToolFilter):
    """Send an empty schema for a tool without one, for targets that require a schema.

    Readers give such a tool a schema without parameters and mark its location as absent.
    """

    name = "add_empty_schemas"
    applies_to: Features = frozenset({"bare_tools"})

    def tool(self, tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
        if not tool.at.is_absent or isinstance(tool, Opaque):
            return tool
        notes.added("tools.schema", tool.at.path, f"the tool {tool.name} has no schema; one without properties is sent")
        return structs.replace(tool, at=Location(tool.at.path))
