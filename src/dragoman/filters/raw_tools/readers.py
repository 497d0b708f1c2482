"""Readers: from the text of a call to the text of its JSON arguments, in pieces, however the text is cut.

A reader is given the text from a position on. It appends what it has understood to `out` and returns how far it has
read; what it leaves it sees again, with more text behind it. A reader whose format names the tool inside the body
(`names_inside`) also says where each call begins and ends, and may read several.
"""

from __future__ import annotations

import re
from typing import ClassVar, Protocol, TypeAlias

from msgspec import Struct

from dragoman.filters.raw_tools.guard import Guard
from dragoman.filters.raw_tools.scan import JsonScanner
from dragoman.wire.markers import Markers

BLANK = " \t\r\n"
LIMIT = 1024  # characters of a header, a tag or a run of white space that may be held
HELD_LIMIT = 1024 * 1024  # characters of a value that has to be whole before it can go out (D22)


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
    junk: bool  # text that is neither markup nor value stood in the call and was left out

    @property
    def closed(self) -> bool:
        """Whether what was read is whole, be it that the end marker came or that it can do without."""
        ...

    @property
    def valid(self) -> bool:
        """Whether the arguments that were read are well-formed JSON, or will be when the call is closed."""
        ...

    def read(self, text: str, at: int, out: list[Piece]) -> int: ...

    def finish(self, text: str, at: int, out: list[Piece]) -> int:
        """Read what was left unread, at the end of the answer: no more text comes.

        Return the position read. Where that is not the text's end the call ended there (`over`), and what follows is
        to be parsed like any other text. A call that is neither `over` nor `closed` was cut off. A reader that has
        named no call has `failed`; one whose last call was cut off appends no EndOfCall for it.
        """
        ...


class Blanks:
    """Passes text on but for white space at its end, which may turn out to be the white space before a marker."""

    __slots__ = ("_held", "said")

    def __init__(self) -> None:
        self._held = ""
        self.said = False

    def write(self, piece: str, quoted: bool, out: list[Piece]) -> None:
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


_STARTS = '{["-0123456789tfn'  # what a JSON value can begin with


class JsonBody:
    """JSON between markers, passed on byte for byte.

    The text is followed as JSON as long as it is well-formed; guard.py says what a marker inside a string means. As
    soon as the text is no JSON, quotes are not trusted any more and the next marker ends the call.
    """

    names_inside: ClassVar[bool] = False
    __slots__ = (
        "_blanks",
        "_closes",
        "_drops",
        "_guard",
        "_json",
        "_markers",
        "_self_closing",
        "_trusted",
        "failed",
        "junk",
        "over",
    )

    def __init__(
        self, ends: Markers, markers: Markers, closes: frozenset[str], drops: frozenset[str], self_closing: bool = False
    ) -> None:
        self.over = False
        self.failed = self.junk = False
        self._markers = markers  # all that end the call, and `drops`
        self._closes = closes  # those that are part of it
        self._drops = drops  # those that say nothing
        self._self_closing = self_closing  # the call ends where its JSON ends
        self._guard = Guard(JsonScanner(), ends)
        self._trusted: bool | None = None  # None: nothing but white space has come
        self._json = False  # it began as JSON; other arguments are a text, which is no broken JSON
        self._blanks = Blanks()

    @property
    def closed(self) -> bool:
        return self.over or (self._trusted is True and self._guard.machine.complete)

    @property
    def valid(self) -> bool:
        if self._trusted and self.over:
            return self._guard.machine.whole
        return self._trusted is not False or not self._json

    def read(self, text: str, at: int, out: list[Piece]) -> int:
        if not self._trusted:
            return self._read(text, at, out, False)
        if self._guard.passes(text, at):
            self._blanks.write(text[at:], True, out)
            return len(text)
        if not self.closed and self._guard.is_clear(text, at):
            machine = self._guard.machine
            end = machine.read(text, at, len(text), [])
            self._blanks.write(text[at:end], machine.quoted, out)
            if end == len(text) and not machine.complete:
                return end
            self.over = machine.complete and self._self_closing
            if self.over:
                return end
            at = end
        return self._read(text, at, out, False)

    def finish(self, text: str, at: int, out: list[Piece]) -> int:
        if not self.over and self.closed and self._markers.match(text, skip_blank(text, at), False) == "":
            return len(text)  # nothing, or half of the end marker
        return self._read(text, at, out, True)

    def _read(self, text: str, at: int, out: list[Piece], final: bool) -> int:
        while not self.over:
            at, marker = self._next(text, at, out, final)
            if marker in self._drops:
                at += len(marker)
            elif marker:
                self.over = True
                at += len(marker) if marker in self._closes else 0
            elif not self.over:
                return at
        if not self._blanks.said:
            out.append("{}")
        return at

    def _next(self, text: str, at: int, out: list[Piece], final: bool) -> tuple[int, str]:
        """Pass the text on up to the next marker; return where it stands, and the marker, if it is all there."""
        if self._trusted is None:
            at = skip_blank(text, at)
            if at == len(text):
                return at, ""
            marker = self._markers.match(text, at, final)
            if marker is not None:
                return at, marker
            self._trusted = self._json = text[at] in _STARTS
        if self._trusted:
            at, known = self._follow(text, at, out, final)
            if known is not None:
                return at, known
            self._trusted = False
        start, marker = self._markers.find(text, at, final)
        self._blanks.write(text[at:start], False, out)
        return start, marker

    def _follow(self, text: str, at: int, out: list[Piece], final: bool) -> tuple[int, str | None]:
        """Follow the JSON value; the marker is None where the text is no JSON any more."""
        guard = self._guard
        if not guard.machine.complete:
            value: list[str] = []
            at = guard.read(text, at, value, final)
            machine = guard.machine
            self._blanks.write("".join(value), machine.quoted, out)
            if guard.marker or not (machine.complete or machine.broken):
                return at, guard.marker
            self.over = machine.complete and self._self_closing
            if self.over:
                return at, ""
        if self.closed:
            start = skip_blank(text, at)
            self._blanks.write(text[at:start], False, out)
            at = start
        return at, "" if at == len(text) else self._markers.match(text, at, final)


_SKIP = re.compile(r"[ \t\r\n]*+").match


def skip_blank(text: str, at: int) -> int:
    """Where the white space that begins at the position ends."""
    return _SKIP(text, at).end()  # type: ignore[union-attr]  # it matches the empty text, too
