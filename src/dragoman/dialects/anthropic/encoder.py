"""Parse and render whole replies of Anthropic's Messages API, and encode its streams as both SDKs accept them. Pure.

Each response has its own encoder. Blocks are numbered from 0 in the order of their starts. The encoder buffers two
things: the start of reasoning, until it is known whether it is redacted, and message_delta, until the end, because
token counts may come after the stop reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from dragoman.dialects.anthropic.blocks import (
    FAMILY,
    extra,
    extra_of,
    parse_redacted,
    parse_text,
    parse_thinking,
    parse_tool_use,
    render_block,
    render_citation,
    with_extra,
)
from dragoman.dialects.anthropic.faults import fault_of, render_fault
from dragoman.dialects.anthropic.tools import search_effects
from dragoman.dialects.anthropic.web_search import is_translated_search
from dragoman.dialects.base import Environment
from dragoman.dialects.kit.streams import ONE_CHOICE, EventWriters, NumberedEncoder
from dragoman.dialects.kit.values import reply_fields
from dragoman.errors import BadFrame, Fault, LocalMisuse, UpstreamFault
from dragoman.model import events as ev
from dragoman.model.blocks import Block, Extra, Location, Media, Opaque, Reasoning, Text, ToolCall
from dragoman.model.conversation import (
    Choice,
    Conversation,
    Reply,
    Stop,
    StopReason,
    Usage,
    exclusive_usage,
    failure_kind,
    find_stop_reason,
    first_token_count,
    parse_token_count,
    to_extra_names,
)
from dragoman.model.filter import LaneTarget
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Payload
from dragoman.wire.jsonio import Json

# --- Whole replies, and the parts that they share with streams: usage and stop reason


_REASONS = {
    "end_turn": StopReason.END,
    "tool_use": StopReason.TOOL,
    "max_tokens": StopReason.LENGTH,
    "stop_sequence": StopReason.SEQUENCE,
    "refusal": StopReason.REFUSAL,
    "model_context_window_exceeded": StopReason.CONTEXT,
    "pause_turn": StopReason.PAUSE,
}
_REASON_NAMES = {reason: name for name, reason in _REASONS.items()}
_KINDS: dict[str, Callable[[Fields], Block]] = {
    "text": parse_text,
    "thinking": parse_thinking,
    "redacted_thinking": parse_redacted,
    "tool_use": parse_tool_use,
}

# --- reading


def parse_reply(body: bytes, request: Conversation) -> Reply:
    """Read a whole reply. Raises UpstreamViolation, or UpstreamFault if the body is an error."""
    fields = reply_fields(body)
    if fields.peek("type") == "error":
        fault = fault_of(fields.rest())
        raise UpstreamFault(fault.message, fault=fault)
    stop = parse_stop(fields)
    try:
        blocks = tuple(map(_block, fields.children("content")))
    except RecursionError:
        raise BadFrame("the reply is nested too deeply") from None
    counts = parse_usage(fields.any("usage"))
    message_id, model, extra_fields = parse_envelope(fields, request)
    return Reply(message_id, model, (Choice(blocks, stop),), counts, extra=extra_fields)


def parse_envelope(fields: Fields, request: Conversation) -> tuple[str, str, Extra | None]:
    """Return the message's id, its model and its extra fields. An upstream may leave out the first two."""
    for name in ("type", "role", "usage"):
        fields.any(name)
    message_id, model = fields.text("id", ""), fields.text("model", "") or request.model
    drop_null(fields, "container")
    return message_id, model, extra(fields)


def _block(fields: Fields) -> Block:
    kind = fields.peek("type")
    if not isinstance(kind, str):
        kind = fields.text("type")
    read = _KINDS.get(kind)
    if read:
        return read(fields)
    data = fields.rest()
    return Opaque(FAMILY, data, kind, effects=search_effects(kind, data), at=Location(fields.at))


