"""Rules 19 to 26 over a raw input schema: what the service refuses in one."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.wire.jsonio import Json

_REFUSED = frozenset(
    {"pattern", "format", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"minItems", "maxItems", "minProperties", "maxProperties", "multipleOf", "uniqueItems", "contentEncoding"}
)
_RULE_26 = (
    "if then else const patternProperties propertyNames unevaluatedItems unevaluatedProperties $ref $defs definitions"
)
# By keyword: the rule's number. Others avoid these, or contradict one another about them.
_UNSURE = {**dict.fromkeys(_RULE_26.split(), 26), "additionalProperties": 22, "$schema": 23}
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")


def schema_breaches(schema: Json, at: str) -> Iterator[tuple[str, str, str]]:
    """Rule, place and detail of every breach."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        yield "schema.root", at, "expected an object of type object (rule 19)"
    if not isinstance(schema, dict):
        return
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            yield "schema.union", f"{at}.{union}", "a union at the root (rule 25)"
    pending: list[tuple[str, dict[str, Json]]] = [(at, schema)]
    while pending:
        place, node = pending.pop()
        yield from _node(node, place, place == at)
        pending.extend(_inner(node, place))


def _node(node: dict[str, Json], at: str, root: bool) -> Iterator[tuple[str, str, str]]:
    if "required" in node and not isinstance(node["required"], list):
        yield "schema.required", f"{at}.required", "expected an array (rule 20)"
    elif node.get("required") == []:
        yield "schema.required_empty", f"{at}.required", "expected names (rule 21)"
    if not root and node.get("properties") == {}:
        yield "schema.properties", f"{at}.properties", "empty below the root (rule 24)"
    for keyword, number in _UNSURE.items():
        if keyword in node:
            yield "schema.unsure_keyword", f"{at}.{keyword}", f"{keyword} (rule {number})"
    for keyword in node.keys() & _REFUSED:
        yield "schema.keyword", f"{at}.{keyword}", f"{keyword} (rule 26)"


def _inner(node: dict[str, Json], at: str) -> Iterator[tuple[str, dict[str, Json]]]:
    for keyword in _NAMED:
        named = node.get(keyword)
        if isinstance(named, dict):
            yield from ((f"{at}.{keyword}.{name}", each) for name, each in named.items() if isinstance(each, dict))
    for keyword in _LISTED:
        listed = node.get(keyword)
        if isinstance(listed, list):
            yield from ((f"{at}.{keyword}[{n}]", each) for n, each in enumerate(listed) if isinstance(each, dict))
    for keyword in _SINGLE:
        single = node.get(keyword)
        if isinstance(single, dict):
            yield f"{at}.{keyword}", single
