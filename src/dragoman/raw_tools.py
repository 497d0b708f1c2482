"""Raw tool call recovery as a library, for proxies that embed it. Public API; thin wrappers around the engine.

    ToolCallTransformer   reads and writes OpenAI chunks; recovers tool calls that a model wrote into its text
    ToolCallParser        the same without writing: chunks in, TransformedEvents out
    ToolCallEventBuilder  encodes the JSON of new chunks
    LoggingTransformer    writes each frame that passes through it to an SSE log

Use one instance for each stream; instances share no state. The only I/O is that of the writers you pass in.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Protocol

from msgspec import Struct, field

from dragoman.filters.raw_tools.chunks import (
    REASONING_FIELDS,
    ChunkFields,
    FrameInput,
    choices_of,
    delta_texts,
    other_fields,
    parse_tool,
    split_frames,
    text_delta,
)
from dragoman.filters.raw_tools.engine import Engine
from dragoman.filters.raw_tools.names import CallIds, DeclaredTools
from dragoman.filters.raw_tools.outputs import (
    Arguments,
    CallStarted,
    Channel,
    EngineNote,
    EngineOutput,
    Mode,
    TextOutput,
)
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
_TOKEN_FIELDS = frozenset(
    {"index", "delta", "finish_reason", "logprobs", "token_ids"}
)  # they describe tokens that may be withheld
_WARNINGS = frozenset({"over_limit", "nameless", "unfinished"})


class Writer(Protocol):
    """Receives encoded frames, like a binary file."""

    def write(self, data: bytes, /) -> object:
        """Write one frame."""


class SSETransformer(Protocol):
    """Processes the frames of one stream, and then its end."""

    def transform(self, event: FrameInput) -> None:
        """Process one frame."""

    def flush(self) -> None:
        """Process the end of the stream."""


class EventType(Enum):
    """The kind of a TransformedEvent."""

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
    """A tool call. Later events of the same `index` have only further arguments."""

    index: int = 0
    id: str = ""
    name: str = ""
    arguments: str = ""


class StreamMetadata(Struct):
    """The envelope of a chunk. `fields` are all its top-level fields except choices and usage, unchanged."""

    id: str = ""
    model: str = ""
    created: int = 0
    fields: Mapping[str, Any] | None = None

    def envelope(self) -> ChunkFields:
        """Return the top-level fields of a new chunk."""
        if self.fields is not None:
            return dict(self.fields)
        return {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}


class TransformedEvent(Struct, kw_only=True):
    """The result for a chunk or a part of it. If `raw` is set, send those bytes; otherwise encode a new chunk."""

    type: EventType
    metadata: StreamMetadata
    choice: int = 0
    content: str = ""
    fields: tuple[str, ...] = ("content",)  # the fields of the delta that have the content
    tool_call: ToolCall | None = None
    finish_reason: str = ""
    usage: Any = None
    rest: ChunkFields = field(default_factory=dict)  # other fields of the delta
    about: ChunkFields = field(default_factory=dict)  # other fields of the choice
    raw: bytes = b""


class ToolCallEventBuilder:
    """Encodes the JSON of chunks, with the envelope of the chunk they are made from."""

    def build_tool_call_delta(self, meta: StreamMetadata, tool_call: ToolCall, choice: int = 0) -> bytes:
        """Return a chunk with a tool call, or with more of its arguments."""
        return self.build(meta, call_delta(tool_call), choice)

    def build_content_delta(
        self, meta: StreamMetadata, content: str, choice: int = 0, fields: tuple[str, ...] = ("content",)
    ) -> bytes:
        """Return a chunk with text in these fields of its delta."""
        return self.build(meta, text_delta(content, fields), choice)

    def build_finish_event(self, meta: StreamMetadata, reason: str, choice: int = 0, usage: Any = None) -> bytes:
        """Return a chunk with a finish reason."""
        return self.build(meta, {}, choice, reason, usage)

    def build(
        self,
        meta: StreamMetadata,
        delta: ChunkFields,
        choice: int = 0,
        reason: str = "",
        usage: Any = None,
        about: ChunkFields | None = None,
    ) -> bytes:
        """Return a chunk with any delta; `about` has more fields of its choice."""
        built = {"index": choice, "delta": delta, "finish_reason": reason or None, **(about or {})}
        return jsonio.encode({**meta.envelope(), "choices": [built], **({"usage": usage} if usage is not None else {})})


def call_delta(call: ToolCall) -> ChunkFields:
    """Return the delta of a call: with id and name if it has an id, otherwise only with arguments."""
    delta: ChunkFields = {"index": call.index}
    function: ChunkFields = {"arguments": call.arguments}
    if call.id:
        delta |= {"id": call.id, "type": "function"}
        function = {"name": call.name, **function}
    return {"tool_calls": [{**delta, "function": function}]}


class _ChoiceState:
    """The state of one choice of the stream."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.fields: dict[Channel, tuple[str, ...]] = {
            Channel.TEXT: ("content",),
            Channel.REASONING: REASONING_FIELDS[:1],
        }
        self.calls = 0  # indices in use, for recovered calls and native ones
        self.natives: dict[int, int] = {}  # index from the upstream -> index that is sent
        self.finished = False
        self.closed = False


