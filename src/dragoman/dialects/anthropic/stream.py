"""Decode response streams of Anthropic's Messages API. Every response has its own decoder. Pure.

Theory of operation. The upstream's index identifies a block. The decoder returns the events of a frame at once, with
three exceptions. It buffers an unknown block that starts with an empty field until the block ends, because such a
block has one event. It buffers the input in the start of a call until the block ends, because deltas, if any come,
replace it. It buffers a signature until the next frame that is not a signature, because a later signature replaces it.

    before message_start    ping, error
    message_start           then blocks; a block is content_block_start, deltas of its kind, content_block_stop
    message_delta           stop reason and token counts; the reason takes effect when no block is open
    message_stop            the end; without it the stream was cut (docs/decisions/responses.md#d7)
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
from dragoman.dialects.anthropic.tools import search_effects
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

_SILENT = (b"", b"null", b"[DONE]")  # frames that no client can read as an event (docs/decisions/responses.md#d51)


class _Delta(Struct, gc=False):
    """A delta of text, thinking or tool input, which make up most of a stream."""

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
    """Return the lane for deltas of this kind of the block at this index."""
    name, text_of = _IN_LANE[kind]

    def of_block(frame: _DeltaFrame) -> str | None:
        delta = frame.delta
        is_of_block = delta.type == name and frame.index == index and frame.type == "content_block_delta"
        return text_of(delta) if is_of_block else None

    return LaneSource("content_block_delta", _decode_delta, of_block)


class _OpenBlock:
    """A block that has started and not ended."""

    __slots__ = ("arguments", "block", "has_deltas", "is_buffered", "key", "pieces")

    def __init__(self, key: int, block: Text | Reasoning | ToolCall | Opaque, budget: ev.ResponseBudget) -> None:
        self.key = key
        self.block = block
        self.arguments = ""  # the input in the block's start, used if no delta follows
        self.has_deltas = False
        self.is_buffered = False  # an unknown block that deltas may extend
        self.pieces = ev.TextBuffer(budget)  # deltas of an unknown block's input


_Handler: TypeAlias = Callable[["AnthropicDecoder", Fields], ev.Events]


class AnthropicDecoder(Decoder):
    """Reads frames into events. Raises UpstreamViolation for frames that the dialect does not allow."""

    def __init__(
        self, request: Conversation, environment: Environment | None = None, keys: ev.BlockKeys | None = None
    ) -> None:
        self._request = without_content(request)  # The content would stay in memory for the whole stream.
        self._keys = keys or ev.BlockKeys()
        self._open: dict[int, _OpenBlock] = {}  # by index
        self._used: set[int] = set()  # indices of all blocks so far
        self._usage: Usage | None = None
        self._stop: Stop | None = None
        self._stop_reported = False
        self._pending: ev.SignatureAdded | None = None  # a signature that the next frame may replace
        self._signed: set[int] = set()  # keys of blocks whose signature was returned
        self._started = False
        self._is_over = False

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def feed(self, frame: Frame) -> ev.Events | None:
        if frame.data.strip() in _SILENT:
            return None
        fields = Fields.parse(frame.data, frame.kind, BadFrame)
        fields.blame = MissingField
        kind = fields.text("type", frame.kind) or fields.text("type")
        if self._is_over:
            raise OutOfOrder("the event follows the end of the stream", at=kind)
        if not self._started and kind not in ("message_start", "ping", "error"):
            raise OutOfOrder("the stream must begin with message_start", at=kind)
        handler = _HANDLERS.get(kind)
        signature, self._pending = self._pending, None
        events = handler(self, fields) if handler else (ev.OpaqueEvent(FAMILY, kind, {"type": kind, **fields.rest()}),)
        return self._after(signature, events) if signature else events

    def _after(self, signature: ev.SignatureAdded, events: ev.Events) -> ev.Events:
        """Put a pending signature before the next events; keep it pending without any, unless it was replaced."""
        is_replaced = self._pending is not None and self._pending.key == signature.key
        if events or (self._pending is not None and not is_replaced):
            self._signed.add(signature.key)
            return (signature, *events)
        if not is_replaced:
            self._pending = signature
        return events

    def close(self, broken: Fault | None) -> ev.Events:
        if self._is_over:
            return ()
        self._is_over = True
        pending = (self._pending,) if self._pending else ()
        return (
            *pending,
            ev.Failed(broken or Truncated("the upstream's stream ended before message_stop").fault),
        )

    def lane(self, kind: type[ev.Delta], key: int) -> LaneSource | None:
        index = next((index for index, opened in self._open.items() if opened.key == key), None)
        if index is None or self._pending is not None:
            return None
        return _lane(kind, index)

    # --- the message

    def _message_start(self, fields: Fields) -> ev.Events:
        if self._started:
            raise OutOfOrder("the stream has a second message_start", at="message_start")
        message = fields.child("message")
        if message.array("content", None):
            raise OutOfOrder("message_start must not have content", at=message.path("content"))
        parse_stop(message)
        self._usage = parse_usage(message.any("usage"))
        message_id, model, extra = parse_envelope(message, self._request)
        self._started = True
        return (ev.Started(message_id, model, self._usage, extra),)

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
        """Return the stop reason once all blocks have ended: some upstreams send it before the last block ends."""
        if self._stop is None or self._open or self._stop_reported:
            return ()
        self._stop_reported = True
        return (ev.Stopped(self._stop),)

    def _parse_stop(self, delta: Fields) -> Stop:
        stop = parse_stop(delta)
        drop_null(delta, "container")
        rest = {**(stop.extra.fields if stop.extra else {}), **to_extra_names(delta.rest())}
        return structs.replace(stop, extra=extra_of(rest))

    def _message_stop(self, _: Fields) -> ev.Events:
        if self._open:
            raise OutOfOrder(f"block {next(iter(self._open))} is still open", at="message_stop")
        self._is_over = True
        # Without a stop reason the reason is END: content without a Stopped would belong to no choice.
        return (ev.FINISHED,) if self._stop else (ev.Stopped(Stop(StopReason.END)), ev.FINISHED)

    def _error(self, fields: Fields) -> ev.Events:
        self._is_over = True
        return (ev.Failed(fault_of(fields.rest())),)

    # --- blocks

    def _block_start(self, fields: Fields) -> ev.Events:
        index, content = fields.integer("index"), fields.child("content_block")
        if index in self._used:
            raise OutOfOrder(f"index {index} belongs to an earlier block", at="content_block_start")
        if self._stop is not None:
            raise OutOfOrder("the message has already stopped", at="content_block_start")
        kind = content.text("type")
        opened, events = self._begin(index, kind, content)
        self._used.add(index)
        self._open[index] = opened
        return events

    def _begin(self, index: int, kind: str, content: Fields) -> tuple[_OpenBlock, ev.Events]:
        key = self._keys.fresh()
        match kind:
            case "text":
                if content.peek("text") is None:  # One SDK treats null as an empty text.
                    content = Fields({**content.rest(), "text": ""}, content.at, content.blame)
                return self._begin_text(key, index, parse_text(content))
            case "thinking":
                thought = parse_thinking(content)
                opened = self._new_block(key, structs.replace(thought, text="", signature=None))
                self._pending = ev.SignatureAdded(key, thought.signature) if thought.signature else None
                start = ev.BlockStarted(key, opened.block, wire_index=index)
                return opened, (start, ev.ReasoningDelta(key, thought.text)) if thought.text else (start,)
            case "redacted_thinking":
                redacted = parse_redacted(content)
                signatures = (ev.SignatureAdded(key, redacted.signature),) if redacted.signature else ()
                self._signed.add(key)
                redacted = structs.replace(redacted, signature=None)
                return self._new_block(key, redacted), (ev.BlockStarted(key, redacted, wire_index=index), *signatures)
            case "tool_use":
                call = parse_tool_use(content)
                opened = self._new_block(key, structs.replace(call, arguments=""))
                opened.arguments = "" if call.arguments == "{}" else call.arguments
                self._keys.budget.reserve(ev.text_size(opened.arguments))
                return opened, (ev.BlockStarted(key, opened.block, wire_index=index),)
            case _:
                data = {"type": kind, **content.rest()}
                effects = search_effects(kind, data)
                opened = self._new_block(key, Opaque(FAMILY, data, kind, effects=effects, at=Location(content.at)))
                self._keys.budget.reserve(ev.json_size(data))
                opened.is_buffered = _may_grow(data)
                return opened, () if opened.is_buffered else (ev.BlockStarted(key, opened.block, wire_index=index),)

    def _new_block(self, key: int, block: Text | Reasoning | ToolCall | Opaque) -> _OpenBlock:
        self._keys.budget.reserve(ev.block_size(block))
        return _OpenBlock(key, block, self._keys.budget)

    def _begin_text(self, key: int, index: int, text: Text) -> tuple[_OpenBlock, ev.Events]:
        empty = structs.replace(text, text="", citations=())
        events: list[ev.Event] = [ev.BlockStarted(key, empty, wire_index=index)]
        if text.text:
            events.append(ev.TextDelta(key, text.text))
        events.extend(ev.CitationAdded(key, citation) for citation in text.citations)
        return self._new_block(key, empty), tuple(events)

    def _block_delta(self, fields: Fields) -> ev.Events:
        index, delta = fields.integer("index"), fields.child("delta")
        opened = self._open.get(index)
        if opened is None:
            raise OutOfOrder(f"block {index} is not open", at="content_block_delta")
        key, kind = opened.key, delta.text("type")
        if opened.is_buffered:
            self._keys.budget.reserve(ev.json_size(delta.rest()))
            _extend_unknown(opened, kind, delta)
            return ()
        match kind if not isinstance(opened.block, Opaque) else "":
            case "text_delta":
                _require(opened, Text, kind)
                return (ev.TextDelta(key, delta.text("text")),)
            case "thinking_delta":
                _require(opened, Reasoning, kind)
                return (ev.ReasoningDelta(key, delta.text("thinking")),)
            case "input_json_delta":
                _require(opened, ToolCall, kind)
                opened.has_deltas = True
                return (ev.ArgumentsDelta(key, delta.text("partial_json")),)
            case "signature_delta":
                _require(opened, Reasoning, kind)
                self._sign(key, delta.text("signature"))
                return ()
            case "citations_delta":
                _require(opened, Text, kind)
                return (ev.CitationAdded(key, parse_citation(delta.child("citation"))),)
            case _:
                data: Json = {"type": "content_block_delta", "index": key, "delta": {"type": kind, **delta.rest()}}
                return (ev.OpaqueEvent(FAMILY, "content_block_delta", data),)

    def _block_stop(self, fields: Fields) -> ev.Events:
        index = fields.integer("index")
        opened = self._open.pop(index, None)
        if opened is None:
            if index in self._used:
                return ()  # a repeated end
            raise OutOfOrder(f"block {index} is not open", at="content_block_stop")
        key, end = opened.key, ev.BlockEnded(opened.key)
        match opened.block:
            case Opaque() if opened.is_buffered:
                return (ev.BlockStarted(key, _complete(opened), wire_index=index), end, *self._stopped())
            case ToolCall() if opened.arguments and not opened.has_deltas:
                return (ev.ArgumentsDelta(key, opened.arguments), end, *self._stopped())
            case _:
                return (end, *self._stopped())

    def _sign(self, key: int, signature_data: str) -> None:
        if key in self._signed:
            raise OutOfOrder("the block already has a signature", at="content_block_delta")
        self._pending = ev.SignatureAdded(key, Signature(FAMILY, signature_data)) if signature_data else None


# Functions of the class: bound methods would form a reference cycle with the decoder.
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


def _require(opened: _OpenBlock, kind: type, delta: str) -> None:
    if type(opened.block) is not kind:
        raise OutOfOrder(f"a block of type {type(opened.block).__name__} cannot have {delta}", at="content_block_delta")


def _may_grow(data: dict[str, Json]) -> bool:
    """Return whether deltas may extend an unknown block: the service starts such fields as `{}`, null or ""."""
    return any(name in data and data[name] in ({}, None, "") for name in ("input", "content", "text"))


def _extend_unknown(opened: _OpenBlock, kind: str, delta: Fields) -> None:
    """Apply a delta to an unknown block like to known ones: JSON text is the input, text is joined, the rest is set."""
    block = opened.block
    assert isinstance(block, Opaque)
    assert isinstance(block.data, dict)
    if kind == "input_json_delta":
        opened.pieces.add(delta.text("partial_json"))
        return
    data = block.data
    for name, value in delta.rest().items():
        before = data.get(name)
        data[name] = before + value if isinstance(before, str) and isinstance(value, str) else value


def _complete(opened: _OpenBlock) -> Opaque:
    """Return a buffered block with the input that its deltas had."""
    block = opened.block
    assert isinstance(block, Opaque)
    text = opened.pieces.take()
    if not text or not isinstance(block.data, dict):
        return block
    try:
        block.data["input"] = jsonio.decode(text)
    except jsonio.JsonError as error:
        raise MissingField(f"the input of {block.kind} is not JSON: {error}", at="content_block_stop") from None
    return structs.replace(block, effects=search_effects(block.kind, block.data))
