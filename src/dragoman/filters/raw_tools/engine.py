"""The engine: one choice's text in, cut anywhere; text, calls and remarks out. Pure; the same for every cut.

Theory of operation. The engine is in one of five states and reads the text from a position on; a state says how far it
could read. What it leaves is held and seen again with the next text, so nothing is decided on half a marker. What is
held is a tail that may become a marker or, in SECTION, HEADER and AFTER, little more than LIMIT characters.

    PROSE    text goes out. A marker leads to SECTION or HEADER; strays are removed.
    SECTION  between a section's begin and a call; what is no call says nothing, unless there never is a call.
    HEADER   from a call's opener to its arguments. What turns out to be no header is text after all.
    BODY     arguments, read by the table's reader, until it says that the call is over.
    AFTER    directly after a call or section: white space waits, and goes only if text follows.
"""

from __future__ import annotations

from collections.abc import Callable

from dragoman.filters.raw_tools.call import HELD_LIMIT, Call, Mode
from dragoman.filters.raw_tools.grammar import Cut, Opening, Role, Verdict, grammar_of
from dragoman.filters.raw_tools.names import Header, Ids, Tools
from dragoman.filters.raw_tools.outputs import Arguments, Carrier, Output, Remark, Said
from dragoman.filters.raw_tools.prose import MANY, Prose, headless_of
from dragoman.filters.raw_tools.readers import LIMIT, skip_blank
from dragoman.filters.raw_tools.section import Section, stray
from dragoman.filters.raw_tools.tables import Table
from dragoman.model.events import Search

_WINDOW = LIMIT + 64  # a header and the longest marker after it
_PROSE, _SECTION, _HEADER, _BODY, _AFTER = range(5)


