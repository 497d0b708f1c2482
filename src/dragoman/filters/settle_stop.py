"""settle_stop: the stop reason follows the content (D6): a completed tool call means TOOL, none means it cannot be.

A call whose end never came means that the answer was cut, whatever it says of itself (D7). One that paused to be asked
to go on has ended, for a client that cannot be told so.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec import structs

from dragoman.model.blocks import ToolCall
from dragoman.model.conversation import Stop, Why
from dragoman.model.events import BlockEnded, BlockKeys, BlockStarted, Event, Stopped
from dragoman.model.filter import NEVER, Back, Filter, Reads
from dragoman.model.notes import Notes

_FOLLOWS = frozenset({Why.END, Why.TOOL, Why.SEQUENCE, Why.PAUSE})  # all others say more than the content can

_IDLE: Reads = frozenset({ToolCall, Stopped})
_IN_CALL: Reads = _IDLE | {BlockEnded}


class SettleStop(Filter):
    name = "settle_stop"
    concerns = NEVER

    def __init__(self, *, pauses: bool) -> None:
        self.answers = partial(_Settle, pauses)


class _Settle(Back):
    __slots__ = ("_notes", "_open", "_pauses", "_whole", "reads")

    def __init__(self, pauses: bool, notes: Notes, _keys: BlockKeys) -> None:
        self.reads = _IDLE
        self._pauses = pauses
        self._notes = notes
        self._open: dict[int, int] = {}  # key of an open call -> its choice
        self._whole: dict[int, bool] = {}  # choices with calls -> whether all of them came to their end

    def take(self, event: Event) -> Iterable[Event]:
        match event:
            case BlockStarted(key, ToolCall(), choice):
                self._open[key], self.reads = choice, _IN_CALL
            case BlockEnded(key, complete) if key in self._open:
                choice = self._open.pop(key)
                self._whole[choice] = complete and self._whole.get(choice, True)
                self.reads = _IN_CALL if self._open else _IDLE
            case Stopped(stop, choice):
                right = self._settle(stop, choice)
                return (event if right is stop else Stopped(right, choice),)
            case _:
                pass
        return (event,)

    def _settle(self, stop: Stop, choice: int) -> Stop:
        if stop.why not in _FOLLOWS:
            return stop
        if not self._whole.get(choice, True):
            return self._right(stop, Why.LENGTH, "a tool call never came to its end")
        called = choice in self._whole
        if stop.why is Why.PAUSE and not called and not self._pauses:
            self._notes.changed("stop.pause", "", "the answer paused to be asked to go on; for the client it has ended")
            return structs.replace(stop, why=Why.END, extra=None)
        if called == (stop.why is Why.TOOL):
            return stop
        if called:
            return self._right(stop, Why.TOOL, "it made a tool call")
        return self._right(stop, Why.END, "it made no tool call")

    def _right(self, stop: Stop, why: Why, because: str) -> Stop:
        self._notes.changed(
            "stop.settled", "", f"the answer said it stopped by {stop.why.value}, but {because}: {why.value}"
        )
        return structs.replace(stop, why=why, sequence=None, extra=None)
