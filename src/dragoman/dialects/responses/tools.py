"""Parse and render tools, tool choice and tool namespaces of the Responses API. Pure.

A namespace contains tools whose names are unique only inside it. No other dialect has namespaces, so the canonical name
of such a tool joins both names. The two original names are kept with the tool, and restored in replies. If another tool
has the joined name, the separator gets longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import structs

from dragoman.dialects.kit import openai_requests as requests
from dragoman.dialects.kit.openai_requests import take_parameters
from dragoman.dialects.kit.values import NO_PARAMETERS
from dragoman.dialects.responses import web_search
from dragoman.dialects.responses.blocks import API_NAME, EXTRAS, FAMILY, object_of, text_of
from dragoman.dialects.responses.web_search import declared_web_search
from dragoman.model.blocks import (
    Block,
    ClientTool,
    DefinedTool,
    Effect,
    Extra,
    FoundTools,
    Location,
    Opaque,
    ShownTool,
    Text,
    ToolCall,
    ToolResult,
    ToolSearch,
    WebResults,
    WebSearch,
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
from dragoman.wire.jsonio import Json, JsonObject

CALL_TYPE = "~type"  # on a call or a result that is neither a function's nor a custom tool's: its type
CHOSEN = "~chosen"  # on a request: its original tool choice, if it uses other names than the declarations
NAMED = "~named_so"  # on a call: its original names, if they differ from those of its tool
NAMESPACE = "~namespace"  # on a tool or a call: its namespace
ADDED = "~added"  # on a tool that an item of the input declares; the item is kept and declares it again
_NESTED = "~nested"  # on a tool in a nested namespace, which is kept whole and declares it again
_DEFERRED = "defer_loading"
TOOL_SEARCH = "tool_search"  # the type of the tool that finds others, and its name as a function
_NOTHING: Mapping[str, Json] = {}


def join_names(namespace: str, name: str) -> str:
    """Return the joined name of a tool in a namespace. The namespace of an MCP server often ends with the separator."""
    return f"{namespace}{name}" if not namespace or namespace.endswith("_") else f"{namespace}__{name}"


def namespace_fields(namespace: str, name: str) -> JsonObject:
    """Return the marks of a tool or a call that keep its namespace and name."""
    return {NAMESPACE: namespace, NATIVE_NAME: name} if namespace else {}


def split_name(extra: Extra | None, whole: str) -> tuple[str, str]:
    """Return namespace and name of a tool. The namespace is "" if it has none, or if the tool was renamed."""
    own = EXTRAS.own_fields(extra)
    namespace, name = text_of(own.get(NAMESPACE)), text_of(own.get(NATIVE_NAME))
    separator = whole.removeprefix(namespace).removesuffix(name)
    if namespace and len(namespace + separator + name) == len(whole) and not separator.strip("_"):
        return namespace, name
    return "", whole


def namespaces(tools: Iterable[ToolSpec | Opaque]) -> Mapping[str, tuple[str, str]]:
    """Return namespace and name of every tool in a namespace, by the joined name."""
    split = {tool.name: split_name(tool.extra, tool.name) for tool in tools if isinstance(tool, ToolSpec)}
    return {whole: parts for whole, parts in split.items() if parts[0]}


class ToolNameResolver:
    """Finds the declared tool that a namespace and a name refer to."""

    def __init__(self, tools: Iterable[ToolSpec | Opaque]) -> None:
        self._canonical = {split_name(tool.extra, tool.name): tool.name for tool in tools if isinstance(tool, ToolSpec)}
        self.names = frozenset(self._canonical.values())
        self._namespaces = frozenset(namespace for namespace, _ in self._canonical)

    def whole(self, namespace: str, name: str) -> str:
        """Return the canonical name of the tool; the joined names if no declared tool matches.

        For a tool without a namespace OpenAI's service sends the tool's name as the namespace of its calls, and clients
        send it back. A tool in a namespace may be named without it.
        """
        exact = self._canonical.get((namespace, name))
        whole = join_names(namespace, name)
        if exact is not None or whole in self.names:
            return exact or whole
        if namespace:
            if name in self.names and (namespace == name or namespace not in self._namespaces):
                return name
            return self._nested(namespace, name) or whole
        inside = [each for (_, inner), each in self._canonical.items() if inner == name]
        return inside[0] if len(inside) == 1 else whole

    def _nested(self, namespace: str, name: str) -> str | None:
        """Return the tool of a nested namespace."""
        end = f"__{namespace}"
        matching = [each for (space, inner), each in self._canonical.items() if inner == name and space.endswith(end)]
        return matching[0] if len(matching) == 1 else None

    def resolve_call(self, call: ToolCall) -> ToolCall:
        """Return the call with the canonical name of its tool. Its original names are kept for this family."""
        own = dict(EXTRAS.own_fields(call.extra))
        if CALL_TYPE in own:
            return call
        original = object_of(own.pop(NAMED, None))
        namespace = text_of(original.get("namespace") or own.get(NAMESPACE))
        name = text_of(original.get("name") or own.get(NATIVE_NAME)) or call.name
        whole = self.whole(namespace, name)
        if whole == call.name:
            return call
        if split_name(EXTRAS.extra_of(own), whole) != (namespace, name):
            own[NAMED] = {"whole": whole, "name": name, "namespace": namespace}
        return structs.replace(call, name=whole, extra=EXTRAS.extra_of(own))


def original_names(call: ToolCall) -> tuple[str, str]:
    """Return the original namespace and name of a call, or those of its new name if it was renamed."""
    original = object_of(EXTRAS.own_fields(call.extra).get(NAMED))
    if original.get("whole") == call.name:
        return text_of(original.get("namespace")), text_of(original.get("name"))
    return split_name(call.extra, call.name)


# --- specs


def parse_tools(fields: Fields) -> tuple[ToolSpec | Opaque, ...]:
    """Read `tools`, those of namespaces included. Raises MalformedRequest."""
    tools: list[ToolSpec | Opaque] = []
    for tool in fields.children("tools", ()):
        if tool.peek("type") == "namespace" and tool.peek("tools"):
            tools += _namespace(tool)
        else:
            tools.append(_tool(tool, ""))
    return tuple(tools)


def is_added(tool: ToolSpec | Opaque) -> bool:
    """Return whether an item of the input declared the tool."""
    return EXTRAS.own_fields(tool.extra).get(ADDED) is True


def _namespace(fields: Fields) -> Iterable[ToolSpec | Opaque]:
    fields.any("type")
    name = fields.identifier("name")
    inside = fields.children("tools")
    # The first tool carries the other fields of the namespace.
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
    """Yield the tools of a nested namespace for other families; for this one the namespace is kept whole."""
    name = join_names(outer, fields.identifier("name"))
    for tool in fields.children("tools"):
        inner = _nested(tool, name) if tool.peek("type") == "namespace" else (_tool(tool, name),)
        for each in inner:
            yield structs.replace(each, extra=EXTRAS.extra_of({**EXTRAS.own_fields(each.extra), _NESTED: True}))


def _tool(fields: Fields, namespace: str, about: Mapping[str, Json] = _NOTHING) -> ToolSpec | Opaque:
    kind = fields.peek("type")
    marks: JsonObject = {**about}
    if kind not in ("function", "custom") and not (kind is None and fields.has("name")):
        if not isinstance(kind, str):
            fields.fail("type", f"expected a string, got {describe(kind)}")
        marks |= {NAMESPACE: namespace} if namespace else {}
        data = fields.rest()
        return Opaque(FAMILY, data, kind, effects=_search(data), extra=EXTRAS.extra_of(marks), at=Location(fields.at))
    fields.any("type")
    name, description = fields.identifier("name"), fields.text("description", "")
    marks |= namespace_fields(namespace, name)
    name, strict = join_names(namespace, name), fields.flag("strict", None)
    waits_for: Literal["", "search"] = ""
    if fields.peek(_DEFERRED) is True:
        fields.any(_DEFERRED)
        waits_for = "search"
    if kind == "custom":
        extra = EXTRAS.extra_of({**marks, **_extra_fields(fields)})
        return ToolSpec(name, description, strict=strict, waits_for=waits_for, extra=extra, at=Location(fields.at))
    parameters = fields.any("parameters")
    rest, at = _extra_fields(fields), Location(fields.at, is_absent=parameters is None)
    schema = take_parameters(parameters, rest)
    extra = EXTRAS.extra_of({**marks, **rest})
    return ToolSpec(name, description, schema, strict=strict, waits_for=waits_for, extra=extra, at=at)


def _search(data: JsonObject) -> tuple[ClientTool | ToolSearch | WebSearch, ...]:
    """Return the effect of a search: the function in place of a client's, or a search of the service."""
    if data.get("type") != TOOL_SEARCH:
        return declared_web_search(data)
    if data.get("execution") != "client":
        return (ToolSearch(),)
    schema = data.get("parameters")
    return (
        ClientTool(
            TOOL_SEARCH, text_of(data.get("description")), schema if isinstance(schema, dict) else NO_PARAMETERS
        ),
    )


