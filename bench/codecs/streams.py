"""What one translated event costs, by pair and by how many events a read brings. CPU time, best of five."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import dragoman
from dragoman.wire.eventstream import encode_event

EVENTS = 10_000


def main() -> int:
    """Print the CPU time of each translation of a stream."""
    print("microseconds of CPU an event, 1 and 10 events a read\n")
    for (title, source), frames in _streams().items():
        for target in ("anthropic", "openai"):
            one, ten = (_cost(frames, source, target, per_read) for per_read in (1, 10))
            print(f"  {title:<28} -> {target:<10} {one:6.2f} {ten:6.2f}")
    return 0


def _cost(frames: list[bytes], source: str, target: str, per_read: int) -> float:
    reads = [b"".join(frames[at : at + per_read]) for at in range(0, len(frames), per_read)]
    best = float("inf")
    for _ in range(5):
        stream = dragoman.stream_translator(source=source, target=target)
        start = time.process_time()
        for read in reads:
            stream.feed(read)
        stream.close()
        best = min(best, time.process_time() - start)
        if stream.error is not None:
            raise SystemExit(f"a fast wrong response: {stream.error}")
    return best / EVENTS * 1e6


def _streams() -> dict[tuple[str, str], list[bytes]]:
    return {
        ("openai text", "openai"): [
            _chunk({"role": "assistant", "content": ""}),
            *[_chunk({"content": "hello "})] * EVENTS,
            _chunk({}, "stop"),
            b"data: [DONE]\n\n",
        ],
        ("openai tool arguments", "openai"): [
            _chunk(_call({"index": 0, "id": "a", "type": "function"}, name="f", arguments='{"a":"')),
            *[_chunk(_call({"index": 0}, arguments="hello "))] * EVENTS,
            _chunk(_call({"index": 0}, arguments='"}')),
            _chunk({}, "tool_calls"),
            b"data: [DONE]\n\n",
        ],
        ("anthropic text", "anthropic"): [
            _event("message_start", message=_MESSAGE),
            _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            *[_event("content_block_delta", index=0, delta={"type": "text_delta", "text": "hello "})] * EVENTS,
            _event("content_block_stop", index=0),
            _event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9}),
            _event("message_stop"),
        ],
        ("kiro text", "kiro"): [
            *[encode_event("assistantResponseEvent", b'{"content":"hello ","modelId":"m"}')] * EVENTS,
            encode_event("contextUsageEvent", b'{"contextUsagePercentage":1.5}'),
        ],
    }


_MESSAGE: dict[str, Any] = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


def _call(head: dict[str, Any], **function: str) -> dict[str, Any]:
    return {"tool_calls": [{**head, "function": function}]}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())


if __name__ == "__main__":
    sys.exit(main())
