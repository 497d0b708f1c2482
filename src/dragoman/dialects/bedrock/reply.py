"""Parse and render whole replies of Bedrock Converse; also usage, stop reasons and errors of streams. Pure."""

from __future__ import annotations

from dragoman.dialects.base import Environment
from dragoman.dialects.bedrock.blocks import parse_block, render_block
from dragoman.dialects.bedrock.nodes import EXTRAS, FAMILY
from dragoman.dialects.kit.faults import FaultTable, refusal_message, unreadable_message
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
_REASON_NAMES = {
    **{reason: name for name, reason in _REASONS.items() if name != "guardrail_intervened"},
    StopReason.PAUSE: "end_turn",
}
_LOST_CALL = "malformed_tool_use"  # the service dropped a call of the model
_MALFORMED = ("malformed_model_output", _LOST_CALL)
# Fields that come with the usage, in whole replies and in streams.
_WITH_USAGE = ("metrics", "trace", "performanceConfig", "serviceTier")
_SPELLING = frozenset({"metrics"})  # Durations are not content: other dialects lose nothing without them.

# --- reading


@guard_depth(BadFrame, "the reply is nested too deeply")
def parse_reply(body: bytes, request: Conversation) -> Reply:
    """Read a whole reply. Raises UpstreamViolation, or UpstreamFault for a reply that the service calls malformed."""
    fields = reply_fields(body)
    output = fields.child("output")
    message = output.child("message")
    message.any("role")
    blocks = tuple(map(_block, message.children("content")))
    if (fault := malformed_fault(fields.peek("stopReason"), has_content=any(map(is_usable, blocks)))) is not None:
        raise UpstreamFault(fault.message, fault=fault)
    stop, usage = parse_stop(fields), parse_usage(fields)
    rest = to_extra_names(fields.rest())
    if inner := (output.rest() | ({"message": more} if (more := message.rest()) else {})):
        rest["output"] = inner
    return Reply("", request.model, (Choice(blocks, stop),), usage, extra=EXTRAS.extra_of(rest))


def _block(fields: Fields) -> Block:
    """Read a block of a reply. Media and results come from tools of the service, so they are opaque."""
    whole = fields.rest()
    block = parse_block(fields)
    if isinstance(block, Media | ToolResult):
        return Opaque(FAMILY, whole, next(iter(whole)), at=block.at)
    return block


def is_usable(block: Block) -> bool:
    """Return whether a block makes a reply usable even if the service calls the reply malformed."""
    return bool(block.text.strip()) if isinstance(block, Text | Reasoning) else isinstance(block, ToolCall | Opaque)


def malformed_fault(reason: Json, *, has_content: bool) -> Fault | None:
    """Return the fault of a reply whose stop reason says that the service could not read the model's output.

    Returns None for other reasons, and for a reply with usable content, unless the service dropped a call
    (docs/decisions/responses.md#d7).
    """
    if reason not in _MALFORMED or (has_content and reason != _LOST_CALL):
        return None
    what = "tool call" if reason == _LOST_CALL else "reply"
    return Fault("server", f"the service could not read the model's {what} ({reason})", 502)


def parse_stop(fields: Fields) -> Stop:
    """Read the stop reason. An unknown reason means END and stays as an extra field."""
    reason = fields.text("stopReason", None)
    rest: dict[str, Json] = {}
    if reason is not None and (reason not in _REASONS or reason == "guardrail_intervened"):
        rest["stopReason"] = reason
    more = fields.any("additionalModelResponseFields")
    sequence = more.get("stop_sequence") if isinstance(more, dict) else None
    if isinstance(more, dict) and isinstance(sequence, str):
        more = {name: value for name, value in more.items() if name != "stop_sequence"} or None
    if more is not None:
        rest["additionalModelResponseFields"] = more
    canonical = _REASONS.get(reason or "") or find_stop_reason(reason or "") or StopReason.END
    return Stop(canonical, sequence if isinstance(sequence, str) else None, EXTRAS.extra_of(rest))


def parse_usage(fields: Fields) -> Usage | None:
    """Read token counts, and as extra fields the other fields that come with them."""
    extra: dict[str, Json] = {name: value for name in _WITH_USAGE if (value := fields.any(name)) is not None}
    usage = fields.any("usage")
    if not isinstance(usage, dict):
        return Usage(extra=EXTRAS.extra_of(extra, _SPELLING)) if extra else None
    if rest := {name: value for name, value in usage.items() if name not in {*_COUNTS, *_REDUNDANT}}:
        extra["usage"] = rest
    counts = (parse_token_count(usage.get(name)) for name in _COUNTS)
    return exclusive_usage(*counts, extra=EXTRAS.extra_of(extra, _SPELLING))


_COUNTS = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
_REDUNDANT = ("totalTokens", "cacheReadInputTokenCount", "cacheWriteInputTokenCount")  # repeat the counts


# --- rendering


def render_reply(reply: Reply, request: Conversation, environment: Environment) -> bytes:
    """Write a whole reply."""
    if len(reply.choices) != 1:
        raise LocalMisuse(f"a reply of Bedrock has one choice, not {len(reply.choices)}")
    choice = reply.choices[0]
    content: list[Json] = [render_block(block, LocalMisuse) for block in choice.blocks]
    body: dict[str, Json] = {"output": {"message": {"role": "assistant", "content": content}}}
    body |= render_stop(choice.stop)
    body |= render_usage(reply.usage or Usage())
    return jsonio.encode(EXTRAS.with_extra(body, reply.extra))


