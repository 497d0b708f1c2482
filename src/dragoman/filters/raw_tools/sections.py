"""The engine's states for sections, calls and quotations: from the opening marker to the end. See engine.py."""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.filters.raw_tools.bodies import make_reader
from dragoman.filters.raw_tools.engine_base import AFTER, BODY, HEADER, PROSE, SECTION, STRAY, EngineBase
from dragoman.filters.raw_tools.grammar import HeaderMatch, HeaderStatus, InterruptedHeader, MarkerRole
from dragoman.filters.raw_tools.names import CallHeader
from dragoman.filters.raw_tools.outputs import PendingCall, PendingText, stray_note
from dragoman.filters.raw_tools.readers import BUFFER_LIMIT, LIMIT, CallPiece, EndOfCall, NamedCall, skip_white_space
from dragoman.filters.raw_tools.table import Table
from dragoman.filters.raw_tools.values import ParameterSchema

_WINDOW = LIMIT + 64  # a header and the longest marker after it
_LONG_SECTION = f"a section has more than {LIMIT} characters and no call"


class SectionStates(EngineBase):
    """SECTION, HEADER and BODY."""

    def _section(self, text: str, at: int, final: bool) -> int:
        table = self._table
        assert table is not None
        start, literal = self._grammar.table_markers(table).section.find(text, at, False)
        noise = text[at:start].strip()
        hold = self._hold
        if hold is not None and hold.quotation is not None and noise:
            self._leave()
            return at
        if start - at > LIMIT:
            return self._over_limit(text, at, at + LIMIT, _LONG_SECTION)
        if not literal:
            if not final:
                return at
            self._in_section = False
            if hold is not None and hold.calls:
                self._leave()
                return at
            if hold is not None:
                self._release_as_text(len(text), at_end=True)
            elif noise:
                self._state = PROSE
                self._emit_text(text[at:start])
            else:
                self._state = AFTER
            return len(text)
        return self._section_marker(text, at, start, literal)

    def _section_marker(self, text: str, at: int, start: int, literal: str) -> int:
        noise, end = text[at:start], start + len(literal)
        body = self._grammar.tables_by_header_end.get(literal)
        hold = self._hold
        if body is not None and self._tools.declares(noise):
            if hold is None:
                self._start_hold(at)
            self._begin_body(body, end)
            self._begin_call(body, self._tools.parse_header(noise), in_section=True)
            return end
        if noise.strip():
            if hold is not None:
                hold.noise = True
                if hold.size(start) > LIMIT:
                    return self._over_limit(text, at, start, _LONG_SECTION)
            else:
                self._note("noise", "text between the calls of a section was left out")
        role = self._grammar.roles[literal]
        if role is MarkerRole.CALL:
            if hold is None:
                self._start_hold(start)
            self._opener, self._state, self._in_section = literal, HEADER, True
            return start
        if role is MarkerRole.SECTION_END:
            self._in_section = False
            if hold is None or hold.calls:
                self._leave()
            elif hold.noise:
                self._release_as_text(end)
            else:
                self._state = STRAY
            return end
        if (
            role is MarkerRole.SECTION and hold is not None and hold.noise
        ):  # text mentions a section marker, then a section begins
            self._in_section = False
            self._release_as_text(start)
            return start
        if role is MarkerRole.SECTION:
            self._in_section = True
        elif hold is None:
            self._out.append(stray_note(literal))
        else:
            hold.strays.append(literal)
        return end

    def _header(self, text: str, at: int, final: bool) -> int:
        view = text[at : at + _WINDOW]
        match: HeaderMatch | InterruptedHeader | HeaderStatus = HeaderStatus.NO_HEADER
        for table in self._tables_of_opener():
            match = self._grammar.parse_header(view, self._opener, table)
            if isinstance(match, HeaderMatch) and not match.is_plausible(self._auto, self._tools):
                match = HeaderStatus.NO_HEADER
            if match is not HeaderStatus.NO_HEADER:
                break
        if match is HeaderStatus.INCOMPLETE and not final and len(view) < _WINDOW:
            return at
        if isinstance(match, HeaderMatch):
            return self._open(match, text, at)
        if isinstance(match, InterruptedHeader):
            return self._cut_header(at + match.size)
        if match is HeaderStatus.INCOMPLETE and self._opener and not self._grammar.is_tag(self._opener):
            if len(view) < _WINDOW:  # and it is final
                return self._unfinished_header(len(text))
            end = at + len(self._opener) + LIMIT
            return self._over_limit(text, at, end, f"the header of a call has more than {LIMIT} characters")
        self._in_section = False
        end = at + len(self._opener)
        self._release_as_text(end)
        return end

    def _tables_of_opener(self) -> Iterable[Table]:
        """Return the tables that the opener may belong to, that of the current section first."""
        tables = self._grammar.tables_by_opener[self._opener] if self._opener else self._grammar.start_tables
        section = self._tag_section
        if section is None or section not in tables:
            return tables
        return (section, *(table for table in tables if table is not section))

    def _cut_header(self, end: int) -> int:
        """Handle a marker in the middle of a header. A call may follow it."""
        if self._hold is not None:
            self._hold.noise = True
        self._state = SECTION if self._in_section else STRAY
        return end

    def _unfinished_header(self, end: int) -> int:
        """Handle the end of the reply in the middle of a header."""
        self._in_section = False
        if self._auto:
            self._release_as_text(end, at_end=True)
        else:
            self._drop_hold()
            self._note("unfinished", "a call was cut off in its header and left out")
            self._leave()
        return end

    def _open(self, match: HeaderMatch, text: str, at: int) -> int:
        table, end = match.table, at + match.size
        if table.numbered:
            header = self._tools.parse_header(match.written)
        else:
            header = CallHeader(self._tools.canonical_name(match.written) if match.written else "", id=match.id)
        if match.has_no_body and not header.name:
            return self._cut_header(end)
        if match.in_section:
            self._tag_section = table
        in_section = self._in_section or match.in_section or self._tag_section is table
        self._begin_body(table, end)
        if match.empty and self._auto and self._hold is not None:
            self._hold.strict = True
        if table.names_tool:
            self._begin_call(table, header, in_section=in_section)
        elif self._auto and table.at_start and self._hold is not None:
            self._hold.strict = True
        if match.has_no_body and self._call is not None:
            self._call.write("{}", self._out)
            self._end_call(True, True)
            self._end_body(end)
        return end

    def _begin_body(self, table: Table, at: int) -> None:
        self._table, self._state = table, BODY
        if self._hold is not None:
            self._hold.begin_body(at)
        self._reader = make_reader(table, self._find_parameter, self._accepts)

    def _accepts(self, name: str) -> bool:
        """Return whether a name in a body may be the name of a tool."""
        table = self._table
        doubtful = table is not None and not table.special and (self._auto or (table.unmarked and self._tools.names))
        return bool(name) and (not doubtful or self._tools.resolve(name) is not None)

    def _find_parameter(self, tool: str, key: str) -> ParameterSchema:
        name = tool or (self._call.name if self._call is not None else "")
        return self._tools.find_parameter(self._tools.resolve(name) or name, key)

    def _begin_call(self, table: Table, header: CallHeader, *, in_section: bool) -> None:
        hold = self._hold
        if hold is not None and self._auto and table.section_begin and not in_section:
            hold.strict = True
        self._call = PendingCall(table, header, self._output_channel, self._tools, muted=self._muted)
        if hold is not None and (hold.strict or hold.quotation is not None):
            if hold.saved_state is None:
                hold.saved_state = self._ids, self._calls, self.completed_calls
                self._ids = self._ids.copy()
            return
        if table.body == "json":  # the start of other bodies may still show that this is not a call
            self._stream(self._call)

    def _stream(self, call: PendingCall) -> None:
        """Send the call while it arrives, unless it must wait for its name or its end."""
        hold = self._hold
        if not call.name or self._buffered or (hold is not None and (hold.strict or hold.quotation is not None)):
            return
        self._commit()
        if self._muted:
            call.is_dropped = True
        else:
            call.start(self._ids, self._out)

    def _body(self, text: str, at: int, final: bool) -> int:
        moved = self._read(text, at)
        if moved == at and final and self._state == BODY:
            return self._cut_body(text, at)
        return moved

    def _read(self, text: str, at: int) -> int:
        reader, hold = self._reader, self._hold
        assert reader is not None
        room = BUFFER_LIMIT - hold.body_size(at) if hold is not None else len(text)
        exceeds = hold is not None and len(text) - at > room
        pieces: list[CallPiece] = []
        moved = reader.read(text[: at + room] if exceeds else text, at, pieces)
        self._take(pieces, at)
        if reader.failed:
            self._release_as_text(moved)
        elif reader.is_over:
            self._end_body(moved)
        elif moved == at and exceeds and self._hold is hold:
            self._over_limit(text, at, at, f"more than {BUFFER_LIMIT} characters of a call had to be buffered")
        return moved

    def _take(self, pieces: list[CallPiece], at: int) -> None:
        """Process the pieces that a reader has read."""
        for piece in pieces:
            call = self._call
            if type(piece) is str:
                if call is None:
                    continue
                if not call.is_streaming:
                    self._stream(call)
                call.write(piece, self._out)
            elif isinstance(piece, NamedCall):
                self._named(piece, at)
            elif isinstance(piece, EndOfCall):
                self._end_call(True, piece.valid)

    def _named(self, named: NamedCall, at: int) -> None:
        table = self._table
        assert table is not None
        if self._hold is None and self._buffered:
            self._start_hold(at)
        self._begin_call(table, CallHeader(self._tools.canonical_name(named.name), id=named.id), in_section=True)

    def _end_call(self, closed: bool, valid: bool) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        hold = self._hold
        if hold is not None:
            hold.calls += 1
            hold.fits = hold.fits and closed and valid and self._fits(call)
        if not call.is_streaming and not self._muted:
            if not call.name and not call.infer(self._out):
                self._nameless(hold)
                return
            if not closed and hold is not None and (not call.arguments or hold.quotation is not None):
                hold.fits, hold.strict = False, True
                return
            if not closed and not (hold is not None and hold.strict):
                self._note("unfinished", f"a call of {call.name} was cut off and left out")
                return
            call.start(self._ids, self._out)
        self._calls += 1
        if self._tools.names and self._tools.resolve(call.name) is None:
            self._note("undeclared", f"the reply calls {call.name}, which the request does not declare")
        self.completed_calls += call.end(closed, valid, self._out)

    def _nameless(self, hold: PendingText | None) -> None:
        if self._auto and hold is not None:  # the call becomes text
            hold.fits, hold.strict = False, True
        else:
            self._note("nameless", "a call without a name fits no declared tool and was left out")

    def _fits(self, call: PendingCall) -> bool:
        if call.is_streaming:
            return True
        name = call.name or self._tools.infer(call.arguments) or ""
        known = self._tools.resolve(name)
        return (known is not None or not self._tools.names) and self._tools.fits(known or name, call.arguments or "{}")

    def _end_body(self, end: int, *, at_end: bool = False) -> None:
        """Handle the end of the call, or of all calls of the body."""
        reader, self._reader = self._reader, None
        if self._call is not None and reader is not None:
            self._end_call(reader.closed, reader.valid)
        if reader is not None and reader.junk:
            self._note("noise", "text between the parameters of a call was left out")
        hold = self._hold
        if hold is not None and hold.quotation is None:
            if hold.strict and not hold.is_certain:
                self._in_section = False
                self._release_as_text(end, at_end=at_end)
                return
            self._commit()
        if self._in_section:
            self._state = SECTION
        else:
            self._leave()

    def _cut_body(self, text: str, at: int) -> int:
        """Handle the end of the reply within a body."""
        reader = self._reader
        assert reader is not None
        pieces: list[CallPiece] = []
        end = reader.finish(text, at, pieces)
        self._take(pieces, at)
        hold = self._hold
        no_call = hold is not None and self._call is None and not hold.calls
        if reader.failed or no_call:
            self._release_as_text(end, at_end=True)
        else:
            self._end_body(end, at_end=True)
        return end


