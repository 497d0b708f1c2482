"""Feed a reader the body of a call, cut anywhere, and join what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dragoman.filters.raw_tools.tables import TABLES
from dragoman.filters.raw_tools.values import ParameterSchema, find_parameter
from dragoman.wire.jsonio import Json
from tests.unit.raw_tools.run_reader import ReaderResult, run
from tests.unit.raw_tools.samples import all_cuts


def read_pieces(table: str, pieces: Iterable[str], schema: Mapping[str, Json] | None) -> ReaderResult:
    """Read the pieces as a stream of text brings them. They begin after the header of the call."""
    chosen = next(each for each in TABLES if each.name == table)

    def shapes(tool: str, key: str) -> ParameterSchema:
        return find_parameter(schema, key)

    return run(chosen, pieces, shapes, ends=False)


def read(table: str, body: str, schema: Mapping[str, Json] | None = None) -> ReaderResult:
    """Read a body in every cut; all give the same, and nothing of a body that is no call."""
    whole = read_pieces(table, [body], schema)
    assert not (whole.failed and whole.text)
    for cut in all_cuts(body):
        assert read_pieces(table, cut, schema) == whole, cut
    return whole
