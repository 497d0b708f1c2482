"""The grammar of a set of tables: which markers the engine searches in which state. Computed once and shared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cache

from msgspec import Struct

from dragoman.filters.raw_tools.choices import tables_of
from dragoman.filters.raw_tools.names import DeclaredTools
from dragoman.filters.raw_tools.outputs import Channel
from dragoman.filters.raw_tools.prose import CLAUSE_ENDS
from dragoman.filters.raw_tools.readers import skip_white_space
from dragoman.filters.raw_tools.table import Table
from dragoman.model.filter import Search
from dragoman.wire.markers import Markers

THINK_TAGS = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("◁think▷", "◁/think▷"))
_MAX_TAGS = 6  # tags before a header; more are not a call, and reading them repeatedly would be slow
_WORDS = re.compile(r"[^\s:]\s+[^\s:]")  # a Kimi header is one word; white space around its colon does not count


class MarkerRole(Enum):
    """The meaning of a marker in ordinary text and in sections."""

    SECTION = "section"  # of a special table
    CALL = "call"  # a call begins, or a section of tags
    HEADER_END = "header end"  # the arguments of a Kimi call begin
    SECTION_END = "section end"
    STRAY = "stray"
    WRAPPER = "wrapper"  # text or reasoning follows
    THINKING = "thinking"  # reasoning begins, if this is the start of a text
    THINKING_END = "thinking end"


class HeaderMatch(Struct, frozen=True):
    """A header that was read."""

    table: Table
    written: str  # the name, and the count if there is one
    size: int  # number of characters of the header
    id: str = ""
    in_section: bool = False  # the marker of its section precedes it
    has_no_body: bool = False  # the call ends where its arguments should begin
    empty: bool = False  # a tag with only a name

    def is_plausible(self, auto: bool, tools: DeclaredTools) -> bool:
        """Return whether a tag's call names a tool, in `auto` a declared one. Some bodies name their tools later."""
        if self.table.special or not self.table.names_tool:
            return True
        return bool(self.written) and not (auto and tools.resolve(self.written) is None)


class InterruptedHeader(Struct, frozen=True):
    """A header that another marker, at position `size`, interrupts."""

    size: int


class HeaderStatus(Enum):
    """Why `Grammar.parse_header` returns no header."""

    INCOMPLETE = "more text is needed"
    NO_HEADER = "the text is not a call"


class _TableMarkers(Struct, frozen=True):
    """One table's markers by state."""

    header: Markers
    tag: Markers  # allowed between a tag and its header
    section: Markers
    after: Markers
    leftovers: frozenset[str]  # markers that belong to a call directly before them
    noted: frozenset[str]  # the leftovers that get a note


