"""Faults 28-42: stream bodies that are truncated, spelled differently, out of order, or invalid in their dialect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import dragoman.dialects as registry
from dragoman.conformance.samples import STREAMS
from dragoman.dialects.base import SYSTEM_ENVIRONMENT
from dragoman.errors import Fault as Trouble
from dragoman.model.blocks import Text, ToolCall
from dragoman.model.conversation import Conversation, Stop, StopReason, Usage
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    Event,
    Events,
    Failed,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
)
from dragoman.response_stream import ResponseTranslator as Translated
from dragoman.simulator.faults import ProxiedResponse, ProxyFault
from dragoman.simulator.faults.frames import (
    CutFault,
    Duplicate,
    Insert,
    Omit,
    Replace,
    Respell,
    Swap,
)
from dragoman.simulator.faults.response import Pieces, Slicer, pieces_of
from dragoman.simulator.response import BodyPiece
from dragoman.translate import plan
from dragoman.wire.http import HttpRequest
from tests.faults.checks import Probe
from tests.faults.http_client import NoResponse, WrongResponse
from tests.faults.row import FaultRow
from tests.faults.runner import LARGE_CHUNKS, SSE, Case, Pair, ProbeResult, all_pairs, covering_pairs, run_probes

STREAM_REQUEST = Conversation("m", (), stream=True)


class Rewrite(ProxyFault, frozen=True, kw_only=True):
    """A fault that rewrites the list of frames."""

    how: Callable[[list[bytes]], Iterable[BodyPiece]]

    async def frames(self, frames: Pieces) -> Pieces:
        whole = [piece async for piece in frames if isinstance(piece, bytes)]
        for piece in self.how(whole):
            yield piece


class FixedResponse(ProxyFault, frozen=True, kw_only=True):
    """A fault that replaces the simulator's stream."""

    body: bytes
    kind: str = "text/event-stream"

    def replace_response(self, request: HttpRequest, number: int) -> ProxiedResponse:
        return ProxiedResponse(200, (("content-type", self.kind),), pieces_of(self.body))


def frames_of(upstream: str, events: Events) -> FixedResponse:
    """Return a fault that sends these events in the upstream's dialect."""
    dialect = registry.get(upstream)
    encoder = dialect.codec.encoder(STREAM_REQUEST, SYSTEM_ENVIRONMENT)
    body = b"".join(dialect.binding.encode_frame(payload) for event in events for payload in encoder.feed((event,)))
    return FixedResponse(
        body=body, kind="text/event-stream" if upstream in SSE else "application/vnd.amazon.eventstream"
    )


def ends_by_itself(pair: Pair, how: str = "end") -> bool:
    """Return whether a body that ends in order is complete: Kiro has no last event (docs/decisions/responses.md#d7)."""
    return pair.upstream == "kiro" and how == "end"


# --- 28-32: cuts


def _cut_at_events(pair: Pair) -> Iterable[Probe]:
    for how in ("close", "end", "reset"):
        may = "short" if ends_by_itself(pair, how) else "either"
        for event in range(15):
            yield Probe(f"before frame {event}, {how}", (CutFault(event=event, how=how),), may)


def _cut_once(pair: Pair) -> Iterable[Probe]:
    """Before the first content a retry gives the complete reply."""
    if not ends_by_itself(pair):
        for how in ("close", "reset"):
            fault = CutFault(event=0, how=how, times=1)
            yield Probe(f"before frame 0, {how}, once", (fault,), "response", max_requests=2)


def cut_everywhere(case: Case) -> None:
    run_probes(_cut_at_events, few=6)(case)
    run_probes(_cut_once, runs_by_itself=True)(case)


def _cut_in(label: str, **where: Any) -> Callable[[Pair], Iterable[Probe]]:
    def probes(pair: Pair) -> Iterable[Probe]:
        for how in ("close", "end", "reset"):
            yield Probe(f"{label}, {how}", (CutFault(how=how, **where),), "error", max_requests=3)

    return probes


def _cut_in_string(pair: Pair) -> Iterable[Probe]:
    yield from _cut_in("in the text", text="second li")(pair)
    yield from _cut_in("in an escape", text="line {\\")(pair)


