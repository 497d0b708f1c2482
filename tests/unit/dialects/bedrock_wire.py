"""Helpers for Bedrock's wire format: build frames, and read responses back from bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from msgspec import structs

from dragoman.dialects.base import SYSTEM_ENVIRONMENT, StreamReader
from dragoman.dialects.bedrock import DIALECT
from dragoman.model.conversation import Conversation
from dragoman.model.events import BlockStarted, Event
from dragoman.wire.eventstream import EventStreamDecoder, encode_event

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
NOVA = "amazon.nova-pro-v1:0"
REQUEST = Conversation(CLAUDE, ())

START: Any = ("messageStart", {"role": "assistant"})
METADATA: Any = (
    "metadata",
    {
        "usage": {
            "inputTokens": 12,
            "outputTokens": 7,
            "totalTokens": 139,
            "cacheReadInputTokens": 100,
            "cacheWriteInputTokens": 20,
        },
        "metrics": {"latencyMs": 31},
    },
)


def delta(index: int, **member: Any) -> Any:
    return "contentBlockDelta", {"contentBlockIndex": index, "delta": member, "p": "abcdefg"[: index + 2]}


def text(index: int, *pieces: str) -> list[Any]:
    return [*(delta(index, text=piece) for piece in pieces), end(index)]


def use(index: int, id_: str, name: str, *pieces: str) -> list[Any]:
    start = "contentBlockStart", {"contentBlockIndex": index, "start": {"toolUse": {"toolUseId": id_, "name": name}}}
    return [start, *(delta(index, toolUse={"input": piece}) for piece in pieces), end(index)]


def end(index: int) -> Any:
    return "contentBlockStop", {"contentBlockIndex": index}


def stop(reason: str, **more: Any) -> Any:
    return "messageStop", {"stopReason": reason, **more}


def stream(*items: Any) -> bytes:
    """The bytes of frames, given as (kind, data), as lists of those, or as bytes."""
    return b"".join(_bytes(item) for item in items)


def _bytes(item: Any) -> bytes:
    if isinstance(item, bytes):
        return item
    if isinstance(item, list):
        return stream(*item)
    kind, data = item
    return encode_event(kind.removeprefix("!"), json.dumps(data).encode(), error=kind.startswith("!"))


def decode_stream(data: bytes, conversation: Conversation = REQUEST) -> list[Event]:
    """The events of a stream, without the places of blocks."""
    reader = StreamReader(DIALECT.binding.frame_decoder(), DIALECT.codec.decoder(conversation, SYSTEM_ENVIRONMENT))
    events = [event for decoded in (*reader.feed(data), *reader.close()) for event in decoded.events]
    return [structs.replace(event, wire_index=None) if isinstance(event, BlockStarted) else event for event in events]


def frames(data: bytes | Iterable[bytes]) -> list[tuple[str, Any]]:
    """The frames in bytes as (kind, data); exceptions have a `!` before their kind."""
    decoder = EventStreamDecoder()
    found = [*decoder.feed(data if isinstance(data, bytes) else b"".join(data)), *decoder.close()]
    return [(("!" if frame.error else "") + frame.kind, json.loads(frame.data)) for frame in found]
