"""Parse and render tools, tool choice and tool calls of Chat: `function`, `custom`, legacy `functions`. Pure."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import structs

from dragoman.dialects.kit import openai_requests as requests
from dragoman.dialects.kit.cache_marks import CLAUDE_TTLS, cache_fields, take_cache_control
from dragoman.dialects.kit.openai_requests import (
    LENIENT_TOOL_CHOICES,
    TOOL_CHOICES,
    arguments_text,
    refuse_foreign_tool,
    render_function,
    take_parameters,
)
from dragoman.dialects.kit.values import NO_PARAMETERS
from dragoman.dialects.openai.blocks import API_NAME, CUSTOM_FORMAT, EXTRAS, FAMILY, check_block, wrap_inner_object
from dragoman.dialects.openai.web_search import declared_search, render_search
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Extra, Location, Opaque, ToolCall, WebSearch
from dragoman.model.conversation import Conversation, ToolChoice, ToolSpec, to_extra_names
from dragoman.model.filter import Action
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json, JsonObject

# Notes about parts of a request that have the shape of another dialect: rule, action, place, sentence.
ShapeNotes: TypeAlias = list[tuple[str, Action, str, str]]

_TOOL_SHAPE = "openai.tool_shape"
_CHOICE = "~choice"  # the original word of the choice, if it is not OpenAI's

# --- specs


def parse_tools(fields: Fields, notes: ShapeNotes) -> tuple[ToolSpec | Opaque, ...]:
    """Return the tools, then the legacy `functions`. A tool in the shape of another dialect gets a note."""
    entries = fields.children("tools", ())
    converted = [to_chat_shape(tool) for tool in entries]
    for tool, shaped in zip(entries, converted, strict=True):
        if shaped is not tool:
            notes.append(
                (_TOOL_SHAPE, "changed", tool.at, "a tool in the shape of another dialect is converted to Chat's")
            )
    tools = [_tool(tool) for tool in converted]
    tools += [_function(function, function, {}) for function in fields.children("functions", ())]
    return tuple(tools)


def to_chat_shape(fields: Fields) -> Fields:
    """Return a tool in Chat's shape. Cursor also sends flat tools, as in Responses, and Anthropic's tools."""
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
        cache: JsonObject = {"cache_control": tool.pop("cache_control")} if "cache_control" in tool else {}
        return Fields({"type": "function", "function": tool, **cache}, fields.at, fields.blame)
    return fields


def _tool(fields: Fields) -> ToolSpec | Opaque:
    cache = take_cache_control(fields, EXTRAS)
    return structs.replace(_unmarked_tool(fields), cache=cache)


def _unmarked_tool(fields: Fields) -> ToolSpec | Opaque:
    kind = fields.peek("type")
    if kind == "custom":
        fields.any("type")
        inner = fields.child("custom")
        name, description, strict = inner.identifier("name"), inner.text("description", ""), inner.flag("strict", None)
        rest, inside = to_extra_names(fields.rest()), inner.rest()
        if form := _flat(inside.get("format")):
            rest[CUSTOM_FORMAT] = form
            del inside["format"]
        return ToolSpec(name, description, strict=strict, extra=_nested(rest, "custom", inside), at=Location(fields.at))
    if kind == "function" or (kind is None and fields.has("function")):
        fields.any("type")
        inner = fields.child("function")
        return _function(fields, inner, to_extra_names(fields.rest()))
    if not isinstance(kind, str):
        fields.fail("type", f"expected a string, got {describe(kind)}")
    data = fields.rest()
    return Opaque(FAMILY, data, kind, effects=declared_search(kind, data), at=Location(fields.at))


def _function(fields: Fields, inner: Fields, rest: JsonObject) -> ToolSpec:
    name, description = inner.identifier("name"), inner.text("description", "")
    strict, parameters = inner.flag("strict", None), inner.any("parameters")
    inside, at = inner.rest(), Location(fields.at, is_absent=parameters is None)
    schema = take_parameters(parameters, inside)
    return ToolSpec(name, description, schema, strict=strict, extra=_nested(rest, "function", inside), at=at)


def _nested(rest: JsonObject, name: str, inside: JsonObject) -> Extra | None:
    return EXTRAS.extra_of({**rest, name: inside} if inside else rest)


def _flat(form: Json) -> Json:
    """Return a format as Responses writes it, with a grammar's fields next to its type; None if Responses has none."""
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


def render_tool(tool: ToolSpec | Opaque) -> Json:
    """Write a tool. Raises Unrepresentable for one of another family, or one that is to be loaded later."""
    mark = cache_fields(tool.cache, EXTRAS, CLAUDE_TTLS)
    refuse_foreign_tool(structs.replace(tool, cache=None) if mark else tool, FAMILY, API_NAME)
    if isinstance(tool, Opaque):
        if not tool.data and tool.effects and isinstance(tool.effects[0], WebSearch):
            return render_search(tool.effects[0].options)
        return {**tool.data, **mark} if isinstance(tool.data, dict) else tool.data
    if tool.waits_for:
        raise Unrepresentable(f"Chat cannot defer the loading of the tool {tool.name}", at=tool.at.path)
    kind = "custom" if tool.schema is None else "function"
    inner = render_function(tool, tool.name)
    if tool.at.is_absent and tool.schema == NO_PARAMETERS:
        del inner["parameters"]
    own = EXTRAS.own_fields(tool.extra)
    if CUSTOM_FORMAT in own:
        inner["format"] = _nested_form(own[CUSTOM_FORMAT])
    return {**wrap_inner_object(kind, inner, EXTRAS.wire_fields(tool.extra)), **mark}


