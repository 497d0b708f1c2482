"""Streams, wire to canonical: one decoder per answer.

Theory of operation. There is no event that begins or ends an answer, a text or a thought: the first frame with meaning
begins it, a frame of another kind ends what is open, and the end of the bytes ends all (D7). Calls begin with an id and
a name, grow by fragments, end with `stop`; several may be open, each known by its id. Held back are: a thought's
signature, which comes in parts, until the thought ends; input given as objects, each replacing the last, until `stop`.

    assistantResponseEvent, codeEvent    text
    reasoningContentEvent                a thought: text, signature parts, or redacted content
    toolUseEvent                         a call
    contextUsageEvent                    the counts so far; comes last, and with every whole answer
    metadataEvent, messageStopEvent      why it stopped, sometimes the counts
    messageMetadataEvent, meteringEvent  ids and credits
    exceptions, and payloads with __type the end, by failure
    all others                           opaque
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from dragoman.dialects.base import Decoder, World
from dragoman.dialects.kiro.faults import fault_of
from dragoman.dialects.kiro.models import Counter, Counting, estimate_input, model_of, usage_of
from dragoman.dialects.kiro.turns import FAMILY, extra_of
from dragoman.errors import BadFrame, Fault, MissingField, OutOfOrder, Truncated
from dragoman.model import events as ev
from dragoman.model.blocks import Block, Reasoning, Seal, Text, ToolCall
from dragoman.model.conversation import Conversation, Stop, Usage, Why, count, exclusive_usage
from dragoman.model.filter import LaneSource
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json

REASONS = {
    "END_TURN": Why.END,
    "STOP_SEQUENCE": Why.SEQUENCE,
    "TOOL_USE": Why.TOOL,
    "MAX_TOKENS": Why.LENGTH,
    "LENGTH_LIMIT": Why.LENGTH,
    "MAX_TIME": Why.LENGTH,
    "MODEL_CONTEXT_WINDOW_EXCEEDED": Why.CONTEXT,
    "CONTENT_FILTERED": Why.REFUSAL,
    "GUARDRAIL_INTERVENED": Why.REFUSAL,
}
_COUNTS = ("uncachedInputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
_LOST_CALL = "MALFORMED_TOOL_USE"  # the service dropped a call of the model
_MALFORMED = frozenset({_LOST_CALL, "MALFORMED_MODEL_OUTPUT"})
_TOO_LONG = "ContentLengthExceededException"
_MOST_PERCENT = 1e6  # of the context: a figure beyond is no percentage


class _Content(Struct, gc=False):
    """The payload that nearly all of a stream is made of."""

    content: str
    modelId: str | None = None  # noqa: N815


class _Thought(Struct, forbid_unknown_fields=True, gc=False):
    """More of a thought; what comes beside it is gathered, and may not repeat."""

    text: str


class _Input(Struct, forbid_unknown_fields=True, gc=False):
    """More of a call's input. A `stop` ends the call, so it may only say no."""

    input: str
    toolUseId: str  # noqa: N815
    name: str | None = None
    stop: Literal[False] = False


_decode_content = jsonio.strict(_Content)
_decode_thought = jsonio.strict(_Thought)
_decode_input = jsonio.strict(_Input)


class _Use(Struct):
    """A call that has begun and not ended."""

    key: int
    name: str
    given: dict[str, Json] | None = None  # input as an object, the latest
    grown: bool = False


_Handler: TypeAlias = Callable[["KiroDecoder", Fields], ev.Events]


