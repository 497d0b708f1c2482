"""Events: a reply as it grows. Blocks have keys, not indices: unique in an answer, several may be open at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct

from dragoman.errors import Fault
from dragoman.model.blocks import Block, Extra, Media, Opaque, Reasoning, Seal, Text, ToolCall
from dragoman.model.budget import Budget, json_size, text_size
from dragoman.model.conversation import Stop, Usage
from dragoman.wire.jsonio import Json

_EVENT = 128  # bytes of an event, beside what it says


class BlockKeys:
    """Gives every block of one answer its key. The decoder and all response filters of the answer ask the same one.

    `budget` counts what they keep of the answer.
    """

    __slots__ = ("_next", "budget")

    def __init__(self, first: int = 0, budget: Budget | None = None) -> None:
        self._next = first
        self.budget = budget or Budget()

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
    place: int | None = None


class TextDelta(Struct, frozen=True, gc=False, tag=True):
    key: int
    text: str


class ReasoningDelta(Struct, frozen=True, gc=False, tag=True):
    key: int
    text: str


class ArgumentsDelta(Struct, frozen=True, gc=False, tag=True):
    key: int
    text: str


class Sealed(Struct, frozen=True, tag=True):
    key: int
    seal: Seal


class Cited(Struct, frozen=True, tag=True):
    key: int
    citation: Opaque


class BlockEnded(Struct, frozen=True, gc=False, tag=True):
    key: int
    complete: bool = True  # False: its end never came (D7)


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
    | Sealed
    | Cited
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
        case Sealed(_, seal):
            return _EVENT + text_size(seal.data)
        case Cited(_, citation):
            return _EVENT + json_size(citation)
        case BlockStarted(_, (Media() | Opaque()) as block):
            return _EVENT + json_size(block.data)
        case OpaqueEvent(data=data):
            return _EVENT + json_size(data)
        case _:
            return _EVENT


Delta: TypeAlias = TextDelta | ReasoningDelta | ArgumentsDelta


class Step(Struct, frozen=True, gc=False):
    """One wire frame: what it meant, and itself. Empty `raw`: it has no frame of its own.

    `unread` says why the frame could not be read. It has no events then, and its bytes only if they may be passed on.
    """

    events: Events
    raw: bytes = b""
    unread: str = ""
