"""What every node of this dialect shares: its family, its unknown fields, and both spellings of a name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from dragoman.dialects.kit.kept import Kept
from dragoman.errors import DragomanError
from dragoman.model.blocks import WORD
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

FAMILY = "gemini"
MINTED = "~minted"  # on a call: the id is ours, the client gave none
_KEPT = Kept(FAMILY, lambda name, _: name.startswith(WORD))
extra, extra_of, own_fields, with_extra = _KEPT.extra, _KEPT.extra_of, _KEPT.own_fields, _KEPT.with_extra
opaque, own_data = _KEPT.opaque, _KEPT.own_data
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
