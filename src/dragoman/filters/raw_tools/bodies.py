"""The reader of a table's body. A new format needs another one only if none of these can read it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from msgspec import Struct

from dragoman.filters.raw_tools.elements import ElementsMarkers, ElementsReader
from dragoman.filters.raw_tools.literals import PYTHON_SYNTAX, LiteralScanner, LiteralSyntax, gemma_syntax
from dragoman.filters.raw_tools.markup import MarkupMarkers, MarkupReader
from dragoman.filters.raw_tools.readers import (
    LIMIT,
    BodyReader,
    CallsReader,
    EndMarkerGuard,
    JsonReader,
    Piece,
    skip_white_space,
)
from dragoman.filters.raw_tools.table import Table
from dragoman.filters.raw_tools.values import FindParameter
from dragoman.filters.raw_tools.wrapped_json import WrappedJsonReader
from dragoman.wire.markers import Markers

# --- LiteralCalls: the reader of calls whose arguments are literals, `f(a=1, b="x")` or Gemma's `call:f{a:1}`


_LOST = 256  # characters after the place where text turned out to be no call that are read as part of it


class Notation(Struct, frozen=True):
    """How a language writes calls: its literals, and what stands before the arguments."""

    style: LiteralSyntax
    header: re.Pattern[str]  # from the call's beginning to the bracket before its arguments
    half_header: re.Pattern[str]  # text that may become one


_PYTHON_HEADER = re.compile(r"(?<![\w.-])(?P<name>[^\W\d][\w.-]*+)\s*+\(")
_PYTHON_HALF = re.compile(r"(?<![\w.-])[^\W\d][\w.-]*+\s*+\Z")
_GEMMA_HEADER = re.compile(r"call:\s*(?P<name>[^\s{}:<]+)\s*\{")
_GEMMA_HALF = re.compile(r"(?:call:\s*(?:[^\s{}:<]+\s*)?|call|cal|ca|c)\Z")

_PYTHON = Notation(PYTHON_SYNTAX, _PYTHON_HEADER, _PYTHON_HALF)


@cache
def _gemma(string_mark: str) -> Notation:
    """Return Gemma's notation: `call:NAME{key:<|"|>text<|"|>,number:42}`."""
    return Notation(gemma_syntax(string_mark), _GEMMA_HEADER, _GEMMA_HALF)


