"""Tools, the choice among them, and namespaces.

A namespace holds tools whose names mean something inside it only. Nobody else has such a thing, so a tool in one is
known everywhere by both names joined; which two they were is remembered as its spelling and found again in answers.
Where another tool has the joined name, the joint grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import structs

from dragoman.dialects.kit import openai_requests as requests
from dragoman.dialects.kit.openai_requests import take_parameters
from dragoman.dialects.kit.values import NO_PARAMETERS
from dragoman.dialects.responses.blocks import API_NAME, EXTRAS, FAMILY, JsonObject, object_of, text_of
from dragoman.model.blocks import (
    Block,
    ClientTool,
    DefinedTool,
    Effect,
    Extra,
    Location,
    Opaque,
    ShownTool,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.model.conversation import (
    NATIVE_NAME,
    PARENT_PREFIX,
    Conversation,
    Message,
    ToolChoice,
    ToolSpec,
    parent_fields,
    to_extra_names,
)
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json

CALL_TYPE = "~type"  # on a call or a result that is neither a function's nor a custom tool's: its type
CHOSEN = "~chosen"  # on a request: its tool choice as it came, in other names than the tools are declared by
NAMED = "~named_so"  # on a call: the names it came with, where they are not those of the tool that it means
NAMESPACE = "~namespace"  # on a tool or a call: the namespace it belongs to
ADDED = "~added"  # on a tool that came in an item of the input, which still says it
_NESTED = "~nested"  # on a tool in a namespace inside another: that one, kept whole, still says it
_DEFERRED = "defer_loading"
TOOL_SEARCH = "tool_search"  # the type of the tool that finds others, and its name as a function
_NOTHING: Mapping[str, Json] = {}


def join_names(namespace: str, name: str) -> str:
    """The one name of a tool in a namespace. Servers' namespaces often end with the joint already."""
    return f"{namespace}{name}" if not namespace or namespace.endswith("_") else f"{namespace}__{name}"


def namespace_fields(namespace: str, name: str) -> JsonObject:
    """What a tool or a call remembers of the two names that were joined."""
    return {NAMESPACE: namespace, NATIVE_NAME: name} if namespace else {}


def parted(extra: Extra | None, whole: str) -> tuple[str, str]:
    """Both names of a tool; the namespace is empty if it is in none, or was renamed and is known by its one name."""
    own = EXTRAS.own_fields(extra)
    namespace, name = text_of(own.get(NAMESPACE)), text_of(own.get(NATIVE_NAME))
    joint = whole.removeprefix(namespace).removesuffix(name)
    if namespace and len(namespace + joint + name) == len(whole) and not joint.strip("_"):
        return namespace, name
    return "", whole


def namespaces(tools: Iterable[ToolSpec | Opaque]) -> Mapping[str, tuple[str, str]]:
    """By the joined name: namespace and name of every tool that is in one."""
    found = {tool.name: parted(tool.extra, tool.name) for tool in tools if isinstance(tool, ToolSpec)}
    return {whole: parts for whole, parts in found.items() if parts[0]}


class ToolNameResolver:
    """The tools that a request declares, wherever: which of them a namespace and a name mean."""

    def __init__(self, tools: Iterable[ToolSpec | Opaque]) -> None:
        self._wholes = {parted(tool.extra, tool.name): tool.name for tool in tools if isinstance(tool, ToolSpec)}
        self.names = frozenset(self._wholes.values())
        self._spaces = frozenset(namespace for namespace, _ in self._wholes)

    def whole(self, namespace: str, name: str) -> str:
        """The one name of the tool; both names joined if no declared tool is meant.

        OpenAI's service gives a call of a tool in no namespace that tool's own name as its namespace, and clients send
        it back so. A tool in a namespace may be named without it.
        """
        exact = self._wholes.get((namespace, name))
        whole = join_names(namespace, name)
        if exact is not None or whole in self.names:
            return exact or whole
        if namespace:
            if name in self.names and (namespace == name or namespace not in self._spaces):
                return name
            return self._nested(namespace, name) or whole
        inside = [each for (_, inner), each in self._wholes.items() if inner == name]
        return inside[0] if len(inside) == 1 else whole

    def _nested(self, namespace: str, name: str) -> str | None:
        """The tool of a namespace that stands in another one."""
        end = f"__{namespace}"
        found = [each for (space, inner), each in self._wholes.items() if inner == name and space.endswith(end)]
        return found[0] if len(found) == 1 else None

    def resolve_call(self, call: ToolCall) -> ToolCall:
        """The call with the name of the tool that it means; how it was named is kept for its own family."""
        own = dict(EXTRAS.own_fields(call.extra))
        if CALL_TYPE in own:
            return call
        came = object_of(own.pop(NAMED, None))
        namespace = text_of(came.get("namespace") or own.get(NAMESPACE))
        name = text_of(came.get("name") or own.get(NATIVE_NAME)) or call.name
        whole = self.whole(namespace, name)
        if whole == call.name:
            return call
        if parted(EXTRAS.extra_of(own), whole) != (namespace, name):
            own[NAMED] = {"whole": whole, "name": name, "namespace": namespace}
        return structs.replace(call, name=whole, extra=EXTRAS.extra_of(own))


