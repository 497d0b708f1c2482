"""The wire shape of a chunk. Decoded once, typed; fields we do not know take the slow way and are kept."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from dragoman.dialects.openai.blocks import JsonObject
from dragoman.errors import BadFrame, MissingField
from dragoman.model.filter import LaneSource, Listener
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

T = TypeVar("T")


class FunctionPart(Struct, gc=False):
    name: str | None = None
    arguments: Any = None  # text, but some send the object


class CustomPart(Struct, gc=False):
    name: str | None = None
    input: str | None = None


class CallPart(Struct, forbid_unknown_fields=True, gc=False):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionPart | None = None
    custom: CustomPart | None = None
    rest: dict[str, Any] | None = None  # filled by us: fields without a name here


class Delta(Struct, forbid_unknown_fields=True, gc=False):
    role: Any = None
    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    thinking_blocks: list[dict[str, Any]] | None = None
    refusal: str | None = None
    images: list[Any] | None = None
    annotations: list[Any] | None = None
    tool_calls: list[CallPart | None] | None = None
    function_call: FunctionPart | None = None
    rest: dict[str, Any] | None = None  # filled by us


class ChunkChoice(Struct, gc=False):
    index: int | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    logprobs: Any = None
    usage: Any = None  # Moonshot
    error: Any = None  # OpenRouter


class Chunk(Struct, gc=False):
    id: str | None = None
    object: Any = None
    model: str | None = None
    created: Any = None
    choices: list[ChunkChoice | None] | None = None
    usage: Any = None
    error: Any = None
    x_groq: Any = None  # Groq's usage, and its errors
    base_resp: Any = None  # MiniMax's errors
    citations: Any = None  # Perplexity's sources
    search_results: Any = None


class _OnlyChoice(Struct, Generic[T], gc=False, kw_only=True):
    """What stands around the delta in a chunk of a lane: the first choice, which has not stopped."""

    delta: T
    index: Literal[0] = 0
    finish_reason: None = None
    logprobs: None = None
    usage: None = None
    error: None = None


class _OnlyChunk(Struct, Generic[T], gc=False, kw_only=True):
    """What stands around the choice in a chunk of a lane. All else is refused."""

    choices: tuple[_OnlyChoice[T]]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: None = None
    error: None = None
    x_groq: None = None
    base_resp: None = None
    citations: None = None
    search_results: None = None


class _MoreText(Struct, forbid_unknown_fields=True, gc=False):
    content: str
    role: Any = None
    reasoning_content: None = None
    reasoning: None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None


class _MoreThought(Struct, forbid_unknown_fields=True, gc=False):
    reasoning_content: str = ""
    reasoning: str = ""
    role: Any = None
    content: Literal["", None] = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None


class _MoreWords(Struct, forbid_unknown_fields=True, gc=False):
    arguments: str
    name: Literal["", None] = None  # a name may begin another call


class _MoreCall(Struct, forbid_unknown_fields=True, gc=False):
    function: _MoreWords
    index: int | None = None
    id: Literal["", None] = None  # an id may begin another call
    type: Literal["function", "", None] = None


class _MoreCalls(Struct, forbid_unknown_fields=True, gc=False):
    tool_calls: tuple[_MoreCall]
    role: Any = None
    content: Literal["", None] = None
    reasoning_content: Literal["", None] = None
    reasoning: Literal["", None] = None
    refusal: None = None
    function_call: None = None


_typed = jsonio.typed_decoder(Chunk)
_DELTA = frozenset(Delta.__struct_fields__) - {"rest"}
_CALL = frozenset(CallPart.__struct_fields__) - {"rest"}


# The lanes of text, of reasoning in a plain field, and of the arguments of a call: chunks that hold nothing else.
_decode_thought = jsonio.strict_decoder(_OnlyChunk[_MoreThought])
_decode_call = jsonio.strict_decoder(_OnlyChunk[_MoreCalls])
TEXT_LANE = LaneSource("", jsonio.strict_decoder(_OnlyChunk[_MoreText]), lambda chunk: chunk.choices[0].delta.content)


def _thought_in(chunk: _OnlyChunk[_MoreThought]) -> str:
    delta = chunk.choices[0].delta
    return delta.reasoning_content or delta.reasoning


def reasoning_lane(listener: Listener) -> LaneSource:
    return LaneSource("", _decode_thought, _thought_in, listener)


def call_lane(index: int | None, listener: Listener) -> LaneSource:
    """Return the lane of the call with this index."""

    def arguments(chunk: _OnlyChunk[_MoreCalls]) -> str | None:
        call = chunk.choices[0].delta.tool_calls[0]
        return call.function.arguments if call.index == index else None

    return LaneSource("", _decode_call, arguments, listener)


def read_chunk(data: bytes) -> Chunk:
    """Raises BadFrame for what is no JSON object, MissingField for a field of the wrong type."""
    try:
        return _typed(data)
    except jsonio.JsonError:
        return _read_odd(data)


def stopped_choice_fields(data: bytes, position: int) -> JsonObject:
    """The fields of a choice that has stopped. Raises BadFrame."""
    choices = read_json_object(data).get("choices")
    choice = choices[position] if isinstance(choices, list) else None
    return {name: value for name, value in choice.items() if name != "logprobs"} if isinstance(choice, dict) else {}


def read_json_object(data: bytes) -> JsonObject:
    """The chunk as plain JSON, for the rare moments that want every field."""
    try:
        value = jsonio.decode(data)
    except jsonio.JsonError as error:
        raise BadFrame(f"a frame is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadFrame("a frame is no JSON object")
    return value


def _read_odd(data: bytes) -> Chunk:
    value = read_json_object(data)
    choices = value.get("choices")
    _forget_empty(value)
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        _forget_empty(choice)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            _forget_empty(delta)
            _set_apart(delta, _DELTA)
            calls = delta.get("tool_calls")
            for call in calls if isinstance(calls, list) else ():
                if isinstance(call, dict):
                    _forget_empty(call)
                    _set_apart(call, _CALL)
    try:
        return msgspec.convert(value, Chunk)
    except UnicodeError:  # it would quote what it found, and that has lone surrogates
        raise MissingField("a field has the wrong type") from None
    except (msgspec.ValidationError, RecursionError) as error:
        message, _, place = str(error).partition(" - at `$.")
        raise MissingField(message, at=place.rstrip("`")) from None


def _forget_empty(fields: JsonObject) -> None:
    """Remove fields that hold nothing, whatever their type: some servers write `""`, `[]` or `{}` instead of null."""
    for name in [name for name, value in fields.items() if value in ("", [], {}) and name != "finish_reason"]:
        del fields[name]


def _set_apart(fields: JsonObject, known: frozenset[str]) -> None:
    """Move the fields we have no name for under `rest`; those that say nothing go."""
    unknown = {name: fields.pop(name) for name in [*fields] if name not in known}
    telling: Json = {name: value for name, value in unknown.items() if value not in (None, [], {})}
    fields["rest"] = telling or None
