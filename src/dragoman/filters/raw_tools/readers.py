"""Readers: from the text of a call to the text of its JSON arguments, in pieces, however the text is cut.

A reader is given the text from a position on. It appends what it has understood to `out` and returns how far it has
read; what it leaves it sees again, with more text behind it. A reader whose format names the tool inside the body
(`CallsReader`) also says where each call begins and ends, and may read several.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol, Self, TypeAlias

from msgspec import Struct

from dragoman.filters.raw_tools.json_scanner import JsonScanner
from dragoman.wire.markers import Markers

# --- Guard: decide whether an end marker inside a string is part of the string or ends the call.
#
# A model that forgets a closing quote would otherwise hide the end of its call, and all that follows, in a string. So
# where an end marker stands inside a string the guard holds the text back from there and looks ahead: if the value
# completes, the marker was text; if the value breaks, or the answer ends, the marker ended the call.


LOOKAHEAD_LIMIT = 64 * 1024  # characters of look-ahead; a value that is good for longer is believed, markers and all


class ValueScanner(Protocol):
    """Follows one value in text that is cut anywhere and writes it as JSON."""

    in_string: bool  # inside a string
    complete: bool  # the value has ended
    has_begun: bool  # more has come than white space and an opening bracket
    is_broken: bool  # the text where `read` stopped cannot belong to the value

    @property
    def whole(self) -> bool:
        """Whether the value could end here."""
        ...

    def read(self, text: str, at: int, stop: int, out: list[str]) -> int:
        """Read text[at:stop]. Return `stop`, or less where the value is complete or broken."""
        ...

    def take_string(self, text: str) -> str | None:
        """Take the text if all of it is part of the string that the machine is in, and return it as JSON.

        None: nothing was taken, `read` has to.
        """
        ...

    def copy(self) -> Self: ...


class EndMarkerGuard:
    """Lets a machine read up to the marker that ends its value. `marker` is that marker; it stands where `read` ended.

    While `read` looks ahead it returns the position of the marker; it remembers how far it has looked.
    """

    __slots__ = ("_ahead", "_doubtful", "_ends", "_looked", "_written", "machine", "marker")

    def __init__(self, machine: ValueScanner, ends: Markers) -> None:
        self.machine = machine
        self.marker = ""
        self._ends = ends
        self._ahead: ValueScanner | None = None  # a copy of the machine that looks ahead
        self._doubtful = ""  # the marker that may have ended the value
        self._looked = 0  # how far it has looked
        self._written: list[str] = []  # what it wrote

    def is_clear(self, text: str, at: int) -> bool:
        """Whether no marker begins in the text from `at`, and none is in doubt: the machine may read it by itself."""
        return self._ahead is None and self._ends.are_absent(text, at)

    def take_string(self, text: str, at: int) -> str | None:
        """Take the text from `at` if all of it is part of a string, and return it as JSON; None: `read` has to.

        The short way for most of a long string.
        """
        if self._ahead is not None or self._ends.find(text, at, False) != (len(text), ""):
            return None
        return self.machine.take_string(text[at:] if at else text)

    def read(self, text: str, at: int, out: list[str], final: bool) -> int:
        """Return how far the text certainly belongs to the value. With `final` no more text comes."""
        while True:
            if self._ahead is not None:
                at, goes_on = self._look(self._ahead, text, at, out, final)
                if not goes_on:
                    return at
            start, marker = self._ends.find(text, at, final)
            at = self.machine.read(text, at, start, out)
            if self.machine.complete or self.machine.is_broken or not marker:
                return at
            if not self.machine.in_string:
                self.marker = marker
                return at
            self._ahead, self._doubtful, self._looked, self._written = self.machine.copy(), marker, 0, []

    def _look(self, ahead: ValueScanner, text: str, at: int, out: list[str], final: bool) -> tuple[int, bool]:
        """Look ahead from the doubtful marker at the position; return how far the value goes, and if it goes on."""
        limit = at + LOOKAHEAD_LIMIT
        stop = min(len(text), limit)
        end = ahead.read(text, at + self._looked, stop, self._written)
        self._looked = end - at
        if ahead.complete or (end == limit and not ahead.is_broken):
            self.machine, self._ahead = ahead, None
            out.extend(self._written)
            return end, not ahead.complete
        if ahead.is_broken or final:
            self.marker, self._ahead = self._doubtful, None
        return at, False


WHITE_SPACE = " \t\r\n"
LIMIT = 1024  # characters of a header, a tag or a run of white space that may be held
# characters of a call, or of a value that has to be whole, that may be held (docs/decisions/raw_tools.md#d22)
HELD_LIMIT = 1024 * 1024


class NamedCall(Struct, frozen=True, gc=False):
    """A call begins; what follows are its arguments. The name is as the model wrote it."""

    name: str
    id: str = ""


class EndOfCall(Struct, frozen=True, gc=False):
    """The call that was named last has ended. `valid`: its arguments are well-formed JSON."""

    valid: bool = True


Piece: TypeAlias = str | NamedCall | EndOfCall


class BodyReader(Protocol):
    """Reads one call, or all calls of a section where the body names them (`CallsReader`)."""

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


class TrailingSpace:
    """Passes text on but for white space at its end, which may turn out to be the white space before a marker."""

    __slots__ = ("_held", "said")

    def __init__(self) -> None:
        self._held = ""
        self.said = False

    def write(self, piece: str, in_string: bool, out: list[Piece]) -> None:
        if self._held:
            piece, self._held = self._held + piece, ""
        if not in_string and piece and piece[-1] in WHITE_SPACE:
            body = piece.rstrip(WHITE_SPACE)
            self._held = piece[len(body) :]
            while len(self._held) > LIMIT:
                body, self._held = body + self._held[:LIMIT], self._held[LIMIT:]
            piece = body
        if piece:
            self.said = True
            out.append(piece)


_STARTS = '{["-0123456789tfn'  # what a JSON value can begin with


class JsonReader:
    """JSON between markers, passed on byte for byte.

    The text is followed as JSON as long as it is well-formed; guard.py says what a marker inside a string means. As
    soon as the text is no JSON, quotes are not trusted any more and the next marker ends the call.
    """

    def __init__(
        self, ends: Markers, markers: Markers, closes: frozenset[str], drops: frozenset[str], self_closing: bool = False
    ) -> None:
        self.over = False
        self.failed = self.junk = False
        self._markers = markers  # all that end the call, and `drops`
        self._closes = closes  # those that are part of it
        self._drops = drops  # those that say nothing
        self._self_closing = self_closing  # the call ends where its JSON ends
        self._guard = EndMarkerGuard(JsonScanner(), ends)
        self._trusted: bool | None = None  # None: nothing but white space has come
        self._json = False  # it began as JSON; other arguments are a text, which is no broken JSON
        self._blanks = TrailingSpace()

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
        piece = self._guard.take_string(text, at)
        if piece is not None:
            self._blanks.write(piece, True, out)
            return len(text)
        if not self.closed and self._guard.is_clear(text, at):
            machine = self._guard.machine
            end = machine.read(text, at, len(text), [])
            self._blanks.write(text[at:end], machine.in_string, out)
            if end == len(text) and not machine.complete:
                return end
            self.over = machine.complete and self._self_closing
            if self.over:
                return end
            at = end
        return self._read(text, at, out, False)

    def finish(self, text: str, at: int, out: list[Piece]) -> int:
        if not self.over and self.closed and self._markers.match(text, skip_white_space(text, at), False) == "":
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
            at = skip_white_space(text, at)
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
            self._blanks.write("".join(value), machine.in_string, out)
            if guard.marker or not (machine.complete or machine.is_broken):
                return at, guard.marker
            self.over = machine.complete and self._self_closing
            if self.over:
                return at, ""
        if self.closed:
            start = skip_white_space(text, at)
            self._blanks.write(text[at:start], False, out)
            at = start
        return at, "" if at == len(text) else self._markers.match(text, at, final)


_SKIP = re.compile(r"[ \t\r\n]*+").match


def skip_white_space(text: str, at: int) -> int:
    """Where the white space that begins at the position ends."""
    return _SKIP(text, at).end()  # type: ignore[union-attr]  # it matches the empty text, too


# --- CallsReader: the base of the readers of formats that name the tool inside the body. It may read many calls


Step: TypeAlias = Callable[[str, int, list[Piece]], int]


class CallsReader:
    """Reads calls by steps. A step returns how far it read; one that neither moves nor changes the step needs more.

    Before the first call is named the reader may fail. After a call, text that is no call ends what it reads, and stays
    unread if that was found out soon enough; text that may yet become a call is left unread and seen again.
    """

    def __init__(
        self, ends: Markers, closes: frozenset[str], first: Step, after: Step, machine: Callable[[], ValueScanner]
    ) -> None:
        self.over = False
        self.failed = self.junk = False
        self.accepts: Callable[[str], bool] = bool  # whether a name that was read may be a tool's
        self._ends = ends  # all that end the calls
        self._closes = closes  # those that are part of them
        self._step = first
        self._after = after  # the step after a call
        self._machine = machine  # makes what follows a value
        self._in_list = False  # the calls stand in square brackets
        self._final = False  # no more text comes
        self._calls = 0
        self._mark = -1  # where the text after the last call begins, while what follows may be no call; else -1
        self._forget()

    def _next_call(self, text: str, at: int, separators: str) -> int | None:
        """Return where text after a call and a separator begins; None if it has not come, or is too far away."""
        here = skip_white_space(text, at)
        if here < len(text) and text[here] in separators:
            here = skip_white_space(text, here + 1)
        if here - at > LIMIT:
            self.over = True
            return None
        return here if here < len(text) else None

    def _forget(self) -> None:
        """Begin another call."""
        self._named = False  # NamedCall went out
        self._ended = False  # EndOfCall went out
        self._settled = False  # the arguments are whole
        self._broke = False  # the arguments cannot become JSON
        self._tool = ""
        self._held: list[str] = []  # arguments that wait for the name, or for their end
        self._flows = False  # the arguments go out as they come
        self._guard = EndMarkerGuard(self._machine(), self._ends)

    @property
    def closed(self) -> bool:
        return self.over or (self._calls > 0 and (self._ended or not self._named))

    @property
    def valid(self) -> bool:
        return not self._broke

    def read(self, text: str, at: int, out: list[Piece]) -> int:
        piece = self._guard.take_string(text, at) if self._flows else None
        if piece is not None:
            out.append(piece)
            return len(text)
        self._mark = -1
        final = self._final
        while not (self.over or self.failed):
            step = self._step
            moved = step(text, at, out) if self._mark < 0 else self._look(text, at, out)
            if moved == at and self._step == step:
                break
            at = moved
        self._final = final
        if self._mark < 0:
            return at
        if len(text) - self._mark >= LIMIT:
            self.over = True  # another call would have named its tool
        if not self.over:
            self._forget()
            self._step = self._after
        return self._mark

    def _look(self, text: str, at: int, out: list[Piece]) -> int:
        """Take a step in what may be another call; it has to name its tool soon."""
        begin = self._mark
        final, self._final = self._final, self._final and len(text) - begin <= LIMIT
        moved = begin + self._step(text[begin : begin + LIMIT], at - begin, out)
        self._final = final
        return moved

    def finish(self, text: str, at: int, out: list[Piece]) -> int:
        here = skip_white_space(text, at)
        if self.closed and here < len(text) and self._ends.match(text, here, False) == "":
            self.over = True
            return len(text)  # half of the end marker
        self._final = True
        at = self.read(text, at, out)
        self.failed = not self._calls
        if not (self.over or self.failed):
            out.extend(self._unsaid())
            self.over = self.closed
        return at

    def _unsaid(self) -> list[str]:
        """Return the text of a call that was cut off that has not gone out."""
        return []

    def _refuses(self, name: str) -> bool:
        """Whether the first call names what cannot be meant, so that all this is no call."""
        return not self._calls and not self.accepts(name)

    def _name(self, name: str, id_: str, out: list[Piece]) -> None:
        self._named, self._mark = True, -1
        self._calls += 1
        out.append(NamedCall(name, id_))

    def _end(self, out: list[Piece]) -> None:
        if self._named and not self._ended:
            self._ended = True
            out.append(EndOfCall(self._settled and not self._broke))

    def _fail(self, at: int) -> int:
        """The text at the position is no call, and no call has been named that it could belong to."""
        if self._calls:
            self.over = True
        else:
            self.failed = True
        return at

    def _cut(self, at: int, marker: str, out: list[Piece]) -> int:
        """An end marker stands at the position, be the call whole or not."""
        if not self._named:
            return self._fail(at)
        self._broke = not self._settled
        self._end(out)
        self.over = True
        return at + len(marker) if marker in self._closes else at

    def _at_end(self, text: str, at: int, out: list[Piece]) -> int:
        """After all calls: the end marker, which may be missing."""
        here = skip_white_space(text, at)
        if here - at > LIMIT or not self._ends.markers:
            self.over = True
        elif here < len(text):
            if text[here] in "}])" and self._closes:
                return here + 1  # one bracket too many
            marker = self._ends.match(text, here, self._final)
            if marker != "":
                self.over = True
                return here + len(marker) if marker in self._closes else at
        return at
