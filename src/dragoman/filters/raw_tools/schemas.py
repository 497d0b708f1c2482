"""Look up properties, items, types and enumerations in the JSON Schema of a tool, through references.

A schema comes from a client, so it may be anything: a part that is not understood allows everything, references may be
circular, and the cost of a lookup is linear in the size of the schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from dragoman.wire.jsonio import Json

_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
# Other names that clients and frameworks use.
_ALIASES = {
    **dict.fromkeys(("str", "text", "char", "varchar"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "uint", "uint32", "uint64", "long", "short"), "integer"),
    **dict.fromkeys(("num", "float", "float32", "float64", "double", "decimal"), "number"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("none", "nil"), "null"),
    **dict.fromkeys(("dict", "map", "struct"), "object"),
    **dict.fromkeys(("list", "arr", "tuple", "sequence"), "array"),
}
_OBJECT_WORDS = ("properties", "additionalProperties", "patternProperties")
_ARRAY_WORDS = ("items", "prefixItems")
_DEEPEST = 64  # most nested combinations
_LONGEST_CHAIN = 16  # most references from one to the next

Kinds = frozenset[str] | None  # the types a schema allows; None: any; empty: a circular reference, no information


def type_named(word: str) -> str:
    """Return the JSON type that a word means, "" if it means none."""
    word = word.strip().lower()
    word = _ALIASES.get(word, word)
    return word if word in _TYPES else ""


def json_type(value: Json) -> str:
    """Return the JSON type of a value; a float without a fraction is an integer."""
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "null"


class SchemaDocument:
    """A schema with its definitions.

    It caches results by the identity of the parts of the schema. The parts, and the schemas created here, live as long
    as the document, so that no identity is reused.
    """

    def __init__(self, schema: Mapping[str, Json]) -> None:
        self.root: dict[str, Json] = dict(schema)
        self._resolved: dict[int, dict[str, Json]] = {}
        self._kinds: dict[int, Kinds] = {}
        self._unions: dict[tuple[int, ...], Json] = {}

    # --- references

    def resolve(self, schema: Json) -> dict[str, Json]:
        """Return a schema with its reference replaced by its target; {} for a value that is not a schema."""
        if not isinstance(schema, dict):
            return {}
        if "$ref" not in schema:
            return schema
        resolved = self._resolved.get(id(schema))
        if resolved is None:
            resolved = self._resolved[id(schema)] = self._follow(schema)
        return resolved

    def _follow(self, schema: dict[str, Json]) -> dict[str, Json]:
        siblings: dict[str, Json] = {}
        for _ in range(_LONGEST_CHAIN):
            reference = schema.get("$ref")
            siblings = {**schema, **siblings}
            siblings.pop("$ref", None)
            if not isinstance(reference, str):
                break
            target = self._referred(reference, schema)
            if not isinstance(target, dict):
                break
            schema = target
        return siblings

    def _referred(self, reference: str, near: dict[str, Json]) -> Json:
        parts = [_unescaped(part) for part in reference.partition("#")[2].split("/") if part]
        if reference.startswith("#"):
            for root in (self.root, near):
                target = _at(root, parts)
                if isinstance(target, dict):
                    return target
        name = parts[-1] if parts else reference.rpartition("/")[2]
        return self._definition(name)

    def _definition(self, name: str) -> Json:
        """Return a definition by its name alone, from any list of definitions in the schema."""
        todo: list[Json] = [self.root]
        seen: set[int] = set()
        for part in todo:  # the list grows during the loop
            if isinstance(part, list):
                todo += part
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            for word in ("$defs", "definitions"):
                definitions = part.get(word)
                if isinstance(definitions, dict) and isinstance(definitions.get(name), dict):
                    return definitions[name]
            todo += part.values()
        return None

    # --- allowed types and values

    def kinds(self, schema: Json, depth: int = _DEEPEST) -> Kinds:
        """Return the JSON types that a schema allows; None if it allows any."""
        schema = self.resolve(schema)
        if not schema or not depth:
            return None
        if id(schema) not in self._kinds:
            self._kinds[id(schema)] = frozenset()
            self._kinds[id(schema)] = self._compute_kinds(schema, depth - 1)
        return self._kinds[id(schema)]

    def _compute_kinds(self, schema: dict[str, Json], depth: int) -> Kinds:
        allowed = _typed(schema.get("type"))
        values = _enumerated(schema)
        if values is not None:
            allowed = _intersect(allowed, frozenset(json_type(value) for value in values))
        for word in ("anyOf", "oneOf"):
            if isinstance(parts := schema.get(word), list):
                allowed = _intersect(allowed, _unite(self.kinds(part, depth) for part in parts))
        if isinstance(parts := schema.get("allOf"), list):
            for part in parts:
                allowed = _intersect(allowed, self.kinds(part, depth))
        if allowed is None and any(word in schema for word in _OBJECT_WORDS):
            allowed = frozenset({"object"})
        if allowed is None and any(word in schema for word in _ARRAY_WORDS):
            allowed = frozenset({"array"})
        if allowed is not None and schema.get("nullable") is True:
            allowed |= {"null"}
        return allowed

    def values(self, schema: Json) -> list[Json] | None:
        """Return the only values that a schema allows, None if it does not list them."""
        schema = self.resolve(schema)
        values = _enumerated(schema)
        if values is not None:
            return [*values, None] if schema.get("nullable") is True else values
        for word in ("anyOf", "oneOf"):
            parts = schema.get(word)
            if isinstance(parts, list) and parts:
                lists = [self._listed(part) for part in parts]
                if all(each is not None for each in lists):
                    return [value for each in lists for value in each or ()]
        return None

    def _listed(self, schema: Json) -> list[Json] | None:
        schema = self.resolve(schema)
        return [None] if schema.get("type") == "null" else _enumerated(schema)

    # --- parts of a schema

    def branches(self, schema: Json) -> list[dict[str, Json]]:
        """Return a schema and all schemas that it combines, directly or indirectly."""
        todo: list[Json] = [schema]
        branches: dict[int, dict[str, Json]] = {}
        for each in todo:  # the list grows during the loop
            part = self.resolve(each)
            if not part or id(part) in branches:
                continue
            branches[id(part)] = part
            for word in ("allOf", "anyOf", "oneOf"):
                if isinstance(parts := part.get(word), list):
                    todo += parts
            todo += [part.get(word) for word in ("then", "else")]
        return list(branches.values())

    def member(self, schema: Json, key: str) -> Json:
        """Return the schema of a property that is declared by name, None if there is none."""
        schemas = [properties[key] for properties in self._properties(schema) if key in properties]
        return self._any_of(schemas)

    def other_member(self, schema: Json, key: str) -> Json:
        """Return the schema of a property that is not declared by name, None if there is none."""
        for part in self.branches(schema):
            patterns = part.get("patternProperties")
            for pattern, member in patterns.items() if isinstance(patterns, dict) else ():
                if _matches(pattern, key):
                    return member
        for part in self.branches(schema):
            if isinstance(member := part.get("additionalProperties"), dict):
                return member
        return None

    def item(self, schema: Json, index: int) -> Json:
        """Return the schema of an array's item, None if there is none."""
        schemas: list[Json] = []
        for part in self.branches(schema):
            first, rest = part.get("prefixItems"), part.get("items")
            if isinstance(rest, list):  # older drafts write `prefixItems` like this, and the rest as `additionalItems`
                first, rest = rest, part.get("additionalItems")
            if isinstance(first, list) and index < len(first):
                schemas.append(first[index])
            elif isinstance(rest, dict):
                schemas.append(rest)
        return self._any_of(schemas)

    def names(self) -> tuple[str, ...]:
        """Return the names of the arguments' properties in the order in which the schema declares them."""
        return tuple(dict.fromkeys(key for properties in self._properties(self.root) for key in properties))

    def required_names(self) -> frozenset[str]:
        """Return the names of the required properties."""
        parts: list[Json] = [self.root]
        names: set[str] = set()
        for part in map(self.resolve, parts):
            listed = part.get("required")
            names.update(each for each in (listed if isinstance(listed, list) else ()) if isinstance(each, str))
            if len(parts) < _LONGEST_CHAIN and isinstance(combined := part.get("allOf"), list):
                parts += combined
        return frozenset(names)

    def _properties(self, schema: Json) -> list[dict[str, Json]]:
        tables = [part.get("properties") for part in self.branches(schema)]
        return [properties for properties in tables if isinstance(properties, dict)]

    def _any_of(self, schemas: list[Json]) -> Json:
        if len(schemas) <= 1:
            return schemas[0] if schemas else None
        return self._unions.setdefault(tuple(map(id, schemas)), {"anyOf": schemas})


