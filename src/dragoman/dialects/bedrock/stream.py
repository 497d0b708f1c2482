"""Decode response streams of Bedrock ConverseStream. Every response has its own decoder. Pure.

Theory of operation. The upstream's index identifies a block. The service sends a contentBlockStart only for blocks of
tools; any other block starts with its first delta, so the decoder adds the start (and accepts one that is sent). It
buffers until the block ends: a signature and redacted data, which may come in pieces, and blocks of the service's own
tools, which become one event.

    messageStart        then blocks: [contentBlockStart] contentBlockDelta* contentBlockStop
    messageStop         the stop reason; blocks that are still open were cut by a length limit
                        (docs/decisions/responses.md#d7), or else messageStop comes too early
    metadata            token counts, usually after messageStop; ends the stream, which may also end without it
    an exception        ends the stream at any point
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TypeAlias

from msgspec import Struct

from dragoman.dialects.base import Decoder, Environment
from dragoman.dialects.bedrock.blocks import SERVER_TOOL, parse_citation, parse_redacted
from dragoman.dialects.bedrock.nodes import EXTRAS, FAMILY
from dragoman.dialects.bedrock.reply import exception_fault, malformed_fault, parse_stop, parse_usage
from dragoman.errors import BadFrame, Fault, MissingField, OutOfOrder, Truncated
from dragoman.model import events as ev
from dragoman.model.blocks import Location, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Conversation, Stop, StopReason
from dragoman.model.filter import LaneSource
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json

_PADDING = "p"  # a field of random length, which hides the length of the content
_CUT = (StopReason.LENGTH, StopReason.CONTEXT)


class _ToolDelta(Struct, gc=False):
    input: str


class _ReasoningDelta(Struct, gc=False):
    text: str | None = None


class _Delta(Struct, gc=False):
    """A delta of text, thinking or tool input, which make up most of a stream."""

    text: str | None = None
    toolUse: _ToolDelta | None = None  # noqa: N815  # the name on the wire
    reasoningContent: _ReasoningDelta | None = None  # noqa: N815


class _DeltaFrame(Struct, gc=False):
    contentBlockIndex: int  # noqa: N815
    delta: _Delta


_decode_delta = jsonio.strict_decoder(_DeltaFrame)
_IN_LANE: dict[type[ev.Delta], Callable[[_Delta], str | None]] = {
    ev.TextDelta: attrgetter("text"),
    ev.ReasoningDelta: lambda delta: None if delta.reasoningContent is None else delta.reasoningContent.text,
    ev.ArgumentsDelta: lambda delta: None if delta.toolUse is None else delta.toolUse.input,
}


def _lane(kind: type[ev.Delta], index: int) -> LaneSource:
    """Return the lane for deltas of this kind of the block at this index."""
    text_of = _IN_LANE[kind]

    def of_block(frame: _DeltaFrame) -> str | None:
        return text_of(frame.delta) if frame.contentBlockIndex == index else None

    return LaneSource("contentBlockDelta", _decode_delta, of_block)


class _OpenBlock:
    """A block that has started and not ended."""

    __slots__ = ("block", "key", "partial", "redacted", "signature")

    def __init__(
        self,
        key: int,
        block: Text | Reasoning | ToolCall | None,
        budget: ev.ResponseBudget,
        partial: PartialBlock | None = None,
    ) -> None:
        self.key = key
        self.block = block  # None: the first delta will show the type
        self.partial = partial  # content of an opaque block so far
        self.signature = ev.TextBuffer(budget)
        self.redacted = ev.TextBuffer(budget)


_Handler: TypeAlias = Callable[["BedrockDecoder", Fields], ev.Events]
_TEXT, _REASONING = Text(""), Reasoning("", FAMILY)


class BedrockDecoder(Decoder):
    """Reads frames into events. Raises UpstreamViolation for frames that the dialect does not allow."""

    def __init__(self, request: Conversation, environment: Environment, keys: ev.BlockKeys | None = None) -> None:
        self._model = request.model
        self._keys = keys or ev.BlockKeys()
        self._open: dict[int, _OpenBlock] = {}  # by index
        self._used: set[int] = set()  # indices of all blocks so far
        self._has_content = False  # content that makes a malformed reply usable
        self._started = self._stopped = self._counted = self._is_over = False

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def feed(self, frame: Frame) -> ev.Events | None:
        if self._is_over:
            raise OutOfOrder("the event follows the end of the stream", at=frame.kind)
        if frame.error:
            self._is_over = True
            return (ev.Failed(exception_fault(frame)),)
        fields = Fields.parse(frame.data, frame.kind, BadFrame)
        fields.blame = MissingField
        fields.any(_PADDING)
        if not self._started and frame.kind != "messageStart":
            raise OutOfOrder("the stream must begin with messageStart", at=frame.kind)
        handler = _HANDLERS.get(frame.kind)
        return handler(self, fields) if handler else (ev.OpaqueEvent(FAMILY, frame.kind, fields.rest()),)

    def close(self, broken: Fault | None) -> ev.Events:
        if self._is_over:
            return ()
        self._is_over = True
        if broken is None and self._stopped:
            return (ev.FINISHED,)
        return (ev.Failed(broken or Truncated("the upstream's stream ended before messageStop").fault),)

    def lane(self, kind: type[ev.Delta], key: int) -> LaneSource | None:
        blocks = self._open.items()
        index = next((at for at, opened in blocks if opened.key == key and opened.partial is None), None)
        return None if index is None else _lane(kind, index)

    # --- the message

    def _message_start(self, fields: Fields) -> ev.Events:
        if self._started:
            raise OutOfOrder("the stream has a second messageStart", at="messageStart")
        self._started = True
        fields.any("role")
        return (ev.Started("", self._model, extra=EXTRAS.extra(fields)),)

    def _message_stop(self, fields: Fields) -> ev.Events:
        if self._stopped:
            return ()  # a repeated stop
        reason = fields.peek("stopReason")
        stop = parse_stop(fields)
        ends = self._close_cut(stop)
        if (fault := malformed_fault(reason, has_content=self._has_content)) is not None:
            self._is_over = True
            return (*ends, ev.Failed(fault))
        self._stopped = True
        if self._counted:
            self._is_over = True
            return (*ends, ev.Stopped(stop), ev.FINISHED)
        return (*ends, ev.Stopped(stop))

    def _close_cut(self, stop: Stop) -> ev.Events:
        """End the blocks that a limit cut. Raises OutOfOrder for open blocks after any other stop reason."""
        if not self._open:
            return ()
        if stop.reason not in _CUT:
            raise OutOfOrder(f"block {next(iter(self._open))} is still open", at="messageStop")
        ends = tuple(event for at, opened in self._open.items() for event in self._ended(at, opened, complete=False))
        self._open.clear()
        return ends

    def _metadata(self, fields: Fields) -> ev.Events:
        self._counted = True
        usage = parse_usage(fields)
        events: ev.Events = (ev.UsageReported(usage),) if usage else ()
        if self._stopped:
            self._is_over = True
            return (*events, ev.FINISHED)
        return events

    # --- blocks

    def _block_start(self, fields: Fields) -> ev.Events:
        index, start = fields.integer("contentBlockIndex"), fields.child("start")
        self._require_new(index, fields.at)
        at = Location(start.at)
        use = start.peek("toolUse")
        if start.has("toolUse") and not (isinstance(use, dict) and use.get("type") == SERVER_TOOL):
            inner = start.child("toolUse")
            call = ToolCall(inner.identifier("toolUseId"), inner.identifier("name"), extra=EXTRAS.extra(inner), at=at)
            return self._begin(index, call)
        if start.has("text"):
            text = start.text("text", "")
            events = self._begin(index, _TEXT)
            return (*events, ev.TextDelta(self._open[index].key, text)) if text else events
        self._keys.budget.reserve(ev.json_size(start.rest()))
        self._buffer(index, begin_partial(start))
        return ()

    def _require_new(self, index: int, at: str) -> None:
        if index in self._used:
            raise OutOfOrder(f"block {index} has already started", at=at)
        if self._stopped:
            raise OutOfOrder("the message has already stopped", at=at)

    def _begin(self, index: int, block: Text | Reasoning | ToolCall) -> ev.Events:
        key = self._keys.fresh(block)
        self._used.add(index)
        self._open[index] = _OpenBlock(key, block, self._keys.budget)
        self._has_content = self._has_content or isinstance(block, Text | ToolCall)
        return (ev.BlockStarted(key, block, wire_index=index),)

    def _buffer(self, index: int, partial: PartialBlock | None) -> None:
        """Start a block of a type that is not known yet, or an opaque block that is buffered until its end."""
        self._used.add(index)
        self._open[index] = _OpenBlock(self._keys.fresh(), None, self._keys.budget, partial)

    def _block_delta(self, fields: Fields) -> ev.Events:
        delta = fields.child("delta")
        index = fields.integer("contentBlockIndex")
        opened = self._open.get(index)
        if opened is None:
            self._require_new(index, fields.at)
        if opened is not None and opened.partial is not None:
            self._keys.budget.reserve(ev.json_size(delta.rest()))
            opened.partial.grow(delta)
            return ()
        match next((name for name in _KINDS if delta.peek(name) is not None), ""):
            case "text":
                text = delta.text("text")
                return (*self._ensure_started(index, opened, _TEXT), ev.TextDelta(self._open[index].key, text))
            case "citation":
                citation = parse_citation(delta.child("citation"))
                return (*self._ensure_started(index, opened, _TEXT), ev.CitationAdded(self._open[index].key, citation))
            case "reasoningContent":
                thought = delta.child("reasoningContent")
                return (*self._ensure_started(index, opened, _REASONING), *self._thought(self._open[index], thought))
            case "toolUse":
                if opened is None or not isinstance(opened.block, ToolCall):
                    message = f"the tool call of block {index} has no contentBlockStart"
                    raise OutOfOrder(message, at=delta.path("toolUse"))
                return (ev.ArgumentsDelta(opened.key, delta.child("toolUse").text("input")),)
            case _:
                if opened is None or opened.block is None:
                    self._keys.budget.reserve(ev.json_size(delta.rest()))
                    self._buffer(index, begin_partial(delta))  # a block of an unknown type
                    return ()
                data: Json = {"contentBlockIndex": opened.key, "delta": delta.rest()}
                return (ev.OpaqueEvent(FAMILY, "contentBlockDelta", data),)

    def _ensure_started(self, index: int, opened: _OpenBlock | None, block: Text | Reasoning) -> ev.Events:
        """Return the start of a block whose first delta this is. Raises OutOfOrder for a block of another type."""
        if opened is None or opened.block is None:
            return self._begin(index, block)
        if type(opened.block) is not type(block):
            raise OutOfOrder(f"block {index} is a {type(opened.block).__name__}", at="contentBlockDelta.delta")
        return ()

    def _thought(self, opened: _OpenBlock, thought: Fields) -> ev.Events:
        if thought.peek("signature") is not None:
            opened.signature.add(thought.text("signature"))
            return ()
        if thought.peek("redactedContent") is not None:
            opened.redacted.add(parse_redacted(thought))
            return ()
        return (ev.ReasoningDelta(opened.key, thought.text("text")),)

    def _block_stop(self, fields: Fields) -> ev.Events:
        index = fields.integer("contentBlockIndex")
        opened = self._open.pop(index, None)
        if opened is None:
            if index in self._used or self._stopped:
                raise OutOfOrder(f"block {index} is not open", at="contentBlockStop")
            self._keys.fresh()
            self._used.add(index)  # an empty block: neither start nor delta
            return ()
        return self._ended(index, opened, complete=True)

    def _ended(self, index: int, opened: _OpenBlock, *, complete: bool) -> ev.Events:
        key, events = opened.key, list[ev.Event]()
        if opened.partial is not None:
            self._has_content = True
            events.append(ev.BlockStarted(key, opened.partial.whole(), wire_index=index))
        elif opened.block is None:
            return ()
        if opened.redacted:
            events.append(ev.SignatureAdded(key, Signature(FAMILY, opened.redacted.take(), "redacted")))
        elif opened.signature:
            events.append(ev.SignatureAdded(key, Signature(FAMILY, opened.signature.take())))
        return (*events, ev.BlockEnded(key, complete))


# Functions of the class: bound methods would form a reference cycle with the decoder.
_HANDLERS: dict[str, _Handler] = {
    "messageStart": BedrockDecoder._message_start,
    "contentBlockStart": BedrockDecoder._block_start,
    "contentBlockDelta": BedrockDecoder._block_delta,
    "contentBlockStop": BedrockDecoder._block_stop,
    "messageStop": BedrockDecoder._message_stop,
    "metadata": BedrockDecoder._metadata,
}


_KINDS = ("text", "toolUse", "reasoningContent", "citation")


# --- buffered blocks of a stream: calls, results and images of the service's own tools, and unknown blocks


class PartialBlock:
    """An incomplete opaque block: its one member, which names its kind, and the content so far."""

    def __init__(self, member: str, value: Json, at: str) -> None:
        self._member = member
        self._value = value
        self._results: list[Json] = []
        self._at = at

    def grow(self, delta: Fields) -> None:
        """Add a delta to the content."""
        value = delta.any(self._member)
        if self._member == "toolResult" and isinstance(value, list):
            self._results.extend(value)
        else:
            self._value = _joined(self._value, value)

    def whole(self) -> Opaque:
        """Return the complete block. Raises BadFrame for an input that is not JSON."""
        value, kind = self._value, None
        if isinstance(value, dict):
            kind = value.get("type")
            if self._member == "toolUse":
                value = {**value, "input": _decoded(value.get("input"))}
            elif self._member == "toolResult":
                value = {**value, "content": self._results}
        data: Json = {self._member: value}
        return Opaque(FAMILY, data, kind if isinstance(kind, str) else self._member, at=Location(self._at))


def _joined(before: Json, more: Json) -> Json:
    """Join two values: strings and arrays are concatenated, objects merged; else the later value wins."""
    if isinstance(before, str) and isinstance(more, str):
        return before + more
    if isinstance(before, list) and isinstance(more, list):
        return before + more
    if isinstance(before, dict) and isinstance(more, dict):
        return before | {name: _joined(before.get(name), value) for name, value in more.items()}
    return before if more is None else more


def _decoded(text: Json) -> Json:
    if not isinstance(text, str):
        return text or {}
    try:
        return jsonio.decode(text or "{}")
    except jsonio.JsonError as error:
        raise BadFrame(f"the input of a tool of the service is not JSON: {error}", at="contentBlockStop") from None


def begin_partial(start: Fields) -> PartialBlock | None:
    """Return the opaque block that a start or first delta begins; None if its kind is not known yet."""
    for member, value in start.rest().items():
        if member != "reasoningContent":
            return PartialBlock(member, value, start.at)
    return None
