"""The components of mission document 001, for people who embed them in their own proxy: thin faces of the engine.

    ToolCallTransformer   OpenAI chunks in, OpenAI chunks out, calls written into text recovered
    ToolCallParser        the same without writing: chunks in, TransformedEvents out
    ToolCallEventBuilder  the JSON of the chunks we make
    LoggingTransformer    writes what passes through it as an SSE log

One of each serves one stream; nothing is shared between them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Protocol

from msgspec import Struct, field

from dragoman.filters.raw_tools.chunks import (
    REASONING_FIELDS,
    FrameInput,
    JsonObject,
    choices_of,
    delta_texts,
    other_fields,
    parse_tool,
    split_frames,
    text_delta,
)
from dragoman.filters.raw_tools.engine import Engine
from dragoman.filters.raw_tools.names import CallIds, DeclaredTools
from dragoman.filters.raw_tools.outputs import Arguments, CallStarted, Channel, Mode, Output, Remark, TextOutput
from dragoman.model.conversation import ToolSpec
from dragoman.wire import jsonio
from dragoman.wire.sse import encode_sse

__all__ = [
    "EventContent",
    "EventFinish",
    "EventPassthrough",
    "EventToolCall",
    "EventType",
    "EventUsage",
    "LoggingTransformer",
    "SSETransformer",
    "StreamMetadata",
    "ToolCall",
    "ToolCallEventBuilder",
    "ToolCallParser",
    "ToolCallTransformer",
    "TransformedEvent",
    "Writer",
]

_log = logging.getLogger("dragoman.raw_tools")
_NOT_COPIED = frozenset({"choices", "usage", "delta"})
_OF_THE_TOKENS = frozenset({"index", "delta", "finish_reason", "logprobs", "token_ids"})  # withheld ones, perhaps
_WARNINGS = frozenset({"over_limit", "nameless", "unfinished"})


class Writer(Protocol):
    def write(self, data: bytes, /) -> object: ...


class SSETransformer(Protocol):
    """Takes the frames of one stream, one by one, and then its end."""

    def transform(self, event: FrameInput) -> None: ...

    def flush(self) -> None: ...


class EventType(Enum):
    CONTENT = "content"
    TOOL_CALL = "tool_call"
    FINISH = "finish"
    USAGE = "usage"
    PASSTHROUGH = "passthrough"


EventContent = EventType.CONTENT
EventToolCall = EventType.TOOL_CALL
EventFinish = EventType.FINISH
EventUsage = EventType.USAGE
EventPassthrough = EventType.PASSTHROUGH


class ToolCall(Struct):
    """A call, or in later events of the same `index` only more of its arguments."""

    index: int = 0
    id: str = ""
    name: str = ""
    arguments: str = ""


class StreamMetadata(Struct):
    """The envelope of a chunk. `fields` are all its top-level fields but the choices and the usage, as they came."""

    id: str = ""
    model: str = ""
    created: int = 0
    fields: Mapping[str, Any] | None = None

    def envelope(self) -> JsonObject:
        if self.fields is not None:
            return dict(self.fields)
        return {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}


class TransformedEvent(Struct, kw_only=True):
    """What became of a chunk, or of a part of it. With `raw` it goes out as those bytes, else as a chunk we make."""

    type: EventType
    metadata: StreamMetadata
    choice: int = 0
    content: str = ""
    fields: tuple[str, ...] = ("content",)  # of the delta, in which the content stands
    tool_call: ToolCall | None = None
    finish_reason: str = ""
    usage: Any = None
    rest: JsonObject = field(default_factory=dict)  # other fields of the delta
    about: JsonObject = field(default_factory=dict)  # other fields of the choice
    raw: bytes = b""


class ToolCallEventBuilder:
    """Builds the JSON of chunks. The envelope is the one of the chunk they come from."""

    def build_tool_call_delta(self, meta: StreamMetadata, tool_call: ToolCall, choice: int = 0) -> bytes:
        return self.build(meta, call_delta(tool_call), choice)

    def build_content_delta(
        self, meta: StreamMetadata, content: str, choice: int = 0, fields: tuple[str, ...] = ("content",)
    ) -> bytes:
        return self.build(meta, text_delta(content, fields), choice)

    def build_finish_event(self, meta: StreamMetadata, reason: str, choice: int = 0, usage: Any = None) -> bytes:
        return self.build(meta, {}, choice, reason, usage)

    def build(
        self,
        meta: StreamMetadata,
        delta: JsonObject,
        choice: int = 0,
        reason: str = "",
        usage: Any = None,
        about: JsonObject | None = None,
    ) -> bytes:
        """Build a chunk with any delta; `about` are more fields of its choice."""
        told = {"index": choice, "delta": delta, "finish_reason": reason or None, **(about or {})}
        return jsonio.encode({**meta.envelope(), "choices": [told], **({"usage": usage} if usage is not None else {})})


def call_delta(call: ToolCall) -> JsonObject:
    """The delta that says it: with id and name in the first of a call, in later ones arguments alone."""
    told: JsonObject = {"index": call.index}
    function: JsonObject = {"arguments": call.arguments}
    if call.id:
        told |= {"id": call.id, "type": "function"}
        function = {"name": call.name, **function}
    return {"tool_calls": [{**told, "function": function}]}


class _Voice:
    """One choice."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.fields: dict[Channel, tuple[str, ...]] = {
            Channel.TEXT: ("content",),
            Channel.REASONING: REASONING_FIELDS[:1],
        }
        self.calls = 0  # indices given away, ours and the upstream's
        self.natives: dict[int, int] = {}  # the upstream's indices -> those that go out
        self.finished = False
        self.closed = False