def original_names(call: ToolCall) -> tuple[str, str]:
    """Namespace and name of a call as it came, unless it was renamed since."""
    came = object_of(EXTRAS.own_fields(call.extra).get(NAMED))
    if came.get("whole") == call.name:
        return text_of(came.get("namespace")), text_of(came.get("name"))
    return parted(call.extra, call.name)


# --- specs


def parse_tools(fields: Fields) -> tuple[ToolSpec | Opaque, ...]:
    tools: list[ToolSpec | Opaque] = []
    for tool in fields.children("tools", ()):
        if tool.peek("type") == "namespace" and tool.peek("tools"):
            tools += _namespace(tool)
        else:
            tools.append(_tool(tool, ""))
    return tuple(tools)


def is_added(tool: ToolSpec | Opaque) -> bool:
    return EXTRAS.own_fields(tool.extra).get(ADDED) is True


def _namespace(fields: Fields) -> Iterable[ToolSpec | Opaque]:
    fields.any("type")
    name = fields.identifier("name")
    inside = fields.children("tools")
    # What else the namespace says, the first of its tools carries.
    about: JsonObject = {
        f"{PARENT_PREFIX}{key}": value
        for key, value in to_extra_names(fields.rest()).items()
        if value not in (None, "")
    }
    for tool in inside:
        if tool.peek("type") == "namespace" and tool.peek("tools"):
            extra = EXTRAS.extra_of({**about, NAMESPACE: name})
            yield Opaque(FAMILY, tool.rest(), "namespace", is_redundant=True, extra=extra, at=Location(tool.at))
            yield from _nested(tool, name)
        else:
            yield _tool(tool, name, about)
        about = {}


def _nested(fields: Fields, outer: str) -> Iterable[ToolSpec | Opaque]:
    """The tools of a namespace in another one, which itself is kept whole: they are for other families alone."""
    name = join_names(outer, fields.identifier("name"))
    for tool in fields.children("tools"):
        inner = _nested(tool, name) if tool.peek("type") == "namespace" else (_tool(tool, name),)
        for each in inner:
            yield structs.replace(each, extra=EXTRAS.extra_of({**EXTRAS.own_fields(each.extra), _NESTED: True}))


def _tool(fields: Fields, namespace: str, about: Mapping[str, Json] = _NOTHING) -> ToolSpec | Opaque:
    kind = fields.peek("type")
    placed: JsonObject = {**about}
    if kind not in ("function", "custom") and not (kind is None and fields.has("name")):
        if not isinstance(kind, str):
            fields.fail("type", f"expected a string, got {describe(kind)}")
        placed |= {NAMESPACE: namespace} if namespace else {}
        data = fields.rest()
        return Opaque(FAMILY, data, kind, effects=_search(data), extra=EXTRAS.extra_of(placed), at=Location(fields.at))
    fields.any("type")
    name, description = fields.identifier("name"), fields.text("description", "")
    placed |= namespace_fields(namespace, name)
    name, strict = join_names(namespace, name), fields.flag("strict", None)
    waits_for: Literal["", "search"] = ""
    if fields.peek(_DEFERRED) is True:
        fields.any(_DEFERRED)
        waits_for = "search"
    if kind == "custom":
        extra = EXTRAS.extra_of({**placed, **_said(fields)})
        return ToolSpec(name, description, strict=strict, waits_for=waits_for, extra=extra, at=Location(fields.at))
    parameters = fields.any("parameters")
    rest, at = _said(fields), Location(fields.at, is_absent=parameters is None)
    schema = take_parameters(parameters, rest)
    extra = EXTRAS.extra_of({**placed, **rest})
    return ToolSpec(name, description, schema, strict=strict, waits_for=waits_for, extra=extra, at=at)


