"""What the engine gives: text, calls as they grow, and remarks on what it changed. No keys, no indices."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from msgspec import Struct


class Carrier(Enum):
    """Whether a model gave something as text or as reasoning."""

    TEXT = "text"
    REASONING = "reasoning"


class Said(Struct, frozen=True, gc=False):
    """Text or reasoning. `written`: the model wrote this reasoning into its text."""

    text: str
    carrier: Carrier
    written: bool = False


class CallStarted(Struct, frozen=True, gc=False):
    id: str
    name: str
    table: str
    carrier: Carrier


class Arguments(Struct, frozen=True, gc=False):
    text: str


class CallEnded(Struct, frozen=True, gc=False):
    complete: bool = True  # False: it was cut off (D7), or its arguments are not valid JSON


class Remark(Struct, frozen=True, gc=False):
    """Something a reader of the result should know. `rule` is the last part of a note's rule name."""

    rule: str
    detail: str


Output: TypeAlias = Said | CallStarted | Arguments | CallEnded | Remark
