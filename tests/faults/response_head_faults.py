"""Faults 13-27: the head of the upstream response, and the framing of its body."""

from __future__ import annotations

import email.utils
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterable

from dragoman.simulator.faults.frames import CutFault
from dragoman.simulator.faults.response import (
    BothLengths,
    Compress,
    HeaderFault,
    InterimResponses,
    Length,
    NoLastChunk,
    SlowHead,
    Status,
    UntilClose,
)
from tests.faults.checks import Probe, check_response
from tests.faults.connection_faults import stream_and_whole
from tests.faults.http_client import WrongResponse
from tests.faults.row import FaultRow
from tests.faults.runner import Case, Pair, ProbeResult, all_pairs, run_probes

CODES = (400, 401, 402, 403, 404, 413, 422, 429, 500, 502, 503, 504, 529)
# The statuses that a client may get. Its dialect may have fewer, but client errors must stay client errors.
_SAME = {code: tuple(range(400, 500)) if code < 500 else tuple(range(500, 600)) for code in CODES}
_SAME[504] += (408,)  # Bedrock's own status for a timeout
_OF_KIRO = {404: (*_SAME[404], *_SAME[500])}  # for Kiro 404 means that the host lacks the operation
_MOST = 3  # attempts per request


def refused(body: str) -> Callable[[Case], None]:
    def probes(pair: Pair) -> Iterable[Probe]:
        same = _SAME | _OF_KIRO if pair.upstream == "kiro" else _SAME
        for code in CODES:
            fault = Status(code=code, body=body)  # type: ignore[arg-type]
            yield from stream_and_whole(f"{code}", faults=(fault,), may="error", status=same[code], check=_few)

    return run_probes(probes, few=5)


def _few(shown: ProbeResult) -> None:
    """Check that there are at most two retries, and none for client errors."""
    most = 1 if shown.raw.status in (400, 404, 413, 422) else _MOST
    if shown.proxy.exchanges > most:
        raise WrongResponse(f"asked {shown.proxy.exchanges} times after {shown.raw.status}")


# --- 16


def _rate_limited(_: Pair) -> Iterable[Probe]:
    def waits(low: float, high: float) -> Callable[[ProbeResult], None]:
        def check(shown: ProbeResult) -> None:
            seconds = float(shown.raw.headers["retry-after"])
            if not low <= seconds <= high:
                raise WrongResponse(f"retry-after {seconds:g} is not between {low:g} and {high:g}")

        return check

    soon = email.utils.formatdate(time.time() + 40, usegmt=True)
    long_ago = email.utils.formatdate(time.time() - 4000, usegmt=True)
    for label, header, low, high in (
        ("seconds", "7", 7, 7),
        ("a date", soon, 30, 41),
        ("a date long ago", long_ago, 0, 60),
        ("absent", "", 1, 60),
        ("no number", "soon", 1, 60),
        ("negative", "-5", 0, 60),
        ("18 days", str(18 * 86400), 60, 18 * 86400),
    ):
        fault = Status(code=429, retry_after=header)
        yield from stream_and_whole(
            label, faults=(fault,), may="error", status=(429,), within=3.0, check=waits(low, high)
        )


# --- 17


def redirected(case: Case) -> None:
    """The target of the redirect listens, and must get no request."""
    came: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)

        def watch() -> None:
            try:
                while True:
                    connection, _ = listener.accept()
                    came.append(connection.recv(65536))
                    connection.close()
            except OSError:
                return

        watcher = threading.Thread(target=watch)
        watcher.start()
        place = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/messages"
        probes = [
            probe
            for code in (301, 302, 303, 307, 308, 300, 304)
            for probe in stream_and_whole(
                f"{code}", faults=(Status(code=code, location=place),), may="error", status=_FAILED
            )
        ]
        run_probes(lambda _: probes)(case)
        watcher.join()
    with case.probe("the redirect is not followed"):
        if came:
            raise WrongResponse(f"it was followed: {came[0][:80]!r}")


_FAILED = tuple(range(500, 600))


# --- 18-27


def _odd_types(_: Pair) -> Iterable[Probe]:
    for kind in ("text/html", "application/octet-stream", "", "application/json; charset=utf-16", "text/plain"):
        yield Probe(f"content-type {kind!r}", (HeaderFault(name="content-type", value=kind),), "either")
    page = Status(code=200, body="html")
    for body in ("html", "empty", "json", "text", "junk"):
        page = Status(code=200, body=body)
        yield from stream_and_whole(f"200 with {body}", faults=(page,), may="error")


def _interim(_: Pair) -> Iterable[Probe]:
    for codes in ((100,), (103,), (100, 103), (100,) * 20):
        yield from stream_and_whole(f"{codes}", faults=(InterimResponses(codes=codes),), max_requests=1)


def _long_head(_: Pair) -> Iterable[Probe]:
    yield from stream_and_whole("200 KiB", faults=(HeaderFault(name="x-long", pad=200 * 1024),), may="error")
    yield from stream_and_whole("20 KiB", faults=(HeaderFault(name="x-long", pad=20 * 1024),))


