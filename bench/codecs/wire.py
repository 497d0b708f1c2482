"""What framing costs: microseconds a frame, and for event streams the limit it must stay under.

The limit is a ratio to the decoder of botocore, measured in the same run, because machines differ: a struct decoder
with both checksums against botocore's EventStreamBuffer.
Run: python -m bench.codecs.wire
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial

from dragoman.wire import jsonio
from dragoman.wire.eventstream import EventStreamDecoder, encode_event
from dragoman.wire.markers import Markers
from dragoman.wire.sse import SseDecoder, encode_sse

try:
    from botocore.eventstream import EventStreamBuffer
except ImportError:
    EventStreamBuffer = None

FRAMES = 2000
MIB = 1024 * 1024
# chunking: (size of a read, our limit in parts of botocore's time)
LIMITS = {
    "one message per read": (0, 4.3 / 18.5),
    "one 388 KB buffer": (1 << 30, 2.1 / 25.7),
    "64 KiB reads": (65536, 2.0 / 16.7),
    "1 KiB reads": (1024, 3.0 / 12.4),
    "16-byte reads": (16, 20.7 / 35.1),
}
TEXT = b'{"contentBlockIndex":0,"delta":{"text":"Hello, world"},"p":"abcdefghijklmnopqr"}'
TEXTS = [TEXT[:-2] + b"s" * (index % 40) + b'"}' for index in range(FRAMES)]  # lengths vary in life, too
CHUNK = (
    b'{"id":"chatcmpl-9x8y7z","object":"chat.completion.chunk","created":1730000000,"model":"kimi-k2",'
    b'"choices":[{"index":0,"delta":{"content":" world"},"finish_reason":null}]}'
)


def best(work: Callable[[], object], frames: int = FRAMES, repeat: int = 5) -> float:
    """Time the work a few times; give the best, in microseconds a frame."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) / frames * 1e6


def reads(messages: list[bytes], size: int) -> list[bytes]:
    """Return the messages as reads of `size` bytes; 0: one message per read."""
    if not size:
        return messages
    whole = b"".join(messages)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def ours(make: Callable[[], SseDecoder | EventStreamDecoder], chunks: Iterable[bytes], frames: int) -> None:
    """Decode the chunks with a decoder of this project, and check the number of frames."""
    decoder = make()
    count = 0
    for chunk in chunks:
        for _ in decoder.feed(chunk):
            count += 1
    for _ in decoder.close():
        count += 1
    if count != frames:
        raise SystemExit(f"decoded {count} frames of {frames}")


def botocores(chunks: Iterable[bytes], frames: int) -> None:
    """Decode the chunks with botocore, and check the number of frames."""
    buffer = EventStreamBuffer()
    count = 0
    for chunk in chunks:
        buffer.add_data(chunk)
        for _ in buffer:
            count += 1
    if count != frames:
        raise SystemExit(f"botocore decoded {count} frames of {frames}")


def event_stream() -> bool:
    """Print the event stream's table; return whether every limit was met."""
    messages = [encode_event("contentBlockDelta", text) for text in TEXTS]
    good = True
    print(f"event stream decode, {sum(map(len, messages)) // FRAMES}-byte messages   ours  botocore  ratio  limit")
    for name, (size, limit) in LIMITS.items():
        chunks = reads(messages, size)
        own = best(partial(ours, EventStreamDecoder, chunks, FRAMES))
        theirs = best(partial(botocores, chunks, FRAMES)) if EventStreamBuffer else float("nan")
        met = not own / theirs > limit
        good = good and met
        print(f"  {name:41} {own:8.2f} {theirs:9.2f} {own / theirs:6.3f} {limit:6.3f}{'' if met else '  TOO SLOW'}")
    print(f"  {'encode':41} {best(lambda: [encode_event('contentBlockDelta', TEXT) for _ in range(FRAMES)]):8.2f}")
    return good


def sse() -> None:
    """Print the cost of server-sent events."""
    print("\nSSE, microseconds a frame")
    shapes = {
        "data": encode_sse(b"", CHUNK),
        "event + data": encode_sse(b"content_block_delta", CHUNK),
        "data, CRLF": encode_sse(b"", CHUNK).replace(b"\n", b"\r\n"),
        "event + data + id": b"id: 7\n" + encode_sse(b"content_block_delta", CHUNK),
    }
    for shape, frame in shapes.items():
        cuts = [reads([frame] * FRAMES, size) for size, _ in LIMITS.values()]
        cells = [best(partial(ours, SseDecoder, chunks, FRAMES)) for chunks in cuts]
        print(f"  decode {shape:20}" + "".join(f"{cell:9.2f}" for cell in cells))
    print(f"  {'':27}" + "".join(f"{name:>9}" for name in ("one", "whole", "64 KiB", "1 KiB", "16 B")))
    print(f"  encode data                {best(lambda: [encode_sse(b'', CHUNK) for _ in range(FRAMES)]):9.2f}")
    named = best(lambda: [encode_sse(b"content_block_delta", CHUNK) for _ in range(FRAMES)])
    print(f"  encode event + data        {named:9.2f}")


def large() -> bool:
    """Print the cost of one large frame in 1 KiB reads; return whether it grows no faster than the frame."""
    print("\none frame in 1 KiB reads, ms       1 MiB    2 MiB    4 MiB")
    cases: dict[str, tuple[Callable[[], SseDecoder | EventStreamDecoder], Callable[[int], bytes]]] = {
        "event stream": (EventStreamDecoder, lambda size: encode_event("x", b"a" * size)),
        "SSE, one line": (SseDecoder, lambda size: encode_sse(b"", b"a" * size)),
        "SSE, short lines": (SseDecoder, lambda size: encode_sse(b"", b"aaaaaaa\n" * (size // 8))),
        "SSE, short CRLF lines": (
            SseDecoder,
            lambda size: encode_sse(b"", b"aaaaaaa\n" * (size // 8)).replace(b"\n", b"\r\n"),
        ),
    }
    good = True
    for name, (make, build) in cases.items():
        cuts = (reads([build(size)], 1024) for size in (MIB, 2 * MIB, 4 * MIB))
        small, middle, big = (best(partial(ours, make, chunks, 1), 1, 3) / 1000 for chunks in cuts)
        linear = big < 10 * small  # 4 times is linear, fresh pages cost extra; 16 times is quadratic
        good = good and linear
        print(f"  {name:28} {small:9.2f} {middle:8.2f} {big:8.2f}{'' if linear else '  NOT LINEAR'}")
    return good


def rest() -> None:
    """Print the cost of the marker search and of JSON."""
    print("\nother, microseconds")
    markers = Markers(["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"])
    for name, work in {
        "marker scan of a 5-character delta": lambda: [markers.find("hello", 0, False) for _ in range(FRAMES)],
        "quote of a 5-character text": lambda: [jsonio.quote("hello") for _ in range(FRAMES)],
        "decode of a chunk": lambda: [jsonio.decode(CHUNK) for _ in range(FRAMES)],
    }.items():
        print(f"  {name:42} {best(work):8.2f}")


def main() -> int:
    """Print all tables; return 1 if a decoder misses its limit."""
    good = event_stream()
    sse()
    good = large() and good
    rest()
    if not good:
        print("\nslower than the limit", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
