"""Plain requests and plain whole replies at a glance, for who passes them on as they are.

Only what nearly everybody says is known here: turns of text, a few settings; one answer, what it cost, why it stopped.
What says anything else is not skimmed, and then read with care, so whoever skims learns exactly what a reader would.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from dragoman.dialects.base import Plain, Skimmed
from dragoman.dialects.openai.parts import extra_of
from dragoman.model.conversation import Conversation, Stop, Usage, Why
from dragoman.wire import jsonio

# --- requests

_Count: TypeAlias = Annotated[int, Meta(ge=1)]
_Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
_Name: TypeAlias = Annotated[str, Meta(min_length=1)]
_User: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]  # a longer one is sent as its hash


class _Turn(Struct, forbid_unknown_fields=True, gc=False):
    role: Literal["system", "user", "assistant"]
    content: str


class _Options(Struct, forbid_unknown_fields=True, gc=False):
    include_usage: bool


class _Request(Struct, forbid_unknown_fields=True, gc=False):
    model: _Name
    messages: list[_Turn]
    stream: bool | UnsetType = UNSET
    stream_options: _Options | UnsetType = UNSET
    max_tokens: _Count | UnsetType = UNSET
    max_completion_tokens: _Count | UnsetType = UNSET
    temperature: _Share | UnsetType = UNSET
    top_p: _Share | UnsetType = UNSET
    user: _User | UnsetType = UNSET


_LONGEST = 64 * 1024  # bytes; to be sure that no name stands twice in a longer one costs as much as to read it
_FIELDS = len(_Request.__struct_fields__)
_TURNS = ["user", "assistant"]
_read_request = jsonio.fitting(_Request)


def skim_request(body: bytes) -> Plain | None:
    """Perhaps a system's words, then user and assistant in turns, the user first and last; nobody says nothing."""
    asked = _read_request(body) if len(body) <= _LONGEST else None
    if asked is None:
        return None
    model, stream, options, user = asked.model, asked.stream, asked.stream_options, asked.user
    texts = [turn.content for turn in asked.messages]
    roles = [turn.role for turn in asked.messages]
    if roles[:1] == ["system"]:
        del roles[0]
        if texts[0].startswith("x-anthropic-billing-header:"):  # the filter strip_attribution looks at it
            return None
    half = len(roles) // 2
    if roles != _TURNS * half + ["user"] or not all(texts) or any(map(str.isspace, texts)):
        return None
    if asked.max_tokens is not UNSET and asked.max_completion_tokens is not UNSET:
        return None
    unsaid = (
        stream is UNSET,
        options is UNSET,
        asked.max_tokens is UNSET,
        asked.max_completion_tokens is UNSET,
        asked.temperature is UNSET,
        asked.top_p is UNSET,
        user is UNSET,
    )
    said = "" if user is UNSET else user
    names = _FIELDS - unsaid.count(True) + 2 * len(texts) + (options is not UNSET)
    if jsonio.may_double(body, names, "".join([model, said, *texts]).count(":")):
        return None
    usage = options is not UNSET and options.include_usage
    extra = None if options is UNSET else extra_of({"stream_options": {"include_usage": usage}})
    return Plain(
        Conversation(model, (), stream=stream is True, user=said, extra=extra), len(texts), (unsaid, stream, usage)
    )


# --- replies

_STOPS = {"stop": Stop(Why.END), "length": Stop(Why.LENGTH), "tool_calls": Stop(Why.TOOL)}


class _Message(Struct, forbid_unknown_fields=True):
    role: str
    content: str
    refusal: None = None
    annotations: list[None] | None = None


class _Choice(Struct, forbid_unknown_fields=True):
    message: _Message
    finish_reason: Literal["stop", "length", "tool_calls"]
    index: int = 0
    logprobs: None = None


class _Before(Struct, forbid_unknown_fields=True):
    cached_tokens: int = 0
    audio_tokens: Literal[0] = 0


class _After(Struct, forbid_unknown_fields=True):
    reasoning_tokens: int = 0
    audio_tokens: Literal[0] = 0
    accepted_prediction_tokens: Literal[0] = 0
    rejected_prediction_tokens: Literal[0] = 0


class _Usage(Struct, forbid_unknown_fields=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _Before | None = None
    completion_tokens_details: _After | None = None


class _Reply(Struct, forbid_unknown_fields=True):
    choices: tuple[_Choice]
    usage: _Usage
    object: Literal["chat.completion"]
    id: str = ""
    created: Any = None
    model: str = ""
    service_tier: str | None = None
    system_fingerprint: str | None = None


_read = jsonio.fitting(_Reply)


def skim_reply(body: bytes) -> Skimmed | None:
    reply = _read(body)
    if reply is None:
        return None
    told = reply.usage
    read = told.prompt_tokens_details.cached_tokens if told.prompt_tokens_details is not None else 0
    thought = told.completion_tokens_details.reasoning_tokens if told.completion_tokens_details is not None else 0
    prompt, completion = told.prompt_tokens, told.completion_tokens
    if told.total_tokens != prompt + completion or min(prompt - read, completion, read, thought) < 0:
        return None
    return Skimmed(Usage(prompt - read, completion, read, reasoning=thought), _STOPS[reply.choices[0].finish_reason])