class LiteralCallsReader(CallsReader):
    """Calls one after another, with or without commas and square brackets around them.

    A call is named when its first argument has a key, or it has no argument. An argument without a key belongs to the
    parameter that stands at the same place in the tool's schema; without a schema it is not read.
    """

    def __init__(self, ends: Markers, closes: frozenset[str], notation: Notation, shapes: FindParameter) -> None:
        self._shapes = shapes
        self._notation = notation
        super().__init__(
            ends, closes, self._open, self._between, lambda: LiteralScanner(notation.style, self._parameters)
        )

    def _forget(self) -> None:
        super()._forget()
        self._lost = 0  # characters that still go with what is no call

    def _parameters(self) -> tuple[str, ...]:
        return self._shapes(self._tool, "").parameters

    def _unsaid(self) -> list[str]:
        machine = self._guard.machine
        return [machine.rest] if isinstance(machine, LiteralScanner) and machine.rest else []

    def _open(self, text: str, at: int, out: list[Piece]) -> int:
        at = skip_white_space(text, at)
        if at == len(text):
            return at
        self._step = self._at_name
        if text[at] == "[":
            self._in_list = True
            return at + 1
        return at

    def _between(self, text: str, at: int, out: list[Piece]) -> int:
        """After a call: another one, or the end."""
        here = self._next_call(text, at, ",;")
        if here is None:
            return at
        if text[here] == "]" and self._in_list:
            self._step = self._at_end
            return here + 1
        if self._notation.header.match(text, here, here + LIMIT) or self._notation.half_header.match(text, here):
            self._mark, self._step = at, self._at_name
            self._forget()
            return here
        self._step = self._at_end
        return at

    def _at_name(self, text: str, at: int, out: list[Piece]) -> int:
        at = skip_white_space(text, at)
        notation = self._notation
        found = notation.header.match(text, at, at + LIMIT)
        if found is not None:
            self._tool = found["name"]
            if self._refuses(self._tool):
                return self._fail(at)
            self._held = ["{"]
            self._step = self._arguments
            return found.end()
        if at == len(text) or (
            len(text) - at < LIMIT and not self._final and self._notation.half_header.match(text, at)
        ):
            return at
        return self._fail(at)

    def _arguments(self, text: str, at: int, out: list[Piece]) -> int:
        written: list[str] = []
        end = self._guard.read(text, at, written, self._final)
        machine = self._guard.machine
        if self._named:
            out.extend(written)
        else:
            self._held += written
            if machine.has_begun or machine.complete:
                self._name(self._tool, "", out)
                out.extend(self._held)
        self._flows = self._named and not (machine.complete or machine.is_broken or self._guard.marker)
        if machine.complete:
            self._settled = True
            self._end(out)
            self._step = self._between
            return end
        if self._guard.marker:
            out.extend(self._unsaid() if self._named else [])
            return self._cut(end, self._guard.marker, out)
        if machine.is_broken:
            if not self._named:
                return self._lose(end)
            self._broke, self._step = True, self._broken
            out.extend(self._unsaid())
        return end

    def _lose(self, end: int) -> int:
        """What follows is no call. Some of the text after the break goes with it, always as much, however it is cut."""
        machine = self._guard.machine
        read = machine.broken_size if isinstance(machine, LiteralScanner) else 0
        self._lost, self._step = _LOST - read, self._skip
        return self._fail(end + self._lost) if self._lost <= 0 else end

    def _skip(self, text: str, at: int, out: list[Piece]) -> int:
        start, marker = self._ends.find(text, at, self._final)
        end = min(start, at + self._lost)
        self._lost -= end - at
        if not self._lost or marker or (self._final and end == len(text)):
            return self._fail(end)
        return end

    def _broken(self, text: str, at: int, out: list[Piece]) -> int:
        """Arguments that cannot be read: all up to the end marker, as it is."""
        self._guard = EndMarkerGuard(LiteralScanner(self._notation.style), self._ends)
        start, marker = self._ends.find(text, at, self._final)
        if start > at:
            out.append(text[at:start])
        return self._cut(start, marker, out) if marker else start


def make_reader(table: Table, shapes: FindParameter, accepts: Callable[[str], bool] = bool) -> BodyReader:
    """Make the reader of one call, or of one section where the body names its calls itself.

    `accepts` says whether a name that the body gives may be a tool's. Raises LocalMisuse for a table without markup.
    """
    ends = _markers(table.ends())
    closes = frozenset((*table.call_end, *table.section_end))  # of a body that names its calls itself
    reader: CallsReader
    match table.body:
        case "json":
            drops = frozenset(table.drops)
            ends = _markers(tuple(marker for marker in table.ends() if marker not in drops))
            markers = _markers((*table.ends(), *table.drops))
            return JsonReader(ends, markers, frozenset(table.call_end), drops, table.self_closing)
        case "markup":
            return MarkupReader(_markup_marks(table), shapes)
        case "elements":
            return ElementsReader(_elements_marks(table), shapes)
        case "pythonic":
            reader = LiteralCallsReader(ends, closes, _PYTHON, shapes)
        case "gemma":
            reader = LiteralCallsReader(ends, closes, _gemma(table.string_mark), shapes)
        case _:
            bare = table.at_start and not table.header_end
            reader = WrappedJsonReader(ends, closes, table.keys, table.separators, bare=bare)
    reader.accepts = accepts
    return reader


_markers = cache(Markers)
_markup_marks = cache(MarkupMarkers.of)
_elements_marks = cache(ElementsMarkers.of)