class KiroDecoder(Decoder):
    """Frames to events. Raises UpstreamViolation for what the dialect does not allow."""

    def __init__(self, asked: Conversation, world: World, counting: Counting, keys: ev.BlockKeys | None = None) -> None:
        self._asked: Conversation | None = asked  # until it is measured: a stream may last
        self._size = 0  # of the question, as we estimate it
        self._world = world
        self._counting = counting
        self._begun = False
        self._over = False
        self._id = ""
        self._model = asked.model
        self._window = model_of(asked.model).window
        self._keys = keys or ev.BlockKeys()
        self._said = False  # a block has begun
        self._text: int | None = None
        self._thought: int | None = None
        self._signature = ev.KeptText(self._keys.budget)
        self._uses: dict[str, _Use] = {}
        self._last_use = ""
        self._ended: set[str] = set()
        self._called = False
        self._reason = ""
        self._percentage: float | None = None
        self._told: Usage | None = None  # exact counts, if the service gave any
        self._metering: dict[str, Json] = {}
        self._output = Counter()
        self._reasoning = Counter()

    @property
    def is_open(self) -> bool:
        return self._text is not None or self._thought is not None or bool(self._uses)

    def feed(self, frame: Frame) -> ev.Events | None:
        if self._over:
            raise OutOfOrder("the stream is over", at=frame.kind)
        if frame.error:
            return self._exception(frame.kind, _said(frame))
        handler = _HANDLERS.get(frame.kind)
        if handler is None:
            return self._unknown(frame)
        body = _object(frame)
        inner = body.get(frame.kind)
        if isinstance(inner, dict) and len(body) == 1:
            body = inner  # some wrap the payload in its own name
        if _is_error(body):
            return self._exception("", body)
        return handler(self, Fields(body, frame.kind, MissingField))

    def lane(self, kind: type[ev.Delta], key: int) -> LaneSource | None:
        if key == self._text:
            return LaneSource("assistantResponseEvent", _decode_content, attrgetter("content"), self._output.add)
        if key == self._thought:
            of_thought = LaneSource("reasoningContentEvent", _decode_thought, attrgetter("text"), self._count_thought)
            return None if self._signature else of_thought
        last = self._last_use
        use = self._uses.get(last)

        def input_of(piece: _Input) -> str | None:
            return piece.input if piece.toolUseId == last else None

        if use is None or use.key != key or not use.grown:
            return None
        return LaneSource("toolUseEvent", _decode_input, input_of, self._output.add)

    def _count_thought(self, text: str) -> None:
        self._output.add(text)
        self._reasoning.add(text)

    def close(self, broken: Fault | None) -> ev.Events:
        if self._over:
            return ()
        self._over = True
        if broken is not None:
            return (ev.Failed(broken),)
        if not self._begun:
            return (ev.Failed(Truncated("the upstream's answer ended before it began").fault),)
        return self._end()

    # --- the answer

    def _start(self) -> ev.Events:
        if self._begun:
            return ()
        self._begun = True
        usage = Usage(self._measured(), estimated=True)
        return (ev.Started(self._id or self._world.new_id("msg_"), self._model, usage),)

    def _measured(self) -> int:
        """Tokens of the question, estimated once."""
        if self._asked is not None:
            self._size, self._asked = estimate_input(self._asked), None
        return self._size

    def _sizes(self) -> tuple[int, int]:
        return self._measured(), self._window

    def _message_metadata(self, fields: Fields) -> ev.Events:
        self._id = self._id or _text(fields, "utteranceId")
        return ()

    def _context_usage(self, fields: Fields) -> ev.Events:
        percentage = _percentage(fields)
        if percentage is None:
            return self._start()
        self._percentage = percentage
        return (*self._start(), ev.UsageReported(self._usage()))

    def _metadata(self, fields: Fields) -> ev.Events:
        self._reason = _text(fields, "stopReason") or self._reason
        counts = fields.any("tokenUsage")
        if not isinstance(counts, dict):
            return self._start()
        percentage = _percentage(Fields(counts, fields.path("tokenUsage"), fields.blame))
        self._percentage = self._percentage if percentage is None else percentage
        self._told = exclusive_usage(*(count(counts.get(name)) for name in _COUNTS))
        return (*self._start(), ev.UsageReported(self._usage()))

    def _meter(self, fields: Fields) -> ev.Events:
        self._metering = fields.rest()
        return ()

    def _usage(self) -> Usage:
        output, reasoning = self._output.tokens, self._reasoning.tokens
        if self._told is not None:
            usage = self._told
        elif self._percentage is not None:
            split = self._counting.usage_split
            shares = split if isinstance(split, tuple | list) else None
            window = self._counting.window(self._model)
            usage = usage_of(self._percentage, window, output, shares, reasoning)
        else:
            usage = Usage(self._measured(), output, reasoning=reasoning, estimated=True)
        if self._metering:  # credits: nothing is lost where they mean nothing
            usage = structs.replace(usage, extra=extra_of({"metering": self._metering}, frozenset({"metering"})))
        return usage

    def _end(self, why: Why | None = None) -> ev.Events:
        """All that is open ends, and with it the answer. An open call was cut."""
        cut = bool(self._uses)
        events: list[ev.Event] = [*self._end_text(), *self._end_thought()]
        events += [ev.BlockEnded(use.key, complete=False) for use in self._uses.values()]
        self._uses.clear()
        if self._reason in _MALFORMED and (self._reason == _LOST_CALL or not self._said):
            return (ev.Failed(Fault("server", f"the model's answer was unusable ({self._reason})")),)
        return (*events, ev.Stopped(self._stop(why, cut)), ev.UsageReported(self._usage()), ev.FINISHED)

    def _stop(self, why: Why | None, cut: bool) -> Stop:
        if why or cut:
            return Stop(why or Why.LENGTH)
        if self._reason in REASONS:
            return Stop(REASONS[self._reason])
        extra = extra_of({"stopReason": self._reason}) if self._reason else None
        if self._called:
            return Stop(Why.TOOL, extra=extra)
        full = self._percentage is not None and self._percentage >= 100
        return Stop(Why.CONTEXT if full else Why.END, extra=extra)

    def _exception(self, kind: str, body: dict[str, Json]) -> ev.Events:
        self._over = True
        fault = fault_of(body, kind, sizes=self._sizes)
        if kind == _TOO_LONG and self._said:  # it had begun to answer: the answer grew too long, not the question
            return (*self._start(), *self._end(Why.LENGTH))
        return (ev.Failed(fault),)

    def _unknown(self, frame: Frame) -> ev.Events:
        """A frame of an unknown kind, which may be no JSON; one without a kind may hold a known event by name."""
        try:
            body = jsonio.decode(frame.data) if frame.data else None
        except jsonio.JsonError:
            body = frame.data.decode("utf-8", "replace")
        if isinstance(body, dict):
            if _is_error(body) or frame.kind == "error":
                return self._exception("", body)
            name = next(iter(body), "")
            inner = body.get(name)
            if not frame.kind and name in _HANDLERS and isinstance(inner, dict):
                return _HANDLERS[name](self, Fields(inner, name, MissingField))
        return (*self._start(), ev.OpaqueEvent(FAMILY, frame.kind, body))

    # --- text and thoughts

    def _content(self, fields: Fields) -> ev.Events:
        model, text = _text(fields, "modelId"), fields.text("content", "" if fields.has("modelId") else None)
        if text is None:
            text = fields.text("content")
        self._model = model or self._model
        if not text:
            return ()
        events: list[ev.Event] = [*self._start(), *self._end_thought()]
        if self._text is None:
            self._text = self._key()
            events.append(ev.BlockStarted(self._text, Text("")))
        self._output.add(text)
        return (*events, ev.TextDelta(self._text, text))

    def _end_text(self) -> ev.Events:
        key, self._text = self._text, None
        return () if key is None else (ev.BlockEnded(key),)

    def _reasoned(self, fields: Fields) -> ev.Events:
        text, signature = fields.text("text", ""), fields.text("signature", "")
        hidden = fields.text("redactedContent", "")
        events: list[ev.Event] = [*self._start(), *self._end_text()]
        if hidden:
            key = self._key()
            thought, seal = Reasoning("", FAMILY), Seal(FAMILY, hidden, "redacted")
            events += (*self._end_thought(), ev.BlockStarted(key, thought), ev.Sealed(key, seal), ev.BlockEnded(key))
        if text and self._signature:
            events += self._end_thought()  # what was signed is over
        if (text or signature) and self._thought is None:
            self._thought = self._key()
            events.append(ev.BlockStarted(self._thought, Reasoning("", FAMILY)))
        if text and self._thought is not None:
            self._output.add(text)
            self._reasoning.add(text)
            events.append(ev.ReasoningDelta(self._thought, text))
        if signature:
            self._signature.add(signature)
        return tuple(events)

    def _end_thought(self) -> ev.Events:
        key, signature = self._thought, self._signature.take()
        self._thought = None
        if key is None:
            return ()
        return (ev.Sealed(key, Seal(FAMILY, signature)), ev.BlockEnded(key)) if signature else (ev.BlockEnded(key),)

    def _key(self, block: Block | None = None) -> int:
        self._said = True
        return self._keys.fresh(block)

    # --- calls

    def _tool_use(self, fields: Fields) -> ev.Events:
        """A piece of a call. One without an id belongs to the call that came last (facts 3.3, no. 1)."""
        stop, value = fields.flag("stop", False), fields.any("input")
        if fields.peek("toolUseId") in (None, ""):
            name = fields.peek("name")
            last = self._uses.get(self._last_use)
            if last is None and stop and not value and name is None:
                return ()  # the end of a call that has ended
            if last is None or name not in (None, "", last.name):
                fields.fail("toolUseId", "expected a string that is not empty")
            call_id = self._last_use
        else:
            call_id = fields.identifier("toolUseId")
        if call_id in self._ended:
            return ()  # told twice
        events: list[ev.Event] = []
        use = self._uses.get(call_id)
        if use is None:
            call = ToolCall(call_id, fields.identifier("name"))
            use = self._uses[call_id] = _Use(self._key(call), call.name)
            events += (*self._start(), *self._end_thought(), *self._end_text())
            events.append(ev.BlockStarted(use.key, call))
        self._last_use = call_id
        events += self._grow(use, value, fields)
        if stop:
            events += self._end_use(call_id, use)
        return tuple(events)

    def _grow(self, use: _Use, value: Json, fields: Fields) -> ev.Events:
        if isinstance(value, dict):
            if value and not use.grown:
                self._keys.budget.keep(ev.json_size(value) - ev.json_size(use.given))
                use.given = value
            return ()
        if value is None or value == "":
            return ()
        if not isinstance(value, str):
            fields.fail("input", "expected a string")
        use.grown, use.given = True, None
        self._output.add(value)
        return (ev.ArgumentsDelta(use.key, value),)

    def _end_use(self, call_id: str, use: _Use) -> ev.Events:
        del self._uses[call_id]
        self._ended.add(call_id)
        self._called = True
        if use.grown:
            return (ev.BlockEnded(use.key),)
        arguments = jsonio.encode(use.given or {}).decode()  # no input at all is how a call without arguments is told
        self._output.add(arguments)
        return (ev.ArgumentsDelta(use.key, arguments), ev.BlockEnded(use.key))


