"""Convert the events of a stream into a whole reply and back, and check the order of events. Pure.

Whole replies are translated as events, so that streamed and whole replies go through the same filters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from msgspec import structs

from dragoman.errors import OutOfOrder, Truncated, UpstreamFault
from dragoman.model import events as ev
from dragoman.model.blocks import Block, Media, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Choice, Reply, Stop, StopReason, Usage
from dragoman.model.filter import Notes
from dragoman.wire import jsonio

# --- The order of events. Decoders guarantee it, response filters preserve it, encoders rely on it.
#
# stream  = Started item* (Finished | Failed)  |  Failed
# item    = BlockStarted (fresh key, its choice not stopped)
#         | a delta of the block's kind, SignatureAdded (once), CitationAdded, BlockEnded   (while the block is open)
#         | UsageReported | OpaqueEvent
#         | Stopped (once per choice, after its last block)


# The events that may follow for an open block, by the block's kind.
_ALLOWED: dict[type, frozenset[type]] = {
    Text: frozenset({ev.TextDelta, ev.CitationAdded, ev.SignatureAdded}),
    Reasoning: frozenset({ev.ReasoningDelta, ev.SignatureAdded}),
    ToolCall: frozenset({ev.ArgumentsDelta, ev.SignatureAdded}),
    Media: frozenset(),
    Opaque: frozenset(),
}


class EventOrderCheck:
    """Checks the order of a stream of events, one event at a time."""

    def __init__(self) -> None:
        self._begun = False
        self._is_over = False
        self._open: dict[int, ev.BlockStarted] = {}
        self._keys: set[int] = set()
        self._signed: set[int] = set()
        self._stopped: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended."""
        return self._is_over

    def check(self, events: Iterable[ev.Event]) -> None:
        """Check the next events. Raises OutOfOrder at the first that must not follow."""
        for event in events:
            problem = self._problem(event)
            if problem:
                raise OutOfOrder(f"{type(event).__name__}: {problem}")

    def _problem(self, event: ev.Event) -> str:
        if self._is_over:
            return "the stream is over"
        match event:
            case ev.Failed():
                self._is_over = True
                return ""
            case ev.Started():
                again, self._begun = self._begun, True
                return "the stream has started already" if again else ""
            case _ if not self._begun:
                return "the stream has not started"
            case ev.Finished():
                self._is_over = True
                return "blocks are open" if self._open else ""
            case ev.BlockStarted():
                return self._block_problem(event)
            case ev.BlockEnded(key):
                return "" if self._open.pop(key, None) else "the block is not open"
            case ev.Stopped(_, choice):
                return self._stopped_problem(choice)
            case ev.TextDelta() | ev.ReasoningDelta() | ev.ArgumentsDelta() | ev.SignatureAdded() | ev.CitationAdded():
                return self._growth_problem(event)
            case _:
                return ""

    def _block_problem(self, event: ev.BlockStarted) -> str:
        if event.key in self._keys:
            return f"key {event.key} was used before"
        if event.choice in self._stopped:
            return f"choice {event.choice} has stopped"
        self._keys.add(event.key)
        self._open[event.key] = event
        return ""

    def _stopped_problem(self, choice: int) -> str:
        if choice in self._stopped:
            return f"choice {choice} has stopped already"
        if any(started.choice == choice for started in self._open.values()):
            return f"choice {choice} has open blocks"
        self._stopped.add(choice)
        return ""

    def _growth_problem(
        self, event: ev.TextDelta | ev.ReasoningDelta | ev.ArgumentsDelta | ev.SignatureAdded | ev.CitationAdded
    ) -> str:
        started = self._open.get(event.key)
        if started is None:
            return f"block {event.key} is not open"
        if type(event) not in _ALLOWED[type(started.block)]:
            return f"block {event.key} is a {type(started.block).__name__}"
        if isinstance(event, ev.SignatureAdded):
            if event.key in self._signed:
                return f"block {event.key} has a signature already"
            self._signed.add(event.key)
        return ""


def check(events: Iterable[ev.Event]) -> None:
    """Raise OutOfOrder unless `events` is one whole stream."""
    order = EventOrderCheck()
    order.check(events)
    if not order.is_over:
        raise OutOfOrder("the stream ended without Finished or Failed")


class _OpenBlock:
    """A block that is being assembled."""

    def __init__(self, started: ev.BlockStarted, budget: ev.ResponseBudget) -> None:
        self.block = started.block
        self.choice = started.choice
        self.pieces = ev.TextBuffer(budget)
        self.citations: list[Opaque] = []
        self.signature: Signature | None = None
        self.is_complete = False

    def build(self) -> Block:
        """Return the block with everything received so far."""
        text = self.pieces.text()
        match self.block:
            case Text() as block:
                signature = self.signature or block.signature
                return structs.replace(
                    block, text=block.text + text, signature=signature, citations=(*block.citations, *self.citations)
                )
            case Reasoning() as block:
                return structs.replace(block, text=block.text + text, signature=self.signature or block.signature)
            case ToolCall() as block:
                return structs.replace(
                    block, arguments=block.arguments + text, signature=self.signature or block.signature
                )
            case whole:
                return whole


