"""The engine reads the text of one choice, cut anywhere, and returns text, reasoning, calls and notes. Pure.

Theory of operation. The engine is in one state and reads the text from a position on; each state returns how far it
could read. The engine sees the unread rest again with the next text, so it never decides on half a marker.

    PROSE    text is sent. A marker leads to SECTION or HEADER, or to STRAY.
    STRAY    after a marker that begins nothing: the text after it shows whether the marker is text.
    SECTION  between the begin of a section and a call.
    HEADER   from the opener of a call to its arguments.
    BODY     arguments, read by the table's reader until the call ends.
    AFTER    directly after a call or section: white space is buffered, and sent only if text follows.
    QUOTE    in a code block or quotation: the text after it shows whether that is closed.
    QUOTED   after calls in a block quotation or the like: they are text if other text follows.
    SPACE    after a marker that is followed by meaningless white space.

`PendingText` buffers everything from a marker on that may turn out to be text. The engine commits it once it is
certainly a call, and sends it unchanged once it is certainly not. Sent output is never taken back, and every decision
depends on the text alone, not on how it was cut.
"""

from __future__ import annotations

from collections.abc import Callable

from dragoman.filters.raw_tools.engine_base import AFTER, BODY, HEADER, PROSE, QUOTE, QUOTED, SECTION, SPACE, STRAY
from dragoman.filters.raw_tools.grammar import MarkerRole
from dragoman.filters.raw_tools.outputs import Channel, EngineOutput, TextOutput, stray_note
from dragoman.filters.raw_tools.prose import MAX_PIECES, Quotation
from dragoman.filters.raw_tools.readers import LIMIT, skip_white_space
from dragoman.filters.raw_tools.sections import QuotationStates
from dragoman.filters.raw_tools.table import Table
from dragoman.model.filter import Search

_LONG_TEXT = 4096  # a longer text is parsed at once, not buffered
_MIN_RESIDUE = 4  # shortest start of a marker that counts as one next to a native call