def _slow_head(_: Pair) -> Iterable[Probe]:
    # 1 byte a second against 300 s, scaled: 1 byte in 20 ms against 0.6 s.
    yield from stream_and_whole("too slow", faults=(SlowHead(delay=0.02),), may="error", within=0.6, max_requests=1)


def _bomb(_: Pair) -> Iterable[Probe]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def small(shown: ProbeResult) -> None:
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
        if grown > 100:
            raise WrongResponse(f"{grown} MiB more memory for a megabyte of response")

    yield from stream_and_whole("1 GiB in 1 MiB", faults=(Compress(bomb=1 << 30),), may="error", check=small)
    yield from stream_and_whole("10 MiB in 10 KiB", faults=(Compress(bomb=10 << 20),), may="error")
    yield from stream_and_whole("no bomb", faults=(Compress(),), may="either")
    yield Probe("a refusal in gzip", (_Packed(code=429),), "error", status=(429,))


class _Packed(Status, frozen=True, kw_only=True):
    """A refusal with a compressed body."""

    def change_response(self, response):  # type: ignore[no-untyped-def]
        return Compress().change_response(response)


def _cut_gzip(_: Pair) -> Iterable[Probe]:
    yield from stream_and_whole("without its last 10 bytes", faults=(Compress(cut=10),), may="error")
    yield from stream_and_whole("without its last half", faults=(Compress(cut=300),), may="error")


def _too_long_a_length(pair: Pair) -> Iterable[Probe]:
    for by in (1, 1000):
        yield from stream_and_whole(f"{by} too many", faults=(Length(by=by),), may=_unless_it_has_an_end(pair))
        yield from stream_and_whole(f"{by} too many, once", faults=(Length(by=by, times=1),), may="either")


def _unless_it_has_an_end(pair: Pair) -> str:
    """Return the allowed result: Kiro has no last event (docs/decisions/responses.md#d7)."""
    return "error" if pair.upstream == "kiro" else "either"


def _too_short_a_length(pair: Pair) -> Iterable[Probe]:
    for by in (-5, -40):
        yield from stream_and_whole(
            f"{-by} too few", faults=(Length(by=by, close=False),), may="either", check=_next_is_clean
        )


def _next_is_clean(shown: ProbeResult) -> None:
    """Check that bytes after the body do not become the next response."""
    for _ in range(2):
        check_response(shown.case.pair.client, Probe("the next", may="either"), shown.ask())


def _no_last_chunk(pair: Pair) -> Iterable[Probe]:
    yield Probe("all but the last chunk", (NoLastChunk(),), _unless_it_has_an_end(pair))
    yield Probe("all but the last chunk, once", (NoLastChunk(times=1),), "either")


def _no_length(pair: Pair) -> Iterable[Probe]:
    """A body that ends with the connection is complete if its dialect has a last event, or if it ends in order."""
    yield from stream_and_whole("in order", faults=(UntilClose(),))
    yield Probe("cut", (UntilClose(), CutFault(byte=300)), "short" if pair.upstream == "kiro" else "error")


def _both_lengths(_: Pair) -> Iterable[Probe]:
    for length in (0, 10, 100_000):
        yield from stream_and_whole(
            f"content-length {length}", faults=(BothLengths(length=length),), may="either", check=_next_is_clean
        )


ROWS = [
    FaultRow(
        13, "a refusal in JSON", "the client's own error, its status kept to 4xx or 5xx", refused("json"), all_pairs()
    ),
    FaultRow(14, "a refusal in HTML", "the same", refused("html")),
    FaultRow(15, "a refusal without a body", "the same", refused("empty")),
    FaultRow(
        16, "429 with every Retry-After", "429 at once, with a sensible retry-after", run_probes(_rate_limited, few=14)
    ),
    FaultRow(17, "a redirect", "an error; the redirect is not followed", redirected),
    FaultRow(18, "200 with a wrong content type", "the response, or an error", run_probes(_odd_types, few=6)),
    FaultRow(19, "100 and 103 before the response", "the response", run_probes(_interim)),
    FaultRow(20, "a head of 200 KiB", "an error; 20 KiB pass", run_probes(_long_head, few=4)),
    FaultRow(
        21,
        "a head byte by byte",
        "a timeout error at the deadline",
        run_probes(_slow_head, more="timeouts.first_byte = 0.6"),
    ),
    FaultRow(22, "a gzip bomb", "refused, in constant memory", run_probes(_bomb, few=7)),
    FaultRow(23, "gzip without its end", "an error", run_probes(_cut_gzip)),
    FaultRow(
        24,
        "content-length larger than the body",
        "an error, or the response if its last event came",
        run_probes(_too_long_a_length),
    ),
    FaultRow(
        25,
        "content-length smaller than the body",
        "an error; the rest belongs to no response",
        run_probes(_too_short_a_length),
    ),
    FaultRow(
        26,
        "chunked without the last chunk",
        "an error, or the response if its last event came",
        run_probes(_no_last_chunk),
    ),
    FaultRow(
        27,
        "content-length and chunked together",
        "the response or an error; the next one is clean",
        run_probes(_both_lengths),
    ),
    FaultRow(72, "a body that ends with its connection", "the response; cut, an error", run_probes(_no_length)),
]
