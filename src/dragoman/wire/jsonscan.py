"""Follow JSON text that arrives in pieces just far enough to know when its object is complete.

It looks at quotes, backslashes and brackets only: whether what lies between them is JSON is not its question.
"""

from __future__ import annotations

import re

_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'["\\]')


class ObjectScanner:
    """Feed text cut anywhere; `complete` turns true with the bracket that closes the first object or array."""

    __slots__ = ("_depth", "_escaped", "_quoted", "complete")

    def __init__(self) -> None:
        self.complete = False
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def feed(self, text: str) -> str:
        """Take more text; give what follows the completed object, which is never part of it."""
        position = self._in_string(text, 0) if self._quoted else 0
        while not self.complete:
            found = _STRUCTURE.search(text, position) if not self._quoted else None
            if found is None:
                return ""
            position, mark = found.end(), found[0]
            if mark == '"':
                self._quoted = True
                position = self._in_string(text, position)
            elif mark in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                self.complete = self._depth <= 0
        return text[position:]

    def _in_string(self, text: str, position: int) -> int:
        """Go to the string's end, or to the end of the text."""
        if self._escaped and position < len(text):
            position, self._escaped = position + 1, False
        while (found := _STRING_END.search(text, position)) is not None:
            position = found.end()
            if found[0] == '"':
                self._quoted = False
                return position
            if position == len(text):
                self._escaped = True
                return position
            position += 1
        return len(text)
