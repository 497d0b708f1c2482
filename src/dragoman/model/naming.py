"""How fields are named in an `Extra`: by their place as seen from the node, or by a word of the family's own.

A client may call a field like a place or like such a word: it is then named from here, so that no name says two things.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

OUTER = "../"  # before the name of a field of what the node came in
WORD = "~"  # before a word of the family's own: how something was spelt, never sent
_HERE = "./"

SHAPES = "~shapes"  # on a conversation: what was read in another shape than its dialect's own, for a filter to note
NAME_AT_HOME = "~inner"  # on a tool or a call: the name its family calls it by, where its own is for all others


def to_keep(fields: Mapping[str, T]) -> dict[str, T]:
    """Fields of the wire by the names they are kept under."""
    return {_HERE + name if "." in name or name.startswith(WORD) else name: value for name, value in fields.items()}


def of_the_node(fields: Mapping[str, T]) -> dict[str, T]:
    """The node's own fields among those kept, by their names on the wire."""
    return {
        name.removeprefix(_HERE): value
        for name, value in fields.items()
        if name.startswith(_HERE) or not ("." in name or name.startswith(WORD))
    }


def of_what_it_came_in(fields: Mapping[str, T]) -> dict[str, T]:
    """The fields of what the node came in among those kept, by their names on the wire."""
    return {wire_name(name): value for name, value in fields.items() if name.startswith(OUTER)}


def wire_name(name: str) -> str:
    return name.removeprefix(OUTER).removeprefix(_HERE)
