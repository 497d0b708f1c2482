"""Which event may follow which. Decoders guarantee it, ways back preserve it, encoders rely on it.

stream  = Started item* (Finished | Failed)  |  Failed
item    = BlockStarted (fresh key, its choice not stopped)
        | a delta of the block's own kind, Sealed (once), Cited, BlockEnded   (while the block is open)
        | UsageReported | OpaqueEvent
        | Stopped (once per choice, after its last block)
"""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.errors import OutOfOrder
from dragoman.model.blocks import Media, Opaque, Reasoning, Text, ToolCall
from dragoman.model.events import (
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    Cited,
    Event,
    Failed,
    Finished,
    ReasoningDelta,
    Sealed,
    Started,
    Stopped,
    TextDelta,
)

# What may come for an open block, by the block's kind.
_GROWS_BY: dict[type, frozenset[type]] = {
    Text: frozenset({TextDelta, Cited, Sealed}),
    Reasoning: frozenset({ReasoningDelta, Sealed}),
    ToolCall: frozenset({ArgumentsDelta, Sealed}),
    Media: frozenset(),
    Opaque: frozenset(),
}


class Grammar:
    """Check a stream of events one by one; raises OutOfOrder at the first that may not come here."""

    def __init__(self) -> None:
        self._begun = False
        self._over = False
        self._open: dict[int, BlockStarted] = {}
        self._keys: set[int] = set()
        self._sealed: set[int] = set()
        self._stopped: set[int] = set()

    @property
    def over(self) -> bool:
        return self._over

    def check(self, events: Iterable[Event]) -> None:
        for event in events:
            problem = self._problem(event)
            if problem:
                raise OutOfOrder(f"{type(event).__name__}: {problem}")

    def _problem(self, event: Event) -> str:
        if self._over:
            return "the stream is over"
        match event:
            case Failed():
                self._over = True
                return ""
            case Started():
                again, self._begun = self._begun, True
                return "the stream has started already" if again else ""
            case _ if not self._begun:
                return "the stream has not started"
            case Finished():
                self._over = True
                return "blocks are open" if self._open else ""
            case BlockStarted():
                return self._block_started(event)
            case BlockEnded(key):
                return "" if self._open.pop(key, None) else "the block is not open"
            case Stopped(_, choice):
                return self._stopped_problem(choice)
            case TextDelta() | ReasoningDelta() | ArgumentsDelta() | Sealed() | Cited():
                return self._growth(event)
            case _:
                return ""

    def _block_started(self, event: BlockStarted) -> str:
        if event.key in self._keys:
            return f"key {event.key} was used before"
        if event.choice in self._stopped:
            return f"choice {event.choice} has stopped"
        self._keys.add(event.key)
        self._open[event.key] = event
        return ""

    def _stopped_problem(self, choice: int) -> str:
        if choice in self._stopped:
            return f"choice {choice} has stopped already"
        if any(started.choice == choice for started in self._open.values()):
            return f"choice {choice} has open blocks"
        self._stopped.add(choice)
        return ""

    def _growth(self, event: TextDelta | ReasoningDelta | ArgumentsDelta | Sealed | Cited) -> str:
        started = self._open.get(event.key)
        if started is None:
            return f"block {event.key} is not open"
        if type(event) not in _GROWS_BY[type(started.block)]:
            return f"block {event.key} is a {type(started.block).__name__}"
        if isinstance(event, Sealed):
            if event.key in self._sealed:
                return f"block {event.key} is sealed already"
            self._sealed.add(event.key)
        return ""


def check(events: Iterable[Event]) -> None:
    """Raise OutOfOrder unless `events` is one whole stream."""
    grammar = Grammar()
    grammar.check(events)
    if not grammar.over:
        raise OutOfOrder("the stream has no end")
