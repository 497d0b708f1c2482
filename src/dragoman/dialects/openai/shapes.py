"""Typed readers for Chat messages, requests and replies of exactly the documented shape. Pure.

The Structs forbid unknown fields, so they accept only the documented shape, and for that they return the same values
as the codec. A message that they refuse is read by `Fields` (messages.py, blocks.py, tools.py), which keep unknown
fields and name wrong ones. Two more readers serve pass-through, for small requests and for whole replies: their
Structs also refuse values that a filter would change.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, convert

from dragoman.dialects.base import ReplyOutcome, RequestSummary
from dragoman.dialects.openai.blocks import EXTRAS
from dragoman.model.blocks import Location, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Stop, StopReason, Usage
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

_Filled: TypeAlias = Annotated[str, Meta(min_length=1)]


class _Object(Struct, gc=False, forbid_unknown_fields=True):
    pass


class _TextPart(_Object):
    type: Literal["text"]
    text: str


class _Function(_Object):
    name: _Filled
    arguments: str


class _Call(_Object):
    id: _Filled
    type: Literal["function"]
    function: _Function


class _Message(_Object):
    """A message. SDKs write its last fields as null when they send a reply back."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[_TextPart] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: _Filled | None = None
    name: None = None
    refusal: None = None
    audio: None = None
    annotations: None = None
    function_call: None = None


def read_typed_message(item: Json, at: Location) -> Message | None:
    """Return a message of the documented shape; None for any other."""
    try:
        shape = convert(item, _Message)
    except jsonio.DECODE_ERRORS:
        return None
    role, content, calls = shape.role, shape.content, shape.tool_calls
    texts = _texts(content, Location(at, "content"))
    if role == "tool":
        if not isinstance(content, str) or not shape.tool_call_id or calls is not None:
            return None
        return Message("user", (ToolResult(shape.tool_call_id, texts, at=at),), at=at)
    if shape.tool_call_id is not None or (role != "assistant" and (content is None or calls is not None)):
        return None
    if calls is None:
        return Message(role, texts, at=at)
    calls_at = Location(at, "tool_calls")
    tool_calls = [
        ToolCall(call.id, call.function.name, call.function.arguments, at=Location(calls_at, index))
        for index, call in enumerate(calls)
    ]
    return Message(role, (*texts, *tool_calls), at=at)


def _texts(content: str | list[_TextPart] | None, at: Location) -> tuple[Text, ...]:
    if isinstance(content, list):
        return tuple([Text(part.text, at=Location(at, index)) for index, part in enumerate(content)])
    return (Text(content, at=at),) if content else ()


# --- small requests

_Count: TypeAlias = Annotated[int, Meta(ge=1)]
_Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
_User: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]  # a filter replaces a longer one with its hash


class _Turn(_Object):
    role: Literal["system", "user", "assistant"]
    content: str


class _Options(_Object):
    include_usage: bool


class _Request(_Object):
    model: _Filled
    messages: list[_Turn]
    stream: bool | UnsetType = UNSET
    stream_options: _Options | UnsetType = UNSET
    max_tokens: _Count | UnsetType = UNSET
    max_completion_tokens: _Count | UnsetType = UNSET
    temperature: _Share | UnsetType = UNSET
    top_p: _Share | UnsetType = UNSET
    user: _User | UnsetType = UNSET


_MAX_BODY = 64 * 1024  # bytes; in a longer body the search for duplicate names costs as much as parsing
_FIELDS = len(_Request.__struct_fields__)
_ROLES_IN_TURN = ["user", "assistant"]
_read_request = jsonio.optional_decoder(_Request)


def _plain_request(body: bytes) -> RequestSummary | None:
    """Return the summary of a plain request, or None.

    A plain request has an optional system text, then user and assistant texts in turns, the user first and last.
    """
    request = _read_request(body) if len(body) <= _MAX_BODY else None
    if request is None:
        return None
    model, stream, options, user = request.model, request.stream, request.stream_options, request.user
    texts = [turn.content for turn in request.messages]
    roles = [turn.role for turn in request.messages]
    if roles[:1] == ["system"]:
        del roles[0]
        if texts[0].startswith("x-anthropic-billing-header:"):  # the filter strip_attribution reads it
            return None
    if roles != _ROLES_IN_TURN * (len(roles) // 2) + ["user"] or not all(texts) or any(map(str.isspace, texts)):
        return None
    if request.max_tokens is not UNSET and request.max_completion_tokens is not UNSET:
        return None
    absent = (
        stream is UNSET,
        options is UNSET,
        request.max_tokens is UNSET,
        request.max_completion_tokens is UNSET,
        request.temperature is UNSET,
        request.top_p is UNSET,
        user is UNSET,
    )
    user = "" if user is UNSET else user
    names = _FIELDS - absent.count(True) + 2 * len(texts) + (options is not UNSET)
    if jsonio.may_have_duplicates(body, names, "".join([model, user, *texts]).count(":")):
        return None
    usage = options is not UNSET and options.include_usage
    extra = None if options is UNSET else EXTRAS.extra_of({"stream_options": {"include_usage": usage}})
    limits = (request.max_tokens, request.max_completion_tokens)
    longest = next((limit for limit in limits if limit is not UNSET), None)
    conversation = Conversation(model, (), max_tokens=longest, stream=stream is True, user=user, extra=extra)
    return RequestSummary(conversation, len(texts), (absent, stream, usage, len(user)))


# --- whole replies

_STOPS = {"stop": Stop(StopReason.END), "length": Stop(StopReason.LENGTH), "tool_calls": Stop(StopReason.TOOL)}


class _ReplyMessage(_Object):
    role: str
    content: str
    refusal: None = None
    annotations: list[None] | None = None


class _ReplyChoice(_Object):
    message: _ReplyMessage
    finish_reason: Literal["stop", "length", "tool_calls"]
    index: int = 0
    logprobs: None = None


class _PromptDetails(_Object):
    cached_tokens: int = 0
    audio_tokens: Literal[0] = 0


class _CompletionDetails(_Object):
    reasoning_tokens: int = 0
    audio_tokens: Literal[0] = 0
    accepted_prediction_tokens: Literal[0] = 0
    rejected_prediction_tokens: Literal[0] = 0


class _Usage(_Object):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Reply(_Object):
    choices: tuple[_ReplyChoice]
    usage: _Usage
    object: Literal["chat.completion"]
    id: str = ""
    created: Any = None
    model: str = ""
    service_tier: str | None = None
    system_fingerprint: str | None = None


_read_reply = jsonio.optional_decoder(_Reply)


class OpenaiSummaryReader(Struct, frozen=True):
    """Reads small requests and whole replies for the gateway's plan cache."""

    path: str

    def read_request(self, request: HttpRequest) -> RequestSummary | None:
        return _plain_request(request.body) if request.method == "POST" else None

    def read_reply(self, body: bytes) -> ReplyOutcome | None:
        reply = _read_reply(body)
        if reply is None:
            return None
        usage = reply.usage
        read = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details is not None else 0
        reasoning = (
            usage.completion_tokens_details.reasoning_tokens if usage.completion_tokens_details is not None else 0
        )
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        if usage.total_tokens != prompt + completion or min(prompt - read, completion, read, reasoning) < 0:
            return None
        stop = _STOPS[reply.choices[0].finish_reason]
        return ReplyOutcome(Usage(prompt - read, completion, read, reasoning=reasoning), stop)
