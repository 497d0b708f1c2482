"""Whole replies, both directions, and what they share with streams: usage and the reason to stop."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.dialects.anthropic.blocks import (
    FAMILY,
    extra,
    extra_of,
    parse_redacted,
    parse_text,
    parse_thinking,
    parse_tool_use,
    render_block,
    with_extra,
)
from dragoman.dialects.anthropic.faults import fault_of
from dragoman.dialects.base import World
from dragoman.dialects.kit.values import reply_fields
from dragoman.errors import BadFrame, Fault, Kind, LocalMisuse, UpstreamFault
from dragoman.model.blocks import Block, Extra, Opaque, Where, to_keep
from dragoman.model.conversation import Choice, Conversation, Reply, Stop, Usage, Why
from dragoman.model.usage import count, exclusive_usage, failure_kind, first_count, known_stop
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

_REASONS = {
    "end_turn": Why.END,
    "tool_use": Why.TOOL,
    "max_tokens": Why.LENGTH,
    "stop_sequence": Why.SEQUENCE,
    "refusal": Why.REFUSAL,
    "model_context_window_exceeded": Why.CONTEXT,
    "pause_turn": Why.PAUSE,
}
_SAID = {why: reason for reason, why in _REASONS.items()}
_KINDS: dict[str, Callable[[Fields], Block]] = {
    "text": parse_text,
    "thinking": parse_thinking,
    "redacted_thinking": parse_redacted,
    "tool_use": parse_tool_use,
}

# --- reading


def parse_reply(body: bytes, asked: Conversation) -> Reply:
    """Read a whole reply. Raises UpstreamViolation, or UpstreamFault if it is an error after all."""
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
    message_id, model, kept = parse_envelope(fields, asked)
    return Reply(message_id, model, (Choice(blocks, stop),), counts, extra=kept)


def parse_envelope(fields: Fields, asked: Conversation) -> tuple[str, str, Extra | None]:
    """The message's id, its model and its unknown fields. An upstream may leave out the first two."""
    for name in ("type", "role", "usage"):
        fields.any(name)
    message_id, model = fields.text("id", ""), fields.text("model", "") or asked.model
    drop_null(fields, "container")
    return message_id, model, extra(fields)


def _block(fields: Fields) -> Block:
    kind = fields.peek("type")
    if not isinstance(kind, str):
        kind = fields.text("type")
    read = _KINDS.get(kind)
    return read(fields) if read else Opaque(FAMILY, fields.rest(), kind, at=Where(fields.at))


def parse_stop(fields: Fields) -> Stop:
    """Why the model stopped. A reason that we do not know is an end, and keeps its name."""
    reason, sequence = fields.text("stop_reason", None), fields.text("stop_sequence", None)
    kept: dict[str, Json] = {}
    if reason is not None and reason not in _REASONS:
        kept["stop_reason"] = reason
    drop_null(fields, "stop_details")
    if fields.has("stop_details") and (details := fields.any("stop_details")) is not None:
        kept["stop_details"] = details
    if (kind := failure_kind(reason or "")) is not None:
        raise UpstreamFault(f"the upstream stopped because of an error ({reason})", fault=_stopped(kind, str(reason)))
    return Stop(_REASONS.get(reason or "") or known_stop(reason or "") or Why.END, sequence, extra_of(kept))


def _stopped(kind: Kind, reason: str) -> Fault:
    return Fault(kind, f"the upstream stopped because of an error ({reason})", code=reason)


def drop_null(fields: Fields, name: str) -> None:
    """Forget a known field that says nothing; `null` is how the service spells its absence."""
    if fields.peek(name) is None:
        fields.any(name)


def parse_usage(told: Json, before: Usage | None = None) -> Usage | None:
    """Read token counts. Those of a stream are totals: what a later report leaves out, or where it has only zeros for a
    whole side (input, output), is as it was `before`.
    """
    if not isinstance(told, dict):
        return before
    before = before or Usage()
    details, split = (told.get(name) for name in (_DETAILS, "cache_creation"))
    ttls = [count(each) for each in split.values()] if isinstance(split, dict) else []
    fresh, read, write = (_or(told.get(name), was) for name, was in zip(_INPUT, _input(before), strict=True))
    write = write or sum(ttls)
    if not first_count(*map(told.get, _INPUT), *ttls):
        fresh, read, write = _input(before)
    thought = details.get("thinking_tokens") if isinstance(details, dict) else None
    rest = {name: value for name, value in told.items() if name not in {*_INPUT, "output_tokens", _DETAILS}}
    if isinstance(details, dict) and (unknown := {k: v for k, v in details.items() if k != "thinking_tokens"}):
        rest[_DETAILS] = unknown
    extra = extra_of({**(before.extra.fields if before.extra else {}), **to_keep(rest)})
    output = _or(told.get("output_tokens"), before.output) or before.output
    return exclusive_usage(fresh, output, read, write, _or(thought, before.reasoning), extra=extra)


_INPUT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_DETAILS = "output_tokens_details"


def _input(usage: Usage) -> tuple[int, int, int]:
    return usage.input, usage.cache_read, usage.cache_write


def _or(value: Json, otherwise: int) -> int:
    return otherwise if value is None else count(value)


# --- rendering


def render_reply(reply: Reply, asked: Conversation, world: World) -> bytes:
    """Say a whole reply."""
    if len(reply.choices) != 1:
        raise LocalMisuse(f"a reply has one choice here, not {len(reply.choices)}")
    choice = reply.choices[0]
    body = render_envelope(reply.id or world.new_id("msg_"), reply.model or asked.model)
    body["content"] = [render_block(block, LocalMisuse) for block in choice.blocks]
    body |= render_stop(choice.stop)
    body["usage"] = render_usage(reply.usage or Usage())
    return jsonio.encode(with_extra(body, reply.extra))


def render_envelope(message_id: str, model: str) -> dict[str, Json]:
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
    return with_extra({"stop_reason": _SAID[stop.why], "stop_sequence": stop.sequence}, stop.extra)


def render_usage(usage: Usage) -> dict[str, Json]:
    body: dict[str, Json] = {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }
    if usage.reasoning:
        body["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return with_extra(body, usage.extra)
