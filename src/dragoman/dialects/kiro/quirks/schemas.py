"""A tool's input schema without what the service refuses (docs/dialects/kiro.md, rules 19 to 26).

References are put in place, unions at the root become one object, keywords that only validate go. A property that is
merely *named* like a keyword is none: names stand in `properties`, keywords beside it.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from dragoman.dialects.kit.values import members
from dragoman.model.events import json_size
from dragoman.wire.jsonio import Json

Schema: TypeAlias = dict[str, Json]

_REMOVED = frozenset(
    {"$schema", "$id", "$anchor", "$comment", "$dynamicAnchor", "$dynamicRef", "$vocabulary", "$defs", "definitions"}
    | {"additionalProperties", "unevaluatedProperties", "unevaluatedItems", "patternProperties", "propertyNames"}
    | {"pattern", "format", "minLength", "maxLength", "contentEncoding", "contentMediaType", "contentSchema"}
    | {
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "uniqueItems",
    }
    | {"contains", "minContains", "maxContains", "minProperties", "maxProperties", "if", "then", "else", "not"}
    | {"dependencies", "dependentRequired", "dependentSchemas"}
)
# Of what goes: keywords that constrain nothing, and references, whose targets stand in their places.
ANNOTATIONS = frozenset(
    {"$schema", "$id", "$anchor", "$comment", "$dynamicAnchor", "$vocabulary", "$defs", "definitions", "$ref", "const"}
)
_UNIONS = ("anyOf", "oneOf", "allOf")
MAX_EXPANSION = 256 * 1024  # bytes that the references of all tools of a request may add
_SCHEMAS_IN = frozenset({"items", "anyOf", "oneOf", "allOf", "prefixItems"})
_CUT = "$ref (as any value)"  # among the keywords that are gone: some references have nothing in their place
_SCHEMA = 64  # bytes that one more schema adds, beside its words


class ExpansionTooLarge(Exception):
    """References within references add more than they may."""


class ExpansionBudget(Struct):
    """How many bytes references may still add. Each reference puts a copy of its target in its place, and targets may
    hold references, so a short request can become a very long one.
    """

    left: int = MAX_EXPANSION

    def take(self, size: int) -> None:
        """Raises TooMuchAdded before there is more than may be."""
        self.left -= size
        if self.left < 0:
            raise ExpansionTooLarge


def clean_schema_to_depth(schema: Schema, room: ExpansionBudget, depth: int) -> tuple[Schema, list[str]]:
    """The schema as the service takes it, and the keywords that are gone, sorted.

    References within references, deeper than `depth`, stand for any value. Raises TooMuchAdded.
    """
    work = _Cleaning(schema, room, depth)
    root = work.root()
    return root, sorted(work.removed - root.keys())


class _Cleaning:
    def __init__(self, whole: Schema, room: ExpansionBudget, depth: int) -> None:
        self._whole = whole
        self._room, self._depth = room, depth
        self.removed: set[str] = set()

    def root(self) -> Schema:
        plain = self._flat(self._resolved(self._whole, (), always=True), ())
        cleaned = self._node(plain, ())
        properties = cleaned.get("properties")
        names = properties if isinstance(properties, dict) else {}
        rooted: Schema = {**cleaned, "type": "object", "properties": names}
        required = rooted.get("required")
        if isinstance(required, list):
            known: list[Json] = [name for name in required if isinstance(name, str) and name in names]
            rooted["required"] = known
            if not known:
                del rooted["required"]
        for keyword in ("items", "enum"):
            if keyword in rooted:  # an object has neither
                self.removed.add(keyword)
                del rooted[keyword]
        return rooted

    def _flat(self, node: Schema, seen: tuple[str, ...]) -> Schema:
        """The root with its unions merged into it. What only one branch demands is no demand.

        See rule 25 of docs/dialects/kiro.md.
        """
        unions = [name for name in _UNIONS if name in node]
        if not unions:
            return node
        properties = members(node.get("properties"))
        required = _strings(node.get("required"))
        for union in unions:
            self.removed.add(union)
            branches = node[union]
            for branch in branches if isinstance(branches, list) else []:
                if isinstance(branch, dict):
                    reference = branch.get("$ref")
                    if isinstance(reference, str) and len(seen) < self._depth:
                        self._room.take(_SCHEMA)
                    led = (*seen, reference) if isinstance(reference, str) else seen
                    inner = self._flat(self._resolved(branch, seen), led)
                    properties = {**members(inner.get("properties")), **properties}
                    required += _strings(inner.get("required")) if union == "allOf" else []
        rest: Schema = {name: value for name, value in node.items() if name not in _UNIONS}
        return {**rest, "properties": properties, "required": [*dict.fromkeys(required)]}

    def _node(self, node: Schema, seen: tuple[str, ...]) -> Schema:
        """A schema anywhere; `seen` are the references that led to it."""
        cleaned: Schema = {}
        if seen:
            self._room.take(_SCHEMA)
        for keyword, value in node.items():
            if keyword in _REMOVED:
                self.removed.add(keyword)
            elif (kept := self._kept(keyword, value, seen)) is not None:
                if seen:
                    self._room.take(_words(keyword, value))
                cleaned[keyword] = kept
            elif value is not None:
                self.removed.add(keyword)
        if "const" in node:
            cleaned.setdefault("enum", [node["const"]])
        return cleaned

    def _kept(self, keyword: str, value: Json, seen: tuple[str, ...]) -> Json:
        """What stands for a keyword's value; None if nothing does."""
        match keyword:
            case "const" | "$ref":
                return None
            case "required":
                names: list[Json] = [*_strings(value)]
                return names or None
            case "properties":
                inner = {name: self._inside(each, seen) for name, each in members(value).items()}
                return inner or None
            case _ if keyword in _SCHEMAS_IN:
                return self._many(value, seen)
            case _:
                return value

    def _many(self, value: Json, seen: tuple[str, ...]) -> Json:
        if isinstance(value, list):
            return [self._inside(each, seen) for each in value] or None
        return self._inside(value, seen) if isinstance(value, dict) else None

    def _inside(self, value: Json, seen: tuple[str, ...]) -> Json:
        if not isinstance(value, dict):
            return {}  # `true` and `false` are schemas too; the service knows objects only
        reference = value.get("$ref")
        if not isinstance(reference, str):
            return self._node(value, seen)
        if len(seen) >= self._depth:
            return self._node(self._resolved(value, seen), seen)
        return self._node(self._resolved(value, seen), (*seen, reference))

    def _resolved(self, node: Schema, seen: tuple[str, ...], *, always: bool = False) -> Schema:
        """The node with what it refers to put in its place; its own words win. A circle is any value."""
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return node
        self.removed.add("$ref")
        rest: Schema = {name: value for name, value in node.items() if name != "$ref"}
        if reference in seen:
            return rest
        if len(seen) >= self._depth and not always:
            self.removed.add(_CUT)
            return rest
        target = self._resolved(self._found(reference), (*seen, reference), always=always)
        return {**target, **rest}

    def _found(self, reference: str) -> Schema:
        place: Json = self._whole
        for name in reference.removeprefix("#").split("/")[1:] if reference.startswith("#") else ["?"]:
            key = name.replace("~1", "/").replace("~0", "~")
            place = place.get(key) if isinstance(place, dict) else None
        return place if isinstance(place, dict) else {}


def _words(keyword: str, value: Json) -> int:
    """Bytes that a keyword adds, without the schemas in it, which are counted by themselves."""
    if keyword == "properties" and isinstance(value, dict):
        return len(keyword) + sum(map(len, value))
    if keyword in _SCHEMAS_IN:
        return len(keyword)
    return len(keyword) + (len(value) if isinstance(value, str) else json_size(value))


def _strings(value: Json) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
