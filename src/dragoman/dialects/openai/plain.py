"""Small requests and whole replies of the documented shape, for a gateway that passes them on unchanged.

The Structs forbid unknown fields, and bound the figures that a filter would change. What they refuse is read by the
codec. What they take is read as the codec reads it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from dragoman.dialects.base import PlainReply, PlainRequest
from dragoman.dialects.openai.binding import is_chat
from dragoman.dialects.openai.parts import extra_of
from dragoman.model.conversation import Conversation, Stop, Usage, Why
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest

# --- requests

_Count: TypeAlias = Annotated[int, Meta(ge=1)]
_Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
_Name: TypeAlias = Annotated[str, Meta(min_length=1)]
_User: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]  # a longer one is sent as its hash


class _Object(Struct, forbid_unknown_fields=True, gc=False):
    pass


class _Turn(_Object):
    role: Literal["system", "user", "assistant"]
    content: str


class _Options(_Object):
    include_usage: bool


class _Request(_Object):
    model: _Name
    messages: list[_Turn]
    stream: bool | UnsetType = UNSET
    stream_options: _Options | UnsetType = UNSET
    max_tokens: _Count | UnsetType = UNSET
    max_completion_tokens: _Count | UnsetType = UNSET
    temperature: _Share | UnsetType = UNSET
    top_p: _Share | UnsetType = UNSET
    user: _User | UnsetType = UNSET


_LONGEST = 64 * 1024  # bytes; in a longer body the search for doubled names costs as much as reading it
_FIELDS = len(_Request.__struct_fields__)
_TURNS = ["user", "assistant"]
_read_request = jsonio.fitting(_Request)


def _plain_request(body: bytes) -> PlainRequest | None:
    """Read a request of an optional system text, then user and assistant in turns, the user first and last."""
    asked = _read_request(body) if len(body) <= _LONGEST else None
    if asked is None:
        return None
    model, stream, options, user = asked.model, asked.stream, asked.stream_options, asked.user
    texts = [turn.content for turn in asked.messages]
    roles = [turn.role for turn in asked.messages]
    if roles[:1] == ["system"]:
        del roles[0]
        if texts[0].startswith("x-anthropic-billing-header:"):  # the filter strip_attribution reads it
            return None
    if roles != _TURNS * (len(roles) // 2) + ["user"] or not all(texts) or any(map(str.isspace, texts)):
        return None
    if asked.max_tokens is not UNSET and asked.max_completion_tokens is not UNSET:
        return None
    absent = (
        stream is UNSET,
        options is UNSET,
        asked.max_tokens is UNSET,
        asked.max_completion_tokens is UNSET,
        asked.temperature is UNSET,
        asked.top_p is UNSET,
        user is UNSET,
    )
    user = "" if user is UNSET else user
    names = _FIELDS - absent.count(True) + 2 * len(texts) + (options is not UNSET)
    if jsonio.may_double(body, names, "".join([model, user, *texts]).count(":")):
        return None
    usage = options is not UNSET and options.include_usage
    extra = None if options is UNSET else extra_of({"stream_options": {"include_usage": usage}})
    conversation = Conversation(model, (), stream=stream is True, user=user, extra=extra)
    return PlainRequest(conversation, len(texts), (absent, stream, usage, len(user)))


# --- replies

_STOPS = {"stop": Stop(Why.END), "length": Stop(Why.LENGTH), "tool_calls": Stop(Why.TOOL)}


class _Message(_Object):
    role: str
    content: str
    refusal: None = None
    annotations: list[None] | None = None


class _Choice(_Object):
    message: _Message
    finish_reason: Literal["stop", "length", "tool_calls"]
    index: int = 0
    logprobs: None = None


class _Before(_Object):
    cached_tokens: int = 0
    audio_tokens: Literal[0] = 0


class _After(_Object):
    reasoning_tokens: int = 0
    audio_tokens: Literal[0] = 0
    accepted_prediction_tokens: Literal[0] = 0
    rejected_prediction_tokens: Literal[0] = 0


class _Usage(_Object):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _Before | None = None
    completion_tokens_details: _After | None = None


class _Reply(_Object):
    choices: tuple[_Choice]
    usage: _Usage
    object: Literal["chat.completion"]
    id: str = ""
    created: Any = None
    model: str = ""
    service_tier: str | None = None
    system_fingerprint: str | None = None


_read_reply = jsonio.fitting(_Reply)


class OpenaiPlain(Struct, frozen=True):
    def request(self, request: HttpRequest) -> PlainRequest | None:
        return _plain_request(request.body) if is_chat(request) else None

    def reply(self, body: bytes) -> PlainReply | None:
        reply = _read_reply(body)
        if reply is None:
            return None
        usage = reply.usage
        read = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details is not None else 0
        thought = usage.completion_tokens_details.reasoning_tokens if usage.completion_tokens_details is not None else 0
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        if usage.total_tokens != prompt + completion or min(prompt - read, completion, read, thought) < 0:
            return None
        stop = _STOPS[reply.choices[0].finish_reason]
        return PlainReply(Usage(prompt - read, completion, read, reasoning=thought), stop)
