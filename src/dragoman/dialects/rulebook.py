"""The rules that `dragoman check` tests, as data: each has a name, evidence, a severity and a sentence.

Each dialect declares its rules in one table, and only declared rules can be reported. A rule that a real service
contradicts, or that no service was seen to enforce, is advice: `dragoman check` prints advice but does not fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, convert

# observed: a service refused such requests, or official clients need it in a stream. documented: by the vendor.
# inferred: other translators follow it, or it follows from other rules.
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
    """A rule of the dialect that a payload breaks, and the place in the payload."""

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
