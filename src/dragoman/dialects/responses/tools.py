"""Tools, the choice among them, and namespaces.

A namespace holds tools whose names mean something inside it only. Nobody else has such a thing, so a tool in one is
known everywhere by both names joined; which two they were is remembered as its spelling and found again in answers.
Where another tool has the joined name, the joint grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import structs

from dragoman.dialects.responses.nodes import (
    FAMILY,
    JsonObject,
    extra_of,
    own_fields,
    required,
    text_of,
    wire_fields,
)
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Extra, Node, Opaque, ToolCall, Where
from dragoman.model.conversation import Conversation, Message, ToolChoice, ToolSpec
from dragoman.model.naming import NAME_AT_HOME, OUTER, of_what_it_came_in, to_keep
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json

N = TypeVar("N", bound=Node)

ADDING = "additional_tools"  # an item
NAMESPACE = "~namespace"  # on a tool or a call: the namespace it belongs to
_ADDED = "~added"  # on a tool that came in an item of the input, which still says it
_NOTHING: Mapping[str, Json] = {}
_NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}
_MODES = {"auto": ToolChoice("auto"), "required": ToolChoice("any"), "none": ToolChoice("none")}
_OTHER_MODES = {**_MODES, "any": ToolChoice("any"), "validated": ToolChoice("auto")}  # the words of other vendors
_WORDS = {"auto": "auto", "any": "required", "none": "none"}


def joined(namespace: str, name: str) -> str:
    """The one name of a tool in a namespace. Servers' namespaces often end with the joint already."""
    return f"{namespace}{name}" if not namespace or namespace.endswith("_") else f"{namespace}__{name}"


def both_names(namespace: str, name: str) -> JsonObject:
    """What a tool or a call remembers of the two names that were joined."""
    return {NAMESPACE: namespace, NAME_AT_HOME: name} if namespace else {}


def parted(extra: Extra | None, whole: str) -> tuple[str, str]:
    """Both names of a tool; the namespace is empty if it is in none, or was renamed and is known by its one name."""
    own = own_fields(extra)
    namespace, name = text_of(own.get(NAMESPACE)), text_of(own.get(NAME_AT_HOME))
    joint = whole.removeprefix(namespace).removesuffix(name)
    if namespace and len(namespace + joint + name) == len(whole) and not joint.strip("_"):
        return namespace, name
    return "", whole


def namespaces(tools: Iterable[ToolSpec | Opaque]) -> Mapping[str, tuple[str, str]]:
    """By the joined name: namespace and name of every tool that is in one."""
    found = {tool.name: parted(tool.extra, tool.name) for tool in tools if isinstance(tool, ToolSpec)}
    return {whole: parts for whole, parts in found.items() if parts[0]}


def told_apart(
    tools: Sequence[ToolSpec | Opaque], messages: Sequence[Message]
) -> tuple[tuple[ToolSpec | Opaque, ...], tuple[Message, ...]]:
    """The same with a longer joint in each joined name that another tool has: `a__b` is not the `b` in `a`."""
    specs = [tool for tool in tools if isinstance(tool, ToolSpec)]
    wholes = {parted(tool.extra, tool.name): tool.name for tool in specs}
    if len(wholes) == len({tool.name for tool in specs}):
        return tuple(tools), tuple(messages)
    taken = {whole for (namespace, _), whole in wholes.items() if not namespace}
    for (namespace, name), whole in wholes.items():
        free = whole
        while namespace and free in taken:
            free = f"{free.removesuffix(name)}_{name}"
        taken.add(free)
        wholes[namespace, name] = free

    def named(node: N) -> N:
        if not isinstance(node, ToolSpec | ToolCall):
            return node
        return structs.replace(node, name=wholes.get(parted(node.extra, node.name), node.name))

    turns = [structs.replace(message, blocks=tuple(map(named, message.blocks))) for message in messages]
    return tuple(map(named, tools)), tuple(turns)


# --- specs


def parse_tools(fields: Fields) -> tuple[ToolSpec | Opaque, ...]:
    tools: list[ToolSpec | Opaque] = []
    for tool in fields.children("tools", ()):
        if tool.peek("type") == "namespace" and tool.peek("tools"):
            tools += _namespace(tool)
        else:
            tools.append(_tool(tool, ""))
    return tuple(tools)


