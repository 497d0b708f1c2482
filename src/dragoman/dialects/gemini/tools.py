"""Parse and render the tools and the tool choice of a Gemini request. Pure; `request` calls it."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.dialects.gemini.blocks import EXTRAS, FAMILY, read_object, snake_to_camel, take_items, take_object
from dragoman.dialects.gemini.sources import SEARCH_TOOLS, is_search
from dragoman.dialects.kit.values import NO_PARAMETERS, members, tool_body
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Location, Opaque, SearchOptions, WebSearch
from dragoman.model.conversation import ToolChoice, ToolSpec, to_extra_names
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json

_TOOL = snake_to_camel(
    "functionDeclarations", "googleSearch", "googleSearchRetrieval", "codeExecution", "urlContext", "computerUse",
    "fileSearch", "googleMaps",
)  # fmt: skip
_FUNCTION = snake_to_camel("parametersJsonSchema", "responseJsonSchema")
_CONFIG = snake_to_camel("functionCallingConfig", "retrievalConfig")
_CALLING = snake_to_camel("allowedFunctionNames", "streamFunctionCallArguments")
_SHAPE = "~parameters"  # the original parameters, as an OpenAPI schema

# --- reading


def parse_tools(fields: Fields) -> tuple[ToolSpec | Opaque, ...]:
    """Take the tools of a request; a tool of the service itself, such as googleSearch, becomes an Opaque."""
    tools: list[ToolSpec | Opaque] = []
    for at, item in take_items(fields, "tools"):
        tool = read_object(item, at, fields.blame, _TOOL)
        for place, each in take_items(tool, "functionDeclarations"):
            tools.append(_function(read_object(each, place, fields.blame, _FUNCTION)))
        if rest := tool.rest():
            searches = SEARCH_TOOLS.issuperset(rest)
            effects = (WebSearch(options=_search_options(rest)),) if searches else ()
            tools.append(Opaque(FAMILY, rest, next(iter(rest)), effects=effects, at=Location(tool.at)))
    return tuple(tools)


def _search_options(tool: dict[str, Json]) -> SearchOptions:
    return SearchOptions(others=tuple(name for inner in tool.values() for name in members(inner)))


def _function(fields: Fields) -> ToolSpec:
    name, description = fields.identifier("name"), fields.text("description", "")
    newer, older = fields.peek("parametersJsonSchema"), fields.peek("parameters")
    schema: dict[str, Json] = NO_PARAMETERS
    shape: dict[str, Json] = {}
    if isinstance(newer, dict):
        fields.any("parametersJsonSchema")
        schema = newer
    elif newer is None:
        fields.any("parametersJsonSchema")
        if older is not None:
            shape, converted = {_SHAPE: fields.any("parameters")}, json_schema(older)
            if not isinstance(converted, dict):
                fields.fail("parameters", f"expected an object, got {describe(converted)}")
            schema = converted
    at = Location(fields.at, is_absent=newer is None and older is None)
    return ToolSpec(name, description, schema, extra=EXTRAS.extra_of(to_extra_names(fields.rest()) | shape), at=at)


_MODES = {"AUTO": "auto", "ANY": "any", "NONE": "none", "VALIDATED": "auto"}


def parse_choice(fields: Fields, extra_fields: dict[str, Json]) -> ToolChoice:
    """Take the tool choice of a request; unknown fields of its `toolConfig` are added to `extra_fields`."""
    config = take_object(fields, "toolConfig", _CONFIG)
    calling = take_object(config, "functionCallingConfig", _CALLING) if config else None
    choice, rest = _choice(calling) if calling else (ToolChoice(), {})
    left = config.rest() if config else {}
    if rest:
        left["functionCallingConfig"] = rest
    if left:
        extra_fields["toolConfig"] = left
    return choice


def _choice(calling: Fields) -> tuple[ToolChoice, dict[str, Json]]:
    """Return the choice, and the fields of it that no other family has."""
    own_mode = calling.text("mode", "").upper()
    allowed = calling.strings("allowedFunctionNames", ())
    mode = _MODES.get(own_mode, "auto")
    if own_mode == "ANY" and len(allowed) == 1:
        mode = "one"
    rest = calling.rest()
    if mode == "none" and allowed:
        rest["allowedFunctionNames"], allowed = [*allowed], ()
    if own_mode and (own_mode not in _MODES or (own_mode == "VALIDATED" and not allowed)):
        rest["mode"] = own_mode
    return ToolChoice(mode, allowed, at=Location(calling.at)), rest  # type: ignore[arg-type]  # _MODES has them all


# --- rendering


def render_tools(tools: Sequence[ToolSpec | Opaque]) -> list[Json]:
    """Return the tools; consecutive functions are in one tool, as the service requires."""
    bodies: list[Json] = []
    functions: list[Json] = []
    for tool in tools:
        if isinstance(tool, Opaque):
            functions = []
            bodies.append({"googleSearch": {}} if is_search(tool) else EXTRAS.own_data(tool, Unrepresentable))
            continue
        if not functions:
            bodies.append({"functionDeclarations": functions})
        functions.append(_render_function(tool))
    return bodies


def _render_function(tool: ToolSpec) -> Json:
    body = tool_body(tool)
    shape = EXTRAS.own_fields(tool.extra).get(_SHAPE)
    if shape is not None and json_schema(shape) == tool.schema:
        body["parameters"] = shape
    elif tool.schema != NO_PARAMETERS:  # The service refuses an object without properties.
        body["parametersJsonSchema"] = {**(tool.schema or {})}
    return EXTRAS.with_extra(body, tool.extra)


def render_choice(choice: ToolChoice) -> dict[str, Json]:
    """Return the tool choice as `toolConfig`; no field for the default. Raises Unrepresentable."""
    if choice == ToolChoice():
        return {}
    if choice.parallel is not None:
        raise Unrepresentable("Gemini has no setting for parallel tool calls", at="tool_choice")
    if (choice.mode == "one") != (len(choice.names) == 1 and choice.mode in ("one", "any")):
        raise Unrepresentable(
            "Gemini cannot limit the choice to one tool without forcing it; choose the tool by name", at="tool_choice"
        )
    mode = {"one": "ANY", "any": "ANY", "none": "NONE", "auto": "VALIDATED"}[choice.mode]
    body: dict[str, Json] = {"mode": mode}
    if choice.names:
        body["allowedFunctionNames"] = list(choice.names)
    return {"toolConfig": {"functionCallingConfig": body}}


# --- OpenAPI schemas, in `parameters` and `responseSchema`, converted to JSON Schema

_NAMES = snake_to_camel(
    "additionalProperties",
    "anyOf",
    "maxItems",
    "maxLength",
    "maxProperties",
    "minItems",
    "minLength",
    "minProperties",
    "propertyOrdering",
)
_RENAMED = {**_NAMES, "defs": "$defs", "ref": "$ref"}
_COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
_SCHEMA_FIELDS = ("items", "additionalProperties")
_SCHEMA_LISTS = ("anyOf",)
_SCHEMA_MAPS = ("properties", "$defs")


def json_schema(schema: Json) -> Json:
    """Return an OpenAPI schema as JSON Schema; a value that is no object is returned unchanged."""
    if not isinstance(schema, dict):
        return schema
    converted: dict[str, Json] = {}
    nullable = schema.get("nullable") is True and "type" in schema
    for name, value in schema.items():
        word = _RENAMED.get(name, name)
        if word == "nullable" and (nullable or value is False):
            continue
        converted[word] = _value(word, value)
    if nullable:
        kinds: list[Json] = converted["type"] if isinstance(converted["type"], list) else [converted["type"]]
        converted["type"] = kinds if "null" in kinds else [*kinds, "null"]
    return converted


def _value(word: str, value: Json) -> Json:
    if word == "type" and isinstance(value, str):
        return value.lower()
    if word in _COUNTS and isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)  # protobuf writes 64-bit numbers as strings
    if word in _SCHEMA_FIELDS:
        return json_schema(value)
    if word in _SCHEMA_LISTS and isinstance(value, list):
        return [json_schema(each) for each in value]
    if word in _SCHEMA_MAPS and isinstance(value, dict):
        return {name: json_schema(each) for name, each in value.items()}
    return value
