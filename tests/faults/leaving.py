"""Faults 52-60: clients that leave, stop reading, send slowly or send nonsense."""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import dragoman.dialects as registry
from dragoman.simulator import Simulator, parse
from dragoman.simulator.faults import Fault, FaultProxy
from dragoman.simulator.faults.answer import Latency
from dragoman.simulator.faults.frames import Delay
from tests.faults.hearing import refusal
from tests.faults.judging import Probe, judge
from tests.faults.listening import Hung, Lost, Told, Wrong, ask, connect, listen, written
from tests.faults.sizing import big
from tests.faults.stage import (
    PATIENT,
    SPARE,
    TALK,
    Case,
    Lag,
    Pair,
    configuration,
    covering,
    nothing_left,
    question,
    running,
    settled,
    tasks_of,
)
from tests.faults.table import Row
from tests.gateway.house import House, house

WITHIN = 0.25  # seconds from the client's leaving to the upstream's release
_GLANCE = 0.03  # seconds between two looks of our proxy


@contextmanager
def scene(
    case: Case, faults: tuple[Fault, ...] = (), script: Any = TALK, more: str = "", **flags: Any
) -> Iterator[Any]:
    """A gateway with one upstream behind a proxy: (home, proxy, simulator)."""
    dialect = registry.get(case.pair.upstream)
    simulator = Simulator(case.pair.upstream, script=parse(script) if isinstance(script, str) else script)
    proxy = None
    with nothing_left(), running([simulator]):
        proxy = FaultProxy(simulator.url, faults, dialect=dialect)
        with (
            running([proxy]),
            house(configuration([(case.pair.upstream, proxy.url)], more), case.folder_for("one"), **flags) as home,
        ):
            yield home, proxy, simulator


@contextmanager
def scaled(**seconds: float) -> Iterator[None]:
    """Other values for constants of the gateway, wherever they were imported."""
    with ExitStack() as stack:
        for name, value in seconds.items():
            places = [
                module
                for path, module in list(sys.modules.items())
                if path.startswith(("dragoman.gateway", "dragoman.http", "dragoman.upstream")) and hasattr(module, name)
            ]
            assert places, f"no module of the gateway has {name}"
            for module in places:
                stack.enter_context(patch.object(module, name, value))
        yield


def send(home: House, case: Case, receive_buffer: int | None = None, text: str = "hello") -> socket.socket:
    sock = connect(home.url, 10, receive_buffer)
    sock.sendall(written(home.url, question(case.pair.client, text=text), home.key))
    return sock


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    got = b""
    while mark not in got:
        piece = sock.recv(65536)
        if not piece:
            raise Lost(f"it ends before {mark!r}: {got[-300:]!r}")
        got += piece
    return got


def leave(sock: socket.socket, *, reset: bool) -> float:
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    return time.monotonic()


def eventually(true: Callable[[], Any], seconds: float, what: str) -> None:
    until = time.monotonic() + seconds + SPARE
    while not true():
        if time.monotonic() > until:
            raise Hung(what)
        time.sleep(0.005)


# --- 52, 53


def left(*, reset: bool) -> Callable[[Case], None]:
    def moments(pair: Pair) -> list[tuple[str, tuple[Fault, ...], bytes]]:
        silence = (Delay(text="Nowherev", seconds=30.0),)
        calls_are_whole = "gemini" in pair  # there nobody can be in the middle of one
        return [
            ("before the head", (Latency(first=30.0),), b""),
            ("after the first words", silence, "Grö".encode()),
            ("in a call", silence, b"e end." if calls_are_whole else b"get_weather"),
        ]

    def run(case: Case) -> None:
        for label, faults, mark in moments(case.pair):
            with case.probe(label), scene(case, faults, server__hold=0.05) as (home, proxy, _), Lag() as lag:
                tasks = tasks_of(home)
                sock = send(home, case)
                if mark:
                    read_until(sock, mark)
                eventually(lambda: proxy.exchanges == 1, 5, "the upstream was not asked")
                time.sleep(0.05)
                at = leave(sock, reset=reset)
                eventually(lambda: proxy.left, 5, "the upstream's connection is still open")
                if proxy.left[0] - at > WITHIN + _GLANCE + lag.worst + SPARE:
                    raise Wrong(f"the upstream was let go after {proxy.left[0] - at:.3f} s")
                settled(home, tasks, 1)
                if (outcome := home.lines()[0]["outcome"]) != "gone":
                    raise Wrong(f"the log says {outcome}")

    return run


# --- 55, 56