# --- Quotations: whether a call in a code block, in quotation marks or in a block quotation counts


_LONGEST_LINE = 256  # characters of a line to buffer
_LONGEST_QUOTE = 4096  # characters within which a quotation in a line must end


class QuotationStates(SectionStates):
    """QUOTE and QUOTED."""

    def _quote(self, text: str, at: int, final: bool) -> int:
        """Look for the end of the code block or quotation around a marker, before anything is parsed."""
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
        buffered = hold.text(text, end)
        size = hold.quotation.closing(buffered, self._grammar.markers_in(buffered))
        begin = self._read_again(text, end)
        if size < 0:
            self._context.forget_quotation()
            return begin
        self._emit_text(buffered[:size])
        return begin + size

    def _fence(self, text: str, at: int, final: bool) -> int:
        hold = self._hold
        assert hold is not None and hold.quotation is not None
        last = at + BUFFER_LIMIT - hold.size(at)
        line_end = text.find("\n", at, last)
        end = min(len(text), last) if line_end < 0 else line_end
        hold.line = _end_of_line(hold.line + text[at:end], hold.quotation.mark)
        if (line_end >= 0 or final) and hold.quotation.is_closing_line(hold.line):
            self._release_as_text(end)
        elif line_end >= 0:
            hold.line = ""
            return end + 1
        elif end == last:
            self._release_as_text(end)
        elif final:
            end = self._read_again(text, end)
            self._context.forget_quotation()
            self._strict = True
        return end

    def _quoted(self, text: str, at: int, final: bool) -> int:
        """Read after calls in a block quotation: further calls may follow; if other text follows, all are text."""
        hold, table = self._hold, self._table
        assert hold is not None and table is not None
        marks = self._grammar.table_markers(table)
        here = skip_white_space(text, at)
        if here == len(text):
            if final:
                return self._end_quotation(here)
            return here if here - at > LIMIT else at
        literal = marks.after.match(text, here, final)
        if literal == "":
            return at
        if literal and self._may_open(literal):
            self._enter(literal)
            return here
        if literal and literal in marks.leftovers:
            return here + len(literal)
        self._release_as_text(here)
        return here

    def _may_open(self, literal: str) -> bool:
        """Return whether a marker after quoted calls opens another call: a special one, or a tag after tags."""
        if self._grammar.roles.get(literal) not in (MarkerRole.CALL, MarkerRole.SECTION):
            return False
        return self._table is not None and self._grammar.is_tag(literal) is not self._table.special

    def _end_quotation(self, end: int) -> int:
        """Handle the end of the reply after calls in a block quotation: they count if they are beyond doubt."""
        hold = self._hold
        assert hold is not None
        if not hold.is_certain:
            self._release_as_text(end, at_end=True)
            return end
        hold.quotation = None
        self._commit()
        self._leave()
        return end


def _end_of_line(line: str, mark: str) -> str:
    """Return as much of a long line as shows whether it closes a code block."""
    if len(line) <= _LONGEST_LINE:
        return line
    return mark if mark[0] == "<" and mark in line else "…" + line[-len(mark) :]
