"""OpenAPI's Schema, as `parameters` and `responseSchema` have it, read as JSON Schema."""

from __future__ import annotations

from dragoman.dialects.gemini.nodes import names
from dragoman.wire.jsonio import Json

NO_PARAMETERS: dict[str, Json] = {"type": "object", "properties": {}}

_NAMES = names(
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
_ONE = ("items", "additionalProperties")
_MANY = ("anyOf",)
_NAMED = ("properties", "$defs")


def json_schema(schema: Json) -> Json:
    """The same schema in JSON Schema's words. What is no schema comes back as it is."""
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Json] = {}
    nullable = schema.get("nullable") is True and "type" in schema
    for name, value in schema.items():
        word = _RENAMED.get(name, name)
        if word == "nullable" and (nullable or value is False):
            continue
        found[word] = _value(word, value)
    if nullable:
        found["type"] = _with_null(found["type"])
    return found


def _value(word: str, value: Json) -> Json:
    if word == "type" and isinstance(value, str):
        return value.lower()
    if word in _COUNTS and isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)  # protobuf writes 64-bit numbers as strings
    if word in _ONE:
        return json_schema(value)
    if word in _MANY and isinstance(value, list):
        return [json_schema(each) for each in value]
    if word in _NAMED and isinstance(value, dict):
        return {name: json_schema(each) for name, each in value.items()}
    return value


def _with_null(said: Json) -> Json:
    kinds: list[Json] = [*said] if isinstance(said, list) else [said]
    return kinds if "null" in kinds else [*kinds, "null"]
