"""The engine: the text of one choice in, cut anywhere; text, reasoning, calls and remarks out. Pure.

Theory of operation. The engine is in one state and reads the text from a position on; a state returns how far it could
read. What it leaves is seen again with the next text, so nothing is decided on half a marker.

    PROSE    text goes out. A marker leads to SECTION or HEADER, or to STRAY.
    STRAY    after a marker that begins nothing: only what follows tells whether it is text.
    SECTION  between the begin of a section and a call.
    HEADER   from the opener of a call to its arguments.
    BODY     arguments, read by the table's reader, until it says that the call is over.
    AFTER    directly after a call or section: white space waits, and goes out only if text follows.
    QUOTED   after calls that may be a quotation: only what follows tells whether they are text.
    SPACE    after a marker that is followed by white space which says nothing.

Everything from a marker on that may turn out to be text is kept in one Hold: it is committed when it is certain to be a
call, and goes out as it was written when it is certain to be none. What went out is never taken back, and every
decision depends on the text alone, not on how it was cut.
"""

from __future__ import annotations

from collections.abc import Callable

from dragoman.filters.raw_tools.bodies import reader_of
from dragoman.filters.raw_tools.call import HELD_LIMIT, Call, Mode
from dragoman.filters.raw_tools.grammar import Cut, Opening, Role, Verdict, grammar_of
from dragoman.filters.raw_tools.hold import Hold, stray
from dragoman.filters.raw_tools.names import Header, Ids, Tools
from dragoman.filters.raw_tools.outputs import Carrier, Output, Remark, Said
from dragoman.filters.raw_tools.prose import MANY, Prose, Quotation, headless_of
from dragoman.filters.raw_tools.readers import BLANK, LIMIT, EndOfCall, NamedCall, Piece, Reader, skip_blank
from dragoman.filters.raw_tools.table import Table
from dragoman.filters.raw_tools.values import Shape
from dragoman.model.events import Search

_WINDOW = LIMIT + 64  # a header and the longest marker after it
_LEAST_RESIDUE = 4  # characters of a marker's beginning that are taken for one beside a native call
_LONG_SECTION = f"more than {LIMIT} characters in a section, and no call"
_PROSE, _STRAY, _SECTION, _HEADER, _BODY, _AFTER, _QUOTED, _SPACE = range(8)