def stopped_reading(case: Case) -> None:
    """It reads nothing: the upstream waits, and after 60 s (scaled: 1 s) the client is given up."""
    text = "x" * 24_000_000
    with (
        case.probe("it is cut off"),
        scaled(STALL_SECONDS=1.0),
        scene(case, script=big(text, chunk=8000)) as (home, proxy, _),
        Lag() as lag,
    ):
        tasks = tasks_of(home)
        began = time.monotonic()
        sock = send(home, case, 4096)
        eventually(lambda: proxy.left, 6, "a client that reads nothing is still served")
        took = proxy.left[0] - began
        if not 0.9 < took < 1.0 + 1.0 + lag.worst + SPARE:
            raise Wrong(f"it was given up after {took:.2f} s instead of 1 s")
        # What two kernels hold on loopback is theirs: 6 MiB to receive, 4 MiB to send at the most; the rest is ours.
        if proxy.sent > (6 + 4 + 4) << 20:
            raise Wrong(f"{proxy.sent >> 20} MiB were taken for a client that read nothing")
        sock.close()
        settled(home, tasks, 1)
        outcome = home.lines()[0]["outcome"]
        if outcome not in ("gone", "broken", "stalled"):
            raise Wrong(f"the log says {outcome}")


# --- 57


def slow_senders(case: Case) -> None:
    """10 s for a head and 120 s for a body, scaled to 0.6 s; a byte now and then does not buy more time."""
    whole = b""

    def trickle(sock: socket.socket, data: bytes, pause: float) -> float:
        began = time.monotonic()
        for at in range(len(data)):
            try:
                sock.sendall(data[at : at + 1])
                sock.settimeout(pause)
                if sock.recv(4096) in (b"",):
                    break
                sock.settimeout(5 + SPARE)
                while sock.recv(4096):
                    pass
                break
            except TimeoutError:
                continue
            except OSError:
                break
        return time.monotonic() - began

    with scaled(HEAD_SECONDS=0.6, BODY_SECONDS=0.6), scene(case) as (home, _, _simulator), Lag() as lag:
        tasks = tasks_of(home)
        whole = written(home.url, question(case.pair.client), home.key)
        head, _, body = whole.partition(b"\r\n\r\n")
        for label, first, slow in (
            ("a head that never ends", b"", head),
            ("silence after half a head", head[:40], b""),
            ("a body byte by byte", head + b"\r\n\r\n", body),
            ("silence after half a body", head + b"\r\n\r\n" + body[:20], b""),
        ):
            with case.probe(label), connect(home.url, PATIENT) as sock:
                sock.sendall(first)
                if slow:
                    took = trickle(sock, slow, 0.05)
                else:
                    began = time.monotonic()
                    sock.settimeout(5 + SPARE)
                    try:
                        while sock.recv(4096):
                            pass
                    except TimeoutError:
                        raise Hung("it is still open after 5 s") from None
                    except ConnectionError:
                        pass
                    took = time.monotonic() - began
                if took > 0.6 + 0.25 + 0.5 + lag.worst + SPARE:
                    raise Hung(f"closed after {took:.2f} s, with a deadline of 0.6 s")
        with case.probe("others are served meanwhile"):
            judge(case.pair.client, Probe("it"), ask(home.url, question(case.pair.client), home.key, PATIENT))
        eventually(lambda: tasks_of(home) <= tasks, 3, "tasks are left over")


# --- 58, 59


def pipelined(case: Case) -> None:
    with scene(case) as (home, _, _simulator):
        tasks = tasks_of(home)
        raw = written(home.url, question(case.pair.client), home.key)
        with case.probe("three in one write"), connect(home.url, PATIENT) as sock:
            sock.sendall(raw * 3)
            with sock.makefile("rb") as reader:
                for number in range(3):
                    judge(case.pair.client, Probe("it"), _one(reader, number))
        with case.probe("one, and nonsense behind it"), connect(home.url, PATIENT) as sock:
            sock.sendall(raw + b"GARBAGE\r\n\r\n")
            with sock.makefile("rb") as reader:
                judge(case.pair.client, Probe("it"), _one(reader, 0))
                rest = reader.read()
            if rest and not rest.startswith((b"HTTP/1.1 4",)):
                raise Wrong(f"nonsense got {rest[:60]!r}")
        settled(home, tasks, 4)


def _one(reader: Any, number: int) -> Told:
    """One response of several on a connection."""
    line = reader.readline()
    if not line:
        raise Lost(f"no answer to request {number}")
    told = Told(int(line.split()[1]))
    while field := reader.readline().rstrip(b"\r\n"):
        name, _, value = field.decode("latin-1").partition(":")
        told.headers[name.lower()] = value.strip()
    if told.headers.get("transfer-encoding") == "chunked":
        while size := int(reader.readline(), 16):
            told.body += reader.read(size)
            reader.readline()
        reader.readline()
    else:
        told.body = reader.read(int(told.headers["content-length"]))
    told.whole = True
    return told


