"""A client that sends 30 MB bodies, and an upstream that sends 100,000 small deltas a second.

python -m tests.load.flood upstream       prints its port; answers each request with endless deltas
python -m tests.load.flood clients URL    sends the bodies and reads the deltas until its standard input ends,
                                          then prints the counts
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from typing import Any

from tests.gateway.harness import KEY

DELTAS = 100_000  # a second
BODY = 30 * 1024 * 1024
_BEAT = 0.01  # seconds between two writes
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_TEXT = "One small delta, then <b>another</b>; and so on. "
_CALLS = 4000


def _frames(count: int) -> bytes:
    chunk: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "m"}
    frames = [
        chunk | {"choices": [{"index": 0, "delta": {"content": _TEXT[at % len(_TEXT)]}, "finish_reason": None}]}
        for at in range(count)
    ]
    return b"".join(b"data: %b\n\n" % json.dumps(frame).encode() for frame in frames)


_END = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    b'{"role":"assistant","content":"ok"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a large request at once, and any other with deltas until the client disconnects."""
    frames = _frames(int(DELTAS * _BEAT))
    deltas = b"%x\r\n%b\r\n" % (len(frames), frames)
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
            length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
            left = length
            while left:
                piece = await reader.read(min(left, 1 << 20))
                if not piece:
                    raise ConnectionError
                left -= len(piece)
            writer.write(_HEAD)
            if length > BODY // 2:
                writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(_END), _END))
                continue
            due = time.monotonic()
            while True:
                writer.write(deltas)
                await writer.drain()
                due = max(due + _BEAT, time.monotonic() - 1.0)
                await asyncio.sleep(max(due - time.monotonic(), 0.0))
    writer.close()


async def upstream() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def large_body() -> bytes:
    """Return a request with texts, calls and results."""
    turns: list[Any] = []
    for number in range(_CALLS // 10):
        uses = [
            {"type": "tool_use", "id": f"toolu_{number}_{at}", "name": "read", "input": {"path": f"/{number}/{at}"}}
            for at in range(10)
        ]
        text = "some text of a file " * (BODY // _CALLS // 20)
        results = [{"type": "tool_result", "tool_use_id": use["id"], "content": text} for use in uses]
        turns += [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    body = {"model": "to-flood", "max_tokens": 1000, "stream": True}
    return json.dumps(body | {"messages": [{"role": "user", "content": "Read."}, *turns]}).encode()


def _request(body: bytes) -> bytes:
    head = f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _send_bodies(port: int, counts: dict[str, float]) -> None:
    request = _request(large_body())
    counts["body_bytes"] = len(request)
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        response = await reader.readuntil(b"0\r\n\r\n")
        if not response.startswith(b"HTTP/1.1 200") or b"message_stop" not in response:
            raise RuntimeError(response[:1000].decode())
        counts["bodies"] += 1
        writer.close()


async def _read_deltas(port: int, counts: dict[str, float]) -> None:
    body = {
        "model": "to-flood",
        "max_tokens": 1000,
        "stream": True,
        "messages": [{"role": "user", "content": "Talk."}],
    }
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_request(json.dumps(body).encode()))
    while piece := await reader.read(1 << 20):
        counts["deltas"] += piece.count(b"content_block_delta") / 2  # in the event's name and in its data
    raise RuntimeError("the stream ended")


async def clients(port: int) -> None:
    counts: dict[str, float] = {"bodies": 0, "deltas": 0}
    began = time.monotonic()
    working = [asyncio.create_task(work(port, counts)) for work in (_send_bodies, _read_deltas)]
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    done, _ = await asyncio.wait([*working, asyncio.ensure_future(ended)], return_when=asyncio.FIRST_COMPLETED)
    problem = [str(task.exception()) for task in working if task in done]
    for task in working:
        task.cancel()
    print(json.dumps(counts | {"seconds": time.monotonic() - began, "problem": problem}), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(upstream() if sys.argv[1] == "upstream" else clients(int(sys.argv[2].rpartition(":")[2])))
