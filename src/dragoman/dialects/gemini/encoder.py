"""Encode Gemini's response streams as frames that Google's SDKs and gemini-cli accept. Pure.

Theory of operation. Each delta becomes one frame. Tool calls are buffered until they are complete, because the dialect
sends whole calls. The stop reason waits for the end of the stream, because token counts may follow it: the last frame
has both. Without `alt=sse` the frames are the items of one JSON array. There is one encoder per response; no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from dragoman.dialects.base import Encoder, Environment
from dragoman.dialects.gemini.blocks import EXTRAS, FAMILY, render_part, render_signature
from dragoman.dialects.gemini.reply import (
    render_block_feedback,
    render_fault,
    render_stop,
    render_usage,
)
from dragoman.dialects.gemini.sources import is_search, render_sources
from dragoman.dialects.kit.values import render_arguments
from dragoman.errors import LocalMisuse
from dragoman.model import events as ev
from dragoman.model.blocks import Media, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Conversation, Stop, StopReason, Usage
from dragoman.wire import jsonio
from dragoman.wire.frame import Payload
from dragoman.wire.jsonio import Json

ARRAY_ITEM = b"item"  # the kind of a payload that is part of an array
JSON_ARRAY = "json"  # the hint `alt` of a request for one JSON array
_FRAME = b'{"candidates":[{"content":{"role":"model","parts":[%b]},"index":%d}]%b'
_TEXT = b'{"text":%b}'
_THOUGHT = b'{"text":%b,"thought":true}'
_CALL = b'{"functionCall":{"id":%b,"name":%b,"args":%b}%b}'
_EMPTY_CONTENT: Json = {"role": "model", "parts": [{"text": ""}]}


class GeminiEncoder(Encoder):
    """Encode events as payloads.

    The events must be in a valid order. Raises LocalMisuse for content that filters should have removed.
    """

    def __init__(
        self, request: Conversation, environment: Environment, budget: ev.ResponseBudget | None = None
    ) -> None:
        self._budget = budget or ev.ResponseBudget()
        self._model = request.model
        self._environment = environment
        self._is_array = EXTRAS.own_fields(request.hints).get("alt") == JSON_ARRAY
        self._items = 0
        self._tail = b"}"
        self._first: dict[str, Json] = {}  # fields that only the first frame has
        self._choice: dict[int, int] = {}  # the choice of each open block
        self._thoughts: set[int] = set()  # open blocks that are thoughts
        self._calls: dict[int, tuple[ToolCall, ev.TextBuffer]] = {}  # calls that are not complete
        self._with_content: set[int] = set()  # choices that have had content
        self._signatures: dict[int, Signature] = {}
        self._stops: dict[int, Stop] = {}  # stop reasons that are not sent yet
        self._citations: dict[int, list[Opaque]] = {}  # by choice; the last frame has them
        self._searches: dict[int, list[Opaque]] = {}  # the same
        self._stopped = False
        self._usage: Usage | None = None
        self._is_usage_sent = True

    # --- the stream

    def feed(self, events: ev.Events) -> Iterable[Payload]:
        out: list[Payload] = []
        for event in events:
            if isinstance(event, ev.TextDelta):
                out.append(self._part(event.key, _TEXT % jsonio.quote(event.text)))
            elif isinstance(event, ev.ReasoningDelta):
                out.append(self._part(event.key, _THOUGHT % jsonio.quote(event.text)))
            else:
                out.extend(self._encode(event))
        return out

    def passes(self, events: ev.Events) -> bool:
        """Return whether the frame of these events may be sent unchanged.

        It may not if it would overtake a buffered call, or if it is an item of an array. A finishReason that is a
        failure passes; an error does not, because its frame may lack the line end.
        """
        ends = any(type(event) is ev.Finished for event in events) or (
            len(events) == 1 and type(events[0]) is ev.Failed
        )
        if self._is_array or self._calls or ends:
            return False
        list(self.feed(events))
        for event in events:
            if isinstance(event, ev.Stopped):
                del self._stops[event.choice]
            elif isinstance(event, ev.UsageReported):
                self._is_usage_sent = True
        return True

    def ping(self) -> Payload:
        """Return a frame with an empty text, as a keep-alive: the SDKs cannot read SSE comments."""
        return self._payload(_FRAME % (_TEXT % b'""', 0, self._tail))

    def _encode(self, event: ev.Event) -> Iterable[Payload]:
        match event:
            case ev.Started():
                self._started(event)
            case ev.BlockStarted():
                yield from self._block(event)
            case ev.ArgumentsDelta(key, text):
                self._calls[key][1].add(text)
            case ev.SignatureAdded(key, signature):
                if key in self._calls:
                    self._budget.reserve(ev.text_size(signature.data))
                    self._signatures[key] = signature
                else:
                    thought: dict[str, Json] = {"thought": True} if key in self._thoughts else {}
                    yield self._part(key, jsonio.encode({"text": "", **thought, **render_signature(signature)}))
            case ev.BlockEnded(key):
                yield from self._ended(key)
            case ev.UsageReported(usage):
                self._usage, self._is_usage_sent = usage, False
            case ev.Stopped(stop, choice):
                self._stops[choice] = stop
                self._stopped = True
            case ev.OpaqueEvent():
                yield self._opaque(event)
            case ev.Finished():
                yield from self._finished()
            case ev.Failed(fault):
                yield from self._failed(render_fault(fault))
            case ev.CitationAdded(key, citation):
                self._budget.reserve(ev.json_size(citation))
                self._citations.setdefault(self._choice[key], []).append(citation)
            case _:
                pass  # `feed` handles the other events

    def _started(self, event: ev.Started) -> None:
        self._usage, self._is_usage_sent = event.usage, event.usage is None
        envelope: dict[str, Json] = {
            "modelVersion": event.model or self._model,
            "responseId": event.id or self._environment.new_id("resp_"),
        }
        self._tail = b"," + jsonio.encode(envelope)[1:]
        self._first = EXTRAS.with_extra({}, event.extra)

    def _block(self, event: ev.BlockStarted) -> Iterable[Payload]:
        key, block = event.key, event.block
        self._choice[key] = event.choice
        match block:
            case ToolCall():
                self._calls[key] = block, ev.TextBuffer(self._budget)
                self._calls[key][1].add(block.arguments)
            case Opaque() if is_search(block):
                self._budget.reserve(ev.event_size(event) + ev.json_size(*block.effects))
                self._searches.setdefault(event.choice, []).append(block)
            case Media() | Opaque():
                yield self._part(key, jsonio.encode(render_part(block, LocalMisuse)))
            case Text() | Reasoning():
                if isinstance(block, Reasoning):
                    self._thoughts.add(key)
                if block.text or EXTRAS.with_extra({}, block.extra):
                    yield self._part(key, jsonio.encode(render_part(block, LocalMisuse)))

    def _ended(self, key: int) -> Iterable[Payload]:
        if key in self._calls:
            call, pieces = self._calls.pop(key)
            signature = self._signatures.pop(key, call.signature)
            complete = structs.replace(call, arguments=pieces.take(), signature=signature)
            yield self._part(key, _render_call(complete))
        self._thoughts.discard(key)
        self._choice.pop(key, None)

    # --- the end

    def _finished(self) -> Iterable[Payload]:
        if not self._stopped:
            self._stops[0] = Stop(StopReason.END)
        if self._stops or not self._is_usage_sent:
            yield self._last()
        if self._is_array:
            yield Payload(ARRAY_ITEM, b"[]" if not self._items else b"]")

    def _last(self) -> Payload:
        body: dict[str, Json] = {}
        stops = sorted(self._stops.items())
        if len(stops) == 1 and (feedback := render_block_feedback(stops[0][1], self._with_content)):
            body |= feedback
        elif stops:
            body["candidates"] = [
                {
                    "content": _EMPTY_CONTENT,
                    **render_sources(self._citations.get(index, ()), self._searches.get(index, ())),
                    **render_stop(stop),
                    "index": index,
                }
                for index, stop in stops
            ]
        if self._usage is not None:
            body["usageMetadata"] = render_usage(self._usage)
        self._stops, self._is_usage_sent = {}, True
        return self._response(body)

    def _failed(self, data: bytes) -> Iterable[Payload]:
        if not self._is_array:
            yield Payload(b"", data, True)
            return
        yield self._payload(data)
        yield Payload(ARRAY_ITEM, b"]", True)

    def _opaque(self, event: ev.OpaqueEvent) -> Payload:
        if event.family == FAMILY:
            match event.kind, event.data:
                case "candidate", {"index": int(index), "fields": dict(fields)}:
                    return self._response({"candidates": [{"content": _EMPTY_CONTENT, **fields, "index": index}]})
                case "response", dict() as fields:
                    return self._response({**fields})
                case _:
                    pass
        raise LocalMisuse(f"a Gemini stream cannot contain an event of {event.family}")

    # --- frames

    def _part(self, key: int, part: bytes) -> Payload:
        choice = self._choice[key]
        self._with_content.add(choice)
        if self._first:
            first, self._first = b"," + jsonio.encode(self._first)[1:-1], {}
            return self._payload(_FRAME % (part, choice, first + self._tail))
        return self._payload(_FRAME % (part, choice, self._tail))

    def _response(self, body: dict[str, Json]) -> Payload:
        body, self._first = {**body, **self._first}, {}
        data = jsonio.encode(body)
        return self._payload(data[:-1] + self._tail if body else b"{" + self._tail[1:])

    def _payload(self, data: bytes) -> Payload:
        if not self._is_array:
            return Payload(b"", data)
        self._items += 1
        return Payload(ARRAY_ITEM, (b"[" if self._items == 1 else b",\r\n") + data)


def _render_call(call: ToolCall) -> bytes:
    value = render_arguments(call, LocalMisuse)
    extra = EXTRAS.with_extra({**render_signature(call.signature)}, call.extra)
    inner = extra.pop("functionCall", None)
    if isinstance(inner, dict):
        return jsonio.encode({"functionCall": {"id": call.id, "name": call.name, "args": value, **inner}, **extra})
    rest = b"," + jsonio.encode(extra)[1:-1] if extra else b""
    return _CALL % (jsonio.quote(call.id), jsonio.quote(call.name), call.arguments.strip().encode() or b"{}", rest)
