"""CallsReader: the base of the readers of formats that name the tool inside the body. It may read many calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias

from dragoman.filters.raw_tools.guard import Guard, Machine
from dragoman.filters.raw_tools.readers import LIMIT, EndOfCall, NamedCall, Piece, skip_blank
from dragoman.wire.markers import Markers

Step: TypeAlias = Callable[[str, int, list[Piece]], int]


class CallsReader:
    """Reads calls by steps. A step returns how far it read; one that neither moves nor changes the step needs more.

    Before the first call is named the reader may fail. After a call, text that is no call ends what it reads, and stays
    unread if that was found out soon enough; text that may yet become a call is left unread and seen again.
    """

    names_inside: ClassVar[bool] = True

    def __init__(self, ends: Markers, closes: frozenset[str], first: Step, after: Step) -> None:
        self.over = False
        self.failed = self.junk = False
        self.accepts: Callable[[str], bool] = bool  # whether a name that was read may be a tool's
        self._ends = ends  # all that end the calls
        self._closes = closes  # those that are part of them
        self._step = first
        self._after = after  # the step after a call
        self._final = False  # no more text comes
        self._calls = 0
        self._mark = -1  # where the text after the last call begins, while what follows may be no call; else -1
        self._forget()

    def _forget(self) -> None:
        """Begin another call."""
        self._named = False  # NamedCall went out
        self._ended = False  # EndOfCall went out
        self._settled = False  # the arguments are whole
        self._broke = False  # the arguments cannot become JSON

    @property
    def closed(self) -> bool:
        return self.over or (self._calls > 0 and (self._ended or not self._named))

    @property
    def valid(self) -> bool:
        return not self._broke

    def read(self, text: str, at: int, out: list[Piece]) -> int:
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
        here = skip_blank(text, at)
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
        here = skip_blank(text, at)
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

    def _guarded(self, machine: Machine) -> Guard:
        return Guard(machine, self._ends)
