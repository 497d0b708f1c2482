"""The states of quotations: whether a call in a code block, in quotation marks or in a block quotation counts."""

from __future__ import annotations

from dragoman.filters.raw_tools.call import HELD_LIMIT
from dragoman.filters.raw_tools.grammar import Role
from dragoman.filters.raw_tools.readers import LIMIT, skip_blank
from dragoman.filters.raw_tools.sections import Sections

_LONGEST_LINE = 256  # characters of a line that are kept
_LONGEST_QUOTE = 4096  # characters in which a quotation within a line has to be closed


class Quotations(Sections):
    """QUOTE and QUOTED."""

    def _quote(self, text: str, at: int, final: bool) -> int:
        """A marker stands in a code block or a quotation. Look for what closes that, before anything is parsed."""
        hold = self._hold
        assert hold is not None and hold.quotation is not None
        if hold.quotation.kind == "fence":
            return self._fence(text, at, final)
        end = min(len(text), at + _LONGEST_QUOTE - hold.size(at))
        scope_end = text.find(hold.quotation.scope_end, at, end)
        if scope_end >= 0:
            end = scope_end
        elif hold.size(end) < _LONGEST_QUOTE and not final:
            return end - text.endswith("\n", at, end)
        held = hold.text(text, end)
        size = hold.quotation.closing(held, self._grammar.markers_in(held))
        begin = self._read_again(text, end)
        if size < 0:
            self._said.forget_quotation()
            return begin
        self._say(held[:size])
        return begin + size

    def _fence(self, text: str, at: int, final: bool) -> int:
        hold = self._hold
        assert hold is not None and hold.quotation is not None
        last = at + HELD_LIMIT - hold.size(at)
        line_end = text.find("\n", at, last)
        end = min(len(text), last) if line_end < 0 else line_end
        hold.line = _end_of_line(hold.line + text[at:end], hold.quotation.mark)
        if (line_end >= 0 or final) and hold.quotation.is_closing_line(hold.line):
            self._give_back(end)
        elif line_end >= 0:
            hold.line = ""
            return end + 1
        elif end == last:
            self._give_back(end)
        elif final:
            end = self._read_again(text, end)
            self._said.forget_quotation()
            self._strict = True
        return end

    def _quoted(self, text: str, at: int, final: bool) -> int:
        """Calls in a block quotation have ended. They are text if other text follows; further calls may follow, too."""
        hold, table = self._hold, self._table
        assert hold is not None and table is not None
        marks = self._grammar.marks(table)
        here = skip_blank(text, at)
        if here == len(text):
            if final:
                return self._unquoted(here)
            return here if here - at > LIMIT else at
        literal = marks.after.match(text, here, final)
        if literal == "":
            return at
        if literal and self._may_open(literal):
            self._enter(literal)
            return here
        if literal and literal in marks.leftovers:
            return here + len(literal)
        self._give_back(here)
        return here

    def _may_open(self, literal: str) -> bool:
        """Whether a marker after quoted calls opens another: a special one, or a tag after tags."""
        if self._grammar.roles.get(literal) not in (Role.CALL, Role.SECTION):
            return False
        return self._table is not None and self._grammar.is_tag(literal) is not self._table.special

    def _unquoted(self, end: int) -> int:
        """Nothing follows the calls of a block quotation: they count if there is no doubt about them."""
        hold = self._hold
        assert hold is not None
        if not hold.counts:
            self._give_back(end, at_end=True)
            return end
        hold.quotation = None
        self._commit()
        self._leave()
        return end


def _end_of_line(line: str, mark: str) -> str:
    """Keep as much of a long line as tells whether it closes a code block."""
    if len(line) <= _LONGEST_LINE:
        return line
    return mark if mark[0] == "<" and mark in line else "…" + line[-len(mark) :]
