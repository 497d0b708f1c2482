"""The base class of the engine: settings, position in the text, held text, and output. See engine.py."""

from __future__ import annotations

from dragoman.filters.raw_tools.grammar import MarkerRole, grammar_of
from dragoman.filters.raw_tools.names import CallIds, DeclaredTools
from dragoman.filters.raw_tools.outputs import (
    Channel,
    EngineNote,
    EngineOutput,
    Mode,
    PendingCall,
    PendingText,
    TextOutput,
    stray_note,
)
from dragoman.filters.raw_tools.prose import Prose, Quotation, headless_finder
from dragoman.filters.raw_tools.readers import BodyReader
from dragoman.filters.raw_tools.table import Table

PROSE, STRAY, SECTION, HEADER, BODY, AFTER, QUOTE, QUOTED, SPACE = range(9)  # the states: see engine.py


class EngineBase:
    """The state of the engine, and what all its states use.

    `choice` is `auto` or the name of a table; docs/decisions/raw_tools.md#d20 lists what `auto` takes for a call.
    `muted`: tool_choice is none, so that calls are left out. `trailing_text`: text after a call is sent. `think_tags`:
    reasoning in tags at the start of a text becomes reasoning.
    """

    _has_text = False  # some text was sent
    _think_tag_open = False  # the text has a tag that opens reasoning, as text
    _thinking_end = ""  # the marker that ends the reasoning written into the text
    _saw_wrapper = False  # a wrapper marker separated text from reasoning
    _override: Channel | None = None  # the channel of text that a marker declared to be reasoning
    _text = ""  # the text that is read now
    _skip_line_end = False
    _opener = ""
    _table: Table | None = None  # the table of the current or last section or call
    _in_section = False
    _tag_section: Table | None = None  # the table whose tag opened a section that is still open
    _hold: PendingText | None = None
    _reader: BodyReader | None = None
    _call: PendingCall | None = None
    _native = False  # the reply has a native call
    _strict = False  # the following calls count only if they are beyond doubt
    _dropped_trailing = False  # text after a call was left out
    _calls = 0
    completed_calls = 0  # calls that a client can carry out
    peak = 0  # most characters held at one time

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
        self._search = self._grammar.search_marker_or_end if named else self._grammar.search_marker
        self._markers = self._grammar.text_markers
        self._state = PROSE
        self._unread = ""
        self._out: list[EngineOutput] = []
        self._input_channel = Channel.TEXT
        self._contexts = {channel: Prose() for channel in Channel}
        self._context = self._contexts[Channel.TEXT]
        self._checks_start = bool(self._grammar.reasoning_tags or self._grammar.start_tables or self._grammar.wrappers)
        self._at_start = self._checks_start  # this block of text has only white space so far

    @property
    def _output_channel(self) -> Channel:
        """The channel that text goes to: that of its block, or reasoning that the model wrote into its text."""
        return (
            self._override
            if self._override is not None and self._input_channel is Channel.TEXT
            else self._input_channel
        )

    def _start_hold(self, at: int, quotation: Quotation | None = None) -> None:
        self._hold = PendingText(self._out, at, quotation)
        self._hold.strict = self._strict
        self._out = self._hold.out

    def _commit(self) -> None:
        """Send the outputs of the held text: it is a call."""
        hold = self._drop_hold()
        if hold is not None:
            self._out += hold.all_outputs()

    def _drop_hold(self) -> PendingText | None:
        hold, self._hold = self._hold, None
        if hold is not None:
            self._out = hold.outer
        return hold

    def _release_as_text(self, end: int, *, at_end: bool = False) -> None:
        """Send the held text, up to a position, as text: it is not a call."""
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
        self._emit_text(text)

    def _without_markers(self, text: str, before_native: bool) -> str:
        """Remove markers; at the end of a text before a native call also `</think>` and remaining white space."""
        pattern = self._grammar.residue_pattern if before_native else self._grammar.special_pattern
        self._out += [self._removal_note(literal) for literal in pattern.findall(text)]
        text = pattern.sub("", text)
        return "" if before_native and not text.strip() else text

    def _removal_note(self, literal: str) -> EngineNote:
        if self._native:
            return EngineNote("residue", f"{literal} next to a native call was removed")
        return stray_note(literal)

    def _over_limit(self, text: str, at: int, end: int, what: str) -> int:
        end = min(len(text), end)
        self._in_section = False
        changes = not self._auto or (self._hold is not None and self._hold.is_call)
        if self._hold is not None:
            self._release_as_text(end)
        else:
            self._state = PROSE
            self._emit_text(text[at:end])
        if changes:
            self._note("over_limit", f"{what}; it was sent as text")
        return end

    def _read_again(self, text: str, end: int) -> int:
        """Read the held text again as ordinary text; return where it begins in the text, which may be a new one."""
        hold = self._drop_hold()
        assert hold is not None
        self._state = PROSE
        if hold.start_in_text is not None:
            return hold.start_in_text
        self._text = hold.text(text, end) + text[end:]
        return 0

    def _emit_text(self, text: str) -> None:
        if not text:
            return
        if self._input_channel is Channel.TEXT:
            self._at_start, self._has_text = False, self._has_text or self._override is None
        self._context.add(text)
        if self._calls and not self._trailing_text:
            if not self._dropped_trailing and text.strip():
                self._dropped_trailing = True
                self._note("trailing_text", "text after a call was left out")
        else:
            self._out.append(TextOutput(text, self._output_channel, self._output_channel is not self._input_channel))

    def _note(self, rule: str, detail: str) -> None:
        self._out.append(EngineNote(rule, detail))

    def _leave(self) -> None:
        """End a section, or a call outside a section."""
        self._in_section = False
        if self._hold is not None and self._hold.quotation is not None:
            self._state = QUOTED
            return
        self._state = AFTER
        for prose in self._contexts.values():
            prose.reset()

    def _enter(self, literal: str) -> None:
        """Begin a section or call at its marker, which is the next text."""
        self._table = self._grammar.tables_by_opener[literal][0]
        self._opener, self._state = literal, HEADER if self._grammar.roles[literal] is MarkerRole.CALL else SECTION
