"""Rules 19 to 26: what a tool's input schema may not hold. A property that is only *named* like a keyword is none."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.dialects.kit.lint import Found
from dragoman.dialects.kit.values import Object, Placed
from dragoman.wire.jsonio import Json

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = "items additionalProperties not if then else contains propertyNames unevaluatedItems unevaluatedProperties"
_UNIONS = ("anyOf", "oneOf", "allOf")

# Seen refused live; the rest of the family is what others remove.
_REFUSED = (
    "pattern minLength maxLength minimum maximum exclusiveMinimum exclusiveMaximum minItems maxItems minProperties "
    "maxProperties multipleOf"
)
_REMOVED = (
    "format uniqueItems contentEncoding contentMediaType minContains maxContains if then else const patternProperties "
    "propertyNames unevaluatedItems unevaluatedProperties $ref $defs definitions"
)
_KEYWORDS = {
    **dict.fromkeys(_REFUSED.split(), "schema.keyword"),
    **dict.fromkeys(_REMOVED.split(), "schema.unsure_keyword"),
    "additionalProperties": "schema.additional_properties",
    "$schema": "schema.dollar_schema",
}


def schema_breaches(schema: Json, at: str) -> Found:
    """Yield rule, place and detail of every breach."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        yield "schema.root", f"{at}.type", "the root's type is not object"
    if not isinstance(schema, dict):
        return
    for union in _UNIONS:
        if union in schema:
            yield "schema.union", f"{at}.{union}", f"{union} at the root"
    pending: list[Placed] = [(schema, at)]
    while pending:
        node, place = pending.pop()
        yield from _node(node, place, place == at)
        pending.extend(reversed(list(_inner(node, place))))


def _node(node: Object, at: str, root: bool) -> Found:
    if "required" in node and not isinstance(node["required"], list):
        yield "schema.required", f"{at}.required", "required is not an array"
    elif node.get("required") == []:
        yield "schema.required_empty", f"{at}.required", "required is empty"
    if not root and node.get("properties") == {}:
        yield "schema.properties", f"{at}.properties", "properties is empty below the root"
    for keyword in node:
        if keyword in _KEYWORDS:
            yield _KEYWORDS[keyword], f"{at}.{keyword}", f"the keyword {keyword}"


def _inner(node: Object, at: str) -> Iterator[Placed]:
    for keyword in _MAPS:
        named = node.get(keyword)
        if isinstance(named, dict):
            yield from ((each, f"{at}.{keyword}.{name}") for name, each in named.items() if isinstance(each, dict))
    for keyword in _LISTS:
        listed = node.get(keyword)
        if isinstance(listed, list):
            yield from ((each, f"{at}.{keyword}[{n}]") for n, each in enumerate(listed) if isinstance(each, dict))
    for keyword in _SINGLE.split():
        single = node.get(keyword)
        if isinstance(single, dict):
            yield single, f"{at}.{keyword}"