class Grammar:
    """The markers of the tables in use. Immutable, and shared by all engines with the same tables."""

    def __init__(self, tables: tuple[Table, ...], *, think_tags: bool = False) -> None:
        self._tables = tables
        self.roles: dict[str, MarkerRole] = {}
        self.tables_by_opener: dict[str, list[Table]] = {}  # the tables that an opener may belong to, in order
        self.sections: set[str] = set()
        self.tables_by_header_end: dict[
            str, Table
        ] = {}  # tables whose arguments begin after a marker, without an opener
        self.wrappers: dict[str, Channel] = {}
        self.reasoning_tags: dict[str, str] = {}  # opening marker -> closing marker
        self.start_tables: tuple[Table, ...] = tuple(table for table in tables if table.at_start)
        for table in tables:
            self._add_table(table)
        pairs = [pair for table in tables for pair in table.reasoning] + [*(THINK_TAGS if think_tags else ())]
        self.wrapping = frozenset(pair[0] for table in tables if table.wrappers for pair in table.reasoning)
        for opening, closing in pairs:
            self.reasoning_tags[opening] = closing
            self.roles.setdefault(opening, MarkerRole.THINKING)
            self.roles.setdefault(closing, MarkerRole.THINKING_END)
        if tables:
            self.roles.setdefault("</think>", MarkerRole.THINKING_END)  # may precede a call
            self.roles.setdefault("<think>", MarkerRole.THINKING)  # text, unless think tags are enabled
        starts = (mark for table in self.start_tables for mark in (*table.header_stop, *table.header_end))
        self.start_chars = "".join({mark[0] for mark in starts})
        self.text_markers = Markers(self.roles)
        self.special_markers = Markers(literal for literal in self.roles if not self.is_tag(literal))
        special = _any_of(filter(self.is_special, self.roles), self._rest_of_header) or "(?!)"
        self.special_pattern = re.compile(special)
        closers = (literal for literal, role in self.roles.items() if role is MarkerRole.THINKING_END)
        self.residue_pattern = re.compile("|".join((special, *map(re.escape, closers))))
        search_pattern = _search_pattern(self.roles)
        self.search_marker: Search = re.compile(search_pattern).search
        self.search_marker_or_end: Search = re.compile(f"{search_pattern}|[{re.escape(CLAUSE_ENDS)}\n]").search
        self._markers_by_table: dict[str, _TableMarkers] = {}

    def markers_in(self, text: str) -> Iterator[tuple[int, bool]]:
        """Yield the position of each special marker, and whether it ends something."""
        start, literal = self.special_markers.find(text, 0, True)
        while literal:
            yield start, self.roles[literal] in (MarkerRole.STRAY, MarkerRole.SECTION_END, MarkerRole.HEADER_END)
            start, literal = self.special_markers.find(text, start + len(literal), True)

    def is_tag(self, literal: str) -> bool:
        """Return whether a marker opens a call and is a tag, which ordinary text may contain."""
        return literal in self.tables_by_opener and not self.tables_by_opener[literal][0].special

    def is_special(self, literal: str) -> bool:
        """Return whether a marker is a token that ordinary text does not contain."""
        if self.roles[literal] in (MarkerRole.THINKING, MarkerRole.THINKING_END):
            return False
        return not self.is_tag(literal)

    def _rest_of_header(self, literal: str) -> str:
        """Return a pattern for the text that completes an opening tag in markup: ` name="…">` after `<invoke`."""
        ends = [
            end
            for table in self.tables_by_opener.get(literal, ())
            if table.markup is not None
            for end in table.header_end
        ]
        return f"(?:[^<>\n]{{0,200}}(?:{_any_of(ends)}))?" if ends and literal not in self.sections else ""

    def _add_table(self, table: Table) -> None:
        self.sections.update(table.section_begin)
        for literal in (*table.section_begin, *table.call_begin):
            self.tables_by_opener.setdefault(literal, []).append(table)
            self.roles[literal] = (
                MarkerRole.SECTION if table.special and literal in table.section_begin else MarkerRole.CALL
            )
        self.roles.update(dict.fromkeys((literal for literal, _ in table.wrappers), MarkerRole.WRAPPER))
        self.wrappers.update({literal: Channel(name) for literal, name in table.wrappers})
        if table.special:
            for literal in (*table.call_end, *table.stray):
                self.roles.setdefault(literal, MarkerRole.STRAY)
            for literal in table.section_end:
                self.roles.setdefault(literal, MarkerRole.SECTION_END)
            values = table.markup.value_ends if table.markup is not None else ()
            for literal in (*table.header_end, *values):
                if literal[0] == "<" and len(literal) > 1:  # hosted services leave these behind too
                    self.roles.setdefault(literal, MarkerRole.STRAY)
            if table.header is None:
                self.roles.update(dict.fromkeys(table.header_end, MarkerRole.HEADER_END))
                self.tables_by_header_end.update(dict.fromkeys(table.header_end, table))

    def table_markers(self, table: Table) -> _TableMarkers:
        """Return a table's markers; built when a reply first has a raw call of its format, because most have none."""
        markers = self._markers_by_table.get(table.name)
        if markers is None:
            markers = self._markers_by_table[table.name] = self._make_markers(table)
        return markers

    def _make_markers(self, table: Table) -> _TableMarkers:
        related = [each for each in self._tables if each.family == table.family and each.special and table.special]
        section = {literal for each in related for literal in (*each.ends(), *(() if each.header else each.header_end))}
        leftovers = frozenset((*table.trailing, *table.section_end, *table.call_end, *table.stray))
        return _TableMarkers(
            Markers({*table.header_end, *table.header_stop, *section}),
            Markers((*table.section_begin, *table.call_begin)),
            Markers(section),
            Markers({*self.roles, *leftovers}),
            leftovers,
            leftovers if table.special else frozenset(table.trailing),
        )

    def parse_header(self, text: str, opener: str, table: Table) -> HeaderMatch | InterruptedHeader | HeaderStatus:
        """Read the header after the opener at the start of the text, as this table writes it."""
        at = len(opener)
        in_section = False
        if not table.special and opener:
            tags_end = self._skip_tags(text, opener, table)
            if isinstance(tags_end, HeaderStatus):
                return tags_end
            at, in_section = tags_end
        at = 0 if table.opener_is_body else at
        end, mark = self.table_markers(table).header.find(text, at, False)
        written = text[at:end]
        if _WORDS.search(written) if table.header is None else not table.header.fullmatch(written):
            return HeaderStatus.NO_HEADER
        if not mark:
            return HeaderStatus.INCOMPLETE
        if mark not in (*table.header_end, *table.header_stop, *table.call_end):
            return InterruptedHeader(end)
        name, id_ = _name_and_id(written, table)
        if name is None:
            return HeaderStatus.NO_HEADER
        size = end + (len(mark) if mark not in table.header_stop else 0)
        has_no_body = mark in table.call_end and mark not in table.header_stop
        empty = not table.special and mark in table.header_stop and mark in table.call_end
        return HeaderMatch(table, name, size, id_, in_section, has_no_body, empty)

    def _skip_tags(self, text: str, opener: str, table: Table) -> tuple[int, bool] | HeaderStatus:
        """Skip the tags between a tag and its header: the same tag again, or a section's call tag."""
        marks = self.table_markers(table).tag
        at = len(opener)
        in_section = opener in table.section_begin
        for _ in range(_MAX_TAGS):
            here = skip_white_space(text, at)
            literal = marks.match(text, here, False)
            if literal == "":
                return HeaderStatus.INCOMPLETE
            if literal is None:
                return (at, in_section) if opener in table.call_begin else HeaderStatus.NO_HEADER
            at, opener = here + len(literal), literal
            in_section = in_section or literal in table.section_begin
        return HeaderStatus.NO_HEADER


