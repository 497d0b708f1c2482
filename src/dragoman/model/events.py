"""Events: a reply as it grows. Blocks have keys, not indices: unique in an answer, several may be open at once."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import Protocol, TypeAlias

from msgspec import Struct, field, structs

from dragoman.errors import Fault, ResponseTooLarge
from dragoman.model.blocks import Block, Extra, Media, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Stop, Usage
from dragoman.wire.jsonio import Json

# --- What may be kept of one answer while it comes: bytes, blocks and choices. Pure.
#
# Decoders, filters and encoders that keep a part of an answer for later count it here first. What is over a limit
# raises AnswerTooLarge, so the stream ends with an error and nothing grows further. What passes at once is not
# counted.


_BLOCK = 2048  # bytes that decoder, filters and encoder together have for one block, beside what it says
_CHOICE = 8192  # the same for a choice
_STEP = 16 * 1024  # bytes for which the account of all answers is asked at once
_COPIES = 4  # of the id and the name of a call: decoder, filters and encoder each have theirs
_NODE, _ITEM = 64, 8  # bytes of a JSON value and of a place in an array or an object
_WIDE = 4  # bytes of a character where a text is not ASCII


class ResponseLimits(Struct, frozen=True):
    """What one answer may make the translation keep."""

    answer: int = 32 * 1024 * 1024  # bytes
    blocks: int = 4096  # calls, texts, thoughts and all others
    choices: int = 128


class SharedBudget(Protocol):
    """What all answers together keep. `keep` raises where there is no room."""

    def keep(self, size: int) -> None: ...
    def free(self, size: int) -> None: ...


class ResponseBudget(Struct, eq=False):
    """Counts what is kept of one answer. `account`, if there is one, counts it among all answers too."""

    limits: ResponseLimits = ResponseLimits()
    account: SharedBudget | None = None
    reserved: int = 0  # bytes that are kept now
    _room: int = 0  # that need not be asked for
    _blocks: int = 0
    _choices: int = 0
    _copy: ResponseBudget | None = None

    def reserve(self, size: int) -> None:
        """Count bytes before they are kept. Raises AnswerTooLarge, or what the account raises; then none are."""
        kept, most = self.reserved + size, self.limits.answer
        if kept > self._room:
            if kept > most:
                raise ResponseTooLarge(f"more than {most} bytes of the answer have to be kept, the limit (answer)")
            if self.account is None:
                self._room = most
            else:
                more = -(-(kept - self._room) // _STEP) * _STEP
                self.account.keep(more)
                self._room += more
        self.reserved = kept

    def release(self, size: int) -> None:
        """Count bytes that are kept no more."""
        self.reserved -= size
        spare = self._room - self.reserved
        if self.account is not None and spare >= 2 * _STEP:
            spare -= spare % _STEP
            self._room -= spare
            self.account.free(spare)

    def block(self, block: Block | None) -> None:
        """Count one more block, with its id, name and extra fields, until the answer ends."""
        if self._blocks >= self.limits.blocks:
            raise ResponseTooLarge(f"the answer has more than {self.limits.blocks} blocks, the limit (blocks)")
        self._blocks += 1
        self.reserve(_BLOCK if block is None else _BLOCK + block_size(block))

    def choice(self) -> None:
        """Count one more choice."""
        if self._choices >= self.limits.choices:
            raise ResponseTooLarge(f"the answer has more than {self.limits.choices} choices, the limit (choices)")
        self._choices += 1
        self.reserve(_CHOICE)

    def copy(self) -> ResponseBudget:
        """Return a budget with the same limits for a second copy of the answer. It is closed with this one."""
        self._copy = ResponseBudget(self.limits, self.account)
        return self._copy

    def close(self) -> None:
        """Give back all that is counted: the answer is given up, and another may come instead."""
        if self._copy is not None:
            self._copy.close()
        if self.account is not None:
            self.account.free(self._room)
            self._room = 0
        self.reserved = 0


class TextBuffer(Struct, eq=False):
    """Text that is kept piece by piece until it is needed as a whole, and counted."""

    _budget: ResponseBudget
    _text: StringIO | None = None  # a list of small pieces would take ten times as much
    _length: int = 0
    _width: int = 1

    def __len__(self) -> int:
        return self._length

    def add(self, text: str) -> None:
        """Keep one more piece. Raises AnswerTooLarge."""
        length = len(text)
        if self._width == 1 and not text.isascii():
            self._budget.reserve((_WIDE - 1) * self._length)
            self._width = _WIDE
        self._budget.reserve(self._width * length)
        self._length += length
        if self._text is None:
            self._text = StringIO()
        self._text.write(text)

    def text(self) -> str:
        return "" if self._text is None else self._text.getvalue()

    def take(self) -> str:
        """Return the text, which is kept no more."""
        if self._text is None:
            return ""
        text = self._text.getvalue()
        self._budget.release(self._width * self._length)
        self._text, self._length, self._width = None, 0, 1
        return text


class BufferedSize(Struct, eq=False):
    """Bytes that somebody else keeps, counted whenever their number changes."""

    _budget: ResponseBudget
    size: int = 0

    def set(self, size: int) -> None:
        """Count so many instead of those before. Raises AnswerTooLarge."""
        more = size - self.size
        if more > 0:
            self._budget.reserve(more)
        elif more:
            self._budget.release(-more)
        self.size = size


def text_size(text: str) -> int:
    """Bytes that a string takes, about."""
    return _NODE + (len(text) if text.isascii() else _WIDE * len(text))


def json_size(*values: object) -> int:
    """Bytes that JSON values take in memory, about."""
    size, todo = 0, list(values)
    while todo:
        value = todo.pop()
        size += _NODE
        if isinstance(value, str):
            size += text_size(value)
        elif isinstance(value, dict):
            size += 2 * _NODE + sum(map(text_size, value)) + _ITEM * len(value)
            todo += value.values()
        elif isinstance(value, list | tuple):
            size += _ITEM * len(value)
            todo += value
        elif isinstance(value, Struct):
            todo += structs.astuple(value)
        elif isinstance(value, bytes):
            size += len(value)
    return size


def block_size(block: Block) -> int:
    """Bytes that the id, the name and the extra fields of a block take, wherever they are kept."""
    size = json_size(block.extra.fields) if block.extra is not None else 0
    return size + _COPIES * (text_size(block.id) + text_size(block.name)) if isinstance(block, ToolCall) else size


_EVENT = 128  # bytes of an event, beside what it says


class BlockKeys(Struct, eq=False):
    """Gives every block of one answer its key. The decoder and all response filters of the answer ask the same one.

    `budget` counts what they keep of the answer.
    """

    _next: int = 0
    budget: ResponseBudget = field(default_factory=ResponseBudget)

    @classmethod
    def after(cls, events: Iterable[Event]) -> BlockKeys:
        """Return keys for filters of events that were made without a decoder: none of theirs is given again."""
        return cls(max((event.key for event in events if isinstance(event, BlockStarted)), default=-1) + 1)

    def fresh(self, block: Block | None = None) -> int:
        """Return a key that no block of this answer has, and count the block. Raises AnswerTooLarge."""
        self.budget.block(block)
        key = self._next
        self._next = key + 1
        return key


class Started(Struct, frozen=True, tag=True):
    id: str
    model: str
    usage: Usage | None = None
    extra: Extra | None = None


class BlockStarted(Struct, frozen=True, tag=True):
    """A block begins. Media and Opaque come whole; the others come empty and grow by deltas.

    `place` is the block's number in the upstream's own frames, if they number blocks. An encoder of the same dialect
    passes frames of the block unchanged only if it gives the block the same number.
    """

    key: int
    block: Text | Reasoning | ToolCall | Media | Opaque
    choice: int = 0
    wire_index: int | None = None


class TextDelta(Struct, frozen=True, gc=False, tag=True):
    key: int
    text: str


class ReasoningDelta(Struct, frozen=True, gc=False, tag=True):
    key: int
    text: str


class ArgumentsDelta(Struct, frozen=True, gc=False, tag=True):
    key: int
    text: str


class SignatureAdded(Struct, frozen=True, tag=True):
    key: int
    signature: Signature


class CitationAdded(Struct, frozen=True, tag=True):
    key: int
    citation: Opaque


class BlockEnded(Struct, frozen=True, gc=False, tag=True):
    key: int
    is_complete: bool = True  # False: its end never came (docs/decisions/answers.md#d7)


class UsageReported(Struct, frozen=True, tag=True):
    """The counts so far; each replaces the last."""

    usage: Usage


class Stopped(Struct, frozen=True, tag=True):
    stop: Stop
    choice: int = 0


class Finished(Struct, frozen=True, tag=True):
    pass


class Failed(Struct, frozen=True, tag=True):
    fault: Fault


class OpaqueEvent(Struct, frozen=True, tag=True):
    """A frame that only its own family understands."""

    family: str
    kind: str
    data: Json


Event: TypeAlias = (
    Started
    | BlockStarted
    | TextDelta
    | ReasoningDelta
    | ArgumentsDelta
    | SignatureAdded
    | CitationAdded
    | BlockEnded
    | UsageReported
    | Stopped
    | Finished
    | Failed
    | OpaqueEvent
)
Events: TypeAlias = tuple[Event, ...]

FINISHED = Finished()


def event_size(event: Event) -> int:
    """Bytes that an event takes, about."""
    match event:
        case TextDelta(_, text) | ReasoningDelta(_, text) | ArgumentsDelta(_, text):
            return _EVENT + text_size(text)
        case SignatureAdded(_, signature):
            return _EVENT + text_size(signature.data)
        case CitationAdded(_, citation):
            return _EVENT + json_size(citation)
        case BlockStarted(_, (Media() | Opaque()) as block):
            return _EVENT + json_size(block.data)
        case OpaqueEvent(data=data):
            return _EVENT + json_size(data)
        case _:
            return _EVENT


Delta: TypeAlias = TextDelta | ReasoningDelta | ArgumentsDelta


class DecodedFrame(Struct, frozen=True, gc=False):
    """One wire frame: what it meant, and itself. Empty `raw`: it has no frame of its own.

    `unread` says why the frame could not be read. It has no events then, and its bytes only if they may be passed on.
    """

    events: Events
    raw: bytes = b""
    decode_error: str = ""