def parse_stop(fields: Fields) -> Stop:
    """Read the stop reason. An unknown reason means END and stays as an extra field.

    Raises UpstreamFault for a reason that means an error.
    """
    reason, sequence = fields.text("stop_reason", None), fields.text("stop_sequence", None)
    extra_fields: dict[str, Json] = {}
    if reason is not None and reason not in _REASONS:
        extra_fields["stop_reason"] = reason
    drop_null(fields, "stop_details")
    if fields.has("stop_details") and (details := fields.any("stop_details")) is not None:
        extra_fields["stop_details"] = details
    if (kind := failure_kind(reason or "")) is not None:
        message = f"the upstream stopped because of an error ({reason})"
        raise UpstreamFault(message, fault=Fault(kind, message, code=str(reason)))
    canonical = _REASONS.get(reason or "") or find_stop_reason(reason or "") or StopReason.END
    return Stop(canonical, sequence, extra_of(extra_fields))


def drop_null(fields: Fields, name: str) -> None:
    """Drop a known field that is null: the service writes null for an absent value."""
    if fields.peek(name) is None:
        fields.any(name)


def parse_usage(usage: Json, before: Usage | None = None) -> Usage | None:
    """Read token counts.

    Those of a stream are totals. A count that a later report leaves out keeps its value of `before`, and so do the
    input counts, or the output count, if the report has only zeros for them.
    """
    if not isinstance(usage, dict):
        return before
    before = before or Usage()
    details, split = (usage.get(name) for name in (_DETAILS, "cache_creation"))
    ttls = [parse_token_count(each) for each in split.values()] if isinstance(split, dict) else []
    fresh, read, write = (_or(usage.get(name), old) for name, old in zip(_INPUT, _input(before), strict=True))
    write = write or sum(ttls)
    if not first_token_count(*map(usage.get, _INPUT), *ttls):
        fresh, read, write = _input(before)
    thought = details.get("thinking_tokens") if isinstance(details, dict) else None
    rest = {name: value for name, value in usage.items() if name not in {*_INPUT, "output_tokens", _DETAILS}}
    if isinstance(details, dict) and (unknown := {k: v for k, v in details.items() if k != "thinking_tokens"}):
        rest[_DETAILS] = unknown
    extra = extra_of({**(before.extra.fields if before.extra else {}), **to_extra_names(rest)})
    output = _or(usage.get("output_tokens"), before.output) or before.output
    return exclusive_usage(fresh, output, read, write, _or(thought, before.reasoning), extra=extra)


_INPUT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_DETAILS = "output_tokens_details"


def _input(usage: Usage) -> tuple[int, int, int]:
    return usage.input, usage.cache_read, usage.cache_write


def _or(value: Json, default: int) -> int:
    return default if value is None else parse_token_count(value)


# --- rendering


def render_reply(reply: Reply, request: Conversation, environment: Environment) -> bytes:
    """Write a whole reply."""
    if len(reply.choices) != 1:
        raise LocalMisuse(f"an Anthropic reply can have only one choice, not {len(reply.choices)}")
    choice = reply.choices[0]
    body = render_envelope(reply.id or environment.new_id("msg_"), reply.model or request.model)
    body["content"] = [render_block(block, LocalMisuse) for block in choice.blocks]
    body |= render_stop(choice.stop)
    body["usage"] = render_usage(reply.usage or Usage(), sum(map(is_translated_search, choice.blocks)))
    return jsonio.encode(with_extra(body, reply.extra))


