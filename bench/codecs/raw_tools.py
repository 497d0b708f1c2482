"""What recovering raw tool calls costs: microseconds a delta of five characters, and the bars it must stay under.

The bar of 2 µs is for a quiet machine of the project's class. A busy one is judged by the ratio to a loop that only
decodes and re-encodes the same frames, measured in the same run. Run: python -m bench.codecs.raw_tools
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence

from msgspec import Struct

from dragoman.filters.raw_tools import Engine, Ids, RawTools, Tools
from dragoman.filters.raw_tools.outputs import Arguments, CallStarted
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.events import BlockStarted, Events, Started, TextDelta
from dragoman.model.notes import Notes
from dragoman.wire import jsonio

DELTAS = 80_000
SIZE = 5
BAR = 2.0  # µs a delta
QUIET = 0.65  # µs: decoding and re-encoding one frame on a quiet machine of the class
DRIFT = 1.2  # the last tenth to the first
GROWTH = 64 * 1024  # bytes, over an argument of 8 MB
MIB = 1024 * 1024

SB, CB, AB = "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
OPEN = f"{SB}{CB}functions.write:0{AB}"
PROSE = (
    "Let me look at the file first, because it's not clear what the parser does with a `<` in it. It reads one line\n"
    'at a time; if a < b, it goes on. "Quoted" words are kept as they are. Then I change two functions.\n\n'
)
CODE = (
    'def read(path):\n    """Read."""\n    with open(path) as file:\n        return {"text": file.read(), "n": 1}\n\n'
)
FIELDS: dict[str, jsonio.Json] = {"path": {"type": "string"}, "content": {"type": "string"}, "rows": {"type": "array"}}
TOOLS = (ToolSpec("write", schema={"properties": FIELDS}), ToolSpec("bash"), ToolSpec("read_file"))


def cut(text: str) -> list[str]:
    """As many deltas as we measure, of five characters."""
    text *= DELTAS * SIZE // len(text) + 1
    return [text[at : at + SIZE] for at in range(0, DELTAS * SIZE, SIZE)]


def escaped(text: str) -> str:
    return str(jsonio.quote(text), "utf-8")[1:-1]


TAG = "<tool_call>\n<function=write>\n<parameter=content>\n"
# name: (what comes before, the deltas, whether the bar counts)
STREAMS: dict[str, tuple[str, list[str], bool]] = {
    "prose": ("", cut(PROSE), True),
    "arguments: a file": (OPEN + '{"content": "', cut(escaped(CODE)), True),
    "arguments: prose": (OPEN + '{"content": "', cut(escaped(PROSE)), True),
    "arguments: numbers": (OPEN + '{"rows": [', cut('1234, {"a": null}, [true, -1.5e3], '), True),
    "arguments: no JSON": (OPEN, cut(CODE), True),
    "hermes: a file": ('<tool_call>{"name": "write", "arguments": {"content": "', cut(escaped(CODE)), False),
    "qwen coder: a file": (TAG, cut(CODE), False),
}


def engine(before: str) -> Engine:
    started = Engine("auto", Tools(TOOLS), Ids())
    started.feed(before)
    return started


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def tenths(before: str, deltas: Sequence[str], repeat: int = 4) -> list[float]:
    """The best time of each tenth of the stream, in µs a delta."""
    size = len(deltas) // 10
    best = [float("inf")] * 10
    for _ in range(repeat):
        feed = engine(before).feed

        def some(part: Sequence[str], feed: Callable[[str], object] = feed) -> None:
            for delta in part:
                feed(delta)

        for tenth in range(10):
            part = deltas[tenth * size : (tenth + 1) * size]
            best[tenth] = min(best[tenth], timed(lambda part=part: some(part)) / size * 1e6)  # type: ignore[misc]
    return best


def floor(deltas: Sequence[str]) -> float:
    """Decode and re-encode the same deltas as frames: µs a frame."""
    frames = [
        jsonio.encode(
            {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": delta}, "finish_reason": None}]}
        )
        for delta in deltas[:8000]
    ]

    def work() -> None:
        for frame in frames:
            jsonio.encode(jsonio.decode(frame))

    return min(timed(work) for _ in range(5)) / len(frames) * 1e6


def through_the_filter(deltas: Sequence[str]) -> float:
    """The whole way back, one event a frame: µs a frame."""
    _, make_back = RawTools().forward(Conversation("kimi", (Message("user", (Text("x"),)),), tools=TOOLS), Notes())
    if make_back is None:
        raise SystemExit("raw_tools is off")
    back = make_back(Notes())
    back.feed((Started("r", "m"), BlockStarted(0, Text(""))))
    frames: list[Events] = [(TextDelta(0, delta),) for delta in deltas]

    def work() -> None:
        for frame in frames:
            back.feed(frame)

    return min(timed(work) for _ in range(3)) / len(frames) * 1e6


def growth() -> int:
    """Bytes that are more in use after an argument of 8 MB than after its beginning."""
    started = engine(OPEN + '{"content": "')
    piece = escaped(CODE)
    for _ in range(100):
        started.feed(piece)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(8 * MIB // len(piece)):
        started.feed(piece)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before


def delay() -> int:
    """How many deltas after its own the first byte of the arguments goes out."""
    text = f'{OPEN} {{"path": "a"}}'
    begins = text.index("{")
    started = engine("")
    for at in range(0, len(text), SIZE):
        outputs = started.feed(text[at : at + SIZE])
        if any(isinstance(output, Arguments) for output in outputs):
            return at // SIZE - begins // SIZE
        if any(isinstance(output, CallStarted) for output in outputs) and at > begins + SIZE:
            break
    return len(text)


class Cost(Struct):
    mean: float
    codec: float
    drift: float

    @property
    def ratio(self) -> float:
        return self.mean / self.codec

    @property
    def good(self) -> bool:
        return (self.mean <= BAR or self.ratio <= BAR / QUIET) and self.drift <= DRIFT


def measured(before: str, deltas: Sequence[str]) -> Cost:
    """Up to five attempts: others may be using the machine. What is really too slow, or slows down, always is."""
    tries: list[Cost] = []
    while len(tries) < 5:
        best = tenths(before, deltas)
        tries.append(Cost(sum(best) / 10, floor(deltas), best[-1] / best[0]))
        if tries[-1].good:
            return tries[-1]
    return min(tries, key=lambda cost: (cost.drift > DRIFT, cost.ratio))


def main() -> int:
    missed: list[str] = []
    print(f"{'stream':22} {'µs/delta':>9} {'codec':>6} {'ratio':>6} {'last/first':>10}")
    for name, (before, deltas, counts) in STREAMS.items():
        cost = measured(before, deltas)
        figures = f"{cost.mean:9.2f} {cost.codec:6.2f} {cost.ratio:6.2f} {cost.drift:10.2f}"
        print(f"{name:22} {figures}  {verdict(cost.good, counts)}")
        if counts and not cost.good:
            missed.append(name)
    print(f"the bar is {BAR} µs or, on a busy machine, {BAR / QUIET:.1f} times the codec; last/first {DRIFT}")
    print(f"{'prose, whole filter':22} {through_the_filter(STREAMS['prose'][1]):9.2f}")
    grown, late = growth(), delay()
    print(f"memory after 8 MB of arguments: {grown:+} bytes  {verdict(grown < GROWTH, True)}")
    print(f"first argument byte: {late} deltas after it arrived  {verdict(late <= 1, True)}")
    missed += ["memory"] * (grown >= GROWTH) + ["delay"] * (late > 1)
    if missed:
        print("missed: " + ", ".join(missed))
    return 1 if missed else 0


def verdict(good: bool, counts: bool) -> str:
    return ("ok" if good else "MISSED") if counts else "(no bar)"


if __name__ == "__main__":
    sys.exit(main())