def has_client_search(tools: Iterable[ToolSpec | Opaque]) -> bool:
    """Return whether the client runs the tool search, whose calls have their own item type."""
    return any(
        isinstance(tool, Opaque) and any(isinstance(each, ClientTool) for each in tool.effects) for tool in tools
    )


def _extra_fields(fields: Fields) -> JsonObject:
    return {name: value for name, value in to_extra_names(fields.rest()).items() if value is not None}


def render_tools(tools: Sequence[ToolSpec | Opaque]) -> list[Json]:
    """Write `tools`, with namespaces restored. Raises Unrepresentable for a tool of another family."""
    rendered: list[Json] = []
    inside: list[Json] = []  # the tools of the current namespace
    current = ""
    for tool in tools:
        own = EXTRAS.own_fields(tool.extra)
        if ADDED in own or _NESTED in own:
            continue
        namespace, about = text_of(own.get(NAMESPACE)), parent_fields(own)
        if isinstance(tool, ToolSpec):
            namespace = split_name(tool.extra, tool.name)[0]
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
        options = [effect.options for effect in tool.effects if isinstance(effect, WebSearch)]
        return tool.data or (web_search.render_tool(options[0]) if options else {"type": TOOL_SEARCH})
    kind = "custom" if tool.schema is None else "function"
    body: JsonObject = {"type": kind, **requests.render_function(tool, split_name(tool.extra, tool.name)[1])}
    if tool.waits_for == "search":
        body[_DEFERRED] = True
    return {**body, **EXTRAS.wire_fields(tool.extra)}


