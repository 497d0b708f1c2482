"""What the engine says: text, calls as they grow, and remarks on what it changed. No keys, no indices."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from msgspec import Struct


class Carrier(Enum):
    """Which of the model's two voices a text came in."""

    TEXT = "text"
    REASONING = "reasoning"


class Said(Struct, frozen=True, gc=False):
    text: str
    carrier: Carrier


class CallStarted(Struct, frozen=True, gc=False):
    id: str
    name: str
    table: str
    carrier: Carrier


class Arguments(Struct, frozen=True, gc=False):
    text: str


class CallEnded(Struct, frozen=True, gc=False):
    complete: bool = True  # False: neither its end marker nor the end of its JSON came (D7)


class Remark(Struct, frozen=True, gc=False):
    """Something a reader of the result should know. `rule` is the last part of a note's rule name."""

    rule: str
    detail: str


Output: TypeAlias = Said | CallStarted | Arguments | CallEnded | Remark
