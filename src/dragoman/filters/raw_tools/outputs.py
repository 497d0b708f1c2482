"""The outputs of the engine: text, calls in pieces, and notes on changes. They have no keys and no indices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from dragoman.filters.raw_tools.names import CallHeader, CallIds, DeclaredTools
from dragoman.filters.raw_tools.prose import Quotation
from dragoman.filters.raw_tools.table import Table


class Channel(Enum):
    """Whether a model sent something as text or as reasoning."""

    TEXT = "text"
    REASONING = "reasoning"


class TextOutput(Struct, frozen=True, gc=False):
    """Text or reasoning. `written`: the model wrote this reasoning into its text."""

    text: str
    channel: Channel
    written: bool = False


class CallStarted(Struct, frozen=True, gc=False):
    """A call begins. `table` is the name of its format, `channel` where the model wrote it."""

    id: str
    name: str
    table: str
    channel: Channel


class Arguments(Struct, frozen=True, gc=False):
    """More of the arguments of the open call."""

    text: str


class CallEnded(Struct, frozen=True, gc=False):
    """The open call ends."""

    complete: bool = True  # False: it was cut off (docs/decisions/responses.md#d7), or its arguments are not valid JSON


class EngineNote(Struct, frozen=True, gc=False):
    """A change that a note reports. `rule` is the last part of the note's rule name."""

    rule: str
    detail: str


EngineOutput: TypeAlias = TextOutput | CallStarted | Arguments | CallEnded | EngineNote


class ParsedItem(Struct, frozen=True, omit_defaults=True):
    """One text, call or note of a reply, in reading order."""

    kind: str  # text, reasoning, call, note
    text: str = ""
    id: str = ""
    name: str = ""
    table: str = ""
    arguments: str = ""
    complete: bool = True
    rule: str = ""


def merge_outputs(outputs: Iterable[EngineOutput]) -> Iterator[ParsedItem]:
    """Yield the items of a reply, with the pieces of each text and each call merged."""
    text_so_far, channel = "", ""
    call, arguments_so_far = ParsedItem("call"), ""
    for output in outputs:
        if text_so_far and not (isinstance(output, TextOutput) and output.channel.value == channel):
            yield ParsedItem(channel, text=text_so_far)
            text_so_far = ""
        match output:
            case TextOutput():
                text_so_far, channel = text_so_far + output.text, output.channel.value
            case CallStarted():
                call, arguments_so_far = ParsedItem("call", id=output.id, name=output.name, table=output.table), ""
            case Arguments():
                arguments_so_far += output.text
            case CallEnded(complete=complete):
                yield structs.replace(call, arguments=arguments_so_far, complete=complete)
            case EngineNote():
                yield ParsedItem("note", text=output.detail, rule=output.rule)
    if text_so_far:
        yield ParsedItem(channel, text=text_so_far)


# --- A call while it is read


Mode: TypeAlias = Literal["live", "buffered"]


