"""settle_stop: the stop reason follows the content (D6): a completed tool call means TOOL, none means it cannot be.

A call whose end never came means that the answer was cut, whatever it says of itself (D7). One that paused to be asked
to go on has ended, for a client that cannot be told so.
"""

from __future__ import annotations

from functools import partial

from msgspec import structs

from dragoman.model.blocks import ToolCall
from dragoman.model.conversation import Conversation, Stop, Why
from dragoman.model.events import BlockEnded, BlockKeys, BlockStarted, Event, Events, Stopped
from dragoman.model.facts import Facts
from dragoman.model.filter import Back, Filter, MakeBack
from dragoman.model.notes import Notes

_FOLLOWS = frozenset({Why.END, Why.TOOL, Why.SEQUENCE, Why.PAUSE})  # all others say more than the content can


class SettleStop(Filter):
    name = "settle_stop"

    def __init__(self, *, pauses: bool) -> None:
        self._back = partial(_Settle, pauses)

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        return conversation, self._back


class _Settle(Back):
    __slots__ = ("_notes", "_open", "_pauses", "_whole")

    reads = frozenset({BlockStarted, BlockEnded, Stopped})

    def __init__(self, pauses: bool, notes: Notes, _keys: BlockKeys) -> None:
        self._pauses = pauses
        self._notes = notes
        self._open: dict[int, int] = {}  # key of an open call -> its choice
        self._whole: dict[int, bool] = {}  # choices with calls -> whether all of them came to their end

    def feed(self, events: Events) -> Events:
        settled: list[Event] | None = None
        for index, event in enumerate(events):
            match event:
                case BlockStarted(key, ToolCall(), choice):
                    self._open[key] = choice
                case BlockEnded(key, complete):
                    choice_ended = self._open.pop(key, None)
                    if choice_ended is not None:
                        self._whole[choice_ended] = complete and self._whole.get(choice_ended, True)
                case Stopped(stop, choice):
                    right = self._settle(stop, choice)
                    if right is not stop:
                        settled = settled or list(events)
                        settled[index] = Stopped(right, choice)
                case _:
                    pass
        return events if settled is None else tuple(settled)

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
