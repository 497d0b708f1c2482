"""Streams, canonical to wire: one encoder per answer, in the order that the SDKs' helpers and Codex read.

Each text is a message of one part. Items are numbered densely in the order of their starts; several may be open. All
that was said is kept until the end, because the last event tells it again, whole. A call's output_item.done is an order
to run it, so one that was cut gets none, and one whose arguments are no JSON waits for the reason to stop
(docs/decisions/answers.md#d7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct, structs

from dragoman.dialects.base import Encoder, Environment
from dragoman.dialects.kit.values import is_json
from dragoman.dialects.responses.blocks import (
    ANNOUNCED,
    EXTRAS,
    FAMILY,
    IN_CONTENT,
    NEEDS_REENCODING,
    JsonObject,
    is_refusal,
    render_annotation,
)
from dragoman.dialects.responses.reply import Envelope, ItemWriter, output_part, render_failure
from dragoman.errors import Fault
from dragoman.model import events as ev
from dragoman.model.blocks import Block, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Conversation, Stop, StopReason, Usage
from dragoman.wire import jsonio
from dragoman.wire.frame import Payload
from dragoman.wire.jsonio import Json, quote

_PING = Payload(b"", b"")  # the binding writes it as a comment
_DELTA = b'{"type":"%b","sequence_number":%d,%b"delta":%b%b}'
# Of a reasoning's text: the events around a part, the events of its text, the name of its place, the part's type.
_SUMMARY = ("response.reasoning_summary_part", "response.reasoning_summary_text", "summary_index", "summary_text")
_CONTENT = ("response.content_part", "response.reasoning_text", "content_index", "reasoning_text")

# What one frame of our own decoder may mean beside another thing and still be let through: none of it comes late.
_TOGETHER = (
    frozenset({ev.TextDelta, ev.OpaqueEvent}),
    frozenset({ev.ReasoningDelta, ev.BlockStarted}),
    frozenset({ev.BlockStarted, ev.SignatureAdded, ev.BlockEnded}),
    frozenset({ev.UsageReported, ev.Stopped, ev.Finished}),
)


class _Open(Struct):
    """An item that has begun and is not done."""

    index: int
    block: Text | Reasoning | ToolCall
    item: JsonObject
    kind: bytes  # of its deltas
    place: bytes  # what a delta says about its place
    tail: bytes
    pieces: ev.TextBuffer
    citations: list[Opaque]
    signature: Signature | None = None
    begun: bool = False  # a part of reasoning

    @property
    def where(self) -> JsonObject:
        return {"item_id": self.item["id"], "output_index": self.index}


class ResponsesEncoder(Encoder):
    def __init__(self, asked: Conversation, environment: Environment, budget: ev.ResponseBudget | None = None) -> None:
        self._budget = budget or ev.ResponseBudget()
        self._asked = structs.replace(asked, messages=())  # what is repeated to the client; a stream may last
        self._world = environment
        self._writer = ItemWriter(asked, environment)
        self._envelope: Envelope | None = None
        self._number = 0  # of the next event
        self._count = 0  # of items
        self._open: dict[int, _Open] = {}
        self._doubtful: list[_Open] = []
        self._output: dict[int, Json] = {}
        self._usage: Usage | None = None
        self._stop = Stop(StopReason.END)
        self._passed = 0  # frames of the upstream's own that went out
        self._rewritten = False  # an event went out that was not one of them

    def ping(self) -> Payload:
        return _PING

    def set_next_number(self, number: int) -> None:
        """The next event is that one of the stream: others went out that were not ours."""
        self._number = number

    def feed(self, events: ev.Events) -> Iterable[Payload]:
        self._rewritten = True
        return self._written(events)

    def passes(self, events: ev.Events) -> bool:
        """Once a frame was written anew all later ones are: they number items, and the last tells all of them."""
        if self._rewritten:
            return False
        number = self._number
        together = len(events) < 2 or any(each.issuperset(map(type, events)) for each in _TOGETHER)
        if len(events) == 1 and type(events[0]) is ev.TextDelta:
            self._open[events[0].key].pieces.add(events[0].text)
        elif not (together and all(map(self._regular, events))):
            return False
        else:
            self._written(events)
        self._number = number + 1
        self._passed += 1
        return True

    def _regular(self, event: ev.Event) -> bool:
        match event:
            case ev.BlockStarted(block=block):
                return NEEDS_REENCODING not in EXTRAS.own_fields(block.extra)
            case ev.Started(id=given):
                return given.startswith("resp")
            case ev.Stopped(stop):
                return NEEDS_REENCODING not in EXTRAS.own_fields(stop.extra)
            case _:
                return True

    def _written(self, events: ev.Events) -> list[Payload]:
        out: list[Payload] = []
        for event in events:
            if type(event) is ev.TextDelta or type(event) is ev.ArgumentsDelta:
                out.extend(self._grown(self._open[event.key], event.text))
            else:
                out.extend(self._payloads(event))
        return out

    def _grown(self, grows: _Open, text: str) -> tuple[Payload, ...]:
        if grows.kind:
            return (self._delta(grows, text),)
        grows.pieces.add(text)  # a search for tools has no deltas: it comes whole at its end
        return ()

    def _delta(self, grows: _Open, text: str) -> Payload:
        grows.pieces.add(text)
        number = self._number
        self._number = number + 1
        return Payload(grows.kind, _DELTA % (grows.kind, number, grows.place, quote(text), grows.tail))

    def _event(self, kind: str, fields: JsonObject) -> Payload:
        number = self._number
        self._number = number + 1
        name = kind.encode("utf-8", "replace")
        return Payload(name, jsonio.encode({"type": kind, "sequence_number": number, **fields}))

    def _payloads(self, event: ev.Event) -> Iterator[Payload]:
        match event:
            case ev.BlockStarted(key, block):
                yield from self._begin(key, block, event.wire_index)
            case ev.ReasoningDelta(key, text):
                grows = self._open[key]
                yield from self._thought_begun(grows)
                yield self._delta(grows, text)
            case ev.SignatureAdded(key, signature):
                self._budget.reserve(ev.text_size(signature.data))
                self._open[key].signature = signature
            case ev.CitationAdded(key, citation):
                yield self._cited(self._open[key], citation)
            case ev.BlockEnded(key, complete):
                yield from self._end(key, complete)
            case ev.Started():
                self._budget.reserve(ev.json_size(event.id, event.model, EXTRAS.wire_fields(event.extra)))
                yield from self._started(event)
            case ev.UsageReported(usage):
                self._usage = usage
            case ev.Stopped(stop):
                yield from self._stopped(stop)
            case ev.Finished():
                assert self._envelope is not None
                response = self._envelope.ended(self._stop, self._told(), self._usage)
                yield self._event(f"response.{response['status']}", {"response": response})
            case ev.Failed(fault):
                yield from self._failed(fault)
            case ev.OpaqueEvent():
                yield from self._opaque(event)
            case _:
                pass

    # --- the response

    def _started(self, event: ev.Started) -> Iterator[Payload]:
        extra = EXTRAS.wire_fields(event.extra)
        envelope = self._envelope = Envelope(event.id, event.model, extra, self._asked, self._world)
        self._usage = event.usage
        yield self._event("response.created", {"response": envelope.head})
        yield self._event("response.in_progress", {"response": envelope.head})

    def _stopped(self, stop: Stop) -> Iterator[Payload]:
        self._stop = stop
        for call in self._doubtful:
            if stop.reason not in (StopReason.LENGTH, StopReason.CONTEXT):
                yield from self._call_done(call)

    def _failed(self, fault: Fault) -> Iterator[Payload]:
        if self._envelope is None:  # the SDKs take nothing before response.created
            yield from self._started(ev.Started("", ""))
        assert self._envelope is not None
        response = self._envelope.failed(render_failure(fault), self._told())
        yield structs.replace(self._event("response.failed", {"response": response}), error=True)

    def _told(self) -> list[Json]:
        return [self._output[index] for index in sorted(self._output)]

    def _opaque(self, event: ev.OpaqueEvent) -> Iterator[Payload]:
        """What only this family knows. The life of an item that it alone knows is told by the item, whole."""
        data = event.data
        if event.family == FAMILY and isinstance(data, dict) and "output_index" not in data:
            fields = {name: value for name, value in data.items() if name not in ("type", "sequence_number")}
            yield self._event(event.kind, fields)

    # --- items

    def _added(self, index: int, item: JsonObject, *, announced: bool) -> Iterator[Payload]:
        self._count = max(self._count, index + 1)
        if not announced:
            yield self._event("response.output_item.added", {"output_index": index, "item": item})

    def _done(self, index: int, item: JsonObject) -> Payload:
        self._budget.reserve(ev.json_size(item))
        self._output[index] = item
        return self._event("response.output_item.done", {"output_index": index, "item": item})

    def _begin(self, key: int, block: Block, given_place: int | None) -> Iterator[Payload]:
        # By a frame that was let through: then the item has its place, the upstream's.
        by = EXTRAS.own_fields(block.extra).get(ANNOUNCED)
        announced = given_place is not None and isinstance(by, int) and by <= self._passed
        keeps = given_place is not None and (announced or not self._rewritten)
        index = given_place if given_place is not None and keeps else self._count
        match block:
            case Text():
                grows = self._text(index, block)
            case Reasoning():
                item: JsonObject = {"id": self._writer.id_for(block, "reasoning"), "type": "reasoning", "summary": []}
                _, kind, place, _ = _slot(block)
                grows = self._grows(index, block, item, f"{kind}.delta", {place: 0})
            case ToolCall() if self._writer.is_search(block):
                item = {**self._writer.search(structs.replace(block, arguments="")), "status": "in_progress"}
                grows = self._grows(index, block, item, "", {})
            case ToolCall():
                call = structs.replace(block, arguments="")
                item = {**self._writer.call(call), "status": "in_progress"}
                words = "custom_tool_call_input" if block.form == "text" else "function_call_arguments"
                if block.form == "json":
                    item["arguments"] = ""
                grows = self._grows(index, block, item, f"response.{words}.delta", {})
            case Opaque():
                item = self._writer.item(block) or {}
                yield from self._added(index, item, announced=announced)
                yield self._done(index, item)
                return
            case _:
                return  # media has no place in an answer; the filters have said so
        self._open[key] = grows
        yield from self._added(index, grows.item, announced=announced)
        if isinstance(block, Text):
            part: Json = {"type": "refusal", "refusal": ""} if is_refusal(block) else _EMPTY_PART
            yield self._event("response.content_part.added", {**grows.where, "content_index": 0, "part": part})
        given = block.arguments if isinstance(block, ToolCall) else block.text
        if given and isinstance(block, Reasoning):
            yield from self._thought_begun(grows)
        if given:
            yield from self._grown(grows, given)

    def _text(self, index: int, block: Text) -> _Open:
        name = "refusal" if is_refusal(block) else "output_text"
        tail = b"" if name == "refusal" else b',"logprobs":[]'
        item = self._writer.message(block)
        return self._grows(index, block, item, f"response.{name}.delta", {"content_index": 0}, tail)

    def _grows(
        self,
        index: int,
        block: Text | Reasoning | ToolCall,
        item: JsonObject,
        kind: str,
        place: JsonObject,
        tail: bytes = b"",
    ) -> _Open:
        where: JsonObject = {"item_id": item["id"], "output_index": index, **place}
        words = jsonio.encode(where)[1:-1] + b","
        return _Open(index, block, item, kind.encode(), words, tail, ev.TextBuffer(self._budget), [])

    def _cited(self, grows: _Open, citation: Opaque) -> Payload:
        number = len(grows.citations)
        self._budget.reserve(ev.json_size(citation))
        grows.citations.append(citation)
        fields: JsonObject = {**grows.where, "content_index": 0, "annotation_index": number}
        fields["annotation"] = render_annotation(citation)
        return self._event("response.output_text.annotation.added", fields)

    def _end(self, key: int, complete: bool) -> Iterator[Payload]:
        grows = self._open.pop(key, None)
        if grows is None:
            return  # it came whole
        match grows.block:
            case Text() as block:
                yield from self._text_done(grows, block)
            case Reasoning() as block:
                yield from self._thought_done(grows, block)
            case ToolCall() as block:
                if complete and (block.form == "text" or is_json(grows.pieces.text() or "{}")):
                    yield from self._call_done(grows)
                elif complete:
                    self._doubtful.append(grows)
                else:
                    grows.pieces.take()

    def _text_done(self, grows: _Open, block: Text) -> Iterator[Payload]:
        citations = (*block.citations, *grows.citations)
        text = grows.pieces.take()  # it is counted again as part of the item
        part = output_part(structs.replace(block, text=text, citations=citations))
        place: JsonObject = {**grows.where, "content_index": 0}
        if is_refusal(block):
            yield self._event("response.refusal.done", {**place, "refusal": text})
        else:
            yield self._event("response.output_text.done", {**place, "text": text, "logprobs": []})
        yield self._event("response.content_part.done", {**place, "part": part})
        yield self._done(grows.index, {**grows.item, "status": "completed", "content": [part]})

    def _call_done(self, grows: _Open) -> Iterator[Payload]:
        block = grows.block
        assert isinstance(block, ToolCall)
        text = grows.pieces.take()
        if not grows.kind:
            whole = self._writer.search(structs.replace(block, arguments=text))
            yield self._done(grows.index, {**whole, "id": grows.item["id"], "status": "completed"})
            return
        if block.form == "text":
            yield self._event("response.custom_tool_call_input.done", {**grows.where, "input": text})
            item: JsonObject = {**grows.item, "status": "completed", "input": text}
        else:
            if not text:  # clients parse it, some from the deltas alone
                yield self._delta(grows, "{}")
                text = "{}"
            fields: JsonObject = {**grows.where, "name": grows.item["name"], "arguments": text}
            yield self._event("response.function_call_arguments.done", fields)
            item = {**grows.item, "status": "completed", "arguments": text}
        yield self._done(grows.index, item)

    # --- reasoning

    def _thought_begun(self, grows: _Open) -> Iterator[Payload]:
        if not grows.begun:
            grows.begun = True
            around, _, place, kind = _slot(grows.block)
            part: Json = {"type": kind, "text": ""}
            yield self._event(f"{around}.added", {**grows.where, place: 0, "part": part})

    def _thought_done(self, grows: _Open, block: Reasoning) -> Iterator[Payload]:
        text = grows.pieces.take()
        if grows.begun:
            around, kind, place, part_kind = _slot(block)
            where: JsonObject = {**grows.where, place: 0}
            yield self._event(f"{kind}.done", {**where, "text": text})
            yield self._event(f"{around}.done", {**where, "part": {"type": part_kind, "text": text}})
        whole = structs.replace(block, text=text, signature=grows.signature or block.signature)
        yield self._done(grows.index, self._writer.reasoning(whole, str(grows.item["id"])))


_EMPTY_PART: JsonObject = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _slot(block: Block) -> tuple[str, str, str, str]:
    return _CONTENT if EXTRAS.own_fields(block.extra).get(IN_CONTENT) else _SUMMARY
