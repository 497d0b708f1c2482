"""What the engine gives: text, calls as they grow, and remarks on what it changed. No keys, no indices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from dragoman.filters.raw_tools.names import CallHeader, CallIds, DeclaredTools
from dragoman.filters.raw_tools.prose import Quotation
from dragoman.filters.raw_tools.table import Table


class Channel(Enum):
    """Whether a model gave something as text or as reasoning."""

    TEXT = "text"
    REASONING = "reasoning"


class TextOutput(Struct, frozen=True, gc=False):
    """Text or reasoning. `written`: the model wrote this reasoning into its text."""

    text: str
    channel: Channel
    written: bool = False


class CallStarted(Struct, frozen=True, gc=False):
    id: str
    name: str
    table: str
    channel: Channel


class Arguments(Struct, frozen=True, gc=False):
    text: str


class CallEnded(Struct, frozen=True, gc=False):
    complete: bool = True  # False: it was cut off (docs/decisions/answers.md#d7), or its arguments are not valid JSON


class Remark(Struct, frozen=True, gc=False):
    """Something a reader of the result should know. `rule` is the last part of a note's rule name."""

    rule: str
    detail: str


Output: TypeAlias = TextOutput | CallStarted | Arguments | CallEnded | Remark


class ParsedItem(Struct, frozen=True, omit_defaults=True):
    """One thing that the engine found, in reading order."""

    kind: str  # text, reasoning, call, remark
    text: str = ""
    id: str = ""
    name: str = ""
    table: str = ""
    arguments: str = ""
    complete: bool = True
    rule: str = ""


def merge_outputs(outputs: Iterable[Output]) -> Iterator[ParsedItem]:
    """Yield what was found, each text and each call as one, however they came."""
    said, channel = "", ""
    call, written = ParsedItem("call"), ""
    for output in outputs:
        if said and not (isinstance(output, TextOutput) and output.channel.value == channel):
            yield ParsedItem(channel, text=said)
            said = ""
        match output:
            case TextOutput():
                said, channel = said + output.text, output.channel.value
            case CallStarted():
                call, written = ParsedItem("call", id=output.id, name=output.name, table=output.table), ""
            case Arguments():
                written += output.text
            case CallEnded(complete=complete):
                yield structs.replace(call, arguments=written, complete=complete)
            case Remark():
                yield ParsedItem("remark", text=output.detail, rule=output.rule)
    if said:
        yield ParsedItem(channel, text=said)


# --- One call while it is read: it streams, or it waits for its name or its end


Mode: TypeAlias = Literal["live", "buffered"]


class PendingCall:
    """A call that is being read. Before it has started its arguments are kept; after that they go out at once."""

    __slots__ = ("_header", "_muted", "_pieces", "_tools", "channel", "is_dropped", "is_streaming", "name", "table")

    def __init__(
        self, table: Table, header: CallHeader, channel: Channel, tools: DeclaredTools, *, muted: bool
    ) -> None:
        self.table = table
        self.name = header.name
        self.channel = channel
        self.is_streaming = False  # what is read goes out at once
        self.is_dropped = False  # nothing of it goes out: it is certainly a call, and tool_choice is none
        self._header = header
        self._tools = tools
        self._muted = muted
        self._pieces: list[str] = []

    @property
    def arguments(self) -> str:
        """What was read so far of a call that waits."""
        return "".join(self._pieces)

    def start(self, ids: CallIds, out: list[Output]) -> None:
        """Tell that it begins, and what was read of it so far."""
        id_, own = ids.assign(self._header, self.name, self.table.numbered)
        out.append(CallStarted(id_, self.name, self.table.name, self.channel))
        if not own and self.table.numbered:
            out.append(Remark("id_minted", f"the call of {self.name} had no id of its own that is free; it is {id_}"))
        self.is_streaming = True
        if self._pieces:
            out.append(Arguments("".join(self._pieces)))
            self._pieces = []

    def write(self, piece: str, out: list[Output]) -> None:
        if self.is_streaming:
            out.append(Arguments(piece))
        elif not self.is_dropped:
            self._pieces.append(piece)

    def infer(self, out: list[Output]) -> bool:
        """Find the name of a call that has none by its arguments; False if they fit no tool."""
        self.name = self._tools.infer(self.arguments) or ""
        if self.name:
            out.append(Remark("name_inferred", f"a call without a name was taken for {self.name}, by its arguments"))
        return bool(self.name)

    def end(self, closed: bool, valid: bool, out: list[Output]) -> bool:
        """Tell that it is over; whether it is a call that a client can carry out."""
        if self._muted:
            out.append(Remark("suppressed", f"a call of {self.name or 'a tool'} was left out: tool_choice is none"))
            return False
        complete = closed and valid
        out.append(CallEnded(complete))
        if not closed:
            out.append(Remark("cut_off", f"the call of {self.name} was cut off; what came of it stands"))
        elif not valid:
            out.append(Remark("broken_arguments", f"the arguments of the call of {self.name} are not valid JSON"))
        return complete


# --- Hold: text from a marker on, as long as it is not certain whether it is a call


class HeldText:
    """All that was read since a marker. In the end `raw` goes out as text, or `out` instead of it.

    `quotation`: something was open before the marker; if it is closed after the calls, they are text.
    `strict`: the calls count only if they are whole, their tools declared and what these require is there.
    """

    def __init__(self, outer: list[Output], begin: int, quotation: Quotation | None = None) -> None:
        self.outer = outer  # where outputs went before, and go again
        self.out: list[Output] = []
        self.quotation = quotation
        self.strict = False
        self.strays: list[str] = []  # markers on their own
        self.noise = False  # other text stood between the markers
        self.line = ""  # since the last line end or call, where a quotation may be closed
        self.calls = 0
        self.fits = True  # every call so far may count though it is quoted or bare
        self.saved_state: tuple[CallIds, int, int] | None = None  # what a call changes, to go back to if it is text
        self._raw: list[str] = []  # of texts before this one
        self._size = 0
        self._begin = begin  # where it begins in the text that is read now
        self._body = -1

    @property
    def is_call(self) -> bool:
        """Whether the arguments of a call have begun."""
        return self._body >= 0

    @property
    def is_certain(self) -> bool:
        """Whether what was read are calls beyond doubt."""
        return self.calls > 0 and self.fits

    def size(self, end: int) -> int:
        """How many characters are held, up to a place in the text that is read now."""
        return self._size + end - self._begin

    def begin_body(self, at: int) -> None:
        """The arguments of a call begin at a place in the text that is read now."""
        self._body = self.size(at)

    def body_size(self, end: int) -> int:
        """How many characters of these arguments are held."""
        return self.size(end) - self._body

    def text(self, text: str, end: int) -> str:
        """All that is held, up to a place in the text that is read now."""
        return "".join(self._raw) + text[self._begin : end]

    def keep(self, text: str, end: int) -> int:
        """Take what was read of a text, of which the rest is seen again; return how much is held."""
        self._raw.append(text[self._begin : end])
        self._size = self.size(end)
        self._begin = 0
        return self._size

    @property
    def start_in_text(self) -> int | None:
        """Where all that is held begins in the text that is read now; None if it began in a text before."""
        return None if self._raw else self._begin

    def all_outputs(self) -> list[Output]:
        """What goes out if it is a call: the outputs, and a remark for everything that does not."""
        remarks: list[Output] = [stray_remark(literal) for literal in self.strays]
        if self.noise:
            remarks.append(Remark("noise", "text between the markers of a section was left out"))
        return [*remarks, *self.out]


def stray_remark(literal: str) -> Remark:
    return Remark("stray_marker", f"{literal} stood on its own and was removed")
