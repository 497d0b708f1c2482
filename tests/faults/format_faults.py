"""Faults 49-51: broken AWS event streams, deviations of Kiro, and tool calls that a model writes as raw tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from dragoman.simulator.faults.frames import Corrupt, Garbage
from dragoman.simulator.faults.response import Slicer
from dragoman.wire.eventstream import encode_event
from tests.faults.checks import EXPECTED_ARGUMENTS, EXPECTED_TEXT, Probe
from tests.faults.row import FaultRow
from tests.faults.runner import EVENT_STREAMS, Case, Pair, all_pairs, run_probes
from tests.faults.stream_faults import Rewrite

# --- 49


def _broken_messages(pair: Pair) -> Iterable[Probe]:
    for event in (0, 1, 4, 8):
        for what in ("crc", "prelude", "header", "flip"):
            yield Probe(f"{what} of frame {event}", (Corrupt(event=event, what=what),), "error")
        for length in (0, 15, 16, 2**31, 2**32 - 1, 25 * 1024 * 1024):
            fault = Corrupt(event=event, what="length", length=length)
            yield Probe(f"length {length} at frame {event}", (fault,), "error", within=1.5)
        yield Probe(
            f"headers of 4 GiB at frame {event}", (Corrupt(event=event, what="headers", length=2**32 - 1),), "error"
        )
        yield Probe(f"garbage before frame {event}", (Garbage(event=event, size=64),), "error")
    exception = encode_event("throttlingException", b'{"message":"Too many requests today."}', error=True)
    yield Probe("an exception first", (_before(0, exception),), "error", says="Too many", status=(429,))
    yield Probe("an exception in the middle", (_before(4, exception),), "error", says="Too many")
    yield Probe("every byte alone", (Slicer(size=1),))


def _before(at: int, raw: bytes) -> Rewrite:
    return Rewrite(how=lambda frames: [*frames[:at], raw, *frames[at:]])


# --- 50


def kiro(text: str, **more: Any) -> Callable[[Case], None]:
    script = f'then = "last"\n[pace]\nchunk = 9\n[[turn]]\n{text}'
    return run_probes(
        lambda _: [Probe(text.replace("\n", " ")[:60], may=more.pop("may", "response"))], script=script, **more
    )


def _parts(*more: str) -> str:
    call = json.dumps(json.dumps(EXPECTED_ARGUMENTS, ensure_ascii=False), ensure_ascii=False)
    quoted = json.dumps(EXPECTED_TEXT, ensure_ascii=False)
    parts = [f"{{ text = {quoted} }}", f'{{ tool = "get_weather", arguments = {call}, id = "call_1" }}', *more]
    return f"parts = [{', '.join(parts)}]"


def kiros_habits(case: Case) -> None:
    for quirk in ("object_input", "bare_fragments", "no_metadata", "no_usage", "no_start", "nested"):
        kiro(f'{_parts()}\nquirks = ["{quirk}"]')(case)
    again = json.dumps(json.dumps({"city": "Twice"}))
    same_id = _parts(f'{{ tool = "get_weather", arguments = {again}, id = "call_1" }}')

    script = f'then = "last"\n[[turn]]\n{same_id}'  # a finished id that comes again is a duplicate of the same call
    run_probes(lambda _: [Probe("duplicate ids")], script=script)(case)
    run_probes(lambda _: [Probe("no stop", (Rewrite(how=_without_stop),), "short")])(case)


def _without_stop(frames: list[bytes]) -> Iterable[bytes]:
    return [frame for frame in frames if b'"stop":true' not in frame.replace(b" ", b"")]


# --- 51

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENT, DONE = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
ARGUMENTS = {"city": "Paris", "note": "ü <|not a token|> {}"}
RAW = f"I look.{BEGIN}{CALL}functions.get_weather:0{ARGUMENT}{json.dumps(ARGUMENTS, ensure_ascii=False)}{DONE}{END}"
KIMI = 'translation.raw_tools = "auto"'


def raw_tokens(case: Case) -> None:
    def play(text: str, label: str, chunk: int, says: str | None, calls: Any, may: str = "response") -> None:
        script = f'then = "last"\n[[turn]]\nchunk = {chunk}\ntext = {json.dumps(text, ensure_ascii=False)}\n'
        probe = Probe(f"{label}, by {chunk}", may=may)
        run_probes(lambda _: [probe], script=script, says=says, calls=calls, more=KIMI)(case)

    sizes = range(1, len(RAW)) if case.whole and case.pair.client == "anthropic" else (1, 2, 3, 7, 13, 50, 400)
    for chunk in sizes if case.whole else (1, 400):
        play(RAW, "a call", chunk, "I look.", (ARGUMENTS,))
    nested = dict(ARGUMENTS, note=f"look-alike {CALL}x:1{ARGUMENT}{{}}")
    inner = RAW.replace(json.dumps(ARGUMENTS, ensure_ascii=False), json.dumps(nested, ensure_ascii=False))
    play(inner, "look-alikes inside", 5, None, None, "either")
    play(RAW.removesuffix(END), "never closed", 5, "I look.", (ARGUMENTS,), "either")
    cut = RAW[: RAW.index("Paris") + 2]
    play(cut, "cut in its arguments", 5, None, None, "short")
    quoted = f"The section begins with `{BEGIN}` in Kimi's template, and so on."
    play(quoted, "prose about the tokens", 5, quoted, ())


ROWS = [
    FaultRow(
        49,
        "AWS frames: checksums, lengths, headers, exceptions",
        "an error, at once",
        run_probes(_broken_messages, few=9),
        all_pairs(EVENT_STREAMS),
    ),
    FaultRow(
        50,
        "Kiro: no stop, {} then fragments, duplicate ids",
        "the response, or the correct part of it",
        kiros_habits,
        all_pairs(("kiro",)),
    ),
    FaultRow(
        51,
        "Kimi tokens: split anywhere, nested, open, quoted",
        "calls are calls, prose is prose",
        raw_tokens,
        all_pairs(("openai",)),
    ),
]
