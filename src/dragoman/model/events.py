"""Events of a streamed reply, and the memory budget of one response. Pure.

A block has a key, not an index: keys are unique in a response, and several blocks may be open at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import Protocol, TypeAlias

from msgspec import Struct, field, structs

from dragoman.errors import Fault, ResponseTooLarge
from dragoman.model.blocks import Block, Extra, Media, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Stop, Usage
from dragoman.wire.jsonio import Json

# --- The memory budget of one response: bytes, blocks and choices.
#
# Decoders, filters and encoders that buffer a part of a response reserve its size here first. Over a limit they raise
# ResponseTooLarge, so the stream ends with an error and no buffer grows further. Data that is passed on at once is not
# counted.


_BLOCK = 2048  # bytes of state that decoder, filters and encoder together have for one block, without its content
_CHOICE = 8192  # the same for a choice
_STEP = 16 * 1024  # bytes that are reserved from the shared budget at a time
_COPIES = 4  # of the id and the name of a call: decoder, filters and encoder each keep one
_NODE, _ITEM = 64, 8  # bytes of a JSON value, and of an item of an array or object
_WIDE = 4  # bytes of a character of text that is not ASCII


class ResponseLimits(Struct, frozen=True):
    """How much of one response a translation may buffer."""

    max_bytes: int = 32 * 1024 * 1024  # the setting server.limits.answer
    blocks: int = 4096  # calls, texts, thoughts and all others
    choices: int = 128


class SharedBudget(Protocol):
    """The memory budget of all responses together."""

    def keep(self, size: int) -> None:
        """Reserve bytes. Raises an error if fewer are free."""

    def free(self, size: int) -> None:
        """Return reserved bytes."""


class ResponseBudget(Struct, eq=False):
    """The memory budget of one response. `account`, if given, is the budget of all responses together."""

    limits: ResponseLimits = ResponseLimits()
    account: SharedBudget | None = None
    reserved: int = 0  # bytes that are buffered now
    _room: int = 0  # bytes that the shared budget has granted
    _blocks: int = 0
    _choices: int = 0
    _copy: ResponseBudget | None = None

    def reserve(self, size: int) -> None:
        """Reserve bytes before they are buffered. Raises ResponseTooLarge or the shared budget's error."""
        reserved, most = self.reserved + size, self.limits.max_bytes
        if reserved > self._room:
            if reserved > most:
                raise ResponseTooLarge(
                    f"more than {most} bytes of the response would have to be buffered (limit: answer)"
                )
            if self.account is None:
                self._room = most
            else:
                more = -(-(reserved - self._room) // _STEP) * _STEP
                self.account.keep(more)
                self._room += more
        self.reserved = reserved

    def release(self, size: int) -> None:
        """Return bytes that are no longer buffered."""
        self.reserved -= size
        spare = self._room - self.reserved
        if self.account is not None and spare >= 2 * _STEP:
            spare -= spare % _STEP
            self._room -= spare
            self.account.free(spare)

    def block(self, block: Block | None) -> None:
        """Count one more block, with its id, name and extra fields. Raises ResponseTooLarge."""
        if self._blocks >= self.limits.blocks:
            raise ResponseTooLarge(f"the response has more than {self.limits.blocks} blocks (limit: blocks)")
        self._blocks += 1
        self.reserve(_BLOCK if block is None else _BLOCK + block_size(block))

    def choice(self) -> None:
        """Count one more choice. Raises ResponseTooLarge."""
        if self._choices >= self.limits.choices:
            raise ResponseTooLarge(f"the response has more than {self.limits.choices} choices (limit: choices)")
        self._choices += 1
        self.reserve(_CHOICE)

    def copy(self) -> ResponseBudget:
        """Return a budget with the same limits for a second copy of the response. It is closed with this one."""
        self._copy = ResponseBudget(self.limits, self.account)
        return self._copy

    def close(self) -> None:
        """Return all reserved bytes: the response is abandoned, and a retry may follow."""
        if self._copy is not None:
            self._copy.close()
        if self.account is not None:
            self.account.free(self._room)
            self._room = 0
        self.reserved = 0


class TextBuffer(Struct, eq=False):
    """A text buffer that counts its size in a budget."""

    _budget: ResponseBudget
    _text: StringIO | None = None  # a list of small strings would take ten times the memory
    _length: int = 0
    _width: int = 1

    def __len__(self) -> int:
        return self._length

    def add(self, text: str) -> None:
        """Append text. Raises ResponseTooLarge."""
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
        """Return the text, which stays in the buffer."""
        return "" if self._text is None else self._text.getvalue()

    def take(self) -> str:
        """Return the text and empty the buffer."""
        if self._text is None:
            return ""
        text = self._text.getvalue()
        self._budget.release(self._width * self._length)
        self._text, self._length, self._width = None, 0, 1
        return text


class BufferedSize(Struct, eq=False):
    """The size of a buffer elsewhere, counted in a budget whenever it changes."""

    _budget: ResponseBudget
    size: int = 0

    def set(self, size: int) -> None:
        """Set the current size. Raises ResponseTooLarge."""
        more = size - self.size
        if more > 0:
            self._budget.reserve(more)
        elif more:
            self._budget.release(-more)
        self.size = size


def text_size(text: str) -> int:
    """Return about how many bytes a string takes in memory."""
    return _NODE + (len(text) if text.isascii() else _WIDE * len(text))


def json_size(*values: object) -> int:
    """Return about how many bytes JSON values take in memory."""
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
    """Return about how many bytes all copies of the id, name and extra fields of a block take."""
    size = json_size(block.extra.fields) if block.extra is not None else 0
    return size + _COPIES * (text_size(block.id) + text_size(block.name)) if isinstance(block, ToolCall) else size


_EVENT = 128  # bytes of an event, without its content


class BlockKeys(Struct, eq=False):
    """The counter of block keys of one response, shared by its decoder and all response filters.

    `budget` counts what they buffer.
    """

    _next: int = 0
    budget: ResponseBudget = field(default_factory=ResponseBudget)

    @classmethod
    def after(cls, events: Iterable[Event]) -> BlockKeys:
        """Return a counter that starts after the keys of these events, for events that come from no decoder."""
        return cls(max((event.key for event in events if isinstance(event, BlockStarted)), default=-1) + 1)

    def fresh(self, block: Block | None = None) -> int:
        """Return an unused key, and count the block. Raises ResponseTooLarge."""
        self.budget.block(block)
        key = self._next
        self._next = key + 1
        return key


class Started(Struct, frozen=True, tag=True):
    """The reply begins."""

    id: str
    model: str
    usage: Usage | None = None
    extra: Extra | None = None


class BlockStarted(Struct, frozen=True, tag=True):
    """A block begins. Media and Opaque come whole; the others come empty and grow by deltas.

    `wire_index` is the block's number in the upstream's frames, if they number blocks. An encoder of the same dialect
    passes frames of the block unchanged only if it gives the block the same number.
    """

    key: int
    block: Text | Reasoning | ToolCall | Media | Opaque
    choice: int = 0
    wire_index: int | None = None


class TextDelta(Struct, frozen=True, gc=False, tag=True):
    """More text of a Text block."""

    key: int
    text: str


class ReasoningDelta(Struct, frozen=True, gc=False, tag=True):
    """More text of a Reasoning block."""

    key: int
    text: str


class ArgumentsDelta(Struct, frozen=True, gc=False, tag=True):
    """More of the arguments of a ToolCall, as text."""

    key: int
    text: str


class SignatureAdded(Struct, frozen=True, tag=True):
    """The signature of an open block; at most one per block."""

    key: int
    signature: Signature


class CitationAdded(Struct, frozen=True, tag=True):
    """One more citation of an open Text block."""

    key: int
    citation: Opaque


class BlockEnded(Struct, frozen=True, gc=False, tag=True):
    """A block ends."""

    key: int
    is_complete: bool = True  # False: the upstream never ended it (docs/decisions/responses.md#d7)


class UsageReported(Struct, frozen=True, tag=True):
    """The token counts so far; each report replaces the one before."""

    usage: Usage


class Stopped(Struct, frozen=True, tag=True):
    """A choice ends; once per choice, after its last block."""

    stop: Stop
    choice: int = 0


class Finished(Struct, frozen=True, tag=True):
    """The stream ends as it should."""


class Failed(Struct, frozen=True, tag=True):
    """The stream ends with an error."""

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
    """Return about how many bytes an event takes in memory."""
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
    """The events of one wire frame, and its bytes. `raw` is empty for events without a frame.

    `decode_error` says why a frame could not be read. There are no events then, and `raw` is set only if the bytes may
    be passed on.
    """

    events: Events
    raw: bytes = b""
    decode_error: str = ""
