"""The responses of the fake upstream in every dialect, as bytes made once, and the content that a client must read.

This code shares nothing with Dragoman on purpose: a shared encoder would hide its errors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from zlib import crc32

TEXTS = 300
PIECE_SIZE = 8  # characters; pieces differ, because some gateways stop a model that repeats itself
FRAGMENTS = 20
ARGUMENTS = json.dumps({"path": "src/app.py", "old": "one two three " * 6, "new": "four five six\n" * 6})
TOOL = "edit_file"
KIMI_DELTAS = 20_000
KIMI_SIZE = 5
PACED_EVENTS = 450
SHORT, LONG = 5_000, 80_000

SSE = "text/event-stream"
EVENT_STREAM = "application/vnd.amazon.eventstream"
JSON = "application/json"


@dataclass(frozen=True)
class ResponseContent:
    """The content of a response, independent of its dialect."""

    text: str
    tool: str = ""
    arguments: str = ""
    stop: str = "end"
    deltas: int = 0  # number of pieces of text and arguments in a stream


@dataclass(frozen=True)
class CannedResponse:
    """The events of one response, or its one body, and the content that they carry."""

    kind: str
    events: tuple[bytes, ...]
    content: ResponseContent

    def response(self) -> bytes:
        """Return the whole HTTP response; each event is one chunk of the transfer coding, as services send them."""
        if self.kind == JSON:
            (body,) = self.events
            return _head(JSON, b"content-length: %d" % len(body)) + body
        return self.head() + b"".join(map(chunk, self.events)) + END

    def head(self) -> bytes:
        """Return the HTTP head of a chunked response."""
        return _head(self.kind, b"transfer-encoding: chunked")


END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Return the data as one chunk of the transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _head(kind: str, length: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\nx-request-id: req_1\r\n%b\r\n\r\n" % (kind.encode(), length)


def _cut(text: str, pieces: int) -> list[str]:
    size = -(-len(text) // pieces)
    return [text[at : at + size] for at in range(0, len(text), size)]


def _texts(count: int = TEXTS) -> list[str]:
    return [f"{at % 100_000:05d} it"[:PIECE_SIZE] for at in range(count)]


# --- OpenAI


_CHUNK = {"id": "chatcmpl-9x8y7z6w5v", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "bench"}
_COUNTS = {"prompt_tokens": 120, "completion_tokens": 330, "total_tokens": 450}


def _data(body: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(body, separators=(",", ":")).encode()


def _openai(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return _data({**_CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _openai_stream(pieces: list[str], arguments: list[str] = [], stop: str = "stop") -> tuple[bytes, ...]:  # noqa: B006
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": TOOL, "arguments": ""}}
    return (
        _openai({"role": "assistant", "content": ""}),
        *(_openai({"content": piece}) for piece in pieces),
        *((_openai({"tool_calls": [call]}),) if arguments else ()),
        *(_openai({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}) for piece in arguments),
        _openai({}, stop),
        _data({**_CHUNK, "choices": [], "usage": _COUNTS}),
        b"data: [DONE]\n\n",
    )


def _whole() -> CannedResponse:
    text = "A short answer. " * 12
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {**_CHUNK, "object": "chat.completion", "choices": [choice], "usage": _COUNTS}
    return CannedResponse(JSON, (json.dumps(body, separators=(",", ":")).encode(),), ResponseContent(text))


def _stream(count: int = TEXTS) -> CannedResponse:
    pieces = _texts(count)
    return CannedResponse(SSE, _openai_stream(pieces), ResponseContent("".join(pieces), deltas=count))


def _call() -> CannedResponse:
    fragments = _cut(ARGUMENTS, FRAGMENTS)
    return CannedResponse(SSE, _openai_stream(_texts(), fragments, "tool_calls"), _CALL_CONTENT)


_CALL_CONTENT = ResponseContent("".join(_texts()), TOOL, ARGUMENTS, "tool", TEXTS + len(_cut(ARGUMENTS, FRAGMENTS)))


def _kimi(deltas: int = KIMI_DELTAS) -> CannedResponse:
    """Return a stream with a call that the model wrote as raw tokens, five characters at a time."""
    opening, closing = "<|tool_calls_section_begin|><|tool_call_begin|>functions.edit_file:0", "<|tool_call_end|>"
    line = "def read(path): return 'it is \\\"so\\\"'\\n"
    body = '{"path":"a.py","new":"' + line * (deltas * KIMI_SIZE // len(line) - 1) + '"}'
    raw = f"{opening}<|tool_call_argument_begin|>{body}{closing}<|tool_calls_section_end|>"
    pieces = [raw[at : at + KIMI_SIZE] for at in range(0, len(raw), KIMI_SIZE)]
    return CannedResponse(SSE, _openai_stream(pieces), ResponseContent("", TOOL, body, "tool", len(body) // KIMI_SIZE))


# --- Anthropic


def _event(kind: str, **fields: Any) -> bytes:
    body = json.dumps({"type": kind, **fields}, separators=(",", ":")).encode()
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), body)


def _anthropic() -> CannedResponse:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "bench", "content": []}
    usage = {"input_tokens": 120, "output_tokens": 1}
    call = {"type": "tool_use", "id": "toolu_1", "name": TOOL, "input": {}}
    stop = {"stop_reason": "tool_use", "stop_sequence": None}
    delta = "content_block_delta"
    events = (
        _event("message_start", message={**message, "stop_reason": None, "stop_sequence": None, "usage": usage}),
        _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *(_event(delta, index=0, delta={"type": "text_delta", "text": piece}) for piece in _texts()),
        _event("content_block_stop", index=0),
        _event("content_block_start", index=1, content_block=call),
        *(
            _event(delta, index=1, delta={"type": "input_json_delta", "partial_json": piece})
            for piece in _cut(ARGUMENTS, FRAGMENTS)
        ),
        _event("content_block_stop", index=1),
        _event("message_delta", delta=stop, usage={"output_tokens": 330}),
        _event("message_stop"),
    )
    return CannedResponse(SSE, events, _CALL_CONTENT)


# --- event streams


def frame(kind: str, body: dict[str, Any]) -> bytes:
    """Return a message of an AWS event stream: two lengths, their checksum, headers, payload, the checksum of all."""
    pairs = ((":event-type", kind), (":content-type", JSON), (":message-type", "event"))
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in pairs
    )
    payload = json.dumps(body, separators=(",", ":")).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", crc32(prelude)) + headers + payload
    return message + struct.pack(">I", crc32(message))


def _kiro() -> CannedResponse:
    use = {"name": TOOL, "toolUseId": "tooluse_1"}
    events = (
        *(frame("assistantResponseEvent", {"content": piece, "modelId": "bench"}) for piece in _texts()),
        *(frame("toolUseEvent", {**use, "input": piece}) for piece in _cut(ARGUMENTS, FRAGMENTS)),
        frame("toolUseEvent", {**use, "stop": True}),
        frame("meteringEvent", {"unit": "credit", "unitPlural": "credits", "usage": 0.05}),
        frame("contextUsageEvent", {"contextUsagePercentage": 1.5}),
    )
    return CannedResponse(EVENT_STREAM, events, _CALL_CONTENT)


def _bedrock() -> CannedResponse:
    start = {"toolUse": {"toolUseId": "tooluse_1", "name": TOOL}}
    events = (
        frame("messageStart", {"role": "assistant"}),
        *(frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": piece}}) for piece in _texts()),
        frame("contentBlockStop", {"contentBlockIndex": 0}),
        frame("contentBlockStart", {"contentBlockIndex": 1, "start": start}),
        *(
            frame("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"toolUse": {"input": piece}}})
            for piece in _cut(ARGUMENTS, FRAGMENTS)
        ),
        frame("contentBlockStop", {"contentBlockIndex": 1}),
        frame("messageStop", {"stopReason": "tool_use"}),
        frame(
            "metadata",
            {"usage": {"inputTokens": 120, "outputTokens": 330, "totalTokens": 450}, "metrics": {"latencyMs": 9}},
        ),
    )
    return CannedResponse(EVENT_STREAM, events, _CALL_CONTENT)


_MAKERS: dict[str, Callable[[], CannedResponse]] = {
    "whole": _whole,
    "stream": _stream,
    "call": _call,
    "anthropic": _anthropic,
    "kiro": _kiro,
    "bedrock": _bedrock,
    "kimi": _kimi,
    "paced": lambda: _stream(PACED_EVENTS),
    "held": lambda: _stream(1),  # sends an event now and then, and ends when the client leaves
    "short": lambda: _stream(SHORT),
    "long": lambda: _stream(LONG),
    "kimi-short": lambda: _kimi(SHORT),
    "kimi-long": lambda: _kimi(LONG),
}
KINDS = tuple(_MAKERS)


@cache
def canned_response(kind: str) -> CannedResponse:
    """Return the response of this kind."""
    return _MAKERS[kind]()


def stream_events(kind: str) -> Iterator[bytes]:
    """Yield the events of a stream, each as one chunk of the transfer coding."""
    return map(chunk, canned_response(kind).events)
