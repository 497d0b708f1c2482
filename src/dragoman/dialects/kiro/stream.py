"""Decode Kiro's response streams: frames to events. Every response has its own decoder. Pure.

Theory of operation. No event starts or ends a response, a text or a thought. The first frame with content starts it, a
frame of another kind ends the open text or thought, and the end of the bytes ends the response
(docs/decisions/responses.md#d7). A call starts with an id and a name, continues in fragments and ends with `stop`;
several calls may be open, each identified by its id. The decoder buffers two things: the signature of a thought, which
comes in parts, until the thought ends; and input given as an object, which replaces the previous one, until `stop`.

    assistantResponseEvent, codeEvent    text
    reasoningContentEvent                a thought: text, signature parts, or redacted content
    toolUseEvent                         a call
    contextUsageEvent                    the token counts so far; the last event of every complete response
    metadataEvent, messageStopEvent      the stop reason, sometimes the token counts
    messageMetadataEvent, meteringEvent  ids and credits
    exceptions, and payloads with __type an error, which ends the response
    all others                           opaque
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from msgspec import UNSET, Struct, structs, to_builtins

from dragoman.dialects.base import Decoder, Environment
from dragoman.dialects.kiro.faults import fault_of
from dragoman.dialects.kiro.models import find_model
from dragoman.dialects.kiro.request import FAMILY, KiroSettings, count_ascii, estimate_input_tokens
from dragoman.dialects.kit.values import members
from dragoman.errors import BadFrame, Fault, MissingField, OutOfOrder, Truncated
from dragoman.model import events as ev
from dragoman.model.blocks import Block, Extra, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Conversation, Stop, StopReason, Usage, exclusive_usage, parse_token_count
from dragoman.model.filter import LaneSource
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields, describe, is_blank
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json

STOP_REASONS = {
    "END_TURN": StopReason.END,
    "STOP_SEQUENCE": StopReason.SEQUENCE,
    "TOOL_USE": StopReason.TOOL,
    "MAX_TOKENS": StopReason.LENGTH,
    "LENGTH_LIMIT": StopReason.LENGTH,
    "MAX_TIME": StopReason.LENGTH,
    "MODEL_CONTEXT_WINDOW_EXCEEDED": StopReason.CONTEXT,
    "CONTENT_FILTERED": StopReason.REFUSAL,
    "GUARDRAIL_INTERVENED": StopReason.REFUSAL,
}
_COUNTS = ("uncachedInputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
_LOST_CALL = "MALFORMED_TOOL_USE"  # the service dropped a call of the model
_MALFORMED = frozenset({_LOST_CALL, "MALFORMED_MODEL_OUTPUT"})
_TOO_LONG = "ContentLengthExceededException"
_MIN_SPLIT = 100  # fewer input tokens are not split into shares (docs/mission.md, rows of 002)
_CREDITS = frozenset({"metering"})
_MAX_PERCENTAGE = 1e6  # a larger contextUsagePercentage is ignored


# --- token counts of a response: those of its text, and those derived from the service's percentage
# (docs/decisions/kiro.md#d15)


class TokenCounter(Struct, gc=False):
    """Estimate the tokens of a text that comes in deltas; the estimate does not depend on where the deltas are cut."""

    plain: int = 0
    wide: int = 0

    def add(self, text: str) -> None:
        """Count a delta."""
        plain = len(text) if text.isascii() else count_ascii(text)
        self.plain += plain
        self.wide += len(text) - plain

    @property
    def tokens(self) -> int:
        """The estimated tokens so far."""
        return self.wide + (self.plain + 3) // 4


def usage_of(percentage: float, window: int, output: int, split: Sequence[int] | None, reasoning: int = 0) -> Usage:
    """Return the token counts that a percentage of the context window represents.

    The input is the total minus the output; `split` divides it into uncached input, cache writes and cache reads. All
    counts are estimates (docs/decisions/kiro.md#d15): the window is a convention, the output is counted without a
    tokenizer, and the shares are fixed.
    """
    total = parse_token_count(window * percentage / 100)
    prompt, reasoning = max(total - output, 0), min(reasoning, output)
    if not split or prompt < _MIN_SPLIT:
        return Usage(prompt, output, reasoning=reasoning, estimated=True)
    shares = sum(split)
    uncached, written = prompt * split[0] // shares, prompt * split[1] // shares
    return Usage(uncached, output, prompt - uncached - written, written, reasoning, estimated=True)


# --- the events


class _Content(Struct, forbid_unknown_fields=True, gc=False):
    """A text delta: nearly all payloads of a stream."""

    content: str
    modelId: str | None = None  # noqa: N815


class _Thought(Struct, forbid_unknown_fields=True, gc=False):
    """A delta of a thought, a part of its signature, or a whole redacted thought."""

    text: str | None = None
    signature: str | None = None
    redactedContent: str | None = None  # noqa: N815


class _Piece(Struct, forbid_unknown_fields=True, gc=False):
    """A fragment of a call. Only the name of the first one counts."""

    toolUseId: str | None = None  # noqa: N815
    name: Any = UNSET
    input: Any = None
    stop: bool | None = None


class _About(Struct, forbid_unknown_fields=True, gc=False):
    """The fields of events about the response as a whole. A value of the wrong type is ignored."""

    conversationId: Any = None  # noqa: N815
    utteranceId: Any = None  # noqa: N815
    stopReason: Any = None  # noqa: N815
    tokenUsage: Any = None  # noqa: N815
    contextUsagePercentage: Any = None  # noqa: N815


class _Metering(Struct, forbid_unknown_fields=True, gc=False):
    unit: Any = UNSET
    unitPlural: Any = UNSET  # noqa: N815
    usage: Any = UNSET


class _Use(Struct):
    """An open call."""

    key: int
    name: str
    input_object: dict[str, Json] | None = None  # the last input that was given as an object
    has_deltas: bool = False  # input has come as text


class KiroDecoder(Decoder):
    """Decode frames to events. Raises UpstreamViolation for a frame that the dialect does not allow."""

    def __init__(
        self, request: Conversation, environment: Environment, settings: KiroSettings, keys: ev.BlockKeys | None = None
    ) -> None:
        self._input_tokens = estimate_input_tokens(request)
        self._environment = environment
        self._settings = settings
        self._started = False
        self._finished = False
        self._id = ""
        self._requested_model = self._model = request.model
        self._keys = keys or ev.BlockKeys()
        self._has_content = False  # a block has started
        self._open: int | None = None  # the key of the open text or thought
        self._kind: type[Block] = Text  # the kind of the open block
        self._signature = ev.TextBuffer(self._keys.budget)
        self._uses: dict[str, _Use] = {}
        self._last_use = ""
        self._ended: set[str] = set()  # ids of the calls that have ended
        self._reason = ""
        self._percentage: float | None = None
        self._exact_usage: Usage | None = None  # exact counts, if the service sent them
        self._metering: dict[str, Json] = {}
        self._output = TokenCounter()
        self._reasoning = TokenCounter()

    @property
    def is_open(self) -> bool:
        return self._open is not None or bool(self._uses)

    def feed(self, frame: Frame) -> ev.Events | None:
        if self._finished:
            raise OutOfOrder("a frame follows the end of the stream", at=frame.kind)
        handler = None if frame.error else _HANDLERS.get(frame.kind)
        if handler is None:
            return self._unknown(frame)
        try:
            event = handler.decode(frame.data)
        except jsonio.DECODE_ERRORS:  # an error, a wrapped payload, unknown fields, or a malformed payload
            body = _object(frame)
            if _is_error(body):
                return self._exception("", body)
            event = handler.read(Fields(body, frame.kind, MissingField))
        return handler.take(self, event, frame.kind)

    def lane(self, kind: type[ev.Delta], key: int) -> LaneSource | None:
        if key == self._open:
            if self._kind is Text:
                return LaneSource("assistantResponseEvent", _decode_content, attrgetter("content"), self._output.add)
            lane = LaneSource("reasoningContentEvent", _decode_thought, _only_text, self._count_thought)
            return None if self._signature else lane
        last = self._last_use
        use = self._uses.get(last)

        def input_of(piece: _Piece) -> str | None:
            value = piece.input if piece.toolUseId == last and not piece.stop else None
            return value if isinstance(value, str) else None

        if use is None or use.key != key or not use.has_deltas:
            return None
        return LaneSource("toolUseEvent", _decode_piece, input_of, self._output.add)

    def _count_thought(self, text: str) -> None:
        self._output.add(text)
        self._reasoning.add(text)

    def close(self, broken: Fault | None) -> ev.Events:
        if self._finished:
            return ()
        self._finished = True
        if broken is not None:
            return (ev.Failed(broken),)
        if not self._started:
            return (ev.Failed(Truncated("the upstream's stream ended before its first event").fault),)
        return self._end()

    # --- the response

    def _turn_to(self, kind: type[Block] | None) -> list[ev.Event]:
        """Start the response if it has not started, and end the open text or thought if it is of another kind."""
        events: list[ev.Event] = []
        if not self._started:
            self._started = True
            usage = Usage(self._input_tokens, estimated=True)
            events.append(ev.Started(self._id or self._environment.new_id("msg_"), self._model, usage))
        if self._open is not None and self._kind is not kind:
            if self._signature:
                events.append(ev.SignatureAdded(self._open, Signature(FAMILY, self._signature.take())))
            events.append(ev.BlockEnded(self._open))
            self._open = None
        return events

    def _about(self, event: Any, kind: str) -> ev.Events:
        """Handle an event about the response as a whole: `event` is an _About, or the credits of a meteringEvent."""
        if kind == "meteringEvent":
            self._metering = to_builtins(event)
            return ()
        if kind == "messageMetadataEvent":
            if not self._id and isinstance(event.utteranceId, str):
                self._id = event.utteranceId
            return ()
        counts, percentage, has_counts = event.tokenUsage, event.contextUsagePercentage, False
        if kind != "contextUsageEvent":
            if event.stopReason and isinstance(event.stopReason, str):
                self._reason = event.stopReason
            has_counts, percentage = isinstance(counts, dict), None
            if has_counts:
                percentage = counts.get("contextUsagePercentage")
                self._exact_usage = exclusive_usage(*(parse_token_count(counts.get(name)) for name in _COUNTS))
        if type(percentage) in (int, float) and 0 <= percentage < _MAX_PERCENTAGE:
            self._percentage, has_counts = float(percentage), True
        events = self._turn_to(self._kind)
        return (*events, ev.UsageReported(self._usage())) if has_counts else tuple(events)

    def _usage(self) -> Usage:
        output, reasoning = self._output.tokens, self._reasoning.tokens
        if self._exact_usage is not None:
            usage = self._exact_usage
        elif self._percentage is not None:
            split = self._settings.usage_split
            shares = split if isinstance(split, tuple | list) else None
            window = self._settings.window(self._model)
            usage = usage_of(self._percentage, window, output, shares, reasoning)
        else:
            usage = Usage(self._input_tokens, output, reasoning=reasoning, estimated=True)
        if self._metering:  # credits, which only Kiro clients get
            usage = structs.replace(usage, extra=Extra(FAMILY, {"metering": self._metering}, _CREDITS))
        return usage

    def _end(self, why: StopReason | None = None) -> ev.Events:
        """End all open blocks and the response. An open call was cut."""
        is_cut = bool(self._uses)
        events = self._turn_to(None)
        events += [ev.BlockEnded(use.key, is_complete=False) for use in self._uses.values()]
        self._uses.clear()
        if self._reason in _MALFORMED and (self._reason == _LOST_CALL or not self._has_content):
            return (ev.Failed(Fault("server", f"the service could not parse the model's reply ({self._reason})")),)
        return (*events, ev.Stopped(self._stop(why, is_cut)), ev.UsageReported(self._usage()), ev.FINISHED)

    def _stop(self, why: StopReason | None, is_cut: bool) -> Stop:
        if why or is_cut:
            return Stop(why or StopReason.LENGTH)
        if self._reason in STOP_REASONS:
            return Stop(STOP_REASONS[self._reason])
        extra = Extra(FAMILY, {"stopReason": self._reason}) if self._reason else None
        if self._ended:
            return Stop(StopReason.TOOL, extra=extra)
        is_full = self._percentage is not None and self._percentage >= 100
        return Stop(StopReason.CONTEXT if is_full else StopReason.END, extra=extra)

    def _exception(self, kind: str, body: dict[str, Json]) -> ev.Events:
        self._finished = True
        fault = fault_of(body, kind, sizes=lambda: (self._input_tokens, find_model(self._requested_model).window))
        if kind == _TOO_LONG and self._has_content:  # The reply has started, so the reply is too long, not the request.
            return self._end(StopReason.LENGTH)
        return (ev.Failed(fault),)

    def _unknown(self, frame: Frame) -> ev.Events:
        """Handle an exception, or a frame of an unknown kind, which may not be JSON.

        An exception is a failure even if its body cannot be parsed. A frame without a kind may contain a known event
        under its name.
        """
        try:
            body = jsonio.decode(frame.data) if frame.data else None
        except jsonio.JsonError:
            body = frame.data.decode("utf-8", "replace")
        if frame.error:
            return self._exception(frame.kind, members(body))
        if isinstance(body, dict):
            if _is_error(body) or frame.kind == "error":
                return self._exception("", body)
            name = next(iter(body), "")
            inner, handler = body.get(name), _HANDLERS.get(name)
            if not frame.kind and handler is not None and isinstance(inner, dict):
                return handler.take(self, handler.read(Fields(inner, name, MissingField)), name)
        return (*self._turn_to(self._kind), ev.OpaqueEvent(FAMILY, frame.kind, body))

    # --- text and thoughts

    def _content(self, event: _Content, _kind: str) -> ev.Events:
        self._model = event.modelId or self._model
        if not event.content:
            return ()
        events = self._turn_to(Text)
        if self._open is None:
            self._open, self._kind, self._has_content = self._keys.fresh(), Text, True
            events.append(ev.BlockStarted(self._open, Text("")))
        self._output.add(event.content)
        return (*events, ev.TextDelta(self._open, event.content))

    def _thought(self, event: _Thought, _kind: str) -> ev.Events:
        is_new = event.redactedContent or (event.text and self._signature)  # A signed thought does not continue.
        events = self._turn_to(None if is_new else Reasoning)
        if event.redactedContent:
            key, self._has_content = self._keys.fresh(), True
            thought, signature = Reasoning("", FAMILY), Signature(FAMILY, event.redactedContent, "redacted")
            events += (ev.BlockStarted(key, thought), ev.SignatureAdded(key, signature), ev.BlockEnded(key))
        if (event.text or event.signature) and self._open is None:
            self._open, self._kind, self._has_content = self._keys.fresh(), Reasoning, True
            events.append(ev.BlockStarted(self._open, Reasoning("", FAMILY)))
        if event.text and self._open is not None:
            self._count_thought(event.text)
            events.append(ev.ReasoningDelta(self._open, event.text))
        if event.signature:
            self._signature.add(event.signature)
        return tuple(events)

    # --- calls

    def _tool_use(self, piece: _Piece, kind: str) -> ev.Events:
        """Handle a fragment of a call. One without an id belongs to the last call."""
        call_id, value = piece.toolUseId or self._last_use, piece.input
        use = self._uses.get(call_id)
        if not piece.toolUseId:
            has_name = piece.name not in (UNSET, None)
            if use is None and piece.stop and not value and not has_name:
                return ()  # a second `stop` of a call that has ended
            if use is None or (has_name and piece.name not in ("", use.name)):
                raise MissingField("expected a string that is not empty", at=f"{kind}.toolUseId")
        if call_id in self._ended:
            return ()  # the service sent the call twice
        events: list[ev.Event] = []
        if use is None:
            if is_blank(call_id) or not isinstance(piece.name, str) or is_blank(piece.name):
                _raise_unnamed(piece, kind)
            call = ToolCall(call_id, piece.name)
            use = self._uses[call_id] = _Use(self._keys.fresh(call), call.name)
            self._has_content = True
            events += (*self._turn_to(None), ev.BlockStarted(use.key, call))
        self._last_use = call_id
        if isinstance(value, dict):
            if value and not use.has_deltas:
                self._keys.budget.reserve(ev.json_size(value) - ev.json_size(use.input_object))
                use.input_object = value
        elif isinstance(value, str):
            if value:
                use.has_deltas, use.input_object = True, None
                events.append(ev.ArgumentsDelta(use.key, value))
                self._output.add(value)
        elif value is not None:
            raise MissingField("expected a string", at=f"{kind}.input")
        if piece.stop:
            del self._uses[call_id]
            self._ended.add(call_id)
            if not use.has_deltas:
                arguments = jsonio.encode(use.input_object or {}).decode()  # A call without arguments has no input.
                events.append(ev.ArgumentsDelta(use.key, arguments))
                self._output.add(arguments)
            events.append(ev.BlockEnded(use.key))
        return tuple(events)


def _object(frame: Frame) -> dict[str, Json]:
    try:
        body = jsonio.decode(frame.data) if frame.data else {}
    except jsonio.JsonError as error:
        raise BadFrame(f"not JSON: {error}", at=frame.kind) from None
    if not isinstance(body, dict):
        raise BadFrame(f"expected an object, got {describe(body)}", at=frame.kind)
    inner = body.get(frame.kind)
    return inner if isinstance(inner, dict) and len(body) == 1 else body  # Some payloads are wrapped.


def _is_error(body: dict[str, Json]) -> bool:
    """Return whether the body of an ordinary event is an error."""
    return "__type" in body or "_type" in body or ("error" in body and "message" in body)


def _raise_unnamed(piece: _Piece, kind: str) -> None:
    """Raise MissingField for a call without an id or a name."""
    fields = Fields(to_builtins(piece), kind, MissingField)
    fields.identifier("toolUseId")
    fields.identifier("name")


def _only_text(piece: _Thought) -> str | None:
    return piece.text if piece.signature is None and piece.redactedContent is None else None


# --- payloads that do not match their Struct exactly: unknown fields are ignored, wrong types raise MissingField


def _read_content(fields: Fields) -> _Content:
    model = fields.any("modelId")
    text = fields.text("content", "") if fields.has("modelId") else fields.text("content")
    return _Content(text, model if isinstance(model, str) else None)


def _read_thought(fields: Fields) -> _Thought:
    return _Thought(fields.text("text", None), fields.text("signature", None), fields.text("redactedContent", None))


def _read_piece(fields: Fields) -> _Piece:
    stop = fields.flag("stop", False)
    call_id = None if fields.peek("toolUseId") in (None, "") else fields.identifier("toolUseId")
    name = fields.peek("name") if fields.has("name") else UNSET
    return _Piece(call_id, name, fields.peek("input"), stop)


def _read_about(fields: Fields) -> _About:
    return _About(*map(fields.peek, _About.__struct_fields__))


class _Handler(Struct, frozen=True):
    decode: Callable[[bytes], Any]  # decodes a payload that matches the event's Struct exactly
    read: Callable[[Fields], Any]  # reads any other payload
    take: Callable[[KiroDecoder, Any, str], ev.Events]


_decode_content = jsonio.strict_decoder(_Content)
_decode_thought = jsonio.strict_decoder(_Thought)
_decode_piece = jsonio.strict_decoder(_Piece)
# Functions of the class, because bound methods would keep each decoder, with its request, until the next collection.
_TEXT_HANDLER = _Handler(_decode_content, _read_content, KiroDecoder._content)
_ABOUT_HANDLER = _Handler(jsonio.strict_decoder(_About), _read_about, KiroDecoder._about)
_HANDLERS: dict[str, _Handler] = {
    "assistantResponseEvent": _TEXT_HANDLER,
    "codeEvent": _TEXT_HANDLER,
    "reasoningContentEvent": _Handler(_decode_thought, _read_thought, KiroDecoder._thought),
    "toolUseEvent": _Handler(_decode_piece, _read_piece, KiroDecoder._tool_use),
    "contextUsageEvent": _ABOUT_HANDLER,
    "metadataEvent": _ABOUT_HANDLER,
    "messageStopEvent": _ABOUT_HANDLER,
    "messageMetadataEvent": _ABOUT_HANDLER,
    "meteringEvent": _Handler(jsonio.strict_decoder(_Metering), Fields.rest, KiroDecoder._about),
}
