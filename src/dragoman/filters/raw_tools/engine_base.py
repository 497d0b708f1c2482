"""What the states of the engine share: its settings, where it is in the text, what it holds, and how things go out."""

from __future__ import annotations

from dragoman.filters.raw_tools.grammar import MarkerRole, grammar_of
from dragoman.filters.raw_tools.names import CallIds, DeclaredTools
from dragoman.filters.raw_tools.outputs import (
    Channel,
    HeldText,
    Mode,
    Output,
    PendingCall,
    Remark,
    TextOutput,
    stray_remark,
)
from dragoman.filters.raw_tools.prose import Prose, Quotation, headless_finder
from dragoman.filters.raw_tools.readers import BodyReader
from dragoman.filters.raw_tools.table import Table

PROSE, STRAY, SECTION, HEADER, BODY, AFTER, QUOTE, QUOTED, SPACE = range(9)  # the states: see engine.py


class EngineBase:
    """`choice` is `auto` or the name of a table. In `auto` there are rules for what counts.

    See docs/decisions/raw_tools.md#d20.
    """

    _begun = False  # text has come
    _shows_thinking = False  # a tag that opens reasoning stands in the text
    _thinking = ""  # what closes the reasoning that the text is in
    _wrapped = False  # a wrapper has said what the text is
    _as: Channel | None = None  # what the text is, if not text
    _text = ""  # what is being read
    _skip_line_end = False
    _opener = ""
    _table: Table | None = None  # of the section or call we are in, or after
    _in_section = False
    _tag_section: Table | None = None  # whose tag opened a section that is not closed yet
    _hold: HeldText | None = None
    _reader: BodyReader | None = None
    _call: PendingCall | None = None
    _native = False
    _strict = False  # what follows counts only if there is no doubt about it
    _trails = False  # text came after a call and was left out
    _calls = 0
    completed_calls = 0  # calls that a client can carry out
    peak = 0  # the most characters ever held

    def __init__(
        self,
        choice: str = "auto",
        tools: DeclaredTools | None = None,
        ids: CallIds | None = None,
        *,
        mode: Mode = "live",
        muted: bool = False,
        trailing_text: bool = True,
        think_tags: bool = False,
    ) -> None:
        self._grammar = grammar_of(choice, think_tags)
        self._auto = choice == "auto"
        self._tools = tools or DeclaredTools()
        self._ids = ids or CallIds()
        self._buffered = mode == "buffered"
        self._muted = muted
        self._trailing_text = trailing_text
        named = self._tools.names if self._grammar.tables_by_header_end else ()
        self._headless = headless_finder(named) if named else None
        self._first = self._grammar.search_marker_or_end if named else self._grammar.search_marker
        self._markers = self._grammar.text_markers
        self._state = PROSE
        self._held = ""
        self._out: list[Output] = []
        self._carrier = Channel.TEXT
        self._prose_of = {channel: Prose() for channel in Channel}
        self._said = self._prose_of[Channel.TEXT]
        self._has_beginnings = bool(
            self._grammar.reasoning_tags or self._grammar.start_tables or self._grammar.wrappers
        )
        self._head = self._has_beginnings  # nothing but white space has come in this block of text

    @property
    def _speaks(self) -> Channel:
        """What text is now: that of its carrier, or reasoning that was written into the text."""
        return self._as if self._as is not None and self._carrier is Channel.TEXT else self._carrier

    def _start_hold(self, at: int, quotation: Quotation | None = None) -> None:
        self._hold = HeldText(self._out, at, quotation)
        self._hold.strict = self._strict
        self._out = self._hold.out

    def _commit(self) -> None:
        """What is held is a call."""
        hold = self._drop_hold()
        if hold is not None:
            self._out += hold.all_outputs()

    def _drop_hold(self) -> HeldText | None:
        hold, self._hold = self._hold, None
        if hold is not None:
            self._out = hold.outer
        return hold

    def _give_back(self, end: int, *, at_end: bool = False) -> None:
        """What is held, up to a place in the text, is text."""
        hold = self._drop_hold()
        assert hold is not None
        if hold.saved_state is not None:
            self._ids, self._calls, self.completed_calls = hold.saved_state
        self._reader = self._call = None
        self._state = PROSE
        text = hold.text(self._text, end)
        wrappers = at_end and bool(hold.strays) and all(each in self._grammar.wrappers for each in hold.strays)
        lone = not hold.is_call and (not self._auto or (wrappers and not hold.noise))
        if hold.quotation is None and (self._native or lone):
            text = self._without_markers(text, self._native and at_end)
        self._say(text)

    def _without_markers(self, text: str, before_native: bool) -> str:
        """Remove markers; at the end of a text beside a native call also `</think>` and the white space they leave."""
        pattern = self._grammar.residue_pattern if before_native else self._grammar.special_pattern
        self._out += [self._removed(literal) for literal in pattern.findall(text)]
        text = pattern.sub("", text)
        return "" if before_native and not text.strip() else text

    def _removed(self, literal: str) -> Remark:
        if self._native:
            return Remark("residue", f"{literal} beside a native call was removed")
        return stray_remark(literal)

    def _over_limit(self, text: str, at: int, end: int, what: str) -> int:
        end = min(len(text), end)
        self._in_section = False
        changes = not self._auto or (self._hold is not None and self._hold.is_call)
        if self._hold is not None:
            self._give_back(end)
        else:
            self._state = PROSE
            self._say(text[at:end])
        if changes:
            self._remark("over_limit", f"{what}: it is text")
        return end

    def _read_again(self, text: str, end: int) -> int:
        """Read what is held as ordinary text; return where it begins in the text, which may have changed."""
        hold = self._drop_hold()
        assert hold is not None
        self._state = PROSE
        if hold.start_in_text is not None:
            return hold.start_in_text
        self._text = hold.text(text, end) + text[end:]
        return 0

    def _say(self, text: str) -> None:
        if not text:
            return
        if self._carrier is Channel.TEXT:
            self._head, self._begun = False, self._begun or self._as is None
        self._said.add(text)
        if self._calls and not self._trailing_text:
            if not self._trails and text.strip():
                self._trails = True
                self._remark("trailing_text", "text after a call was left out")
        else:
            self._out.append(TextOutput(text, self._speaks, self._speaks is not self._carrier))

    def _remark(self, rule: str, detail: str) -> None:
        self._out.append(Remark(rule, detail))

    def _leave(self) -> None:
        """A section, or a call on its own, is over."""
        self._in_section = False
        if self._hold is not None and self._hold.quotation is not None:
            self._state = QUOTED
            return
        self._state = AFTER
        for prose in self._prose_of.values():
            prose.reset()

    def _enter(self, literal: str) -> None:
        """A section or call begins at the marker that stands next."""
        self._table = self._grammar.tables_by_opener[literal][0]
        self._opener, self._state = literal, HEADER if self._grammar.roles[literal] is MarkerRole.CALL else SECTION
