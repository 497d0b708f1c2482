"""settle_stop: the stop reason follows the content (D6): a completed tool call means TOOL, none means it cannot be.

A call whose end never came means that the answer was cut, whatever it says of itself (D7).
"""

from __future__ import annotations

from msgspec import structs

from dragoman.model.blocks import ToolCall
from dragoman.model.conversation import Conversation, Stop, Why
from dragoman.model.events import BlockEnded, BlockStarted, Event, Events, Stopped
from dragoman.model.filter import MakeBack
from dragoman.model.notes import Notes

_FOLLOWS = frozenset({Why.END, Why.TOOL, Why.SEQUENCE, Why.PAUSE})  # all others say more than the content can


class SettleStop:
    name = "settle_stop"

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        return conversation, _Settle


class _Settle:
    reads = frozenset({BlockStarted, BlockEnded, Stopped})

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._open: dict[int, int] = {}  # key of an open call -> its choice
        self._called: set[int] = set()  # choices with a completed call
        self._cut: set[int] = set()  # choices with a call whose end never came

    def feed(self, events: Events) -> Events:
        settled: list[Event] | None = None
        for index, event in enumerate(events):
            match event:
                case BlockStarted(key, ToolCall(), choice):
                    self._open[key] = choice
                case BlockEnded(key, complete):
                    choice_ended = self._open.pop(key, None)
                    if choice_ended is not None:
                        (self._called if complete else self._cut).add(choice_ended)
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
        if choice in self._cut:
            return self._right(stop, Why.LENGTH, "a tool call never came to its end")
        called = choice in self._called
        if called == (stop.why is Why.TOOL) or (stop.why is not Why.TOOL and not called):
            return stop
        if called:
            return self._right(stop, Why.TOOL, "it made a tool call")
        return self._right(stop, Why.END, "it made no tool call")

    def _right(self, stop: Stop, why: Why, because: str) -> Stop:
        self._notes.changed(
            "stop.settled", "", f"the answer said it stopped by {stop.why.value}, but {because}: {why.value}"
        )
        return structs.replace(stop, why=why, sequence=None, extra=None)
