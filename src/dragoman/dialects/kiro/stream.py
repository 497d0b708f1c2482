"""Streams, wire to canonical: one decoder per answer.

Theory of operation. There is no event that begins or ends an answer, a text or a thought: the first frame with meaning
begins it, a frame of another kind ends what is open, and the end of the bytes ends all (docs/decisions/answers.md#d7).
Calls begin with an id and a name, grow by fragments, end with `stop`; several may be open, each known by its id. Held
back are: a thought's signature, which comes in parts, until the thought ends; input given as objects, each replacing
the last, until `stop`.

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
from dragoman.wire.fields import Fields, is_blank
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
_UNSPLIT = 100  # below this many input tokens 002 makes no shares
_CREDITS = frozenset({"metering"})
_MOST_PERCENT = 1e6  # of the context: a figure beyond is no percentage


# --- Token counts of an answer: of its text, and those that the service's percentage stands for
# (docs/decisions/kiro.md#d15)


class TokenCounter(Struct, gc=False):
    """Counts what an answer says, piece by piece, so that cutting it into more pieces makes no more tokens."""

    plain: int = 0
    wide: int = 0

    def add(self, text: str) -> None:
        plain = len(text) if text.isascii() else count_ascii(text)
        self.plain += plain
        self.wide += len(text) - plain

    @property
    def tokens(self) -> int:
        return self.wide + (self.plain + 3) // 4


def usage_of(percentage: float, window: int, output: int, split: Sequence[int] | None, reasoning: int = 0) -> Usage:
    """Return the counts that a percentage of the context stands for.

    The input is the total less the output, in shares of input and caches. All are estimates
    (docs/decisions/kiro.md#d15): the window is a convention, the output is counted without a tokenizer, the shares are
    fixed.
    """
    total = parse_token_count(window * percentage / 100)
    given, reasoning = max(total - output, 0), min(reasoning, output)
    if not split or given < _UNSPLIT:
        return Usage(given, output, reasoning=reasoning, estimated=True)
    whole = sum(split)
    fresh, written = given * split[0] // whole, given * split[1] // whole
    return Usage(fresh, output, given - fresh - written, written, reasoning, estimated=True)


# --- the events


class _Content(Struct, forbid_unknown_fields=True, gc=False):
    """The payload that nearly all of a stream is made of."""

    content: str
    modelId: str | None = None  # noqa: N815


class _Thought(Struct, forbid_unknown_fields=True, gc=False):
    """A piece of a thought, of its signature, or a whole thought that is redacted."""

    text: str | None = None
    signature: str | None = None
    redactedContent: str | None = None  # noqa: N815


class _Piece(Struct, forbid_unknown_fields=True, gc=False):
    """A piece of a call. The name counts in the first one only."""

    toolUseId: str | None = None  # noqa: N815
    name: Any = UNSET
    input: Any = None
    stop: bool | None = None


class _About(Struct, forbid_unknown_fields=True, gc=False):
    """What an event says about the answer as a whole. What has the wrong type says nothing."""

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
    """A call that has begun and not ended."""

    key: int
    name: str
    given: dict[str, Json] | None = None  # input as an object, the latest
    grown: bool = False


class KiroDecoder(Decoder):
    """Frames to events. Raises UpstreamViolation for what the dialect does not allow."""

    def __init__(
        self, asked: Conversation, environment: Environment, counting: KiroSettings, keys: ev.BlockKeys | None = None
    ) -> None:
        self._size = estimate_input_tokens(asked)  # of the question, as we estimate it
        self._world = environment
        self._counting = counting
        self._begun = False
        self._over = False
        self._id = ""
        self._asked_model = self._model = asked.model
        self._keys = keys or ev.BlockKeys()
        self._said = False  # a block has begun
        self._open: int | None = None  # the key of the text or thought that is open
        self._kind: type[Block] = Text  # of it
        self._signature = ev.TextBuffer(self._keys.budget)
        self._uses: dict[str, _Use] = {}
        self._last_use = ""
        self._ended: set[str] = set()  # ids of calls
        self._reason = ""
        self._percentage: float | None = None
        self._told: Usage | None = None  # exact counts, if the service gave any
        self._metering: dict[str, Json] = {}
        self._output = TokenCounter()
        self._reasoning = TokenCounter()

    @property
    def is_open(self) -> bool:
        return self._open is not None or bool(self._uses)

    def feed(self, frame: Frame) -> ev.Events | None:
        if self._over:
            raise OutOfOrder("the stream is over", at=frame.kind)
        handler = None if frame.error else _HANDLERS.get(frame.kind)
        if handler is None:
            return self._unknown(frame)
        try:
            said = handler.decode(frame.data)
        except jsonio.DECODE_ERRORS:  # an error, a payload in its own name, unknown fields, or no such event
            body = _object(frame)
            if _is_error(body):
                return self._exception("", body)
            said = handler.read(Fields(body, frame.kind, MissingField))
        return handler.take(self, said, frame.kind)

    def lane(self, kind: type[ev.Delta], key: int) -> LaneSource | None:
        if key == self._open:
            if self._kind is Text:
                return LaneSource("assistantResponseEvent", _decode_content, attrgetter("content"), self._output.add)
            of_thought = LaneSource("reasoningContentEvent", _decode_thought, _only_text, self._count_thought)
            return None if self._signature else of_thought
        last = self._last_use
        use = self._uses.get(last)

        def input_of(piece: _Piece) -> str | None:
            more = piece.input if piece.toolUseId == last and not piece.stop else None
            return more if isinstance(more, str) else None

        if use is None or use.key != key or not use.grown:
            return None
        return LaneSource("toolUseEvent", _decode_piece, input_of, self._output.add)

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

    def _turn_to(self, kind: type[Block] | None) -> list[ev.Event]:
        """Begin the answer if it has not begun, and end the text or thought that is open if it is of another kind."""
        events: list[ev.Event] = []
        if not self._begun:
            self._begun = True
            usage = Usage(self._size, estimated=True)
            events.append(ev.Started(self._id or self._world.new_id("msg_"), self._model, usage))
        if self._open is not None and self._kind is not kind:
            if self._signature:
                events.append(ev.SignatureAdded(self._open, Signature(FAMILY, self._signature.take())))
            events.append(ev.BlockEnded(self._open))
            self._open = None
        return events

    def _about(self, said: Any, kind: str) -> ev.Events:
        """An event about the answer as a whole: `said` is an _About, or what the credits are."""
        if kind == "meteringEvent":
            self._metering = to_builtins(said)
            return ()
        if kind == "messageMetadataEvent":
            if not self._id and isinstance(said.utteranceId, str):
                self._id = said.utteranceId
            return ()
        counts, percentage, has_counts = said.tokenUsage, said.contextUsagePercentage, False
        if kind != "contextUsageEvent":
            if said.stopReason and isinstance(said.stopReason, str):
                self._reason = said.stopReason
            has_counts, percentage = isinstance(counts, dict), None
            if has_counts:
                percentage = counts.get("contextUsagePercentage")
                self._told = exclusive_usage(*(parse_token_count(counts.get(name)) for name in _COUNTS))
        if type(percentage) in (int, float) and 0 <= percentage < _MOST_PERCENT:
            self._percentage, has_counts = float(percentage), True
        begun = self._turn_to(self._kind)
        return (*begun, ev.UsageReported(self._usage())) if has_counts else tuple(begun)

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
            usage = Usage(self._size, output, reasoning=reasoning, estimated=True)
        if self._metering:  # credits: nothing is lost where they mean nothing
            usage = structs.replace(usage, extra=Extra(FAMILY, {"metering": self._metering}, _CREDITS))
        return usage

    def _end(self, why: StopReason | None = None) -> ev.Events:
        """All that is open ends, and with it the answer. An open call was cut."""
        cut = bool(self._uses)
        events = self._turn_to(None)
        events += [ev.BlockEnded(use.key, is_complete=False) for use in self._uses.values()]
        self._uses.clear()
        if self._reason in _MALFORMED and (self._reason == _LOST_CALL or not self._said):
            return (ev.Failed(Fault("server", f"the model's answer was unusable ({self._reason})")),)
        return (*events, ev.Stopped(self._stop(why, cut)), ev.UsageReported(self._usage()), ev.FINISHED)

    def _stop(self, why: StopReason | None, cut: bool) -> Stop:
        if why or cut:
            return Stop(why or StopReason.LENGTH)
        if self._reason in STOP_REASONS:
            return Stop(STOP_REASONS[self._reason])
        extra = Extra(FAMILY, {"stopReason": self._reason}) if self._reason else None
        if self._ended:
            return Stop(StopReason.TOOL, extra=extra)
        full = self._percentage is not None and self._percentage >= 100
        return Stop(StopReason.CONTEXT if full else StopReason.END, extra=extra)

    def _exception(self, kind: str, body: dict[str, Json]) -> ev.Events:
        self._over = True
        fault = fault_of(body, kind, sizes=lambda: (self._size, find_model(self._asked_model).window))
        if kind == _TOO_LONG and self._said:  # it had begun to answer: the answer grew too long, not the question
            return self._end(StopReason.LENGTH)
        return (ev.Failed(fault),)

    def _unknown(self, frame: Frame) -> ev.Events:
        """An exception, or a frame of an unknown kind, which may be no JSON.

        An exception whose body cannot be read is a failure all the same. A frame without a kind may hold a known event
        by name.
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

    def _content(self, said: _Content, _kind: str) -> ev.Events:
        self._model = said.modelId or self._model
        if not said.content:
            return ()
        events = self._turn_to(Text)
        if self._open is None:
            self._open, self._kind, self._said = self._keys.fresh(), Text, True
            events.append(ev.BlockStarted(self._open, Text("")))
        self._output.add(said.content)
        return (*events, ev.TextDelta(self._open, said.content))

    def _reasoned(self, said: _Thought, _kind: str) -> ev.Events:
        is_other = said.redactedContent or (said.text and self._signature)  # what was signed is over
        events = self._turn_to(None if is_other else Reasoning)
        if said.redactedContent:
            key, self._said = self._keys.fresh(), True
            thought, signature = Reasoning("", FAMILY), Signature(FAMILY, said.redactedContent, "redacted")
            events += (ev.BlockStarted(key, thought), ev.SignatureAdded(key, signature), ev.BlockEnded(key))
        if (said.text or said.signature) and self._open is None:
            self._open, self._kind, self._said = self._keys.fresh(), Reasoning, True
            events.append(ev.BlockStarted(self._open, Reasoning("", FAMILY)))
        if said.text and self._open is not None:
            self._count_thought(said.text)
            events.append(ev.ReasoningDelta(self._open, said.text))
        if said.signature:
            self._signature.add(said.signature)
        return tuple(events)

    # --- calls

    def _tool_use(self, piece: _Piece, kind: str) -> ev.Events:
        """A piece of a call. One without an id belongs to the call that came last (facts 3.3, no. 1)."""
        call_id, value = piece.toolUseId or self._last_use, piece.input
        use = self._uses.get(call_id)
        if not piece.toolUseId:
            named = piece.name not in (UNSET, None)
            if use is None and piece.stop and not value and not named:
                return ()  # the end of a call that has ended
            if use is None or (named and piece.name not in ("", use.name)):
                raise MissingField("expected a string that is not empty", at=f"{kind}.toolUseId")
        if call_id in self._ended:
            return ()  # it came twice
        events: list[ev.Event] = []
        if use is None:
            if is_blank(call_id) or not isinstance(piece.name, str) or is_blank(piece.name):
                _refuse_unnamed(piece, kind)
            call = ToolCall(call_id, piece.name)
            use = self._uses[call_id] = _Use(self._keys.fresh(call), call.name)
            self._said = True
            events += (*self._turn_to(None), ev.BlockStarted(use.key, call))
        self._last_use = call_id
        if isinstance(value, dict):
            if value and not use.grown:
                self._keys.budget.reserve(ev.json_size(value) - ev.json_size(use.given))
                use.given = value
        elif isinstance(value, str):
            if value:
                use.grown, use.given = True, None
                events.append(ev.ArgumentsDelta(use.key, value))
                self._output.add(value)
        elif value is not None:
            raise MissingField("expected a string", at=f"{kind}.input")
        if piece.stop:
            del self._uses[call_id]
            self._ended.add(call_id)
            if not use.grown:
                arguments = jsonio.encode(use.given or {}).decode()  # a call without arguments has no input at all
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
        raise BadFrame("expected an object", at=frame.kind)
    inner = body.get(frame.kind)
    return inner if isinstance(inner, dict) and len(body) == 1 else body  # some wrap the payload in its own name


def _is_error(body: dict[str, Json]) -> bool:
    """An error that came as an ordinary event (facts 3.3, no. 13)."""
    return "__type" in body or "_type" in body or ("error" in body and "message" in body)


def _refuse_unnamed(piece: _Piece, kind: str) -> None:
    """Raise for the id or the name of a call, of which one is missing or blank."""
    fields = Fields(to_builtins(piece), kind, MissingField)
    fields.identifier("toolUseId")
    fields.identifier("name")


def _only_text(piece: _Thought) -> str | None:
    return piece.text if piece.signature is None and piece.redactedContent is None else None


# --- what is not exactly of the shape of its event: unknown fields are left out, what is wrong is named


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
    decode: Callable[[bytes], Any]  # of a payload that is exactly of the event's shape
    read: Callable[[Fields], Any]  # of any other
    take: Callable[[KiroDecoder, Any, str], ev.Events]


_decode_content = jsonio.strict_decoder(_Content)
_decode_thought = jsonio.strict_decoder(_Thought)
_decode_piece = jsonio.strict_decoder(_Piece)
# Of the class: bound methods would keep their decoder, and the question in it, until the next collection.
_OF_TEXT = _Handler(_decode_content, _read_content, KiroDecoder._content)
_ABOUT = _Handler(jsonio.strict_decoder(_About), _read_about, KiroDecoder._about)
_HANDLERS: dict[str, _Handler] = {
    "assistantResponseEvent": _OF_TEXT,
    "codeEvent": _OF_TEXT,
    "reasoningContentEvent": _Handler(_decode_thought, _read_thought, KiroDecoder._reasoned),
    "toolUseEvent": _Handler(_decode_piece, _read_piece, KiroDecoder._tool_use),
    "contextUsageEvent": _ABOUT,
    "metadataEvent": _ABOUT,
    "messageStopEvent": _ABOUT,
    "messageMetadataEvent": _ABOUT,
    "meteringEvent": _Handler(jsonio.strict_decoder(_Metering), Fields.rest, KiroDecoder._about),
}