def every_split(case: Case) -> None:
    """Send every byte alone over the network; and try every split in two of a transcript in memory."""
    run_probes(lambda _: [Probe("every byte alone", (Slicer(size=1),)), Probe("by threes", (Slicer(size=3),))])(case)
    client, upstream = registry.get(case.pair.client), registry.get(case.pair.upstream)
    events = STREAMS["reasoning, text, a call"]
    body = frames_of(case.pair.upstream, _long(events)).body
    planned = plan(client, upstream, Conversation("m", (), stream=True))
    whole = _translated(planned, [body])
    with case.probe("every split position"):
        for at in range(1, len(body), 1 if case.whole else 41):
            case.probes += 1
            if _translated(planned, [body[:at], body[at:]]) != whole:
                raise WrongResponse(f"split at {at}, something else is said")
        if b"Paris" not in whole:
            raise NoResponse("nothing was said")


def _long(events: Events) -> Events:
    at = next(index for index, event in enumerate(events) if isinstance(event, TextDelta))
    return (*events[:at], TextDelta(1, "ü🦜 “word” \n" * 30), *events[at:])


def _translated(planned: Any, pieces: list[bytes]) -> bytes:
    from dragoman.dialects.base import Environment

    numbers = iter(range(10_000))
    response = Translated(planned, Environment(lambda prefix: f"{prefix}{next(numbers)}", lambda: 0))
    return b"".join([*(response.feed(piece) for piece in pieces), response.close(None)])


# --- 33-36: spelling


def _spellings(_: Pair) -> Iterable[Probe]:
    for line_end in ("cr", "crlf", "lf"):
        yield Probe(line_end, (Respell(line_end=line_end),))
        yield Probe(f"{line_end}, byte by byte", (Respell(line_end=line_end), Slicer()))
    yield Probe("byte order mark", (Respell(bom=True),))
    yield Probe("comments", (Respell(comments=True),))
    yield Probe("id and retry", (Respell(fields=True),))
    yield Probe("no space", (Respell(no_space=True),))
    yield Probe("all of it", (Respell(line_end="crlf", bom=True, comments=True, fields=True, no_space=True),))
    yield Probe("data in lines", (Rewrite(how=_in_lines),))


def _in_lines(frames: list[bytes]) -> Iterable[bytes]:
    for frame in frames:
        lines = []
        for line in frame.rstrip(b"\n").split(b"\n"):
            if line.startswith(b"data: {"):
                pretty = json.dumps(json.loads(line[6:]), indent=1, ensure_ascii=False)
                lines += [b"data: " + each.encode() for each in pretty.split("\n")]
            else:
                lines.append(line)
        yield b"\n".join(lines) + b"\n\n"


def _names(pair: Pair) -> Iterable[Probe]:
    yield Probe("no event names", (Respell(no_event=True),), "either")
    yield Probe("another event name", (Replace(text="event: content_block_delta", by="event: message_stop"),), "either")
    yield Probe(
        "a name where none is", (Rewrite(how=lambda all_: [b"event: error\n" + each for each in all_]),), "either"
    )


def _unknown(pair: Pair) -> Iterable[Probe]:
    news = 'event: weather_report\ndata: {"type":"weather_report","choices":[],"candidates":[]}\n\n'
    for event in (1, 3, 6):
        yield Probe(f"before frame {event}", (Insert(event=event, put=news),), "response")
    yield Probe("before any", (Insert(event=0, put=news),), "either")  # before any block has started


def _twice(pair: Pair) -> Iterable[Probe]:
    for event in range(8):
        yield Probe(f"frame {event} twice", (Duplicate(event=event),), "either", check=None)


# otherwise bytes pass through unchanged in the same dialect, including faults (docs/decisions/responses.md#d51)
READ = "translation.repair = true"


def run_altered_streams(probes: Callable[[Pair], Iterable[Probe]], **more: Any) -> Callable[[Case], None]:
    """Run probes whose streams have changed content: the response is valid, but its content is not compared."""
    return run_probes(probes, says=None, calls=None, more=READ, **more)


# --- 37-42: grammar


