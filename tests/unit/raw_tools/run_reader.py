"""Run one reader over a text that is cut anywhere, without the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from dragoman.filters.raw_tools.bodies import make_reader
from dragoman.filters.raw_tools.readers import BodyReader, CallPiece, CallsReader, EndOfCall, NamedCall
from dragoman.filters.raw_tools.table import Table
from dragoman.filters.raw_tools.values import UNKNOWN_PARAMETER, ParameterSchema
from tests.unit.raw_tools.samples import all_cuts


class ReaderResult(Struct, frozen=True):
    """What a reader made of a text."""

    calls: tuple[tuple[str, str, bool | None], ...]  # name, arguments, valid; None: it was cut off
    left: str  # what it did not read; of a text that is no call nothing is read
    is_over: bool
    failed: bool
    closed: bool
    valid: bool

    @property
    def text(self) -> str:
        return "".join(arguments for _, arguments, _ in self.calls)

    @property
    def content(self) -> list[tuple[str, str]]:
        return [(name, arguments) for name, arguments, _ in self.calls]


def no_schemas(tool: str, parameter: str) -> ParameterSchema:
    return UNKNOWN_PARAMETER


def feed(reader: BodyReader, pieces: Iterable[str], out: list[CallPiece]) -> str:
    """Feed the pieces as the engine does: what the reader leaves it sees again. Gives what it left at last."""
    unread = ""
    for piece in pieces:
        unread += piece
        if not (reader.is_over or reader.failed):
            unread = unread[reader.read(unread, 0, out) :]
    return unread


def run(
    table: Table,
    pieces: Iterable[str],
    shapes: Callable[[str, str], ParameterSchema] = no_schemas,
    *,
    ends: bool = True,
) -> ReaderResult:
    """Feed the pieces; if it `ends`, finish the reader after them."""
    reader = make_reader(table, shapes)
    out: list[CallPiece] = []
    unread = feed(reader, pieces, out)
    if ends and not (reader.is_over or reader.failed):
        unread = unread[reader.finish(unread, 0, out) :]
    left = "" if reader.failed else unread
    return ReaderResult(_calls(reader, out), left, reader.is_over, reader.failed, reader.closed, reader.valid)


def _calls(reader: BodyReader, out: list[CallPiece]) -> tuple[tuple[str, str, bool | None], ...]:
    if not isinstance(reader, CallsReader):
        return (("", "".join(piece for piece in out if isinstance(piece, str)), reader.valid),)
    calls: list[tuple[str, str, bool | None]] = []
    for piece in out:
        match piece:
            case NamedCall(name, id_):
                assert not calls or calls[-1][2] is not None, "the call before has ended"
                calls.append((f"{name}#{id_}" if id_ else name, "", None))
            case EndOfCall(valid):
                assert calls[-1][2] is None, "a call ends once"
                calls[-1] = (*calls[-1][:2], valid)
            case str():
                assert calls[-1][2] is None, "arguments belong to an open call"
                calls[-1] = (calls[-1][0], calls[-1][1] + piece, None)
    return tuple(calls)


def read(table: Table, text: str) -> ReaderResult:
    """Read the text whole and cut in many ways; the result is always the same, or this fails."""
    whole = run(table, [text])
    for cut in all_cuts(text):
        assert run(table, cut) == whole, cut
    return whole
