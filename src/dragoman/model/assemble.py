"""fold: events into a whole reply; unfold: the way back. By these two, whole answers take the streamed path."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from dragoman.errors import Truncated, UpstreamFault
from dragoman.model.blocks import Block, Opaque, Reasoning, Seal, Text, ToolCall
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
)
from dragoman.model.notes import Notes
from dragoman.wire import jsonio


class _Growing:
    """A block under construction."""

    def __init__(self, started: BlockStarted) -> None:
        self.block = started.block
        self.choice = started.choice
        self.pieces: list[str] = []
        self.citations: list[Opaque] = []
        self.seal: Seal | None = None
        self.complete = False

    def built(self) -> Block:
        text = "".join(self.pieces)
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


def fold(events: Iterable[Event], notes: Notes | None = None) -> Reply:
    """Assemble a whole reply. Raises the fault of a failed stream, and Truncated for one without an end."""
    started: Started | None = None
    usage: Usage | None = None
    growing: dict[int, _Growing] = {}
    stops: dict[int, Stop] = {}
    finished = False
    for event in events:
        match event:
            case TextDelta(key, text) | ReasoningDelta(key, text) | ArgumentsDelta(key, text):
                growing[key].pieces.append(text)
            case BlockStarted():
                growing[event.key] = _Growing(event)
            case BlockEnded(key, complete):
                growing[key].complete = complete
            case Sealed(key, seal):
                growing[key].seal = seal
            case Cited(key, citation):
                growing[key].citations.append(citation)
            case Started():
                started, usage = event, event.usage or usage
            case UsageReported():
                usage = event.usage
            case Stopped():
                stops[event.choice] = event.stop
            case Failed(fault):
                raise UpstreamFault(fault.message, fault=fault)
            case Finished():
                finished = True
            case _:
                pass  # an OpaqueEvent belongs to streams alone
    if started is None or not finished:
        raise Truncated("the stream ended before its end")
    choices = {index: _choice(index, stop, growing.values(), notes) for index, stop in stops.items()}
    return Reply(
        started.id, started.model, tuple(choices[index] for index in sorted(choices)), usage, extra=started.extra
    )


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
