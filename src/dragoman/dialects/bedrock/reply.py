"""Whole replies, both directions, and what they share with streams: usage, the reason to stop, errors."""

from __future__ import annotations

from dragoman.dialects.base import Environment
from dragoman.dialects.bedrock.blocks import parse_block, render_block
from dragoman.dialects.bedrock.nodes import EXTRAS, FAMILY
from dragoman.dialects.kit.faults import FaultTable, unreadable_message
from dragoman.dialects.kit.settings import guard_depth
from dragoman.dialects.kit.values import decoded, members, reply_fields, text
from dragoman.errors import BadFrame, ErrorKind, Fault, LocalMisuse, UpstreamFault
from dragoman.model.blocks import Block, Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import (
    Choice,
    Conversation,
    Reply,
    Stop,
    StopReason,
    Usage,
    exclusive_usage,
    find_stop_reason,
    parse_token_count,
    to_extra_names,
)
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame, Payload
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

_REASONS = {
    "end_turn": StopReason.END,
    "tool_use": StopReason.TOOL,
    "max_tokens": StopReason.LENGTH,
    "stop_sequence": StopReason.SEQUENCE,
    "content_filtered": StopReason.REFUSAL,
    "guardrail_intervened": StopReason.REFUSAL,
    "model_context_window_exceeded": StopReason.CONTEXT,
}
_SAID = {
    **{why: reason for reason, why in _REASONS.items() if reason != "guardrail_intervened"},
    StopReason.PAUSE: "end_turn",
}
_LOST_CALL = "malformed_tool_use"  # the service dropped a call of the model
_MALFORMED = ("malformed_model_output", _LOST_CALL)
# What the service says about an answer beside its tokens, whole and streamed alike.
_ASIDE = ("metrics", "trace", "performanceConfig", "serviceTier")
_SPELLING = frozenset({"metrics"})  # how long it took is nothing that an answer says

# --- reading


@guard_depth(BadFrame, "the reply is nested too deeply")
def parse_reply(body: bytes, asked: Conversation) -> Reply:
    """Read a whole reply. Raises UpstreamViolation, or UpstreamFault for an answer that the service calls malformed."""
    fields = reply_fields(body)
    output = fields.child("output")
    message = output.child("message")
    message.any("role")
    blocks = tuple(map(_block, message.children("content")))
    if (fault := malformed_fault(fields.peek("stopReason"), said=any(map(is_usable, blocks)))) is not None:
        raise UpstreamFault(fault.message, fault=fault)
    stop, usage = parse_stop(fields), parse_usage(fields)
    kept = to_extra_names(fields.rest())
    if inner := (output.rest() | ({"message": more} if (more := message.rest()) else {})):
        kept["output"] = inner
    return Reply("", asked.model, (Choice(blocks, stop),), usage, extra=EXTRAS.extra_of(kept))


def _block(fields: Fields) -> Block:
    """A block of an answer. Media and results in answers belong to this service alone: they come from its own tools."""
    whole = fields.rest()
    block = parse_block(fields)
    if isinstance(block, Media | ToolResult):
        return Opaque(FAMILY, whole, next(iter(whole)), at=block.at)
    return block


def is_usable(block: Block) -> bool:
    """Whether a block is worth an answer, though the service calls it malformed."""
    return bool(block.text.strip()) if isinstance(block, Text | Reasoning) else isinstance(block, ToolCall | Opaque)