class ToolCallParser:
    """Chunks in, TransformedEvents out. `choice`, `mode`: as of the filter. `used_ids`: ids the conversation has."""

    def __init__(
        self,
        tools: Iterable[ToolSpec | Mapping[str, Any] | str] | None = None,
        *,
        choice: str = "auto",
        mode: Mode = "live",
        used_ids: Iterable[str] = (),
    ) -> None:
        self._tools = DeclaredTools(map(parse_tool, tools or ()), keeps_prefix=True)
        self._choice = choice
        self._mode: Mode = mode
        self._used = frozenset(used_ids)
        self._voices: dict[int, _Voice] = {}
        self._meta = StreamMetadata()
        self._voice(0)  # so that a wrong setting is an error now

    def process(self, event: FrameInput) -> list[TransformedEvent]:
        """Take a frame, its text or its data. What is no JSON is logged and passed on."""
        return [made for raw, data in split_frames(event) for made in self._part(raw, data)]

    def _part(self, raw: bytes, data: bytes | None) -> list[TransformedEvent]:
        if data is None:
            return [self._as_it_is(EventPassthrough, raw)]
        if data.strip() == b"[DONE]":
            return [*self._ends(done=True), self._as_it_is(EventPassthrough, raw)]
        try:
            chunk = jsonio.decode(data)
        except jsonio.JsonError as error:
            _log.error("a frame is passed on as it is, because it is no JSON: %s", error)
            return [self._as_it_is(EventPassthrough, raw)]
        if not isinstance(chunk, dict):
            return [self._as_it_is(EventPassthrough, raw)]
        self._meta = _metadata(chunk)
        choices = choices_of(chunk)
        if not choices:
            usage = chunk.get("usage")
            return [self._as_it_is(EventUsage if usage else EventPassthrough, raw, usage)]
        return self._chunk(choices, raw, chunk.get("usage"))

    def flush(self) -> list[TransformedEvent]:
        """The stream is over, with or without its end: release what is buffered, and invent nothing."""
        return self._ends(done=False)

    def _chunk(self, choices: list[JsonObject], raw: bytes, usage: Any) -> list[TransformedEvent]:
        told = [self._told(choice) for choice in choices]
        events = [event for _, events in told for event in events]
        if not any(changed for changed, _ in told):
            return [self._unchanged(events, raw, usage)]
        if events and usage is not None:
            events[-1].usage = usage
        return events

    def _unchanged(self, events: list[TransformedEvent], raw: bytes, usage: Any) -> TransformedEvent:
        """One event for a chunk that goes out as it came: its finish, or else its text."""
        finish = next((event for event in events if event.finish_reason), None)
        text = next((event for event in events if event.content), None)
        same = [
            event for event in events if text is not None and (event.choice, event.fields) == (text.choice, text.fields)
        ]
        event = self._as_it_is(EventFinish if finish else EventContent if text else EventPassthrough, raw, usage)
        if finish is not None:
            event.finish_reason, event.choice = finish.finish_reason, finish.choice
        if text is not None:
            event.content, event.fields = "".join(each.content for each in same), text.fields
            event.choice = text.choice
        return event

    def _told(self, choice: JsonObject) -> tuple[bool, list[TransformedEvent]]:
        """What one choice of a chunk says, and whether that is anything else than it came with."""
        index = choice.get("index")
        number = index if isinstance(index, int) else 0
        voice = self._voice(number)
        delta = choice["delta"] if isinstance(choice.get("delta"), dict) else {}
        natives, changed, outputs = _natives(voice, delta.get("tool_calls"), self._tools)
        rest = other_fields(delta) | ({"tool_calls": natives} if natives else {})
        events = self._made(voice, number, outputs)
        for channel, fields, text in delta_texts(delta):
            voice.fields[channel] = fields
            outputs = voice.engine.feed(text, channel)
            changed |= outputs != [TextOutput(text, channel)]
            events += self._made(voice, number, outputs)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            outputs = [] if voice.closed else voice.engine.close()
            voice.closed = voice.finished = True
            ours = "tool_calls" if reason == "stop" and voice.engine.completed_calls else reason
            changed |= bool(outputs) or ours != reason
            events += self._made(voice, number, outputs)
            about = {name: value for name, value in choice.items() if name not in _OF_THE_TOKENS}
            events.append(self._event(EventFinish, number, finish_reason=ours, about=about))
        if rest:
            _place(rest, events, self._event(EventContent, number))
        return changed, events

    def _made(self, voice: _Voice, choice: int, outputs: list[Output]) -> list[TransformedEvent]:
        events: list[TransformedEvent] = []
        for output in outputs:
            last = events[-1].tool_call if events else None
            match output:
                case TextOutput(text, channel):
                    events.append(self._event(EventContent, choice, content=text, fields=voice.fields[channel]))
                case CallStarted(id_, name):
                    call = ToolCall(voice.calls, id_, name)
                    voice.calls += 1
                    events.append(self._event(EventToolCall, choice, tool_call=call))
                case Arguments(text) if last is not None:
                    last.arguments += text
                case Arguments(text):
                    events.append(self._event(EventToolCall, choice, tool_call=ToolCall(voice.calls - 1, "", "", text)))
                case Remark(rule, detail):
                    _log.log(logging.WARNING if rule in _WARNINGS else logging.INFO, "%s", detail)
                case _:
                    pass  # a call's end has no frame
        return events

    def _ends(self, *, done: bool) -> list[TransformedEvent]:
        events: list[TransformedEvent] = []
        for number, voice in self._voices.items():
            if not voice.closed:
                voice.closed = True
                events += self._made(voice, number, voice.engine.close())
            if done and not voice.finished and voice.engine.completed_calls:
                voice.finished = True
                events.append(self._event(EventFinish, number, finish_reason="tool_calls"))
        return events

    def _voice(self, choice: int) -> _Voice:
        voice = self._voices.get(choice)
        if voice is None:
            ids = CallIds(self._used, len(self._used), seed=str(choice))
            voice = self._voices[choice] = _Voice(Engine(self._choice, self._tools, ids, mode=self._mode))
        return voice

    def _event(self, kind: EventType, choice: int, **what: Any) -> TransformedEvent:
        return TransformedEvent(type=kind, metadata=self._meta, choice=choice, **what)

    def _as_it_is(self, kind: EventType, raw: bytes, usage: Any = None) -> TransformedEvent:
        return TransformedEvent(type=kind, metadata=self._meta, usage=usage, raw=raw)


