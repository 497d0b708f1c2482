"""Faults 43-48: streams that are slow, silent, huge, or contain bytes that are not text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import dragoman.dialects as registry
from dragoman.dialects.base import SYSTEM_ENVIRONMENT
from dragoman.simulator import Script, script
from dragoman.simulator.faults.frames import (
    Delay,
    Garbage,
    Replace,
)
from dragoman.simulator.faults.response import Slicer
from dragoman.wire import eventstream, sse
from tests.faults.checks import Probe
from tests.faults.http_client import WrongResponse
from tests.faults.row import FaultRow
from tests.faults.runner import SSE, Case, Pair, ProbeResult, all_pairs, covering_pairs, run_probes, same_probes
from tests.faults.stream_faults import STREAM_REQUEST, run_altered_streams


def _silences(_: Pair) -> Iterable[Probe]:
    """Silences of 14, 16, 119 and 121 s with a ping after 15 s and a timeout of 120 s, all scaled by 1/50."""

    def pings(least: int, most: int) -> Callable[[ProbeResult], None]:
        def check(shown: ProbeResult) -> None:
            parsed = shown.parsed
            codec = registry.get(shown.case.pair.client).codec
            if (
                parsed is None or codec.encoder(STREAM_REQUEST, SYSTEM_ENVIRONMENT).ping() is None
            ):  # a dialect without pings
                return
            if not least <= parsed.pings <= most:
                raise WrongResponse(f"{parsed.pings} pings instead of {least} to {most}")

        return check

    yield Probe("under a ping", (Delay(event=4, seconds=0.15),), check=pings(0, 0))
    yield Probe("over a ping", (Delay(event=4, seconds=0.5),), check=pings(1, 2))
    yield Probe("under the deadline", (Delay(event=4, seconds=1.9),), check=pings(4, 7))
    yield Probe("over the deadline", (Delay(event=4, seconds=9.0),), "error", within=2.4 + 0.4, max_requests=1)


def big_script(text: str = "", arguments: str = "", chunk: int = 1 << 25) -> Script:
    """Return a script with very long text or arguments."""
    part = script.TextPart(text) if text else script.ToolCallPart("get_weather", arguments, "c")
    return Script(turns=(script.ScriptTurn(parts=(part,), chunk=chunk),), then="last")


def flood(case: Case) -> None:
    text = "x" * (8_000_000 if case.whole else 2_000_000)
    probe = Probe("as fast as it goes", framed=False)
    run_probes(lambda _: [probe], script=big_script(text, chunk=16_000), says=text, calls=())(case)


def long_line(case: Case) -> None:
    """A line below the limit passes; above it the client gets an error that names the limit."""
    limit = sse.MAX_FRAME if case.pair.upstream in SSE else eventstream.MAX_PAYLOAD
    for size in (15 << 20, 20 << 20):
        text = "y" * size
        may = "response" if size < limit else "either" if case.pair.client == case.pair.upstream else "error"
        probe = Probe(f"{size >> 20} MiB", framed=False, may=may)
        run_probes(same_probes(probe), script=big_script(text), says=text, calls=())(case)


def long_arguments(case: Case) -> None:
    wanted = {"city": "z" * (10 << 20)}
    for chunk in (4096, 1 << 25):
        script = big_script(arguments=json.dumps(wanted), chunk=chunk)
        probe = Probe(f"10 MiB by {chunk}", framed=False)
        run_probes(same_probes(probe), script=script, says="", calls=(wanted,))(case)


def _bad_text(pair: Pair) -> Iterable[Probe]:
    for label, raw in (
        ("a stray byte", b"\xff"),
        ("half a character", b"\xf0\x9f"),
        ("an overlong slash", b"\xc0\xaf"),
        ("a surrogate in UTF-8", b"\xed\xa0\xbd"),
        ("a lone surrogate, escaped", rb"\ud83d"),
        ("the wrong half, escaped", rb"\udd9c\ud83e"),
        ("a NUL, escaped", rb"\u0000"),
        ("a NUL", b"\0"),
        ("a control character", b"\x1b[31m"),
        ("a line separator", "\u2028".encode()),
    ):
        yield Probe(label, (Replace(text="second", raw=b"sec" + raw + b"ond"),), "either")


def _garbage(_: Pair) -> Iterable[Probe]:
    for event in (0, 2, 5):
        for size in (1, 16, 4096):
            yield Probe(f"{size} bytes before frame {event}", (Garbage(event=event, size=size),), "either")


DRIBBLE = 'then = "last"\n[[turn]]\ntext = "slow"\n'

ROWS = [
    FaultRow(
        43,
        "silence of 14, 16, 119, 121 s (scaled)",
        "pings, then a timeout error",
        run_probes(_silences, more="timeouts.idle = 2.4", server__ping=0.3, few=4),
    ),
    FaultRow(
        44,
        "dribble",
        "the response",
        run_probes(
            lambda _: [Probe("a byte a millisecond", (Slicer(size=1, delay=0.001),))],
            script=DRIBBLE,
            says="slow",
            calls=(),
            more="timeouts.idle = 0.5",
        ),
    ),
    FaultRow(45, "flood", "the response", flood, covering_pairs()[::2]),
    FaultRow(
        46,
        "a line of 20 MiB",
        "the response; over the reader's limit, an error",
        long_line,
        covering_pairs()[1::2],
        quick=0,
    ),
    FaultRow(47, "tool arguments of 10 MiB", "the response", long_arguments, covering_pairs()[::2], quick=0),
    FaultRow(
        48,
        "invalid UTF-8, lone surrogates, NUL",
        "valid text, or an error",
        run_altered_streams(_bad_text, few=4),
        all_pairs(),
    ),
    FaultRow(
        73, "garbage between frames", "the response or an error", run_altered_streams(_garbage, few=4), all_pairs()
    ),
]