def render_stop(stop: Stop) -> dict[str, Json]:
    """Return the fields of a stop reason."""
    body: dict[str, Json] = {"stopReason": _REASON_NAMES[stop.reason]}
    if stop.sequence is not None:
        body["additionalModelResponseFields"] = {"stop_sequence": stop.sequence}
    if stop.reason in (StopReason.END, StopReason.REFUSAL):
        return EXTRAS.with_extra(body, stop.extra)
    # A filter has changed the reason, so the service's own reason is no longer true.
    extra = {name: value for name, value in EXTRAS.own_fields(stop.extra).items() if name != "stopReason"}
    return EXTRAS.with_extra(body, EXTRAS.extra_of(extra))


def render_usage(usage: Usage) -> dict[str, Json]:
    """Return usage and the fields that come with it. The total includes cached tokens, as that of the service does."""
    total = usage.input + usage.output + usage.cache_read + usage.cache_write
    counts: dict[str, Json] = {"inputTokens": usage.input, "outputTokens": usage.output, "totalTokens": total}
    if usage.cache_read or usage.cache_write:
        counts |= {"cacheReadInputTokens": usage.cache_read, "cacheWriteInputTokens": usage.cache_write}
    return EXTRAS.with_extra({"usage": counts, "metrics": {"latencyMs": 0}}, usage.extra)


# --- Errors: error responses, whose type is in a header, and exceptions in a stream


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
# The service has one exception for several kinds; only the message distinguishes them.
_KIND_BY_PHRASE: tuple[tuple[ErrorKind, str, ErrorKind], ...] = (
    ("invalid", "input is too long", "context_full"),
    ("invalid", "prompt is too long", "context_full"),
    ("invalid", "too many input tokens", "context_full"),
    ("invalid", "exceeds the model's maximum context", "context_full"),
    ("invalid", "model identifier is invalid", "not_found"),
    ("permission", "security token included in the request", "auth"),
    ("permission", "signature", "auth"),
)
# What the operator can do, for messages of the service that do not say it.
_ADVICE: dict[str, str] = {
    "token included in the request is expired": "the AWS credentials have expired: renew them (`aws sso login`)",
    "ExpiredToken": "the AWS credentials have expired: renew them (`aws sso login`)",
    "token included in the request is invalid": "AWS does not know these credentials: check the profile in use",
    "scoped to a valid region": "the request was signed for another region than the endpoint's: set the right region",
    "model identifier is invalid": "there is no such model in this region: check the id and the region",
    "on-demand throughput": "this model is reached by an inference profile: put us., eu. or apac. before its id",
    "don't have access to the model": "access to the model must be granted to the account, in this region",
    "ResourceNotFoundException": "there is no such model in this region: check the id and the region",
}
# The exceptions that a stream may hold, by kind.
_STREAM: dict[ErrorKind, str] = {
    "rate_limit": "throttlingException",
    "quota": "throttlingException",
    "overloaded": "serviceUnavailableException",
    "server": "internalServerException",
    "timeout": "modelStreamErrorException",
}
_IN_STREAM = frozenset(_STREAM.values()) | {"validationException"}


def parse_fault(response: HttpResponse, sent: Conversation | None = None) -> Fault:
    """Read an error response of the service, or of a proxy in between, whose body may not be JSON."""
    body = decoded(response.body)
    code = error_type(response.header(TYPE_HEADER)) or error_type(text(members(body).get("__type")))
    kind = _TABLE.by_type(code) or _TABLE.by_status(response.status)
    message = _message(body) or (
        refusal_message(code) if code else unreadable_message(response, unquoted=("<", "{", "["))
    )
    return _fault(kind, message, response.status, code, response.retry_after)


def exception_fault(frame: Frame) -> Fault:
    """Return the fault of an exception in a stream; an unknown exception keeps its name and message."""
    body = decoded(frame.data)
    code = frame.kind[:1].upper() + frame.kind[1:]
    kind = _TABLE.by_type(code) or "server"
    message = _message(body) or text(members(body).get("originalMessage"))
    message = message or f"the upstream's stream failed ({frame.kind or 'no reason given'})"
    return _fault(kind, message, None, code, None)


def error_type(header: str) -> str:
    """Return the name of the exception in its header, without the namespace before `#` and the URL after `:`."""
    return header.partition(":")[0].rpartition("#")[2].strip()


def render_fault(fault: Fault) -> bytes:
    """Return the body of an error response or exception; its type is in a header."""
    return jsonio.encode({"message": fault.message})


def status_of(fault: Fault) -> int:
    """Return the HTTP status of a fault in this dialect."""
    if _TABLE.by_type(fault.code) == fault.kind and _TABLE.is_compatible(fault.status, fault.kind):
        return fault.status if 400 <= fault.status < 600 else _TABLE.default_status(fault.kind)
    return _TABLE.default_status(fault.kind)


def exception_payload(fault: Fault) -> Payload:
    """Return the exception that ends a stream. Clients know only the five exceptions of the service's model."""
    own = fault.code[:1].lower() + fault.code[1:]
    kind = own if own in _IN_STREAM else _STREAM.get(fault.kind, "validationException")
    body: dict[str, Json] = {"message": fault.message}
    if kind == "modelStreamErrorException":
        body |= {"originalStatusCode": fault.status, "originalMessage": fault.message}
    return Payload(kind.encode(), jsonio.encode(body), error=True)


def _fault(kind: ErrorKind, message: str, status: int | None, code: str, wait: float | None) -> Fault:
    """Return a fault of the exact kind, with advice if there is any."""
    lower = message.lower()
    kind = next((exact for general, words, exact in _KIND_BY_PHRASE if general == kind and words in lower), kind)
    advice = next((advice for words, advice in _ADVICE.items() if words in message or words in code), "")
    return Fault(
        kind, f"{message} ({advice})" if advice else message, status or _TABLE.default_status(kind), wait, code=code
    )


def _message(body: Json) -> str:
    return text(members(body).get("message") or members(body).get("Message"))