def malformed_fault(reason: Json, *, said: bool) -> Fault | None:
    """Return the fault of an answer that the service could not read; None for one that it could.

    `said`: the answer has usable content. Content makes it an answer, unless the service dropped a call
    (docs/decisions/answers.md#d7).
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
    why = _REASONS.get(reason or "") or find_stop_reason(reason or "") or StopReason.END
    return Stop(why, sequence if isinstance(sequence, str) else None, EXTRAS.extra_of(kept))


def parse_usage(fields: Fields) -> Usage | None:
    """Token counts, and what the service says beside them."""
    aside: dict[str, Json] = {name: value for name in _ASIDE if (value := fields.any(name)) is not None}
    usage = fields.any("usage")
    if not isinstance(usage, dict):
        return Usage(extra=EXTRAS.extra_of(aside, _SPELLING)) if aside else None
    if rest := {name: value for name, value in usage.items() if name not in {*_COUNTS, *_ALSO}}:
        aside["usage"] = rest
    counts = (parse_token_count(usage.get(name)) for name in _COUNTS)
    return exclusive_usage(*counts, extra=EXTRAS.extra_of(aside, _SPELLING))


_COUNTS = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
_ALSO = ("totalTokens", "cacheReadInputTokenCount", "cacheWriteInputTokenCount")  # the same figures again


# --- rendering


def render_reply(reply: Reply, asked: Conversation, environment: Environment) -> bytes:
    """Say a whole reply."""
    if len(reply.choices) != 1:
        raise LocalMisuse(f"a reply has one choice here, not {len(reply.choices)}")
    choice = reply.choices[0]
    content: list[Json] = [render_block(block, LocalMisuse) for block in choice.blocks]
    body: dict[str, Json] = {"output": {"message": {"role": "assistant", "content": content}}}
    body |= render_stop(choice.stop)
    body |= render_usage(reply.usage or Usage())
    return jsonio.encode(EXTRAS.with_extra(body, reply.extra))


def render_stop(stop: Stop) -> dict[str, Json]:
    body: dict[str, Json] = {"stopReason": _SAID[stop.reason]}
    if stop.sequence is not None:
        body["additionalModelResponseFields"] = {"stop_sequence": stop.sequence}
    if stop.reason in (StopReason.END, StopReason.REFUSAL):
        return EXTRAS.with_extra(body, stop.extra)
    # A reason that a filter has changed since is no longer what the service said.
    kept = {name: value for name, value in EXTRAS.own_fields(stop.extra).items() if name != "stopReason"}
    return EXTRAS.with_extra(body, EXTRAS.extra_of(kept))


def render_usage(usage: Usage) -> dict[str, Json]:
    """Usage and its company. The total counts everything, as the service's does."""
    total = usage.input + usage.output + usage.cache_read + usage.cache_write
    counts: dict[str, Json] = {"inputTokens": usage.input, "outputTokens": usage.output, "totalTokens": total}
    if usage.cache_read or usage.cache_write:
        counts |= {"cacheReadInputTokens": usage.cache_read, "cacheWriteInputTokens": usage.cache_write}
    return EXTRAS.with_extra({"usage": counts, "metrics": {"latencyMs": 0}}, usage.extra)


# --- Errors, both directions: HTTP refusals, whose type stands in a header, and exceptions in a stream


TYPE_HEADER = "x-amzn-errortype"

_TABLE = FaultTable(
    {
        "invalid": ("ValidationException", 400),
        "context_full": ("ValidationException", 400),
        "auth": ("UnrecognizedClientException", 403),
        "permission": ("AccessDeniedException", 403),
        "not_found": ("ResourceNotFoundException", 404),
        "timeout": ("ModelTimeoutException", 408),
        "too_large": ("RequestEntityTooLargeException", 413),
        "rate_limit": ("ThrottlingException", 429),
        "quota": ("ServiceQuotaExceededException", 400),
        "server": ("InternalServerException", 500),
        "overloaded": ("ServiceUnavailableException", 503),
    },
    {
        "ExpiredTokenException": "auth",
        "ExpiredToken": "auth",
        "InvalidSignatureException": "auth",
        "SignatureDoesNotMatch": "auth",
        "IncompleteSignatureException": "auth",
        "MissingAuthenticationTokenException": "auth",
        "InvalidClientTokenId": "auth",
        "TooManyRequestsException": "rate_limit",
        "ModelNotReadyException": "overloaded",
        "ModelErrorException": "server",
        "ModelStreamErrorException": "server",
        "InternalFailure": "server",
    },
    statuses={424: "server"},
)
fault_type = _TABLE.type_of
# One exception says several things; only its words tell them apart.
_BY_WORDS: tuple[tuple[ErrorKind, str, ErrorKind], ...] = (
    ("invalid", "input is too long", "context_full"),
    ("invalid", "prompt is too long", "context_full"),
    ("invalid", "too many input tokens", "context_full"),
    ("invalid", "exceeds the model's maximum context", "context_full"),
    ("invalid", "model identifier is invalid", "not_found"),
    ("permission", "security token included in the request", "auth"),
    ("permission", "signature", "auth"),
)
# What a person can do about it, where the service's own words do not say it.
_ADVICE: tuple[tuple[str, str], ...] = (
    ("token included in the request is expired", "the AWS credentials have expired: renew them (`aws sso login`)"),
    ("ExpiredToken", "the AWS credentials have expired: renew them (`aws sso login`)"),
    ("token included in the request is invalid", "AWS does not know these credentials: check the profile in use"),
    ("scoped to a valid region", "the request was signed for another region than the endpoint's: set the right region"),
    ("model identifier is invalid", "there is no such model in this region: check the id and the region"),
    ("on-demand throughput", "this model is reached by an inference profile: put us., eu. or apac. before its id"),
    ("don't have access to the model", "access to the model must be granted to the account, in this region"),
    ("ResourceNotFoundException", "there is no such model in this region: check the id and the region"),
)
# The only exceptions that a stream may hold, by kind, and what each means there.
_STREAM: dict[ErrorKind, str] = {
    "rate_limit": "throttlingException",
    "quota": "throttlingException",
    "overloaded": "serviceUnavailableException",
    "server": "internalServerException",
    "timeout": "modelStreamErrorException",
}
_IN_STREAM = frozenset(_STREAM.values()) | {"validationException"}