class Engine(QuotationStates):
    """The interface, the loop, and the states PROSE, STRAY, AFTER and SPACE."""

    def try_pass(self, text: str, channel: Channel) -> bool:
        """Return whether this text passes unchanged; if so, record it. True for nearly all text."""
        search = self.marker_search(channel)
        if search is None or search(text) is not None:
            return False
        self.record_text(text)
        return True

    def marker_search(self, channel: Channel) -> Search | None:
        """Return a search that matches texts which may not pass unchanged; None if no text may.

        Pass each text without a match to `record_text`; the returned search stays valid. If a header without its marker
        may follow, the search also matches the end of a clause.
        """
        if self._state or self._unread or channel is not self._input_channel:
            return None
        if channel is Channel.TEXT and (self._at_start or self._override is not None):
            return None
        if self._calls and not self._trailing_text:
            return None
        if self._headless is not None and (self._context.begins or self._context.line_ends):
            return None
        return self._search

    def record_text(self, text: str) -> None:
        """Record a text that passed unchanged."""
        context = self._context
        context.pieces.append(text)
        if len(context.pieces) > MAX_PIECES or len(text) > _LONG_TEXT:
            context.parse_pieces()

    def feed(self, text: str, channel: Channel = Channel.TEXT) -> list[EngineOutput]:
        """Read more text of a channel; return the outputs."""
        if channel is not self._input_channel:
            self._flush()
            self._input_channel = channel
            self._context = self._contexts[channel]
        if self._unread:
            text = self._unread + text
        elif self._state == BODY and self._hold is None and not self._buffered:
            at = self._read(text, 0)
            if self._state == BODY:
                self._unread = text[at:]
                return self._take_output()
            text = text[at:]
        elif not self._state and text and self.try_pass(text, channel):
            self._out.append(TextOutput(text, channel))
            return self._take_output()
        if text:
            self._run(text, False)
        return self._take_output()

    def end_block(self) -> list[EngineOutput]:
        """End the current block of text; the reply may go on. Half a marker becomes text."""
        self._flush()
        return self._take_output()

    @property
    def has_pending_text(self) -> bool:
        """Whether text is held back that would be removed if the API reported a tool call now."""
        return bool(self._unread) or self._state == STRAY

    @property
    def is_holding(self) -> bool:
        """Whether the engine buffers all text since a marker."""
        return self._hold is not None

    @property
    def is_reading_arguments(self) -> bool:
        """Whether the engine reads arguments. It buffers, within limits, values that must be sent whole."""
        return self._state == BODY

    def close(self) -> list[EngineOutput]:
        """End the reply; return the last outputs."""
        self._run(self._unread, True)
        return self._take_output()

    def add_native_call(self, id_: str) -> list[EngineOutput]:
        """Record a native call of the reply: in `auto`, tags are text from here on, and lone markers are removed.

        See docs/decisions/raw_tools.md#d20.
        """
        self._ids.add_used(id_)
        if self._auto:
            self._native = True
            self._markers = self._grammar.special_markers
            if self._hold is not None and not self._hold.calls and self._state in (STRAY, SECTION, HEADER, BODY):
                self._reader, self._in_section, self._text = None, False, self._unread
                self._release_as_text(len(self._unread), at_end=True)
                self._text = self._unread = ""
            elif (
                self._state == PROSE
                and len(self._unread) >= _MIN_RESIDUE
                and self._grammar.special_markers.begins(self._unread)
            ):
                self._note("residue", f"{self._unread} next to a native call was removed")
                self._unread = ""
        return self._take_output()

    def _take_output(self) -> list[EngineOutput]:
        if self._hold is not None:
            out, self._hold.outer = self._hold.outer, []
        else:
            out, self._out = self._out, []
        return out

    def _run(self, text: str, final: bool) -> None:
        self._text = text
        at = 0
        while True:
            state, hold = self._state, self._hold
            moved = _STATES[state](self, text, at, final)
            if self._text is not text:  # earlier text is read again
                text, at = self._text, moved
                continue
            stays = self._state == state and self._hold is hold
            if stays and (moved == at or (moved == len(text) and not final)):
                at = moved
                break
            at = moved
        self._unread, self._text = text[at:], ""
        buffered_size = len(self._unread)
        if self._hold is not None:
            buffered_size += self._hold.keep(text, at)
        self.peak = max(self.peak, buffered_size)

    def _flush(self) -> None:
        """Decide on buffered text outside calls and sections; those may continue in another channel."""
        tag = self._state == HEADER and self._grammar.is_tag(self._opener)
        residue = self._native and self._hold is not None  # half a call is left over from the native one
        if tag or residue or self._state in (PROSE, STRAY, AFTER, QUOTE, QUOTED, SPACE):
            self._run(self._unread, True)
        self._strict = False
        if self._input_channel is Channel.TEXT:
            self._thinking_end, self._override = "", None
            self._at_start = self._checks_start

    def _prose(self, text: str, at: int, final: bool) -> int:
        if self._at_start and self._input_channel is Channel.TEXT:
            moved = self._start_of_text(text, at, final)
            if moved is not None:
                return moved
        if self._skip_line_end and at < len(text):
            self._skip_line_end = False
            at += text[at] == "\n"
        start, literal = self._markers.find(text, at, final)
        begin = start  # where a header without its marker may begin
        if self._headless is not None and (literal or not final):
            begin = self._headless.start(text, at, start, self._context)
        if not literal:
            self._emit_last_text(text, at) if final and self._native else self._emit_text(text[at:begin])
            return begin
        if literal in self._grammar.tables_by_header_end and begin < start:
            table, header = self._grammar.tables_by_header_end[literal], text[begin:start]
            if self._headless is not None and self._headless.is_header(header):
                self._emit_text(text[at:begin])
                if not self._auto or self._context.quotation() is None:
                    self._start_hold(begin)
                    end = start + len(literal)
                    self._begin_body(table, end)
                    self._begin_call(table, self._tools.parse_header(header), in_section=False)
                    return end
                at = begin
        self._emit_text(text[at:start])
        return self._marker(start, literal)

    def _emit_last_text(self, text: str, at: int) -> None:
        """Send the last text of a block next to a native call, without half a marker at its end."""
        start, _ = self._grammar.special_markers.find(text, at, False)
        self._emit_text(text[at:start])
        residue = text[start:]
        if len(residue) < _MIN_RESIDUE or self._context.quotation() is not None:
            self._emit_text(residue)
        else:
            self._out.append(self._removal_note(residue))

    def _start_of_text(self, text: str, at: int, final: bool) -> int | None:
        """Read the start of a text; None if it is ordinary. White space is buffered: reasoning or a call may follow."""
        here = skip_white_space(text, at)
        if here - at > LIMIT:
            self._at_start = False
            return None
        if here == len(text):
            if final:
                self._at_start = False
                return None
            return at
        literal = self._markers.match(text, here, final)
        if literal == "":
            return at
        if literal and (literal in self._grammar.reasoning_tags or literal in self._grammar.wrappers):
            return self._start_marker(here, literal)
        self._at_start = False
        if literal is None and not self._has_text and not self._calls and text[here] in self._grammar.start_chars:
            self._start_hold(at)
            self._opener, self._state = "", HEADER
            return here
        return None

    def _start_marker(self, at: int, literal: str) -> int:
        if literal in self._grammar.wrappers:
            return self._wrapper(at, literal)
        self._at_start = False
        self._thinking_end, self._override = self._grammar.reasoning_tags[literal], Channel.REASONING
        self._saw_wrapper = self._saw_wrapper or literal in self._grammar.wrapping
        self._skip_line_end = True
        self._note("think.tags", f"text after {literal} became reasoning")
        return at + len(literal)

    def _end_thinking(self) -> None:
        """End the reasoning; the text begins after it."""
        self._thinking_end, self._override, self._state = "", None, SPACE
        self._at_start = self._checks_start
        self._context.reset()

    def _wrapper(self, at: int, literal: str) -> int:
        self._note("wrapper", f"{literal} was removed: it only separates text from reasoning")
        self._saw_wrapper, self._state = True, PROSE
        self._override = Channel.REASONING if self._grammar.wrappers[literal] is Channel.REASONING else None
        return at + len(literal)

    def _marker(self, at: int, literal: str) -> int:
        """Handle a marker in prose; return its position if the state changed, else the position after it."""
        role = self._grammar.roles[literal]
        end = at + len(literal)
        if role is MarkerRole.THINKING_END and literal == self._thinking_end:
            self._end_thinking()
            return end
        if role is MarkerRole.THINKING or (role is MarkerRole.THINKING_END and self._think_tag_open):
            self._think_tag_open = role is MarkerRole.THINKING
            self._emit_text(literal)
            if role is MarkerRole.THINKING_END and self._context.quotation() is None:
                self._context.reset()
            return end
        quotation: Quotation | None = None
        if self._auto:
            quotation = None if self._grammar.is_tag(literal) else self._context.quotation()
            if self._grammar.is_tag(literal):
                verdict = self._context.tag_may_begin()
                if verdict is False:
                    self._context.record_quoted_tag()
                    self._emit_text(literal)
                    return end
                quotation = verdict if isinstance(verdict, Quotation) else None
        if role in (MarkerRole.CALL, MarkerRole.SECTION):
            self._start_hold(at, quotation)
            self._enter(literal)
            if quotation is not None and quotation.kind != "block":
                self._state = QUOTE
            return at
        if quotation is not None:
            self._emit_text(literal)
            return end
        return self._lone_marker(at, literal)

    def _lone_marker(self, at: int, literal: str) -> int:
        """Handle a marker that begins nothing, outside quotations."""
        role = self._grammar.roles[literal]
        if role is MarkerRole.WRAPPER and (not self._auto or self._saw_wrapper):
            return self._wrapper(at, literal)
        if role is MarkerRole.THINKING_END or self._auto:
            self._start_hold(at)
            self._state = STRAY
            return at
        self._out.append(self._removal_note(literal))
        return at + len(literal)

    def _stray(self, text: str, at: int, final: bool) -> int:
        here = skip_white_space(text, at)
        literal = self._markers.match(text, here, final) if here < len(text) else None
        if here - at > LIMIT or (literal is None and (here < len(text) or final)):
            self._release_as_text(here, at_end=final and here == len(text))
            return here
        if not literal:
            return at
        hold = self._hold
        assert hold is not None
        match self._grammar.roles[literal]:
            case MarkerRole.CALL | MarkerRole.SECTION:
                self._enter(literal)
                return here
            case MarkerRole.THINKING:
                self._release_as_text(here)
                return here
            case _:
                pass
        hold.strays.append(literal)
        return here + len(literal)

    def _after(self, text: str, at: int, final: bool) -> int:
        here = skip_white_space(text, at)
        if here - at > LIMIT:
            self._state = PROSE
            return at
        if here == len(text):
            return here if final else at
        table = self._table
        assert table is not None
        marks = self._grammar.table_markers(table)
        literal = marks.after.match(text, here, final)
        if literal == "":
            return at
        if literal is not None and literal in marks.leftovers:
            return self._leftover(here, literal, table)
        if literal is None or literal not in self._markers.markers:
            if final and any(each.startswith(text[here:]) for each in marks.leftovers):
                return len(text)  # an end marker that was cut off
            if final and len(text) - here >= _MIN_RESIDUE and self._grammar.special_markers.begins(text[here:]):
                self._out.append(self._removal_note(text[here:]))
                return len(text)
            self._tag_section, self._state = None, PROSE
            return at
        match self._grammar.roles[literal]:
            case MarkerRole.CALL | MarkerRole.SECTION:
                self._start_hold(at)
                self._enter(literal)
                return here
            case MarkerRole.WRAPPER:
                self._state = PROSE
                return self._wrapper(here, literal)
            case MarkerRole.THINKING:
                self._state = PROSE
                return at
            case _:
                pass
        self._out.append(self._removal_note(literal))
        return here + len(literal)

    def _leftover(self, at: int, literal: str, table: Table) -> int:
        if literal == self._thinking_end:
            self._end_thinking()
        elif literal in self._grammar.table_markers(table).noted:
            self._out.append(stray_note(literal))
        if literal in table.section_end:
            self._tag_section = None
        return at + len(literal)

    def _space(self, text: str, at: int, final: bool) -> int:
        here = skip_white_space(text, at)
        if here < len(text):
            self._state = PROSE
        return here


_STATES: tuple[Callable[[Engine, str, int, bool], int], ...] = (
    Engine._prose,
    Engine._stray,
    Engine._section,
    Engine._header,
    Engine._body,
    Engine._after,
    Engine._quote,
    Engine._quoted,
    Engine._space,
)
