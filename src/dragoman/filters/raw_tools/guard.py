"""Guard: decide whether an end marker inside a string is part of the string or ends the call.

A model that forgets a closing quote would otherwise hide the end of its call, and all that follows, in a string. So
where an end marker stands inside a string the guard holds the text back from there and looks ahead: if the value
completes, the marker was text; if the value breaks, or the answer ends, the marker ended the call.
"""

from __future__ import annotations

from typing import Protocol, Self

from dragoman.wire.markers import Markers

AHEAD_LIMIT = 64 * 1024  # characters of look-ahead; a value that is good for longer is believed, markers and all


class Machine(Protocol):
    """Follows one value in text that is cut anywhere and writes it as JSON."""

    quoted: bool  # inside a string
    complete: bool  # the value has ended
    begun: bool  # more has come than white space and an opening bracket
    broken: bool  # the text where `read` stopped cannot belong to the value

    @property
    def whole(self) -> bool:
        """Whether the value could end here."""
        ...

    def read(self, text: str, at: int, stop: int, out: list[str]) -> int:
        """Read text[at:stop]. Return `stop`, or less where the value is complete or broken."""
        ...

    def within(self, text: str) -> str | None:
        """Take the text if all of it is part of the string that the machine is in, and return it as JSON.

        None: nothing was taken, `read` has to.
        """
        ...

    def copy(self) -> Self: ...


class Guard:
    """Lets a machine read up to the marker that ends its value. `marker` is that marker; it stands where `read` ended.

    While `read` looks ahead it returns the position of the marker; it remembers how far it has looked.
    """

    __slots__ = ("_ahead", "_doubtful", "_ends", "_looked", "_written", "machine", "marker")

    def __init__(self, machine: Machine, ends: Markers) -> None:
        self.machine = machine
        self.marker = ""
        self._ends = ends
        self._ahead: Machine | None = None  # a copy of the machine that looks ahead
        self._doubtful = ""  # the marker that may have ended the value
        self._looked = 0  # how far it has looked
        self._written: list[str] = []  # what it wrote

    def is_clear(self, text: str, at: int) -> bool:
        """Whether no marker begins in the text from `at`, and none is in doubt: the machine may read it by itself."""
        return self._ahead is None and self._ends.are_absent(text, at)

    def passes(self, text: str, at: int) -> bool:
        """Take all of the text from `at` if it goes out unchanged. The short way for most of a long string."""
        if self._ahead is not None or self._ends.find(text, at, False) != (len(text), ""):
            return False
        return self.machine.within(text[at:] if at else text) is not None

    def within(self, text: str) -> str | None:
        """Let the machine take a text without markers as part of a string; None: `read` has to."""
        return self.machine.within(text) if self._ahead is None else None

    def read(self, text: str, at: int, out: list[str], final: bool) -> int:
        """Return how far the text certainly belongs to the value. With `final` no more text comes."""
        while True:
            if self._ahead is not None:
                at, goes_on = self._look(self._ahead, text, at, out, final)
                if not goes_on:
                    return at
            start, marker = self._ends.find(text, at, final)
            at = self.machine.read(text, at, start, out)
            if self.machine.complete or self.machine.broken or not marker:
                return at
            if not self.machine.quoted:
                self.marker = marker
                return at
            self._ahead, self._doubtful, self._looked, self._written = self.machine.copy(), marker, 0, []

    def _look(self, ahead: Machine, text: str, at: int, out: list[str], final: bool) -> tuple[int, bool]:
        """Look ahead from the doubtful marker at the position; return how far the value goes, and if it goes on."""
        limit = at + AHEAD_LIMIT
        stop = min(len(text), limit)
        end = ahead.read(text, at + self._looked, stop, self._written)
        self._looked = end - at
        if ahead.complete or (end == limit and not ahead.broken):
            self.machine, self._ahead = ahead, None
            out.extend(self._written)
            return end, not ahead.complete
        if ahead.broken or final:
            self.marker, self._ahead = self._doubtful, None
        return at, False