class PendingCall:
    """A call while it is read. It buffers the arguments until `start`, then sends them at once."""

    __slots__ = ("_header", "_muted", "_pieces", "_tools", "channel", "is_dropped", "is_streaming", "name", "table")

    def __init__(
        self, table: Table, header: CallHeader, channel: Channel, tools: DeclaredTools, *, muted: bool
    ) -> None:
        self.table = table
        self.name = header.name
        self.channel = channel
        self.is_streaming = False  # arguments are sent while they arrive
        self.is_dropped = False  # it is certainly a call, and tool_choice is none: nothing is sent
        self._header = header
        self._tools = tools
        self._muted = muted
        self._pieces: list[str] = []

    @property
    def arguments(self) -> str:
        """The buffered arguments of a call that has not started."""
        return "".join(self._pieces)

    def start(self, ids: CallIds, out: list[EngineOutput]) -> None:
        """Send the start of the call and its buffered arguments."""
        id_, own = ids.assign(self._header, self.name, self.table.numbered)
        out.append(CallStarted(id_, self.name, self.table.name, self.channel))
        if not own and self.table.numbered:
            out.append(EngineNote("id_minted", f"the call of {self.name} has no unused id of its own; it gets {id_}"))
        self.is_streaming = True
        if self._pieces:
            out.append(Arguments("".join(self._pieces)))
            self._pieces = []

    def write(self, piece: str, out: list[EngineOutput]) -> None:
        """Send or buffer more arguments."""
        if self.is_streaming:
            out.append(Arguments(piece))
        elif not self.is_dropped:
            self._pieces.append(piece)

    def infer(self, out: list[EngineOutput]) -> bool:
        """Find the name of a nameless call by its arguments; return False if they fit no tool."""
        self.name = self._tools.infer(self.arguments) or ""
        if self.name:
            out.append(EngineNote("name_inferred", f"a call has no name; its arguments fit {self.name}"))
        return bool(self.name)

    def end(self, closed: bool, valid: bool, out: list[EngineOutput]) -> bool:
        """Send the end of the call; return whether a client can carry it out."""
        if self._muted:
            out.append(EngineNote("suppressed", f"a call of {self.name or 'a tool'} was left out: tool_choice is none"))
            return False
        complete = closed and valid
        out.append(CallEnded(complete))
        if not closed:
            out.append(EngineNote("cut_off", f"the call of {self.name} was cut off; it is sent as far as it arrived"))
        elif not valid:
            out.append(EngineNote("broken_arguments", f"the arguments of the call of {self.name} are not valid JSON"))
        return complete


# --- Text from a marker on, while it is not certain whether it is a call


class PendingText:
    """All text since a marker. In the end either the raw text is sent, or the outputs in `out`.

    `quotation`: a quotation that was open before the marker; if it is closed after the calls, they are text.
    `strict`: the calls count only if they are complete, and their tools are declared and get all required arguments.
    """

    def __init__(self, outer: list[EngineOutput], begin: int, quotation: Quotation | None = None) -> None:
        self.outer = outer  # the output list to return to
        self.out: list[EngineOutput] = []
        self.quotation = quotation
        self.strict = False
        self.strays: list[str] = []  # markers that belong to no call
        self.noise = False  # there was other text between the markers
        self.line = ""  # text since the last line end or call, which may close a quotation
        self.calls = 0
        self.fits = True  # every call so far is complete, declared and has its required arguments
        self.saved_state: tuple[CallIds, int, int] | None = None  # engine state to restore if the calls are text
        self._raw: list[str] = []  # the held parts of earlier texts
        self._size = 0
        self._begin = begin  # where the held text begins in the current text
        self._body = -1

    @property
    def is_call(self) -> bool:
        """Whether the arguments of a call have begun."""
        return self._body >= 0

    @property
    def is_certain(self) -> bool:
        """Whether the buffered text is known to be tool calls, not plain text."""
        return self.calls > 0 and self.fits

    def size(self, end: int) -> int:
        """Return the number of held characters, up to a position in the current text."""
        return self._size + end - self._begin

    def begin_body(self, at: int) -> None:
        """Record that the arguments of a call begin at a position in the current text."""
        self._body = self.size(at)

    def body_size(self, end: int) -> int:
        """Return how many characters of the current call's arguments are buffered before `end`."""
        return self.size(end) - self._body

    def text(self, text: str, end: int) -> str:
        """Return the held text, up to a position in the current text."""
        return "".join(self._raw) + text[self._begin : end]

    def keep(self, text: str, end: int) -> int:
        """Store the part of the current text that was read; return the number of held characters."""
        self._raw.append(text[self._begin : end])
        self._size = self.size(end)
        self._begin = 0
        return self._size

    @property
    def start_in_text(self) -> int | None:
        """Where the held text begins in the current text; None if it began in an earlier text."""
        return None if self._raw else self._begin

    def all_outputs(self) -> list[EngineOutput]:
        """Return the outputs to send if this is a call, with a note for each part that is left out."""
        notes: list[EngineOutput] = [stray_note(literal) for literal in self.strays]
        if self.noise:
            notes.append(EngineNote("noise", "text between the markers of a section was left out"))
        return [*notes, *self.out]


def stray_note(literal: str) -> EngineNote:
    """Return the note about a marker that belongs to no call."""
    return EngineNote("stray_marker", f"{literal} belongs to no call and was removed")