class ReplyAssembler:
    """Assembles a whole reply from its events. Without a budget its size is not limited."""

    def __init__(self, budget: ev.ResponseBudget | None = None) -> None:
        self._budget = budget or ev.ResponseBudget(ev.ResponseLimits(max_bytes=sys.maxsize))
        self._started: ev.Started | None = None
        self._usage: Usage | None = None
        self._blocks: dict[int, _OpenBlock] = {}
        self._stops: dict[int, Stop] = {}
        self._finished = False

    def add(self, event: ev.Event) -> None:
        """Take the next event. Raises the fault of a failed stream."""
        blocks = self._blocks
        match event:
            case ev.TextDelta(key, text) | ev.ReasoningDelta(key, text) | ev.ArgumentsDelta(key, text):
                blocks[key].pieces.add(text)
            case ev.BlockStarted():
                self._budget.reserve(ev.event_size(event))
                blocks[event.key] = _OpenBlock(event, self._budget)
            case ev.BlockEnded(key, is_complete):
                blocks[key].is_complete = is_complete
            case ev.SignatureAdded(key, signature):
                self._budget.reserve(ev.event_size(event))
                blocks[key].signature = signature
            case ev.CitationAdded(key, citation):
                self._budget.reserve(ev.event_size(event))
                blocks[key].citations.append(citation)
            case ev.Started():
                self._started, self._usage = event, event.usage or self._usage
            case ev.UsageReported():
                self._usage = event.usage
            case ev.Stopped():
                self._stops[event.choice] = event.stop
            case ev.Failed(fault):
                raise UpstreamFault(fault.message, fault=fault)
            case ev.Finished():
                self._finished = True
            case _:
                pass  # an OpaqueEvent has no place in a whole reply

    def reply(self, notes: Notes | None = None) -> Reply:
        """Return the whole reply. Raises Truncated for a stream without an end."""
        started = self._started
        if started is None or not self._finished:
            raise Truncated("the stream ended before it was complete")
        blocks = self._blocks.values()
        choices = {index: _choice(index, stop, blocks, notes) for index, stop in self._stops.items()}
        in_order = tuple(choices[index] for index in sorted(choices))
        return Reply(started.id, started.model, in_order, self._usage, extra=started.extra)


def assemble_reply(events: Iterable[ev.Event], notes: Notes | None = None) -> Reply:
    """Assemble a whole reply. Raises the fault of a failed stream, and Truncated for one without an end."""
    assembly = ReplyAssembler()
    for event in events:
        assembly.add(event)
    return assembly.reply(notes)


def _choice(index: int, stop: Stop, open_blocks: Iterable[_OpenBlock], notes: Notes | None) -> Choice:
    blocks: list[Block] = []
    for open_block in open_blocks:
        if open_block.choice != index:
            continue
        block = open_block.build()
        if isinstance(block, ToolCall) and not (open_block.is_complete and _is_whole(block, stop)):
            if notes is not None:
                notes.dropped(
                    "stream.unfinished_call", "", f"the call of {block.name} was cut off; the whole reply omits it"
                )
            continue
        blocks.append(block)
    return Choice(tuple(blocks), stop)


def _is_whole(call: ToolCall, stop: Stop) -> bool:
    """Return whether the length limit did not cut the call.

    Some dialects have no end event for calls: only the arguments show whether a call is whole, by being valid JSON.
    See docs/decisions/responses.md#d7.
    """
    if stop.reason not in (StopReason.LENGTH, StopReason.CONTEXT) or call.form == "text" or not call.arguments:
        return True
    return jsonio.is_json(call.arguments)


def reply_events(reply: Reply, keys: ev.BlockKeys | None = None) -> ev.Events:
    """Return a whole reply as the events of a stream. `keys` are those of its response, if filters follow."""
    keys = keys or ev.BlockKeys()
    events: list[ev.Event] = [ev.Started(reply.id, reply.model, extra=reply.extra)]
    for index, choice in enumerate(reply.choices):
        keys.budget.choice()
        for block in choice.blocks:
            events.extend(_block_events(keys.fresh(block), index, block))
        events.append(ev.Stopped(choice.stop, index))
    if reply.usage is not None:
        events.append(ev.UsageReported(reply.usage))
    events.append(ev.FINISHED)
    return tuple(events)


def _block_events(key: int, choice: int, block: Block) -> Iterable[ev.Event]:
    match block:
        case Text():
            yield ev.BlockStarted(key, structs.replace(block, text="", signature=None, citations=()), choice)
            if block.text:
                yield ev.TextDelta(key, block.text)
            yield from (ev.CitationAdded(key, citation) for citation in block.citations)
        case Reasoning():
            yield ev.BlockStarted(key, structs.replace(block, text="", signature=None), choice)
            if block.text:
                yield ev.ReasoningDelta(key, block.text)
        case ToolCall():
            yield ev.BlockStarted(key, structs.replace(block, arguments="", signature=None), choice)
            if block.arguments:
                yield ev.ArgumentsDelta(key, block.arguments)
        case whole:
            yield ev.BlockStarted(key, whole, choice)  # type: ignore[arg-type]  # a reply contains no ToolResult
    signature = getattr(block, "signature", None)
    if signature is not None:
        yield ev.SignatureAdded(key, signature)
    yield ev.BlockEnded(key)
