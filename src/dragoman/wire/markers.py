"""Find fixed markers in text that arrives in pieces.

The text may be cut anywhere, so its end may be the start of a marker. The caller keeps that end and searches again
when more text has arrived. Where several markers start at one position, the longest wins. Pure: no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


class Markers:
    """A set of markers to search for. It has no state: the caller passes the text and the position."""

    __slots__ = ("_first", "_longest", "_prefixes", "_whole", "markers")

    def __init__(self, markers: Iterable[str]) -> None:
        self.markers = frozenset(markers)
        ordered = sorted(self.markers, key=lambda marker: (-len(marker), marker))
        no_match = "(?!)"
        self._whole = re.compile("|".join(map(re.escape, ordered)) or no_match)
        first = "".join(map(re.escape, sorted({marker[0] for marker in ordered})))
        self._first = re.compile(f"[{first}]" if first else no_match)
        self._prefixes = frozenset(marker[:size] for marker in ordered for size in range(1, len(marker)))
        self._longest = max(map(len, ordered), default=0)

    def are_absent(self, text: str, at: int) -> bool:
        """Return whether the text from a position on has no first character of any marker. Fast."""
        return self._first.search(text, at) is None

    def find(self, text: str, at: int, final: bool) -> tuple[int, str]:
        """Return the position of the first marker, and the marker.

        An empty marker means that none was found: the text before the returned position has none, and the text after
        it, if any, may be the start of one. With `final`, no more text follows.
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
        """Return the marker at a position; "" if more text is needed to decide, None if there is none."""
        if not final and len(text) - at < self._longest and (text[at:] in self._prefixes or at == len(text)):
            return ""
        found = self._whole.match(text, at)
        return None if found is None else found[0]

    def begins(self, text: str) -> bool:
        """Return whether the text is a marker or the start of one."""
        return text in self._prefixes or text in self.markers
