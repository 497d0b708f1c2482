"""Streams, wire to canonical: one decoder per answer.

Theory of operation. Every frame is a small reply; its parts go on where the last frame's ended. Text goes on as the
open text, thoughts as the open thought; whatever else comes ends it. Calls come whole. A signed text is a block of its
own. There is no last frame: each candidate ends with its finishReason, and the stream with its bytes (D7).
"""

from __future__ import annotations

from msgspec import structs

from dragoman.dialects.base import Decoder
from dragoman.dialects.gemini.nodes import FAMILY, extra_of
from dragoman.dialects.gemini.partial import PartialCall, joined
from dragoman.dialects.gemini.parts import parse_part
from dragoman.dialects.gemini.reply import (
    UNSPECIFIED,
    Candidate,
    candidates,
    demand_readable,
    open_response,
    parse_block_reason,
    parse_parts,
    parse_stop,
    raw_arguments,
    says_nothing,
)
from dragoman.dialects.gemini.sources import parse_sources
from dragoman.dialects.gemini.usage import parse_usage
from dragoman.errors import BadFrame, Fault, MissingField, OutOfOrder, Truncated, UpstreamFault
from dragoman.model.blocks import Block, Opaque, Reasoning, Text, ToolCall, ToolResult, to_keep
from dragoman.model.conversation import Conversation, Stop, Why
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
    OpaqueEvent,
    ReasoningDelta,
    Sealed,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
    json_size,
)
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json

_SILENT = (b"", b"null")


class _Choice:
    """One candidate under way."""

    __slots__ = ("called", "index", "key", "partial", "said", "sources", "stopped", "thinks")

    def __init__(self, index: int) -> None:
        self.index = index
        self.key = -1  # of the open text or thought
        self.thinks = False  # it is a thought
        self.said = False
        self.sources: list[Opaque] = []  # what the answer cites: told at its end
        self.called = False
        self.partial: PartialCall | None = None  # a call whose arguments come in pieces
        self.stopped = False


