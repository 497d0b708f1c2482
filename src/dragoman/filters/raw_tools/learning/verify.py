"""Check a learned format: parse the calls that the template rendered, and compare them with the given calls. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from dragoman.filters.raw_tools.engine import Engine
from dragoman.filters.raw_tools.learning.probes import ProbeCall, schema_of
from dragoman.filters.raw_tools.names import CallIds, DeclaredTools
from dragoman.filters.raw_tools.outputs import merge_outputs
from dragoman.filters.raw_tools.table import Table
from dragoman.filters.raw_tools.tables import TABLES
from dragoman.model.conversation import ToolSpec
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json


class Mismatch(Struct, frozen=True):
    """A text whose calls were not read correctly."""

    text: str
    expected: str
    read: str


class VerificationReport(Struct, frozen=True):
    """The number of texts, and those that were not read correctly."""

    total: int
    mismatches: tuple[Mismatch, ...]

    @property
    def read(self) -> int:
        """The number of texts that were read correctly."""
        return self.total - len(self.mismatches)

    @property
    def all_match(self) -> bool:
        """Whether all texts, and at least one, were read correctly."""
        return self.total > 0 and not self.mismatches


def verify(choice: str, probes: Iterable[tuple[Sequence[ProbeCall], str]]) -> VerificationReport:
    """Read each text with the tables of a `raw_tools` setting; the result must be exactly its calls and no text."""
    total, mismatches = 0, []
    for calls, text in probes:
        total += 1
        expected, read = _expected(calls), _read(choice, calls, text)
        if expected != read:
            mismatches.append(Mismatch(text, expected, read))
    return VerificationReport(total, tuple(mismatches))


def find_shipped_equal(table: Table, probes: Sequence[tuple[Sequence[ProbeCall], str]]) -> str:
    """Return the name of a shipped table that has a common opener and reads all probes; "" if there is none."""
    openers = {*table.section_begin, *table.call_begin}
    for each in TABLES:
        same = each.body == table.body and (openers & {*each.section_begin, *each.call_begin} or not openers)
        if same and verify(each.name, probes).all_match:
            return each.name
    return ""


def _expected(calls: Sequence[ProbeCall]) -> str:
    return "\n".join(_line(call.name, call.arguments) for call in calls)


def _line(name: str, arguments: Json) -> str:
    return f"{name} {jsonio.encode_like_python(arguments, sort_keys=True)}"


def _read(choice: str, calls: Sequence[ProbeCall], text: str) -> str:
    tools = DeclaredTools(ToolSpec(call.name, schema=schema_of(call.arguments)) for call in calls)
    engine = Engine(choice, tools, CallIds())
    lines: list[str] = []
    for output in merge_outputs((*engine.feed(text), *engine.close())):
        if output.kind == "call":
            lines.append(_line(output.name, _value(output.arguments)) + ("" if output.complete else " (not complete)"))
        elif output.kind != "note" and output.text.strip():
            lines.append(f"text {output.text!r}")
    return "\n".join(lines)


def _value(arguments: str) -> Json:
    try:
        return jsonio.decode(arguments)
    except jsonio.JsonError:
        return f"no JSON: {arguments}"
