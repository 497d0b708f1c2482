"""Find the first of some literals in text that may be cut anywhere.

Like wire/markers.py, but by position: the set of literals changes with the parser's state, so what follows a literal
must not have been looked at yet, and the text that is not decided stays with the caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


class Literals:
    __slots__ = ("_first", "_longest", "_prefixes", "_whole", "literals")

    def __init__(self, literals: Iterable[str]) -> None:
        self.literals = frozenset(literals)
        ordered = sorted(self.literals, key=lambda literal: (-len(literal), literal))
        nothing = "(?!)"
        self._whole = re.compile("|".join(map(re.escape, ordered)) or nothing)
        first = "".join(map(re.escape, sorted({literal[0] for literal in ordered})))
        self._first = re.compile(f"[{first}]" if first else nothing)
        self._prefixes = frozenset(literal[:size] for literal in ordered for size in range(1, len(literal)))
        self._longest = max(map(len, ordered), default=0)

    def find(self, text: str, at: int, final: bool) -> tuple[int, str]:
        """Where the first literal begins, and which it is; "" where the rest of the text is all that can be said of it.

        With "", the text up to the position is decided and what follows, if anything, may still become a literal.
        """
        size = len(text)
        if self._first.search(text, at) is None:
            return size, ""
        found = self._whole.search(text, at)
        if not final:
            last = size if found is None else found.start() + 1
            for begin in self._first.finditer(text, max(at, size - self._longest + 1), last):
                if text[begin.start() :] in self._prefixes:
                    return begin.start(), ""
        return (size, "") if found is None else (found.start(), found[0])

    def match(self, text: str, at: int, final: bool) -> str | None:
        """The literal that stands at the position: "" if that cannot be said yet, None if there is none."""
        if not final and len(text) - at < self._longest and (text[at:] in self._prefixes or at == len(text)):
            return ""
        found = self._whole.match(text, at)
        return None if found is None else found[0]
