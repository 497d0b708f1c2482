"""Rules 19 to 26: what a tool's input schema may not hold. A property that is only *named* like a keyword is none."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.simulator.kiro.reading import Asked, Object, Placed, members
from dragoman.simulator.kiro.verdict import Answer, Finding, Limits
from dragoman.wire.jsonio import Json

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = [
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
]
_UNIONS = ("anyOf", "oneOf", "allOf")

# Seen refused live; the rest of the family is what peers strip.
_REFUSED = frozenset(
    [
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "multipleOf",
    ]
)
_STRIPPED = frozenset(
    [
        "format",
        "uniqueItems",
        "contentEncoding",
        "contentMediaType",
        "minContains",
        "maxContains",
        "if",
        "then",
        "else",
        "const",
        "patternProperties",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$ref",
        "$defs",
        "definitions",
    ]
)

INVALID_SCHEMA = Answer(reason="TOOL_SCHEMA_INVALID")


def schemas(asked: Asked) -> Iterator[tuple[int, str, Json]]:
    """Each tool's place in the list, the path of its schema, and the schema."""
    for index, (at, spec) in enumerate(asked.tools):
        yield index, f"{at}.inputSchema.json", members(spec.get("inputSchema")).get("json")


def nodes(asked: Asked) -> Iterator[tuple[int, str, Object, bool]]:
    """Every schema inside every tool's schema: the tool's number, path, node, and whether it is the root."""
    for index, at, schema in schemas(asked):
        if isinstance(schema, dict):
            yield from ((index, path, node, path == at) for path, node in _walk(schema, at))


def _walk(root: Object, at: str) -> Iterator[Placed]:
    pending: list[Placed] = [(at, root)]
    while pending:
        path, node = pending.pop()
        yield path, node
        inner: list[Placed] = []
        for keyword in _MAPS:
            inner += [(f"{path}.{keyword}.{name}", schema) for name, schema in _pairs(node.get(keyword))]
        for keyword in (*_LISTS, "items"):
            schemas_ = node.get(keyword)
            if isinstance(schemas_, list):
                inner += [(f"{path}.{keyword}[{n}]", each) for n, each in enumerate(schemas_) if isinstance(each, dict)]
        for keyword in _SINGLES:
            single = node.get(keyword)
            if isinstance(single, dict):
                inner.append((f"{path}.{keyword}", single))
        pending.extend(reversed(inner))


def _pairs(value: Json) -> list[tuple[str, Object]]:
    return (
        [(name, inner) for name, inner in value.items() if isinstance(inner, dict)] if isinstance(value, dict) else []
    )


# --- the rules


def root_is_object(asked: Asked, _: Limits) -> Iterator[Finding]:
    for index, at, schema in schemas(asked):
        if not isinstance(schema, dict) or schema.get("type") != "object":
            message = (
                f"Bedrock error message: The value at toolConfig.tools.{index}.toolSpec.inputSchema.json.type "
                "must be one of the following: object."
            )
            yield Finding(f"{at}.type", "the root's type is not object", answer=Answer(message, "TOOL_SCHEMA_INVALID"))


def required_is_array(asked: Asked, _: Limits) -> Iterator[Finding]:
    for _index, at, node, _root in nodes(asked):
        if "required" in node and not isinstance(node["required"], list):
            yield Finding(f"{at}.required", "required is not an array")


def required_not_empty(asked: Asked, _: Limits) -> Iterator[Finding]:
    yield from (
        Finding(f"{at}.required", "required is empty")
        for _, at, node, _root in nodes(asked)
        if node.get("required") == []
    )


def no_additional_properties(asked: Asked, _: Limits) -> Iterator[Finding]:
    yield from _keyword(asked, "additionalProperties")


def no_dollar_schema(asked: Asked, _: Limits) -> Iterator[Finding]:
    yield from _keyword(asked, "$schema")


def properties_not_empty(asked: Asked, _: Limits) -> Iterator[Finding]:
    for _index, at, node, root in nodes(asked):
        if not root and node.get("properties") == {}:
            yield Finding(f"{at}.properties", "properties is empty below the root")


def no_root_union(asked: Asked, _: Limits) -> Iterator[Finding]:
    for index, at, node, root in nodes(asked):
        for keyword in _UNIONS:
            if root and keyword in node:
                message = (
                    f"Bedrock error message: tools.{index}.custom.input_schema: "
                    "input_schema does not support oneOf, allOf, or anyOf at the top level"
                )
                yield Finding(
                    f"{at}.{keyword}", f"{keyword} at the root", answer=Answer(message, "TOOL_SCHEMA_INVALID")
                )


def no_validation_keywords(asked: Asked, _: Limits) -> Iterator[Finding]:
    for _index, at, node, _root in nodes(asked):
        for keyword in node:
            if keyword in _REFUSED or keyword in _STRIPPED:
                yield Finding(f"{at}.{keyword}", f"the keyword {keyword}", "B" if keyword in _REFUSED else "C")


def _keyword(asked: Asked, keyword: str) -> Iterator[Finding]:
    yield from (
        Finding(f"{at}.{keyword}", f"the keyword {keyword}") for _, at, node, _root in nodes(asked) if keyword in node
    )
