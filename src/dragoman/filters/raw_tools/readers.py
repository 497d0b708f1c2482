"""Readers turn the text of a call into the text of its JSON arguments, in pieces, however the text is cut.

A reader gets the text from a position on. It appends the parsed pieces to `out` and returns how far it has read; it
sees the unread rest again, with more text after it. A reader whose format names the tool inside the body
(`CallsReader`) also reports where each call begins and ends, and may read several.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol, Self, TypeAlias

from msgspec import Struct

from dragoman.filters.raw_tools.json_scanner import JsonScanner
from dragoman.wire.markers import Markers

# --- EndMarkerGuard: decides whether an end marker inside a string is part of the string or ends the call.
#
# If a model forgets a closing quote, the end of its call and all text after it would seem to be part of a string. So at
# an end marker inside a string the guard buffers the text and looks ahead: if the value completes, the marker was text;
# if the value breaks, or the reply ends, the marker ended the call.


LOOKAHEAD_LIMIT = 64 * 1024  # characters to look ahead; if the value is well-formed until there, the marker is text


class ValueScanner(Protocol):
    """Follows one value in text that is cut anywhere and writes it as JSON."""

    in_string: bool  # inside a string
    complete: bool  # the value has ended
    has_begun: bool  # there is more than white space and an opening bracket
    is_broken: bool  # the text where `read` stopped cannot belong to the value

    @property
    def whole(self) -> bool:
        """Whether the value could end here."""
        ...

    def read(self, text: str, at: int, stop: int, out: list[str]) -> int:
        """Read text[at:stop]. Return `stop`, or less where the value is complete or broken."""
        ...

    def take_string(self, text: str) -> str | None:
        """Read the text if all of it is part of the current string, and return it as JSON.

        None: nothing was read; call `read`.
        """
        ...

    def copy(self) -> Self:
        """Return a scanner in the same state."""
        ...


class EndMarkerGuard:
    """Lets a scanner read up to the marker that ends its value. `marker` is that marker; it is where `read` ended.

    While `read` looks ahead it returns the position of the marker; it remembers how far it has looked.
    """

    __slots__ = ("_ahead", "_doubtful", "_ends", "_looked", "_written", "marker", "scanner")

    def __init__(self, scanner: ValueScanner, ends: Markers) -> None:
        self.scanner = scanner
        self.marker = ""
        self._ends = ends
        self._ahead: ValueScanner | None = None  # a copy of the scanner that looks ahead
        self._doubtful = ""  # the marker that may have ended the value
        self._looked = 0  # how far `_ahead` has read
        self._written: list[str] = []  # output of `_ahead`

    def is_clear(self, text: str, at: int) -> bool:
        """Return whether the scanner may read the text from `at` alone: it has no marker, and none is in doubt."""
        return self._ahead is None and self._ends.are_absent(text, at)

    def take_string(self, text: str, at: int) -> str | None:
        """Read the text from `at` if all of it is part of a string, and return it as JSON; None: call `read`.

        This is the fast path for most of a long string.
        """
        if self._ahead is not None or self._ends.find(text, at, False) != (len(text), ""):
            return None
        return self.scanner.take_string(text[at:] if at else text)

    def read(self, text: str, at: int, out: list[str], final: bool) -> int:
        """Return how far the text certainly belongs to the value. `final`: no more text follows."""
        while True:
            if self._ahead is not None:
                at, continues = self._look_ahead(self._ahead, text, at, out, final)
                if not continues:
                    return at
            start, marker = self._ends.find(text, at, final)
            at = self.scanner.read(text, at, start, out)
            if self.scanner.complete or self.scanner.is_broken or not marker:
                return at
            if not self.scanner.in_string:
                self.marker = marker
                return at
            self._ahead, self._doubtful, self._looked, self._written = self.scanner.copy(), marker, 0, []

    def _look_ahead(self, ahead: ValueScanner, text: str, at: int, out: list[str], final: bool) -> tuple[int, bool]:
        """Look ahead from the doubtful marker at `at`; return how far the value goes, and whether it continues."""
        limit = at + LOOKAHEAD_LIMIT
        stop = min(len(text), limit)
        end = ahead.read(text, at + self._looked, stop, self._written)
        self._looked = end - at
        if ahead.complete or (end == limit and not ahead.is_broken):
            self.scanner, self._ahead = ahead, None
            out.extend(self._written)
            return end, not ahead.complete
        if ahead.is_broken or final:
            self.marker, self._ahead = self._doubtful, None
        return at, False


WHITE_SPACE = " \t\r\n"
LIMIT = 1024  # most characters of a header, a tag or a run of white space to buffer
# Most characters of a call, or of a value that must be whole, to buffer (docs/decisions/raw_tools.md#d22).
BUFFER_LIMIT = 1024 * 1024


class NamedCall(Struct, frozen=True, gc=False):
    """A call begins; its arguments follow. The name is as the model wrote it."""

    name: str
    id: str = ""


class EndOfCall(Struct, frozen=True, gc=False):
    """The call that was named last has ended. `valid`: its arguments are well-formed JSON."""

    valid: bool = True


CallPiece: TypeAlias = str | NamedCall | EndOfCall


class BodyReader(Protocol):
    """Reads one call, or all calls of a section where the body names them (`CallsReader`)."""

    is_over: bool  # the end marker was read, or the marker that ends the call is at the returned position
    failed: bool  # the text is not a call; set only before anything but white space went to `out`
    junk: bool  # text in the call that is neither markup nor value was left out

    @property
    def closed(self) -> bool:
        """Whether the call is complete: its end marker was read, or it needs none."""
        ...

    @property
    def valid(self) -> bool:
        """Whether the arguments are well-formed JSON, or will be when the call is closed."""
        ...

    def read(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Read from `at` on, and add names, arguments and ends of calls to `out`. Return the first unread position."""
        ...

    def finish(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Read the unread text at the end of the reply: no more text follows.

        Return the position read. If that is not the end of the text, the call ended there (`is_over`), and the rest is
        ordinary text. A call that is neither `is_over` nor `closed` was cut off. A reader that has named no call has
        `failed`; one whose last call was cut off appends no EndOfCall for it.
        """
        ...


class TrailingSpace:
    """Passes text on, but buffers white space at its end: it may be the white space before a marker."""

    __slots__ = ("_buffered", "has_written")

    def __init__(self) -> None:
        self._buffered = ""
        self.has_written = False

    def write(self, piece: str, in_string: bool, out: list[CallPiece]) -> None:
        """Pass on a piece; within a string white space belongs to the value."""
        if self._buffered:
            piece, self._buffered = self._buffered + piece, ""
        if not in_string and piece and piece[-1] in WHITE_SPACE:
            body = piece.rstrip(WHITE_SPACE)
            self._buffered = piece[len(body) :]
            while len(self._buffered) > LIMIT:
                body, self._buffered = body + self._buffered[:LIMIT], self._buffered[LIMIT:]
            piece = body
        if piece:
            self.has_written = True
            out.append(piece)


_STARTS = '{["-0123456789tfn'  # first characters of JSON values


class JsonReader:
    """JSON between markers, passed on byte for byte.

    The reader scans the text as JSON as long as it is well-formed; `EndMarkerGuard` handles markers inside strings.
    Once the text is not JSON, the reader ignores quotes, and the next marker ends the call.
    """

    def __init__(
        self, ends: Markers, markers: Markers, closes: frozenset[str], drops: frozenset[str], self_closing: bool = False
    ) -> None:
        self.is_over = False
        self.failed = self.junk = False
        self._markers = markers  # all markers that end the call, and `drops`
        self._closes = closes  # the end markers that belong to the call
        self._drops = drops  # markers without meaning, which are skipped
        self._self_closing = self_closing  # the call ends where its JSON ends
        self._guard = EndMarkerGuard(JsonScanner(), ends)
        self._trusted: bool | None = None  # the text is JSON so far; None: only white space so far
        self._began_as_json = False  # arguments that begin otherwise are plain text, not broken JSON
        self._blanks = TrailingSpace()

    @property
    def closed(self) -> bool:
        return self.is_over or (self._trusted is True and self._guard.scanner.complete)

    @property
    def valid(self) -> bool:
        if self._trusted and self.is_over:
            return self._guard.scanner.whole
        return self._trusted is not False or not self._began_as_json

    def read(self, text: str, at: int, out: list[CallPiece]) -> int:
        if not self._trusted:
            return self._read(text, at, out, False)
        piece = self._guard.take_string(text, at)
        if piece is not None:
            self._blanks.write(piece, True, out)
            return len(text)
        if not self.closed and self._guard.is_clear(text, at):
            scanner = self._guard.scanner
            end = scanner.read(text, at, len(text), [])
            self._blanks.write(text[at:end], scanner.in_string, out)
            if end == len(text) and not scanner.complete:
                return end
            self.is_over = scanner.complete and self._self_closing
            if self.is_over:
                return end
            at = end
        return self._read(text, at, out, False)

    def finish(self, text: str, at: int, out: list[CallPiece]) -> int:
        if not self.is_over and self.closed and self._markers.match(text, skip_white_space(text, at), False) == "":
            return len(text)  # nothing, or half of the end marker
        return self._read(text, at, out, True)

    def _read(self, text: str, at: int, out: list[CallPiece], final: bool) -> int:
        while not self.is_over:
            at, marker = self._next(text, at, out, final)
            if marker in self._drops:
                at += len(marker)
            elif marker:
                self.is_over = True
                at += len(marker) if marker in self._closes else 0
            elif not self.is_over:
                return at
        if not self._blanks.has_written:
            out.append("{}")
        return at

    def _next(self, text: str, at: int, out: list[CallPiece], final: bool) -> tuple[int, str]:
        """Pass the text on up to the next marker; return its position, and the marker if it is complete."""
        if self._trusted is None:
            at = skip_white_space(text, at)
            if at == len(text):
                return at, ""
            marker = self._markers.match(text, at, final)
            if marker is not None:
                return at, marker
            self._trusted = self._began_as_json = text[at] in _STARTS
        if self._trusted:
            at, known = self._follow(text, at, out, final)
            if known is not None:
                return at, known
            self._trusted = False
        start, marker = self._markers.find(text, at, final)
        self._blanks.write(text[at:start], False, out)
        return start, marker

    def _follow(self, text: str, at: int, out: list[CallPiece], final: bool) -> tuple[int, str | None]:
        """Scan the JSON value; the returned marker is None once the text is not JSON."""
        guard = self._guard
        if not guard.scanner.complete:
            value: list[str] = []
            at = guard.read(text, at, value, final)
            scanner = guard.scanner
            self._blanks.write("".join(value), scanner.in_string, out)
            if guard.marker or not (scanner.complete or scanner.is_broken):
                return at, guard.marker
            self.is_over = scanner.complete and self._self_closing
            if self.is_over:
                return at, ""
        if self.closed:
            start = skip_white_space(text, at)
            self._blanks.write(text[at:start], False, out)
            at = start
        return at, "" if at == len(text) else self._markers.match(text, at, final)


_SKIP = re.compile(r"[ \t\r\n]*+").match


def skip_white_space(text: str, at: int) -> int:
    """Return the end of the white space that begins at the position."""
    return _SKIP(text, at).end()  # type: ignore[union-attr]  # it matches the empty text too


# --- CallsReader


Step: TypeAlias = Callable[[str, int, list[CallPiece]], int]


class CallsReader:
    """The base of readers of formats that name the tool inside the body. It may read many calls.

    It reads by steps. A step returns how far it read; a step that neither moves nor changes the step needs more text.
    Before the first call is named the reader may fail. After a call, text that is not a call ends the reading, and
    stays unread if this shows within `LIMIT` characters. Text that may become a call stays unread and is seen again.
    """

    def __init__(
        self, ends: Markers, closes: frozenset[str], first: Step, after: Step, scanner: Callable[[], ValueScanner]
    ) -> None:
        self.is_over = False
        self.failed = self.junk = False
        self.accepts: Callable[[str], bool] = bool  # whether a name may be the name of a tool
        self._ends = ends  # all markers that end the calls
        self._closes = closes  # the end markers that belong to the calls
        self._step = first
        self._after = after  # the step after a call
        self._make_scanner = scanner  # makes the scanner of a value
        self._in_list = False  # the calls are in square brackets
        self._final = False  # no more text follows
        self._calls = 0
        self._mark = -1  # the end of the last call, while it is open whether another call follows; else -1
        self._reset_call()

    def _next_call(self, text: str, at: int, separators: str) -> int | None:
        """Return where text after a call and a separator begins; None if there is none so far, or too far away."""
        here = skip_white_space(text, at)
        if here < len(text) and text[here] in separators:
            here = skip_white_space(text, here + 1)
        if here - at > LIMIT:
            self.is_over = True
            return None
        return here if here < len(text) else None

    def _reset_call(self) -> None:
        """Reset the state for another call."""
        self._named = False  # NamedCall was sent
        self._ended = False  # EndOfCall was sent
        self._arguments_complete = False
        self._is_broken = False  # the arguments cannot become JSON
        self._tool = ""
        self._buffered: list[str] = []  # arguments buffered until the name is known, or until their end
        self._is_streaming = False  # the arguments are sent while they arrive
        self._guard = EndMarkerGuard(self._make_scanner(), self._ends)

    @property
    def closed(self) -> bool:
        return self.is_over or (self._calls > 0 and (self._ended or not self._named))

    @property
    def valid(self) -> bool:
        return not self._is_broken

    def read(self, text: str, at: int, out: list[CallPiece]) -> int:
        piece = self._guard.take_string(text, at) if self._is_streaming else None
        if piece is not None:
            out.append(piece)
            return len(text)
        self._mark = -1
        final = self._final
        while not (self.is_over or self.failed):
            step = self._step
            moved = step(text, at, out) if self._mark < 0 else self._look_ahead(text, at, out)
            if moved == at and self._step == step:
                break
            at = moved
        self._final = final
        if self._mark < 0:
            return at
        if len(text) - self._mark >= LIMIT:
            self.is_over = True  # another call would have named its tool
        if not self.is_over:
            self._reset_call()
            self._step = self._after
        return self._mark

    def _look_ahead(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Take a step in text that may be another call, which must name its tool within `LIMIT` characters."""
        begin = self._mark
        final, self._final = self._final, self._final and len(text) - begin <= LIMIT
        moved = begin + self._step(text[begin : begin + LIMIT], at - begin, out)
        self._final = final
        return moved

    def finish(self, text: str, at: int, out: list[CallPiece]) -> int:
        here = skip_white_space(text, at)
        if self.closed and here < len(text) and self._ends.match(text, here, False) == "":
            self.is_over = True
            return len(text)  # half of the end marker
        self._final = True
        at = self.read(text, at, out)
        self.failed = not self._calls
        if not (self.is_over or self.failed):
            out.extend(self._unsent_text())
            self.is_over = self.closed
        return at

    def _unsent_text(self) -> list[str]:
        """Return the unsent text of a call that was cut off."""
        return []

    def _refuses(self, name: str) -> bool:
        """Return whether this is the first call and its name is not a tool's, so that the text is not a call."""
        return not self._calls and not self.accepts(name)

    def _name(self, name: str, id_: str, out: list[CallPiece]) -> None:
        self._named, self._mark = True, -1
        self._calls += 1
        out.append(NamedCall(name, id_))

    def _end(self, out: list[CallPiece]) -> None:
        if self._named and not self._ended:
            self._ended = True
            out.append(EndOfCall(self._arguments_complete and not self._is_broken))

    def _fail(self, at: int) -> int:
        """End the reading at text that is not a call; without an earlier call the reader has failed."""
        if self._calls:
            self.is_over = True
        else:
            self.failed = True
        return at

    def _cut(self, at: int, marker: str, out: list[CallPiece]) -> int:
        """End the call at an end marker, whether it is complete or not."""
        if not self._named:
            return self._fail(at)
        self._is_broken = not self._arguments_complete
        self._end(out)
        self.is_over = True
        return at + len(marker) if marker in self._closes else at

    def _at_end(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Read the end marker after all calls; it may be missing."""
        here = skip_white_space(text, at)
        if here - at > LIMIT or not self._ends.markers:
            self.is_over = True
        elif here < len(text):
            if text[here] in "}])" and self._closes:
                return here + 1  # a surplus bracket
            marker = self._ends.match(text, here, self._final)
            if marker != "":
                self.is_over = True
                return here + len(marker) if marker in self._closes else at
        return at
