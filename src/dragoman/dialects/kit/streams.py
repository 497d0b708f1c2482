"""Streams of the two kinds that several dialects have: pieces of one message without numbers of blocks, in which calls
come whole, and numbered blocks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

from msgspec import structs

from dragoman.dialects.base import Decoder, Encoder
from dragoman.errors import Fault, LocalMisuse, Truncated
from dragoman.model import events as ev
from dragoman.model.assemble import assemble_reply
from dragoman.model.blocks import Media, Opaque, Reasoning, Text, ToolCall
from dragoman.model.conversation import Reply, Stop, StopReason, Usage
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame, Payload
from dragoman.wire.jsonio import Json


class BlockEventBuilder:
    """The blocks of one answer as a decoder meets them: a piece goes on with the open block of its kind, or opens one.

    Whatever else comes ends the open block.
    """

    def __init__(self, family: str, keys: ev.BlockKeys | None = None, choice: int = 0) -> None:
        self._family = family
        self._keys = keys or ev.BlockKeys()
        self.choice = choice
        self.key = -1  # of the open text or thought; -1: none is open
        self.is_reasoning = False  # it is a thought
        self.has_calls = False  # a call came

    @property
    def is_open(self) -> bool:
        """Whether a text or a thought is open."""
        return self.key >= 0

    def add(self, block: Text | Reasoning | ToolCall | Media | Opaque, events: list[ev.Event]) -> None:
        """Add a piece of text or of thinking, or a block that comes whole."""
        match block:
            case Text() | Reasoning():
                self._piece(block, events)
            case ToolCall():
                self.call(block, events)
            case whole:
                self.end(events)
                key = self._keys.fresh(whole)
                events += (ev.BlockStarted(key, whole, self.choice), ev.BlockEnded(key))

    def text(self, text: str, events: list[ev.Event]) -> None:
        """Add a piece of text; nothing if it is empty."""
        if text:
            self._piece(Text(text), events)

    def thought(self, text: str, events: list[ev.Event]) -> None:
        """Add a piece of thinking; nothing if it is empty."""
        if text:
            self._piece(Reasoning(text, self._family), events)

    def call(self, call: ToolCall, events: list[ev.Event]) -> None:
        """Add a whole call."""
        self.end(events)
        self.has_calls = True
        key = self._keys.fresh(call)
        events.append(ev.BlockStarted(key, structs.replace(call, arguments="", signature=None), self.choice))
        if call.arguments:
            events.append(ev.ArgumentsDelta(key, call.arguments))
        if call.signature:
            events.append(ev.SignatureAdded(key, call.signature))
        events.append(ev.BlockEnded(key))

    def end(self, events: list[ev.Event]) -> None:
        """End what is open."""
        if self.key >= 0:
            events.append(ev.BlockEnded(self.key))
            self.key = -1

    def _piece(self, piece: Text | Reasoning, events: list[ev.Event]) -> None:
        """Add a piece. One with fields of its own begins a block, a sealed text is a block, and a seal ends one."""
        thinks = isinstance(piece, Reasoning)
        is_whole = not thinks and (piece.signature is not None or piece.extra is not None)
        if self.key < 0 or thinks != self.is_reasoning or piece.extra or is_whole:
            self.end(events)
            block = Reasoning("", self._family, extra=piece.extra) if thinks else Text("", extra=piece.extra)
            self.key, self.is_reasoning = self._keys.fresh(block), thinks
            events.append(ev.BlockStarted(self.key, block, self.choice))
        if piece.text:
            events.append((ev.ReasoningDelta if thinks else ev.TextDelta)(self.key, piece.text))
        if piece.signature:
            events.append(ev.SignatureAdded(self.key, piece.signature))
        if piece.signature or is_whole:
            self.end(events)


def read_reply_stream(decoder: Decoder, frames: Iterable[Frame]) -> Reply:
    """Read a whole reply as the stream it is. Raises UpstreamViolation, or UpstreamFault if it failed."""
    events: list[ev.Event] = []
    for frame in frames:
        events += decoder.feed(frame) or ()
        if events and isinstance(events[-1], ev.Finished | ev.Failed):
            break
    end = decoder.close(None)
    if end and isinstance(last := end[-1], ev.Failed) and last.fault.is_violation:
        raise Truncated(last.fault.message)
    return assemble_reply((*events, *end))


class DeltaEncoder(Encoder):
    """Writes an answer piece by piece, with whole calls. A dialect writes the pieces.

    Relies on the grammar, on one block at a time (`one_block`), and on filters: what they should have left out raises
    LocalMisuse.
    """

    def __init__(self, family: str, budget: ev.ResponseBudget | None = None) -> None:
        self._family = family
        self._budget = budget or ev.ResponseBudget()
        self._calls: dict[int, tuple[ToolCall, ev.TextBuffer]] = {}  # that are not whole
        self._stop = Stop(StopReason.END)
        self._usage: Usage | None = None

    @abstractmethod
    def started(self, event: ev.Started) -> None:
        """Take the id, the model and the kept fields of the answer."""

    @abstractmethod
    def text(self, text: str) -> Payload:
        """Write a piece of text."""

    @abstractmethod
    def thought(self, text: str) -> Payload:
        """Write a piece of thinking."""

    @abstractmethod
    def call(self, call: ToolCall) -> Payload:
        """Write a whole call."""

    @abstractmethod
    def own(self, fields: dict[str, Json]) -> Payload:
        """Write what only this family has."""

    @abstractmethod
    def finished(self, stop: Stop, usage: Usage | None) -> Payload:
        """Write the end of a whole answer."""

    @abstractmethod
    def failed(self, fault: Fault) -> Payload:
        """Write the end of an answer that failed."""

    def feed(self, events: ev.Events) -> Iterable[Payload]:
        return [payload for event in events if (payload := self._payload(event)) is not None]

    def passes(self, events: ev.Events) -> bool:
        """Count these events and let their own frame through, unless a call is held that it would overtake."""
        if self._calls:
            return False
        self.feed(events)
        return True

    def _payload(self, event: ev.Event) -> Payload | None:
        match event:
            case ev.TextDelta(_, text):
                return self.text(text)
            case ev.ReasoningDelta(_, text):
                return self.thought(text)
            case ev.BlockStarted():
                self._begin(event)
            case ev.ArgumentsDelta(key, text):
                self._calls[key][1].add(text)
            case ev.BlockEnded(key) if key in self._calls:
                call, pieces = self._calls.pop(key)
                return self.call(structs.replace(call, arguments=pieces.take()))
            case ev.Finished():
                return self.finished(self._stop, self._usage)
            case ev.Failed(fault):
                return self.failed(fault)
            case ev.OpaqueEvent(family, kind, data):
                if family != self._family or not isinstance(data, dict):
                    raise LocalMisuse(f"an event {kind} of {family} has no place here")
                return self.own(data)
            case _:
                self._take(event)
        return None

    def _begin(self, event: ev.BlockStarted) -> None:
        block = event.block
        if event.choice or not isinstance(block, Text | Reasoning | ToolCall):
            raise LocalMisuse(f"{type(block).__name__} of choice {event.choice} has no place here")
        if isinstance(block, ToolCall):
            self._calls[event.key] = block, ev.TextBuffer(self._budget)

    def _take(self, event: ev.Event) -> None:
        """Take what is written at the end. Filters leave out seals and citations."""
        match event:
            case ev.Started():
                self._usage = event.usage
                self.started(event)
            case ev.UsageReported(usage):
                self._usage = usage
            case ev.Stopped(stop):
                self._stop = stop
            case _:
                pass  # the end of a text


# --- numbered blocks


ONE_CHOICE = "there is only one choice here"
EventWriters: TypeAlias = Mapping[type[ev.Event], Callable[[Any, Any, list[Payload]], None]]


class NumberedEncoder(Encoder):
    """An encoder of answers whose blocks are numbered, from 0 in the order of their starts.

    Relies on the grammar; raises LocalMisuse for content that filters should have removed. A dialect gives its family,
    the kind of its deltas, the field that holds a block's number, and what writes each type of event: functions of the
    class, because bound methods would keep their encoder until the next collection.
    """

    family: ClassVar[str]
    delta: ClassVar[str]
    number: ClassVar[str]
    writers: ClassVar[EventWriters]
    # What frames of the dialect's own decoder may mean and still go as they came: nothing in them was held back before.
    passing: ClassVar[frozenset[tuple[type, ...]]] = frozenset(
        {(ev.Started,), (ev.BlockStarted,), (ev.BlockStarted, ev.TextDelta), (ev.BlockStarted, ev.ReasoningDelta)}
        | {(ev.TextDelta,), (ev.ReasoningDelta,), (ev.ArgumentsDelta,), (ev.CitationAdded,), (ev.BlockEnded,)}
        | {(ev.Failed,), (ev.OpaqueEvent,)}
    )

    def __init__(self) -> None:
        self._index: dict[int, int] = {}  # numbers of blocks, by their keys
        self._moved: dict[int, bool] = {}  # blocks with another number than in the upstream's frames; a small set
        self._usage: Usage | None = None

    def feed(self, events: ev.Events) -> Iterable[Payload]:
        out: list[Payload] = []
        for event in events:
            self.writers[type(event)](self, event, out)
        return out

    def passes(self, events: ev.Events) -> bool:
        """Whether the frame may go as it came: it begins no block under another number."""
        if tuple(map(type, events)) not in self.passing:
            return False
        first = events[0]
        if isinstance(first, ev.BlockStarted):
            if first.wire_index != len(self._index) or first.choice:
                return False
            self._index[first.key] = first.wire_index
        elif isinstance(first, BLOCK_EVENTS):
            return first.key not in self._moved
        elif isinstance(first, ev.OpaqueEvent):
            return not (isinstance(first.data, dict) and self.number in first.data)
        return True

    def assign_number(self, event: ev.BlockStarted) -> None:
        """Give the next number to a block that begins."""
        if event.choice:
            raise LocalMisuse(ONE_CHOICE)
        self._index[event.key] = number = len(self._index)
        if event.wire_index != number:
            self._moved[event.key] = True

    def render_opaque_event(self, event: ev.OpaqueEvent, out: list[Payload]) -> None:
        """Write an event of the dialect's own, which may be a delta of a block."""
        data = event.data
        if event.family != self.family or not isinstance(data, dict):
            raise LocalMisuse(f"an event of {event.family} has no place here")
        if event.kind == self.delta:
            key = data.get(self.number)
            if not isinstance(key, int) or key not in self._index:
                return  # the block that it belongs to does not exist here
            data = {**data, self.number: self._index[key]}
        out.append(Payload(event.kind.encode("utf-8", "replace"), jsonio.encode(data)))


BLOCK_EVENTS = ev.TextDelta | ev.ReasoningDelta | ev.ArgumentsDelta | ev.CitationAdded | ev.BlockEnded
