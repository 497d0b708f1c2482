"""Streams, canonical to wire: one encoder per answer, in the form that the service sends and the SDKs accept.

Indices are dense from 0 in the order of starts. Only tools get a contentBlockStart, as the service does it. Two things
are held back: a seal until its block's end, and metadata until the stream's, because that is where they come.
"""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.dialects.base import Encoder, World
from dragoman.dialects.bedrock.blocks import render_citation, render_redacted
from dragoman.dialects.bedrock.nodes import FAMILY, KEPT
from dragoman.dialects.bedrock.reply import exception_payload, render_stop, render_usage
from dragoman.errors import LocalMisuse
from dragoman.model import events as ev
from dragoman.model.blocks import Media, Opaque, Reasoning, Seal, Text, ToolCall
from dragoman.model.conversation import Conversation, Stop, Usage, Why
from dragoman.wire import jsonio
from dragoman.wire.frame import Payload
from dragoman.wire.jsonio import Json

_DELTA = b"contentBlockDelta"
_TEXT = b'{"contentBlockIndex":%d,"delta":{"text":%b}}'
_INPUT = b'{"contentBlockIndex":%d,"delta":{"toolUse":{"input":%b}}}'
_THOUGHT = b'{"contentBlockIndex":%d,"delta":{"reasoningContent":{"%b":%b}}}'
_CITATION = b'{"contentBlockIndex":%d,"delta":{"citation":%b}}'
_WHOLE = b'{"contentBlockIndex":%d,"delta":{%b:%b}}'
_START = b'{"contentBlockIndex":%d,"start":%b}'
_END = b'{"contentBlockIndex":%d}'

# What the frames of this dialect's own decoder may mean and still be let through: nothing in them was held back before.
_PASSING: frozenset[tuple[type, ...]] = frozenset(
    {
        (ev.Started,),
        (ev.BlockStarted,),
        (ev.BlockStarted, ev.TextDelta),
        (ev.BlockStarted, ev.ReasoningDelta),
        (ev.BlockStarted, ev.Cited),
        (ev.TextDelta,),
        (ev.ReasoningDelta,),
        (ev.ArgumentsDelta,),
        (ev.Cited,),
        (ev.BlockEnded,),
        (ev.Stopped,),
        (ev.UsageReported, ev.Finished),
        (ev.Failed,),
        (ev.OpaqueEvent,),
    }
)


