"""Tools, the choice among them, and calls: function and custom, and the older `functions`."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.dialects.openai.parts import (
    FORMAT,
    JsonObject,
    arguments_text,
    extra_of,
    own_fields,
    plain,
    required,
    wire_fields,
)
from dragoman.dialects.openai.responses_body import Oddities
from dragoman.dialects.openai.settings import FAMILY
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Extra, Opaque, ToolCall, Where, to_keep
from dragoman.model.conversation import Conversation, ToolChoice, ToolSpec
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json

_NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}
_MODES = {"auto": ToolChoice("auto"), "required": ToolChoice("any"), "none": ToolChoice("none")}
# The words of other vendors: Mistral and Anthropic say `any`, Gemini says `validated`.
_OTHER_MODES = {**_MODES, "any": ToolChoice("any"), "validated": ToolChoice("auto")}
_SHAPED = "openai.tool_shape"
_CHOICE = "~choice"  # the word as it came, where it is another vendor's
_WORDS = {"auto": "auto", "any": "required", "none": "none"}

# --- specs


def parse_tools(fields: Fields, odd: Oddities) -> tuple[ToolSpec | Opaque, ...]:
    """The tools, the older `functions` after them. Some clients send tools in the shapes of other dialects."""
    given = fields.children("tools", ())
    own = [nested(tool) for tool in given]
    for tool, shaped in zip(given, own, strict=True):
        if shaped is not tool:
            odd.append((_SHAPED, "changed", tool.at, "a tool in the shape of another dialect is given Chat's own"))
    tools = [_tool(tool) for tool in own]
    tools += [_function(function, function, {}) for function in fields.children("functions", ())]
    return tuple(tools)


def nested(fields: Fields) -> Fields:
    """A tool in Chat's own shape. Cursor sends flat ones, as Responses has them, and Anthropic's beside them."""
    kind, tool = fields.peek("type"), fields.rest()
    if not isinstance(fields.peek("name"), str):
        return fields
    if kind in ("function", "custom") and fields.peek(str(kind)) is None:
        tool.pop("type")
        if kind == "custom" and (form := tool.get("format")) is not None:
            tool["format"] = _nested_form(form)
        return Fields({"type": kind, kind: tool}, fields.at, fields.blame)
    if kind in (None, "custom") and fields.has("input_schema"):
        tool.pop("type", None)
        tool["parameters"] = tool.pop("input_schema")
        mark: JsonObject = {"cache_control": tool.pop("cache_control")} if "cache_control" in tool else {}
        return Fields({"type": "function", "function": tool, **mark}, fields.at, fields.blame)
    return fields


def _tool(fields: Fields) -> ToolSpec | Opaque:
    kind = fields.peek("type")
    if kind == "custom":
        fields.any("type")
        inner = fields.child("custom")
        name, description, strict = required(inner, "name"), inner.text("description", ""), inner.flag("strict", None)
        rest, inside = to_keep(fields.rest()), inner.rest()
        if form := _flat(inside.get("format")):
            rest[FORMAT] = form
            del inside["format"]
        return ToolSpec(name, description, strict=strict, extra=_nested(rest, "custom", inside), at=Where(fields.at))
    if kind == "function" or (kind is None and fields.has("function")):
        fields.any("type")
        inner = fields.child("function")
        return _function(fields, inner, to_keep(fields.rest()))
    if not isinstance(kind, str):
        fields.fail("type", f"expected a string, got {describe(kind)}")
    return Opaque(FAMILY, fields.rest(), kind, at=Where(fields.at))


def _function(fields: Fields, inner: Fields, rest: JsonObject) -> ToolSpec:
    name, description = required(inner, "name"), inner.text("description", "")
    strict, parameters = inner.flag("strict", None), inner.any("parameters")
    inside, at = inner.rest(), Where(fields.at, bare=parameters is None)
    if not isinstance(parameters, dict):
        if parameters is not None:
            inside["parameters"] = parameters  # no schema, but what was said
        parameters = dict(_NO_PARAMETERS)
    return ToolSpec(name, description, parameters, strict=strict, extra=_nested(rest, "function", inside), at=at)


def _nested(rest: JsonObject, name: str, inside: JsonObject) -> Extra | None:
    return extra_of({**rest, name: inside} if inside else rest)


def _flat(form: Json) -> Json:
    """A form as others spell it, where what a grammar is stands beside its type; None for one that nobody else has."""
    match form:
        case {"type": "text", **more} if not more:
            return form
        case {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition, **most}, **more}:
            return None if most or more else {"type": "grammar", "syntax": syntax, "definition": definition}
        case _:
            return None


def _nested_form(form: Json) -> Json:
    match form:
        case {"type": "grammar", "syntax": syntax, "definition": definition, **more} if not more:
            return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
        case _:
            return form


def render_tools(tools: Sequence[ToolSpec | Opaque]) -> list[Json]:
    return [_render_tool(tool) for tool in tools]


def _render_tool(tool: ToolSpec | Opaque) -> Json:
    if tool.cache is not None:
        raise Unrepresentable("Chat has no cache breakpoints", at=tool.at.path)
    if isinstance(tool, Opaque):
        if tool.family != FAMILY:
            raise Unrepresentable(f"Chat has no {tool.family} tools", at=tool.at.path)
        return tool.data
    if tool.waits_for:
        raise Unrepresentable(f"Chat cannot hold {tool.name} back", at=tool.at.path)
    kind = "custom" if tool.schema is None else "function"
    inner: JsonObject = {"name": tool.name}
    if tool.description:
        inner["description"] = tool.description
    if tool.schema is not None and not (tool.at.bare and tool.schema == _NO_PARAMETERS):
        inner["parameters"] = dict(tool.schema)
    if tool.strict is not None:
        inner["strict"] = tool.strict
    own = own_fields(tool.extra)
    if FORMAT in own:
        inner["format"] = _nested_form(own[FORMAT])
    return _around(kind, inner, wire_fields(tool.extra))


def _around(kind: str, inner: JsonObject, fields: JsonObject, **head: Json) -> JsonObject:
    inside = fields.pop(kind, None)
    return {**head, "type": kind, kind: {**inner, **inside} if isinstance(inside, dict) else inner, **fields}


# --- choice


def parse_choice(fields: Fields, odd: Oddities) -> tuple[ToolChoice, JsonObject]:
    """The choice, and the field as it came where it says what we have no word for."""
    older = fields.peek("tool_choice") is None and fields.peek("function_call") is not None
    name = "function_call" if older else "tool_choice"
    value = fields.any(name)
    parallel = fields.flag("parallel_tool_calls", None)
    choice = _choice(fields, name, value)
    if choice is None:
        return ToolChoice(parallel=parallel), {name: value}
    if isinstance(value, dict) and name == "tool_choice" and not _is_own(value):
        odd.append((_SHAPED, "changed", name, "a choice in the shape of another dialect is given Chat's own"))
    word: JsonObject = {_CHOICE: value} if isinstance(value, str) and value not in _MODES else {}
    return ToolChoice(choice.mode, choice.names, parallel, Where(name)), word


def _is_own(choice: JsonObject) -> bool:
    kind = choice.get("type")
    return kind == "allowed_tools" or (kind in ("function", "custom") and isinstance(choice.get(str(kind)), dict))


def _choice(fields: Fields, name: str, value: Json) -> ToolChoice | None:
    match value:
        case None:
            return ToolChoice()
        case str():
            if value.lower() not in _OTHER_MODES:
                fields.fail(name, f"expected one of {', '.join(_MODES)} or an object")
            return _OTHER_MODES[value.lower()]
        case {"type": "function" | "custom" | "tool" as kind}:
            chosen = Fields(value, fields.path(name))
            return ToolChoice("one", (required(chosen.maybe_child(str(kind)) or chosen, "name"),))
        case {"type": str(mode), **more} if mode in _OTHER_MODES and not more:
            return _OTHER_MODES[mode]
        case {"type": "allowed_tools"}:
            return _allowed(Fields(value, fields.path(name)))
        case {"name": str(called)} if name == "function_call":
            return ToolChoice("one", (called,))
        case dict():
            return None
        case _:
            raise fields.blame(f"expected a string or an object, got {describe(value)}", at=fields.path(name))


def _allowed(fields: Fields) -> ToolChoice | None:
    inner = fields.maybe_child("allowed_tools") or fields
    mode = inner.one_of("mode", {"auto": "auto", "required": "any"}, "auto")
    names: list[str] = []
    for tool in inner.children("tools"):
        kind = tool.peek("type")
        if kind not in ("function", "custom"):
            return None
        names.append(required(tool.maybe_child(str(kind)) or tool, "name"))
    return ToolChoice("any" if mode == "any" else "auto", tuple(names)) if names else None


def render_choice(conversation: Conversation) -> JsonObject:
    choice = conversation.tool_choice
    fields: JsonObject = {}
    text_tools = {tool.name for tool in conversation.tools if isinstance(tool, ToolSpec) and tool.schema is None}

    def named(name: str) -> Json:
        kind = "custom" if name in text_tools else "function"
        return {"type": kind, kind: {"name": name}}

    if choice.mode == "one":
        if len(choice.names) != 1:
            raise Unrepresentable("Chat can force one tool, by its name", at="tool_choice")
        fields["tool_choice"] = named(choice.names[0])
    elif choice.names:
        if choice.mode == "none":
            raise Unrepresentable("Chat cannot forbid some tools", at="tool_choice")
        allowed: JsonObject = {"mode": _WORDS[choice.mode], "tools": [named(name) for name in choice.names]}
        fields["tool_choice"] = {"type": "allowed_tools", "allowed_tools": allowed}
    elif choice.mode != "auto":
        word = own_fields(conversation.extra).get(_CHOICE)
        same = isinstance(word, str) and _OTHER_MODES[word.lower()].mode == choice.mode
        fields["tool_choice"] = word if same else _WORDS[choice.mode]
    if choice.parallel is not None:
        fields["parallel_tool_calls"] = choice.parallel
    return fields


# --- calls


def parse_call(fields: Fields) -> ToolCall | Opaque:
    """An entry of `tool_calls`. The id may be missing from an upstream's reply only, which the caller sees to."""
    kind = fields.peek("type")
    if kind == "custom" or (kind is None and fields.has("custom")):
        return _call(fields, "custom", "input")
    if kind in (None, "", "function"):
        return _call(fields, "function", "arguments")
    if not isinstance(kind, str):
        fields.fail("type", f"expected a string, got {describe(kind)}")
    return Opaque(FAMILY, fields.rest(), kind, extra=extra_of({"~slot": "tool_calls"}), at=Where(fields.at))


def _call(fields: Fields, kind: str, words: str) -> ToolCall:
    fields.any("type")
    call_id, inner = fields.maybe_identifier("id"), fields.child(kind)
    name, arguments = required(inner, "name"), arguments_text(inner.any(words))
    extra = _nested(to_keep(fields.rest()), kind, inner.rest())
    return ToolCall(call_id, name, arguments, "text" if kind == "custom" else "json", extra=extra, at=Where(fields.at))


def render_older_call(call: ToolCall) -> JsonObject:
    """A `function_call`: it has no id, and what came beside it stands inside."""
    fields = wire_fields(call.extra)
    inside = fields.pop("function", None)
    return {"name": call.name, "arguments": call.arguments, **(inside if isinstance(inside, dict) else {}), **fields}


def render_call(call: ToolCall | Opaque) -> Json:
    if isinstance(call, Opaque):
        return call.data
    plain(call)
    if call.form == "text":
        return _around("custom", {"name": call.name, "input": call.arguments}, wire_fields(call.extra), id=call.id)
    arguments = call.arguments or "{}"  # clients and services parse it
    return _around("function", {"name": call.name, "arguments": arguments}, wire_fields(call.extra), id=call.id)
