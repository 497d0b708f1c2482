"""What every node of this dialect shares: its family, its unknown fields, and both spellings of a name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from dragoman.errors import DragomanError
from dragoman.model.blocks import Extra, Opaque, Where
from dragoman.model.naming import WORD, of_the_node, to_keep
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

FAMILY = "gemini"
MINTED = "~minted"  # on a call: the id is ours, the client gave none
Names: TypeAlias = Mapping[str, str]
_HUMP = re.compile(r"(?<!^)(?=[A-Z])")


def names(*known: str) -> Names:
    """Known names by their other spelling: services that read protobuf's JSON take both."""
    return {snake: name for name in known if (snake := _HUMP.sub("_", name).lower()) != name}


def read(value: Json, at: str, blame: type[DragomanError], known: Names) -> Fields:
    """An object, its known names in camelCase."""
    if isinstance(value, dict) and not value.keys().isdisjoint(known):
        value = {known.get(name, name): each for name, each in value.items()}
    return Fields(value, at, blame)


def child(fields: Fields, name: str, known: Names) -> Fields | None:
    """Take an object, or None when it is absent or null."""
    value = fields.any(name)
    return None if value is None else read(value, fields.path(name), fields.blame, known)


def each_of(fields: Fields, name: str) -> Iterator[tuple[str, Json]]:
    """Take an array, item by item with its place. The service reads a lone object as an array of one."""
    if isinstance(fields.peek(name), dict):
        yield fields.path(name), fields.any(name)
        return
    for index, item in enumerate(fields.array(name, [])):
        yield f"{fields.path(name)}[{index}]", item


def extra(fields: Fields) -> Extra | None:
    """All that nobody took, for this family alone."""
    return extra_of(to_keep(fields.rest()))


def extra_of(rest: dict[str, Json], spelling: frozenset[str] = frozenset()) -> Extra | None:
    """Fields for this family alone. Those that begin with `~` are ours: how a thing was spelt, never sent."""
    ours = frozenset(name for name in rest if name.startswith(WORD))
    return Extra(FAMILY, rest, (spelling | ours) & rest.keys()) if rest else None


def own_fields(kept: Extra | None) -> Mapping[str, Json]:
    return kept.fields if kept is not None and kept.family == FAMILY else {}


def with_extra(body: dict[str, Json], kept: Extra | None) -> dict[str, Json]:
    """Put kept fields back. Objects are merged, as a known one may hold unknown fields; else the kept one wins."""
    return _merged(body, of_the_node(own_fields(kept)))


def _merged(body: dict[str, Json], kept: Mapping[str, Json]) -> dict[str, Json]:
    for name, value in kept.items():
        known = body.get(name)
        body[name] = _merged({**known}, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return body


def identifier(fields: Fields, name: str) -> str:
    """A name: never the empty string (D5)."""
    return fields.identifier(name)


def opaque(fields: Fields, kind: str) -> Opaque:
    """The whole object, of which nothing was taken yet."""
    return Opaque(FAMILY, fields.rest(), kind, at=Where(fields.at))


def own_data(block: Opaque, blame: type[DragomanError]) -> dict[str, Json]:
    if block.family != FAMILY or not isinstance(block.data, dict):
        raise blame(f"{block.kind or 'a block'} of {block.family} has no place here", at=block.at.path)
    return {**block.data}


def json_text(value: Json, at: str, blame: type[DragomanError]) -> str:
    """A value as JSON text."""
    try:
        return jsonio.text_of(value)
    except jsonio.JsonError as error:
        raise blame(str(error), at=at) from None
