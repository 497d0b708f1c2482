"""fold: events into a whole reply; unfold: the way back. By these two, whole answers take the streamed path."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from msgspec import structs

from dragoman.errors import Truncated, UpstreamFault
from dragoman.model.blocks import Block, Opaque, Reasoning, Seal, Text, ToolCall
from dragoman.model.budget import AnswerLimits, Budget, KeptText
from dragoman.model.conversation import Choice, Reply, Stop, Usage, Why
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockKeys,
    BlockStarted,
    Cited,
    Event,
    Events,
    Failed,
    Finished,
    ReasoningDelta,
    Sealed,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
    event_size,
)
from dragoman.model.notes import Notes
from dragoman.wire import jsonio


class _Growing:
    """A block under construction."""

    def __init__(self, started: BlockStarted, budget: Budget) -> None:
        self.block = started.block
        self.choice = started.choice
        self.pieces = KeptText(budget)
        self.citations: list[Opaque] = []
        self.seal: Seal | None = None
        self.complete = False

    def built(self) -> Block:
        text = self.pieces.text()
        match self.block:
            case Text() as block:
                seal = self.seal or block.seal
                return structs.replace(
                    block, text=block.text + text, seal=seal, citations=(*block.citations, *self.citations)
                )
            case Reasoning() as block:
                return structs.replace(block, text=block.text + text, seal=self.seal or block.seal)
            case ToolCall() as block:
                return structs.replace(block, arguments=block.arguments + text, seal=self.seal or block.seal)
            case whole:
                return whole


class Assembly:
    """A whole reply while its events come. Without a budget there is no limit to it."""

    def __init__(self, budget: Budget | None = None) -> None:
        self._budget = budget or Budget(AnswerLimits(answer=sys.maxsize))
        self._started: Started | None = None
        self._usage: Usage | None = None
        self._growing: dict[int, _Growing] = {}
        self._stops: dict[int, Stop] = {}
        self._finished = False

    def add(self, event: Event) -> None:
        """Take the next event. Raises the fault of a failed stream."""
        growing = self._growing
        match event:
            case TextDelta(key, text) | ReasoningDelta(key, text) | ArgumentsDelta(key, text):
                growing[key].pieces.add(text)
            case BlockStarted():
                self._budget.keep(event_size(event))
                growing[event.key] = _Growing(event, self._budget)
            case BlockEnded(key, complete):
                growing[key].complete = complete
            case Sealed(key, seal):
                self._budget.keep(event_size(event))
                growing[key].seal = seal
            case Cited(key, citation):
                self._budget.keep(event_size(event))
                growing[key].citations.append(citation)
            case Started():
                self._started, self._usage = event, event.usage or self._usage
            case UsageReported():
                self._usage = event.usage
            case Stopped():
                self._stops[event.choice] = event.stop
            case Failed(fault):
                raise UpstreamFault(fault.message, fault=fault)
            case Finished():
                self._finished = True
            case _:
                pass  # an OpaqueEvent belongs to streams alone

    def reply(self, notes: Notes | None = None) -> Reply:
        """Return the whole reply. Raises Truncated for a stream without an end."""
        started = self._started
        if started is None or not self._finished:
            raise Truncated("the stream ended before its end")
        growing = self._growing.values()
        choices = {index: _choice(index, stop, growing, notes) for index, stop in self._stops.items()}
        told = tuple(choices[index] for index in sorted(choices))
        return Reply(started.id, started.model, told, self._usage, extra=started.extra)


def fold(events: Iterable[Event], notes: Notes | None = None) -> Reply:
    """Assemble a whole reply. Raises the fault of a failed stream, and Truncated for one without an end."""
    assembly = Assembly()
    for event in events:
        assembly.add(event)
    return assembly.reply(notes)


def _choice(index: int, stop: Stop, growing: Iterable[_Growing], notes: Notes | None) -> Choice:
    blocks: list[Block] = []
    for grown in growing:
        if grown.choice != index:
            continue
        block = grown.built()
        if isinstance(block, ToolCall) and not (grown.complete and _whole(block, stop)):
            if notes is not None:
                notes.dropped(
                    "stream.unfinished_call", "", f"the call of {block.name} was cut off; a whole reply leaves it out"
                )
            continue
        blocks.append(block)
    return Choice(tuple(blocks), stop)


def _whole(call: ToolCall, stop: Stop) -> bool:
    """A dialect without an end of its own for calls cannot say which one the length limit cut: their JSON can (D7)."""
    if stop.why not in (Why.LENGTH, Why.CONTEXT) or call.form == "text" or not call.arguments:
        return True
    try:
        jsonio.decode(call.arguments)
    except jsonio.JsonError:
        return False
    return True


def unfold(reply: Reply, keys: BlockKeys | None = None) -> Events:
    """Tell a whole reply as the events of a stream, with the keys of the answer it belongs to."""
    keys = keys or BlockKeys()
    events: list[Event] = [Started(reply.id, reply.model, extra=reply.extra)]
    for index, choice in enumerate(reply.choices):
        keys.budget.choice()
        for block in choice.blocks:
            events.extend(_block_events(keys.fresh(block), index, block))
        events.append(Stopped(choice.stop, index))
    if reply.usage is not None:
        events.append(UsageReported(reply.usage))
    events.append(FINISHED)
    return tuple(events)


def _block_events(key: int, choice: int, block: Block) -> Iterable[Event]:
    match block:
        case Text():
            yield BlockStarted(key, structs.replace(block, text="", seal=None, citations=()), choice)
            if block.text:
                yield TextDelta(key, block.text)
            yield from (Cited(key, citation) for citation in block.citations)
        case Reasoning():
            yield BlockStarted(key, structs.replace(block, text="", seal=None), choice)
            if block.text:
                yield ReasoningDelta(key, block.text)
        case ToolCall():
            yield BlockStarted(key, structs.replace(block, arguments="", seal=None), choice)
            if block.arguments:
                yield ArgumentsDelta(key, block.arguments)
        case whole:
            yield BlockStarted(key, whole, choice)  # type: ignore[arg-type]  # a ToolResult is no part of a reply
    seal = getattr(block, "seal", None)
    if seal is not None:
        yield Sealed(key, seal)
    yield BlockEnded(key)