def _search(data: JsonObject) -> tuple[ClientTool, ...]:
    """A search for tools that the client runs is a function to all other families."""
    if data.get("type") != TOOL_SEARCH or data.get("execution") != "client":
        return ()
    schema = data.get("parameters")
    return (
        ClientTool(
            TOOL_SEARCH, text_of(data.get("description")), schema if isinstance(schema, dict) else NO_PARAMETERS
        ),
    )


def has_client_search(tools: Iterable[ToolSpec | Opaque]) -> bool:
    """Whether the client runs a search for tools, whose calls have an item type of their own."""
    return any(
        isinstance(tool, Opaque) and any(isinstance(each, ClientTool) for each in tool.effects) for tool in tools
    )


def _said(fields: Fields) -> JsonObject:
    return {name: value for name, value in to_extra_names(fields.rest()).items() if value is not None}


def render_tools(tools: Sequence[ToolSpec | Opaque]) -> list[Json]:
    rendered: list[Json] = []
    inside: list[Json] = []  # of the namespace that was written last
    current = ""
    for tool in tools:
        own = EXTRAS.own_fields(tool.extra)
        if ADDED in own or _NESTED in own:
            continue
        namespace, about = text_of(own.get(NAMESPACE)), parent_fields(own)
        if isinstance(tool, ToolSpec):
            namespace = parted(tool.extra, tool.name)[0]
        if not namespace:
            rendered.append(_render_tool(tool))
        else:
            if namespace != current or about:
                inside = []
                rendered.append({"type": "namespace", "name": namespace, **about, "tools": inside})
            inside.append(_render_tool(tool))
        current = namespace
    return rendered


def _render_tool(tool: ToolSpec | Opaque) -> Json:
    requests.refuse_foreign_tool(tool, FAMILY, API_NAME)
    if isinstance(tool, Opaque):
        return tool.data
    kind = "custom" if tool.schema is None else "function"
    body: JsonObject = {"type": kind, **requests.render_function(tool, parted(tool.extra, tool.name)[1])}
    if tool.waits_for == "search":
        body[_DEFERRED] = True
    return {**body, **EXTRAS.wire_fields(tool.extra)}


# --- choice


def parse_choice(fields: Fields, tools: Sequence[ToolSpec | Opaque]) -> tuple[ToolChoice, JsonObject]:
    """The choice, and the field as it came where it says what we have no word for, or names another namespace."""
    value, parallel = fields.any("tool_choice"), fields.flag("parallel_tool_calls", None)
    declared = ToolNameResolver(tools)
    choice = requests.parse_choice(fields, "tool_choice", value, lambda tool: _chosen(tool, declared))
    if choice is None:
        return ToolChoice(parallel=parallel), {"tool_choice": value}
    named = ToolChoice(choice.mode, choice.names, parallel)
    if not _names_another_namespace(value, choice.names, tools):
        return named, {}
    return named, {CHOSEN: {"names": list(choice.names), "tool_choice": value}}


def _names_another_namespace(value: Json, names: Sequence[str], tools: Sequence[ToolSpec | Opaque]) -> bool:
    """Whether the choice gives a tool a namespace that the tool is not declared in."""
    given = object_of(value).get("tools")
    entries = given if isinstance(given, list) else [value]
    spaces = [object_of(entry).get("namespace") for entry in entries]
    inside = namespaces(tools)
    return len(spaces) == len(names) and any(
        space and space != inside.get(name, ("", name))[0] for space, name in zip(spaces, names, strict=True)
    )


def _chosen(fields: Fields, tools: ToolNameResolver) -> str | None:
    """The name of a chosen tool, None if it stands in a namespace that the request does not declare."""
    name, namespace = fields.identifier("name"), fields.text("namespace", "")
    whole = tools.whole(namespace, name)
    return whole if whole in tools.names or not namespace else None


def render_choice(conversation: Conversation) -> JsonObject:
    choice, inside = conversation.tool_choice, namespaces(conversation.tools)
    free = requests.free_text_tools(conversation.tools)

    def named(whole: str) -> Json:
        namespace, name = inside.get(whole, ("", whole))
        kind = "custom" if whole in free else "function"
        return {"type": kind, "name": name, "namespace": namespace} if namespace else {"type": kind, "name": name}

    fields = requests.render_choice(choice, API_NAME, named, lambda some: some)
    came = object_of(EXTRAS.own_fields(conversation.extra).get(CHOSEN))
    if came and came.get("names") == list(choice.names):
        fields["tool_choice"] = came.get("tool_choice")
    return fields


# --- tools that items of the input declare, and the one name of each tool in all that speaks of it

ADDITIONAL_TOOLS = "additional_tools"  # the items that declare tools
TOOL_SEARCH_OUTPUT = "tool_search_output"
TOOL_SEARCH_CALL = "tool_search_call"
_NOTHING_FOUND = "No tool was found."


