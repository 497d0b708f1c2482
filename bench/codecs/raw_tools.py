"""What recovering raw tool calls costs: microseconds a delta of five characters, and the limits it must stay under.

Every format is measured while a long string argument streams, by itself and with `auto`. The limit of 2 µs is for a
quiet machine of the project's class. A busy one is judged by the ratio to a loop that only decodes and re-encodes the
same frames, measured in the same run. The cost is flat: a delta near the end of 80,000 costs what one of the first
1,000 costs. `auto` with all tables costs plain text at most 1.2 times what one table costs.
Run: python -m bench.codecs.raw_tools [FORMAT ...]
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence

from msgspec import Struct

from dragoman.filters.raw_tools import TABLES, CallIds, DeclaredTools, Engine, RawTools
from dragoman.filters.raw_tools.outputs import Arguments, CallStarted
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.events import BlockKeys, BlockStarted, Events, Started, TextDelta
from dragoman.model.filter import Facts, Notes
from dragoman.wire import jsonio

DELTAS = 80_000
FIRST = 1_000  # deltas at the beginning, which those at the end are compared with
SIZE = 5
LIMIT = 2.0  # µs a delta
QUIET = 0.65  # µs: decoding and re-encoding one frame on a quiet machine of the class
DRIFT = 1.2  # the last deltas to the first
AUTO = 1.2  # all tables to one, on plain text
GROWTH = 64 * 1024  # bytes, over an argument of 8 MB
MIB = 1024 * 1024
ATTEMPTS = 5  # others may be using the machine

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

_DSML = "｜DSML｜"
_M3 = "]<]minimax[>["
_OBJECT = '{"name": "write", "arguments": {"content": "'
# table: the text of a call up to the first character of its string argument
JSON_FORMATS = {
    "kimi_k2": OPEN + '{"content": "',
    "hermes": f"<tool_call>{_OBJECT}",
    "longcat": f"<longcat_tool_call>{_OBJECT}",
    "deepseek_v3": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write\n```json\n{"content": "',
    "deepseek_v31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write<｜tool▁sep｜>{"content": "',
    "mistral_array": f"[TOOL_CALLS][{_OBJECT}",
    "mistral_object": f"[TOOL_CALLS]{_OBJECT}",
    "mistral": '[TOOL_CALLS]write[ARGS]{"content": "',
    "harmony": '<|channel|>commentary to=functions.write <|constrain|>json<|message|>{"content": "',
    "llama3_json": '<|python_tag|>{"name": "write", "parameters": {"content": "',
    "llama3_bare": '{"name": "write", "parameters": {"content": "',
    "llama3_text": 'I write.\n{"name": "write", "parameters": {"content": "',
    "lfm2_json": f"<|tool_call_start|>[{_OBJECT}",
    "json_start": f"[{_OBJECT}",
    "granite": f"<|tool_call|>[{_OBJECT}",
    "granite_tag": f"<tool_call>[{_OBJECT}",
    "phi4": f"functools[{_OBJECT}",
    "phi4_start": f"functools[{_OBJECT}",
    "jamba": f"<tool_calls>[{_OBJECT}",
    "nemotron_deci": f"<TOOLCALL>[{_OBJECT}",
    "cohere": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "write", "parameters": {"content": "',
    "apertus": '<|tools_prefix|>[{"write": {"content": "',
    "llama4_pythonic": '<|python_start|>[write(content="',
    "olmo3": '<function_calls>write(content="',
    "lfm2": '<|tool_call_start|>[write(content="',
    "pythonic": '[write(content="',
}
RAW_FORMATS = {
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="write" index="1"<|sep|>'
    '<|open|>argument key="content" type="string"<|sep|>',
    "qwen_coder": "<tool_call>\n<function=write>\n<parameter=content>\n",
    "glm": "<tool_call>write\n<arg_key>content</arg_key>\n<arg_value>",
    "hy_v3": "<tool_calls>\n<tool_call>write<tool_sep>\n<arg_key>content</arg_key>\n<arg_value>",
    "longcat_tags": "<longcat_tool_call>write\n<longcat_arg_key>content</longcat_arg_key>\n<longcat_arg_value>",
    "dsml": f'<{_DSML}function_calls>\n<{_DSML}invoke name="write">\n<{_DSML}parameter name="content" string="true">',
    "invoke": '<minimax:tool_call>\n<invoke name="write">\n<parameter name="content">',
    "invoke_prefixed": '<@function_calls>\n<@invoke name="write">\n<@parameter name="content">'.replace("@", "antml:"),
    "dots": '<dots_function_call>\n<invoke name="write">\n<parameter name="content">',
    "step3": "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
    '<steptml:invoke name="write"><steptml:parameter name="content">',
    "minicpm5": '<function name="write"><param name="content">',
    "minimax_m3": f'{_M3}<tool_call>{_M3}<invoke name="write">{_M3}<content>',
    "gemma4": '<|tool_call>call:write{content:<|"|>',
    "functiongemma": "<start_function_call>call:write{content:<escape>",
}


def cut(text: str) -> list[str]:
    """Return as many deltas as we measure, of five characters."""
    text *= DELTAS * SIZE // len(text) + 1
    return [text[at : at + SIZE] for at in range(0, DELTAS * SIZE, SIZE)]


def escaped(text: str) -> str:
    """Return the text as it is inside a JSON string."""
    return str(jsonio.quote(text), "utf-8")[1:-1]


class Stream(Struct, frozen=True):
    """What is measured: deltas that come after an opening, read with one choice of tables."""

    before: str
    deltas: list[str]
    choice: str = "auto"

    def engine(self) -> Engine:
        """Return an engine that has read the opening."""
        started = Engine(self.choice, DeclaredTools(TOOLS), CallIds())
        started.feed(self.before)
        return started


def streams() -> dict[str, Stream]:
    """Every kind of text, and for each format that ships a long argument."""
    code, raw = cut(escaped(CODE)), cut(CODE)
    found = {
        "prose": Stream("", cut(PROSE)),
        "prose, kimi_k2 alone": Stream("", cut(PROSE), "kimi_k2"),
        "arguments: prose": Stream(OPEN + '{"content": "', cut(escaped(PROSE))),
        "arguments: numbers": Stream(OPEN + '{"rows": [', cut('1234, {"a": null}, [true, -1.5e3], ')),
        "arguments: no JSON": Stream(OPEN, raw),
    }
    for table in TABLES:
        if table.name in JSON_FORMATS:
            found[table.name] = read(Stream(JSON_FORMATS[table.name], code, table.name))
        elif table.name in RAW_FORMATS:
            found[table.name] = read(Stream(RAW_FORMATS[table.name], raw, table.name))
        else:
            raise SystemExit(f"bench.codecs.raw_tools has no stream for the table {table.name}: add its opening")
    return found


def read(stream: Stream) -> Stream:
    """Return the stream, if its deltas really come out as arguments: a fast wrong reply is none."""
    engine = stream.engine()
    streamed = [each for delta in stream.deltas[:200] for each in engine.feed(delta) if isinstance(each, Arguments)]
    if len(streamed) < 100:
        raise SystemExit(f"the table {stream.choice} streams no arguments after {stream.before!r}")
    return stream


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Times(Struct):
    """Microseconds a delta: all of them, the first ones, the last ones."""

    mean: float
    first: float
    last: float


def times(stream: Stream, repeat: int = 4) -> Times:
    """Measure the best of a few runs, each part by itself."""
    parts = [stream.deltas[:FIRST], stream.deltas[FIRST:-FIRST], stream.deltas[-FIRST:]]
    best = [float("inf")] * 3
    for run in range(repeat * 3):
        feed = stream.engine().feed

        def some(part: Sequence[str], feed: Callable[[str], object] = feed) -> None:
            for delta in part:
                feed(delta)

        if run >= repeat:  # the first thousand deltas take so little time that they need more runs
            best[0] = min(best[0], timed(lambda: some(parts[0])))
            continue
        best = [min(b, timed(lambda part=part: some(part))) for b, part in zip(best, parts, strict=True)]  # type: ignore[misc]
    return Times(sum(best) / DELTAS * 1e6, best[0] / FIRST * 1e6, best[2] / FIRST * 1e6)


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
    """Measure the response filter, one event per frame: µs a frame."""
    _, make_filter = RawTools().forward(
        Conversation("kimi", (Message("user", (Text("x"),)),), tools=TOOLS), Notes(), Facts()
    )
    if make_filter is None:
        raise SystemExit("raw_tools is off")
    response_filter = make_filter(Notes(), BlockKeys(1))
    response_filter.feed((Started("r", "m"), BlockStarted(0, Text(""))))
    frames: list[Events] = [(TextDelta(0, delta),) for delta in deltas]

    def work() -> None:
        for frame in frames:
            response_filter.feed(frame)

    return min(timed(work) for _ in range(3)) / len(frames) * 1e6


def growth() -> int:
    """Bytes that are more in use after an argument of 8 MB than after its beginning."""
    started = Stream(OPEN + '{"content": "', []).engine()
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
    """Return how many deltas after its own the first byte of the arguments is sent."""
    text = f'{OPEN} {{"path": "a"}}'
    begins = text.index("{")
    started = Stream("", []).engine()
    for at in range(0, len(text), SIZE):
        outputs = started.feed(text[at : at + SIZE])
        if any(isinstance(output, Arguments) for output in outputs):
            return at // SIZE - begins // SIZE
        if any(isinstance(output, CallStarted) for output in outputs) and at > begins + SIZE:
            break
    return len(text)


class Cost(Struct):
    """What one stream costs, beside what the plain codec costs in the same run."""

    times: Times
    codec: float

    @property
    def ratio(self) -> float:
        """The cost in parts of the cost of the plain codec."""
        return self.times.mean / self.codec

    @property
    def drift(self) -> float:
        """The cost of the last deltas in parts of the cost of the first ones."""
        return self.times.last / self.times.first

    @property
    def good(self) -> bool:
        """Whether the cost meets its limits."""
        return (self.times.mean <= LIMIT or self.ratio <= LIMIT / QUIET) and self.drift <= DRIFT


def measured(stream: Stream) -> Cost:
    """Measure until the limits are met, a few times at most. What is really too slow, or slows down, always is."""
    tries: list[Cost] = []
    while len(tries) < ATTEMPTS:
        tries.append(Cost(times(stream), floor(stream.deltas)))
        if tries[-1].good:
            return tries[-1]
    return min(tries, key=lambda cost: (cost.drift > DRIFT, cost.ratio))


def all_to_one(found: dict[str, Stream]) -> float:
    """How many times one table's cost `auto` costs on plain text: the best of several runs of each, in turn."""
    both = [[times(found[name], 2).mean for name in ("prose", "prose, kimi_k2 alone")] for _ in range(ATTEMPTS)]
    return min(auto for auto, _ in both) / min(one for _, one in both)


