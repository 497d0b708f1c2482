"""Blocks of a stream that must come whole: what the service's own tools call, return and draw, and what is unknown."""

from __future__ import annotations

from dragoman.dialects.bedrock.nodes import FAMILY
from dragoman.errors import BadFrame
from dragoman.model.blocks import Opaque, Where
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json


class Held:
    """A block under construction: the one member that says its kind, and what has come of it."""

    def __init__(self, member: str, value: Json, at: str) -> None:
        self._member = member
        self._value = value
        self._results: list[Json] = []
        self._at = at

    def grow(self, delta: Fields) -> None:
        value = delta.any(self._member)
        if self._member == "toolResult" and isinstance(value, list):
            self._results.extend(value)
        else:
            self._value = _joined(self._value, value)

    def whole(self) -> Opaque:
        """The block. Raises BadFrame for an input that is no JSON."""
        value, kind = self._value, None
        if isinstance(value, dict):
            kind = value.get("type")
            if self._member == "toolUse":
                value = {**value, "input": _decoded(value.get("input"))}
            elif self._member == "toolResult":
                value = {**value, "content": self._results}
        data: Json = {self._member: value}
        return Opaque(FAMILY, data, kind if isinstance(kind, str) else self._member, at=Where(self._at))


def _joined(before: Json, more: Json) -> Json:
    """Both values as one: texts and arrays are joined, objects merged; else the later one counts."""
    if isinstance(before, str) and isinstance(more, str):
        return before + more
    if isinstance(before, list) and isinstance(more, list):
        return before + more
    if isinstance(before, dict) and isinstance(more, dict):
        return before | {name: _joined(before.get(name), value) for name, value in more.items()}
    return before if more is None else more


def _decoded(text: Json) -> Json:
    if not isinstance(text, str):
        return text or {}
    try:
        return jsonio.decode(text or "{}")
    except jsonio.JsonError as error:
        raise BadFrame(f"the input of a tool of the service is not JSON: {error}", at="contentBlockStop") from None


def begin_held(start: Fields) -> Held | None:
    """The block that a start announces; None if it does not say what it is: then its first delta does."""
    for member, value in start.rest().items():
        if member != "reasoningContent":
            return Held(member, value, start.at)
    return None
