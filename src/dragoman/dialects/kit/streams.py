"""Base classes for the streams of several dialects. Pure.

`BlockEventBuilder` and `DeltaEncoder` are for dialects whose deltas have no block index and whose tool calls come whole
(Gemini, Ollama). `NumberedEncoder` is for dialects that number their blocks (Anthropic, Bedrock).
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
    """Builds the block events of one reply from pieces, for a decoder.

    A piece of text or thinking continues the open block of its kind, or ends the open block and starts a new one. All
    other content ends the open block. All methods append to `events`.
    """

    def __init__(self, family: str, keys: ev.BlockKeys | None = None, choice: int = 0) -> None:
        self._family = family
        self._keys = keys or ev.BlockKeys()
        self.choice = choice
        self.key = -1  # key of the open block; -1: none is open
        self.is_reasoning = False  # the open block is reasoning
        self.has_calls = False  # the reply has a call

    @property
    def is_open(self) -> bool:
        """Whether a block of text or thinking is open."""
        return self.key >= 0

    def add(self, block: Text | Reasoning | ToolCall | Media | Opaque, events: list[ev.Event]) -> None:
        """Add a piece of text or of thinking, or a whole block of another type."""
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
        """End the open block, if there is one."""
        if self.key >= 0:
            events.append(ev.BlockEnded(self.key))
            self.key = -1

    def _piece(self, piece: Text | Reasoning, events: list[ev.Event]) -> None:
        """Add a piece of text or thinking.

        A piece with extra fields starts a new block. A text with a signature or extra fields is a block of its own. A
        signature ends its block.
        """
        is_reasoning = isinstance(piece, Reasoning)
        is_whole = not is_reasoning and (piece.signature is not None or piece.extra is not None)
        if self.key < 0 or is_reasoning != self.is_reasoning or piece.extra or is_whole:
            self.end(events)
            block = Reasoning("", self._family, extra=piece.extra) if is_reasoning else Text("", extra=piece.extra)
            self.key, self.is_reasoning = self._keys.fresh(block), is_reasoning
            events.append(ev.BlockStarted(self.key, block, self.choice))
        if piece.text:
            events.append((ev.ReasoningDelta if is_reasoning else ev.TextDelta)(self.key, piece.text))
        if piece.signature:
            events.append(ev.SignatureAdded(self.key, piece.signature))
        if piece.signature or is_whole:
            self.end(events)


def read_reply_stream(decoder: Decoder, frames: Iterable[Frame]) -> Reply:
    """Read a whole reply from the frames of a stream. Raises UpstreamViolation, or UpstreamFault if it failed."""
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
    """Writes a reply as pieces of text and thinking, and whole calls. The dialect's subclass writes the payloads.

    It relies on the grammar of events, on one block at a time (the filter `one_block`), and on the other filters: it
    raises LocalMisuse for content that they should have removed.
    """

    def __init__(self, family: str, budget: ev.ResponseBudget | None = None) -> None:
        self._family = family
        self._budget = budget or ev.ResponseBudget()
        self._calls: dict[int, tuple[ToolCall, ev.TextBuffer]] = {}  # incomplete calls
        self._stop = Stop(StopReason.END)
        self._usage: Usage | None = None

    @abstractmethod
    def start(self, event: ev.Started) -> None:
        """Record the id, the model and the extra fields of the reply."""

    @abstractmethod
    def render_text(self, text: str) -> Payload:
        """Write a piece of text."""

    @abstractmethod
    def render_thinking(self, text: str) -> Payload:
        """Write a piece of thinking."""

    @abstractmethod
    def render_call(self, call: ToolCall) -> Payload:
        """Write a whole call."""

    @abstractmethod
    def render_own_event(self, fields: dict[str, Json]) -> Payload:
        """Write an event that only this family has."""

    @abstractmethod
    def render_end(self, stop: Stop, usage: Usage | None) -> Payload:
        """Write the end of a complete reply."""

    @abstractmethod
    def render_failure(self, fault: Fault) -> Payload:
        """Write the end of a reply that failed."""

    def feed(self, events: ev.Events) -> Iterable[Payload]:
        return [payload for event in events if (payload := self._payload(event)) is not None]

    def passes(self, events: ev.Events) -> bool:
        """Record these events and let their frame pass, unless a buffered call must be sent before it."""
        if self._calls:
            return False
        self.feed(events)
        return True

    def _payload(self, event: ev.Event) -> Payload | None:
        match event:
            case ev.TextDelta(_, text):
                return self.render_text(text)
            case ev.ReasoningDelta(_, text):
                return self.render_thinking(text)
            case ev.BlockStarted():
                self._begin(event)
            case ev.ArgumentsDelta(key, text):
                self._calls[key][1].add(text)
            case ev.BlockEnded(key) if key in self._calls:
                call, pieces = self._calls.pop(key)
                return self.render_call(structs.replace(call, arguments=pieces.take()))
            case ev.Finished():
                return self.render_end(self._stop, self._usage)
            case ev.Failed(fault):
                return self.render_failure(fault)
            case ev.OpaqueEvent(family, kind, data):
                if family != self._family or not isinstance(data, dict):
                    raise LocalMisuse(f"a {self._family} stream cannot contain the {family} event {kind}")
                return self.render_own_event(data)
            case _:
                self._take(event)
        return None

    def _begin(self, event: ev.BlockStarted) -> None:
        block = event.block
        if event.choice or not isinstance(block, Text | Reasoning | ToolCall):
            raise LocalMisuse(f"a {self._family} stream cannot contain {type(block).__name__} in choice {event.choice}")
        if isinstance(block, ToolCall):
            self._calls[event.key] = block, ev.TextBuffer(self._budget)

    def _take(self, event: ev.Event) -> None:
        """Record what is written at the end. Filters have removed signatures and citations."""
        match event:
            case ev.Started():
                self._usage = event.usage
                self.start(event)
            case ev.UsageReported(usage):
                self._usage = usage
            case ev.Stopped(stop):
                self._stop = stop
            case _:
                pass  # the end of a block of text or thinking


# --- numbered blocks


ONE_CHOICE = "a stream of this dialect can have only one choice"
EventWriters: TypeAlias = Mapping[type[ev.Event], Callable[[Any, Any, list[Payload]], None]]


class NumberedEncoder(Encoder):
    """Writes replies whose blocks are numbered, from 0 in the order of their starts.

    It relies on the grammar of events and raises LocalMisuse for content that filters should have removed. The
    dialect's subclass defines its `family`, the kind of its deltas (`delta`), the field of a block's number (`number`),
    and a function for each type of event (`writers`). These are functions of the class, because bound methods would
    form a reference cycle with the encoder.
    """

    family: ClassVar[str]
    delta: ClassVar[str]
    number: ClassVar[str]
    writers: ClassVar[EventWriters]
    # Types of events of a frame that may be sent unchanged to a client of the same dialect.
    passing: ClassVar[frozenset[tuple[type, ...]]] = frozenset(
        {(ev.Started,), (ev.BlockStarted,), (ev.BlockStarted, ev.TextDelta), (ev.BlockStarted, ev.ReasoningDelta)}
        | {(ev.TextDelta,), (ev.ReasoningDelta,), (ev.ArgumentsDelta,), (ev.CitationAdded,), (ev.BlockEnded,)}
        | {(ev.Failed,), (ev.OpaqueEvent,)}
    )

    def __init__(self) -> None:
        self._index: dict[int, int] = {}  # numbers of blocks, by their keys
        self._moved: dict[int, bool] = {}  # keys of blocks with another number than in the upstream's frames
        self._usage: Usage | None = None

    def feed(self, events: ev.Events) -> Iterable[Payload]:
        out: list[Payload] = []
        for event in events:
            self.writers[type(event)](self, event, out)
        return out

    def passes(self, events: ev.Events) -> bool:
        """Record these events and return whether their frame may be sent unchanged: its block has the same number."""
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
        """Assign the next number to a block that starts."""
        if event.choice:
            raise LocalMisuse(ONE_CHOICE)
        self._index[event.key] = number = len(self._index)
        if event.wire_index != number:
            self._moved[event.key] = True

    def render_opaque_event(self, event: ev.OpaqueEvent, out: list[Payload]) -> None:
        """Write an event that only this dialect has; it may be a delta of a block."""
        data = event.data
        if event.family != self.family or not isinstance(data, dict):
            raise LocalMisuse(f"a {self.family} stream cannot contain the {event.family} event {event.kind}")
        if event.kind == self.delta:
            key = data.get(self.number)
            if not isinstance(key, int) or key not in self._index:
                return  # Its block was not written.
            data = {**data, self.number: self._index[key]}
        out.append(Payload(event.kind.encode("utf-8", "replace"), jsonio.encode(data)))


BLOCK_EVENTS = ev.TextDelta | ev.ReasoningDelta | ev.ArgumentsDelta | ev.CitationAdded | ev.BlockEnded