def _unescaped(part: str) -> str:
    return unquote(part).replace("~1", "/").replace("~0", "~")


def _at(node: Json, parts: list[str]) -> Json:
    for part in parts:
        if isinstance(node, list) and part.isascii() and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, dict):
            node = node.get(part)
        else:
            return None
    return node


def _matches(pattern: str, key: str) -> bool:
    """Return whether a simple pattern matches. A client's regular expressions are not run: they could be slow."""
    literal = pattern.removeprefix("^").removesuffix("$")
    if literal in (".*", ".+", ""):
        return True
    if re.escape(literal) != literal:
        return False
    return literal in key if pattern == literal else key.startswith(literal)


def _typed(word: Json) -> Kinds:
    words = word if isinstance(word, list) else [word]
    if not words or not all(isinstance(each, str) and type_named(each) for each in words):
        return None
    kinds = frozenset(type_named(str(each)) for each in words)
    return kinds | {"integer"} if "number" in kinds else kinds


def _enumerated(schema: dict[str, Json]) -> list[Json] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None


def _intersect(one: Kinds, other: Kinds) -> Kinds:
    if not one or not other:
        return one or other
    return one & other or one  # a contradiction: no type fits, so the first is used


def _unite(parts: Iterable[Kinds]) -> Kinds:
    kinds: frozenset[str] = frozenset()
    for part in parts:
        if part is None:
            return None
        kinds |= part
    return kinds