class ToolCallParser:
    """Parses chunks to TransformedEvents.

    `choice` and `mode` are those of the raw_tools filter; `used_ids` are call ids that the conversation already has.
    """

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
        self._states: dict[int, _ChoiceState] = {}
        self._meta = StreamMetadata()
        self._state(0)  # raises now if a setting is wrong

    def process(self, event: FrameInput) -> list[TransformedEvent]:
        """Return the events of a frame, given as frame, text or data. Data that is not JSON is logged and passed on."""
        return [each for raw, data in split_frames(event) for each in self._process_part(raw, data)]

    def _process_part(self, raw: bytes, data: bytes | None) -> list[TransformedEvent]:
        if data is None:
            return [self._passthrough(EventPassthrough, raw)]
        if data.strip() == b"[DONE]":
            return [*self._close_choices(done=True), self._passthrough(EventPassthrough, raw)]
        try:
            chunk = jsonio.decode(data)
        except jsonio.JsonError as error:
            _log.error("a frame is passed on unchanged, because its data is not JSON: %s", error)
            return [self._passthrough(EventPassthrough, raw)]
        if not isinstance(chunk, dict):
            return [self._passthrough(EventPassthrough, raw)]
        self._meta = _metadata(chunk)
        choices = choices_of(chunk)
        if not choices:
            usage = chunk.get("usage")
            return [self._passthrough(EventUsage if usage else EventPassthrough, raw, usage)]
        return self._chunk(choices, raw, chunk.get("usage"))

    def flush(self) -> list[TransformedEvent]:
        """Return the buffered events at the end of the stream. No finish reason is added."""
        return self._close_choices(done=False)

    def _chunk(self, choices: list[ChunkFields], raw: bytes, usage: Any) -> list[TransformedEvent]:
        results = [self._process_choice(choice) for choice in choices]
        events = [event for _, events in results for event in events]
        if not any(changed for changed, _ in results):
            return [self._unchanged(events, raw, usage)]
        if events and usage is not None:
            events[-1].usage = usage
        return events

    def _unchanged(self, events: list[TransformedEvent], raw: bytes, usage: Any) -> TransformedEvent:
        """Return one event for a chunk that is passed on unchanged: its finish reason, otherwise its text."""
        finish = next((event for event in events if event.finish_reason), None)
        text = next((event for event in events if event.content), None)
        same = [
            event for event in events if text is not None and (event.choice, event.fields) == (text.choice, text.fields)
        ]
        event = self._passthrough(EventFinish if finish else EventContent if text else EventPassthrough, raw, usage)
        if finish is not None:
            event.finish_reason, event.choice = finish.finish_reason, finish.choice
        if text is not None:
            event.content, event.fields = "".join(each.content for each in same), text.fields
            event.choice = text.choice
        return event

    def _process_choice(self, choice: ChunkFields) -> tuple[bool, list[TransformedEvent]]:
        """Return whether one choice of a chunk changes, and its events."""
        index = choice.get("index")
        number = index if isinstance(index, int) else 0
        state = self._state(number)
        delta = choice["delta"] if isinstance(choice.get("delta"), dict) else {}
        natives, changed, outputs = _renumber_native_calls(state, delta.get("tool_calls"), self._tools)
        rest = other_fields(delta) | ({"tool_calls": natives} if natives else {})
        events = self._to_events(state, number, outputs)
        for channel, fields, text in delta_texts(delta):
            state.fields[channel] = fields
            outputs = state.engine.feed(text, channel)
            changed |= outputs != [TextOutput(text, channel)]
            events += self._to_events(state, number, outputs)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            outputs = [] if state.closed else state.engine.close()
            state.closed = state.finished = True
            sent = "tool_calls" if reason == "stop" and state.engine.completed_calls else reason
            changed |= bool(outputs) or sent != reason
            events += self._to_events(state, number, outputs)
            about = {name: value for name, value in choice.items() if name not in _TOKEN_FIELDS}
            events.append(self._event(EventFinish, number, finish_reason=sent, about=about))
        if rest:
            _place(rest, events, self._event(EventContent, number))
        return changed, events

    def _to_events(self, state: _ChoiceState, choice: int, outputs: list[EngineOutput]) -> list[TransformedEvent]:
        events: list[TransformedEvent] = []
        for output in outputs:
            last = events[-1].tool_call if events else None
            match output:
                case TextOutput(text, channel):
                    events.append(self._event(EventContent, choice, content=text, fields=state.fields[channel]))
                case CallStarted(id_, name):
                    call = ToolCall(state.calls, id_, name)
                    state.calls += 1
                    events.append(self._event(EventToolCall, choice, tool_call=call))
                case Arguments(text) if last is not None:
                    last.arguments += text
                case Arguments(text):
                    events.append(self._event(EventToolCall, choice, tool_call=ToolCall(state.calls - 1, "", "", text)))
                case EngineNote(rule, detail):
                    _log.log(logging.WARNING if rule in _WARNINGS else logging.INFO, "%s", detail)
                case _:
                    pass  # the end of a call is not sent
        return events

    def _close_choices(self, *, done: bool) -> list[TransformedEvent]:
        events: list[TransformedEvent] = []
        for number, state in self._states.items():
            if not state.closed:
                state.closed = True
                events += self._to_events(state, number, state.engine.close())
            if done and not state.finished and state.engine.completed_calls:
                state.finished = True
                events.append(self._event(EventFinish, number, finish_reason="tool_calls"))
        return events

    def _state(self, choice: int) -> _ChoiceState:
        state = self._states.get(choice)
        if state is None:
            ids = CallIds(self._used, len(self._used), seed=str(choice))
            state = self._states[choice] = _ChoiceState(Engine(self._choice, self._tools, ids, mode=self._mode))
        return state

    def _event(self, kind: EventType, choice: int, **fields: Any) -> TransformedEvent:
        return TransformedEvent(type=kind, metadata=self._meta, choice=choice, **fields)

    def _passthrough(self, kind: EventType, raw: bytes, usage: Any = None) -> TransformedEvent:
        return TransformedEvent(type=kind, metadata=self._meta, usage=usage, raw=raw)