def render_envelope(message_id: str, model: str) -> dict[str, Json]:
    """Return the fields of a message without content."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def render_stop(stop: Stop) -> dict[str, Json]:
    """Return the fields of a stop reason."""
    return with_extra({"stop_reason": _REASON_NAMES[stop.reason], "stop_sequence": stop.sequence}, stop.extra)


def render_usage(usage: Usage, searches: int = 0) -> dict[str, Json]:
    """Return token counts as a usage object; `searches` are those of the web that another service made."""
    body: dict[str, Json] = {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }
    if usage.reasoning:
        body["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    if searches:
        body["server_tool_use"] = {"web_search_requests": searches, "web_fetch_requests": 0}
    return with_extra(body, usage.extra)


_PING = Payload(b"ping", b'{"type": "ping"}')
_STOP = Payload(b"message_stop", b'{"type":"message_stop"}')
_DELTA = b"content_block_delta"
_TEXT = b'{"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":%b}}'
_THINKING = b'{"type":"content_block_delta","index":%d,"delta":{"type":"thinking_delta","thinking":%b}}'
_INPUT_DELTA = b'{"type":"content_block_delta","index":%d,"delta":{"type":"input_json_delta","partial_json":%b}}'
_SIGNATURE = b'{"type":"content_block_delta","index":%d,"delta":{"type":"signature_delta","signature":%b}}'
_CITATION = b'{"type":"content_block_delta","index":%d,"delta":{"type":"citations_delta","citation":%b}}'
_START = b'{"type":"content_block_start","index":%d,"content_block":%b}'
_END = b'{"type":"content_block_stop","index":%d}'
_GROWING_INPUT = ("server_tool_use", "mcp_tool_use")  # blocks whose input clients read only from deltas

_BY_KIND: dict[type[ev.Delta], bytes] = {
    ev.TextDelta: _TEXT,
    ev.ReasoningDelta: _THINKING,
    ev.ArgumentsDelta: _INPUT_DELTA,
}


class AnthropicEncoder(NumberedEncoder):
    """Writes events as payloads; the module describes what it buffers."""

    family, delta, number = FAMILY, "content_block_delta", "index"
    passing = NumberedEncoder.passing | {
        (ev.BlockStarted, ev.SignatureAdded),
        (ev.UsageReported,),
        (ev.UsageReported, ev.Stopped),
        (ev.Finished,),
    }

    def __init__(
        self, request: Conversation, environment: Environment, budget: ev.ResponseBudget | None = None
    ) -> None:
        super().__init__()
        self._model = request.model  # Only the model: a long stream must not keep the request in memory.
        self._environment = environment
        self._reasoning: dict[int, bool] = {}  # keys of reasoning blocks; an empty dict is smaller than a set
        self._buffered: dict[int, Reasoning] = {}  # reasoning whose start is not yet sent
        self._stop = Stop(StopReason.END)
        self._searches = 0  # of the web, by another service
        self._delta_sent = False  # message_delta was sent

    def lane(self, kind: type[ev.Delta], key: int) -> LaneTarget | None:
        if key in self._buffered:
            return None
        before, after = (_BY_KIND[kind] % (self._index[key], b'""')).split(b'""')
        return LaneTarget(_DELTA, before, after)

    def passes(self, events: ev.Events) -> bool:
        if self._buffered or not super().passes(events):
            return False
        first = events[0]
        if isinstance(first, ev.BlockStarted) and isinstance(first.block, Reasoning):
            self._reasoning[first.key] = True
        elif isinstance(first, ev.Started):
            if not first.id or first.usage is None:
                return False  # Clients need both.
            self._usage = first.usage
        elif isinstance(first, ev.UsageReported):
            if len(events) == 1 and not self._delta_sent:
                return False  # Its frame may have a stop reason that a filter changed.
            self._usage, self._delta_sent = first.usage, True
        elif isinstance(first, ev.Finished):
            return self._delta_sent
        return True

    def ping(self) -> Payload:
        return _PING

    def _delta(self, event: ev.TextDelta | ev.ArgumentsDelta | ev.ReasoningDelta, out: list[Payload]) -> None:
        if event.key in self._buffered:
            self._release(event.key, out)
        out.append(Payload(_DELTA, _BY_KIND[type(event)] % (self._index[event.key], jsonio.quote(event.text))))

    def _started(self, event: ev.Started, out: list[Payload]) -> None:
        self._usage = event.usage
        message = render_envelope(event.id or self._environment.new_id("msg_"), event.model or self._model)
        message["usage"] = render_usage(event.usage or Usage())
        body: Json = {"type": "message_start", "message": with_extra(message, event.extra)}
        out.append(Payload(b"message_start", jsonio.encode(body)))

    def _block_started(self, event: ev.BlockStarted, out: list[Payload]) -> None:
        self.assign_number(event)
        key, block = event.key, event.block
        if isinstance(block, ToolCall):
            body: dict[str, Json] = {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
            self._start(key, with_extra(body, block.extra), out)
            if block.arguments:
                self._delta(ev.ArgumentsDelta(key, block.arguments), out)
        elif isinstance(block, Text):
            self._start(key, with_extra({"type": "text", "text": ""}, block.extra), out)
            if block.text:
                self._delta(ev.TextDelta(key, block.text), out)
        elif isinstance(block, Reasoning):
            self._reasoning[key] = True
            self._buffered[key] = block
        elif isinstance(block, Opaque):
            self._searches += is_translated_search(block)
            self._whole(key, render_block(block, LocalMisuse), out)
        elif isinstance(block, Media):
            self._start(key, render_block(block, LocalMisuse), out)

    def _whole(self, key: int, body: dict[str, Json], out: list[Payload]) -> None:
        input_ = body.get("input")
        if body.get("type") in _GROWING_INPUT and input_:
            self._start(key, {**body, "input": {}}, out)
            self._delta(ev.ArgumentsDelta(key, jsonio.encode(input_).decode()), out)
        else:
            self._start(key, body, out)

    def _start(self, key: int, body: dict[str, Json], out: list[Payload]) -> None:
        out.append(Payload(b"content_block_start", _START % (self._index[key], jsonio.encode(body))))

    def _release(self, key: int, out: list[Payload]) -> None:
        """Write the buffered start of reasoning, which is not redacted."""
        block = self._buffered.pop(key)
        self._start(key, with_extra({"type": "thinking", "thinking": "", "signature": ""}, block.extra), out)
        if block.text:
            self._delta(ev.ReasoningDelta(key, block.text), out)

    def _signed(self, event: ev.SignatureAdded, out: list[Payload]) -> None:
        key, signature = event.key, event.signature
        block = self._buffered.get(key)
        if signature.kind == "redacted" and block is not None and not block.text:
            del self._buffered[key]
            self._start(key, with_extra({"type": "redacted_thinking", "data": signature.data}, block.extra), out)
        elif signature.kind == "signature" and key in self._reasoning:
            if block is not None:
                self._release(key, out)
            out.append(Payload(_DELTA, _SIGNATURE % (self._index[key], jsonio.quote(signature.data))))
        else:
            raise LocalMisuse(f"an Anthropic block of this type cannot have the {signature.kind} of {signature.family}")

    def _cited(self, event: ev.CitationAdded, out: list[Payload]) -> None:
        data = jsonio.encode(render_citation(event.citation, LocalMisuse))
        out.append(Payload(_DELTA, _CITATION % (self._index[event.key], data)))

    def _block_ended(self, event: ev.BlockEnded, out: list[Payload]) -> None:
        if event.key in self._buffered:
            self._release(event.key, out)
        out.append(Payload(b"content_block_stop", _END % self._index[event.key]))

    def _ending(self, event: ev.UsageReported | ev.Stopped | ev.Finished, out: list[Payload]) -> None:
        """Record token counts and stop reason, and write them at the end."""
        if isinstance(event, ev.UsageReported):
            self._usage = event.usage
        elif isinstance(event, ev.Stopped):
            if event.choice:
                raise LocalMisuse(ONE_CHOICE)
            self._stop = event.stop
        else:
            if not self._delta_sent:
                usage: Json = render_usage(self._usage, self._searches) if self._usage else {"output_tokens": 0}
                body: Json = {"type": "message_delta", "delta": render_stop(self._stop), "usage": usage}
                out.append(Payload(b"message_delta", jsonio.encode(body)))
            out.append(_STOP)

    def _failed(self, event: ev.Failed, out: list[Payload]) -> None:
        out.append(Payload(b"error", render_fault(event.fault), error=True))

    writers: ClassVar[EventWriters] = {
        ev.TextDelta: _delta,
        ev.ArgumentsDelta: _delta,
        ev.ReasoningDelta: _delta,
        ev.Started: _started,
        ev.BlockStarted: _block_started,
        ev.SignatureAdded: _signed,
        ev.CitationAdded: _cited,
        ev.BlockEnded: _block_ended,
        ev.UsageReported: _ending,
        ev.Stopped: _ending,
        ev.Finished: _ending,
        ev.Failed: _failed,
        ev.OpaqueEvent: NumberedEncoder.render_opaque_event,
    }
