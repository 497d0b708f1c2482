"""Calls whose arguments come in pieces, as Vertex AI sends them where `streamFunctionCallArguments` is set.

The first piece has the name, later ones have `partialArgs`: a JSON path and a value each. A piece without
`willContinue` is the last one. The call is sent when it is whole.
"""

from __future__ import annotations

import re
from typing import Any

from dragoman.dialects.gemini.nodes import names
from dragoman.errors import MissingField
from dragoman.wire.jsonio import Json

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d{1,6})\]|\['([^']*)'\]")
_VALUES = ("stringValue", "numberValue", "boolValue")
_MOST_ITEMS = 10_000
_SPELLINGS = names("functionCall", "partialArgs", "willContinue", "thoughtSignature", "jsonPath", *_VALUES)


class PartialCall:
    """One call that has begun and has more pieces to come."""

    def __init__(self) -> None:
        self._part: dict[str, Json] = {}  # beside the call
        self._call: dict[str, Json] = {}
        self._args: dict[str, Any] = {}

    def take(self, part: dict[str, Json], call: dict[str, Json], at: str) -> Json | None:
        """Add a piece; give the part of the whole call after the last one. Raises MissingField."""
        self._part |= {name: value for name, value in part.items() if name != "functionCall"}
        pieces, more = call.pop("partialArgs", None), call.pop("willContinue", None)
        given = call.pop("args", None)
        self._args |= given if isinstance(given, dict) else {}
        self._call |= {name: value for name, value in call.items() if value}
        for piece in pieces if isinstance(pieces, list) else ():
            self._set(_spelt(piece), f"{at}.functionCall.partialArgs")
        return None if more else self.part

    @property
    def part(self) -> dict[str, Json]:
        """The part that a whole call would be, as far as it has come."""
        return {**self._part, "functionCall": {**self._call, "args": self._args}}

    def _set(self, piece: dict[str, Json], at: str) -> None:
        path = piece.get("jsonPath")
        found = [*_STEP.finditer(path)] if isinstance(path, str) else []
        if not found or "$" + "".join(step[0] for step in found) != path:
            raise MissingField("expected a JSON path", at=at)
        steps = [int(step[2]) if step[2] else step[1] or step[3] for step in found]
        _put(self._args, steps, next((piece[name] for name in _VALUES if name in piece), None), at)


def joined(parts: list[Json], begun: PartialCall | None, at: str) -> tuple[list[Json], PartialCall | None]:
    """Parts with calls in pieces made whole, and the call that is still open."""
    found: list[Json] = []
    for index, part in enumerate(parts):
        spelt = _spelt(part)
        call = spelt.get("functionCall")
        call = _spelt(call) if isinstance(call, dict) else None
        if call is None or not (begun or call.get("willContinue") or call.get("partialArgs")):
            found.append(part)
            continue
        begun = begun or PartialCall()
        whole = begun.take(spelt, call, f"{at}.content.parts[{index}]")
        if whole is not None:
            found.append(whole)
            begun = None
    return found, begun


def _spelt(value: Json) -> dict[str, Json]:
    """The fields of an object by their usual names."""
    return {_SPELLINGS.get(name, name): each for name, each in value.items()} if isinstance(value, dict) else {}


def _put(place: Any, steps: list[str | int], value: Json, at: str) -> None:
    """Set a value where the path leads; a string goes on where one stands."""
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if not _leads_on(place, step):
            raise MissingField("the path leads through a value of another kind", at=at)
        if isinstance(step, int):
            place.extend([None] * (step + 1 - len(place)))
        there = place[step] if isinstance(step, int) else place.get(step)
        if following is None:
            place[step] = there + value if isinstance(there, str) and isinstance(value, str) else value
        elif there is None:
            place[step] = [] if isinstance(following, int) else {}
        place = place[step]


def _leads_on(place: Any, step: str | int) -> bool:
    return isinstance(place, list) and step <= _MOST_ITEMS if isinstance(step, int) else isinstance(place, dict)
