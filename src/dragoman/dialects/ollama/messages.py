"""Read and write the requests, replies and streams of `/api/chat`. Pure.

Many servers and clients send no call ids: a call without an id gets one, and a result without an id belongs to the
first call of its tool that has no result yet.

A stream has one JSON object per line. Text and thinking arrive in pieces, calls arrive whole. The line with
`done: true` ends the stream and has the token counts. A whole reply is read as a stream of one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from dragoman.dialects.base import ApiRequest, Decoder, Environment
from dragoman.dialects.kit.settings import take_sampling
from dragoman.dialects.kit.streams import BlockEventBuilder, DeltaEncoder, read_reply_stream
from dragoman.dialects.kit.values import (
    ExtraFields,
    FunctionCodec,
    ToolCallIds,
    base64_text,
    decoded,
    describe_block,
    iso_time,
    members,
    merge_fields,
    unrepresentable,
    untyped_media,
)
from dragoman.dialects.ollama.binding import fault_of, render_fault
from dragoman.errors import BadFrame, DragomanError, Fault, LocalMisuse, MissingField, Truncated, Unrepresentable
from dragoman.model import events as ev
from dragoman.model.blocks import Block, Extra, Location, Media, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import (
    Conversation,
    Message,
    Output,
    Reply,
    Role,
    ServerState,
    Stop,
    StopReason,
    Thinking,
    Usage,
    find_stop_reason,
    inclusive_usage,
    parent_fields,
    parse_token_count,
    to_canonical,
    to_extra_names,
)
from dragoman.model.filter import LaneSource, LaneTarget
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame, Payload
from dragoman.wire.jsonio import Json
from dragoman.wire.ndjson import NdjsonDecoder

FAMILY = "ollama"
EXTRAS = ExtraFields(FAMILY)
FUNCTIONS = FunctionCodec(EXTRAS)
_SAME = ("temperature", "top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty")
SAMPLING_FIELDS = {**{name: name for name in _SAME}, "repetition_penalty": "repeat_penalty"}  # to names in `options`
EFFORTS = ("low", "medium", "high", "max")
_TRUNCATES = "~truncates"  # the client sent no `truncate`, so the service may drop old messages
LOAD_MODEL = ServerState("load", "messages", "without messages the model is only loaded, which only Ollama can do")
_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "user"}
_DURATIONS = frozenset({"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"})
_REASONS = {StopReason.LENGTH: "length", StopReason.CONTEXT: "length"}
_DEFAULT_REASON = "stop"  # also after calls
_PLACEHOLDER = "\0gap\0"  # never occurs in text

# --- requests, reading


def parse_request(call: ApiRequest) -> Conversation:
    """Read a request. Raises MalformedRequest with the path of the bad value."""
    fields, pairs = Fields(call.body), ToolCallIds("call_ollama_")
    options = fields.maybe_child("options") or Fields({}, "options")
    fields.any("options")
    limit, stop = options.peek("num_predict"), options.peek("stop")
    conversation = Conversation(
        call.model,
        tuple([_message(each, pairs) for each in fields.children("messages", [])]),
        tools=tuple([FUNCTIONS.parse_tool(each) for each in fields.children("tools", [])]),
        output=_output(fields),
        thinking=_thinking(fields),
        max_tokens=options.integer("num_predict") if type(limit) is int and limit > 0 else None,  # 0, -1: no limit
        stop=(options.text("stop"),) if isinstance(stop, str) else options.strings("stop", ()),
        sampling=take_sampling(options, SAMPLING_FIELDS),
        stream=call.stream,
        server_state=() if fields.peek("messages") else (LOAD_MODEL,),
        extra=_unknown(fields, options),  # last: it takes all remaining fields
    )
    return to_canonical(conversation)


def _unknown(fields: Fields, options: Fields) -> Extra | None:
    extra = to_extra_names(fields.rest())
    if rest := options.rest():
        extra["options"] = rest
    if extra.get("truncate") is None:
        extra[_TRUNCATES] = True
    elif extra["truncate"] is False:
        del extra["truncate"]  # the usual case: every other service refuses a prompt that is too long
    return EXTRAS.extra_of(extra, frozenset({_TRUNCATES}))


def _output(fields: Fields) -> Output:
    form = fields.any("format")
    if isinstance(form, dict):
        return Output("schema", schema=form)
    if form not in (None, "", "json"):
        fields.fail("format", 'expected "json" or a schema')
    return Output("json" if form else "text")


def _thinking(fields: Fields) -> Thinking:
    think = fields.any("think")
    if isinstance(think, str) and think in EFFORTS:
        return Thinking("default", think)
    if think is not None and not isinstance(think, bool):
        fields.fail("think", f"expected true, false or one of {', '.join(EFFORTS)}")
    return Thinking() if think is None else Thinking("on" if think else "off")


def _message(fields: Fields, pairs: ToolCallIds) -> Message:
    role, at = fields.text("role").lower(), Location(fields.at)
    if role not in _ROLES:
        fields.fail("role", f"expected one of {', '.join(_ROLES)}")
    content, images = fields.text("content", ""), fields.strings("images", ())
    content_blocks: list[Text | Media] = [Text(content, at=Location(fields.path("content")))] if content else []
    content_blocks += [untyped_media(base64_text(fields, "images", data), at) for data in images]
    if role == "tool":
        name, own_id = fields.text("tool_name", ""), fields.text("tool_call_id", "")
        call_id, unknown = pairs.match_result(own_id, name), to_extra_names(fields.rest())
        if name and name != pairs.name_of(call_id):
            unknown["tool_name"] = name
        extra = EXTRAS.extra_of(unknown, frozenset({"tool_name"}))
        return Message("user", (ToolResult(call_id, tuple(content_blocks), extra=extra, at=at),), at=at)
    blocks: list[Block] = [*content_blocks]
    if role == "assistant":
        if thought := fields.text("thinking", ""):
            blocks.insert(0, Reasoning(thought, FAMILY, at=Location(fields.path("thinking"))))
        blocks += [FUNCTIONS.parse_call(each, pairs) for each in fields.children("tool_calls", [])]
    return Message(_ROLES[role], tuple(blocks), extra=EXTRAS.extra(fields), at=at)


# --- requests, rendering


def render_request(conversation: Conversation, *, truncate: bool = False) -> ApiRequest:
    """Write a request. Raises Unrepresentable for content that Ollama cannot express."""
    body: dict[str, Json] = {"messages": list(_render_messages(conversation))}
    if _TRUNCATES not in EXTRAS.own_fields(conversation.extra):
        body["truncate"] = truncate
    if conversation.tools:
        body["tools"] = [FUNCTIONS.render_tool(tool) for tool in conversation.tools]
    options: dict[str, Json] = {SAMPLING_FIELDS[name]: value for name, value in conversation.sampling.items()}
    if conversation.max_tokens is not None:
        options["num_predict"] = conversation.max_tokens
    if conversation.stop:
        options["stop"] = list(conversation.stop)
    if options:
        body["options"] = options
    output, thinking = conversation.output, conversation.thinking
    if output.kind != "text":
        body["format"] = {**(output.schema or {})} if output.kind == "schema" else "json"
    if thinking.effort or thinking.mode != "default":
        body["think"] = thinking.effort or thinking.mode == "on"
    return ApiRequest("generate", conversation.model, conversation.stream, EXTRAS.with_extra(body, conversation.extra))


def _render_messages(conversation: Conversation) -> Iterator[Json]:
    for text in conversation.system:
        yield {"role": "system", "content": text.text, **parent_fields(EXTRAS.own_fields(text.extra))}
    names: dict[str, str] = {}
    for message in conversation.messages:
        names |= {block.id: block.name for block in message.blocks if isinstance(block, ToolCall)}
        results = [block for block in message.blocks if isinstance(block, ToolResult)]
        for result in results:
            if result.is_error:
                raise unrepresentable(result, "Ollama cannot mark a tool result as an error")
            called: dict[str, Json] = {"tool_name": names.get(result.call_id, ""), "tool_call_id": result.call_id}
            yield EXTRAS.with_extra({"role": "tool", **_render_content(result.content), **called}, result.extra)
        others = [block for block in message.blocks if not isinstance(block, ToolResult)]
        # User messages after results share a turn with them, so each text after the first begins a message.
        starts = [place for place, block in enumerate(others) if place and results and isinstance(block, Text)]
        if others or message.extra is not None or not results:
            starts.insert(0, 0)
        for start, end in pairwise((*starts, len(others))):
            body: dict[str, Json] = {"role": message.role, **_render_content(others[start:end])}
            yield EXTRAS.with_extra(body, None if start else message.extra)


def _render_content(blocks: Sequence[Block], blame: type[DragomanError] = Unrepresentable) -> dict[str, Json]:
    """Return content, thinking, images and calls of a message. Raises `blame` for any other block."""
    texts, thoughts = list[str](), list[str]()
    images, calls = list[Json](), list[Json]()
    for block in blocks:
        match block:
            case Text():
                texts.append(block.text)
            case Reasoning():
                thoughts.append(block.text)
            case Media(form="base64", kind="image" | "audio"):
                images.append(block.data)
            case ToolCall():
                calls.append(FUNCTIONS.render_call(block, blame))
            case _:
                raise blame(f"a message of Ollama cannot have {describe_block(block)}", at=block.at.path)
    more: dict[str, Json] = {"thinking": "".join(thoughts), "images": images, "tool_calls": calls}
    return {"content": "".join(texts), **{name: value for name, value in more.items() if value}}


# --- replies, reading


class _Piece(Struct, forbid_unknown_fields=True, gc=False):
    role: Literal["assistant"] = "assistant"
    content: str = ""
    thinking: str = ""


class _Line(Struct, forbid_unknown_fields=True, gc=False):
    """The common line of a stream: a piece of text or thinking and nothing else."""

    message: _Piece
    done: Literal[False]
    model: str = ""
    created_at: str = ""


_decode_line = jsonio.strict_decoder(_Line)
_TEXT_LANE = LaneSource("", _decode_line, lambda line: "" if line.message.thinking else line.message.content)
_THOUGHT_LANE = LaneSource("", _decode_line, lambda line: "" if line.message.content else line.message.thinking)


class OllamaDecoder(Decoder):
    """Reads lines into events; `feed` raises UpstreamViolation for lines that the dialect does not allow."""

    def __init__(
        self, request: Conversation, environment: Environment | None = None, keys: ev.BlockKeys | None = None
    ) -> None:
        self._model = request.model
        self._builder = BlockEventBuilder(FAMILY, keys)
        self._begun = self._is_over = False

    @property
    def is_open(self) -> bool:
        return self._builder.is_open

    def lane(self, kind: type[ev.Delta], key: int) -> LaneSource | None:
        builder = self._builder
        return (_THOUGHT_LANE if builder.is_reasoning else _TEXT_LANE) if key == builder.key else None

    def feed(self, frame: Frame) -> ev.Events:
        fields = Fields.parse(frame.data, blame=BadFrame)
        fields.blame = MissingField
        if fields.peek("error"):
            self._is_over = True
            return (ev.Failed(fault_of(fields.rest())),)
        return tuple(self._line(fields))

    def close(self, broken: Fault | None) -> ev.Events:
        if self._is_over:
            return ()
        self._is_over = True
        return (ev.Failed(broken or Truncated("the upstream's stream ended before the line with done: true").fault),)

    def _line(self, fields: Fields) -> list[ev.Event]:
        model, done, reason = fields.text("model", ""), fields.flag("done", False), fields.text("done_reason", "")
        fields.any("created_at")
        usage = _parse_usage(fields)
        message = fields.maybe_child("message") or Fields({}, "message", MissingField)
        fields.any("message")
        message.any("role")
        thought, text = message.text("thinking", ""), message.text("content", "")
        calls = [FUNCTIONS.parse_call(each) for each in message.children("tool_calls", [])]
        rest = fields.rest()
        if unknown := message.rest():
            rest["message"] = unknown
        events: list[ev.Event] = []
        if not self._begun:
            self._begun = True
            extra = None if done else EXTRAS.extra_of(to_extra_names(rest))
            events.append(ev.Started("", model or self._model, extra=extra))
        elif rest and not done:
            events.append(ev.OpaqueEvent(FAMILY, "line", rest))
        self._builder.thought(thought, events)
        self._builder.text(text, events)
        for call in calls:
            self._builder.call(call, events)
        if done:
            self._builder.end(events)
            events.append(ev.Stopped(_parse_stop(reason, rest, called=self._builder.has_calls)))
        if usage is not None:
            events.append(ev.UsageReported(usage))
        if done:
            self._is_over = True
            events.append(ev.FINISHED)
        return events


def _parse_stop(reason: str, rest: dict[str, Json], *, called: bool) -> Stop:
    """Return the stop. The service also sends `stop` after calls. An unknown reason is an end, and stays in `extra`."""
    canonical = find_stop_reason(reason) or StopReason.END
    extra = to_extra_names(rest)
    if reason and reason != _REASONS.get(canonical, _DEFAULT_REASON):
        extra["done_reason"] = reason
    return Stop(StopReason.TOOL if canonical is StopReason.END and called else canonical, extra=EXTRAS.extra_of(extra))


def _parse_usage(fields: Fields) -> Usage | None:
    """Return the token counts of a line, or None. The service omits a count of 0."""
    prompt, output = fields.any("prompt_eval_count"), fields.any("eval_count")
    durations = {name: fields.any(name) for name in sorted(_DURATIONS) if fields.has(name)}
    if prompt is None and output is None and not durations:
        return None
    extra = EXTRAS.extra_of(durations, _DURATIONS)
    return inclusive_usage(parse_token_count(prompt), parse_token_count(output), 0, 0, 0, extra=extra)


def parse_reply(body: bytes, request: Conversation) -> Reply:
    """Read a whole reply, or a whole stream. Raises UpstreamViolation, or UpstreamFault for an error in it."""
    lines = NdjsonDecoder(len(body))
    is_object = isinstance(decoded(body), dict)  # one object may span several lines
    frames = [Frame("", body, body)] if is_object else [*lines.feed(body), *lines.close()]
    return read_reply_stream(OllamaDecoder(request), frames)


# --- replies, rendering


def _render_end(stop: Stop, usage: Usage | None) -> dict[str, Json]:
    """Return the fields of the last line, except its message."""
    body: dict[str, Json] = {"done": True, "done_reason": _REASONS.get(stop.reason, _DEFAULT_REASON)}
    if usage is not None:
        prompt = usage.input + usage.cache_read + usage.cache_write
        counts: dict[str, Json] = {"prompt_eval_count": prompt, "eval_count": usage.output}
        body |= EXTRAS.with_extra({name: value for name, value in counts.items() if value}, usage.extra)
    return body


def render_reply(reply: Reply, request: Conversation, environment: Environment) -> bytes:
    """Write a whole reply as one object."""
    if len(reply.choices) != 1:
        raise LocalMisuse("a reply of Ollama has exactly one choice")
    choice = reply.choices[0]
    body: dict[str, Json] = {"model": reply.model or request.model, "created_at": iso_time(environment.now())}
    body["message"] = {"role": "assistant", **_render_content(choice.blocks, LocalMisuse)}
    body |= _render_end(choice.stop, reply.usage)
    return jsonio.encode(EXTRAS.with_extra(EXTRAS.with_extra(body, reply.extra), choice.stop.extra))


class OllamaEncoder(DeltaEncoder):
    """Writes events as lines of a stream."""

    def __init__(
        self, request: Conversation, environment: Environment, budget: ev.ResponseBudget | None = None
    ) -> None:
        super().__init__(FAMILY, budget)
        self._head: dict[str, Json] = {"model": request.model, "created_at": iso_time(environment.now())}
        self._first: dict[str, Json] = {}  # extra fields of the first line
        self._call_count = 0  # calls written so far

    def ping(self) -> Payload:
        return Payload(b"", self._line({}))  # a line without text, because NDJSON has no comments

    def lane(self, kind: type[ev.Delta], key: int) -> LaneTarget | None:
        if self._first or kind is ev.ArgumentsDelta:
            return None
        name = "thinking" if kind is ev.ReasoningDelta else "content"
        before, _, after = self._line({name: _PLACEHOLDER}).partition(jsonio.quote(_PLACEHOLDER))
        return LaneTarget(b"", before, after)

    def start(self, event: ev.Started) -> None:
        self._head["model"] = event.model or self._head["model"]
        self._first = EXTRAS.wire_fields(event.extra)

    def render_text(self, text: str) -> Payload:
        return self._line_payload({"content": text})

    def render_thinking(self, text: str) -> Payload:
        return self._line_payload({"thinking": text})

    def render_call(self, call: ToolCall) -> Payload:
        body = FUNCTIONS.render_call(call, LocalMisuse)
        function: Json = {"index": self._call_count, **members(body["function"])}
        self._call_count += 1
        return self._line_payload({"tool_calls": [{**body, "function": function}]})

    def render_own_event(self, fields: dict[str, Json]) -> Payload:
        return self._line_payload({}, fields)

    def render_end(self, stop: Stop, usage: Usage | None) -> Payload:
        return self._line_payload({}, _render_end(stop, usage), EXTRAS.wire_fields(stop.extra))

    def render_failure(self, fault: Fault) -> Payload:
        return Payload(b"", render_fault(fault), True)

    def _line_payload(self, content: dict[str, Json], *more: dict[str, Json]) -> Payload:
        first, self._first = self._first, {}
        return Payload(b"", self._line(content, *more, first))

    def _line(self, content: dict[str, Json], *more: dict[str, Json]) -> bytes:
        message: Json = {"role": "assistant", "content": "", **content}
        body: dict[str, Json] = {**self._head, "message": message, "done": False}
        for each in more:
            body = merge_fields(body, each)
        return jsonio.encode(body)
