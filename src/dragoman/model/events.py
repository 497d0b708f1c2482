"""Events: a reply as it grows. Blocks have keys, not indices: unique, in no order, several may be open at once."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from dragoman.errors import Fault
from dragoman.model.blocks import Extra, Media, Opaque, Reasoning, Seal, Text, ToolCall
from dragoman.model.conversation import Stop, Usage
from dragoman.wire.jsonio import Json


class Started(Struct, frozen=True, tag=True):
    id: str
    model: str
    usage: Usage | None = None
    extra: Extra | None = None


class BlockStarted(Struct, frozen=True, tag=True):
    """A block begins. Media and Opaque come whole; the others come empty and grow by deltas."""

    key: int
    block: Text | Reasoning | ToolCall | Media | Opaque
    choice: int = 0


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


class Step(Struct, frozen=True, gc=False):
    """One wire frame: what it meant, and itself. Empty `raw`: it has no frame of its own."""

    events: Events
    raw: bytes = b""
