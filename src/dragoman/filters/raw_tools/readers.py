"""Argument readers: from the text of one call to the text of its JSON arguments, in pieces, for any cut.

A reader is given the text from a position on; it appends what it can say to `out` and returns how far it has read. What
it leaves it will see again, with more behind it. `over` is set when the call has ended, `complete` says whether what
was read so far is a whole call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol, TypeAlias

from dragoman.filters.raw_tools.literals import Literals
from dragoman.filters.raw_tools.scan import JsonScanner

BLANK = " \t\r\n"
LIMIT = 1024  # characters of a header, a tag or a run of white space that may be held

Kinds: TypeAlias = Callable[[str], frozenset[str]]  # the JSON types that a parameter may have; empty if unknown


class Reader(Protocol):
    over: bool

    @property
    def complete(self) -> bool: ...
    def read(self, text: str, at: int, out: list[str]) -> int: ...


class Blanks:
    """Passes text on but for white space at its end, which may turn out to be the white space before a marker."""

    __slots__ = ("_held", "said")

    def __init__(self) -> None:
        self._held = ""
        self.said = False

    def write(self, piece: str, quoted: bool, out: list[str]) -> None:
        if self._held:
            piece, self._held = self._held + piece, ""
        if not quoted and piece and piece[-1] in BLANK:
            body = piece.rstrip(BLANK)
            self._held = piece[len(body) :]
            while len(self._held) > LIMIT:
                body, self._held = body + self._held[:LIMIT], self._held[LIMIT:]
            piece = body
        if piece:
            self.said = True
            out.append(piece)


class JsonBody:
    """JSON between markers, passed on byte for byte.

    Inside a string of a so-far well-formed prefix a marker is text. As soon as the text is no JSON, quotes are not
    trusted any more and the next marker ends the call.
    """

    __slots__ = ("_blanks", "_closes", "_drops", "_markers", "_scanner", "_trusted", "over")

    def __init__(self, markers: Literals, closes: frozenset[str], drops: frozenset[str]) -> None:
        self.over = False
        self._markers = markers  # all that end the call, and `drops`
        self._closes = closes  # those that are part of it
        self._drops = drops  # those that say nothing
        self._scanner = JsonScanner()
        self._trusted: bool | None = None  # None: nothing but white space has come
        self._blanks = Blanks()

    @property
    def complete(self) -> bool:
        return self.over or (self._trusted is True and self._scanner.complete)

    def read(self, text: str, at: int, out: list[str]) -> int:
        if self._scanner.inside(text):
            out.append(text[at:])
            return len(text)
        if self._trusted:
            end = self._scanner.scan(text, at)
            self._blanks.write(text[at:end], self._scanner.quoted, out)
            if end == len(text):
                return end
            at = end
        while not self.over:
            if self._trusted is None:
                at = skip_blank(text, at)
            start, marker = self._next(text, at)
            self._blanks.write(text[at:start], self._trusted is True and self._scanner.quoted, out)
            at = start
            if not marker:
                return at
            if marker in self._drops:
                at += len(marker)
            else:
                self.over = True
                at += len(marker) if marker in self._closes else 0
        if not self._blanks.said:
            out.append("{}")
        return at

    def _next(self, text: str, at: int) -> tuple[int, str]:
        """Where the text up to the next marker ends, and the marker, if it is all there."""
        if self._trusted is None and at < len(text) and text[at] in "{[":
            self._trusted = True
        if self._trusted is not False:
            if self._trusted:
                at = self._scanner.scan(text, at)
            if self._scanner.complete:
                at = skip_blank(text, at)
            if at == len(text):
                return at, ""
            marker = self._markers.match(text, at, False)
            if marker is not None:
                return at, marker
            self._trusted = False
        return self._markers.find(text, at, False)


_SKIP = re.compile(r"[ \t\r\n]*+").match


def skip_blank(text: str, at: int) -> int:
    """Where the white space that begins at the position ends."""
    return _SKIP(text, at).end()  # type: ignore[union-attr]  # it matches the empty text, too
