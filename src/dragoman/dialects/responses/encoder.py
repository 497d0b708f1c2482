"""Encode response streams of the Responses API, in the order that the SDKs and Codex need. Pure.

Theory of operation. Each text is a message with one part. Items are numbered densely in the order of their starts;
several may be open. All content is kept until the end, because the last event repeats it. Clients run a call when they
get its output_item.done, so a call that was cut off gets none, and one whose arguments are not valid JSON waits for the
stop reason (docs/decisions/responses.md#d7).
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
    is_refusal,
    render_annotation,
)
from dragoman.dialects.responses.reply import Envelope, ItemWriter, output_part, render_failure
from dragoman.errors import Fault
from dragoman.model import events as ev
from dragoman.model.blocks import Block, Opaque, Reasoning, Signature, Text, ToolCall, WebResults, WebSearch
from dragoman.model.conversation import Conversation, Stop, StopReason, Usage
from dragoman.wire import jsonio
from dragoman.wire.frame import Payload
from dragoman.wire.jsonio import Json, JsonObject, quote

_PING = Payload(b"", b"")  # the binding writes it as a comment
_DELTA = b'{"type":"%b","sequence_number":%d,%b"delta":%b%b}'
# For the text of reasoning: the events of its part, the events of its text, the field of its index, the part's type.
_SUMMARY = ("response.reasoning_summary_part", "response.reasoning_summary_text", "summary_index", "summary_text")
_CONTENT = ("response.content_part", "response.reasoning_text", "content_index", "reasoning_text")

# The combinations of events that a frame may mean and still pass through unchanged.
_PASSING_TOGETHER = (
    frozenset({ev.TextDelta, ev.OpaqueEvent}),
    frozenset({ev.ReasoningDelta, ev.BlockStarted}),
    frozenset({ev.BlockStarted, ev.SignatureAdded, ev.BlockEnded}),
    frozenset({ev.UsageReported, ev.Stopped, ev.Finished}),
)


class _OpenItem(Struct):
    """An item that has started and is not done."""

    index: int
    block: Text | Reasoning | ToolCall
    item: JsonObject
    kind: bytes  # the type of its delta events
    place: bytes  # the fields of a delta that name its item and part
    tail: bytes
    buffer: ev.TextBuffer
    citations: list[Opaque]
    signature: Signature | None = None
    part_added: bool = False  # its reasoning part was added

    @property
    def where(self) -> JsonObject:
        """The fields of an event that name the item."""
        return {"item_id": self.item["id"], "output_index": self.index}


class ResponsesEncoder(Encoder):
    """Encodes the events of one response."""

    def __init__(
        self, request: Conversation, environment: Environment, budget: ev.ResponseBudget | None = None
    ) -> None:
        self._budget = budget or ev.ResponseBudget()
        self._request = structs.replace(request, messages=())  # the response repeats its settings, not its messages
        self._environment = environment
        self._writer = ItemWriter(request, environment)
        self._envelope: Envelope | None = None
        self._number = 0  # the sequence_number of the next event
        self._count = 0  # items so far
        self._open: dict[int, _OpenItem] = {}
        self._invalid_calls: list[_OpenItem] = []
        self._searches: dict[str, tuple[WebSearch, int, JsonObject]] = {}  # without results so far, by id
        self._output: dict[int, Json] = {}
        self._usage: Usage | None = None
        self._stop = Stop(StopReason.END)
        self._passed = 0  # upstream frames that passed unchanged
        self._rewritten = False  # an event was encoded here

    def ping(self) -> Payload:
        return _PING

    def set_next_number(self, number: int) -> None:
        """See Encoder."""
        self._number = number

    def feed(self, events: ev.Events) -> Iterable[Payload]:
        self._rewritten = True
        return self._encode(events)

    def passes(self, events: ev.Events) -> bool:
        """See Encoder. After one encoded frame no frame passes: frames number items, and the last repeats them all."""
        if self._rewritten:
            return False
        number = self._number
        together = len(events) < 2 or any(each.issuperset(map(type, events)) for each in _PASSING_TOGETHER)
        if len(events) == 1 and type(events[0]) is ev.TextDelta:
            self._open[events[0].key].buffer.add(events[0].text)
        elif not (together and all(map(self._is_regular, events))):
            return False
        else:
            self._encode(events)
        self._number = number + 1
        self._passed += 1
        return True

    def _is_regular(self, event: ev.Event) -> bool:
        match event:
            case ev.BlockStarted(block=block):
                return NEEDS_REENCODING not in EXTRAS.own_fields(block.extra)
            case ev.Started(id=response_id):
                return response_id.startswith("resp")
            case ev.Stopped(stop):
                return NEEDS_REENCODING not in EXTRAS.own_fields(stop.extra)
            case _:
                return True

    def _encode(self, events: ev.Events) -> list[Payload]:
        out: list[Payload] = []
        for event in events:
            if type(event) is ev.TextDelta or type(event) is ev.ArgumentsDelta:
                out.extend(self._add_delta(self._open[event.key], event.text))
            else:
                out.extend(self._payloads(event))
        return out

    def _add_delta(self, item_state: _OpenItem, text: str) -> tuple[Payload, ...]:
        if item_state.kind:
            return (self._delta(item_state, text),)
        item_state.buffer.add(text)  # a tool search has no deltas; its item is sent whole at the end
        return ()

    def _delta(self, item_state: _OpenItem, text: str) -> Payload:
        item_state.buffer.add(text)
        number = self._number
        self._number = number + 1
        return Payload(
            item_state.kind, _DELTA % (item_state.kind, number, item_state.place, quote(text), item_state.tail)
        )

    def _event(self, kind: str, fields: JsonObject) -> Payload:
        number = self._number
        self._number = number + 1
        name = kind.encode("utf-8", "replace")
        return Payload(name, jsonio.encode({"type": kind, "sequence_number": number, **fields}))

    def _payloads(self, event: ev.Event) -> Iterator[Payload]:
        match event:
            case ev.BlockStarted(key, block):
                yield from self._start(key, block, event.wire_index)
            case ev.ReasoningDelta(key, text):
                item_state = self._open[key]
                yield from self._start_reasoning_part(item_state)
                yield self._delta(item_state, text)
            case ev.SignatureAdded(key, signature):
                self._budget.reserve(ev.text_size(signature.data))
                self._open[key].signature = signature
            case ev.CitationAdded(key, citation):
                yield self._add_citation(self._open[key], citation)
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
                response = self._envelope.render_ended(self._stop, self._finished_items(), self._usage)
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
        envelope = self._envelope = Envelope(event.id, event.model, extra, self._request, self._environment)
        self._usage = event.usage
        yield self._event("response.created", {"response": envelope.head})
        yield self._event("response.in_progress", {"response": envelope.head})

    def _stopped(self, stop: Stop) -> Iterator[Payload]:
        self._stop = stop
        for search in list(self._searches):  # The upstream sent no results.
            yield from self._web_search(WebResults(search))
        for call in self._invalid_calls:
            if stop.reason not in (StopReason.LENGTH, StopReason.CONTEXT):
                yield from self._call_done(call)

    def _failed(self, fault: Fault) -> Iterator[Payload]:
        if self._envelope is None:  # the SDKs accept no event before response.created
            yield from self._started(ev.Started("", ""))
        assert self._envelope is not None
        response = self._envelope.render_failed(render_failure(fault), self._finished_items())
        yield structs.replace(self._event("response.failed", {"response": response}), error=True)

    def _finished_items(self) -> list[Json]:
        return [self._output[index] for index in sorted(self._output)]

    def _opaque(self, event: ev.OpaqueEvent) -> Iterator[Payload]:
        """Write an event of this family, unless it is about an item: opaque items are sent whole."""
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

    def _start(self, key: int, block: Block, wire_index: int | None) -> Iterator[Payload]:
        # If the frame that added the item passed unchanged, the item keeps the upstream's output_index.
        added_by = EXTRAS.own_fields(block.extra).get(ANNOUNCED)
        announced = wire_index is not None and isinstance(added_by, int) and added_by <= self._passed
        keeps_index = wire_index is not None and (announced or not self._rewritten)
        index = wire_index if wire_index is not None and keeps_index else self._count
        match block:
            case Text():
                item_state = self._text(index, block)
            case Reasoning():
                item: JsonObject = {"id": self._writer.id_for(block, "reasoning"), "type": "reasoning", "summary": []}
                _, kind, place, _ = _slot(block)
                item_state = self._open_item(index, block, item, f"{kind}.delta", {place: 0})
            case ToolCall() if self._writer.is_search(block):
                item = {**self._writer.search(structs.replace(block, arguments="")), "status": "in_progress"}
                item_state = self._open_item(index, block, item, "", {})
            case ToolCall():
                call = structs.replace(block, arguments="")
                item = {**self._writer.call(call), "status": "in_progress"}
                field_name = "custom_tool_call_input" if block.form == "text" else "function_call_arguments"
                if block.form == "json":
                    item["arguments"] = ""
                item_state = self._open_item(index, block, item, f"response.{field_name}.delta", {})
            case Opaque(effects=(WebSearch() | WebResults() as effect, *_)) if not block.data:
                yield from self._web_search(effect)
                return
            case Opaque():
                item = self._writer.item(block) or {}
                yield from self._added(index, item, announced=announced)
                yield self._done(index, item)
                return
            case _:
                return  # a response cannot contain media; a filter has noted it
        self._open[key] = item_state
        yield from self._added(index, item_state.item, announced=announced)
        if isinstance(block, Text):
            part: Json = {"type": "refusal", "refusal": ""} if is_refusal(block) else _EMPTY_PART
            yield self._event("response.content_part.added", {**item_state.where, "content_index": 0, "part": part})
        text = block.arguments if isinstance(block, ToolCall) else block.text
        if text and isinstance(block, Reasoning):
            yield from self._start_reasoning_part(item_state)
        if text:
            yield from self._add_delta(item_state, text)

    def _web_search(self, effect: WebSearch | WebResults) -> Iterator[Payload]:
        """Write a search of the web, which other families send as two blocks: its item ends with the second."""
        if isinstance(effect, WebSearch):
            index, item = self._count, {"id": self._writer.search_id(effect), **self._writer.web_search(effect, None)}
            self._searches[effect.id] = effect, index, item
            yield from self._added(index, item, announced=False)
            where: JsonObject = {"item_id": item["id"], "output_index": index}
            yield self._event("response.web_search_call.in_progress", where)
            yield self._event("response.web_search_call.searching", where)
        elif (started := self._searches.pop(effect.id, None)) is not None:
            search, index, item = started
            yield self._event("response.web_search_call.completed", {"item_id": item["id"], "output_index": index})
            yield self._done(index, {**item, **self._writer.web_search(search, effect)})

    def _text(self, index: int, block: Text) -> _OpenItem:
        name = "refusal" if is_refusal(block) else "output_text"
        tail = b"" if name == "refusal" else b',"logprobs":[]'
        item = self._writer.message(block)
        return self._open_item(index, block, item, f"response.{name}.delta", {"content_index": 0}, tail)

    def _open_item(
        self,
        index: int,
        block: Text | Reasoning | ToolCall,
        item: JsonObject,
        kind: str,
        place: JsonObject,
        tail: bytes = b"",
    ) -> _OpenItem:
        where: JsonObject = {"item_id": item["id"], "output_index": index, **place}
        fields = jsonio.encode(where)[1:-1] + b","
        return _OpenItem(index, block, item, kind.encode(), fields, tail, ev.TextBuffer(self._budget), [])

    def _add_citation(self, item_state: _OpenItem, citation: Opaque) -> Payload:
        number = len(item_state.citations)
        self._budget.reserve(ev.json_size(citation))
        item_state.citations.append(citation)
        fields: JsonObject = {**item_state.where, "content_index": 0, "annotation_index": number}
        fields["annotation"] = render_annotation(citation)
        return self._event("response.output_text.annotation.added", fields)

    def _end(self, key: int, complete: bool) -> Iterator[Payload]:
        item_state = self._open.pop(key, None)
        if item_state is None:
            return  # an opaque item, which was sent whole
        match item_state.block:
            case Text() as block:
                yield from self._text_done(item_state, block)
            case Reasoning() as block:
                yield from self._reasoning_done(item_state, block)
            case ToolCall() as block:
                if complete and (block.form == "text" or is_json(item_state.buffer.text() or "{}")):
                    yield from self._call_done(item_state)
                elif complete:
                    self._invalid_calls.append(item_state)
                else:
                    item_state.buffer.take()

    def _text_done(self, item_state: _OpenItem, block: Text) -> Iterator[Payload]:
        citations = (*block.citations, *item_state.citations)
        text = item_state.buffer.take()  # the budget counts it again as part of the item
        part = output_part(structs.replace(block, text=text, citations=citations))
        place: JsonObject = {**item_state.where, "content_index": 0}
        if is_refusal(block):
            yield self._event("response.refusal.done", {**place, "refusal": text})
        else:
            yield self._event("response.output_text.done", {**place, "text": text, "logprobs": []})
        yield self._event("response.content_part.done", {**place, "part": part})
        yield self._done(item_state.index, {**item_state.item, "status": "completed", "content": [part]})

    def _call_done(self, item_state: _OpenItem) -> Iterator[Payload]:
        block = item_state.block
        assert isinstance(block, ToolCall)
        text = item_state.buffer.take()
        if not item_state.kind:
            whole = self._writer.search(structs.replace(block, arguments=text))
            yield self._done(item_state.index, {**whole, "id": item_state.item["id"], "status": "completed"})
            return
        if block.form == "text":
            yield self._event("response.custom_tool_call_input.done", {**item_state.where, "input": text})
            item: JsonObject = {**item_state.item, "status": "completed", "input": text}
        else:
            if not text:  # clients parse arguments as JSON, some from the deltas alone
                yield self._delta(item_state, "{}")
                text = "{}"
            fields: JsonObject = {**item_state.where, "name": item_state.item["name"], "arguments": text}
            yield self._event("response.function_call_arguments.done", fields)
            item = {**item_state.item, "status": "completed", "arguments": text}
        yield self._done(item_state.index, item)

    # --- reasoning

    def _start_reasoning_part(self, item_state: _OpenItem) -> Iterator[Payload]:
        if not item_state.part_added:
            item_state.part_added = True
            around, _, place, kind = _slot(item_state.block)
            part: Json = {"type": kind, "text": ""}
            yield self._event(f"{around}.added", {**item_state.where, place: 0, "part": part})

    def _reasoning_done(self, item_state: _OpenItem, block: Reasoning) -> Iterator[Payload]:
        text = item_state.buffer.take()
        if item_state.part_added:
            around, kind, place, part_kind = _slot(block)
            where: JsonObject = {**item_state.where, place: 0}
            yield self._event(f"{kind}.done", {**where, "text": text})
            yield self._event(f"{around}.done", {**where, "part": {"type": part_kind, "text": text}})
        whole = structs.replace(block, text=text, signature=item_state.signature or block.signature)
        yield self._done(item_state.index, self._writer.reasoning(whole, str(item_state.item["id"])))


_EMPTY_PART: JsonObject = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _slot(block: Block) -> tuple[str, str, str, str]:
    return _CONTENT if EXTRAS.own_fields(block.extra).get(IN_CONTENT) else _SUMMARY