# --- choice


def parse_choice(fields: Fields, tools: Sequence[ToolSpec | Opaque]) -> tuple[ToolChoice, JsonObject]:
    """Return the tool choice and fields to keep: an unknown choice, or one that names another namespace."""
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
    """Return whether the choice names a tool with a namespace in which it is not declared."""
    listed = object_of(value).get("tools")
    entries = listed if isinstance(listed, list) else [value]
    spaces = [object_of(entry).get("namespace") for entry in entries]
    inside = namespaces(tools)
    return len(spaces) == len(names) and any(
        space and space != inside.get(name, ("", name))[0] for space, name in zip(spaces, names, strict=True)
    )


def _chosen(fields: Fields, tools: ToolNameResolver) -> str | None:
    """Return the name of a chosen tool; None if its namespace is not declared."""
    name, namespace = fields.identifier("name"), fields.text("namespace", "")
    whole = tools.whole(namespace, name)
    return whole if whole in tools.names or not namespace else None


def render_choice(conversation: Conversation) -> JsonObject:
    """Return the fields `tool_choice` and `parallel_tool_calls` of a request, as far as it needs them."""
    choice, inside = conversation.tool_choice, namespaces(conversation.tools)
    text_tools = requests.free_text_tools(conversation.tools)

    def render_name(whole: str) -> Json:
        namespace, name = inside.get(whole, ("", whole))
        kind = "custom" if whole in text_tools else "function"
        return {"type": kind, "name": name, "namespace": namespace} if namespace else {"type": kind, "name": name}

    fields = requests.render_choice(choice, API_NAME, render_name, lambda some: some)
    original = object_of(EXTRAS.own_fields(conversation.extra).get(CHOSEN))
    if original and original.get("names") == list(choice.names):
        fields["tool_choice"] = original.get("tool_choice")
    return fields


