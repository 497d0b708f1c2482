"""Streams, wire to canonical: one decoder per answer.

Theory of operation. The upstream's indices are places of blocks. The service announces only the blocks of tools; any
other begins with its first delta, so the decoder makes up its start (and takes one that is sent). Held until the
block's end: a signature and redacted data, which may come in pieces, and what the service's own tools say, which must
come whole.

    messageStart        then blocks: [contentBlockStart] contentBlockDelta* contentBlockStop
    messageStop         the reason; open blocks were cut by the length limit (see docs/decisions/answers.md#d7), or it
                        comes too early
    metadata            the counts, usually after messageStop: the end. A stream that ends without it has ended too
    an exception        anywhere: the end
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

_PADDING = "p"  # a key of random length, which hides the length of what was said
_CUT = (StopReason.LENGTH, StopReason.CONTEXT)


class _ToolDelta(Struct, gc=False):
    input: str


class _ReasoningDelta(Struct, gc=False):
    text: str | None = None


class _Delta(Struct, gc=False):
    """The deltas that make up nearly all of a stream."""

    text: str | None = None
    toolUse: _ToolDelta | None = None  # noqa: N815  # the wire's own name
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
    """Return the lane of such deltas of the block at this index."""
    text_of = _IN_LANE[kind]

    def of_block(frame: _DeltaFrame) -> str | None:
        return text_of(frame.delta) if frame.contentBlockIndex == index else None

    return LaneSource("contentBlockDelta", _decode_delta, of_block)


class _Open:
    """A block that has begun and not ended."""

    __slots__ = ("block", "held", "key", "redacted", "signature")

    def __init__(
        self,
        key: int,
        block: Text | Reasoning | ToolCall | None,
        budget: ev.ResponseBudget,
        held: PartialBlock | None = None,
    ) -> None:
        self.key = key
        self.block = block  # None: announced, but its first delta must tell what it is
        self.held = held
        self.signature = ev.TextBuffer(budget)
        self.redacted = ev.TextBuffer(budget)


_Handler: TypeAlias = Callable[["BedrockDecoder", Fields], ev.Events]
_TEXT, _REASONING = Text(""), Reasoning("", FAMILY)


class BedrockDecoder(Decoder):
    """Frames to events. Raises UpstreamViolation for what the dialect does not allow."""

    def __init__(self, asked: Conversation, environment: Environment, keys: ev.BlockKeys | None = None) -> None:
        self._model = asked.model
        self._keys = keys or ev.BlockKeys()
        self._open: dict[int, _Open] = {}  # by index
        self._used: set[int] = set()
        self._usable = False  # something was said that is worth an answer
        self._begun = self._stopped = self._counted = self._over = False

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def feed(self, frame: Frame) -> ev.Events | None:
        if self._over:
            raise OutOfOrder("the stream is over", at=frame.kind)
        if frame.error:
            self._over = True
            return (ev.Failed(exception_fault(frame)),)
        fields = Fields.parse(frame.data, frame.kind, BadFrame)
        fields.blame = MissingField
        fields.any(_PADDING)
        if not self._begun and frame.kind != "messageStart":
            raise OutOfOrder("messageStart has not come", at=frame.kind)
        handler = _HANDLERS.get(frame.kind)
        return handler(self, fields) if handler else (ev.OpaqueEvent(FAMILY, frame.kind, fields.rest()),)

    def close(self, broken: Fault | None) -> ev.Events:
        if self._over:
            return ()
        self._over = True
        if broken is None and self._stopped:
            return (ev.FINISHED,)
        return (ev.Failed(broken or Truncated("the upstream's stream ended before messageStop").fault),)

    def lane(self, kind: type[ev.Delta], key: int) -> LaneSource | None:
        index = next((at for at, grown in self._open.items() if grown.key == key and grown.held is None), None)
        return None if index is None else _lane(kind, index)

    # --- the message

    def _message_start(self, fields: Fields) -> ev.Events:
        if self._begun:
            raise OutOfOrder("it has come already", at="messageStart")
        self._begun = True
        fields.any("role")
        return (ev.Started("", self._model, extra=EXTRAS.extra(fields)),)

    def _message_stop(self, fields: Fields) -> ev.Events:
        if self._stopped:
            return ()  # told twice
        reason = fields.peek("stopReason")
        stop = parse_stop(fields)
        ends = self._close_cut(stop)
        if (fault := malformed_fault(reason, said=self._usable)) is not None:
            self._over = True
            return (*ends, ev.Failed(fault))
        self._stopped = True
        if self._counted:
            self._over = True
            return (*ends, ev.Stopped(stop), ev.FINISHED)
        return (*ends, ev.Stopped(stop))

    def _close_cut(self, stop: Stop) -> ev.Events:
        """Blocks that are open at the end were cut, if the reason is a limit; else their end is missing."""
        if not self._open:
            return ()
        if stop.reason not in _CUT:
            raise OutOfOrder(f"block {next(iter(self._open))} is open", at="messageStop")
        ends = tuple(event for at, grown in self._open.items() for event in self._ended(at, grown, complete=False))
        self._open.clear()
        return ends

    def _metadata(self, fields: Fields) -> ev.Events:
        self._counted = True
        usage = parse_usage(fields)
        events: ev.Events = (ev.UsageReported(usage),) if usage else ()
        if self._stopped:
            self._over = True
            return (*events, ev.FINISHED)
        return events

    # --- blocks

    def _block_start(self, fields: Fields) -> ev.Events:
        index, start = fields.integer("contentBlockIndex"), fields.child("start")
        self._demand_fresh(index, fields.at)
        at = Location(start.at)
        use = start.peek("toolUse")
        if start.has("toolUse") and not (isinstance(use, dict) and use.get("type") == SERVER_TOOL):
            inner = start.child("toolUse")
            call = ToolCall(inner.identifier("toolUseId"), inner.identifier("name"), extra=EXTRAS.extra(inner), at=at)
            return self._begin(index, call)
        if start.has("text"):
            text = start.text("text", "")
            begun = self._begin(index, _TEXT)
            return (*begun, ev.TextDelta(self._open[index].key, text)) if text else begun
        self._keys.budget.reserve(ev.json_size(start.rest()))
        self._hold(index, begin_held(start))
        return ()

    def _demand_fresh(self, index: int, at: str) -> None:
        if index in self._used:
            raise OutOfOrder(f"block {index} has begun before", at=at)
        if self._stopped:
            raise OutOfOrder("the message has stopped", at=at)

    def _begin(self, index: int, block: Text | Reasoning | ToolCall) -> ev.Events:
        key = self._keys.fresh(block)
        self._used.add(index)
        self._open[index] = _Open(key, block, self._keys.budget)
        self._usable = self._usable or isinstance(block, Text | ToolCall)
        return (ev.BlockStarted(key, block, wire_index=index),)

    def _hold(self, index: int, held: PartialBlock | None) -> None:
        """Begin a block whose kind is not known yet, or that must come whole."""
        self._used.add(index)
        self._open[index] = _Open(self._keys.fresh(), None, self._keys.budget, held)

    def _block_delta(self, fields: Fields) -> ev.Events:
        delta = fields.child("delta")
        index = fields.integer("contentBlockIndex")
        grown = self._open.get(index)
        if grown is None:
            self._demand_fresh(index, fields.at)
        if grown is not None and grown.held is not None:
            self._keys.budget.reserve(ev.json_size(delta.rest()))
            grown.held.grow(delta)
            return ()
        match next((name for name in _KINDS if delta.peek(name) is not None), ""):
            case "text":
                text = delta.text("text")
                return (*self._become(index, grown, _TEXT), ev.TextDelta(self._open[index].key, text))
            case "citation":
                cited = parse_citation(delta.child("citation"))
                return (*self._become(index, grown, _TEXT), ev.CitationAdded(self._open[index].key, cited))
            case "reasoningContent":
                thought = delta.child("reasoningContent")
                return (*self._become(index, grown, _REASONING), *self._thought(self._open[index], thought))
            case "toolUse":
                if grown is None or not isinstance(grown.block, ToolCall):
                    raise OutOfOrder(
                        f"no contentBlockStart announced the tool of block {index}", at=delta.path("toolUse")
                    )
                return (ev.ArgumentsDelta(grown.key, delta.child("toolUse").text("input")),)
            case _:
                if grown is None or grown.block is None:
                    self._keys.budget.reserve(ev.json_size(delta.rest()))
                    self._hold(index, begin_held(delta))  # of a kind that we do not know, and never announced
                    return ()
                told: Json = {"contentBlockIndex": grown.key, "delta": delta.rest()}
                return (ev.OpaqueEvent(FAMILY, "contentBlockDelta", told),)

    def _become(self, index: int, grown: _Open | None, block: Text | Reasoning) -> ev.Events:
        """The start of a block that nobody announced, or whose announcement did not say what it is."""
        if grown is None or grown.block is None:
            return self._begin(index, block)
        if type(grown.block) is not type(block):
            raise OutOfOrder(f"block {index} is a {type(grown.block).__name__}", at="contentBlockDelta.delta")
        return ()

    def _thought(self, grown: _Open, thought: Fields) -> ev.Events:
        if thought.peek("signature") is not None:
            grown.signature.add(thought.text("signature"))
            return ()
        if thought.peek("redactedContent") is not None:
            grown.redacted.add(parse_redacted(thought))
            return ()
        return (ev.ReasoningDelta(grown.key, thought.text("text")),)

    def _block_stop(self, fields: Fields) -> ev.Events:
        index = fields.integer("contentBlockIndex")
        grown = self._open.pop(index, None)
        if grown is None:
            if index in self._used or self._stopped:
                raise OutOfOrder(f"block {index} is not open", at="contentBlockStop")
            self._keys.fresh()
            self._used.add(index)  # a block that said nothing: neither start nor delta
            return ()
        return self._ended(index, grown, complete=True)

    def _ended(self, index: int, grown: _Open, *, complete: bool) -> ev.Events:
        key, events = grown.key, list[ev.Event]()
        if grown.held is not None:
            self._usable = True
            events.append(ev.BlockStarted(key, grown.held.whole(), wire_index=index))
        elif grown.block is None:
            return ()
        if grown.redacted:
            events.append(ev.SignatureAdded(key, Signature(FAMILY, grown.redacted.take(), "redacted")))
        elif grown.signature:
            events.append(ev.SignatureAdded(key, Signature(FAMILY, grown.signature.take())))
        return (*events, ev.BlockEnded(key, complete))


# Of the class: bound methods would keep their decoder, and the question in it, until the next collection.
_HANDLERS: dict[str, _Handler] = {
    "messageStart": BedrockDecoder._message_start,
    "contentBlockStart": BedrockDecoder._block_start,
    "contentBlockDelta": BedrockDecoder._block_delta,
    "contentBlockStop": BedrockDecoder._block_stop,
    "messageStop": BedrockDecoder._message_stop,
    "metadata": BedrockDecoder._metadata,
}


_KINDS = ("text", "toolUse", "reasoningContent", "citation")


# --- blocks of a stream that must come whole: what the service's own tools call, return and draw, and what is unknown


class PartialBlock:
    """A block under construction: the one member that says its kind, and what has come of it."""

    def __init__(self, member: str, value: Json, at: str) -> None:
        self._member = member
        self._value = value
        self._results: list[Json] = []
        self._at = at

    def grow(self, delta: Fields) -> None:
        value = delta.any(self._member)
        if self._member == "toolResult" and isinstance(value, list):
            self._results.extend(value)
        else:
            self._value = _joined(self._value, value)

    def whole(self) -> Opaque:
        """The block. Raises BadFrame for an input that is no JSON."""
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
    """Both values as one: texts and arrays are joined, objects merged; else the later one counts."""
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


def begin_held(start: Fields) -> PartialBlock | None:
    """The block that a start announces; None if it does not say what it is: then its first delta does."""
    for member, value in start.rest().items():
        if member != "reasoningContent":
            return PartialBlock(member, value, start.at)
    return None
