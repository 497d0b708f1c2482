"""Filters that change only replies: the order of blocks, and the stop reason.

`SerializeBlocks` turns interleaved blocks into consecutive ones without losing an event. The first open block, the
head, streams live; events of the other blocks are buffered. In dialects whose calls have no end event, the filter ends
a call as soon as its JSON is complete and another block has an event. Parallel calls that arrive one after the other,
the usual case, therefore all stream live. In dialects whose calls do have an end event, only that event ends a call:
a call without it was cut off.
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

BUFFER_LIMIT = 4 * 1024 * 1024  # most characters that one stream may buffer

_LEADING: EventKinds = BLOCK_STARTS | {ev.BlockEnded, ev.Stopped}
_SCANNING: EventKinds = _LEADING | {ev.ArgumentsDelta}


class SerializeBlocks(Filter):
    """Send blocks one after the other, for clients whose streams have one open block at a time.

    `calls_end`: the upstream's dialect has an event for the end of a call.
    """

    name = "serialize_blocks"
    applies_to = NO_FEATURES

    def __init__(self, *, calls_end: bool = False) -> None:
        self.make_response_filter = partial(_Queue, calls_end)


class _Waiting(Struct, eq=False):
    """A block that is buffered, with its events so far."""

    events: list[ev.Event]
    ended: bool = False


class _Queue(Struct, ResponseFilter, eq=False):
    """Sends open blocks one after the other: `_head` as it arrives; `_waiting` are buffered, in their order."""

    _calls_end: bool
    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = BLOCK_STARTS
    _head: int | None = None
    _scanner: ObjectScanner | None = None  # follows the head's arguments if it is a JSON call without an end
    _waiting: dict[int, _Waiting] = {}
    _closed_early: dict[int, bool] = {}  # a set of keys; an empty dict is smaller than an empty set
    _stops: list[ev.Event] = []  # events that must follow all blocks
    _buffered_chars: int = 0
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
                self._start_head(event, out)
            case ev.BlockStarted():
                self._keys.budget.reserve(ev.event_size(event))
                self._waiting[event.key] = _Waiting([event])
                if self._scanner is not None and self._scanner.is_complete:
                    self._close_head(out)
            case ev.BlockEnded(key) if key == self._head:
                out.append(event)
                self._head = self._scanner = None
                if self._waiting or self._stops:
                    self._advance(out)
            case ev.ArgumentsDelta(key, text) if key == self._head and self._scanner is not None:
                out.append(event)
                self._scanner.feed(text)
                if self._scanner.is_complete and self._waiting:
                    self._close_head(out)
            case (
                ev.TextDelta()
                | ev.ReasoningDelta()
                | ev.ArgumentsDelta()
                | ev.SignatureAdded()
                | ev.CitationAdded()
                | ev.BlockEnded()
            ) if event.key != self._head:
                self._buffer(event, out)
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

    def _start_head(self, event: ev.BlockStarted, out: list[ev.Event]) -> None:
        self._head = event.key
        call = isinstance(event.block, ToolCall) and event.block.form == "json" and not self._calls_end
        self._scanner = ObjectScanner() if call else None
        out.append(event)

    def _buffer(
        self,
        event: ev.TextDelta
        | ev.ReasoningDelta
        | ev.ArgumentsDelta
        | ev.SignatureAdded
        | ev.CitationAdded
        | ev.BlockEnded,
        out: list[ev.Event],
    ) -> None:
        """Buffer an event of a waiting block.

        A call that was closed because its JSON was complete may only get white space and its end.
        """
        if event.key in self._closed_early:
            if isinstance(event, ev.ArgumentsDelta) and event.text.strip():
                self._fail("a tool call sent more arguments after its JSON was complete", out)
            return
        waiting = self._waiting[event.key]
        self._keys.budget.reserve(ev.event_size(event))
        waiting.events.append(event)
        if isinstance(event, ev.BlockEnded):
            waiting.ended = True
        elif isinstance(event, ev.TextDelta | ev.ReasoningDelta | ev.ArgumentsDelta):
            self._buffered_chars += len(event.text)
            if self._buffered_chars > BUFFER_LIMIT:
                self._fail(f"more than {BUFFER_LIMIT} characters of interleaved blocks had to be buffered", out)

    def _fail(self, reason: str, out: list[ev.Event]) -> None:
        self._failed = True
        out.append(ev.Failed(Fault("server", reason)))

    def _close_head(self, out: list[ev.Event]) -> None:
        """End the head, whose JSON is complete, before its end event arrived."""
        if self._head is not None:
            self._closed_early[self._head] = True
            out.append(ev.BlockEnded(self._head))
        self._head = self._scanner = None
        self._advance(out)

    def _advance(self, out: list[ev.Event]) -> None:
        """Send the waiting blocks that have ended, then the first open one, which becomes the head."""
        while self._waiting and self._head is None:
            key = next(iter(self._waiting))
            waiting = self._waiting.pop(key)
            self._keys.budget.release(sum(map(ev.event_size, waiting.events)))
            for event in waiting.events:
                if isinstance(event, ev.TextDelta | ev.ReasoningDelta | ev.ArgumentsDelta):
                    self._buffered_chars -= len(event.text)
                if isinstance(event, ev.BlockStarted):
                    self._start_head(event, out)
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


# --- FixStopReason


_DERIVED = frozenset(
    {StopReason.END, StopReason.TOOL, StopReason.SEQUENCE, StopReason.PAUSE}
)  # the others (length, refusal, …) cannot be derived from the content

_IDLE: EventKinds = frozenset({ToolCall, ev.Stopped})
_IN_CALL: EventKinds = _IDLE | {ev.BlockEnded}


class FixStopReason(Filter):
    """Make the stop reason agree with the content (docs/decisions/responses.md#d6).

    A reply with a completed tool call stops with TOOL, a reply without one never does. A call without an end means that
    the reply was cut off, whatever its stop reason (docs/decisions/responses.md#d7). A reply that paused has ended, for
    a client without such a stop reason. `pauses`: the client's dialect has one.
    """

    name = "fix_stop_reason"
    applies_to = NO_FEATURES

    def __init__(self, *, pauses: bool) -> None:
        self.make_response_filter = partial(_StopReasonFilter, pauses)


class _StopReasonFilter(Struct, ResponseFilter, eq=False):
    _pauses: bool
    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = _IDLE
    _open: dict[int, int] = {}  # key of an open call -> its choice
    _calls_complete: dict[int, bool] = {}  # choices with calls -> whether all these calls have ended

    def take(self, event: ev.Event) -> Iterable[ev.Event]:
        match event:
            case ev.BlockStarted(key, ToolCall(), choice):
                self._open[key], self.reads = choice, _IN_CALL
            case ev.BlockEnded(key, complete) if key in self._open:
                choice = self._open.pop(key)
                self._calls_complete[choice] = complete and self._calls_complete.get(choice, True)
                self.reads = _IN_CALL if self._open else _IDLE
            case ev.Stopped(stop, choice) if stop.reason in _DERIVED:
                complete_calls = self._calls_complete.get(choice)  # None: no call
                if stop.reason is StopReason.PAUSE or complete_calls is not (
                    True if stop.reason is StopReason.TOOL else None
                ):
                    return (ev.Stopped(self._matching_stop(stop, complete_calls), choice),)
            case _:
                pass
        return (event,)

    def _matching_stop(self, stop: Stop, complete_calls: bool | None) -> Stop:
        """Return the stop that agrees with the content."""
        if complete_calls is False:
            return self._replace(stop, StopReason.LENGTH, "a tool call has no end")
        if complete_calls:
            return self._replace(stop, StopReason.TOOL, "the reply has a tool call")
        if stop.reason is not StopReason.PAUSE:
            return self._replace(stop, StopReason.END, "the reply has no tool call")
        if self._pauses:
            return stop
        self._notes.changed("stop.pause", "", "the reply paused to be continued; the client gets it as ended")
        return structs.replace(stop, reason=StopReason.END, extra=None)

    def _replace(self, stop: Stop, reason: StopReason, cause: str) -> Stop:
        self._notes.changed(
            "stop.settled", "", f"the stop reason was {stop.reason.value}, but {cause}; it is {reason.value} now"
        )
        return structs.replace(stop, reason=reason, sequence=None, extra=None)