# --- tools that items of the input declare, and the canonical name of each tool in everything that refers to it

ADDITIONAL_TOOLS = "additional_tools"  # the items that declare tools
TOOL_SEARCH_OUTPUT = "tool_search_output"
TOOL_SEARCH_CALL = "tool_search_call"
_NOTHING_FOUND = "No tool was found."


def with_added_tools(tools: Sequence[ToolSpec | Opaque], messages: Iterable[Message]) -> tuple[ToolSpec | Opaque, ...]:
    """Return these tools and those that items of the input declare, as Codex does for its own model.

    A repeated definition of the same tool is left out.
    """
    known = {split_name(tool.extra, tool.name): tool for tool in tools if isinstance(tool, ToolSpec)}
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


def _declared_tools(item: Opaque) -> tuple[ToolSpec | Opaque, ...]:
    return parse_tools(Fields(item.data, item.at.path))


def _added(item: Opaque, known: dict[tuple[str, str], ToolSpec]) -> Iterator[ToolSpec | Opaque]:
    for tool in _declared_tools(item):
        marked = structs.replace(tool, extra=EXTRAS.extra_of({**EXTRAS.own_fields(tool.extra), ADDED: True}))
        if isinstance(marked, Opaque):
            yield marked
            continue
        name = split_name(tool.extra, marked.name)
        earlier = known.get(name)
        if earlier is None or not earlier.has_same_definition(marked):
            is_deferred = item.kind == ADDITIONAL_TOOLS and marked.waits_for == "search" and earlier is None
            known[name] = marked if is_deferred else structs.replace(marked, waits_for="block")
            yield known[name]


def name_tools(
    tools: Sequence[ToolSpec | Opaque], messages: Sequence[Message]
) -> tuple[tuple[ToolSpec | Opaque, ...], tuple[Message, ...]]:
    """Give each tool one canonical name, in its definition, its calls and the items that declare it."""
    tools = _with_unique_names(tools)
    declared = ToolNameResolver(tools)

    def block_of(block: Block) -> Block:
        if isinstance(block, ToolCall):
            return declared.resolve_call(block)
        if isinstance(block, Opaque) and block.family == FAMILY and block.kind in _EFFECTS:
            return structs.replace(block, effects=_EFFECTS[block.kind](block, declared))
        return block

    turns: list[Message] = []
    for message in messages:
        blocks = tuple(map(block_of, message.blocks))
        turns.append(message if blocks == message.blocks else structs.replace(message, blocks=blocks))
    return tuple(tools), tuple(turns)


def _with_unique_names(tools: Sequence[ToolSpec | Opaque]) -> Sequence[ToolSpec | Opaque]:
    """Return the tools with unique names: a joined name that another tool has gets a longer separator."""
    specs = [tool for tool in tools if isinstance(tool, ToolSpec)]
    wholes = {split_name(tool.extra, tool.name): tool.name for tool in specs}
    if len(wholes) == len({tool.name for tool in specs}):
        return tools
    used_names = {whole for (namespace, _), whole in wholes.items() if not namespace}
    for (namespace, name), whole in wholes.items():
        unique_name = whole
        while namespace and unique_name in used_names:
            unique_name = f"{unique_name.removesuffix(name)}_{name}"
        used_names.add(unique_name)
        wholes[namespace, name] = unique_name
    return [
        structs.replace(tool, name=wholes[split_name(tool.extra, tool.name)]) if isinstance(tool, ToolSpec) else tool
        for tool in tools
    ]


