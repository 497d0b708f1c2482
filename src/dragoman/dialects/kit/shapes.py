"""The published shape of a request as data: members, required members, limits, patterns, unions.

`find_mismatches` finds where a document differs from its shape. Several details are worded as AWS words them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.wire.jsonio import Json

_DISPLAYED = 40


class ShapeMismatch(Struct, frozen=True):
    """One difference. The kind `null` is an optional member with the value null, which some services accept."""

    kind: Literal["type", "enum", "pattern", "length", "range", "union", "unknown", "missing", "null"]
    at: str
    detail: str


class Str(Struct, frozen=True):
    """A string with limits of its length, a pattern it must match, or the `words` it must be one of."""

    least: int = 0
    most: int | None = None
    pattern: str = ""
    words: tuple[str, ...] = ()


class Num(Struct, frozen=True):
    """A number within limits; `whole` allows integers only."""

    least: float = 0
    most: float | None = None
    whole: bool = False


class Bool(Struct, frozen=True):
    """A boolean."""


class AnyValue(Struct, frozen=True):
    """Any JSON value; another rule may check it."""


class Array(Struct, frozen=True):
    """An array whose items have one shape."""

    of: JsonShape
    least: int = 0
    most: int | None = None


class Map(Struct, frozen=True):
    """The schema of an object with arbitrary keys."""

    key: Str
    of: JsonShape
    least: int = 0
    most: int | None = None


class ObjectShape(Struct, frozen=True):
    """An object. A `union` has exactly one of its members. A `lenient` one may have unknown members."""

    members: Mapping[str, JsonShape]
    required: tuple[str, ...] = ()
    union: bool = False
    lenient: bool = False


JsonShape: TypeAlias = Str | Num | Bool | AnyValue | Array | Map | ObjectShape


def find_mismatches(value: Json, shape: JsonShape, at: str = "") -> Iterator[ShapeMismatch]:
    """Yield every difference of a value from its shape."""
    match shape:
        case ObjectShape():
            yield from _members(value, shape, at)
        case Array(of, least, most):
            if not isinstance(value, list):
                yield ShapeMismatch("type", at, "it must be an array")
                return
            yield from _length(len(value), least, most, at)
            for index, item in enumerate(value):
                yield from find_mismatches(item, of, f"{at}[{index}]")
        case Map():
            yield from _map(value, shape, at)
        case Str():
            yield from _string(value, shape, at)
        case Num():
            yield from _number(value, shape, at)
        case Bool():
            if not isinstance(value, bool):
                yield ShapeMismatch("type", at, "it must be a boolean")
        case AnyValue():
            pass


def _members(value: Json, shape: ObjectShape, at: str) -> Iterator[ShapeMismatch]:
    if not isinstance(value, dict):
        yield ShapeMismatch("type", at, "it must be an object")
        return
    known = [name for name in value if name in shape.members]
    if shape.union and (sum(value[name] is not None for name in known) if shape.lenient else len(value)) != 1:
        yield ShapeMismatch("union", at, f"it must have exactly one member of: {', '.join(shape.members)}")
    unknown = next((name for name in value if name not in shape.members), None)
    # A union whose only member is unknown may be newer than this table.
    if unknown is not None and not shape.lenient and (known or not shape.union):
        yield ShapeMismatch("unknown", _join(at, unknown), f"extraneous key [{unknown[:_DISPLAYED]}] is not permitted")
    for name in shape.required:
        is_free = shape.lenient and name in value and isinstance(shape.members[name], AnyValue)
        if value.get(name) is None and not is_free:
            yield ShapeMismatch("missing", _join(at, name), "it must be set: Member must not be null")
    for name in known:
        if value[name] is not None:
            yield from find_mismatches(value[name], shape.members[name], _join(at, name))
        elif name not in shape.required:
            yield ShapeMismatch("null", _join(at, name), "it is null; leave an optional member out instead")


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _map(value: Json, shape: Map, at: str) -> Iterator[ShapeMismatch]:
    if not isinstance(value, dict):
        yield ShapeMismatch("type", at, "it must be an object")
        return
    yield from _length(len(value), shape.least, shape.most, at)
    for name, item in value.items():
        yield from find_mismatches(name, shape.key, at)
        yield from find_mismatches(item, shape.of, f"{at}.{name}")


def _string(value: Json, shape: Str, at: str) -> Iterator[ShapeMismatch]:
    if not isinstance(value, str):
        yield ShapeMismatch("type", at, "it must be a string")
    elif shape.words and value not in shape.words:
        yield ShapeMismatch(
            "enum", at, f"it must be one of: Member must satisfy enum value set: [{', '.join(shape.words)}]"
        )
    elif shape.pattern and value and not re.fullmatch(shape.pattern, value):
        yield ShapeMismatch("pattern", at, f"Member must satisfy regular expression pattern: {shape.pattern}")
    else:
        yield from _length(len(value), shape.least, shape.most, at)


def _number(value: Json, shape: Num, at: str) -> Iterator[ShapeMismatch]:
    kinds = (int,) if shape.whole else (int, float)
    if type(value) not in kinds:
        yield ShapeMismatch("type", at, "it must be a whole number" if shape.whole else "it must be a number")
    elif value < shape.least:  # type: ignore[operator]
        yield ShapeMismatch("range", at, f"Member must have value greater than or equal to {shape.least:g}")
    elif shape.most is not None and value > shape.most:  # type: ignore[operator]
        yield ShapeMismatch("range", at, f"Member must have value less than or equal to {shape.most:g}")


def _length(size: int, least: int, most: int | None, at: str) -> Iterator[ShapeMismatch]:
    if size < least:
        yield ShapeMismatch("length", at, f"Member must have length greater than or equal to {least}")
    elif most is not None and size > most:
        yield ShapeMismatch("length", at, f"Member must have length less than or equal to {most}")