class ToolCallTransformer:
    """Recovers calls from a stream of OpenAI chunks and writes it on. The writer's errors go up the stack."""

    def __init__(
        self,
        output: Writer,
        tools: Iterable[ToolSpec | Mapping[str, Any] | str] | None = None,
        *,
        choice: str = "auto",
        mode: Mode = "live",
        used_ids: Iterable[str] = (),
    ) -> None:
        self._output = output
        self._parser = ToolCallParser(tools, choice=choice, mode=mode, used_ids=used_ids)
        self._builder = ToolCallEventBuilder()

    def transform(self, event: FrameInput) -> None:
        for made in self._parser.process(event):
            self._write(made)

    def flush(self) -> None:
        for made in self._parser.flush():
            self._write(made)

    def _write(self, event: TransformedEvent) -> None:
        self._output.write(event.raw or encode_sse(b"", self._built(event)))

    def _built(self, event: TransformedEvent) -> bytes:
        delta = {**event.rest, **text_delta(event.content, event.fields)}
        if event.tool_call is not None:
            delta |= call_delta(event.tool_call)
        return self._builder.build(event.metadata, delta, event.choice, event.finish_reason, event.usage, event.about)


class LoggingTransformer:
    """Writes every frame to a log, as SSE, and on to `output` if there is one. It is itself a Writer."""

    def __init__(self, log: Writer, output: Writer | None = None) -> None:
        self._log = log
        self._output = output

    def transform(self, event: FrameInput) -> None:
        for raw, _ in split_frames(event):
            self.write(raw)

    def write(self, data: bytes) -> None:
        self._log.write(data)
        if self._output is not None:
            self._output.write(data)

    def flush(self) -> None:
        flush = getattr(self._log, "flush", None)
        if flush is not None:
            flush()