class Engine:
    """`choice` is `auto` or the name of a table. `auto` has rules for what counts (D20); a named table counts always."""

    def __init__(
        self,
        choice: str = "auto",
        tools: Tools | None = None,
        ids: Ids | None = None,
        *,
        mode: Mode = "live",
        muted: bool = False,
        trailing_text: bool = True,
        think_tags: bool = False,
    ) -> None:
        self._grammar = grammar_of(choice, think_tags)
        self._auto = choice == "auto"
        self._tools = tools or Tools()
        self._ids = ids or Ids()
        self._buffered = mode == "buffered"
        self._muted = muted
        self._trailing_text = trailing_text
        named = self._tools.names if self._grammar.bodies else ()
        self._headless = headless_of(named) if named else None
        self._first = self._grammar.first_or_end if named else self._grammar.first
        self._markers = self._grammar.prose
        self._state = _PROSE
        self._held = ""
        self._out: list[Output] = []
        self._carrier = Carrier.TEXT
        self._prose_of = {carrier: Prose() for carrier in Carrier}
        self._said = self._prose_of[Carrier.TEXT]
        self._has_beginnings = bool(self._grammar.thinking or self._grammar.starts or self._grammar.wrappers)
        self._head = self._has_beginnings  # nothing but white space has come in this block of text
        self._begun = False  # text has come
        self._thinking = ""  # what closes the reasoning that the text is in
        self._wrapped = False  # a wrapper has said what the text is
        self._as: Carrier | None = None  # what the text is, if not text
        self._text = ""  # what is being read
        self._skip_line_end = False
        self._opener = ""
        self._table: Table | None = None  # of the section or call we are in, or after
        self._in_section = False
        self._tag_section: Table | None = None  # whose tag opened a section that is not closed yet
        self._hold: Hold | None = None
        self._reader: Reader | None = None
        self._call: Call | None = None
        self._native = False
        self._trails = False  # text came after a call and was left out
        self._calls = 0
        self.completed = 0  # calls that a client can carry out
        self.peak = 0  # the most characters ever held

    # --- the interface

    def passes(self, text: str, carrier: Carrier) -> bool:
        """Whether this text goes out as it came; if so it is taken. True for nearly all text."""
        search = self.lets(carrier)
        if search is None or search(text) is not None:
            return False
        self.heard(text)
        return True

    def lets(self, carrier: Carrier) -> Search | None:
        """Return what finds that a text may not go out as it came; None if no text may.

        Texts that do go out as they came are `heard`, which does not change this: where a header may begin, the search
        finds the end of what is before it.
        """
        if self._state or self._held or carrier is not self._carrier:
            return None
        if carrier is Carrier.TEXT and (self._head or self._as is not None):
            return None
        if self._calls and not self._trailing_text:
            return None
        if self._headless is not None and (self._said.begins or self._said.line_ends):
            return None
        return self._first

    def heard(self, text: str) -> None:
        said = self._said
        said.pieces.append(text)
        if len(said.pieces) > MANY or len(text) > LIMIT:
            said.settle()

    def feed(self, text: str, carrier: Carrier = Carrier.TEXT) -> list[Output]:
        """Take more text."""
        if carrier is not self._carrier:
            self._release()
            self._carrier = carrier
            self._said = self._prose_of[carrier]
        if self._held:
            text = self._held + text
        elif self._state == _BODY and self._hold is None and not self._buffered:
            at = self._read(text, 0)
            if self._state == _BODY:
                self._held = text[at:]
                return self._drained()
            text = text[at:]
        elif not self._state and text and self.passes(text, carrier):
            self._out.append(Said(text, carrier))
            return self._drained()
        if text:
            self._run(text, False)
        return self._drained()

    def pause(self) -> list[Output]:
        """The block of the carrier ends here, though the answer may go on: half a marker is text."""
        self._release()
        return self._drained()

    @property
    def waits(self) -> bool:
        """Whether text is held that a native call would turn into residue."""
        return bool(self._held) or self._state == _STRAY

    def close(self) -> list[Output]:
        """The answer is over."""
        self._run(self._held, True)
        return self._drained()

    def native(self, id_: str) -> list[Output]:
        """The reply holds a native call: in `auto` tags are text from here on, and lone markers are residue (D20)."""
        self._ids.taken(id_)
        if self._auto:
            self._native = True
            self._markers = self._grammar.specials
            if self._hold is not None and self._state in (_STRAY, _SECTION):
                self._text = self._held
                self._give_back(len(self._held))
                self._text = self._held = ""
            elif (
                self._state == _PROSE
                and len(self._held) >= _LEAST_RESIDUE
                and self._grammar.specials.begins(self._held)
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

    # --- the loop

    def _run(self, text: str, final: bool) -> None:
        self._text = text
        at = 0
        while True:
            state, hold = self._state, self._hold
            moved = _STATES[state](self, text, at, final)
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
        tag = self._state == _HEADER and self._grammar.is_tag(self._opener)
        if tag or self._state in (_PROSE, _STRAY, _AFTER, _QUOTED, _SPACE):
            self._run(self._held, True)
        if self._carrier is Carrier.TEXT:
            self._thinking, self._as = "", None
            self._head = self._has_beginnings

    # --- prose

    def _prose(self, text: str, at: int, final: bool) -> int:
        if self._head and self._carrier is Carrier.TEXT:
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
            self._say(text[at:begin])
            return begin
        if literal in self._grammar.bodies and begin < start:
            table, header = self._grammar.bodies[literal], text[begin:start]
            if self._headless is not None and self._headless.is_header(header):
                self._say(text[at:begin])
                if not self._auto or self._said.quotation() is None:
                    self._start_hold(begin)
                    end = start + len(literal)
                    self._begin_body(table, end)
                    self._begin_call(table, self._tools.header(header), in_section=False)
                    return end
                at = begin
        self._say(text[at:start])
        return self._marker(start, literal)

    def _beginning(self, text: str, at: int, final: bool) -> int | None:
        """The answer has not begun. White space waits: it may turn out to stand before reasoning or a call."""
        here = skip_blank(text, at)
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
        if literal and self._grammar.roles[literal] in (Role.THINKING, Role.WRAPPER):
            return self._begins_with(here, literal)
        self._head = False
        if literal is None and not self._begun and not self._calls and text[here] in self._grammar.start_chars:
            self._start_hold(at)
            self._opener, self._state = "", _HEADER
            return here
        return None

    def _begins_with(self, at: int, literal: str) -> int:
        if literal in self._grammar.wrappers:
            return self._wrapper(at, literal)
        self._head = False
        self._thinking, self._as = self._grammar.thinking[literal], Carrier.REASONING
        self._skip_line_end = True
        self._remark("think.tags", f"thinking written as {literal} in the text became reasoning")
        return at + len(literal)

    def _wrapper(self, at: int, literal: str) -> int:
        self._remark("wrapper", f"{literal} was removed: it says what is text and what is reasoning")
        self._wrapped, self._state = True, _PROSE
        self._as = Carrier.REASONING if self._grammar.wrappers[literal] is Carrier.REASONING else None
        return at + len(literal)

    def _marker(self, at: int, literal: str) -> int:
        """A marker in prose. It returns the marker's place if the state changed, else the place after it."""
        role = self._grammar.roles[literal]
        end = at + len(literal)
        if role is Role.THINKING_END and literal == self._thinking:
            self._thinking, self._as, self._state = "", None, _SPACE
            return end
        if role is Role.THINKING:
            self._say(literal)
            return end
        quotation: Quotation | None = None
        if self._auto:
            quotation = None if self._grammar.is_tag(literal) else self._said.quotation()
            if self._grammar.is_tag(literal):
                counts = self._said.tag_may_begin()
                if counts is False:
                    self._said.quotes_a_tag()
                    self._say(literal)
                    return end
                quotation = counts if isinstance(counts, Quotation) else None
        if role in (Role.CALL, Role.SECTION):
            self._start_hold(at, quotation)
            self._enter(literal)
            return at
        if quotation is not None:
            self._say(literal)
            return end
        return self._lone_marker(at, literal)

    def _lone_marker(self, at: int, literal: str) -> int:
        """A marker that begins nothing, outside quotations."""
        role = self._grammar.roles[literal]
        if role is Role.WRAPPER and (not self._auto or self._wrapped):
            return self._wrapper(at, literal)
        if role is Role.THINKING_END or (self._auto and not self._native):
            self._start_hold(at)
            self._state = _STRAY
            return at
        self._out.append(self._removed(literal))
        return at + len(literal)

    def _stray(self, text: str, at: int, final: bool) -> int:
        here = skip_blank(text, at)
        literal = self._markers.match(text, here, final) if here < len(text) else None
        if here - at > LIMIT or (literal is None and (here < len(text) or final)):
            self._give_back(here, at_end=final and here == len(text))
            return here
        if not literal:
            return at
        hold = self._hold
        assert hold is not None
        match self._grammar.roles[literal]:
            case Role.CALL | Role.SECTION:
                self._enter(literal)
                return here
            case Role.THINKING:
                self._give_back(here)
                return here
        hold.strays.append(literal)
        return here + len(literal)

    def _enter(self, literal: str) -> None:
        """A section or call begins at the marker that stands next."""
        self._table = self._grammar.claims[literal][0]
        self._opener, self._state = literal, _HEADER if self._grammar.roles[literal] is Role.CALL else _SECTION

    # --- sections and headers

    def _section(self, text: str, at: int, final: bool) -> int:
        table = self._table
        assert table is not None
        start, literal = self._grammar.marks(table).section.find(text, at, False)
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
                self._give_back(len(text), at_end=True)
            elif noise:
                self._state = _PROSE
                self._say(text[at:start])
            else:
                self._state = _AFTER
            return len(text)
        return self._in_section_at(text, at, start, literal)

    def _in_section_at(self, text: str, at: int, start: int, literal: str) -> int:
        noise, end = text[at:start], start + len(literal)
        body = self._grammar.bodies.get(literal)
        hold = self._hold
        if body is not None and self._tools.declares(noise):
            if hold is None:
                self._start_hold(at)
            self._begin_body(body, end)
            self._begin_call(body, self._tools.header(noise), in_section=True)
            return end
        if noise.strip():
            if hold is not None:
                hold.noise = True
                if hold.size(start) > LIMIT:
                    return self._over_limit(text, at, start, _LONG_SECTION)
            else:
                self._remark("noise", "text between the calls of a section was left out")
        role = self._grammar.roles[literal]
        if role is Role.CALL:
            if hold is None:
                self._start_hold(start)
            self._opener, self._state, self._in_section = literal, _HEADER, True
            return start
        if role is Role.SECTION_END:
            self._in_section = False
            if hold is None or hold.calls:
                self._leave()
            elif hold.noise:
                self._give_back(end)
            else:
                self._state = _STRAY
            return end
        if role is Role.SECTION:
            self._in_section = True
        elif hold is None:
            self._out.append(stray(literal))
        else:
            hold.strays.append(literal)
        return end

    def _header(self, text: str, at: int, final: bool) -> int:
        view = text[at : at + _WINDOW]
        verdict: Opening | Cut | Verdict = Verdict.NO
        for table in self._grammar.claims[self._opener] if self._opener else self._grammar.starts:
            verdict = self._grammar.open(view, self._opener, table)
            if isinstance(verdict, Opening) and not verdict.is_meant(self._auto, self._tools):
                verdict = Verdict.NO
            if verdict is not Verdict.NO:
                break
        if verdict is Verdict.MORE and not final and len(view) < _WINDOW:
            return at
        if isinstance(verdict, Opening):
            return self._open(verdict, text, at)
        if isinstance(verdict, Cut):
            return self._cut_header(at + verdict.size)
        if verdict is Verdict.MORE and self._opener and not self._grammar.is_tag(self._opener):
            if len(view) < _WINDOW:  # and it is final
                return self._unfinished_header(len(text))
            end = at + len(self._opener) + LIMIT
            return self._over_limit(text, at, end, f"a header of more than {LIMIT} characters")
        self._in_section = False
        end = at + len(self._opener)
        self._give_back(end)
        return end

    def _cut_header(self, end: int) -> int:
        """Another marker stands in the middle of a header. A call may follow it."""
        if self._hold is not None:
            self._hold.noise = True
        self._state = _SECTION if self._in_section else _STRAY
        return end

    def _unfinished_header(self, end: int) -> int:
        """The answer ends in the middle of a header."""
        self._in_section = False
        if self._auto:
            self._give_back(end, at_end=True)
        else:
            self._drop_hold()
            self._remark("unfinished", "a call was cut off within its header and left out")
            self._leave()
        return end

    def _open(self, opening: Opening, text: str, at: int) -> int:
        table, end = opening.table, at + opening.size
        if table.numbered:
            header = self._tools.header(opening.written)
        else:
            header = Header(self._tools.name(opening.written) if opening.written else "", id=opening.id)
        if opening.bodiless and not header.name:
            return self._cut_header(end)
        if opening.in_section:
            self._tag_section = table
        in_section = self._in_section or opening.in_section or self._tag_section is table
        self._begin_body(table, end)
        if table.names_tool:
            self._begin_call(table, header, in_section=in_section)
        elif self._auto and table.at_start and self._hold is not None:
            self._hold.strict = True
        if opening.bodiless and self._call is not None:
            self._call.write("{}", self._out)
            self._end_call(True, True)
            self._end_body(end)
        return end

    # --- calls

    def _begin_body(self, table: Table, at: int) -> None:
        self._table, self._state = table, _BODY
        if self._hold is not None:
            self._hold.begin_body(at)
        self._reader = reader_of(table, self._shape, self._accepts)

    def _accepts(self, name: str) -> bool:
        """Whether a name that a body gives may be a tool's."""
        special = self._table is not None and self._table.special
        return bool(name) and (special or not self._auto or self._tools.resolve(name) is not None)

    def _shape(self, tool: str, key: str) -> Shape:
        name = tool or (self._call.name if self._call is not None else "")
        return self._tools.shape(self._tools.resolve(name) or name, key)

    def _begin_call(self, table: Table, header: Header, *, in_section: bool) -> None:
        hold = self._hold
        if hold is not None and self._auto and table.section_begin and not in_section:
            hold.strict = True
        self._call = Call(table, header, self._speaks, self._tools, muted=self._muted)
        if hold is not None and (hold.strict or hold.quotation is not None):
            if hold.ids is None:
                hold.remember(self._ids, self._calls, self.completed)
                self._ids = self._ids.copy()
            return
        if table.body == "json":  # others may turn out to be no call by what their body begins with
            self._stream(self._call)

    def _stream(self, call: Call) -> None:
        """From here on the call goes out as it comes, unless it has to wait for its name or its end."""
        hold = self._hold
        if not call.name or self._buffered or (hold is not None and (hold.strict or hold.quotation is not None)):
            return
        self._commit()
        if self._muted:
            call.drops = True
        else:
            call.start(self._ids, self._out)

    def _body(self, text: str, at: int, final: bool) -> int:
        moved = self._read(text, at)
        if moved == at and final and self._state == _BODY:
            return self._cut_body(text, at)
        return moved

    def _read(self, text: str, at: int) -> int:
        reader, hold = self._reader, self._hold
        assert reader is not None
        room = HELD_LIMIT - hold.body_size(at) if hold is not None else len(text)
        over = hold is not None and len(text) - at > room
        pieces: list[Piece] = []
        moved = reader.read(text[: at + room] if over else text, at, pieces)
        self._take(pieces, at)
        if reader.failed:
            self._give_back(moved)
        elif reader.over:
            self._end_body(moved)
        elif moved == at and over and self._hold is hold:
            self._over_limit(text, at, at, f"a call of which more than {HELD_LIMIT} characters had to wait")
        return moved

    def _take(self, pieces: list[Piece], at: int) -> None:
        """Take what a reader has read."""
        for piece in pieces:
            call = self._call
            if type(piece) is str:
                if call is None:
                    continue
                if not call.streams:
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
        self._begin_call(table, Header(self._tools.name(named.name), id=named.id), in_section=True)

    def _end_call(self, closed: bool, valid: bool) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        hold = self._hold
        if hold is not None:
            hold.calls += 1
            hold.fits = hold.fits and closed and valid and self._fits(call)
        if not call.streams and not self._muted:
            if not call.name and not call.infer(self._out):
                self._nameless(hold)
                return
            if not closed and hold is not None and (hold.quotation is not None or not call.arguments):
                hold.fits, hold.strict = False, True
                return
            if not closed and not (hold is not None and hold.strict):
                self._remark("unfinished", f"a call of {call.name} was cut off and left out")
                return
            call.start(self._ids, self._out)
        self._calls += 1
        if self._tools.names and self._tools.resolve(call.name) is None:
            self._remark("undeclared", f"the request declares no tool named {call.name}")
        self.completed += call.end(closed, valid, self._out)

    def _nameless(self, hold: Hold | None) -> None:
        if self._auto and hold is not None:  # it is text
            hold.fits, hold.strict = False, True
        else:
            self._remark("nameless", "a call without a name fits no declared tool and was left out")

    def _fits(self, call: Call) -> bool:
        if call.streams:
            return True
        name = call.name or self._tools.infer(call.arguments) or ""
        known = self._tools.resolve(name)
        return (known is not None or not self._tools.names) and self._tools.fits(known or name, call.arguments or "{}")

    def _end_body(self, end: int) -> None:
        """The reader has read to the end of the call, or of all calls."""
        reader, self._reader = self._reader, None
        if self._call is not None and reader is not None:
            self._end_call(reader.closed, reader.valid)
        if reader is not None and reader.junk:
            self._remark("noise", "text between the parameters of a call was left out")
        hold = self._hold
        if hold is not None and hold.quotation is None:
            if hold.strict and not hold.counts:
                self._in_section = False
                self._give_back(end)
                return
            self._commit()
        if self._in_section:
            self._state = _SECTION
        else:
            self._leave()

    def _cut_body(self, text: str, at: int) -> int:
        """The answer ends within a body."""
        reader = self._reader
        assert reader is not None
        pieces: list[Piece] = []
        end = reader.finish(text, at, pieces)
        self._take(pieces, at)
        hold = self._hold
        no_call = hold is not None and self._call is None and not hold.calls
        if reader.failed or no_call:
            self._give_back(end, at_end=True)
        else:
            self._end_body(end)
        return end

    def _leave(self) -> None:
        """A section, or a call on its own, is over."""
        self._in_section = False
        if self._hold is not None and self._hold.quotation is not None:
            self._state = _QUOTED
            self._hold.after_calls()
            return
        self._state = _AFTER
        for prose in self._prose_of.values():
            prose.fresh()

    def _after(self, text: str, at: int, final: bool) -> int:
        here = skip_blank(text, at)
        if here - at > LIMIT:
            self._state = _PROSE
            return at
        if here == len(text):
            return here if final else at
        table = self._table
        assert table is not None
        marks = self._grammar.marks(table)
        literal = marks.after.match(text, here, final)
        if literal == "":
            return at
        if literal is not None and literal in marks.leftovers:
            return self._leftover(here, literal, table)
        if literal is None or literal not in self._markers.markers:
            if final and any(each.startswith(text[here:]) for each in marks.leftovers):
                return len(text)  # half of an end that was cut off
            self._tag_section, self._state = None, _PROSE
            return at
        match self._grammar.roles[literal]:
            case Role.CALL | Role.SECTION:
                self._start_hold(at)
                self._enter(literal)
                return here
            case Role.WRAPPER:
                self._state = _PROSE
                return self._wrapper(here, literal)
            case Role.THINKING:
                self._state = _PROSE
                return at
        self._out.append(self._removed(literal))
        return here + len(literal)

    def _leftover(self, at: int, literal: str, table: Table) -> int:
        if literal == self._thinking:
            self._thinking, self._as, self._state = "", None, _SPACE
        elif literal in self._grammar.marks(table).remarkable:
            self._out.append(stray(literal))
        if literal in table.section_end:
            self._tag_section = None
        return at + len(literal)

    def _space(self, text: str, at: int, final: bool) -> int:
        here = skip_blank(text, at)
        if here < len(text):
            self._state = _PROSE
        return here

    # --- quotations

    def _quoted(self, text: str, at: int, final: bool) -> int:
        """Look for what closes the quotation; further calls may come before it."""
        hold, table = self._hold, self._table
        assert hold is not None and hold.quotation is not None and table is not None
        quotation, marks = hold.quotation, self._grammar.marks(table)
        start, literal = marks.after.find(text, at, final)
        line_end = text.find("\n", at, start)
        end = start if line_end < 0 else line_end
        last = at + HELD_LIMIT - hold.size(at)
        if quotation.kind != "block" and end > last:
            self._give_back(max(at, last))
            return max(at, last)
        piece = text[at:end]
        line_over = line_end >= 0 or bool(literal) or final
        if (line_over or quotation.kind == "block") and quotation.closed_by(hold.line + piece):
            self._give_back(end)
            return end
        if line_end >= 0 and quotation.kind == "inline":
            return self._unquoted(text, at, end)
        if line_end >= 0:
            hold.text_after(piece + "\n", self._speaks)
            hold.line = ""
            return end + 1
        if literal:
            hold.text_after(piece, self._speaks)
            if self._may_open(literal):
                self._enter(literal)
                return start
            if literal not in marks.leftovers:
                hold.text_after(literal, self._speaks)
            return start + len(literal)
        if final:
            return self._unquoted(text, at, end)
        keep = len(piece) - len(piece.rstrip(BLANK)) if quotation.kind == "inline" else 0
        end -= keep if keep <= LIMIT else 0
        hold.text_after(text[at:end], self._speaks)
        return end

    def _may_open(self, literal: str) -> bool:
        """Whether a marker after quoted calls opens another: a special one, or a tag after tags."""
        if self._grammar.roles.get(literal) not in (Role.CALL, Role.SECTION):
            return False
        return self._table is not None and self._grammar.is_tag(literal) is not self._table.special

    def _unquoted(self, text: str, at: int, end: int) -> int:
        """Nothing closed what was open before the calls, up to here."""
        hold = self._hold
        assert hold is not None and hold.quotation is not None
        sure = hold.quotation.kind == "inline" and not hold.strict
        if not hold.calls or not (sure or hold.fits):
            self._give_back(end, at_end=end == len(text))
            return end
        end = at + len(text[at:end].rstrip(BLANK))
        hold.text_after(text[at:end], self._speaks)
        hold.quotation = None
        line = hold.line
        self._commit()
        self._leave()
        if line.strip():
            self._state = _PROSE
            self._said.add(line)
        return end

    # --- holding, and what goes out

    @property
    def _speaks(self) -> Carrier:
        """What text is now: that of its carrier, or reasoning that was written into the text."""
        return self._as if self._as is not None and self._carrier is Carrier.TEXT else self._carrier

    def _start_hold(self, at: int, quotation: Quotation | None = None) -> None:
        self._hold = Hold(self._out, at, quotation)
        self._out = self._hold.out

    def _commit(self) -> None:
        """What is held is a call."""
        hold = self._drop_hold()
        if hold is not None:
            self._out += hold.settled()

    def _drop_hold(self) -> Hold | None:
        hold, self._hold = self._hold, None
        if hold is not None:
            self._out = hold.outer
        return hold

    def _give_back(self, end: int, *, at_end: bool = False) -> None:
        """What is held, up to a place in the text, is text."""
        hold = self._drop_hold()
        assert hold is not None
        if hold.ids is not None:
            self._ids, self._calls, self.completed = hold.ids, hold.calls_before, hold.completed_before
        lone = self._reader is None  # it was no call that went wrong
        self._reader = self._call = None
        self._state = _PROSE
        text = hold.text(self._text, end)
        wrappers = at_end and bool(hold.strays) and all(each in self._grammar.wrappers for each in hold.strays)
        if lone and hold.quotation is None and (self._native or not self._auto or (wrappers and not hold.noise)):
            text = self._without_markers(text)
        self._say(text)

    def _without_markers(self, text: str) -> str:
        pieces = self._grammar.special_marker.split(text)
        self._out += [self._removed(literal) for literal in self._grammar.special_marker.findall(text)]
        return "".join(pieces)

    def _removed(self, literal: str) -> Remark:
        if self._native:
            return Remark("residue", f"{literal} beside a native call was removed")
        return stray(literal)

    def _over_limit(self, text: str, at: int, end: int, what: str) -> int:
        end = min(len(text), end)
        self._in_section = False
        if self._hold is not None:
            self._give_back(end)
        else:
            self._state = _PROSE
            self._say(text[at:end])
        self._remark("over_limit", f"{what}: it is text")
        return end

    def _say(self, text: str) -> None:
        if not text:
            return
        if self._carrier is Carrier.TEXT:
            self._head, self._begun = False, True
        self._said.add(text)
        if self._calls and not self._trailing_text:
            if not self._trails and text.strip():
                self._trails = True
                self._remark("trailing_text", "text after a call was left out")
        else:
            self._out.append(Said(text, self._speaks, self._speaks is not self._carrier))

    def _remark(self, rule: str, detail: str) -> None:
        self._out.append(Remark(rule, detail))


_STATES: tuple[Callable[[Engine, str, int, bool], int], ...] = (
    Engine._prose,
    Engine._stray,
    Engine._section,
    Engine._header,
    Engine._body,
    Engine._after,
    Engine._quoted,
    Engine._space,
)
