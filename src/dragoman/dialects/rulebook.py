"""Rules of a dialect as data: each has a name, its evidence, its severity and a sentence.

A rule that a real service is known to contradict is advice, and so is one that has not been seen enforced: `dragoman
check` prints advice, but does not fail for it. Rules are declared in one table for each dialect; a breach of a
rule that is not in the table cannot be made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, convert

# observed: seen in refused requests, or in what official clients do with a stream. documented: the vendor says so.
# inferred: neither; other translators avoid it, or it follows from other rules.
Evidence: TypeAlias = Literal["observed", "documented", "inferred"]
Severity: TypeAlias = Literal["error", "advice"]
_Row: TypeAlias = tuple[Evidence, Severity, str]


class DialectRule(Struct, frozen=True):
    """One rule of a dialect."""

    name: str
    evidence: Evidence
    severity: Severity
    sentence: str


class Breach(Struct, frozen=True):
    """A rule of the dialect that a payload breaks."""

    rule: str
    at: str
    detail: str
    evidence: Evidence = "inferred"
    severity: Severity = "error"


class Rulebook:
    """The declared rules of one dialect. Names in the table are short; outside they begin with the dialect's name."""

    def __init__(self, dialect: str, table: Mapping[str, _Row]) -> None:
        self._rules = {name: DialectRule(f"{dialect}.{name}", *row) for name, row in table.items()}

    @classmethod
    def parse(cls, dialect: str, table: str) -> Rulebook:
        """Read a table of lines `name | evidence | severity | sentence`. Raises msgspec.ValidationError."""
        rows = (line.split(" | ", 3) for line in table.strip().splitlines())
        return cls(dialect, {name: convert(row, _Row) for name, *row in rows})

    def all_rules(self) -> Sequence[DialectRule]:
        """Return all rules, in the order of the table."""
        return tuple(self._rules.values())

    def breach(self, name: str, at: str, detail: str = "") -> Breach:
        """Return a breach of the rule of this short name; its sentence is the detail if none is given.

        Raises KeyError for a rule that is not declared.
        """
        rule = self._rules[name]
        return Breach(rule.name, at, detail or rule.sentence, rule.evidence, rule.severity)