def with_added(tools: Sequence[ToolSpec | Opaque], messages: Iterable[Message]) -> tuple[ToolSpec | Opaque, ...]:
    """These tools, and those that items of the input bring: Codex's own model gets all of its tools so."""
    added: dict[tuple[str, str], ToolSpec | Opaque] = {}
    for message in messages:
        for block in message.blocks:
            if isinstance(block, Opaque) and block.kind == ADDING and block.family == FAMILY:
                for tool in parse_tools(Fields(block.data, block.at.path)):
                    marked = structs.replace(tool, extra=extra_of({**own_fields(tool.extra), _ADDED: True}))
                    name = tool.name if isinstance(tool, ToolSpec) else f"{len(added)} {tool.kind}"
                    added[parted(tool.extra, name)] = marked
    named = {parted(tool.extra, tool.name) for tool in tools if isinstance(tool, ToolSpec)}
    return (*tools, *(tool for name, tool in added.items() if name not in named))


def is_added(tool: ToolSpec | Opaque) -> bool:
    return own_fields(tool.extra).get(_ADDED) is True


def _namespace(fields: Fields) -> Iterable[ToolSpec | Opaque]:
    fields.any("type")
    name = required(fields, "name")
    inside = fields.children("tools")
    # What else the namespace says, the first of its tools carries.
    about: JsonObject = {
        f"{OUTER}{key}": value for key, value in to_keep(fields.rest()).items() if value not in (None, "")
    }
    for tool in inside:
        yield _tool(tool, name, about)
        about = {}


def _tool(fields: Fields, namespace: str, about: Mapping[str, Json] = _NOTHING) -> ToolSpec | Opaque:
    kind = fields.peek("type")
    placed: JsonObject = {**about}
    if kind not in ("function", "custom") and not (kind is None and fields.has("name")):
        if not isinstance(kind, str):
            fields.fail("type", f"expected a string, got {describe(kind)}")
        placed |= {NAMESPACE: namespace} if namespace else {}
        return Opaque(FAMILY, fields.rest(), kind, extra=extra_of(placed), at=Where(fields.at))
    fields.any("type")
    name, description = required(fields, "name"), fields.text("description", "")
    placed |= both_names(namespace, name)
    name, strict = joined(namespace, name), fields.flag("strict", None)
    if kind == "custom":
        extra = extra_of({**placed, **_said(fields)})
        return ToolSpec(name, description, strict=strict, extra=extra, at=Where(fields.at))
    parameters = fields.any("parameters")
    rest, at = _said(fields), Where(fields.at, bare=parameters is None)
    if not isinstance(parameters, dict):
        if parameters is not None:
            rest["parameters"] = parameters  # no schema, but what was said
        parameters = dict(_NO_PARAMETERS)
    extra = extra_of({**placed, **rest})
    return ToolSpec(name, description, parameters, strict=strict, extra=extra, at=at)


def _said(fields: Fields) -> JsonObject:
    return {name: value for name, value in to_keep(fields.rest()).items() if value is not None}


def render_tools(tools: Sequence[ToolSpec | Opaque]) -> list[Json]:
    rendered: list[Json] = []
    inside: list[Json] = []  # of the namespace that was written last
    current = ""
    for tool in tools:
        own = own_fields(tool.extra)
        if is_added(tool):
            continue
        namespace, about = text_of(own.get(NAMESPACE)), of_what_it_came_in(own)
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
    if tool.cache is not None:
        raise Unrepresentable("Responses has no cache breakpoints", at=tool.at.path)
    if isinstance(tool, Opaque):
        if tool.family != FAMILY:
            raise Unrepresentable(f"Responses has no {tool.family} tools", at=tool.at.path)
        return tool.data
    body: JsonObject = {
        "type": "custom" if tool.schema is None else "function",
        "name": parted(tool.extra, tool.name)[1],
    }
    if tool.description:
        body["description"] = tool.description
    if tool.schema is not None:
        body["parameters"] = dict(tool.schema)
    if tool.strict is not None:
        body["strict"] = tool.strict
    return {**body, **wire_fields(tool.extra)}


