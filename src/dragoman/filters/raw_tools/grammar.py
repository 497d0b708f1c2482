"""What the engine needs of a set of tables, worked out once: which literals to look for in which state."""

from __future__ import annotations

import re
from enum import Enum
from functools import cache

from msgspec import Struct

from dragoman.wire.markers import Markers
from dragoman.filters.raw_tools.names import Tools
from dragoman.filters.raw_tools.prose import ENDS
from dragoman.filters.raw_tools.readers import skip_blank
from dragoman.filters.raw_tools.tables import Table, tables_of

_WORDS = re.compile(r"[^\s:]\s+[^\s:]")  # a header before JSON is one word; blanks around its colon do not count


class Role(Enum):
    """What a literal means in prose and in sections."""

    SECTION = "section"  # of a special table: what is no call in it says nothing
    CALL = "call"  # a call begins, or a section of tags
    HEADER_END = "header end"  # the arguments of a Kimi call begin
    SECTION_END = "section end"
    STRAY = "stray"


class Opening(Struct, frozen=True):
    """A header, read."""

    table: Table
    written: str  # the name, and where there is one the count
    size: int  # how much of the text it took
    bodiless: bool = False  # the call's end stood where its arguments should begin

    def meant(self, declared: bool, tools: Tools) -> bool:
        """Whether a tag's call is one: it names a tool, a `declared` one (a wrapped call tells its name later)."""
        if self.table.special or self.table.body == "wrapped":
            return True
        return bool(self.written) and not (declared and tools.resolve(self.written) is None)


class Cut(Struct, frozen=True):
    """A header that another marker ends in the middle; it stands at `size`."""

    size: int


class Verdict(Enum):
    MORE = "more text is needed"
    NO = "it is no call"


class _Marks(Struct, frozen=True):
    """One table's literals by state."""

    header: Markers
    tag: Markers  # may stand between a tag and its header
    section: Markers
    after: Markers
    leftovers: frozenset[str]  # directly after a call they are part of it
    remarkable: frozenset[str]  # those of them that should not be there


class Grammar:
    """The tables in use. Shared by all engines that use the same; what they read of it never changes."""

    def __init__(self, tables: tuple[Table, ...]) -> None:
        self._tables = tables
        self.roles: dict[str, Role] = {}
        self.claims: dict[str, list[Table]] = {}  # which tables may mean it by an opener, in their order
        self.bodies: dict[str, Table] = {}  # whose arguments begin after a literal that stands alone
        for table in tables:
            self._learn(table)
        self.prose = Markers(self.roles)
        self.specials = Markers(literal for literal in self.roles if not self.is_tag(literal))
        first = "".join(map(re.escape, sorted({literal[0] for literal in self.roles})))
        self.first = re.compile(f"[{first}]").search
        self.first_or_end = re.compile(f"[{first}{re.escape(ENDS)}\n]").search
        self._marks: dict[str, _Marks] = {}

    def is_tag(self, literal: str) -> bool:
        return literal in self.claims and not self.claims[literal][0].special

    def _learn(self, table: Table) -> None:
        for literal in (*table.section_begin, *table.call_begin):
            self.claims.setdefault(literal, []).append(table)
            self.roles[literal] = Role.SECTION if table.special and literal in table.section_begin else Role.CALL
        if table.special:
            self.roles.update(dict.fromkeys((*table.call_end, *table.stray), Role.STRAY))
            self.roles.update(dict.fromkeys(table.section_end, Role.SECTION_END))
            if table.header is None:
                self.roles.update(dict.fromkeys(table.header_end, Role.HEADER_END))
                self.bodies.update(dict.fromkeys(table.header_end, table))

    def marks(self, table: Table) -> _Marks:
        """A table's literals. Made when the first call of its kind is seen: most answers hold none at all."""
        found = self._marks.get(table.name)
        if found is None:
            found = self._marks[table.name] = self._made_marks(table)
        return found

    def _made_marks(self, table: Table) -> _Marks:
        kin = [each for each in self._tables if each.family == table.family and each.special and table.special]
        section = {literal for each in kin for literal in (*each.ends(), *(() if each.header else each.header_end))}
        leftovers = frozenset((*table.trailing, *table.section_end, *table.call_end))
        return _Marks(
            Markers({*table.header_end, *table.header_stop, *section}),
            Markers((*table.section_begin, *table.call_begin)),
            Markers(section),
            Markers({*self.roles, *leftovers}),
            leftovers,
            leftovers if table.special else frozenset(table.trailing),
        )

    def open(self, text: str, opener: str, table: Table) -> Opening | Cut | Verdict:
        """Read the header that follows the opener at the text's beginning, as this table writes it."""
        at = len(opener)
        if not table.special:
            found = self._tag(text, opener, table)
            if isinstance(found, Verdict):
                return found
            at = found
        end, mark = self.marks(table).header.find(text, at, False)
        written = text[at:end]
        if not table.special and (table.header is None or not table.header.fullmatch(written)):
            return Verdict.NO
        if table.body == "json" and _WORDS.search(written):
            return Verdict.NO
        if not mark:
            return Verdict.MORE
        if mark in table.header_end or mark in table.header_stop:
            return Opening(table, _name(written, table), end + (len(mark) if mark in table.header_end else 0))
        if mark in table.call_end:
            return Opening(table, _name(written, table), end + len(mark), bodiless=True)
        return Cut(end)

    def _tag(self, text: str, opener: str, table: Table) -> int | Verdict:
        """Go past what may stand between a tag and its header: the same tag again, or a section's call tag."""
        marks = self.marks(table).tag
        at = len(opener)
        while True:
            here = skip_blank(text, at)
            literal = marks.match(text, here, False)
            if literal == "":
                return Verdict.MORE
            if literal is None:
                return at if opener in table.call_begin else Verdict.NO
            at, opener = here + len(literal), literal


def _name(written: str, table: Table) -> str:
    if table.header is None:
        return written
    found = table.header.search(written)
    if found is None:
        return ""
    index = found.groupdict().get("index")
    return f"{found['name']}:{index}" if index else found["name"]


@cache
def grammar_of(choice: str) -> Grammar:
    """The grammar of a setting. Raises LocalMisuse for a name that is none."""
    return Grammar(tables_of(choice))
