"""The wire shape of one chunk of a Chat stream, as typed Structs. Pure.

A chunk with only known fields is decoded once, straight into the Structs. Any other chunk is decoded as plain JSON
first, and its unknown fields are kept under `rest`. The last Structs are stricter: they describe the deltas that a lane
may read.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from dragoman.errors import BadFrame, MissingField
from dragoman.model.filter import DeltaListener, LaneSource
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json, JsonObject

T = TypeVar("T")


class FunctionPart(Struct, gc=False):
    """The `function` of a call's entry, or a legacy `function_call`."""

    name: str | None = None
    arguments: Any = None  # text; some servers send an object


class CustomPart(Struct, gc=False):
    """The `custom` of a call's entry."""

    name: str | None = None
    input: str | None = None


class CallPart(Struct, forbid_unknown_fields=True, gc=False):
    """An entry of `tool_calls`."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionPart | None = None
    custom: CustomPart | None = None
    rest: dict[str, Any] | None = None  # not on the wire: the unknown fields


class ChunkDelta(Struct, forbid_unknown_fields=True, gc=False):
    """The `delta` of a choice."""

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
    rest: dict[str, Any] | None = None  # not on the wire: the unknown fields


class ChunkChoice(Struct, gc=False):
    """An entry of `choices`."""

    index: int | None = None
    delta: ChunkDelta | None = None
    finish_reason: str | None = None
    logprobs: Any = None
    usage: Any = None  # Moonshot
    error: Any = None  # OpenRouter


class Chunk(Struct, gc=False):
    """A chunk of the stream."""

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


class _LaneChoice(Struct, Generic[T], gc=False, kw_only=True):
    """The only choice of a chunk that a lane may read: the first one, and it has not stopped."""

    delta: T
    index: Literal[0] = 0
    finish_reason: None = None
    logprobs: None = None
    usage: None = None
    error: None = None


class _LaneChunk(Struct, Generic[T], gc=False, kw_only=True):
    """A chunk that a lane may read: one choice, and no usage, error or sources."""

    choices: tuple[_LaneChoice[T]]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: None = None
    error: None = None
    x_groq: None = None
    base_resp: None = None
    citations: None = None
    search_results: None = None


class _TextDelta(Struct, forbid_unknown_fields=True, gc=False):
    content: str
    role: Any = None
    reasoning_content: None = None
    reasoning: None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None


class _ReasoningDelta(Struct, forbid_unknown_fields=True, gc=False):
    reasoning_content: str = ""
    reasoning: str = ""
    role: Any = None
    content: Literal["", None] = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None


class _ArgumentsPart(Struct, forbid_unknown_fields=True, gc=False):
    arguments: str
    name: Literal["", None] = None  # a name may start another call


class _ArgumentsCall(Struct, forbid_unknown_fields=True, gc=False):
    function: _ArgumentsPart
    index: int | None = None
    id: Literal["", None] = None  # an id may start another call
    type: Literal["function", "", None] = None


class _ArgumentsDelta(Struct, forbid_unknown_fields=True, gc=False):
    tool_calls: tuple[_ArgumentsCall]
    role: Any = None
    content: Literal["", None] = None
    reasoning_content: Literal["", None] = None
    reasoning: Literal["", None] = None
    refusal: None = None
    function_call: None = None


_decode_chunk = jsonio.typed_decoder(Chunk)
_DELTA_FIELDS = frozenset(ChunkDelta.__struct_fields__) - {"rest"}
_CALL_FIELDS = frozenset(CallPart.__struct_fields__) - {"rest"}


# The lanes of text, of reasoning in a plain field, and of a call's arguments, for chunks without other content.
_decode_reasoning = jsonio.strict_decoder(_LaneChunk[_ReasoningDelta])
_decode_call = jsonio.strict_decoder(_LaneChunk[_ArgumentsDelta])
TEXT_LANE = LaneSource("", jsonio.strict_decoder(_LaneChunk[_TextDelta]), lambda chunk: chunk.choices[0].delta.content)


def _reasoning_in(chunk: _LaneChunk[_ReasoningDelta]) -> str:
    delta = chunk.choices[0].delta
    return delta.reasoning_content or delta.reasoning


def reasoning_lane(listener: DeltaListener) -> LaneSource:
    """Return the lane of reasoning in a plain field."""
    return LaneSource("", _decode_reasoning, _reasoning_in, listener)


def call_lane(index: int | None, listener: DeltaListener) -> LaneSource:
    """Return the lane of the call with this index."""

    def arguments(chunk: _LaneChunk[_ArgumentsDelta]) -> str | None:
        call = chunk.choices[0].delta.tool_calls[0]
        return call.function.arguments if call.index == index else None

    return LaneSource("", _decode_call, arguments, listener)


def read_chunk(data: bytes) -> Chunk:
    """Decode a chunk. Raises BadFrame if it is not a JSON object, MissingField if a field has the wrong type."""
    try:
        return _decode_chunk(data)
    except jsonio.JsonError:
        return _read_untyped(data)


def stopped_choice_fields(data: bytes, position: int) -> JsonObject:
    """Return all fields of a choice that has stopped, except `logprobs`. Raises BadFrame."""
    choices = read_json_object(data).get("choices")
    choice = choices[position] if isinstance(choices, list) else None
    return {name: value for name, value in choice.items() if name != "logprobs"} if isinstance(choice, dict) else {}


def read_json_object(data: bytes) -> JsonObject:
    """Decode a chunk as plain JSON, for the few callers that need every field. Raises BadFrame."""
    try:
        value = jsonio.decode(data)
    except jsonio.JsonError as error:
        raise BadFrame(f"a frame is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadFrame("a frame is not a JSON object")
    return value


def _read_untyped(data: bytes) -> Chunk:
    value = read_json_object(data)
    choices = value.get("choices")
    _remove_empty(value)
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        _remove_empty(choice)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            _remove_empty(delta)
            _move_unknown(delta, _DELTA_FIELDS)
            calls = delta.get("tool_calls")
            for call in calls if isinstance(calls, list) else ():
                if isinstance(call, dict):
                    _remove_empty(call)
                    _move_unknown(call, _CALL_FIELDS)
    try:
        return msgspec.convert(value, Chunk)
    except UnicodeError:  # the validation error cannot quote a value with lone surrogates
        raise MissingField("a field of the chunk has the wrong type, and its value has an unpaired surrogate") from None
    except (msgspec.ValidationError, RecursionError) as error:
        message, _, place = str(error).partition(" - at `$.")
        raise MissingField(message, at=place.rstrip("`")) from None


def _remove_empty(fields: JsonObject) -> None:
    """Remove empty fields of any type: some servers write `""`, `[]` or `{}` instead of null."""
    for name in [name for name, value in fields.items() if value in ("", [], {}) and name != "finish_reason"]:
        del fields[name]


def _move_unknown(fields: JsonObject, known: frozenset[str]) -> None:
    """Move unknown fields under `rest`, without the empty ones."""
    unknown = {name: fields.pop(name) for name in [*fields] if name not in known}
    filled: Json = {name: value for name, value in unknown.items() if value not in (None, [], {})}
    fields["rest"] = filled or None
