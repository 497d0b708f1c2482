"""Fields that a family keeps beside the model (`Extra`) and that another has too, and what is said of all others."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dragoman.model.blocks import Extra
from dragoman.model.capabilities import Capabilities, Place
from dragoman.model.naming import OUTER, wire_name

NOTHING: Mapping[str, str] = {}


class Carried(Struct, frozen=True):
    """Fields of a family that the other side has too: its own name by the family's."""

    family: str
    options: Mapping[str, str]
    media: Mapping[str, str]
    tools: Mapping[str, str]
    answers: Mapping[str, str]

    def of(self, extra: Extra, fields: Mapping[str, str]) -> Mapping[str, str]:
        return fields if extra.family == self.family else NOTHING


def carried(family: str, giver: Capabilities, taker: Capabilities) -> Carried:
    def both(place: Place) -> dict[str, str]:
        taken = taker.shared_fields.get(place, NOTHING)
        return {own: taken[name] for name, own in giver.shared_fields.get(place, NOTHING).items() if name in taken}

    return Carried(family, both("request"), both("media"), both("tool"), both("answer"))


def place_of(name: str, at: str) -> str:
    """Where a field stands, of a node that stands there."""
    if name.startswith(OUTER):
        at = at.rpartition(".")[0]
    name = wire_name(name)
    return f"{at}.{name}" if at else name


def told_lost(name: str, family: str) -> str:
    return f"the other side has no {wire_name(name)} as {family} has it"