def _metadata(chunk: JsonObject) -> StreamMetadata:
    fields = {name: value for name, value in chunk.items() if name not in _NOT_COPIED}
    id_, model, created = (chunk.get(name) for name in ("id", "model", "created"))
    return StreamMetadata(
        id_ if isinstance(id_, str) else "",
        model if isinstance(model, str) else "",
        created if isinstance(created, int) else 0,
        fields,
    )


def _natives(voice: _Voice, calls: Any, tools: DeclaredTools) -> tuple[list[Any], bool, list[Output]]:
    """The upstream's own calls under indices that are free, whether that changed any, and what they let go out."""
    told: list[Any] = []
    outputs: list[Output] = []
    for call in calls if isinstance(calls, list) else ():
        index = call.get("index", 0) if isinstance(call, dict) else None
        if not isinstance(index, int):
            told.append(call)
            continue
        if index not in voice.natives:
            voice.natives[index] = voice.calls
            voice.calls += 1
            outputs += voice.engine.add_native_call(str(call.get("id") or ""))
        told.append({**call, "index": voice.natives[index]})
        function = call.get("function")
        written = function.get("name") if isinstance(function, dict) else None
        if isinstance(written, str) and (name := tools.native_name(written)):
            _log.warning("the native call of %s is one of %s", written, name)
            told[-1]["function"] = {**function, "name": name}
    return told, bool(outputs) or (told != calls and bool(told)), outputs


def _place(rest: JsonObject, events: list[TransformedEvent], alone: TransformedEvent) -> None:
    """Put what else a delta said on its first frame, unless that tells of a call: then before it."""
    if events and events[0].tool_call is None:
        events[0].rest = rest
    else:
        alone.rest = rest
        events.insert(0, alone)
