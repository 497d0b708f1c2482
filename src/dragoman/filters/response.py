"""Filters with an answer half alone: the order of blocks, and the reason to stop.

serialize_blocks: blocks that are open side by side come out one after the other, and nothing is lost. The first open
block streams live; the others wait. Where calls have no end of their own, a call whose JSON is complete gives way as
soon as another block has something to say, so parallel calls sent one after the other, the usual case, all stream live.
Where they have one, only that end counts: a call that never gets it was cut off.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec import Struct, structs

from dragoman.errors import Fault
from dragoman.model import events as ev
from dragoman.model.blocks import ToolCall
from dragoman.model.conversation import Stop, StopReason
from dragoman.model.filter import (
    BLOCK_STARTS,
    NO_FEATURES,
    NO_WATCH,
    EventKinds,
    Filter,
    LaneWatch,
    Notes,
    ResponseFilter,
)
from dragoman.wire.jsonio import ObjectScanner

HELD_LIMIT = 4 * 1024 * 1024  # characters held back in one stream

_LEADING: EventKinds = BLOCK_STARTS | {ev.BlockEnded, ev.Stopped}
_SCANNING: EventKinds = _LEADING | {ev.ArgumentsDelta}


class SerializeBlocks(Filter):
    name = "serialize_blocks"
    applies_to = NO_FEATURES

    def __init__(self, *, calls_end: bool = False) -> None:
        self.answers = partial(_Queue, calls_end)


class _Waiting(Struct, eq=False):
    """A block that is not out yet, with what has come for it."""

    events: list[ev.Event]
    ended: bool = False


class _Queue(Struct, ResponseFilter, eq=False):
    """The block at the head is out and streams; `_waiting` holds the others in the order they began."""

    _calls_end: bool
    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = BLOCK_STARTS
    _head: int | None = None
    _scanner: ObjectScanner | None = None  # follows the head's arguments if it is a JSON call without an end
    _waiting: dict[int, _Waiting] = {}
    _closed_early: dict[int, bool] = {}  # a set of keys, small while it is empty
    _stops: list[ev.Event] = []  # what must come after all blocks
    _held: int = 0
    _failed: bool = False

    def lane(self, kind: type[ev.Delta], key: int) -> LaneWatch | None:
        if key != self._head or self._waiting or self._failed:
            return None
        return NO_WATCH if self._scanner is None else LaneWatch(listener=self._scanner.feed)

    def take(self, event: ev.Event) -> list[ev.Event]:
        out: list[ev.Event] = []
        match event:
            case _ if self._failed:
                return out
            case ev.BlockStarted() if self._head is None:
                self._lead(event, out)
            case ev.BlockStarted():
                self._keys.budget.reserve(ev.event_size(event))
                self._waiting[event.key] = _Waiting([event])
                if self._scanner is not None and self._scanner.is_complete:
                    self._give_way(out)
            case ev.BlockEnded(key) if key == self._head:
                out.append(event)
                self._head = self._scanner = None
                if self._waiting or self._stops:
                    self._advance(out)
            case ev.ArgumentsDelta(key, text) if key == self._head and self._scanner is not None:
                out.append(event)
                self._scanner.feed(text)
                if self._scanner.is_complete and self._waiting:
                    self._give_way(out)
            case (
                ev.TextDelta()
                | ev.ReasoningDelta()
                | ev.ArgumentsDelta()
                | ev.SignatureAdded()
                | ev.CitationAdded()
                | ev.BlockEnded()
            ) if event.key != self._head:
                self._hold(event, out)
            case ev.Stopped() if self._waiting or self._head is not None:
                self._stops.append(event)
            case _:
                self._failed = isinstance(event, ev.Failed)
                out.append(event)
        if self._waiting or self._closed_early or self._failed:
            self.reads = None
        elif self._head is None:
            self.reads = BLOCK_STARTS
        else:
            self.reads = _LEADING if self._scanner is None else _SCANNING
        return out

    def _lead(self, event: ev.BlockStarted, out: list[ev.Event]) -> None:
        self._head = event.key
        call = isinstance(event.block, ToolCall) and event.block.form == "json" and not self._calls_end
        self._scanner = ObjectScanner() if call else None
        out.append(event)

    def _hold(
        self,
        event: ev.TextDelta
        | ev.ReasoningDelta
        | ev.ArgumentsDelta
        | ev.SignatureAdded
        | ev.CitationAdded
        | ev.BlockEnded,
        out: list[ev.Event],
    ) -> None:
        """Keep an event of a block that waits.

        For a call that was closed because its JSON was complete nothing may come but white space and its end.
        """
        if event.key in self._closed_early:
            if isinstance(event, ev.ArgumentsDelta) and event.text.strip():
                self._fail("a tool call went on after its JSON was complete", out)
            return
        waiting = self._waiting[event.key]
        self._keys.budget.reserve(ev.event_size(event))
        waiting.events.append(event)
        if isinstance(event, ev.BlockEnded):
            waiting.ended = True
        elif isinstance(event, ev.TextDelta | ev.ReasoningDelta | ev.ArgumentsDelta):
            self._held += len(event.text)
            if self._held > HELD_LIMIT:
                self._fail(f"more than {HELD_LIMIT} characters of interleaved blocks had to be held back", out)

    def _fail(self, why: str, out: list[ev.Event]) -> None:
        self._failed = True
        out.append(ev.Failed(Fault("server", why)))

    def _give_way(self, out: list[ev.Event]) -> None:
        """End the head, whose JSON is complete, before its end was said."""
        if self._head is not None:
            self._closed_early[self._head] = True
            out.append(ev.BlockEnded(self._head))
        self._head = self._scanner = None
        self._advance(out)

    def _advance(self, out: list[ev.Event]) -> None:
        """Let the next blocks out: all that have ended, then the first that is still open as the new head."""
        while self._waiting and self._head is None:
            key = next(iter(self._waiting))
            waiting = self._waiting.pop(key)
            self._keys.budget.release(sum(map(ev.event_size, waiting.events)))
            for event in waiting.events:
                if isinstance(event, ev.TextDelta | ev.ReasoningDelta | ev.ArgumentsDelta):
                    self._held -= len(event.text)
                if isinstance(event, ev.BlockStarted):
                    self._lead(event, out)
                    continue
                out.append(event)
                if isinstance(event, ev.ArgumentsDelta) and self._scanner is not None:
                    self._scanner.feed(event.text)
            if waiting.ended:
                self._head = self._scanner = None
            elif self._scanner is not None and self._scanner.is_complete and self._waiting:
                self._closed_early[key] = True
                out.append(ev.BlockEnded(key))
                self._head = self._scanner = None
        if self._head is None:
            out.extend(self._stops)
            self._stops.clear()


# --- fix_stop_reason: the stop reason follows the content (docs/decisions/answers.md#d6): a completed tool call means
# TOOL,
# none means it cannot be.
#
# A call whose end never came means that the answer was cut, whatever it says of itself (docs/decisions/answers.md#d7).
# One that paused to be asked to go on has ended, for a client that cannot be told so.


_FOLLOWS = frozenset(
    {StopReason.END, StopReason.TOOL, StopReason.SEQUENCE, StopReason.PAUSE}
)  # all others say more than the content can

_IDLE: EventKinds = frozenset({ToolCall, ev.Stopped})
_IN_CALL: EventKinds = _IDLE | {ev.BlockEnded}


class FixStopReason(Filter):
    name = "fix_stop_reason"
    applies_to = NO_FEATURES

    def __init__(self, *, pauses: bool) -> None:
        self.answers = partial(_Settle, pauses)


class _Settle(Struct, ResponseFilter, eq=False):
    _pauses: bool
    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = _IDLE
    _open: dict[int, int] = {}  # key of an open call -> its choice
    _whole: dict[int, bool] = {}  # choices with calls -> whether all of them came to their end

    def take(self, event: ev.Event) -> Iterable[ev.Event]:
        match event:
            case ev.BlockStarted(key, ToolCall(), choice):
                self._open[key], self.reads = choice, _IN_CALL
            case ev.BlockEnded(key, complete) if key in self._open:
                choice = self._open.pop(key)
                self._whole[choice] = complete and self._whole.get(choice, True)
                self.reads = _IN_CALL if self._open else _IDLE
            case ev.Stopped(stop, choice) if stop.reason in _FOLLOWS:
                whole = self._whole.get(choice)  # None: no call
                if stop.reason is StopReason.PAUSE or whole is not (True if stop.reason is StopReason.TOOL else None):
                    return (ev.Stopped(self._settle(stop, whole), choice),)
            case _:
                pass
        return (event,)

    def _settle(self, stop: Stop, whole: bool | None) -> Stop:
        """The stop that agrees with the content."""
        if whole is False:
            return self._right(stop, StopReason.LENGTH, "a tool call never came to its end")
        if whole:
            return self._right(stop, StopReason.TOOL, "it made a tool call")
        if stop.reason is not StopReason.PAUSE:
            return self._right(stop, StopReason.END, "it made no tool call")
        if self._pauses:
            return stop
        self._notes.changed("stop.pause", "", "the answer paused to be asked to go on; for the client it has ended")
        return structs.replace(stop, reason=StopReason.END, extra=None)

    def _right(self, stop: Stop, why: StopReason, because: str) -> Stop:
        self._notes.changed(
            "stop.settled", "", f"the answer said it stopped by {stop.reason.value}, but {because}: {why.value}"
        )
        return structs.replace(stop, reason=why, sequence=None, extra=None)
