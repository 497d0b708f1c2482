"""Scan the JSON of streamed tool arguments, and find where it stops being JSON. Pure.

The result decides whether a marker in the arguments is text: it is text if it is inside a JSON string and everything
before it is well-formed JSON. Two common errors of models are accepted: control characters inside strings, and any
mixture of digits and signs as a number.

All transitions outside strings and numbers are in one table. Each state is a dict: character -> (next state, effect).
"""

from __future__ import annotations

import re
from copy import copy
from typing import TypeAlias

_STRING = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL).match
_NUMBER = re.compile(r"[-+.0-9eE]*+").match
_DEEPEST = 1000  # deeper nesting does not count as JSON

_Row: TypeAlias = "dict[str, tuple[_Row, int]]"

# Effects, plain numbers because this is the hot path. NAME: a key begins. TEXT: a string value begins.
_NONE, _NAME, _TEXT, _OBJECT, _LIST, _POP, _ENDED = range(7)

# States, named by the next token; _IN_NUMBER is inside a number. An effect that ends a value also sets the next state.
_VALUE: _Row = {}
_ITEM: _Row = {}  # or the list's end
_KEY: _Row = {}  # or the object's end
_NEXT_KEY: _Row = {}
_COLON: _Row = {}
_IN_OBJECT: _Row = {}  # a comma, or its end
_IN_LIST: _Row = {}
_IN_NUMBER: _Row = {}


def _word(rest: str) -> _Row:
    return {rest[0]: (_word(rest[1:]), _NONE) if rest[1:] else (_VALUE, _ENDED)}


def _fill() -> None:
    value: _Row = {'"': (_VALUE, _TEXT), "{": (_KEY, _OBJECT), "[": (_ITEM, _LIST)}
    value |= dict.fromkeys("-0123456789", (_IN_NUMBER, _NONE))
    value |= {word[0]: (_word(word[1:]), _NONE) for word in ("true", "false", "null")}
    key: _Row = {'"': (_COLON, _NAME)}
    _VALUE.update(value)
    _ITEM.update(value | {"]": (_VALUE, _POP)})
    _KEY.update(key | {"}": (_VALUE, _POP)})
    _NEXT_KEY.update(key)
    _COLON.update({":": (_VALUE, _NONE)})
    _IN_OBJECT.update({",": (_NEXT_KEY, _NONE), "}": (_VALUE, _POP)})
    _IN_LIST.update({",": (_VALUE, _NONE), "]": (_VALUE, _POP)})
    for row in (_VALUE, _ITEM, _KEY, _NEXT_KEY, _COLON, _IN_OBJECT, _IN_LIST):
        row.update(dict.fromkeys(" \t\n\r", (row, _NONE)))


_fill()


class JsonScanner:
    """Scans text cut anywhere. `in_string`: inside a string. `complete`: the first value has ended.

    `has_begun`: there is more of an object or array than white space and its opening bracket.
    """

    __slots__ = ("_escaped", "_stack", "_state", "_value_string", "complete", "has_begun", "in_string", "is_broken")

    def __init__(self) -> None:
        self.in_string = False
        self.complete = False
        self.has_begun = False
        self.is_broken = False  # `read` found a character that is not JSON
        self._escaped = False
        self._value_string = False  # the string is a value, not a key
        self._state = _VALUE
        self._stack: list[_Row] = []  # the state after a value, for each open bracket

    def take_string(self, text: str) -> str | None:
        """Read the text if all of it is part of the current string, and return it; None: use `read`."""
        if not self.in_string or not text:
            return None
        if not self._escaped and '"' not in text and "\\" not in text:
            return text
        end = _STRING(text, 1 if self._escaped else 0).end()  # type: ignore[union-attr]  # it matches the empty text too
        if end == len(text):
            self._escaped = False
            return text
        if end == len(text) - 1 and text[end] == "\\":
            self._escaped = True
            return text
        return None

    @property
    def whole(self) -> bool:
        """Whether the value could end here. A number has no end of its own: it is `whole` before it is `complete`."""
        return self.complete or (self._state is _IN_NUMBER and not self._stack)

    def copy(self) -> JsonScanner:
        """Return a scanner in the same state."""
        scanner = copy(self)
        scanner._stack = [*self._stack]
        return scanner

    def read(self, text: str, at: int, stop: int, out: list[str]) -> int:
        """Copy the text of the value from `at` to `out`; return where that ended, at most `stop`."""
        end = self.scan(text, at, stop)
        if end > at:
            out.append(text[at:end])
        self.is_broken = end < stop and not self.complete
        return end

    def scan(self, text: str, at: int, stop: int | None = None) -> int:
        """Scan from `at`; return where the value ended, or where it stops being JSON, or `stop`."""
        size = len(text) if stop is None else stop
        while at < size and not self.complete:
            if self.in_string:
                at = self._string(text, at, size)
            elif self._state is _IN_NUMBER:
                at = _NUMBER(text, at, size).end()  # type: ignore[union-attr]  # it matches the empty text, too
                if at < size:
                    self._value_ended()
            else:
                moved = self._structure(text, at, size)
                if moved == at:
                    break
                at = moved
        return at

    def _structure(self, text: str, at: int, size: int) -> int:
        """Scan text that is neither string nor number."""
        row = self._state
        while at < size and (move := row.get(text[at])) is not None:
            after, effect = move
            if effect:
                self._state = row
                if not self._take(after, effect):
                    return at
                if self.in_string or self.complete:
                    return at + 1
                after = self._state
            row = after
            at += 1
        self._state = row
        return at

    def _string(self, text: str, at: int, size: int) -> int:
        if self._escaped:
            self._escaped = False
            at += 1
        at = _STRING(text, at, size).end()  # type: ignore[union-attr]  # it matches the empty text, too
        if at == size:
            return at
        if text[at] == "\\":
            self._escaped = True
            return size
        self.in_string = False
        if self._value_string:
            self._value_ended()
        return at + 1

    def _take(self, row: _Row, effect: int) -> bool:
        """Apply the effect of a transition; return False if the nesting is too deep."""
        self.has_begun = bool(self._stack)
        if effect > _LIST:
            if effect == _POP:
                self._stack.pop()
            self._value_ended()
            return True
        if effect > _TEXT:
            if len(self._stack) >= _DEEPEST:
                return False
            self._stack.append(_IN_OBJECT if effect == _OBJECT else _IN_LIST)
        else:
            self.in_string = True
            self._value_string = effect == _TEXT
        self._state = row
        return True

    def _value_ended(self) -> None:
        if self._stack:
            self._state = self._stack[-1]
        else:
            self.complete = True
