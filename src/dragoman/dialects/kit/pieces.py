"""Streams that tell a message piece by piece and number no blocks: what is open in them, and calls that come whole."""

from __future__ import annotations

from msgspec import structs

from dragoman.model.blocks import Reasoning, Text, ToolCall
from dragoman.model.budget import Budget, KeptText
from dragoman.model.events import (
    ArgumentsDelta,
    BlockEnded,
    BlockKeys,
    BlockStarted,
    Event,
    ReasoningDelta,
    TextDelta,
)


class Pieces:
    """The blocks of one answer as a decoder meets them: a piece goes on with the open block of its kind, or opens one.

    Whatever else comes ends the open block.
    """

    def __init__(self, family: str, keys: BlockKeys | None = None) -> None:
        self._family = family
        self._keys = keys or BlockKeys()
        self.key = -1  # of the open text or thought; -1: none is open
        self.thinks = False  # it is a thought
        self.called = False  # a call came

    @property
    def is_open(self) -> bool:
        """Whether a text or a thought is open."""
        return self.key >= 0

    def text(self, text: str, events: list[Event]) -> None:
        """Add a piece of text; nothing if it is empty."""
        if text:
            self._open(Text(""), events)
            events.append(TextDelta(self.key, text))

    def thought(self, text: str, events: list[Event]) -> None:
        """Add a piece of thinking; nothing if it is empty."""
        if text:
            self._open(Reasoning("", self._family), events)
            events.append(ReasoningDelta(self.key, text))

    def call(self, call: ToolCall, events: list[Event]) -> None:
        """Add a whole call."""
        self.end(events)
        self.called = True
        key = self._keys.fresh(call)
        events.append(BlockStarted(key, structs.replace(call, arguments="")))
        if call.arguments:
            events.append(ArgumentsDelta(key, call.arguments))
        events.append(BlockEnded(key))

    def end(self, events: list[Event]) -> None:
        """End what is open."""
        if self.key >= 0:
            events.append(BlockEnded(self.key))
            self.key = -1

    def _open(self, block: Text | Reasoning, events: list[Event]) -> None:
        thinks = isinstance(block, Reasoning)
        if self.key >= 0 and thinks == self.thinks:
            return
        self.end(events)
        self.key, self.thinks = self._keys.fresh(block), thinks
        events.append(BlockStarted(self.key, block))


class GatheredCalls:
    """Calls that an encoder holds until they are whole."""

    def __init__(self, budget: Budget | None = None) -> None:
        self._budget = budget or Budget()
        self._calls: dict[int, tuple[ToolCall, KeptText]] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def begin(self, key: int, call: ToolCall) -> None:
        """Begin to hold a call."""
        self._calls[key] = call, KeptText(self._budget)
        self._calls[key][1].add(call.arguments)

    def grow(self, key: int, text: str) -> None:
        """Add to the arguments of a call that is held."""
        self._calls[key][1].add(text)

    def take(self, key: int) -> ToolCall | None:
        """Return a call that has ended, whole; None if the block is no call."""
        held = self._calls.pop(key, None)
        return None if held is None else structs.replace(held[0], arguments=held[1].take())