class Engine:
    """`choice` is `auto` or a table's name. In `auto` quotations are text, and tags count for declared tools only."""

    __slots__ = (
        "_auto",
        "_blank",
        "_call",
        "_calls",
        "_carrier",
        "_first",
        "_grammar",
        "_headless",
        "_held",
        "_ids",
        "_in",
        "_literals",
        "_mode",
        "_muted",
        "_opener",
        "_other",
        "_out",
        "_said",
        "_state",
        "_table",
        "_tools",
        "_trailing_text",
        "completed",
        "peak",
    )

    def __init__(
        self,
        choice: str = "auto",
        tools: Tools | None = None,
        ids: Ids | None = None,
        *,
        mode: Mode = "live",
        muted: bool = False,
        trailing_text: bool = True,
    ) -> None:
        self._grammar = grammar_of(choice)
        self._auto = choice == "auto"
        self._tools = tools or Tools()
        self._ids = ids or Ids()
        self._mode: Mode = mode
        self._muted = muted
        self._trailing_text = trailing_text
        named = self._tools.names if self._grammar.bodies else ()
        self._headless = headless_of(named) if named else None
        self._first = self._grammar.first_or_end if named else self._grammar.first
        self._literals = self._grammar.prose
        self._state = _PROSE
        self._held = ""
        self._out: list[Output] = []
        self._carrier = Carrier.TEXT
        self._said = Prose()  # of this carrier
        self._other: Prose | None = None  # of the other one, once it has spoken
        self._blank = ""  # white space that goes out with the next text, if there is one
        self._opener = ""
        self._table: Table | None = None  # of the section or call we are in, or after
        self._in: Section | None = None
        self._call: Call | None = None
        self._calls = 0
        self.completed = 0  # calls
        self.peak = 0  # the most characters ever held

    # --- the interface

    def passes(self, text: str, carrier: Carrier) -> bool:
        """Whether this text goes out as it came; if so it is taken. The short way, for nearly all prose."""
        search = self.lets(carrier)
        if search is None or search(text) is not None:
            return False
        self.heard(text)
        return True

    def lets(self, carrier: Carrier) -> Search | None:
        """What finds that a text may not go out as it came; None if none may. Those that do are `heard`, and that
        changes nothing about it: where a header may begin, the search has found the end of what is before it.
        """
        if self._state or self._held or carrier is not self._carrier:
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
            self._said, self._other = self._other or Prose(), self._said
        if self._held:
            text = self._held + text
        elif self._call is not None and self._call.streams:
            return self._argue(self._call, text)
        elif not self._state and text and self.passes(text, carrier):
            self._out.append(Said(text, carrier))
            text = ""
        if text:
            self._run(text, False)
        return self._told()

    def _argue(self, call: Call, text: str) -> list[Output]:
        """The short way for arguments that stream."""
        pieces: list[str] = []
        at = call.reader.read(text, 0, pieces)
        self._out.extend([Arguments(piece) for piece in pieces])
        if call.reader.over:
            self._end(call, True)
            self._run(text[at:], False)
        else:
            self._held = text[at:]
        return self._told()

    def pause(self) -> list[Output]:
        """The carrier's text ends here, though the answer may go on: half a marker is text."""
        self._release()
        return self._told()

    def close(self) -> list[Output]:
        """The answer is over."""
        self._run(self._held, True)
        return self._told()

    def native(self, id_: str) -> None:
        """The reply holds a call of its own: in `auto` tags are text from here on (D20)."""
        self._ids.taken(id_)
        if self._auto:
            self._literals = self._grammar.specials

    def _told(self) -> list[Output]:
        out, self._out = self._out, []
        return out

    # --- the states

    def _run(self, text: str, final: bool) -> None:
        at = 0
        while True:
            state = self._state
            moved = _STATES[state](self, text, at, final)
            if self._state == state and (moved == at or (moved == len(text) and not final)):
                at = moved
                break
            at = moved
        self._held = text[at:]
        held = len(self._held) + (self._call.size if self._call is not None else 0)
        self.peak = max(self.peak, held)

    def _release(self) -> None:
        """Let go of what waits in prose; inside a call or section any carrier goes on."""
        prose = self._state in (_PROSE, _AFTER) or (self._state == _HEADER and self._grammar.is_tag(self._opener))
        if self._held and prose:
            self._run(self._held, True)

    def _prose(self, text: str, at: int, final: bool) -> int:
        start, literal = self._literals.find(text, at, final)
        begin = start  # of what may be a header without its marker
        if self._headless is not None and (literal or not final):
            begin = self._headless.start(text, at, start, self._said)
        if not literal:
            self._say(text[at:begin])
            return begin
        table = self._grammar.bodies.get(literal)
        if table is not None and self._headless is not None and self._headless.is_header(text[begin:start]):
            self._say(text[at:begin])
            if not (self._auto and self._said.cited()):
                header = text[begin:start]
                return self._begin(table, self._tools.header(header), start + len(literal), header)
            self._said.quotes(False)
            at = begin
        self._say(text[at:start])
        return self._literal(start, literal)

    def _literal(self, at: int, literal: str) -> int:
        """A marker in prose."""
        tag = self._grammar.is_tag(literal)
        if self._auto and (not self._said.alone() if tag else self._said.cited()):
            self._said.quotes(tag)
            self._say(literal)
            return at + len(literal)
        match self._grammar.roles[literal]:
            case Role.CALL:
                self._opener, self._state, self._table = literal, _HEADER, self._grammar.claims[literal][0]
                return at
            case Role.SECTION:
                self._table, self._in, self._state = self._grammar.claims[literal][0], Section(literal), _SECTION
                self._blank = ""
            case _:
                self._stray(literal)
        return at + len(literal)

    def _section(self, text: str, at: int, final: bool) -> int:
        """Noise, then a marker of the section's family. Noise that leads to nothing is text after all."""
        marks = self._grammar.marks(self._table).section  # type: ignore[arg-type]  # a section has its table
        start, literal = marks.find(text, at, False)
        if start - at > LIMIT:
            self._remark("over_limit", f"more than {LIMIT} characters in a section, and no call: they are text")
            return self._give_up(text, at, LIMIT)
        noise = text[at:start]
        if not literal:
            if not final:
                return at
            if noise.strip() or (self._in is not None and self._in.says):
                self._give_up(text, at, len(noise))
            self._in, self._state = None, _AFTER
            return len(text)
        return self._in_section_at(start, literal, noise)

    def _in_section_at(self, at: int, literal: str, noise: str) -> int:
        role = self._grammar.roles[literal]
        table = self._grammar.bodies.get(literal)
        if table is not None and self._tools.declares(noise):
            return self._begin(table, self._tools.header(noise), at + len(literal), noise)
        if self._in is not None and not self._in.hears(noise, self._out):
            self._remark("over_limit", f"more than {LIMIT} characters in a section, and no call: they are text")
            return self._give_up("", at, 0)
        match role:
            case Role.CALL:
                self._opener, self._state = literal, _HEADER
                return at
            case Role.SECTION_END if self._in is not None and self._in.says:
                self._give_up("", at, 0)
                self._stray(literal)
            case Role.SECTION_END:
                self._leave()
            case Role.SECTION:
                pass  # said twice
            case _:
                self._stray(literal)
        return at + len(literal)

    def _header(self, text: str, at: int, final: bool) -> int:
        view = text[at : at + _WINDOW]
        verdict: Opening | Cut | Verdict = Verdict.NO
        for table in self._grammar.claims[self._opener]:
            verdict = self._grammar.open(view, self._opener, table)
            if isinstance(verdict, Opening) and not verdict.meant(self._auto, self._tools):
                verdict = Verdict.NO
            if verdict is not Verdict.NO:
                break
        if verdict is Verdict.MORE and not final and len(view) < _WINDOW:
            return at
        if isinstance(verdict, Opening):
            return self._open(verdict, at + verdict.size, text[at : at + verdict.size])
        if isinstance(verdict, Cut):
            return self._drop_header(at + verdict.size)
        if self._grammar.is_tag(self._opener):
            self._state, self._in = _PROSE, None
            self._say(self._opener)
            return at + len(self._opener)
        if verdict is Verdict.NO:
            self._give_up("", at, 0)
            self._stray(self._opener)
            return at + len(self._opener)
        if len(view) < _WINDOW:  # and it is final
            return self._drop_header(len(text))
        self._remark("over_limit", f"a header of more than {LIMIT} characters is text")
        return self._give_up(text, at + len(self._opener), LIMIT)

    def _drop_header(self, at: int) -> int:
        self._remark("unfinished", "a call was cut off within its header and left out")
        self._state = _SECTION if self._in is not None else _AFTER
        return at

    def _open(self, opening: Opening, at: int, lead: str) -> int:
        table = opening.table
        if table.numbered:
            header = self._tools.header(opening.written)
        else:
            header = Header(self._tools.resolve(opening.written) or opening.written)
        if opening.bodiless and not header.name:
            return self._drop_header(at)
        self._begin(table, header, at, opening.written if table.special else lead)
        if opening.bodiless and self._call is not None:
            self._call.write(["{}"], self._out)
            self._end(self._call, True)
        return at

    def _begin(self, table: Table, header: Header, at: int, lead: str) -> int:
        self._table, self._state = table, _BODY
        lead, self._blank = self._blank + lead, ""
        if self._in is not None:
            self._in.calls(self._out)
        self._call = Call(table, header, self._carrier, self._tools, self._mode, self._muted)
        self._call.lead = lead
        self._call.begin(self._ids, self._out)
        return at

    def _body(self, text: str, at: int, final: bool) -> int:
        call = self._call
        if call is None:
            self._state = _PROSE
            return at
        room = HELD_LIMIT - call.size if call.holds else len(text)
        over = len(text) - at > room
        pieces: list[str] = []
        moved = call.reader.read(text[: at + room] if over else text, at, pieces)
        if call.holds:
            call.raw.append(text[at:moved])
            call.size += moved - at
        if pieces:
            call.write(pieces, self._out)
        if call.tentative and not call.may_be(self._auto, self._ids, self._out):
            self._take_back(call)
        elif call.reader.over:
            self._end(call, True)
        elif moved == at and over and call.holds:
            self._remark("over_limit", f"a call of which more than {HELD_LIMIT} characters had to wait is text")
            self._take_back(call)
        elif moved == at and final:
            if call.tentative:
                self._take_back(call)
            else:
                self._end(call, call.reader.complete)
                return len(text)
        return moved

    def _take_back(self, call: Call) -> None:
        self._call = None
        self._state, self._in = _PROSE, None
        self._say(call.taken_back())

    def _end(self, call: Call, complete: bool) -> None:
        self._call = None
        self._calls += 1
        if call.end(complete, self._ids, self._out):
            self.completed += complete
        if self._in is not None:
            self._state = _SECTION
        else:
            self._leave()

    def _leave(self) -> None:
        """A section or a call on its own is over."""
        self._in, self._state = None, _AFTER
        self._said.fresh()
        if self._other is not None:
            self._other.fresh()

    def _after(self, text: str, at: int, final: bool) -> int:
        here = skip_blank(text, at)
        if here - at > LIMIT:
            self._state = _PROSE
            return at
        if here == len(text):
            return here if final else at
        marks = self._grammar.marks(self._table)  # type: ignore[arg-type]  # what is over had its table
        literal = marks.after.match(text, here, final)
        if literal == "":
            return at
        if literal in marks.leftovers:
            if literal in marks.remarkable:
                self._stray(literal)
            return here + len(literal)
        if literal is None or literal not in self._literals.markers:
            if final and any(each.startswith(text[here:]) for each in marks.leftovers):
                return len(text)  # half of an end that was cut off
            self._state = _PROSE
            return at
        if self._grammar.roles[literal] not in (Role.CALL, Role.SECTION):
            self._stray(literal)
            return here + len(literal)
        self._blank, self._state = text[at:here], _PROSE
        return here

    # --- what it says

    def _say(self, text: str) -> None:
        if not text:
            return
        if self._blank:
            text, self._blank = self._blank + text, ""
        self._said.add(text)
        if self._calls and not self._trailing_text:
            self._remark("trailing_text", "text after a call was left out")
        else:
            self._out.append(Said(text, self._carrier))

    def _give_up(self, text: str, at: int, size: int) -> int:
        """Take what the section said so far, and so much of the text, for prose."""
        before = self._in.given_back(self._out) if self._in is not None else ""
        self._state, self._in = _PROSE, None
        self._say(before + text[at : at + size])
        return at + size

    def _stray(self, literal: str) -> None:
        self._out.append(stray(literal))

    def _remark(self, rule: str, detail: str) -> None:
        self._out.append(Remark(rule, detail))


_STATES: tuple[Callable[[Engine, str, int, bool], int], ...] = (
    Engine._prose,
    Engine._section,
    Engine._header,
    Engine._body,
    Engine._after,
)