def parse_fault(response: HttpResponse, sent: Conversation | None = None) -> Fault:
    """What a refusal says, whoever sent it: the service, or a proxy on the way that speaks no JSON."""
    body = decoded(response.body)
    code = error_type(response.header(TYPE_HEADER)) or error_type(text(members(body).get("__type")))
    kind = _TABLE.by_type(code) or _TABLE.by_status(response.status)
    message = _message(body) or (
        f"the upstream refused ({code})" if code else unreadable_message(response, unquoted=("<", "{", "["))
    )
    return _told(kind, message, response.status, code, response.retry_after)


def exception_fault(frame: Frame) -> Fault:
    """What an exception in a stream says; one that is not in the service's model keeps its name and its words."""
    body = decoded(frame.data)
    code = frame.kind[:1].upper() + frame.kind[1:]
    kind = _TABLE.by_type(code) or "server"
    message = _message(body) or text(members(body).get("originalMessage"))
    return _told(kind, message or f"the upstream's stream failed ({frame.kind or 'no reason given'})", None, code, None)


def error_type(said: str) -> str:
    """The exception's name out of its header: what follows a colon is an address, what precedes a `#` a namespace."""
    return said.partition(":")[0].rpartition("#")[2].strip()


def render_fault(fault: Fault) -> bytes:
    """The body of a refusal. Its type is told by a header, or by the frame's own."""
    return jsonio.encode({"message": fault.message})


def status_of(fault: Fault) -> int:
    """The HTTP status that says this fault in this dialect."""
    if _TABLE.by_type(fault.code) == fault.kind and _TABLE.is_compatible(fault.status, fault.kind):
        return fault.status if 400 <= fault.status < 600 else _TABLE.default_status(fault.kind)
    return _TABLE.default_status(fault.kind)


def exception_payload(fault: Fault) -> Payload:
    """The exception that ends a stream. Only five are in the service's model, and clients know no others."""
    own = fault.code[:1].lower() + fault.code[1:]
    kind = own if own in _IN_STREAM else _STREAM.get(fault.kind, "validationException")
    body: dict[str, Json] = {"message": fault.message}
    if kind == "modelStreamErrorException":
        body |= {"originalStatusCode": fault.status, "originalMessage": fault.message}
    return Payload(kind.encode(), jsonio.encode(body), error=True)


def _told(kind: ErrorKind, message: str, status: int | None, code: str, wait: float | None) -> Fault:
    words = message.lower()
    kind = next((meant for of, said, meant in _BY_WORDS if of == kind and said in words), kind)
    advice = next((advice for sign, advice in _ADVICE if sign in message or sign in code), "")
    return Fault(
        kind, f"{message} ({advice})" if advice else message, status or _TABLE.default_status(kind), wait, code=code
    )


def _message(body: Json) -> str:
    return text(members(body).get("message") or members(body).get("Message"))
