"""Remove from a tool's input schema what the service refuses (docs/dialects/kiro.md, rules 19 to 26). Pure.

References are replaced by their targets, unions at the root are merged into one object, and validation keywords are
removed. A property *named* like a keyword is not a keyword: it is inside `properties`.
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
# Removed keywords whose removal loses nothing: annotations, and references, which are replaced by their targets.
ANNOTATIONS = frozenset(
    {"$schema", "$id", "$anchor", "$comment", "$dynamicAnchor", "$vocabulary", "$defs", "definitions", "$ref", "const"}
)
_UNIONS = ("anyOf", "oneOf", "allOf")
MAX_EXPANSION = 256 * 1024  # bytes that the references of all tools of a request may add
_WITH_SCHEMAS = frozenset({"items", "anyOf", "oneOf", "allOf", "prefixItems"})
_CUT = "$ref (as any value)"  # in the list of removed keywords: some references were removed without replacement
_SCHEMA_OVERHEAD = 64  # bytes that one more schema adds, in addition to its keywords


class ExpansionTooLarge(Exception):
    """Expanding references adds more bytes than the budget allows."""


class ExpansionBudget(Struct):
    """The bytes that references may still add.

    Each reference is replaced by a copy of its target, and targets may have references, so a short request can become
    a very long one.
    """

    left: int = MAX_EXPANSION

    def take(self, size: int) -> None:
        """Take bytes from the budget. Raises ExpansionTooLarge if it does not have them."""
        self.left -= size
        if self.left < 0:
            raise ExpansionTooLarge


def clean_schema_to_depth(schema: Schema, budget: ExpansionBudget, depth: int) -> tuple[Schema, list[str]]:
    """Return the schema as the service accepts it, and the removed keywords, sorted.

    References nested deeper than `depth` are removed and allow any value. Raises ExpansionTooLarge.
    """
    cleaner = _Cleaner(schema, budget, depth)
    root = cleaner.root()
    return root, sorted(cleaner.removed - root.keys())


class _Cleaner:
    def __init__(self, whole: Schema, budget: ExpansionBudget, depth: int) -> None:
        self._whole = whole
        self._budget, self._depth = budget, depth
        self.removed: set[str] = set()

    def root(self) -> Schema:
        plain = self._flat(self._resolved(self._whole, (), always=True), ())
        cleaned = self._node(plain, ())
        properties = cleaned.get("properties")
        names = properties if isinstance(properties, dict) else {}
        root: Schema = {**cleaned, "type": "object", "properties": names}
        required = root.get("required")
        if isinstance(required, list):
            known: list[Json] = [name for name in required if isinstance(name, str) and name in names]
            root["required"] = known
            if not known:
                del root["required"]
        for keyword in ("items", "enum"):
            if keyword in root:  # Neither applies to an object.
                self.removed.add(keyword)
                del root[keyword]
        return root

    def _flat(self, node: Schema, seen: tuple[str, ...]) -> Schema:
        """Return the root with its unions merged into it (rule 25 of docs/dialects/kiro.md).

        A property that only one branch of anyOf or oneOf requires is not required.
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
                        self._budget.take(_SCHEMA_OVERHEAD)
                    path = (*seen, reference) if isinstance(reference, str) else seen
                    inner = self._flat(self._resolved(branch, seen), path)
                    properties = {**members(inner.get("properties")), **properties}
                    required += _strings(inner.get("required")) if union == "allOf" else []
        rest: Schema = {name: value for name, value in node.items() if name not in _UNIONS}
        return {**rest, "properties": properties, "required": [*dict.fromkeys(required)]}

    def _node(self, node: Schema, seen: tuple[str, ...]) -> Schema:
        """Clean a schema at any level; `seen` has the references that lead to it."""
        cleaned: Schema = {}
        if seen:
            self._budget.take(_SCHEMA_OVERHEAD)
        for keyword, value in node.items():
            if keyword in _REMOVED:
                self.removed.add(keyword)
            elif (cleaned_value := self._keyword(keyword, value, seen)) is not None:
                if seen:
                    self._budget.take(_keyword_size(keyword, value))
                cleaned[keyword] = cleaned_value
            elif value is not None:
                self.removed.add(keyword)
        if "const" in node:
            cleaned.setdefault("enum", [node["const"]])
        return cleaned

    def _keyword(self, keyword: str, value: Json, seen: tuple[str, ...]) -> Json:
        """Return the cleaned value of a keyword; None if the keyword is removed."""
        match keyword:
            case "const" | "$ref":
                return None
            case "required":
                names: list[Json] = [*_strings(value)]
                return names or None
            case "properties":
                inner = {name: self._inside(each, seen) for name, each in members(value).items()}
                return inner or None
            case _ if keyword in _WITH_SCHEMAS:
                return self._many(value, seen)
            case _:
                return value

    def _many(self, value: Json, seen: tuple[str, ...]) -> Json:
        if isinstance(value, list):
            return [self._inside(each, seen) for each in value] or None
        return self._inside(value, seen) if isinstance(value, dict) else None

    def _inside(self, value: Json, seen: tuple[str, ...]) -> Json:
        if not isinstance(value, dict):
            return {}  # `true` and `false` are schemas too, but the service accepts objects only
        reference = value.get("$ref")
        if not isinstance(reference, str):
            return self._node(value, seen)
        if len(seen) >= self._depth:
            return self._node(self._resolved(value, seen), seen)
        return self._node(self._resolved(value, seen), (*seen, reference))

    def _resolved(self, node: Schema, seen: tuple[str, ...], *, always: bool = False) -> Schema:
        """Return the node with its reference replaced by the target; its own keywords win. A cycle allows any value."""
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


def _keyword_size(keyword: str, value: Json) -> int:
    """Return the bytes that a keyword adds, without the schemas in it, which are counted separately."""
    if keyword == "properties" and isinstance(value, dict):
        return len(keyword) + sum(map(len, value))
    if keyword in _WITH_SCHEMAS:
        return len(keyword)
    return len(keyword) + (len(value) if isinstance(value, str) else json_size(value))


def _strings(value: Json) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
