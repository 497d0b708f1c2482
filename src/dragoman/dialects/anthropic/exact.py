"""Requests of the documented shape, read from their bytes into Structs: long histories take less time and memory so.

What the Structs refuse is matched and read by `Fields`. Where both can read a request they give the same conversation.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, structs

from dragoman.dialects.anthropic.binding import generates, hints_of
from dragoman.dialects.anthropic.request import MESSAGES, conversation_of
from dragoman.dialects.anthropic.shapes import RawCall, RawMessage, made_message
from dragoman.dialects.base import Call, ExactRequest
from dragoman.errors import DragomanError
from dragoman.model.blocks import Where
from dragoman.model.conversation import Message
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

_CALL, _SOON = b'"tool_use"', 65536  # calls make it worth while; where bytes pass, the body is read once more
_DEEP = b"[{"
_MESSAGE_VALUES, _BLOCK_VALUES = 3, 4  # JSON values of a message and of a block, about


class _Request(Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    messages: list[RawMessage]
    stream: bool = False
    system: Any = UNSET
    tools: Any = UNSET
    tool_choice: Any = UNSET
    max_tokens: Any = UNSET
    stop_sequences: Any = UNSET
    temperature: Any = UNSET
    top_p: Any = UNSET
    top_k: Any = UNSET
    thinking: Any = UNSET
    output_config: Any = UNSET
    metadata: Any = UNSET
    service_tier: Any = UNSET
    context_management: Any = UNSET


_OWN = ("model", "messages", "stream")
_read = jsonio.fitting(_Request)


def exact_request(request: HttpRequest) -> ExactRequest | None:
    """Read a request that generates and has the documented shape; None for any other."""
    body = request.body
    shape = _read(body) if generates(request) and body.find(_CALL, 0, _SOON) >= 0 else None
    if shape is None or not shape.model.strip():
        return None
    rest: dict[str, Json] = {
        name: value for name, value in structs.asdict(shape).items() if name not in _OWN and value is not UNSET
    }
    call = Call("generate", shape.model, shape.stream, rest, hints_of(request))
    try:
        messages = _messages(shape.messages)
        asked = None if messages is None else conversation_of(call, messages)
    except (DragomanError, RecursionError):
        return None  # matching says what is wrong
    if asked is None:
        return None
    blocks = [block for message in shape.messages if isinstance(message.content, list) for block in message.content]
    inputs = [block.input for block in blocks if type(block) is RawCall]
    deep = [jsonio.decode(value) for given in inputs for value in given.values() if memoryview(value)[0] in _DEEP]
    # A list for each level above them: the messages, a message, its content, a block, its input.
    free = structs.replace(call, body={"messages": [[[[deep]]]], **rest})
    values = _MESSAGE_VALUES * len(shape.messages) + _BLOCK_VALUES * len(blocks) + sum(map(len, inputs))
    return ExactRequest(free, asked, values)


def _messages(shapes: list[RawMessage]) -> tuple[Message, ...] | None:
    made = [made_message(shape, Where(MESSAGES, index)) for index, shape in enumerate(shapes)]
    messages = tuple([message for message in made if message is not None])
    return messages if len(messages) == len(made) else None
