"""A cheap upstream in all dialects, without the codecs: it finds the name in a request and streams its response.

`python -m tests.load.upstream SECONDS` prints the port of each dialect as JSON and serves until its standard input
ends; a response takes about that many seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

from tests.load.payload import TOOL, UNPACED_PREFIX, ExpectedResponse, expected_response, name_in_request

_END = b"0\r\n\r\n"


def _json(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _data(body: Any) -> bytes:
    return b"data: %b\n\n" % _json(body)


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\n" % kind.encode() + _data({"type": kind, **fields})


def _frame(kind: str, body: Any) -> bytes:
    return eventstream_frame(kind, _json(body))


def eventstream_frame(kind: str, payload: bytes) -> bytes:
    """Return a message of an AWS event stream."""
    pairs = ((":event-type", kind), (":content-type", "application/json"), (":message-type", "event"))
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in pairs
    )
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", crc32(prelude)) + headers + payload
    return message + struct.pack(">I", crc32(message))


# --- a response in each dialect


def anthropic(name: str, expected: ExpectedResponse) -> Iterator[bytes]:
    message = {"id": f"msg_{name}", "type": "message", "role": "assistant", "model": "m", "content": []}
    usage = {"input_tokens": 10, "output_tokens": 1}
    yield _event("message_start", message=message | {"stop_reason": None, "stop_sequence": None, "usage": usage})
    yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for piece in expected.text:
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
    yield _event("content_block_stop", index=0)
    for index, pieces in enumerate(expected.calls, 1):
        block = {"type": "tool_use", "id": f"toolu_{name}{index}", "name": TOOL, "input": {}}
        yield _event("content_block_start", index=index, content_block=block)
        for piece in pieces:
            delta = {"type": "input_json_delta", "partial_json": piece}
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    stop = {"stop_reason": "tool_use" if expected.calls else "end_turn", "stop_sequence": None}
    yield _event("message_delta", delta=stop, usage={"output_tokens": 50})
    yield _event("message_stop")


def openai(name: str, expected: ExpectedResponse) -> Iterator[bytes]:
    chunk = {"id": f"chatcmpl-{name}", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "m"}

    def frame_of(delta: Any, finish: str | None = None) -> bytes:
        return _data(chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield frame_of({"role": "assistant", "content": ""})
    for piece in expected.text:
        yield frame_of({"content": piece})
    for index, pieces in enumerate(expected.calls):
        begun = {"index": index, "id": f"call_{name}{index}", "type": "function"}
        yield frame_of({"tool_calls": [begun | {"function": {"name": TOOL, "arguments": ""}}]})
        for piece in pieces:
            yield frame_of({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield frame_of({}, "tool_calls" if expected.calls else "stop")
    yield _data(chunk | {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 50, "total_tokens": 60}})
    yield b"data: [DONE]\n\n"


def responses(name: str, expected: ExpectedResponse) -> Iterator[bytes]:
    number = iter(range(10_000))

    def frame_of(kind: str, **fields: Any) -> bytes:
        return _event(kind, sequence_number=next(number), **fields)

    response: dict[str, Any] = {"id": f"resp_{name}", "object": "response", "created_at": 1_790_000_000, "model": "m"}
    response |= {"error": None, "incomplete_details": None, "instructions": None, "metadata": {}, "tools": []}
    begun = response | {"status": "in_progress", "output": [], "usage": None}
    yield frame_of("response.created", response=begun)
    yield frame_of("response.in_progress", response=begun)
    item: dict[str, Any] = {"id": f"msg_{name}", "type": "message", "role": "assistant"}
    part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []}
    at: dict[str, Any] = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    yield frame_of("response.output_item.added", output_index=0, item=item | {"status": "in_progress", "content": []})
    yield frame_of("response.content_part.added", **at, part=part)
    for piece in expected.text:
        yield frame_of("response.output_text.delta", **at, delta=piece)
    part = part | {"text": expected.whole()}
    yield frame_of("response.output_text.done", **at, text=expected.whole())
    yield frame_of("response.content_part.done", **at, part=part)
    output = [item | {"status": "completed", "content": [part]}]
    yield frame_of("response.output_item.done", output_index=0, item=output[0])
    for index, pieces in enumerate(expected.calls, 1):
        call = {"id": f"fc_{name}{index}", "type": "function_call", "call_id": f"call_{name}{index}", "name": TOOL}
        opened = call | {"status": "in_progress", "arguments": ""}
        yield frame_of("response.output_item.added", output_index=index, item=opened)
        at = {"item_id": call["id"], "output_index": index}
        for piece in pieces:
            yield frame_of("response.function_call_arguments.delta", **at, delta=piece)
        yield frame_of("response.function_call_arguments.done", **at, arguments="".join(pieces))
        output.append(call | {"status": "completed", "arguments": "".join(pieces)})
        yield frame_of("response.output_item.done", output_index=index, item=output[-1])
    usage: dict[str, Any] = {"input_tokens": 10, "output_tokens": 50, "total_tokens": 60}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    yield frame_of("response.completed", response=response | {"status": "completed", "output": output, "usage": usage})


def gemini(name: str, expected: ExpectedResponse) -> Iterator[bytes]:
    more = {"modelVersion": "m", "responseId": name}

    def frame_of(parts: Any, **finish: Any) -> bytes:
        return _data({"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0, **finish}], **more})

    for piece in expected.text:
        yield frame_of([{"text": piece}])
    for arguments in expected.arguments():
        yield frame_of([{"functionCall": {"name": TOOL, "args": arguments}}])
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 50, "totalTokenCount": 60}
    last = {"content": {"role": "model", "parts": [{"text": ""}]}, "index": 0, "finishReason": "STOP"}
    yield _data({"candidates": [last], "usageMetadata": usage, **more})


def kiro(name: str, expected: ExpectedResponse) -> Iterator[bytes]:
    for piece in expected.text:
        yield _frame("assistantResponseEvent", {"content": piece, "modelId": "m"})
    for index, pieces in enumerate(expected.calls):
        use = {"name": TOOL, "toolUseId": f"tooluse_{name}{index}"}
        for piece in pieces:
            yield _frame("toolUseEvent", use | {"input": piece})
        yield _frame("toolUseEvent", use | {"stop": True})
    yield _frame("meteringEvent", {"unit": "credit", "unitPlural": "credits", "usage": 0.05})
    yield _frame("contextUsageEvent", {"contextUsagePercentage": 1.5})


def bedrock(name: str, expected: ExpectedResponse) -> Iterator[bytes]:
    yield _frame("messageStart", {"role": "assistant"})
    for piece in expected.text:
        yield _frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": piece}})
    yield _frame("contentBlockStop", {"contentBlockIndex": 0})
    for index, pieces in enumerate(expected.calls, 1):
        start = {"toolUse": {"toolUseId": f"tooluse_{name}{index}", "name": TOOL}}
        yield _frame("contentBlockStart", {"contentBlockIndex": index, "start": start})
        for piece in pieces:
            delta = {"toolUse": {"input": piece}}
            yield _frame("contentBlockDelta", {"contentBlockIndex": index, "delta": delta})
        yield _frame("contentBlockStop", {"contentBlockIndex": index})
    yield _frame("messageStop", {"stopReason": "tool_use" if expected.calls else "end_turn"})
    usage = {"inputTokens": 10, "outputTokens": 50, "totalTokens": 60}
    yield _frame("metadata", {"usage": usage, "metrics": {"latencyMs": 9}})


def ollama(name: str, expected: ExpectedResponse) -> Iterator[bytes]:
    def frame_of(message: Any, **last: Any) -> bytes:
        line = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", **message}}
        return json.dumps({**line, "done": False, **last}).encode() + b"\n"

    for piece in expected.text:
        yield frame_of({"content": piece})
    for arguments in expected.arguments():
        yield frame_of({"content": "", "tool_calls": [{"function": {"name": TOOL, "arguments": arguments}}]})
    yield frame_of({"content": ""}, done=True, done_reason="stop", prompt_eval_count=10, eval_count=50)


DIALECTS: dict[str, Callable[[str, ExpectedResponse], Iterator[bytes]]] = {
    "anthropic": anthropic,
    "openai": openai,
    "responses": responses,
    "gemini": gemini,
    "kiro": kiro,
    "bedrock": bedrock,
    "ollama": ollama,
}
_EVENT_STREAMS = ("kiro", "bedrock")


# --- the server


async def _serve(dialect: str, seconds: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    kind = "application/vnd.amazon.eventstream" if dialect in _EVENT_STREAMS else "text/event-stream"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
            length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
            name = name_in_request(await reader.readexactly(length))
            if name is None:
                body = b'{"error": {"message": "the request is not whole, or mixed with another"}}'
                writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                continue
            frames = list(DIALECTS[dialect](name, expected_response(name)))
            writer.write(head)
            for frame in frames:
                writer.write(b"%x\r\n%b\r\n" % (len(frame), frame))
                await writer.drain()
                await asyncio.sleep(0.0 if name.startswith(UNPACED_PREFIX) else seconds / len(frames))
            writer.write(_END)
    writer.close()


async def main(seconds: float) -> None:
    ports = {}
    for dialect in DIALECTS:

        async def serve(reader: Any, writer: Any, dialect: str = dialect) -> None:
            await _serve(dialect, seconds, reader, writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20, backlog=1024)
        ports[dialect] = server.sockets[0].getsockname()[1]
    print(json.dumps(ports), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(float(sys.argv[1])))
