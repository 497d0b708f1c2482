"""Whole replies, both directions, and what they share with streams: usage and the reason to stop."""

from __future__ import annotations

from dragoman.dialects.base import World
from dragoman.dialects.bedrock.blocks import parse_block, render_block
from dragoman.dialects.bedrock.nodes import FAMILY, extra_of, own_fields, with_extra
from dragoman.dialects.kit.settings import guards_depth
from dragoman.dialects.kit.values import reply_fields
from dragoman.errors import BadFrame, Fault, LocalMisuse, UpstreamFault
from dragoman.model.blocks import Block, Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import (
    Choice,
    Conversation,
    Reply,
    Stop,
    Usage,
    Why,
    count,
    exclusive_usage,
    known_stop,
    to_keep,
)
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

_REASONS = {
    "end_turn": Why.END,
    "tool_use": Why.TOOL,
    "max_tokens": Why.LENGTH,
    "stop_sequence": Why.SEQUENCE,
    "content_filtered": Why.REFUSAL,
    "guardrail_intervened": Why.REFUSAL,
    "model_context_window_exceeded": Why.CONTEXT,
}
_SAID = {
    **{why: reason for reason, why in _REASONS.items() if reason != "guardrail_intervened"},
    Why.PAUSE: "end_turn",
}
_LOST_CALL = "malformed_tool_use"  # the service dropped a call of the model
_MALFORMED = ("malformed_model_output", _LOST_CALL)
# What the service says about an answer beside its tokens, whole and streamed alike.
_ASIDE = ("metrics", "trace", "performanceConfig", "serviceTier")
_SPELLING = frozenset({"metrics"})  # how long it took is nothing that an answer says

# --- reading


@guards_depth(BadFrame, "the reply is nested too deeply")
def parse_reply(body: bytes, asked: Conversation) -> Reply:
    """Read a whole reply. Raises UpstreamViolation, or UpstreamFault for an answer that the service calls malformed."""
    fields = reply_fields(body)
    output = fields.child("output")
    message = output.child("message")
    message.any("role")
    blocks = tuple(map(_block, message.children("content")))
    if (fault := malformed_fault(fields.peek("stopReason"), said=any(map(usable, blocks)))) is not None:
        raise UpstreamFault(fault.message, fault=fault)
    stop, usage = parse_stop(fields), parse_usage(fields)
    kept = to_keep(fields.rest())
    if inner := (output.rest() | ({"message": more} if (more := message.rest()) else {})):
        kept["output"] = inner
    return Reply("", asked.model, (Choice(blocks, stop),), usage, extra=extra_of(kept))


def _block(fields: Fields) -> Block:
    """A block of an answer. Media and results in answers belong to this service alone: they come from its own tools."""
    whole = fields.rest()
    block = parse_block(fields)
    if isinstance(block, Media | ToolResult):
        return Opaque(FAMILY, whole, next(iter(whole)), at=block.at)
    return block


def usable(block: Block) -> bool:
    """Whether a block is worth an answer, though the service calls it malformed."""
    return bool(block.text.strip()) if isinstance(block, Text | Reasoning) else isinstance(block, ToolCall | Opaque)


def malformed_fault(reason: Json, *, said: bool) -> Fault | None:
    """Return the fault of an answer that the service could not read; None for one that it could.

    `said`: the answer has usable content. Content makes it an answer, unless the service dropped a call (D7).
    """
    if reason not in _MALFORMED or (said and reason != _LOST_CALL):
        return None
    what = "tool call" if reason == _LOST_CALL else "answer"
    return Fault("server", f"the model's {what} could not be read by the service ({reason})", 502)


def parse_stop(fields: Fields) -> Stop:
    """Why the model stopped. A reason that we do not know is an end, and keeps its name."""
    reason = fields.text("stopReason", None)
    kept: dict[str, Json] = {}
    if reason is not None and (reason not in _REASONS or reason == "guardrail_intervened"):
        kept["stopReason"] = reason
    more = fields.any("additionalModelResponseFields")
    sequence = more.get("stop_sequence") if isinstance(more, dict) else None
    if isinstance(more, dict) and isinstance(sequence, str):
        more = {name: value for name, value in more.items() if name != "stop_sequence"} or None
    if more is not None:
        kept["additionalModelResponseFields"] = more
    why = _REASONS.get(reason or "") or known_stop(reason or "") or Why.END
    return Stop(why, sequence if isinstance(sequence, str) else None, extra_of(kept))


def parse_usage(fields: Fields) -> Usage | None:
    """Token counts, and what the service says beside them."""
    aside: dict[str, Json] = {name: value for name in _ASIDE if (value := fields.any(name)) is not None}
    usage = fields.any("usage")
    if not isinstance(usage, dict):
        return Usage(extra=extra_of(aside, _SPELLING)) if aside else None
    if rest := {name: value for name, value in usage.items() if name not in {*_COUNTS, *_ALSO}}:
        aside["usage"] = rest
    counts = (count(usage.get(name)) for name in _COUNTS)
    return exclusive_usage(*counts, extra=extra_of(aside, _SPELLING))


_COUNTS = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
_ALSO = ("totalTokens", "cacheReadInputTokenCount", "cacheWriteInputTokenCount")  # the same figures again


# --- rendering


def render_reply(reply: Reply, asked: Conversation, world: World) -> bytes:
    """Say a whole reply."""
    if len(reply.choices) != 1:
        raise LocalMisuse(f"a reply has one choice here, not {len(reply.choices)}")
    choice = reply.choices[0]
    content: list[Json] = [render_block(block, LocalMisuse) for block in choice.blocks]
    body: dict[str, Json] = {"output": {"message": {"role": "assistant", "content": content}}}
    body |= render_stop(choice.stop)
    body |= render_usage(reply.usage or Usage())
    return jsonio.encode(with_extra(body, reply.extra))


def render_stop(stop: Stop) -> dict[str, Json]:
    body: dict[str, Json] = {"stopReason": _SAID[stop.why]}
    if stop.sequence is not None:
        body["additionalModelResponseFields"] = {"stop_sequence": stop.sequence}
    if stop.why in (Why.END, Why.REFUSAL):
        return with_extra(body, stop.extra)
    # A reason that a filter has changed since is no longer what the service said.
    kept = {name: value for name, value in own_fields(stop.extra).items() if name != "stopReason"}
    return with_extra(body, extra_of(kept))


def render_usage(usage: Usage) -> dict[str, Json]:
    """Usage and its company. The total counts everything, as the service's does."""
    total = usage.input + usage.output + usage.cache_read + usage.cache_write
    counts: dict[str, Json] = {"inputTokens": usage.input, "outputTokens": usage.output, "totalTokens": total}
    if usage.cache_read or usage.cache_write:
        counts |= {"cacheReadInputTokens": usage.cache_read, "cacheWriteInputTokens": usage.cache_write}
    return with_extra({"usage": counts, "metrics": {"latencyMs": 0}}, usage.extra)
