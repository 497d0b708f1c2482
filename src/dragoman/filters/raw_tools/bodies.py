"""The readers of arguments by name. A new format needs an entry here only if none of these can read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeAlias

from dragoman.errors import LocalMisuse
from dragoman.filters.raw_tools.calls import CallsReader
from dragoman.filters.raw_tools.elements import ElementsBody, ElementsMarks
from dragoman.filters.raw_tools.gemma import gemma_calls
from dragoman.filters.raw_tools.markup import MarkupBody, MarkupMarks
from dragoman.filters.raw_tools.pythonic import LiteralCalls
from dragoman.filters.raw_tools.readers import JsonBody, Reader
from dragoman.filters.raw_tools.table import Body, Table
from dragoman.filters.raw_tools.values import ShapeOf
from dragoman.filters.raw_tools.wrapped import WrappedJson
from dragoman.wire.markers import Markers

MakeReader: TypeAlias = Callable[[Table, ShapeOf], Reader]


def reader_of(table: Table, shapes: ShapeOf, accepts: Callable[[str], bool] = bool) -> Reader:
    """Make the reader of one call, or of one section where the body names its calls itself.

    `accepts` says whether a name that the body gives may be a tool's.
    """
    reader = _READERS[table.body](table, shapes)
    if isinstance(reader, CallsReader):
        reader.accepts = accepts
    return reader


@cache
def _markers(markers: tuple[str, ...]) -> Markers:
    return Markers(markers)


def _json(table: Table, shapes: ShapeOf) -> Reader:
    ends = _markers(tuple(marker for marker in table.ends() if marker not in table.drops))
    markers = _markers((*table.ends(), *table.drops))
    return JsonBody(ends, markers, frozenset(table.call_end), frozenset(table.drops), table.self_closing)


def _wrapped(table: Table, shapes: ShapeOf) -> Reader:
    bare = table.at_start and not table.header_end
    return WrappedJson(_markers(table.ends()), _closes(table), table.keys, table.separators, bare=bare)


def _pythonic(table: Table, shapes: ShapeOf) -> Reader:
    return LiteralCalls(_markers(table.ends()), _closes(table), shapes=shapes)


def _gemma(table: Table, shapes: ShapeOf) -> Reader:
    return gemma_calls(_markers(table.ends()), _closes(table), table.string_mark)


def _closes(table: Table) -> frozenset[str]:
    """The end markers that belong to a call that names its tool inside its body."""
    return frozenset((*table.call_end, *table.section_end))


def _markup(table: Table, shapes: ShapeOf) -> Reader:
    if table.markup is None:
        raise LocalMisuse(f"the table {table.name} has no markup")
    marks = _markup_marks(table.markup, table.ends(), table.call_end, table.section_end)
    return MarkupBody(table.markup, marks, shapes)


_markup_marks = cache(MarkupMarks.of)


def _elements(table: Table, shapes: ShapeOf) -> Reader:
    return ElementsBody(_elements_marks(table.tag_prefix, table.call_end, table.ends()), shapes)


_elements_marks = cache(ElementsMarks.of)

_READERS: Mapping[Body, MakeReader] = {
    "json": _json,
    "wrapped": _wrapped,
    "array": _wrapped,
    "pythonic": _pythonic,
    "gemma": _gemma,
    "markup": _markup,
    "elements": _elements,
}