# Of the class: bound methods would keep their decoder, and the question in it, until the next collection.
_HANDLERS: dict[str, _Handler] = {
    "assistantResponseEvent": KiroDecoder._content,
    "codeEvent": KiroDecoder._content,
    "reasoningContentEvent": KiroDecoder._reasoned,
    "toolUseEvent": KiroDecoder._tool_use,
    "contextUsageEvent": KiroDecoder._context_usage,
    "metadataEvent": KiroDecoder._metadata,
    "messageStopEvent": KiroDecoder._metadata,
    "messageMetadataEvent": KiroDecoder._message_metadata,
    "meteringEvent": KiroDecoder._meter,
}


def _text(fields: Fields, name: str) -> str:
    """A string that says something about the answer; what is none says nothing, and does not fail the answer."""
    value = fields.any(name)
    return value if isinstance(value, str) else ""


def _percentage(fields: Fields) -> float | None:
    """How full the context is; None where the service gives no figure that can be one."""
    value = fields.any("contextUsagePercentage")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < _MOST_PERCENT else None  # type: ignore[arg-type,operator]


def _object(frame: Frame) -> dict[str, Json]:
    try:
        body = jsonio.decode(frame.data) if frame.data else {}
    except jsonio.JsonError as error:
        raise BadFrame(f"not JSON: {error}", at=frame.kind) from None
    if not isinstance(body, dict):
        raise BadFrame("expected an object", at=frame.kind)
    return body


def _said(frame: Frame) -> dict[str, Json]:
    """What an exception says; one whose body cannot be read is a failure all the same."""
    try:
        return _object(frame)
    except BadFrame:
        return {}


def _is_error(body: dict[str, Json]) -> bool:
    """An error that came as an ordinary event (facts 3.3, no. 13)."""
    return "__type" in body or "_type" in body or ("error" in body and "message" in body)