# --- choice


def parse_choice(fields: Fields, notes: ShapeNotes) -> tuple[ToolChoice, JsonObject]:
    """Return the tool choice, and fields to keep: an unknown choice, or the word of another vendor for a known one."""
    is_legacy = fields.peek("tool_choice") is None and fields.peek("function_call") is not None
    name = "function_call" if is_legacy else "tool_choice"
    value = fields.any(name)
    parallel = fields.flag("parallel_tool_calls", None)
    choice = _choice(fields, name, value)
    if choice is None:
        return ToolChoice(parallel=parallel), {name: value}
    if isinstance(value, dict) and name == "tool_choice" and not _is_own(value):
        notes.append(
            (_TOOL_SHAPE, "changed", name, "a tool choice in the shape of another dialect is converted to Chat's")
        )
    word: JsonObject = {_CHOICE: value} if isinstance(value, str) and value not in TOOL_CHOICES else {}
    return ToolChoice(choice.mode, choice.names, parallel, Location(name)), word


def _is_own(choice: JsonObject) -> bool:
    kind = choice.get("type")
    return kind == "allowed_tools" or (kind in ("function", "custom") and isinstance(choice.get(str(kind)), dict))


def _choice(fields: Fields, name: str, value: Json) -> ToolChoice | None:
    choice = requests.parse_choice(fields, name, value, lambda tool: tool.identifier("name"))
    if choice is None and name == "function_call":
        match value:
            case {"name": str(called), **more} if more.get("type") != "allowed_tools":
                return ToolChoice("one", (called,))
            case _:
                pass
    return choice


def render_choice(conversation: Conversation) -> JsonObject:
    """Return `tool_choice` and `parallel_tool_calls` as fields of a request; without those that have default values."""
    choice, text_tools = conversation.tool_choice, requests.free_text_tools(conversation.tools)

    def render_name(name: str) -> Json:
        kind = "custom" if name in text_tools else "function"
        return {"type": kind, kind: {"name": name}}

    fields = requests.render_choice(choice, API_NAME, render_name, lambda some: {"allowed_tools": some})
    word = EXTRAS.own_fields(conversation.extra).get(_CHOICE)
    if isinstance(word, str) and choice.mode not in ("auto", "one") and not choice.names:
        is_same = LENIENT_TOOL_CHOICES[word.lower()].mode == choice.mode
        fields["tool_choice"] = word if is_same else fields["tool_choice"]
    return fields


# --- calls


def parse_call(fields: Fields) -> ToolCall | Opaque:
    """Read an entry of `tool_calls`. Its id may be missing in replies; the parser of requests checks it itself."""
    kind = fields.peek("type")
    if kind == "custom" or (kind is None and fields.has("custom")):
        return _call(fields, "custom", "input")
    if kind in (None, "", "function"):
        return _call(fields, "function", "arguments")
    if not isinstance(kind, str):
        fields.fail("type", f"expected a string, got {describe(kind)}")
    return Opaque(FAMILY, fields.rest(), kind, extra=EXTRAS.extra_of({"~slot": "tool_calls"}), at=Location(fields.at))


def _call(fields: Fields, kind: str, arguments_field: str) -> ToolCall:
    fields.any("type")
    call_id, inner = fields.maybe_identifier("id"), fields.child(kind)
    name, arguments = inner.identifier("name"), arguments_text(inner.any(arguments_field))
    extra = _nested(to_extra_names(fields.rest()), kind, inner.rest())
    return ToolCall(
        call_id, name, arguments, "text" if kind == "custom" else "json", extra=extra, at=Location(fields.at)
    )


def render_legacy_call(call: ToolCall) -> JsonObject:
    """Write a legacy `function_call`. It has no id, and holds the unknown fields of the call."""
    fields = EXTRAS.wire_fields(call.extra)
    inside = fields.pop("function", None)
    return {"name": call.name, "arguments": call.arguments, **(inside if isinstance(inside, dict) else {}), **fields}


def render_call(call: ToolCall | Opaque) -> Json:
    """Write a call as an entry of `tool_calls`. Raises Unrepresentable."""
    if isinstance(call, Opaque):
        return call.data
    check_block(call)
    if call.form == "text":
        return wrap_inner_object(
            "custom", {"name": call.name, "input": call.arguments}, EXTRAS.wire_fields(call.extra), id=call.id
        )
    arguments = call.arguments or "{}"  # clients and services parse them as JSON
    return wrap_inner_object(
        "function", {"name": call.name, "arguments": arguments}, EXTRAS.wire_fields(call.extra), id=call.id
    )