def _calls(count: int) -> tuple[Events, list[dict[str, Any]]]:
    """Return interleaved tool calls: events and expected arguments."""
    arguments = [{"city": f"C{number}", "n": number} for number in range(count)]
    started = [BlockStarted(number, ToolCall(f"call_{number}", "get_weather")) for number in range(count)]
    halves = [json.dumps(each) for each in arguments]
    parts = [ArgumentsDelta(number, half[: len(half) // 2]) for number, half in enumerate(halves)]
    parts += [ArgumentsDelta(number, half[len(half) // 2 :]) for number, half in enumerate(halves)]
    ended: list[Event] = [BlockEnded(number) for number in range(count)]
    events = (
        Started("msg_1", "m"),
        *started,
        *parts,
        *ended,
        UsageReported(Usage(1, 1)),
        Stopped(Stop(StopReason.TOOL)),
        FINISHED,
    )
    return events, arguments


def sixteen(case: Case) -> None:
    """Sixteen calls, interleaved as far as the upstream's dialect allows; then with index gaps and in reverse order."""
    events, arguments = _calls(16)
    if case.pair.upstream in ("openai",):
        fault = FixedResponse(body=_interleaved(16, lambda index: index))
        gaps = FixedResponse(body=_interleaved(16, lambda index: index * 3 + 2))
        backwards = FixedResponse(body=_interleaved(16, lambda index: 15 - index))
        run_probes(
            lambda _: [Probe("interleaved", (fault,)), Probe("index gaps", (gaps,))],
            says="",
            calls=arguments,
            more=READ,
        )(case)

        def all_of_them(shown: ProbeResult) -> None:
            assert shown.parsed is not None
            if sorted(map(str, shown.parsed.arguments())) != sorted(map(str, arguments)):
                raise WrongResponse(f"not all calls came: {shown.parsed.calls}")

        run_altered_streams(lambda _: [Probe("backwards", (backwards,), check=all_of_them)])(case)
        return
    run_probes(
        lambda pair: [Probe("sixteen", (frames_of(pair.upstream, events),))], says="", calls=arguments, more=READ
    )(case)
    run_altered_streams(
        lambda _: [Probe(f"frames {at} and {at + 1} change places", (Swap(event=at),), "either") for at in range(1, 9)]
    )(case)


def _interleaved(count: int, index: Callable[[int], int]) -> bytes:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        document = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        return b"data: %b\n\n" % json.dumps(document).encode()

    def part(number: int, **function: str) -> dict[str, Any]:
        begins = {"id": f"call_{number}", "type": "function"} if "name" in function else {}
        return {"tool_calls": [{"index": index(number), **begins, "function": function}]}

    texts = [json.dumps({"city": f"C{number}", "n": number}) for number in range(count)]
    chunks = [chunk({"role": "assistant", "content": None})]
    chunks += [chunk(part(number, name="get_weather", arguments="")) for number in range(count)]
    for at in range(0, max(map(len, texts)), 5):
        chunks += [chunk(part(number, arguments=text[at : at + 5])) for number, text in enumerate(texts) if text[at:]]
    return b"".join((*chunks, chunk({}, "tool_calls"), b"data: [DONE]\n\n"))


def _orphans(pair: Pair) -> Iterable[Probe]:
    """Deltas without the start of their block: each starting frame is removed in turn."""
    for event in range(9):
        yield Probe(f"without frame {event}", (Omit(event=event),), "either")


def _usage(pair: Pair) -> Iterable[Probe]:
    base = STREAMS["text"]
    usage = UsageReported(Usage(12, 7))
    without = tuple(event for event in base if not isinstance(event, UsageReported))
    after = tuple(each for event in without[1:-2] for each in (event, usage))
    yield Probe("never", (frames_of(pair.upstream, without),))
    yield Probe("only last", (frames_of(pair.upstream, base),))
    yield Probe("twice", (frames_of(pair.upstream, (*without[:-2], usage, usage, *without[-2:])),))
    yield Probe("with every piece", (frames_of(pair.upstream, (without[0], *after, *without[-2:])),))
    if pair.upstream == "openai":
        body = frames_of("openai", base).body.replace(
            b'"choices"', b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2},"choices"'
        )
        yield Probe("in every chunk", (FixedResponse(body=body),))
        yield Probe(
            "null in every chunk",
            (FixedResponse(body=body.replace(b'{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}', b"null")),),
        )


def _after_the_end(pair: Pair) -> Iterable[Probe]:
    """Content after the finish must not become part of the reply."""

    def again(frames: list[bytes]) -> Iterable[bytes]:
        return [*frames, *frames[1:4]]

    def before_last(frames: list[bytes]) -> Iterable[bytes]:
        return [*frames[:-1], *frames[1:4], frames[-1]]

    yield Probe("after the last frame", (Rewrite(how=again),), "either")
    yield Probe("before the last frame", (Rewrite(how=before_last),), "either")


def _done(_: Pair) -> Iterable[Probe]:
    done = b"data: [DONE]\n\n"

    def early(frames: list[bytes]) -> Iterable[bytes]:
        return [*frames[:4], done, *frames[4:]]

    def early_end(frames: list[bytes]) -> Iterable[bytes]:
        return [*frames[:4], done]

    yield Probe("missing", (Rewrite(how=lambda frames: [each for each in frames if each != done]),), "either")
    yield Probe("twice", (Rewrite(how=lambda frames: [*frames, done]),))
    yield Probe("early", (Rewrite(how=early),), "error")
    yield Probe("early, and nothing else", (Rewrite(how=early_end),), "error")


def _errors(pair: Pair) -> Iterable[Probe]:
    failed = Failed(Trouble("overloaded", "too busy today", 529))
    text = STREAMS["text"]
    frame = frames_of(pair.upstream, (Started("m", "m"), failed))

    def check_uncommitted(shown: ProbeResult) -> None:
        if shown.raw.status == 200:
            raise WrongResponse("an error before any content came as 200")

    yield Probe("first", (frame,), "error", says="too busy today", check=check_uncommitted)
    yield Probe("in the middle", (frames_of(pair.upstream, (*text[:3], failed)),), "error", says="too busy today")
    tail = frames_of(pair.upstream, (Started("m", "m"), BlockStarted(0, Text("")), failed)).body.removeprefix(
        frames_of(pair.upstream, (Started("m", "m"), BlockStarted(0, Text("")))).body
    )
    whole = frames_of(pair.upstream, text)
    yield Probe("after the finish", (FixedResponse(body=whole.body + tail, kind=whole.kind),), "either")


ROWS = [
    FaultRow(
        28, "cut before every event", "an error; before any content, perhaps another try", cut_everywhere, all_pairs()
    ),
    FaultRow(
        29,
        "cut inside a character",
        "an error",
        run_probes(_cut_in("in a character", inside="character"), script=LARGE_CHUNKS),
        all_pairs(),
    ),
    FaultRow(30, "cut inside a JSON string", "an error", run_probes(_cut_in_string, script=LARGE_CHUNKS), all_pairs()),
    FaultRow(
        31,
        "cut inside tool arguments",
        "an error, and no call that looks whole",
        run_probes(_cut_in("in arguments", text="Nowhere"), script=LARGE_CHUNKS),
        all_pairs(),
    ),
    FaultRow(32, "every byte alone, every split", "the same response", every_split),
    FaultRow(
        33, "other line ends, BOM, comments, fields", "the response", run_probes(_spellings, few=4), covering_pairs(SSE)
    ),
    FaultRow(
        34,
        "event names missing or contradicting",
        "the response or an error",
        run_probes(_names, more=READ),
        all_pairs(SSE),
    ),
    FaultRow(35, "unknown event types", "the response", run_probes(_unknown, more=READ), covering_pairs(SSE)),
    FaultRow(36, "frames twice", "a correct end, no call mixed up", run_altered_streams(_twice), all_pairs()),
    FaultRow(37, "16 calls, interleaved, with gaps, reordered", "all calls whole", sixteen, all_pairs()),
    FaultRow(38, "deltas for what never began", "a correct end", run_altered_streams(_orphans), all_pairs()),
    FaultRow(
        39,
        "usage never, last, twice, always",
        "the response",
        run_probes(_usage, says="Hello ✓", calls=(), more=READ),
        all_pairs(),
    ),
    FaultRow(
        40,
        "content after the finish",
        "the response or an error, nothing after the end",
        run_altered_streams(_after_the_end),
        all_pairs(),
    ),
    FaultRow(
        41, "[DONE] missing, twice, early", "no made-up end", run_probes(_done, more=READ), all_pairs(("openai",))
    ),
    FaultRow(
        42,
        "error frame first, middle, last",
        "an HTTP error; then an error in the stream",
        run_probes(_errors, says="Hello ✓", calls=(), more=READ),
        all_pairs(),
    ),
]
