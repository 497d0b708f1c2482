"""Streams, wire to canonical: one decoder per answer.

Theory of operation. The upstream's indices are places of blocks. A frame's meaning comes out at once, with three
exceptions. An unknown block that starts with something empty waits for its end, because it must come whole. So does a
call's input that stands in the block's start, because deltas, if any come, replace it. A signature waits for the next
frame that is no signature, because a later one replaces it.

    before message_start    ping, error
    message_start           then blocks; a block is content_block_start, deltas of its kind, content_block_stop
    message_delta           the reason to stop and the counts; it counts when no block is open any more
    message_stop            the end; without it the stream was cut (docs/decisions/answers.md#d7)
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TypeAlias

from msgspec import Struct, structs

from dragoman.dialects.anthropic.blocks import (
    FAMILY,
    extra_of,
    parse_citation,
    parse_redacted,
    parse_text,
    parse_thinking,
    parse_tool_use,
)
from dragoman.dialects.anthropic.encoder import drop_null, parse_envelope, parse_stop, parse_usage
from dragoman.dialects.anthropic.faults import fault_of
from dragoman.dialects.base import Decoder, Environment
from dragoman.errors import BadFrame, Fault, MissingField, OutOfOrder, Truncated
from dragoman.model import events as ev
from dragoman.model.blocks import Location, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Conversation, Stop, StopReason, Usage, to_extra_names, without_content
from dragoman.model.filter import LaneSource
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json

_SILENT = (b"", b"null", b"[DONE]")  # frames that no client can read as an event (docs/decisions/answers.md#d51)


class _Delta(Struct, gc=False):
    """The three deltas that make up nearly all of a stream."""

    type: str
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None


class _DeltaFrame(Struct, gc=False):
    index: int
    delta: _Delta
    type: str = "content_block_delta"


_decode_delta = jsonio.strict_decoder(_DeltaFrame)
_IN_LANE: dict[type[ev.Delta], tuple[str, Callable[[_Delta], str | None]]] = {
    ev.TextDelta: ("text_delta", attrgetter("text")),
    ev.ReasoningDelta: ("thinking_delta", attrgetter("thinking")),
    ev.ArgumentsDelta: ("input_json_delta", attrgetter("partial_json")),
}


def _lane(kind: type[ev.Delta], index: int) -> LaneSource:
    """Return the lane of such deltas of the block at this index."""
    name, text_of = _IN_LANE[kind]

    def of_block(frame: _DeltaFrame) -> str | None:
        delta = frame.delta
        is_one = delta.type == name and frame.index == index and frame.type == "content_block_delta"
        return text_of(delta) if is_one else None

    return LaneSource("content_block_delta", _decode_delta, of_block)


class _Open:
    """A block that has begun and not ended."""

    __slots__ = ("arguments", "block", "grown", "held", "key", "pieces")

    def __init__(self, key: int, block: Text | Reasoning | ToolCall | Opaque, budget: ev.ResponseBudget) -> None:
        self.key = key
        self.block = block
        self.arguments = ""  # what the start said, if no delta says it
        self.grown = False
        self.held = False  # an unknown block that may still grow
        self.pieces = ev.TextBuffer(budget)  # of an unknown block's input


_Handler: TypeAlias = Callable[["AnthropicDecoder", Fields], ev.Events]


class AnthropicDecoder(Decoder):
    """Frames to events. Raises UpstreamViolation for what the dialect does not allow."""

    def __init__(
        self, asked: Conversation, environment: Environment | None = None, keys: ev.BlockKeys | None = None
    ) -> None:
        self._asked = without_content(asked)  # all that is read of it, and not the question
        self._keys = keys or ev.BlockKeys()
        self._open: dict[int, _Open] = {}  # by index
        self._used: set[int] = set()
        self._usage: Usage | None = None
        self._stop: Stop | None = None
        self._stop_told = False
        self._signed: ev.SignatureAdded | None = None  # held until the next frame that is no signature
        self._sealed: set[int] = set()
        self._begun = False
        self._over = False

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def feed(self, frame: Frame) -> ev.Events | None:
        if frame.data.strip() in _SILENT:
            return None
        fields = Fields.parse(frame.data, frame.kind, BadFrame)
        fields.blame = MissingField
        kind = fields.text("type", frame.kind) or fields.text("type")
        if self._over:
            raise OutOfOrder("the stream is over", at=kind)
        if not self._begun and kind not in ("message_start", "ping", "error"):
            raise OutOfOrder("message_start has not come", at=kind)
        handler = _HANDLERS.get(kind)
        signed, self._signed = self._signed, None
        events = handler(self, fields) if handler else (ev.OpaqueEvent(FAMILY, kind, {"type": kind, **fields.rest()}),)
        return self._after(signed, events) if signed else events

    def _after(self, signed: ev.SignatureAdded, events: ev.Events) -> ev.Events:
        """A signature goes before what comes next, unless that is nothing, or another that replaces it."""
        replaced = self._signed is not None and self._signed.key == signed.key
        if events or (self._signed is not None and not replaced):
            self._sealed.add(signed.key)
            return (signed, *events)
        if not replaced:
            self._signed = signed
        return events

    def close(self, broken: Fault | None) -> ev.Events:
        if self._over:
            return ()
        self._over = True
        signed = (self._signed,) if self._signed else ()
        return (
            *signed,
            ev.Failed(broken or Truncated("the upstream's stream ended before message_stop").fault),
        )

    def lane(self, kind: type[ev.Delta], key: int) -> LaneSource | None:
        index = next((index for index, grown in self._open.items() if grown.key == key), None)
        if index is None or self._signed is not None:
            return None
        return _lane(kind, index)

    # --- the message

    def _message_start(self, fields: Fields) -> ev.Events:
        if self._begun:
            raise OutOfOrder("it has come already", at="message_start")
        message = fields.child("message")
        if message.array("content", None):
            raise OutOfOrder("content comes in blocks of its own", at=message.path("content"))
        parse_stop(message)
        self._usage = parse_usage(message.any("usage"))
        message_id, model, kept = parse_envelope(message, self._asked)
        self._begun = True
        return (ev.Started(message_id, model, self._usage, kept),)

    def _message_delta(self, fields: Fields) -> ev.Events:
        events: list[ev.Event] = []
        if isinstance(usage := fields.any("usage"), dict):
            self._usage = parse_usage(usage, self._usage) or Usage()
            events.append(ev.UsageReported(self._usage))
        delta = fields.maybe_child("delta")
        if delta is not None and delta.peek("stop_reason") is not None and self._stop is None:
            self._stop = self._parse_stop(delta)
            events += self._stopped()
        return tuple(events)

    def _stopped(self) -> ev.Events:
        """The reason to stop, once every block has ended: some send it before the end of the last block."""
        if self._stop is None or self._open or self._stop_told:
            return ()
        self._stop_told = True
        return (ev.Stopped(self._stop),)

    def _parse_stop(self, delta: Fields) -> Stop:
        stop = parse_stop(delta)
        drop_null(delta, "container")
        rest = {**(stop.extra.fields if stop.extra else {}), **to_extra_names(delta.rest())}
        return structs.replace(stop, extra=extra_of(rest))

    def _message_stop(self, _: Fields) -> ev.Events:
        if self._open:
            raise OutOfOrder(f"block {next(iter(self._open))} is open", at="message_stop")
        self._over = True
        # A message that ends without a reason has ended; without a Stopped its content would belong to no choice.
        return (ev.FINISHED,) if self._stop else (ev.Stopped(Stop(StopReason.END)), ev.FINISHED)

    def _error(self, fields: Fields) -> ev.Events:
        self._over = True
        return (ev.Failed(fault_of(fields.rest())),)

    # --- blocks

    def _block_start(self, fields: Fields) -> ev.Events:
        index, content = fields.integer("index"), fields.child("content_block")
        if index in self._used:
            raise OutOfOrder(f"index {index} was used before", at="content_block_start")
        if self._stop is not None:
            raise OutOfOrder("the message has stopped", at="content_block_start")
        kind = content.text("type")
        grown, events = self._begin(index, kind, content)
        self._used.add(index)
        self._open[index] = grown
        return events

    def _begin(self, index: int, kind: str, content: Fields) -> tuple[_Open, ev.Events]:
        key = self._keys.fresh()
        match kind:
            case "text":
                if content.peek("text") is None:  # one SDK takes it as empty
                    content = Fields({**content.rest(), "text": ""}, content.at, content.blame)
                return self._begin_text(key, index, parse_text(content))
            case "thinking":
                thought = parse_thinking(content)
                grown = self._opened(key, structs.replace(thought, text="", signature=None))
                self._signed = ev.SignatureAdded(key, thought.signature) if thought.signature else None
                start = ev.BlockStarted(key, grown.block, wire_index=index)
                return grown, (start, ev.ReasoningDelta(key, thought.text)) if thought.text else (start,)
            case "redacted_thinking":
                hidden = parse_redacted(content)
                seals = (ev.SignatureAdded(key, hidden.signature),) if hidden.signature else ()
                self._sealed.add(key)
                hidden = structs.replace(hidden, signature=None)
                return self._opened(key, hidden), (ev.BlockStarted(key, hidden, wire_index=index), *seals)
            case "tool_use":
                call = parse_tool_use(content)
                grown = self._opened(key, structs.replace(call, arguments=""))
                grown.arguments = "" if call.arguments == "{}" else call.arguments
                self._keys.budget.reserve(ev.text_size(grown.arguments))
                return grown, (ev.BlockStarted(key, grown.block, wire_index=index),)
            case _:
                data = {"type": kind, **content.rest()}
                grown = self._opened(key, Opaque(FAMILY, data, kind, at=Location(content.at)))
                self._keys.budget.reserve(ev.json_size(data))
                grown.held = _may_grow(data)
                return grown, () if grown.held else (ev.BlockStarted(key, grown.block, wire_index=index),)

    def _opened(self, key: int, block: Text | Reasoning | ToolCall | Opaque) -> _Open:
        self._keys.budget.reserve(ev.block_size(block))
        return _Open(key, block, self._keys.budget)

    def _begin_text(self, key: int, index: int, text: Text) -> tuple[_Open, ev.Events]:
        empty = structs.replace(text, text="", citations=())
        events: list[ev.Event] = [ev.BlockStarted(key, empty, wire_index=index)]
        if text.text:
            events.append(ev.TextDelta(key, text.text))
        events.extend(ev.CitationAdded(key, citation) for citation in text.citations)
        return self._opened(key, empty), tuple(events)

    def _block_delta(self, fields: Fields) -> ev.Events:
        index, delta = fields.integer("index"), fields.child("delta")
        grown = self._open.get(index)
        if grown is None:
            raise OutOfOrder(f"block {index} is not open", at="content_block_delta")
        key, kind = grown.key, delta.text("type")
        if grown.held:
            self._keys.budget.reserve(ev.json_size(delta.rest()))
            _grow_unknown(grown, kind, delta)
            return ()
        match kind if not isinstance(grown.block, Opaque) else "":
            case "text_delta":
                _demand(grown, Text, kind)
                return (ev.TextDelta(key, delta.text("text")),)
            case "thinking_delta":
                _demand(grown, Reasoning, kind)
                return (ev.ReasoningDelta(key, delta.text("thinking")),)
            case "input_json_delta":
                _demand(grown, ToolCall, kind)
                grown.grown = True
                return (ev.ArgumentsDelta(key, delta.text("partial_json")),)
            case "signature_delta":
                _demand(grown, Reasoning, kind)
                self._sign(key, delta.text("signature"))
                return ()
            case "citations_delta":
                _demand(grown, Text, kind)
                return (ev.CitationAdded(key, parse_citation(delta.child("citation"))),)
            case _:
                data: Json = {"type": "content_block_delta", "index": key, "delta": {"type": kind, **delta.rest()}}
                return (ev.OpaqueEvent(FAMILY, "content_block_delta", data),)

    def _block_stop(self, fields: Fields) -> ev.Events:
        index = fields.integer("index")
        grown = self._open.pop(index, None)
        if grown is None:
            if index in self._used:
                return ()  # its end, told twice
            raise OutOfOrder(f"block {index} is not open", at="content_block_stop")
        key, end = grown.key, ev.BlockEnded(grown.key)
        match grown.block:
            case Opaque() if grown.held:
                return (ev.BlockStarted(key, _whole(grown), wire_index=index), end, *self._stopped())
            case ToolCall() if grown.arguments and not grown.grown:
                return (ev.ArgumentsDelta(key, grown.arguments), end, *self._stopped())
            case _:
                return (end, *self._stopped())

    def _sign(self, key: int, signature_data: str) -> None:
        if key in self._sealed:
            raise OutOfOrder("the block is signed already", at="content_block_delta")
        self._signed = ev.SignatureAdded(key, Signature(FAMILY, signature_data)) if signature_data else None


# Of the class: bound methods would keep their decoder, and the question in it, until the next collection.
_HANDLERS: dict[str, _Handler] = {
    "message_start": AnthropicDecoder._message_start,
    "content_block_start": AnthropicDecoder._block_start,
    "content_block_delta": AnthropicDecoder._block_delta,
    "content_block_stop": AnthropicDecoder._block_stop,
    "message_delta": AnthropicDecoder._message_delta,
    "message_stop": AnthropicDecoder._message_stop,
    "ping": lambda _, __: (),
    "error": AnthropicDecoder._error,
}


def _demand(grown: _Open, kind: type, delta: str) -> None:
    if type(grown.block) is not kind:
        raise OutOfOrder(f"{delta} in a block that is a {type(grown.block).__name__}", at="content_block_delta")


def _may_grow(data: dict[str, Json]) -> bool:
    """Whether an unknown block leaves room: the service starts what it will fill with deltas as `{}`, null or ""."""
    return any(name in data and data[name] in ({}, None, "") for name in ("input", "content", "text"))


def _grow_unknown(grown: _Open, kind: str, delta: Fields) -> None:
    """Let an unknown block grow as the known ones do: JSON text becomes the input, text is joined, the rest is set."""
    block = grown.block
    assert isinstance(block, Opaque)
    assert isinstance(block.data, dict)
    if kind == "input_json_delta":
        grown.pieces.add(delta.text("partial_json"))
        return
    data = block.data
    for name, value in delta.rest().items():
        before = data.get(name)
        data[name] = before + value if isinstance(before, str) and isinstance(value, str) else value


def _whole(grown: _Open) -> Opaque:
    block = grown.block
    assert isinstance(block, Opaque)
    text = grown.pieces.take()
    if text and isinstance(block.data, dict):
        try:
            block.data["input"] = jsonio.decode(text)
        except jsonio.JsonError as error:
            raise MissingField(f"the input of {block.kind} is not JSON: {error}", at="content_block_stop") from None
    return block
