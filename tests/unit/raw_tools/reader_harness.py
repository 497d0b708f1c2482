"""Feed a reader the body of a call, cut anywhere, and join what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from dragoman.filters.raw_tools.bodies import reader_of
from dragoman.filters.raw_tools.readers import EndOfCall, NamedCall, Piece
from dragoman.filters.raw_tools.tables import TABLES
from dragoman.filters.raw_tools.values import Schema, Shape, shape_of
from dragoman.wire.jsonio import Json
from tests.unit.raw_tools.reading import feed
from tests.unit.raw_tools.samples import all_cuts


class Read(Struct, frozen=True):
    """What a reader made of a body: the text of the arguments, and what it left unread."""

    text: str
    rest: str
    over: bool
    closed: bool
    valid: bool
    failed: bool


def read_pieces(table: str, pieces: Iterable[str], schema: Mapping[str, Json] | None) -> Read:
    """Read the pieces as a stream of text brings them. They begin after the header of the call."""
    chosen = next(each for each in TABLES if each.name == table)
    known = None if schema is None else Schema(schema)

    def shapes(tool: str, key: str) -> Shape:
        return shape_of(None, key) if known is None else known.shape(key)

    reader = reader_of(chosen, shapes)
    out: list[Piece] = []
    unread = feed(reader, pieces, out)
    said = "".join(each for each in out if not isinstance(each, NamedCall | EndOfCall))
    return Read(said, unread, reader.over, reader.closed, reader.valid, reader.failed)


def read(table: str, body: str, schema: Mapping[str, Json] | None = None) -> Read:
    """Read a body in every cut; all give the same, but for what is left of a body that is no call."""
    whole = read_pieces(table, [body], schema)
    for cut in all_cuts(body):
        other = read_pieces(table, cut, schema)
        if whole.failed:
            assert other.failed and not other.text, cut
        else:
            assert other == whole, cut
    return whole
