"""The engine: the text of one choice in, cut anywhere; text, reasoning, calls and remarks out. Pure.

Theory of operation. The engine is in one state and reads the text from a position on; a state returns how far it could
read. What it leaves is seen again with the next text, so nothing is decided on half a marker.

    PROSE    text goes out. A marker leads to SECTION or HEADER, or to STRAY.
    STRAY    after a marker that begins nothing: only what follows tells whether it is text.
    SECTION  between the begin of a section and a call.
    HEADER   from the opener of a call to its arguments.
    BODY     arguments, read by the table's reader, until it says that the call is over.
    AFTER    directly after a call or section: white space waits, and goes out only if text follows.
    QUOTE    in a code block or quotation: only what follows tells whether that is closed.
    QUOTED   after calls in a block quotation or the like: they are text if other text follows.
    SPACE    after a marker that is followed by white space which says nothing.

Everything from a marker on that may turn out to be text is kept in one Hold: it is committed when it is certain to be a
call, and goes out as it was written when it is certain to be none. What went out is never taken back, and every
decision depends on the text alone, not on how it was cut.
"""

from __future__ import annotations

from collections.abc import Callable

from dragoman.filters.raw_tools.engine_base import AFTER, BODY, HEADER, PROSE, QUOTE, QUOTED, SECTION, SPACE, STRAY
from dragoman.filters.raw_tools.grammar import MarkerRole
from dragoman.filters.raw_tools.outputs import Channel, Output, TextOutput, stray_remark
from dragoman.filters.raw_tools.prose import MOST_PIECES, Quotation
from dragoman.filters.raw_tools.readers import LIMIT, skip_white_space
from dragoman.filters.raw_tools.sections import QuotationStates
from dragoman.filters.raw_tools.table import Table
from dragoman.model.filter import Search

_LONG_TEXT = 4096  # characters of one text that are not kept to be read later
_LEAST_RESIDUE = 4  # characters of a marker's beginning that are taken for one beside a native call


