"""Tools and the choice among them, both directions: toolConfig, and what a vendor takes of a choice besides."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from dragoman.dialects.bedrock.nodes import KEPT, Vendor, beside, extra_beside, render_mark, take_mark
from dragoman.dialects.kit.values import CLAUDE_MODES, render_claude_choice, tool_body
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Opaque, Where
from dragoman.model.conversation import ToolChoice, ToolSpec
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

NO_PARAMETERS: dict[str, Json] = {"type": "object", "properties": {}}

# --- reading


def parse_tools(config: Fields) -> tuple[ToolSpec | Opaque, ...]:
    """Read the tools, in which a cache point marks the tool before it."""
    tools: list[ToolSpec | Opaque] = []
    for item in config.children("tools", []):
        mark = take_mark(item)
        if mark is not None and tools and tools[-1].cache is None:
            tools[-1] = structs.replace(tools[-1], cache=mark)
        else:
            tools.append(_tool(item))
    return tuple(tools)


def _tool(fields: Fields) -> ToolSpec | Opaque:
    if fields.peek("toolSpec") is None:
        return KEPT.opaque(fields, next(iter(fields.rest()), "tool"))
    spec = fields.child("toolSpec")
    name, description, strict = spec.identifier("name"), spec.text("description", ""), spec.flag("strict", None)
    schema = spec.peek("inputSchema")
    inner = schema.get("json") if isinstance(schema, dict) else None
    known: dict[str, Json] = NO_PARAMETERS
    bare = False
    if isinstance(schema, dict) and isinstance(inner, dict) and len(schema) == 1:
        spec.any("inputSchema")
        known = inner
    elif bare := schema in (None, {}, {"json": None}):
        spec.any("inputSchema")
    at = Where(fields.at, bare=bare)
    return ToolSpec(name, description, known, None, strict, extra=extra_beside(KEPT.extra(spec), fields), at=at)


def parse_choice(config: Fields | None, free: dict[str, Json], vendor: Vendor) -> ToolChoice:
    """toolChoice, and what it has no word for: `none`, and whether calls may be parallel.

    That is taken from the fields that are for the vendor alone, unless it says what we have no word for.
    """
    said = None if config is None else _choice_fields(config)
    mode, names = ("auto", ()) if said is None else _choice(said)
    at = Where("additionalModelRequestFields.tool_choice" if said is None else said.at)
    is_unknown = said is None and config is not None and config.peek("toolChoice") is not None  # both stay as they are
    more = free.pop("tool_choice", None) if vendor.claude_fields and not is_unknown else None
    rest = {**more} if isinstance(more, dict) else {}
    kind, alone, name = (rest.pop(each, None) for each in ("type", "disable_parallel_tool_use", "name"))
    fits = isinstance(kind, str) and kind in CLAUDE_MODES and type(alone) in (bool, type(None)) and not rest
    if not fits or (kind == "tool") != (isinstance(name, str) and bool(name)):
        if more is not None:
            free["tool_choice"] = more
        return ToolChoice(mode, names, at=at)  # type: ignore[arg-type]  # CLAUDE_MODES has them all
    if mode == "auto":
        mode, names = CLAUDE_MODES[str(kind)], (str(name),) if name else ()
    return ToolChoice(mode, names, None if alone is None else not alone, at)  # type: ignore[arg-type]


def _choice_fields(config: Fields) -> Fields | None:
    """The choice, if it is one that we know; any other stays among the unknown fields."""
    said = config.peek("toolChoice")
    if isinstance(said, str) and said in ("auto", "any"):
        config.any("toolChoice")
        return Fields({said: {}}, config.path("toolChoice"), config.blame)
    if said is None or (isinstance(said, dict) and said.keys() & {"auto", "any", "tool"}):
        choice = config.maybe_child("toolChoice")
        config.any("toolChoice")
        return choice
    if not isinstance(said, dict):
        config.child("toolChoice")
    return None


def _choice(said: Fields) -> tuple[str, tuple[str, ...]]:
    for name in ("auto", "any"):
        if said.peek(name) is not None:
            said.child(name)
            return name, ()
    if said.peek("tool") is not None:
        name = said.child("tool").text("name")
        if not name:
            said.fail("tool", "expected a name that is not empty")
        return "one", (name,)
    return "auto", ()


# --- rendering


def render_tools(tools: Sequence[ToolSpec | Opaque]) -> list[Json]:
    """Write the tools, each followed by its cache point if it has a mark."""
    bodies: list[Json] = []
    for tool in tools:
        bodies.append(_render_tool(tool))
        if tool.cache is not None:
            bodies.append(render_mark(tool.cache))
    return bodies


def _render_tool(tool: ToolSpec | Opaque) -> Json:
    if isinstance(tool, Opaque):
        return KEPT.own_data(tool, Unrepresentable)
    body = tool_body(tool)
    body["inputSchema"] = {"json": {**(tool.schema or {})}}
    if tool.strict is not None:
        body["strict"] = tool.strict
    if tool.extra is not None and "inputSchema" in tool.extra.fields:
        del body["inputSchema"]  # it came as something else than an object, and goes back as it came
    return {"toolSpec": KEPT.with_extra(body, tool.extra)} | beside(tool.extra)


def render_choice(choice: ToolChoice, forced: Sequence[str] = ("any", "one")) -> dict[str, Json]:
    """toolChoice, if there is something to say in it."""
    if (choice.mode == "one") != (len(choice.names) == 1) or (choice.names and choice.mode != "one"):
        raise Unrepresentable("a choice among some of the tools cannot be said here", at="tool_choice")
    if choice.mode not in forced:
        return {}
    return {"toolChoice": {"tool": {"name": choice.names[0]}} if choice.mode == "one" else {"any": {}}}


def render_free_choice(choice: ToolChoice, vendor: Vendor) -> Json:
    """What toolChoice has no word for, in the words of the one vendor that has."""
    if choice.mode != "none" and choice.parallel is None:
        return None
    if not vendor.claude_fields:
        raise Unrepresentable(f"tool choice {choice.mode!r} with a flag has no place here", at="tool_choice")
    return render_claude_choice(choice)