class GeminiDecoder(Decoder):
    """Frames to events. Raises UpstreamViolation for what the dialect does not allow."""

    def __init__(self, asked: Conversation, keys: BlockKeys | None = None) -> None:
        self._model = asked.model
        self._keys = keys or BlockKeys()
        self._choices: dict[int, _Choice] = {}
        self._begun = False
        self._over = False
        self._told: dict[str, Json] = {}  # fields of the response that were told

    @property
    def is_open(self) -> bool:
        return any(choice.key >= 0 or choice.partial is not None for choice in self._choices.values())

    def feed(self, frame: Frame) -> Events | None:
        if frame.data.strip() in _SILENT:
            return None
        events: list[Event] = []
        try:
            fields = open_response(frame.data)
            self._response(fields, frame.data, events)
        except UpstreamFault as failed:
            self._over = True
            events.append(Failed(failed.fault))
        except RecursionError:
            raise BadFrame("nested too deeply") from None
        return tuple(events)

    def close(self, broken: Fault | None) -> Events:
        if self._over:
            return ()
        self._over = True
        if broken is None and self._choices and all(choice.stopped for choice in self._choices.values()):
            return (FINISHED,)
        return (Failed(broken or Truncated("the upstream's stream ended before a finishReason").fault),)

    def _response(self, fields: Fields, data: bytes, events: list[Event]) -> None:
        usage, entries = fields.any("usageMetadata"), candidates(fields)
        blocked = None if entries or self._choices else parse_block_reason(fields)
        self._envelope(fields, events)
        arguments = raw_arguments(data)
        for candidate in entries:
            choice = self._choices.get(candidate.index)
            if choice is None:
                self._keys.budget.choice()
                choice = self._choices[candidate.index] = _Choice(candidate.index)
            parts, choice.partial = joined(candidate.parts, choice.partial, candidate.at)
            if choice.partial is not None:
                self._keys.budget.keep(json_size(candidate.parts))
            blocks = parse_parts(structs.replace(candidate, parts=parts), arguments)
            self._candidate(choice, candidate, blocks, events)
        if blocked is not None:
            self._choices[0] = _Choice(0)
            self._choices[0].stopped = True
            events.append(Stopped(blocked))
        if (counts := parse_usage(usage)) is not None:
            events.append(UsageReported(counts))

    def _envelope(self, fields: Fields, events: list[Event]) -> None:
        response_id, model = fields.text("responseId", ""), fields.text("modelVersion", "")
        rest = fields.rest()
        if not self._begun:
            self._begun = True
            events.append(Started(response_id, model or self._model, extra=extra_of(to_keep(rest))))
            news = rest
        elif news := {name: value for name, value in rest.items() if self._told.get(name) != value}:
            events.append(OpaqueEvent(FAMILY, "response", news))
        if news:
            before = {name: self._told[name] for name in news if name in self._told}
            self._keys.budget.keep(json_size(news) - json_size(before))
            self._told |= news

    def _candidate(self, choice: _Choice, candidate: Candidate, blocks: list[Block], events: list[Event]) -> None:
        for block in blocks:
            if says_nothing(block):
                continue
            if choice.stopped:
                raise OutOfOrder("content after its finishReason", at=candidate.at)
            choice.said = True
            self._block(choice, block, events)
        rest = candidate.rest
        sources = [source for source in parse_sources(rest) if source not in choice.sources] if rest else []
        self._keys.budget.keep(json_size(*sources))
        choice.sources += sources
        if candidate.reason in UNSPECIFIED or choice.stopped:
            if rest:
                events.append(OpaqueEvent(FAMILY, "candidate", {"index": choice.index, "fields": rest}))
            return
        demand_readable(candidate, said=choice.said)
        stop = parse_stop(candidate.reason, rest, called=choice.called)
        if choice.partial is not None:
            self._cut(choice, choice.partial, stop, candidate.at, events)
        if choice.key >= 0 and not choice.thinks:
            events += [Cited(choice.key, source) for source in choice.sources]
        self._close(choice, events)
        choice.stopped = True
        events.append(Stopped(stop, choice.index))

    def _cut(self, choice: _Choice, partial: PartialCall, stop: Stop, at: str, events: list[Event]) -> None:
        """End a call that has pieces to come: a limit cut it. Raises OutOfOrder where nothing did."""
        if stop.why not in (Why.LENGTH, Why.CONTEXT):
            raise OutOfOrder("a call got no end", at=at)
        call = parse_part(partial.part, at, MissingField)
        if isinstance(call, ToolCall):
            self._call(choice, call, events)
            events[-1] = structs.replace(events[-1], complete=False)

    def _block(self, choice: _Choice, block: Block, events: list[Event]) -> None:
        match block:
            case Reasoning():
                self._thought(choice, block, events)
            case Text(seal=None, extra=None):
                if choice.key < 0 or choice.thinks:
                    self._begin(choice, Text(""), events)
                events.append(TextDelta(choice.key, block.text))
            case Text():
                self._begin(choice, Text("", extra=block.extra), events)
                if block.text:
                    events.append(TextDelta(choice.key, block.text))
                if block.seal:
                    events.append(Sealed(choice.key, block.seal))
                self._close(choice, events)
            case ToolCall():
                self._call(choice, block, events)
            case ToolResult():
                raise OutOfOrder("a result is no part of an answer", at=block.at.path)
            case whole:
                self._close(choice, events)
                key = self._keys.fresh(whole)
                events += (BlockStarted(key, whole, choice.index), BlockEnded(key))

    def _thought(self, choice: _Choice, block: Reasoning, events: list[Event]) -> None:
        if choice.key < 0 or not choice.thinks or block.extra:
            self._begin(choice, Reasoning("", FAMILY, extra=block.extra), events)
        if block.text:
            events.append(ReasoningDelta(choice.key, block.text))
        if block.seal:
            events.append(Sealed(choice.key, block.seal))
            self._close(choice, events)

    def _call(self, choice: _Choice, call: ToolCall, events: list[Event]) -> None:
        self._close(choice, events)
        key, choice.called = self._keys.fresh(call), True
        events.append(BlockStarted(key, structs.replace(call, arguments="", seal=None), choice.index))
        if call.arguments:
            events.append(ArgumentsDelta(key, call.arguments))
        if call.seal:
            events.append(Sealed(key, call.seal))
        events.append(BlockEnded(key))

    def _begin(self, choice: _Choice, block: Text | Reasoning, events: list[Event]) -> None:
        self._close(choice, events)
        choice.key, choice.thinks = self._keys.fresh(block), isinstance(block, Reasoning)
        events.append(BlockStarted(choice.key, block, choice.index))

    def _close(self, choice: _Choice, events: list[Event]) -> None:
        if choice.key >= 0:
            events.append(BlockEnded(choice.key))
            choice.key = -1