# --- choice


def parse_choice(fields: Fields, tools: Sequence[ToolSpec | Opaque]) -> tuple[ToolChoice, JsonObject]:
    """The choice, and the field as it came where it says what we have no word for."""
    value, parallel = fields.any("tool_choice"), fields.flag("parallel_tool_calls", None)
    choice = _choice(fields, value, tools)
    if choice is None:
        return ToolChoice(parallel=parallel), {"tool_choice": value}
    return ToolChoice(choice.mode, choice.names, parallel), {}


def _choice(fields: Fields, value: Json, tools: Sequence[ToolSpec | Opaque]) -> ToolChoice | None:
    match value:
        case None:
            return ToolChoice()
        case str():
            if value.lower() not in _OTHER_MODES:
                fields.fail("tool_choice", f"expected one of {', '.join(_MODES)} or an object")
            return _OTHER_MODES[value.lower()]
        case {"type": str(mode), **more} if mode in _OTHER_MODES and not more:
            return _OTHER_MODES[mode]
        case {"type": "function" | "custom" | "tool"}:
            name = _chosen(Fields(value, fields.path("tool_choice")), tools)
            return ToolChoice("one", (name,)) if name else None
        case {"type": "allowed_tools"}:
            return _allowed(Fields(value, fields.path("tool_choice")), tools)
        case dict():
            return None
        case _:
            raise fields.blame(f"expected a string or an object, got {describe(value)}", at=fields.path("tool_choice"))


def _chosen(fields: Fields, tools: Sequence[ToolSpec | Opaque]) -> str | None:
    """The name of a chosen tool, None if nobody knows its namespace; one that stands in a namespace may be named
    without it."""
    inner = fields.maybe_child(str(fields.peek("type"))) or fields  # Chat's form
    name, namespace = required(inner, "name"), inner.text("namespace", "")
    inside = namespaces(tools)
    if namespace:
        return next((whole for whole, parts in inside.items() if parts == (namespace, name)), None)
    if any(isinstance(tool, ToolSpec) and tool.name == name for tool in tools):
        return name
    return next((whole for whole, parts in inside.items() if parts[1] == name), name)


def _allowed(fields: Fields, tools: Sequence[ToolSpec | Opaque]) -> ToolChoice | None:
    inner = fields.maybe_child("allowed_tools") or fields  # Chat's form
    mode = inner.one_of("mode", {"auto": "auto", "required": "any"}, "auto")
    names: list[str] = []
    for tool in inner.children("tools"):
        if tool.peek("type") not in ("function", "custom"):
            return None
        name = _chosen(tool, tools)
        if name is None:
            return None
        names.append(name)
    return ToolChoice("any" if mode == "any" else "auto", tuple(names)) if names else None


def render_choice(conversation: Conversation) -> JsonObject:
    choice = conversation.tool_choice
    fields: JsonObject = {}
    text_tools = {tool.name for tool in conversation.tools if isinstance(tool, ToolSpec) and tool.schema is None}
    inside = namespaces(conversation.tools)

    def named(whole: str) -> Json:
        namespace, name = inside.get(whole, ("", whole))
        kind = "custom" if whole in text_tools else "function"
        return {"type": kind, "name": name, "namespace": namespace} if namespace else {"type": kind, "name": name}

    if choice.mode == "one":
        if len(choice.names) != 1:
            raise Unrepresentable("Responses can force one tool, by its name", at="tool_choice")
        fields["tool_choice"] = named(choice.names[0])
    elif choice.names:
        if choice.mode == "none":
            raise Unrepresentable("Responses cannot forbid some tools", at="tool_choice")
        allowed = [named(name) for name in choice.names]
        fields["tool_choice"] = {"type": "allowed_tools", "mode": _WORDS[choice.mode], "tools": allowed}
    elif choice.mode != "auto":
        fields["tool_choice"] = _WORDS[choice.mode]
    if choice.parallel is not None:
        fields["parallel_tool_calls"] = choice.parallel
    return fields