def expecting(case: Case) -> None:
    with scene(case) as (home, _, _simulator):
        tasks = tasks_of(home)
        head, _, body = written(home.url, question(case.pair.client), home.key, expect="100-continue").partition(
            b"\r\n\r\n"
        )
        with case.probe("100-continue"), connect(home.url, PATIENT) as sock:
            began = time.monotonic()
            sock.sendall(head + b"\r\n\r\n")
            if not (first := sock.recv(65536)).startswith(b"HTTP/1.1 100 "):
                raise Wrong(f"no 100 Continue but {first[:60]!r}")
            sock.sendall(body)
            judge(case.pair.client, Probe("it"), listen(sock, began, PATIENT))
        with case.probe("100-continue for a body that is too long"), connect(home.url, PATIENT) as sock:
            long = head.replace(f"content-length: {len(body)}".encode(), b"content-length: 99999999999")
            sock.sendall(long + b"\r\n\r\n")
            told = listen(sock, time.monotonic(), PATIENT)
            if told.status != 413:
                raise Wrong(f"{told.status} instead of 413")
        with case.probe("another expectation"), connect(home.url, PATIENT) as sock:
            sock.sendall(head.replace(b"100-continue", b"magic") + b"\r\n\r\n" + body)
            told = listen(sock, time.monotonic(), PATIENT)
            if told.status not in (200, 417, 400):
                raise Wrong(f"{told.status} for an expectation that nobody knows")
        settled(home, tasks, 3)


# --- 60

DEEP = 100_000


def nonsense(case: Case) -> None:
    plain = json.loads(question(case.pair.client).body)
    text = json.dumps(plain)
    member = text.rstrip("}") + ',"x":'
    bodies: dict[str, tuple[bytes, tuple[int, ...]]] = {
        "nothing": (b"", (200, 400) if case.pair.client == "bedrock" else (400,)),  # there every field may be left out
        "no JSON": (b"{", (400,)),
        "cut": (text[:-5].encode(), (400,)),
        "more behind it": (text.encode() + b"}", (400,)),
        "no UTF-8": (text.replace("hello", "\udcff").encode("utf-8", "surrogateescape"), (400,)),
        "a byte order mark": (b"\xef\xbb\xbf" + text.encode(), (200, 400)),
        "UTF-16": (text.encode("utf-16"), (400,)),
        "lists to a depth of 10^5": ((member + "[" * DEEP + "]" * DEEP + "}").encode(), (400, 413)),
        "objects to a depth of 10^5": ((member + '{"a":' * DEEP + "1" + "}" * DEEP + "}").encode(), (400, 413)),
        "never closed to a depth of 10^5": (b"[" * DEEP, (400,)),
        "10^6 keys": ((member + "{" + ",".join(f'"k{n}":0' for n in range(10**6)) + "}}").encode(), (200, 400, 413)),
        "duplicate keys": ((text.rstrip("}") + ',"model":"m0","model":"m0"}').encode(), (200, 400)),
        "a number of 200,000 digits": ((member + "9" * 200_000 + "}").encode(), (200, 400)),
        "NaN": ((member + "NaN}").encode(), (400,)),
        "1e999": ((member + "1e999}").encode(), (200, 400)),
        "a lone surrogate": (text.replace("hello", "\\ud83d").encode(), (200, 400)),
        "NUL": (text.replace("hello", "\\u0000").encode(), (200, 400)),
    }
    names = list(bodies) if case.whole else ["cut", "lists to a depth of 10^5", "NaN"]
    request = question(case.pair.client)
    with scene(case, script='then = "last"\n[[turn]]\ntext = "fine"\n') as (home, _, _simulator):
        tasks = tasks_of(home)
        for name in names:
            body, statuses = bodies[name]
            with case.probe(name), Lag() as lag:
                asked = type(request)(request.method, request.path, request.query, request.headers, body)
                told = ask(home.url, asked, home.key, PATIENT)
                if told.status not in statuses:
                    raise Wrong(f"{told.status} instead of {statuses}: {told.body[:200]!r}")
                if told.status != 200:
                    refusal(case.pair.client, told)
                else:
                    judge(case.pair.client, Probe("it"), told, "fine", ())
                if told.seconds > 5 + lag.worst:
                    raise Hung(f"it took {told.seconds:.1f} s")
        with case.probe("it settles"):
            settled(home, tasks, len(names))


ROWS = [
    Row(52, "the client closes", "the upstream is let go within 250 ms", left(reset=False)),
    Row(53, "the client resets", "the upstream is let go within 250 ms", left(reset=True)),
    Row(
        56,
        "the client stops reading",
        "the upstream waits, then the client is cut off",
        stopped_reading,
        covering()[::2],
    ),
    Row(57, "slow senders", "closed at the deadline; others are served", slow_senders, covering()[::2]),
    Row(58, "pipelined requests", "each answered, in order", pipelined),
    Row(59, "Expect: 100-continue", "100, then the answer", expecting),
    Row(60, "malformed JSON, depth, keys, digits, NaN", "400 in the client's words, in time", nonsense),
]
