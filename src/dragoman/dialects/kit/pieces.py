"""Streams of pieces of one message, without numbers of blocks, in which calls come whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from msgspec import structs

from dragoman.dialects.base import Decoder, Encoder
from dragoman.errors import Fault, LocalMisuse, Truncated
from dragoman.model import events as ev
from dragoman.model.assemble import fold
from dragoman.model.blocks import Media, Opaque, Reasoning, Text, ToolCall
from dragoman.model.conversation import Reply, Stop, Usage, Why
from dragoman.wire.frame import Frame, Payload
from dragoman.wire.jsonio import Json


class Pieces:
    """The blocks of one answer as a decoder meets them: a piece goes on with the open block of its kind, or opens one.

    Whatever else comes ends the open block.
    """

    def __init__(self, family: str, keys: ev.BlockKeys | None = None, choice: int = 0) -> None:
        self._family = family
        self._keys = keys or ev.BlockKeys()
        self.choice = choice
        self.key = -1  # of the open text or thought; -1: none is open
        self.thinks = False  # it is a thought
        self.called = False  # a call came

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
        self.called = True
        key = self._keys.fresh(call)
        events.append(ev.BlockStarted(key, structs.replace(call, arguments="", seal=None), self.choice))
        if call.arguments:
            events.append(ev.ArgumentsDelta(key, call.arguments))
        if call.seal:
            events.append(ev.Sealed(key, call.seal))
        events.append(ev.BlockEnded(key))

    def end(self, events: list[ev.Event]) -> None:
        """End what is open."""
        if self.key >= 0:
            events.append(ev.BlockEnded(self.key))
            self.key = -1

    def _piece(self, piece: Text | Reasoning, events: list[ev.Event]) -> None:
        """Add a piece. One with fields of its own begins a block, a sealed text is a block, and a seal ends one."""
        thinks = isinstance(piece, Reasoning)
        is_whole = not thinks and (piece.seal is not None or piece.extra is not None)
        if self.key < 0 or thinks != self.thinks or piece.extra or is_whole:
            self.end(events)
            block = Reasoning("", self._family, extra=piece.extra) if thinks else Text("", extra=piece.extra)
            self.key, self.thinks = self._keys.fresh(block), thinks
            events.append(ev.BlockStarted(self.key, block, self.choice))
        if piece.text:
            events.append((ev.ReasoningDelta if thinks else ev.TextDelta)(self.key, piece.text))
        if piece.seal:
            events.append(ev.Sealed(self.key, piece.seal))
        if piece.seal or is_whole:
            self.end(events)


def reply_of(decoder: Decoder, frames: Iterable[Frame]) -> Reply:
    """Read a whole reply as the stream it is. Raises UpstreamViolation, or UpstreamFault if it failed."""
    events: list[ev.Event] = []
    for frame in frames:
        events += decoder.feed(frame) or ()
        if events and isinstance(events[-1], ev.Finished | ev.Failed):
            break
    end = decoder.close(None)
    if end and isinstance(last := end[-1], ev.Failed) and last.fault.violation:
        raise Truncated(last.fault.message)
    return fold((*events, *end))


class PieceEncoder(Encoder):
    """Writes an answer piece by piece, with whole calls. A dialect writes the pieces.

    Relies on the grammar, on one block at a time (`one_block`), and on filters: what they should have left out raises
    LocalMisuse.
    """

    def __init__(self, family: str, budget: ev.Budget | None = None) -> None:
        self._family = family
        self._budget = budget or ev.Budget()
        self._calls: dict[int, tuple[ToolCall, ev.KeptText]] = {}  # that are not whole
        self._stop = Stop(Why.END)
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
            self._calls[event.key] = block, ev.KeptText(self._budget)

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
