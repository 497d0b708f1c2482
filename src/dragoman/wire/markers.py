"""Find fixed markers in streamed text that may be cut anywhere, holding back as little as possible.

At any position the longest marker wins. Text is decided as soon as no marker can begin in it; what is held back is
always a tail that is a proper prefix of some marker (perhaps itself a shorter marker, waiting for the longer one).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dragoman.errors import LocalMisuse


class MarkerScanner:
    """Split text at markers. A piece is a marker exactly if it is in `markers`; text pieces never are, nor empty."""

    __slots__ = ("_first", "_held", "_longest", "_match", "_prefixes", "_search", "markers")

    def __init__(self, markers: Iterable[str]) -> None:
        self.markers = frozenset(markers)
        if not self.markers or "" in self.markers:
            raise LocalMisuse("a marker scanner needs markers, and none of them empty")
        self._prefixes = frozenset(marker[:size] for marker in self.markers for size in range(1, len(marker)))
        first = "".join(map(re.escape, sorted({marker[0] for marker in self.markers})))
        whole = "|".join(map(re.escape, sorted(self.markers, key=len, reverse=True)))
        self._longest = max(map(len, self.markers))
        # A marker's first character this near to the end may begin one that is not all there yet.
        near = f"[{first}](?=.{{0,{max(self._longest - 2, 0)}}}\\Z)"
        self._first = re.compile(f"[{first}]").search
        self._match = re.compile(whole).match
        self._search = re.compile(f"{near}|{whole}", re.DOTALL).search
        self._held = ""

    def feed(self, text: str) -> list[str]:
        """Take more text and give the pieces that are decided, in order: nothing is lost, nothing comes twice."""
        if self._held:
            text = self._held + text
        elif self._first(text) is None:
            return [text] if text else []
        pieces, done = self._split(text, held=True)
        self._held = text[done:]
        return pieces

    def close(self) -> list[str]:
        """Give the pieces of what is held back: no more text will come."""
        pieces, _ = self._split(self._held, held=False)
        self._held = ""
        return pieces

    @property
    def held(self) -> str:
        """The tail that is not decided yet."""
        return self._held

    def _split(self, text: str, *, held: bool) -> tuple[list[str], int]:
        """Cut at every decided marker; give the pieces and where the undecided tail begins."""
        pieces: list[str] = []
        begin = position = 0
        end = len(text)
        while (found := self._search(text, position)) is not None:
            start = found.start()
            if held and end - start < self._longest and text[start:] in self._prefixes:
                end = start
                break
            marker = self._match(text, start)
            if marker is None:
                position = start + 1
                continue
            if start > begin:
                pieces.append(text[begin:start])
            pieces.append(marker[0])
            begin = position = marker.end()
        if begin < end:
            pieces.append(text[begin:end])
        return pieces, end
