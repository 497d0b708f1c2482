"""Readers: from the text of a call to the text of its JSON arguments, in pieces, however the text is cut.

A reader is given the text from a position on. It appends what it has understood to `out` and returns how far it has
read; what it leaves it sees again, with more text behind it. A reader whose format names the tool inside the body
(`names_inside`) also says where each call begins and ends, and may read several.
"""

from __future__ import annotations

import re
from typing import ClassVar, Protocol, TypeAlias

from msgspec import Struct

from dragoman.filters.raw_tools.scan import JsonScanner
from dragoman.wire.markers import Markers

BLANK = " \t\r\n"
LIMIT = 1024  # characters of a header, a tag or a run of white space that may be held


class NamedCall(Struct, frozen=True, gc=False):
    """A call begins; what follows are its arguments. The name is as the model wrote it."""

    name: str
    id: str = ""


class EndOfCall(Struct, frozen=True, gc=False):
    """The call that was named last has ended. `valid`: its arguments are well-formed JSON."""

    valid: bool = True


Piece: TypeAlias = str | NamedCall | EndOfCall


class Reader(Protocol):
    """Reads one call, or with `names_inside` all calls of a section."""

    names_inside: ClassVar[bool]
    over: bool  # the end marker was read, or what ends the call stands at the position that was returned
    failed: bool  # the text is no call; only before anything else than white space went to `out`

    @property
    def closed(self) -> bool:
        """Whether what was read is whole, be it that the end marker came or that it can do without."""
        ...

    @property
    def valid(self) -> bool:
        """Whether the arguments that were read are well-formed JSON, or will be when the call is closed."""
        ...

    def read(self, text: str, at: int, out: list[Piece]) -> int: ...


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

    def __init__(self, markers: Markers, closes: frozenset[str], drops: frozenset[str]) -> None:
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
