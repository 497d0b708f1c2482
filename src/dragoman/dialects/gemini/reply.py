"""Parse and render whole Gemini replies; also candidates, stop reasons, usage and errors, which streams share. Pure.

The codec, the stream decoder and the encoder call these functions.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from msgspec import Struct, structs

from dragoman.dialects.base import Environment
from dragoman.dialects.gemini.blocks import EXTRAS, parse_part, read_object, render_part, snake_to_camel
from dragoman.dialects.gemini.sources import FIELDS, is_search, parse_search, parse_sources, render_sources
from dragoman.dialects.kit.faults import FaultTable, refusal_message
from dragoman.dialects.kit.settings import guard_depth
from dragoman.dialects.kit.values import decoded, items, members, text
from dragoman.errors import BadFrame, ErrorKind, Fault, LocalMisuse, MissingField, UpstreamFault
from dragoman.model.blocks import Block, Opaque, Reasoning, Text, ToolCall
from dragoman.model.conversation import (
    MAX_TOKEN_COUNT,
    Choice,
    Conversation,
    Reply,
    Stop,
    StopReason,
    Usage,
    failure_kind,
    find_stop_reason,
    inclusive_usage,
    parse_token_count,
    to_extra_names,
)
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields, describe
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json, Raw

# --- errors: HTTP error responses and errors in a stream have one format


_TABLE = FaultTable(
    {
        "invalid": ("INVALID_ARGUMENT", 400),
        "context_full": ("INVALID_ARGUMENT", 400),
        "auth": ("UNAUTHENTICATED", 401),
        "permission": ("PERMISSION_DENIED", 403),
        "not_found": ("NOT_FOUND", 404),
        "too_large": ("INVALID_ARGUMENT", 413),
        "rate_limit": ("RESOURCE_EXHAUSTED", 429),
        "quota": ("RESOURCE_EXHAUSTED", 429),
        "server": ("INTERNAL", 500),
        "overloaded": ("UNAVAILABLE", 503),
        "timeout": ("DEADLINE_EXCEEDED", 504),
    },
    {
        "FAILED_PRECONDITION": "invalid",
        "OUT_OF_RANGE": "invalid",
        "UNKNOWN": "server",
        "UNIMPLEMENTED": "server",
        "CANCELLED": "server",
        "ABORTED": "server",
    },
    statuses={424: "server"},
    exact={"invalid": frozenset({405, 409, 415, 422}), "server": frozenset({501, 502})},
)
status_of = _TABLE.status_of
_RETRY = "type.googleapis.com/google.rpc.RetryInfo"
_BAD = "type.googleapis.com/google.rpc.BadRequest"
_CONTEXT_PHRASES = ("exceeds the maximum number of tokens", "input token count", "context window", "prompt is too long")


def parse_fault(response: HttpResponse, sent: Conversation | None = None) -> Fault:
    """Parse an error response: of the service, or of a proxy before it that sends no JSON."""
    body = decoded(response.body)
    if isinstance(body, list) and body:
        body = body[0]  # the response to a request for a stream as a JSON array
    fault = fault_of(body, response.status) if isinstance(body, dict) else _TABLE.unreadable(response)
    return structs.replace(fault, retry_after=fault.retry_after or response.retry_after)


def fault_of(body: dict[str, Json], status: int | None = None) -> Fault:
    """Return the fault in an error object; `status` is the HTTP status, if there is one."""
    raw = body.get("error")
    error: dict[str, Json] = raw if isinstance(raw, dict) else {"message": raw or body.get("message")}
    name, code, message = error.get("status"), error.get("code"), error.get("message")
    name = name if isinstance(name, str) else ""
    status = status or (code if type(code) is int and 400 <= code < 600 else None)
    details = [each for each in items(error.get("details")) if isinstance(each, dict)]
    kind = _kind(name, status, details)
    if not isinstance(message, str) or not message:
        message = refusal_message(name, status)
    if kind == "invalid" and any(phrase in message.lower() for phrase in _CONTEXT_PHRASES):
        kind = "context_full"
    return Fault(kind, message, status or _TABLE.default_status(kind), _retry_delay(details), _field(details), name)


def _kind(name: str, status: int | None, details: list[dict[str, Json]]) -> ErrorKind:
    kind = _TABLE.by_type(name) or _TABLE.by_status(status or 500)
    if status == 413:
        return "too_large"
    if kind == "invalid" and any(each.get("reason") == "API_KEY_INVALID" for each in details):
        return "auth"
    quotas = [quota for each in details for quota in items(each.get("violations")) if isinstance(quota, dict)]
    if kind == "rate_limit" and any("PerDay" in str(quota.get("quotaId")) for quota in quotas):
        return "quota"
    return kind


def _retry_delay(details: list[dict[str, Json]]) -> float | None:
    for each in details:
        delay = each.get("retryDelay")
        if isinstance(delay, str) and delay.endswith("s") and len(delay) < 20:
            try:
                seconds = float(delay[:-1])
            except ValueError:
                continue
            if 0 <= seconds < math.inf:
                return seconds
    return None


def _field(details: list[dict[str, Json]]) -> str:
    violations = [violation for each in details for violation in items(each.get("fieldViolations"))]
    return next((field for each in violations if (field := text(members(each).get("field")))), "")


def render_fault(fault: Fault) -> bytes:
    """Return the body of an error response, which is also the error frame of a stream."""
    details: list[Json] = []
    if fault.retry_after is not None:
        details.append({"@type": _RETRY, "retryDelay": f"{fault.retry_after:g}s"})
    if fault.at:
        details.append({"@type": _BAD, "fieldViolations": [{"field": fault.at, "description": fault.message}]})
    message = fault.message
    if fault.kind == "context_full" and not any(phrase in message.lower() for phrase in _CONTEXT_PHRASES):
        message = f"The input token count exceeds the maximum number of tokens allowed: {message}"
    error: dict[str, Json] = {"code": status_of(fault), "message": message, "status": _TABLE.type_of(fault)}
    if details:
        error["details"] = details
    return jsonio.encode({"error": error})


RawArguments: TypeAlias = dict[tuple[int, int], str]
RESPONSE = snake_to_camel("usageMetadata", "modelVersion", "responseId", "promptFeedback")
CANDIDATE = snake_to_camel("finishReason", "finishMessage", "tokenCount", "safetyRatings", "citationMetadata")
_FEEDBACK = snake_to_camel("blockReason", "blockReasonMessage", "safetyRatings")
_CONTINUATION = "CONTINUATION"
_FINISH_REASONS = {StopReason.LENGTH: "MAX_TOKENS", StopReason.CONTEXT: "MAX_TOKENS", StopReason.REFUSAL: "SAFETY"}
_DEFAULT_FINISH_REASON = "STOP"
_MALFORMED = (
    "MALFORMED_FUNCTION_CALL",
    "MALFORMED_RESPONSE",
    "UNEXPECTED_TOOL_CALL",
    "TOO_MANY_TOOL_CALLS",
    "MISSING_THOUGHT_SIGNATURE",
)
_LOST_CALL = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL")  # the service dropped a call of the model
UNSPECIFIED = ("", "FINISH_REASON_UNSPECIFIED")

# --- reading


@guard_depth(BadFrame, "the reply is nested too deeply")
def parse_reply(body: bytes, request: Conversation) -> Reply:
    """Parse a whole reply. Raises UpstreamViolation, or UpstreamFault if the body is an error."""
    fields, arguments = read_response(body), raw_arguments(body)
    usage = fields.any("usageMetadata")
    entries = candidates(fields)
    blocked = None if entries else parse_block_reason(fields)
    choices = [(candidate.index, _choice(candidate, arguments)) for candidate in entries]
    choices.sort(key=lambda pair: pair[0])
    if blocked is not None:
        choices = [(0, Choice((), blocked))]
    if not choices:
        fields.fail("candidates", "expected at least one candidate")
    return Reply(
        fields.text("responseId", ""),
        fields.text("modelVersion", "") or request.model,
        tuple(choice for _, choice in choices),
        parse_usage(usage),
        extra=EXTRAS.extra(fields),
    )


def read_response(body: bytes) -> Fields:
    """Return the fields of a reply or of a frame. Raises UpstreamFault for an error."""
    try:
        data = jsonio.decode(body)
    except jsonio.JsonError as error:
        raise BadFrame(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadFrame(f"expected an object, got {describe(data)}")
    fields = read_object(data, "", MissingField, RESPONSE)
    if fields.peek("error") is not None:
        fault = fault_of(fields.rest())
        raise UpstreamFault(fault.message, fault=fault)
    return fields


class Candidate(Struct, frozen=True):
    """One candidate of a reply or of a frame, its parts not parsed yet.

    `rest` holds the other fields, which only Gemini clients get.
    """

    at: str
    position: int
    index: int
    parts: list[Json]
    reason: str
    rest: dict[str, Json]


def candidates(fields: Fields) -> list[Candidate]:
    """Take the candidates of a reply or of a frame."""
    candidates = []
    for position, item in enumerate(fields.array("candidates", [])):
        entry = read_object(item, f"candidates[{position}]", fields.blame, CANDIDATE)
        content = entry.maybe_child("content")
        entry.any("content")
        parts = content.array("parts", []) if content else []
        index, reason = entry.integer("index", position), entry.text("finishReason", "") or ""
        candidates.append(Candidate(entry.at, position, index, parts, reason.upper(), entry.rest()))
    return candidates


def parse_block_reason(fields: Fields) -> Stop | None:
    """Return the stop of a prompt that the service blocked; None if it did not."""
    value = fields.peek("promptFeedback")
    if value is None:
        return None
    feedback = read_object(value, "promptFeedback", fields.blame, _FEEDBACK)
    if not feedback.text("blockReason", ""):
        return None
    fields.any("promptFeedback")
    return Stop(StopReason.REFUSAL, extra=EXTRAS.extra_of({"promptFeedback": value}))


def _choice(candidate: Candidate, arguments: RawArguments) -> Choice:
    blocks = [block for block in parse_parts(candidate, arguments) if not is_empty_block(block)]
    check_readable(candidate, has_content=bool(blocks))
    has_calls = any(isinstance(block, ToolCall) for block in blocks)
    if sources := parse_sources(candidate.rest):
        texts = [at for at, block in enumerate(blocks) if isinstance(block, Text)]
        for at in texts[-1:]:  # the last text gets the citations
            blocks[at] = structs.replace(blocks[at], citations=tuple(sources))
    if (search := parse_search(candidate.rest)) is not None:
        blocks.append(search)
    return Choice(tuple(blocks), parse_stop(candidate.reason, candidate.rest, has_calls=has_calls))


def is_empty_block(block: Block) -> bool:
    """Return whether the block is a text or a thought without content, signature and unknown fields."""
    return isinstance(block, Text | Reasoning) and not (block.text or block.signature or block.extra)


def parse_parts(candidate: Candidate, arguments: RawArguments) -> list[Block]:
    """Parse the parts of a candidate; calls keep the text of their arguments."""
    blocks: list[Block] = []
    for index, part in enumerate(candidate.parts):
        block = parse_part(part, f"{candidate.at}.content.parts[{index}]", MissingField)
        if isinstance(block, ToolCall):
            block = _with_original_arguments(block, arguments.get((candidate.position, index)))
        blocks.append(block)
    return blocks


def parse_stop(reason: str, rest: dict[str, Json], *, has_calls: bool) -> Stop:
    """Return the stop for a finishReason.

    The service also sends STOP after calls. An unknown reason is read as a normal end, and its name is kept.
    """
    stop_reason = StopReason.PAUSE if reason == _CONTINUATION else find_stop_reason(reason) or StopReason.END
    own: dict[str, Json] = {}
    if reason not in UNSPECIFIED and _FINISH_REASONS.get(stop_reason, _DEFAULT_FINISH_REASON) != reason:
        own["finishReason"] = reason
    if stop_reason is StopReason.END and has_calls:
        stop_reason = StopReason.TOOL
    sources = {name: rest[name] for name in FIELDS if name in rest} if parse_sources(rest) else {}
    if sources:  # Clients of other dialects get them as citations of the text.
        own["~sources"], rest = sources, {name: value for name, value in rest.items() if name not in sources}
    return Stop(stop_reason, None, EXTRAS.extra_of(own | ({"candidate": rest} if rest else {})))


def check_readable(candidate: Candidate, *, has_content: bool) -> None:
    """Raise UpstreamFault for a reply that the service itself could not parse.

    A reply with content counts as a reply, unless the service dropped a call (docs/decisions/responses.md#d7).
    """
    reason = candidate.reason
    if reason not in _MALFORMED and failure_kind(reason) is None:
        return
    if has_content and reason not in _LOST_CALL:
        return
    message = candidate.rest.get("finishMessage")
    words = f": {message}" if isinstance(message, str) and message else ""
    fault = Fault("server", f"the service could not parse the model's reply ({reason}{words})", code=reason)
    raise UpstreamFault(fault.message, fault=fault)


# --- the original text of arguments (docs/decisions/content.md#d3)


class _Call(Struct):
    args: Raw = Raw(b"")


class _Part(Struct):
    functionCall: _Call | None = None  # noqa: N815
    function_call: _Call | None = None


class _Content(Struct):
    parts: list[_Part] | None = None


class _Entry(Struct):
    content: _Content | None = None


class _Response(Struct):
    candidates: list[_Entry] | None = None


_read_response = jsonio.typed_decoder(_Response)


def raw_arguments(body: bytes) -> RawArguments:
    """Return the text of each call's arguments, by the positions of candidate and part.

    The result is empty if the body does not have the expected types.
    """
    if b"unctionCall" not in body and b"function_call" not in body:
        return {}
    try:
        response = _read_response(body)
    except jsonio.JsonError:
        return {}
    arguments: RawArguments = {}
    for position, entry in enumerate(response.candidates or ()):
        for index, part in enumerate((entry.content.parts if entry.content else None) or ()):
            call = part.functionCall or part.function_call
            if call is not None and bytes(call.args):
                arguments[position, index] = bytes(call.args).decode("utf-8", "replace")
    return arguments


def _with_original_arguments(call: ToolCall, text: str | None) -> ToolCall:
    if text is None:
        return call
    try:
        same = jsonio.decode(text) == jsonio.decode(call.arguments or "null")
    except jsonio.JsonError:
        return call
    return structs.replace(call, arguments=text) if same and call.arguments else call


# --- rendering


def render_reply(reply: Reply, request: Conversation, environment: Environment) -> bytes:
    """Return a whole reply as the body of a response."""
    body: dict[str, Json] = {}
    if len(reply.choices) == 1 and (feedback := render_block_feedback(reply.choices[0].stop, reply.choices[0].blocks)):
        body |= feedback
    else:
        body["candidates"] = [_render_choice(choice, index) for index, choice in enumerate(reply.choices)]
    if reply.usage is not None:
        body["usageMetadata"] = render_usage(reply.usage)
    body["modelVersion"] = reply.model or request.model
    body["responseId"] = reply.id or environment.new_id("resp_")
    return jsonio.encode(EXTRAS.with_extra(body, reply.extra))


def render_block_feedback(stop: Stop, blocks: object) -> dict[str, Json]:
    """Return the field that replaces the candidates if the service blocked the prompt; else no field."""
    feedback = EXTRAS.own_fields(stop.extra).get("promptFeedback")
    return {"promptFeedback": feedback} if feedback is not None and not blocks else {}


def _render_choice(choice: Choice, index: int) -> Json:
    parts: list[Json] = [render_part(block, LocalMisuse) for block in choice.blocks if not is_search(block)]
    content: Json = {"role": "model", "parts": parts or [{"text": ""}]}
    citations = [each for block in choice.blocks if isinstance(block, Text) for each in block.citations]
    searches = [block for block in choice.blocks if isinstance(block, Opaque) and is_search(block)]
    return {"content": content, **render_sources(citations, searches), **render_stop(choice.stop), "index": index}


def render_stop(stop: Stop) -> dict[str, Json]:
    """Return the fields of a candidate for a stop: its finishReason, and the fields that Gemini sent with it."""
    own_fields = EXTRAS.own_fields(stop.extra)
    own, rest, sources = map(own_fields.get, ("finishReason", "candidate", "~sources"))
    reason = own if isinstance(own, str) and own else _FINISH_REASONS.get(stop.reason, _DEFAULT_FINISH_REASON)
    fields = {"finishReason": reason, **(rest if isinstance(rest, dict) else {})}
    return fields | (sources if isinstance(sources, dict) else {})


# --- token counts: the prompt count includes cached tokens, the candidates count excludes thoughts

_TOOLS = "toolUsePromptTokenCount"
_COUNTED = frozenset({_TOOLS})  # a field of its own for Gemini clients; part of the input for others
_NAMES = (
    "promptTokenCount",
    "cachedContentTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
    _TOOLS,
    "totalTokenCount",
)
_COUNTS = snake_to_camel(*_NAMES)


def parse_usage(value: Json) -> Usage | None:
    """Parse the token counts of a response; None if there are none."""
    if not isinstance(value, dict):
        return None
    counts = {_COUNTS.get(name, name): each for name, each in value.items()}
    prompt, cached, text_tokens, thoughts, tools, total = (parse_token_count(counts.pop(name, None)) for name in _NAMES)
    output = text_tokens + thoughts
    if (
        thoughts and total == prompt + tools + text_tokens
    ):  # Some services include the thoughts in the candidates count.
        output = text_tokens
    rest = to_extra_names(counts)
    if tools := min(tools, MAX_TOKEN_COUNT - prompt):
        rest[_TOOLS] = tools
    extra = EXTRAS.extra_of(rest, _COUNTED)
    return inclusive_usage(prompt + tools, output, min(cached, prompt), 0, thoughts, extra=extra)


def render_usage(usage: Usage) -> dict[str, Json]:
    """Return token counts as `usageMetadata`."""
    own = EXTRAS.own_fields(usage.extra).get(_TOOLS)
    tools = own if type(own) is int else 0
    prompt = max(usage.input - tools, 0) + usage.cache_read + usage.cache_write
    text_tokens = max(usage.output - usage.reasoning, 0)
    body: dict[str, Json] = {"promptTokenCount": prompt, "candidatesTokenCount": text_tokens}
    if usage.cache_read:
        body["cachedContentTokenCount"] = usage.cache_read
    if usage.reasoning:
        body["thoughtsTokenCount"] = usage.reasoning
    body["totalTokenCount"] = prompt + tools + text_tokens + usage.reasoning
    return EXTRAS.with_extra(body, usage.extra)
