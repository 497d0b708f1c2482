"""Readers of the text between the start and end markers of a raw tool call. Pure.

`make_reader` chooses the reader that a format's table names; `LiteralCallsReader` reads Python's and Gemma's syntax.

A new format needs a new reader only if none of the existing ones can read it.
"""

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
    CallPiece,
    CallsReader,
    EndMarkerGuard,
    JsonReader,
    skip_white_space,
)
from dragoman.filters.raw_tools.table import Table
from dragoman.filters.raw_tools.values import FindParameter
from dragoman.filters.raw_tools.wrapped_json import WrappedJsonReader
from dragoman.wire.markers import Markers

# --- Calls whose arguments are literals: `f(a=1, b="x")` or Gemma's `call:f{a:1}`


_REST_SIZE = 256  # characters after a failed call that become text together with it


class Notation(Struct, frozen=True):
    """How a language writes calls: its literals, and the header before the arguments."""

    style: LiteralSyntax
    header: re.Pattern[str]  # from the call's beginning to the bracket before its arguments
    half_header: re.Pattern[str]  # text that may become a header


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
    """Reads calls one after another, with or without commas and square brackets around them.

    A call is named once its first argument has a key, or it has no argument. An argument without a key belongs to the
    parameter at the same position in the tool's schema; without a schema it cannot be read.
    """

    def __init__(
        self, ends: Markers, closes: frozenset[str], notation: Notation, find_parameter: FindParameter
    ) -> None:
        self._find_parameter = find_parameter
        self._notation = notation
        super().__init__(
            ends, closes, self._open, self._between, lambda: LiteralScanner(notation.style, self._parameters)
        )

    def _reset_call(self) -> None:
        super()._reset_call()
        self._rest_to_skip = 0  # characters to read as part of a failed call

    def _parameters(self) -> tuple[str, ...]:
        return self._find_parameter(self._tool, "").parameters

    def _unsent_text(self) -> list[str]:
        scanner = self._guard.scanner
        return [scanner.rest] if isinstance(scanner, LiteralScanner) and scanner.rest else []

    def _open(self, text: str, at: int, out: list[CallPiece]) -> int:
        at = skip_white_space(text, at)
        if at == len(text):
            return at
        self._step = self._at_name
        if text[at] == "[":
            self._in_list = True
            return at + 1
        return at

    def _between(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Read after a call: another call, or the end."""
        here = self._next_call(text, at, ",;")
        if here is None:
            return at
        if text[here] == "]" and self._in_list:
            self._step = self._at_end
            return here + 1
        if self._notation.header.match(text, here, here + LIMIT) or self._notation.half_header.match(text, here):
            self._mark, self._step = at, self._at_name
            self._reset_call()
            return here
        self._step = self._at_end
        return at

    def _at_name(self, text: str, at: int, out: list[CallPiece]) -> int:
        at = skip_white_space(text, at)
        notation = self._notation
        found = notation.header.match(text, at, at + LIMIT)
        if found is not None:
            self._tool = found["name"]
            if self._refuses(self._tool):
                return self._fail(at)
            self._buffered = ["{"]
            self._step = self._arguments
            return found.end()
        if at == len(text) or (
            len(text) - at < LIMIT and not self._final and self._notation.half_header.match(text, at)
        ):
            return at
        return self._fail(at)

    def _arguments(self, text: str, at: int, out: list[CallPiece]) -> int:
        written: list[str] = []
        end = self._guard.read(text, at, written, self._final)
        scanner = self._guard.scanner
        if self._named:
            out.extend(written)
        else:
            self._buffered += written
            if scanner.has_begun or scanner.complete:
                self._name(self._tool, "", out)
                out.extend(self._buffered)
        self._is_streaming = self._named and not (scanner.complete or scanner.is_broken or self._guard.marker)
        if scanner.complete:
            self._arguments_complete = True
            self._end(out)
            self._step = self._between
            return end
        if self._guard.marker:
            out.extend(self._unsent_text() if self._named else [])
            return self._cut(end, self._guard.marker, out)
        if scanner.is_broken:
            if not self._named:
                return self._skip_rest(end)
            self._is_broken, self._step = True, self._broken
            out.extend(self._unsent_text())
        return end

    def _skip_rest(self, end: int) -> int:
        """Fail after `_REST_SIZE` more characters, so that the result does not depend on how the text is cut."""
        scanner = self._guard.scanner
        read = scanner.broken_size if isinstance(scanner, LiteralScanner) else 0
        self._rest_to_skip, self._step = _REST_SIZE - read, self._skip
        return self._fail(end + self._rest_to_skip) if self._rest_to_skip <= 0 else end

    def _skip(self, text: str, at: int, out: list[CallPiece]) -> int:
        start, marker = self._ends.find(text, at, self._final)
        end = min(start, at + self._rest_to_skip)
        self._rest_to_skip -= end - at
        if not self._rest_to_skip or marker or (self._final and end == len(text)):
            return self._fail(end)
        return end

    def _broken(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Pass unreadable arguments on unchanged, up to the end marker."""
        self._guard = EndMarkerGuard(LiteralScanner(self._notation.style), self._ends)
        start, marker = self._ends.find(text, at, self._final)
        if start > at:
            out.append(text[at:start])
        return self._cut(start, marker, out) if marker else start


def make_reader(table: Table, find_parameter: FindParameter, accepts: Callable[[str], bool] = bool) -> BodyReader:
    """Return the reader of one call, or of one section if the body names its calls.

    `accepts` returns whether a name in the body may be a tool's. Raises LocalMisuse for a table without markup.
    """
    ends = _markers(table.ends())
    closes = frozenset((*table.call_end, *table.section_end))  # for bodies that name their calls
    reader: CallsReader
    match table.body:
        case "json":
            drops = frozenset(table.drops)
            ends = _markers(tuple(marker for marker in table.ends() if marker not in drops))
            markers = _markers((*table.ends(), *table.drops))
            return JsonReader(ends, markers, frozenset(table.call_end), drops, table.self_closing)
        case "markup":
            return MarkupReader(_markup_marks(table), find_parameter)
        case "elements":
            return ElementsReader(_elements_marks(table), find_parameter)
        case "pythonic":
            reader = LiteralCallsReader(ends, closes, _PYTHON, find_parameter)
        case "gemma":
            reader = LiteralCallsReader(ends, closes, _gemma(table.string_mark), find_parameter)
        case _:
            bare = table.at_start and not table.header_end
            reader = WrappedJsonReader(ends, closes, table.keys, table.separators, bare=bare)
    reader.accepts = accepts
    return reader


_markers = cache(Markers)
_markup_marks = cache(MarkupMarkers.of)
_elements_marks = cache(ElementsMarkers.of)