class BedrockEncoder(Encoder):
    """Events to payloads. Relies on the grammar; raises LocalMisuse for content that filters should have removed."""

    def __init__(self, asked: Conversation, world: World, budget: ev.Budget | None = None) -> None:
        self._budget = budget or ev.Budget()
        self._index: dict[int, int] = {}
        self._moved: set[int] = set()  # blocks whose number is not that of the upstream's frames
        self._blocks: dict[int, Text | Reasoning | ToolCall] = {}  # those that are open
        self._silent: set[int] = set()  # open blocks of which no frame has told yet
        self._seals: dict[int, Seal] = {}  # of open blocks: they close what they seal
        self._usage: Usage | None = None
        self._stopped = False

    def feed(self, events: ev.Events) -> Iterable[Payload]:
        out: list[Payload] = []
        for event in events:
            if isinstance(event, ev.TextDelta):
                self._silent.discard(event.key)
                out.append(Payload(_DELTA, _TEXT % (self._index[event.key], jsonio.quote(event.text))))
            elif isinstance(event, ev.ArgumentsDelta):
                if event.text:
                    self._silent.discard(event.key)
                    out.append(Payload(_DELTA, _INPUT % (self._index[event.key], jsonio.quote(event.text))))
            else:
                out.extend(self._payloads(event))
        return out

    def passes(self, events: ev.Events) -> bool:
        """Whether the frame may go as it came: it begins no block under another number."""
        if tuple(map(type, events)) not in _PASSING:
            return False
        first = events[0]
        if isinstance(first, ev.BlockStarted):
            if (
                first.place != len(self._index)
                or first.choice
                or not isinstance(first.block, Text | ToolCall | Reasoning)
            ):
                return False
            if isinstance(first.block, Reasoning) and len(events) == 1:
                return False  # its frame holds a seal, which goes out at the block's end
            self._index[first.key], self._blocks[first.key] = first.place, first.block
        elif isinstance(first, ev.TextDelta | ev.ReasoningDelta | ev.ArgumentsDelta | ev.Cited | ev.BlockEnded):
            if first.key in self._moved or (isinstance(first, ev.BlockEnded) and first.key in self._silent):
                return False
            self._silent.discard(first.key)
            if isinstance(first, ev.BlockEnded):
                self._blocks.pop(first.key, None)
        elif isinstance(first, ev.Stopped):
            self._stopped = True
        elif isinstance(first, ev.UsageReported):
            return self._stopped
        elif isinstance(first, ev.OpaqueEvent):
            return not (isinstance(first.data, dict) and "contentBlockIndex" in first.data)
        return True

    def ping(self) -> None:
        return None

    def _payloads(self, event: ev.Event) -> Iterable[Payload]:
        match event:
            case ev.ReasoningDelta(key, text):
                yield self._thought(key, b"text", text)
            case ev.TextDelta() | ev.ArgumentsDelta():
                yield from self.feed((event,))
            case ev.BlockStarted():
                yield from self._block_started(event)
            case ev.BlockEnded(key):
                yield from self._block_ended(key, event.complete)
            case ev.Sealed(key, seal):
                self._budget.keep(ev.text_size(seal.data))
                self._seals[key] = seal
            case ev.Cited(key, citation):
                self._silent.discard(key)
                data = jsonio.encode(render_citation(citation, LocalMisuse))
                yield Payload(_DELTA, _CITATION % (self._index[key], data))
            case ev.Started():
                self._usage = event.usage
                yield Payload(b"messageStart", jsonio.encode(KEPT.with_extra({"role": "assistant"}, event.extra)))
            case ev.UsageReported(usage):
                self._usage = usage
            case ev.Stopped(stop, choice):
                _only_choice(choice)
                yield self._stop(stop)
            case ev.Finished():
                if not self._stopped:
                    yield self._stop(Stop(Why.END))
                yield Payload(b"metadata", jsonio.encode(render_usage(self._usage or Usage())))
            case ev.Failed(fault):
                yield exception_payload(fault)
            case ev.OpaqueEvent():
                yield from self._opaque_event(event)

    def _stop(self, stop: Stop) -> Payload:
        self._stopped = True
        return Payload(b"messageStop", jsonio.encode(render_stop(stop)))

    def _block_started(self, event: ev.BlockStarted) -> Iterable[Payload]:
        _only_choice(event.choice)
        key, block = event.key, event.block
        self._index[key] = number = len(self._index)
        if event.place != number:
            self._moved.add(key)
        if isinstance(block, Text | Reasoning | ToolCall):
            self._blocks[key] = block
        match block:
            case Text():
                self._silent.add(key)
                if block.text:
                    yield from self.feed((ev.TextDelta(key, block.text),))
            case Reasoning():
                self._silent.add(key)
                if block.text:
                    yield self._thought(key, b"text", block.text)
            case ToolCall():
                self._silent.add(key)
                body = KEPT.with_extra({"toolUseId": block.id, "name": block.name}, block.extra)
                yield self._start(key, {"toolUse": body})
                if block.arguments:
                    yield from self.feed((ev.ArgumentsDelta(key, block.arguments),))
            case Opaque():
                yield from self._whole(key, KEPT.own_data(block, LocalMisuse))
            case Media():
                raise LocalMisuse(f"{block.kind} has no place in an answer here")

    def _block_ended(self, key: int, complete: bool) -> Iterable[Payload]:
        """Every block says something, if only nothing: a client that sees only an end would not know what has ended."""
        seal, block = self._seals.pop(key, None), self._blocks.pop(key, None)
        if seal is not None:
            self._budget.free(ev.text_size(seal.data))
            yield self._sealed(key, block, seal)
        if key in self._silent:
            self._silent.discard(key)
            match block:
                case Text():
                    yield Payload(_DELTA, _TEXT % (self._index[key], b'""'))
                case Reasoning():
                    yield self._thought(key, b"text", "")
                case ToolCall() if complete:
                    yield Payload(_DELTA, _INPUT % (self._index[key], b'"{}"'))
                case _:
                    pass  # a call that was cut before its arguments began
        yield Payload(b"contentBlockStop", _END % self._index[key])

    def _thought(self, key: int, name: bytes, text: str) -> Payload:
        self._silent.discard(key)
        return Payload(_DELTA, _THOUGHT % (self._index[key], name, jsonio.quote(text)))

    def _sealed(self, key: int, block: Text | Reasoning | ToolCall | None, seal: Seal) -> Payload:
        if isinstance(block, Reasoning):
            if seal.kind == "signature":
                return self._thought(key, b"signature", seal.data)
            if seal.kind == "redacted" and key in self._silent:
                return self._thought(key, b"redactedContent", render_redacted(seal, LocalMisuse))
        raise LocalMisuse(f"{seal.kind} data of {seal.family} has no place in this block")

    def _whole(self, key: int, body: dict[str, Json]) -> Iterable[Payload]:
        """What came whole: the parts that clients read from deltas go as deltas, all else with the start."""
        (member, value), *_ = [*body.items(), ("", None)]
        delta = _GROWS.get(member)
        if not isinstance(value, dict) or delta is None or value.get(delta) is None:
            yield self._start(key, body)
            return
        start = {name: each for name, each in value.items() if name != delta}
        grown: Json = value[delta]
        if member == "toolUse":
            grown = {"input": jsonio.encode(grown).decode()}
        elif member == "image":
            grown = {"source": grown}
        yield self._start(key, {member: start})
        data = (self._index[key], jsonio.quote(member), jsonio.encode(grown))
        yield Payload(_DELTA, _WHOLE % data)

    def _start(self, key: int, start: dict[str, Json]) -> Payload:
        return Payload(b"contentBlockStart", _START % (self._index[key], jsonio.encode(start)))

    def _opaque_event(self, event: ev.OpaqueEvent) -> Iterable[Payload]:
        data = event.data
        if event.family != FAMILY or not isinstance(data, dict):
            raise LocalMisuse(f"an event of {event.family} has no place here")
        if event.kind == "contentBlockDelta":
            key = data.get("contentBlockIndex")
            if not isinstance(key, int) or key not in self._index:
                return  # the block that it belongs to does not exist here
            data = {**data, "contentBlockIndex": self._index[key]}
        yield Payload(event.kind.encode("utf-8", "replace"), jsonio.encode(data))


_GROWS = {"toolUse": "input", "toolResult": "content", "image": "source"}


def _only_choice(choice: int) -> None:
    if choice:
        raise LocalMisuse("there is only one choice here")