class ToolCallTransformer:
    """Recovers tool calls in a stream of OpenAI chunks, and writes the stream to `output`.

    Errors of the writer are not caught.
    """

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
        """Write the frames that result from this one."""
        for transformed in self._parser.process(event):
            self._write(transformed)

    def flush(self) -> None:
        """Write the frames that are still buffered, at the end of the stream."""
        for transformed in self._parser.flush():
            self._write(transformed)

    def _write(self, event: TransformedEvent) -> None:
        self._output.write(event.raw or encode_sse(b"", self._build(event)))

    def _build(self, event: TransformedEvent) -> bytes:
        delta = {**event.rest, **text_delta(event.content, event.fields)}
        if event.tool_call is not None:
            delta |= call_delta(event.tool_call)
        return self._builder.build(event.metadata, delta, event.choice, event.finish_reason, event.usage, event.about)


class LoggingTransformer:
    """Writes every frame to a log as SSE, and also to `output` if given. It is a Writer itself."""

    def __init__(self, log: Writer, output: Writer | None = None) -> None:
        self._log = log
        self._output = output

    def transform(self, event: FrameInput) -> None:
        """Write one frame."""
        for raw, _ in split_frames(event):
            self.write(raw)

    def write(self, data: bytes) -> None:
        """Write bytes to the log and to the output."""
        self._log.write(data)
        if self._output is not None:
            self._output.write(data)

    def flush(self) -> None:
        """Flush the log, if it can be flushed."""
        flush = getattr(self._log, "flush", None)
        if flush is not None:
            flush()


def _metadata(chunk: ChunkFields) -> StreamMetadata:
    fields = {name: value for name, value in chunk.items() if name not in _NOT_COPIED}
    id_, model, created = (chunk.get(name) for name in ("id", "model", "created"))
    return StreamMetadata(
        id_ if isinstance(id_, str) else "",
        model if isinstance(model, str) else "",
        created if isinstance(created, int) else 0,
        fields,
    )


def _renumber_native_calls(
    state: _ChoiceState, calls: Any, tools: DeclaredTools
) -> tuple[list[Any], bool, list[EngineOutput]]:
    """Return the native calls with free indices, whether any changed, and the outputs that they release."""
    renumbered: list[Any] = []
    outputs: list[EngineOutput] = []
    for call in calls if isinstance(calls, list) else ():
        index = call.get("index", 0) if isinstance(call, dict) else None
        if not isinstance(index, int):
            renumbered.append(call)
            continue
        if index not in state.natives:
            state.natives[index] = state.calls
            state.calls += 1
            outputs += state.engine.add_native_call(str(call.get("id") or ""))
        renumbered.append({**call, "index": state.natives[index]})
        function = call.get("function")
        written = function.get("name") if isinstance(function, dict) else None
        if isinstance(written, str) and (name := tools.native_name(written)):
            _log.warning("the native call of %s became a call of %s", written, name)
            renumbered[-1]["function"] = {**function, "name": name}
    return renumbered, bool(outputs) or (renumbered != calls and bool(renumbered)), outputs


def _place(rest: ChunkFields, events: list[TransformedEvent], separate: TransformedEvent) -> None:
    """Put the other fields of a delta on its first event; if that is a tool call, on a separate event before it."""
    if events and events[0].tool_call is None:
        events[0].rest = rest
    else:
        separate.rest = rest
        events.insert(0, separate)