def with_added_tools(tools: Sequence[ToolSpec | Opaque], messages: Iterable[Message]) -> tuple[ToolSpec | Opaque, ...]:
    """These tools, and those that items of the input bring: Codex's own model gets all of its tools so.

    What says the same of a tool again is left out.
    """
    known = {parted(tool.extra, tool.name): tool for tool in tools if isinstance(tool, ToolSpec)}
    added: list[ToolSpec | Opaque] = []
    for message in messages:
        for block in message.blocks:
            if (
                isinstance(block, Opaque)
                and block.kind in (ADDITIONAL_TOOLS, TOOL_SEARCH_OUTPUT)
                and block.family == FAMILY
            ):
                added += _added(block, known)
    return (*tools, *added)


def _tools_in(item: Opaque) -> tuple[ToolSpec | Opaque, ...]:
    return parse_tools(Fields(item.data, item.at.path))


def _added(item: Opaque, known: dict[tuple[str, str], ToolSpec]) -> Iterator[ToolSpec | Opaque]:
    for tool in _tools_in(item):
        marked = structs.replace(tool, extra=EXTRAS.extra_of({**EXTRAS.own_fields(tool.extra), ADDED: True}))
        if isinstance(marked, Opaque):
            yield marked
            continue
        name = parted(tool.extra, marked.name)
        before = known.get(name)
        if before is None or not before.has_same_definition(marked):
            waits = item.kind == ADDITIONAL_TOOLS and marked.waits_for == "search" and before is None
            known[name] = marked if waits else structs.replace(marked, waits_for="block")
            yield known[name]


def name_tools(
    tools: Sequence[ToolSpec | Opaque], messages: Sequence[Message]
) -> tuple[tuple[ToolSpec | Opaque, ...], tuple[Message, ...]]:
    """The same with one name for each tool, in its definition, its calls and the items that bring it."""
    tools = _told_apart(tools)
    declared = ToolNameResolver(tools)

    def block_of(block: Block) -> Block:
        if isinstance(block, ToolCall):
            return declared.resolve_call(block)
        if isinstance(block, Opaque) and block.family == FAMILY and block.kind in _MEANINGS:
            return structs.replace(block, effects=_MEANINGS[block.kind](block, declared))
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


def _names(tools: Iterable[ToolSpec | Opaque], declared: ToolNameResolver) -> list[str]:
    return [declared.whole(*parted(tool.extra, tool.name)) for tool in tools if isinstance(tool, ToolSpec)]


def _adding(item: Opaque, declared: ToolNameResolver) -> tuple[Effect, ...]:
    offered = [tool for tool in _tools_in(item) if isinstance(tool, ToolSpec) and tool.waits_for != "search"]
    return tuple(map(DefinedTool, _names(offered, declared)))


def _searching(item: Opaque, declared: ToolNameResolver) -> tuple[Effect, ...]:
    data = object_of(item.data)
    call_id = client_call_id(data)
    if not call_id:
        return ()
    given = data.get("arguments")
    arguments = given if isinstance(given, str) else jsonio.encode_to_text(given if given is not None else {})
    return (ToolCall(call_id, TOOL_SEARCH, arguments, at=item.at),)


def _found(item: Opaque, declared: ToolNameResolver) -> tuple[Effect, ...]:
    data = object_of(item.data)
    call_id = client_call_id(data)
    if not call_id:
        found = _names(_tools_in(item), declared)
        return (*map(DefinedTool, found), *map(ShownTool, found))
    parts: list[Text | Opaque] = []
    given = data.get("tools")
    for index, entry in enumerate(given if isinstance(given, list) else ()):
        at = f"{item.at.path}.tools[{index}]"
        names = _names(parse_tools(Fields({"tools": [entry]}, item.at.path)), declared)
        kind = text_of(object_of(entry).get("type")) or "tool"
        effects: list[Effect] = [*map(DefinedTool, names), *map(ShownTool, names)]
        parts.append(Opaque(FAMILY, entry, kind, effects=tuple(effects), at=Location(at)))
    return (ToolResult(call_id, tuple(parts) or (Text(_NOTHING_FOUND),), at=item.at),)


_MEANINGS = {ADDITIONAL_TOOLS: _adding, TOOL_SEARCH_CALL: _searching, TOOL_SEARCH_OUTPUT: _found}


def client_call_id(item: JsonObject) -> str:
    """The id of the call, if the client runs this search; "" if the service did."""
    return "" if item.get("execution") == "server" else text_of(item.get("call_id"))
