"""MarkupBody: the reader of calls whose arguments are key and value tags; it builds their JSON as it goes.

A value that can only be a string streams at once, escaped; any other waits for its end tag and goes out as it was
written, if it is JSON of a type that the tool's schema allows, else as a string.
"""

from __future__ import annotations

import re

from dragoman.filters.raw_tools.readers import BLANK, LIMIT
from dragoman.filters.raw_tools.table import Markup
from dragoman.wire import jsonio
from dragoman.wire.markers import Markers

HELD_LIMIT = 1024 * 1024  # characters of one value; a longer one can only go out as a string (D22)
STRING = frozenset({"string"})
JSON = frozenset({"json"})  # the markup itself says that the value is JSON
_WORDS = {"True": "true", "False": "false", "None": "null", "TRUE": "true", "FALSE": "false"}


class MarkupBody:
    def __init__(
        self, markup: Markup, ends: Markers, tags: Markers, stops: Markers, closes: frozenset[str], kinds: Kinds
    ) -> None:
        self.over = False
        self._markup = markup
        self._ends = ends  # all that end the call
        self._closes = closes  # those that are part of it
        self._kinds = kinds
        self._tags = tags  # `ends`, and the end of an opening tag
        self._stops = stops  # all that ends a value
        self._value_ends = frozenset(markup.spelt(markup.value_ends))
        self._kind: frozenset[str] | None = None  # None: between values
        self._held: list[str] | None = None  # a value that waits; None: it streams
        self._size = 0
        self._fresh = False  # the value has just begun
        self._any = False

    @property
    def complete(self) -> bool:
        return self.over

    def read(self, text: str, at: int, out: list[str]) -> int:
        while not self.over and at < len(text):
            was = self._kind
            moved = self._between(text, at, out) if was is None else self._value(text, at, out)
            if moved == at and self._kind is was:
                break
            at = moved
        return at

    def _between(self, text: str, at: int, out: list[str]) -> int:
        """Look for the next parameter or the end; what else stands there says nothing."""
        at = text.find("<", at)
        if at < 0:
            return len(text)
        literal = self._ends.match(text, at, False)
        if literal is not None:
            return self._end(at, literal, out) if literal else at
        end, literal = self._tags.find(text, at + 1, False)
        if end - at > LIMIT or literal in self._ends.markers:
            return at + 1
        if not literal:
            return at
        end += len(literal)
        tag = self._markup.opens.fullmatch(text, at, end)
        if tag is None:
            return at + 1
        self._begin(tag, out)
        return end

    def _end(self, at: int, literal: str, out: list[str]) -> int:
        self.over = True
        out.append("}" if self._any else "{}")
        return at + len(literal) if literal in self._closes else at

    def _begin(self, tag: re.Match[str], out: list[str]) -> None:
        key, told = tag["key"], tag.groupdict().get("kind")
        if told is None:
            self._kind = self._kinds(key)
        else:
            self._kind = STRING if told in ("string", "true") else JSON
        out.append(f"{',' if self._any else '{'}{_quoted(key)}:")
        self._any = self._fresh = True
        self._size = 0
        self._held = None if self._kind == STRING else []
        if self._held is None:
            out.append('"')

    def _value(self, text: str, at: int, out: list[str]) -> int:
        if self._fresh and at < len(text):
            self._fresh = False
            if self._markup.trims and text[at] == "\n":
                at += 1
        end, literal = self._stops.find(text, at, False)
        if end > at:
            self._put(text[at:end], out)
        if literal:
            self._finish(out)
            end += len(literal) if literal in self._value_ends else int(literal.startswith("\n"))
        return end

    def _put(self, piece: str, out: list[str]) -> None:
        if self._held is not None:
            self._held.append(piece)
            self._size += len(piece)
            if self._size > HELD_LIMIT:
                out.append(_quoted("".join(self._held))[:-1])
                self._held = None
        else:
            plain = piece.isprintable() and '"' not in piece and "\\" not in piece
            out.append(piece if plain else _quoted(piece)[1:-1])

    def _finish(self, out: list[str]) -> None:
        if self._held is None:
            out.append('"')
        else:
            out.append(_as_json("".join(self._held), self._kind or frozenset()))
        self._kind = None


def _quoted(text: str) -> str:
    return jsonio.quote(text).decode()


def _as_json(raw: str, kinds: frozenset[str]) -> str:
    """A whole value as JSON text: as it was written where that is JSON of a fitting type, else as a string."""
    text = raw.strip(BLANK)
    text = _WORDS.get(text, text)
    try:
        value = jsonio.decode(text)
    except jsonio.JsonError:
        return _quoted(raw)
    if not kinds:  # nobody says what it is: only what cannot well be meant as a string is taken for JSON
        return text if isinstance(value, dict | list) else _quoted(raw)
    if kinds == JSON or "string" not in kinds or _type(value) & kinds:
        return text
    return _quoted(raw)


def _type(value: jsonio.Json) -> frozenset[str]:
    match value:
        case bool():
            return frozenset({"boolean"})
        case int() | float():
            return frozenset({"integer", "number"})
        case dict():
            return frozenset({"object"})
        case list():
            return frozenset({"array"})
        case None:
            return frozenset({"null"})
        case _:
            return frozenset()