# --- the effects of the items


def _names(tools: Iterable[ToolSpec | Opaque], declared: ToolNameResolver) -> list[str]:
    return [declared.whole(*split_name(tool.extra, tool.name)) for tool in tools if isinstance(tool, ToolSpec)]


def _added_effects(item: Opaque, declared: ToolNameResolver) -> tuple[Effect, ...]:
    offered = [tool for tool in _declared_tools(item) if isinstance(tool, ToolSpec) and tool.waits_for != "search"]
    return tuple(map(DefinedTool, _names(offered, declared)))


def _search_call_effects(item: Opaque, declared: ToolNameResolver) -> tuple[Effect, ...]:
    data = object_of(item.data)
    call_id = client_call_id(data)
    value = data.get("arguments")
    if not call_id:
        return (ToolSearch(text_of(data.get("id")), object_of(value)),)
    arguments = value if isinstance(value, str) else jsonio.encode_to_text(value if value is not None else {})
    return (ToolCall(call_id, TOOL_SEARCH, arguments, at=item.at),)


def _search_output_effects(item: Opaque, declared: ToolNameResolver) -> tuple[Effect, ...]:
    data = object_of(item.data)
    call_id = client_call_id(data)
    if not call_id:
        names = _names(_declared_tools(item), declared)
        return (FoundTools("", tuple(names)), *map(DefinedTool, names), *map(ShownTool, names))
    parts: list[Text | Opaque] = []
    entries = data.get("tools")
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        at = f"{item.at.path}.tools[{index}]"
        names = _names(parse_tools(Fields({"tools": [entry]}, item.at.path)), declared)
        kind = text_of(object_of(entry).get("type")) or "tool"
        effects: list[Effect] = [*map(DefinedTool, names), *map(ShownTool, names)]
        parts.append(Opaque(FAMILY, entry, kind, effects=tuple(effects), at=Location(at)))
    return (ToolResult(call_id, tuple(parts) or (Text(_NOTHING_FOUND),), at=item.at),)


def _web_search_effects(item: Opaque, declared: ToolNameResolver) -> tuple[Effect, ...]:
    return item.effects or web_search.web_search_effects(object_of(item.data))


_EFFECTS = {
    ADDITIONAL_TOOLS: _added_effects,
    TOOL_SEARCH_CALL: _search_call_effects,
    TOOL_SEARCH_OUTPUT: _search_output_effects,
    web_search.CALL: _web_search_effects,
}


def with_search_effects(item: Opaque, declared: ToolNameResolver) -> Opaque:
    """Return an output item with its effects if it is a part of a search that the service makes."""
    is_tool_search = item.kind in (TOOL_SEARCH_CALL, TOOL_SEARCH_OUTPUT) and not client_call_id(object_of(item.data))
    is_search = is_tool_search or item.kind == web_search.CALL
    return structs.replace(item, effects=_EFFECTS[item.kind](item, declared)) if is_search else item


def render_search(block: Opaque, tools: Sequence[ToolSpec | Opaque]) -> JsonObject:
    """Write an item of a tool search from its effect; what was found is written with its definitions."""
    common: JsonObject = {"execution": "server", "call_id": None, "status": "completed"}
    match block.effects:
        case (ToolSearch(arguments=arguments), *_):
            return {"type": TOOL_SEARCH_CALL, **common, "arguments": {**arguments}}
        case (FoundTools(names=names), *_):
            known = {tool.name: tool for tool in tools if isinstance(tool, ToolSpec)}
            found = render_tools([known[name] for name in names if name in known])
            return {"type": TOOL_SEARCH_OUTPUT, **common, "tools": found}
        case (WebSearch() as search, *_):
            return web_search.render_call(search, WebResults(search.id), shows_sources=False)
        case _:
            return {}


def client_call_id(item: JsonObject) -> str:
    """Return the id of the call if the client runs this search; "" if the service runs it."""
    return "" if item.get("execution") == "server" else text_of(item.get("call_id"))