def main(names: Sequence[str] = ()) -> int:
    """Print the cost of the named streams, or of all; return 1 if one misses its limit."""
    missed: list[str] = []
    found = streams()
    print(f"{'stream':22} {'µs/delta':>9} {'codec':>6} {'ratio':>6} {'last/first':>10}")
    for name, stream in found.items():
        if names and name not in names:
            continue
        cost = measured(stream)
        figures = f"{cost.times.mean:9.2f} {cost.codec:6.2f} {cost.ratio:6.2f} {cost.drift:10.2f}"
        print(f"{name:22} {figures}  {verdict(cost.good)}", flush=True)
        if not cost.good:
            missed.append(name)
    print(f"the limit is {LIMIT} µs or, on a busy machine, {LIMIT / QUIET:.1f} times the codec; last/first {DRIFT}")
    if not names:
        missed += rest(found)
    if missed:
        print("missed: " + ", ".join(missed))
    return 1 if missed else 0


def rest(found: dict[str, Stream]) -> list[str]:
    """Print the figures that are not of one stream; return the names of those that exceed their limit."""
    print(f"{'prose, whole filter':22} {through_the_filter(found['prose'].deltas):9.2f}")
    ratio, grown, late = all_to_one(found), growth(), delay()
    print(f"auto with all tables: {ratio:.2f} times one table on prose, the limit is {AUTO}  {verdict(ratio <= AUTO)}")
    print(f"memory after 8 MB of arguments: {grown:+} bytes  {verdict(grown < GROWTH)}")
    print(f"first argument byte: {late} deltas after it arrived  {verdict(late <= 1)}")
    return ["auto"] * (ratio > AUTO) + ["memory"] * (grown >= GROWTH) + ["delay"] * (late > 1)


def verdict(good: bool) -> str:
    """Return the last word of a row of the table."""
    return "ok" if good else "MISSED"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
