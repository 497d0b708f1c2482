"""What the gateway answers by itself: lists of models in each family's shape, and an estimate of tokens. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from dragoman.errors import UnknownModel
from dragoman.model.blocks import Block, Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_MEDIA_TOKENS = 1600  # of an image or a page, whatever its size: a convention
_MESSAGE_TOKENS = 4
_SINCE = int(time.time())  # clients want a date; nobody knows a better one


def models(family: str, names: Sequence[str], wanted: str, since: int = _SINCE) -> bytes:
    """The list, or one of it if `wanted` names it. Raises UnknownModel."""
    if wanted and wanted not in names:
        raise UnknownModel(f"the model {wanted!r} is not listed here; known: {', '.join(names[:10])}")
    one, many = _SHAPES.get(family, _SHAPES["openai"])
    if wanted:
        return jsonio.encode(one(wanted, since))
    return jsonio.encode(many([one(name, since) for name in names]))


def _openai(name: str, since: int) -> dict[str, Json]:
    return {"id": name, "object": "model", "created": since, "owned_by": "dragoman"}


def _openai_list(data: list[Json]) -> Json:
    return {"object": "list", "data": data}


def _anthropic(name: str, since: int) -> dict[str, Json]:
    created = datetime.fromtimestamp(since, UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": name, "display_name": name, "created_at": created}


def _anthropic_list(data: list[Json]) -> Json:
    ids = [entry.get("id") for entry in data if isinstance(entry, dict)]
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}


def _kiro(name: str, since: int) -> dict[str, Json]:
    return {"modelId": name, "modelName": name}


def _kiro_list(data: list[Json]) -> Json:
    return {"models": data, "defaultModel": data[0] if data else None}


_Shape = tuple[Callable[[str, int], dict[str, Json]], Callable[[list[Json]], Json]]
_SHAPES: dict[str, _Shape] = {
    "openai": (_openai, _openai_list),
    "anthropic": (_anthropic, _anthropic_list),
    "kiro": (_kiro, _kiro_list),
}


# --- counting


def estimate(conversation: Conversation) -> int:
    """Tokens of all that a conversation says, from its characters: about four of ASCII, or one other, make one."""
    said = [text.text for text in conversation.system]
    said += [jsonio.encode(tool).decode() for tool in conversation.tools]
    blocks = [block for message in conversation.messages for block in message.blocks]
    counted = sum(map(_tokens, said)) + sum(_block(block) for block in blocks)
    return counted + _MESSAGE_TOKENS * len(conversation.messages)


def _block(block: Block) -> int:
    if isinstance(block, Media):
        return _MEDIA_TOKENS
    if isinstance(block, ToolResult):
        return sum(map(_block, block.content))
    return sum(map(_tokens, _words(block)))


def _words(block: Block) -> Iterator[str]:
    match block:
        case Text(text=text) | Reasoning(text=text):
            yield text
        case ToolCall(name=name, arguments=arguments):
            yield from (name, arguments)
        case Opaque(data=data):
            yield jsonio.encode(data).decode()
        case _:
            return


def _tokens(text: str) -> int:
    wide = 0 if text.isascii() else sum(char > "\x7f" for char in text)
    return wide + (len(text) - wide + 3) // 4