class Engine(QuotationStates):
    """The interface, the loop, and the states PROSE, STRAY, AFTER and SPACE."""

    def try_pass(self, text: str, channel: Channel) -> bool:
        """Whether this text goes out as it came; if so it is taken. True for nearly all text."""
        search = self.marker_search(channel)
        if search is None or search(text) is not None:
            return False
        self.record_text(text)
        return True

    def marker_search(self, channel: Channel) -> Search | None:
        """Return what finds that a text may not go out as it came; None if no text may.

        Texts that do go out as they came are `heard`, which does not change this: where a header may begin, the search
        finds the end of what is before it.
        """
        if self._state or self._held or channel is not self._carrier:
            return None
        if channel is Channel.TEXT and (self._head or self._as is not None):
            return None
        if self._calls and not self._trailing_text:
            return None
        if self._headless is not None and (self._said.begins or self._said.line_ends):
            return None
        return self._first

    def record_text(self, text: str) -> None:
        said = self._said
        said.pieces.append(text)
        if len(said.pieces) > MOST_PIECES or len(text) > _LONG_TEXT:
            said.parse_pieces()

    def feed(self, text: str, channel: Channel = Channel.TEXT) -> list[Output]:
        """Take more text."""
        if channel is not self._carrier:
            self._release()
            self._carrier = channel
            self._said = self._prose_of[channel]
        if self._held:
            text = self._held + text
        elif self._state == BODY and self._hold is None and not self._buffered:
            at = self._read(text, 0)
            if self._state == BODY:
                self._held = text[at:]
                return self._drained()
            text = text[at:]
        elif not self._state and text and self.try_pass(text, channel):
            self._out.append(TextOutput(text, channel))
            return self._drained()
        if text:
            self._run(text, False)
        return self._drained()

    def end_block(self) -> list[Output]:
        """The block of the carrier ends here, though the answer may go on: half a marker is text."""
        self._release()
        return self._drained()

    @property
    def has_pending_text(self) -> bool:
        """Whether text is held that a native call would turn into residue."""
        return bool(self._held) or self._state == STRAY

    @property
    def is_holding(self) -> bool:
        """Whether it keeps all text since a marker."""
        return self._hold is not None

    @property
    def is_reading_arguments(self) -> bool:
        """Whether it reads arguments. What has to be whole before it can go out is kept until then, within limits."""
        return self._state == BODY

    def close(self) -> list[Output]:
        """The answer is over."""
        self._run(self._held, True)
        return self._drained()

    def add_native_call(self, id_: str) -> list[Output]:
        """The reply holds a native call: in `auto` tags are text from here on, and lone markers are residue.

        See docs/decisions/raw_tools.md#d20.
        """
        self._ids.add_used(id_)
        if self._auto:
            self._native = True
            self._markers = self._grammar.special_markers
            if self._hold is not None and not self._hold.calls and self._state in (STRAY, SECTION, HEADER, BODY):
                self._reader, self._in_section, self._text = None, False, self._held
                self._give_back(len(self._held), at_end=True)
                self._text = self._held = ""
            elif (
                self._state == PROSE
                and len(self._held) >= _LEAST_RESIDUE
                and self._grammar.special_markers.begins(self._held)
            ):
                self._remark("residue", f"{self._held} beside a native call was removed")
                self._held = ""
        return self._drained()

    def _drained(self) -> list[Output]:
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
            if self._text is not text:  # text of before is read again
                text, at = self._text, moved
                continue
            stays = self._state == state and self._hold is hold
            if stays and (moved == at or (moved == len(text) and not final)):
                at = moved
                break
            at = moved
        self._held, self._text = text[at:], ""
        held = len(self._held)
        if self._hold is not None:
            held += self._hold.keep(text, at)
        self.peak = max(self.peak, held)

    def _release(self) -> None:
        """Decide on what waits in prose; inside a call or section any carrier goes on."""
        tag = self._state == HEADER and self._grammar.is_tag(self._opener)
        residue = self._native and self._hold is not None  # half a call: the native one is the call
        if tag or residue or self._state in (PROSE, STRAY, AFTER, QUOTE, QUOTED, SPACE):
            self._run(self._held, True)
        self._strict = False
        if self._carrier is Channel.TEXT:
            self._thinking, self._as = "", None
            self._head = self._has_beginnings

    def _prose(self, text: str, at: int, final: bool) -> int:
        if self._head and self._carrier is Channel.TEXT:
            moved = self._beginning(text, at, final)
            if moved is not None:
                return moved
        if self._skip_line_end and at < len(text):
            self._skip_line_end = False
            at += text[at] == "\n"
        start, literal = self._markers.find(text, at, final)
        begin = start  # of what may be a header without its marker
        if self._headless is not None and (literal or not final):
            begin = self._headless.start(text, at, start, self._said)
        if not literal:
            self._say_last(text, at) if final and self._native else self._say(text[at:begin])
            return begin
        if literal in self._grammar.tables_by_header_end and begin < start:
            table, header = self._grammar.tables_by_header_end[literal], text[begin:start]
            if self._headless is not None and self._headless.is_header(header):
                self._say(text[at:begin])
                if not self._auto or self._said.quotation() is None:
                    self._start_hold(begin)
                    end = start + len(literal)
                    self._begin_body(table, end)
                    self._begin_call(table, self._tools.parse_header(header), in_section=False)
                    return end
                at = begin
        self._say(text[at:start])
        return self._marker(start, literal)

    def _say_last(self, text: str, at: int) -> None:
        """The last text of a block beside a native call: half a marker at its end is residue."""
        start, _ = self._grammar.special_markers.find(text, at, False)
        self._say(text[at:start])
        residue = text[start:]
        if len(residue) < _LEAST_RESIDUE or self._said.quotation() is not None:
            self._say(residue)
        else:
            self._out.append(self._removed(residue))

    def _beginning(self, text: str, at: int, final: bool) -> int | None:
        """The answer has not begun. White space waits: it may turn out to stand before reasoning or a call."""
        here = skip_white_space(text, at)
        if here - at > LIMIT:
            self._head = False
            return None
        if here == len(text):
            if final:
                self._head = False
                return None
            return at
        literal = self._markers.match(text, here, final)
        if literal == "":
            return at
        if literal and (literal in self._grammar.reasoning_tags or literal in self._grammar.wrappers):
            return self._begins_with(here, literal)
        self._head = False
        if literal is None and not self._begun and not self._calls and text[here] in self._grammar.start_chars:
            self._start_hold(at)
            self._opener, self._state = "", HEADER
            return here
        return None

    def _begins_with(self, at: int, literal: str) -> int:
        if literal in self._grammar.wrappers:
            return self._wrapper(at, literal)
        self._head = False
        self._thinking, self._as = self._grammar.reasoning_tags[literal], Channel.REASONING
        self._wrapped = self._wrapped or literal in self._grammar.wrapping
        self._skip_line_end = True
        self._remark("think.tags", f"thinking written as {literal} in the text became reasoning")
        return at + len(literal)

    def _end_thinking(self) -> None:
        """After reasoning the answer begins."""
        self._thinking, self._as, self._state = "", None, SPACE
        self._head = self._has_beginnings
        self._said.reset()

    def _wrapper(self, at: int, literal: str) -> int:
        self._remark("wrapper", f"{literal} was removed: it says what is text and what is reasoning")
        self._wrapped, self._state = True, PROSE
        self._as = Channel.REASONING if self._grammar.wrappers[literal] is Channel.REASONING else None
        return at + len(literal)

    def _marker(self, at: int, literal: str) -> int:
        """A marker in prose. It returns the marker's place if the state changed, else the place after it."""
        role = self._grammar.roles[literal]
        end = at + len(literal)
        if role is MarkerRole.THINKING_END and literal == self._thinking:
            self._end_thinking()
            return end
        if role is MarkerRole.THINKING or (role is MarkerRole.THINKING_END and self._shows_thinking):
            self._shows_thinking = role is MarkerRole.THINKING
            self._say(literal)
            if role is MarkerRole.THINKING_END and self._said.quotation() is None:
                self._said.reset()
            return end
        quotation: Quotation | None = None
        if self._auto:
            quotation = None if self._grammar.is_tag(literal) else self._said.quotation()
            if self._grammar.is_tag(literal):
                counts = self._said.tag_may_begin()
                if counts is False:
                    self._said.record_quoted_tag()
                    self._say(literal)
                    return end
                quotation = counts if isinstance(counts, Quotation) else None
        if role in (MarkerRole.CALL, MarkerRole.SECTION):
            self._start_hold(at, quotation)
            self._enter(literal)
            if quotation is not None and quotation.kind != "block":
                self._state = QUOTE
            return at
        if quotation is not None:
            self._say(literal)
            return end
        return self._lone_marker(at, literal)

    def _lone_marker(self, at: int, literal: str) -> int:
        """A marker that begins nothing, outside quotations."""
        role = self._grammar.roles[literal]
        if role is MarkerRole.WRAPPER and (not self._auto or self._wrapped):
            return self._wrapper(at, literal)
        if role is MarkerRole.THINKING_END or self._auto:
            self._start_hold(at)
            self._state = STRAY
            return at
        self._out.append(self._removed(literal))
        return at + len(literal)

    def _stray(self, text: str, at: int, final: bool) -> int:
        here = skip_white_space(text, at)
        literal = self._markers.match(text, here, final) if here < len(text) else None
        if here - at > LIMIT or (literal is None and (here < len(text) or final)):
            self._give_back(here, at_end=final and here == len(text))
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
                self._give_back(here)
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
                return len(text)  # half of an end that was cut off
            if final and len(text) - here >= _LEAST_RESIDUE and self._grammar.special_markers.begins(text[here:]):
                self._out.append(self._removed(text[here:]))
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
        self._out.append(self._removed(literal))
        return here + len(literal)

    def _leftover(self, at: int, literal: str, table: Table) -> int:
        if literal == self._thinking:
            self._end_thinking()
        elif literal in self._grammar.table_markers(table).remarkable:
            self._out.append(stray_remark(literal))
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