def _name_and_id(written: str, table: Table) -> tuple[str | None, str]:
    """Return the name and the id of a header; None if it is not a header of this table."""
    if table.header is None:
        return written, ""
    found = table.header.fullmatch(written)
    if found is None:
        return None, ""
    groups = found.groupdict()
    name, index = groups.get("name"), groups.get("index")
    if name is None:
        return None, ""
    if table.markup is not None:
        name = table.markup.attribute(name)
    return f"{name}:{index}" if index else name, groups.get("id") or ""


def _any_of(literals: Iterable[str], rest: Callable[[str], str] = lambda _: "") -> str:
    ordered = sorted(literals, key=lambda literal: (-len(literal), literal))
    return "|".join(re.escape(literal) + rest(literal) for literal in ordered)


def _search_pattern(literals: Iterable[str]) -> str:
    """Return a pattern that finds every position where a marker may begin, and few others.

    It compares the first two characters; for a marker that begins with a letter all of them, since letters are
    frequent. At the end of the text the start of a marker is enough.
    """
    seconds: dict[str, set[str]] = {}
    words: list[str] = []
    for literal in literals:
        if literal[0].isalnum():
            words.append(literal)
        else:
            seconds.setdefault(literal[0], set()).add(literal[1:2])
    parts = []
    for first, after in sorted(seconds.items()):
        some = "" if "" in after else f"(?:[{''.join(map(re.escape, sorted(after)))}]|\\Z)"
        parts.append(re.escape(first) + some)
    for word in sorted(words):
        tails = "|".join(re.escape(word[:size]) for size in range(len(word) - 1, 0, -1))
        parts += [re.escape(word), f"(?:{tails})\\Z"]
    return "|".join(parts) or "(?!)"


@cache
def grammar_of(choice: str, think_tags: bool = False) -> Grammar:
    """Return the grammar of a setting. Raises LocalMisuse for an unknown name."""
    return Grammar(tables_of(choice), think_tags=think_tags)
