"""JSON Schema without references: what each `$ref` refers to stands in its place."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.model.events import json_size
from dragoman.wire.jsonio import Json

MOST_ADDED = 256 * 1024  # bytes that the references of all tools of a request may add
_DEEPEST = 64  # references within references
_DEFINITIONS = frozenset({"$defs", "definitions"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})  # their keys are names, not keywords
_VALUES = frozenset({"enum", "const", "default", "examples", "required"})  # their values are no schemas


def has_references(schema: Json) -> bool:
    """Whether a schema refers to another."""
    if isinstance(schema, list):
        return any(map(has_references, schema))
    if not isinstance(schema, dict):
        return False
    inner = [value for name, value in schema.items() if name not in _VALUES]
    return isinstance(schema.get("$ref"), str) or any(map(has_references, inner))


class References:
    """Puts referenced schemas in place, in all schemas of one request.

    Targets may hold references, so a short request can become a very long one. A reference that would add more than is
    left of `most` bytes stands for any value, and so does one inside of its own target.
    """

    def __init__(self, most: int = MOST_ADDED) -> None:
        self._left = most
        self._whole: dict[str, Json] = {}
        self._targets: dict[str, tuple[Json, int]] = {}  # by reference: what it refers to, and its size
        self.cut = False  # a reference of the last schema stands for any value

    def inlined(self, schema: Mapping[str, Json]) -> dict[str, Json]:
        """Return the schema without references and without the definitions they refer to."""
        self._whole, self._targets, self.cut = {**schema}, {}, False
        return self._schema(self._whole, ())

    def _schema(self, node: dict[str, Json], seen: tuple[str, ...]) -> dict[str, Json]:
        """Return a schema anywhere; `seen` are the references that led to it."""
        reference = node.get("$ref")
        target = self._target(reference, seen) if isinstance(reference, str) else {}
        own = {
            name: self._keyword(name, value, seen)
            for name, value in node.items()
            if name not in _DEFINITIONS and (name != "$ref" or not isinstance(reference, str))
        }
        return {**target, **own}  # the words beside a reference win

    def _keyword(self, name: str, value: Json, seen: tuple[str, ...]) -> Json:
        if isinstance(value, dict) and name in _NAMED:
            return {key: self._schema(each, seen) if isinstance(each, dict) else each for key, each in value.items()}
        if isinstance(value, dict) and name not in _VALUES:
            return self._schema(value, seen)
        if isinstance(value, list) and name not in _VALUES:
            return [self._schema(each, seen) if isinstance(each, dict) else each for each in value]
        return value

    def _target(self, reference: str, seen: tuple[str, ...]) -> dict[str, Json]:
        if reference not in self._targets:
            found = self._found(reference)
            self._targets[reference] = found, json_size(found)
        place, size = self._targets[reference]
        if reference in seen or len(seen) >= _DEEPEST or not isinstance(place, dict) or size > self._left:
            self.cut = True
            return {}
        self._left -= size
        return self._schema(place, (*seen, reference))

    def _found(self, reference: str) -> Json:
        place: Json = self._whole if reference.startswith("#") else None
        for name in reference.removeprefix("#").split("/")[1:]:
            place = place.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
        return place
