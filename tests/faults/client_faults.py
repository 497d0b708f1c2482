"""Faults 52-60: clients that disconnect, stop reading, send slowly or send invalid requests."""

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
from dragoman.simulator import Simulator, parse_script
from dragoman.simulator.faults import FaultProxy, ProxyFault
from dragoman.simulator.faults.frames import Delay
from dragoman.simulator.faults.response import Latency
from tests.faults.checks import Probe, check_response
from tests.faults.http_client import (
    NoResponse,
    RawResponse,
    ResponseTimeout,
    WrongResponse,
    connect,
    read_response,
    request_bytes,
    send_request,
)
from tests.faults.response_parsers import parse_refusal
from tests.faults.row import FaultRow
from tests.faults.runner import (
    EXTRA_SECONDS,
    PROBE_TIMEOUT,
    SMALL_CHUNKS,
    Case,
    Pair,
    WakeupDelay,
    check_no_leaks,
    check_settled,
    client_request,
    configuration,
    covering_pairs,
    gateway_tasks,
    run_servers,
)
from tests.faults.size_faults import big_script
from tests.gateway.harness import GatewayHarness, start_gateway
from tests.gateway.websocket_client import WebSocketClient

WITHIN = 0.25  # seconds from the client's disconnect to the end of the upstream request
_POLL_SECONDS = 0.03  # seconds between two checks of the proxy


@contextmanager
def gateway_behind_proxy(
    case: Case, faults: tuple[ProxyFault, ...] = (), script: Any = SMALL_CHUNKS, more: str = "", **flags: Any
) -> Iterator[Any]:
    """Run a gateway with one upstream behind a proxy; give (harness, proxy, simulator)."""
    dialect = registry.get(case.pair.upstream)
    simulator = Simulator(case.pair.upstream, script=parse_script(script) if isinstance(script, str) else script)
    proxy = None
    with check_no_leaks(), run_servers([simulator]):
        proxy = FaultProxy(simulator.url, faults, dialect=dialect)
        with (
            run_servers([proxy]),
            start_gateway(
                configuration([(case.pair.upstream, proxy.url)], more), case.folder_for("one"), **flags
            ) as harness,
        ):
            yield harness, proxy, simulator


@contextmanager
def override_constants(**seconds: float) -> Iterator[None]:
    """Replace constants of the gateway in every module that imported them."""
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


def send(harness: GatewayHarness, case: Case, receive_buffer: int | None = None, text: str = "hello") -> socket.socket:
    request = client_request(case.pair.client, text=text)
    if case.over_websocket:
        client = WebSocketClient(harness.url, key=harness.key, receive_buffer=receive_buffer)
        client.send(**json.loads(request.body))
        return client.socket
    sock = connect(harness.url, 10, receive_buffer)
    sock.sendall(request_bytes(harness.url, request, harness.key))
    return sock


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    got = b""
    while mark not in got:
        piece = sock.recv(65536)
        if not piece:
            raise NoResponse(f"it ends before {mark!r}: {got[-300:]!r}")
        got += piece
    return got


def disconnect(sock: socket.socket, *, reset: bool) -> float:
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    return time.monotonic()


def wait_until(true: Callable[[], Any], seconds: float, what: str) -> None:
    until = time.monotonic() + seconds + EXTRA_SECONDS
    while not true():
        if time.monotonic() > until:
            raise ResponseTimeout(what)
        time.sleep(0.005)


# --- 52, 53


def disconnecting(*, reset: bool) -> Callable[[Case], None]:
    def moments(pair: Pair) -> list[tuple[str, tuple[ProxyFault, ...], bytes]]:
        silence = (Delay(text="Nowherev", seconds=30.0),)
        calls_are_whole = "gemini" in pair  # a Gemini stream sends each call in one piece
        return [
            ("before the head", (Latency(first=30.0),), b""),
            ("after the first words", silence, "Grö".encode()),
            ("in a call", silence, b"e end." if calls_are_whole else b"get_weather"),
        ]

    def run(case: Case) -> None:
        for label, faults, mark in moments(case.pair):
            with (
                case.probe(label),
                gateway_behind_proxy(case, faults, server__hold=0.05) as (harness, proxy, _),
                WakeupDelay() as lag,
            ):
                tasks = gateway_tasks(harness)
                sock = send(harness, case)
                if mark:
                    read_until(sock, mark)
                wait_until(lambda: proxy.exchanges == 1, 5, "the upstream was not asked")
                time.sleep(0.05)
                at = disconnect(sock, reset=reset)
                wait_until(lambda: proxy.disconnects, 5, "the upstream's connection is still open")
                if proxy.disconnects[0] - at > WITHIN + _POLL_SECONDS + lag.worst + EXTRA_SECONDS:
                    raise WrongResponse(f"the upstream was let go after {proxy.disconnects[0] - at:.3f} s")
                check_settled(harness, tasks, 1 + case.over_websocket)
                if (outcome := harness.log_lines()[0]["outcome"]) != "gone":
                    raise WrongResponse(f"the log says {outcome}")

    return run


# --- 55, 56


def stopped_reading(case: Case) -> None:
    """The client reads nothing: the upstream waits, and after 60 s (scaled: 1 s) the client is disconnected."""
    text = "x" * 24_000_000
    with (
        case.probe("it is cut off"),
        override_constants(STALL_SECONDS=1.0),
        gateway_behind_proxy(case, script=big_script(text, chunk=8000)) as (harness, proxy, _),
        WakeupDelay() as lag,
    ):
        tasks = gateway_tasks(harness)
        began = time.monotonic()
        sock = send(harness, case, 4096)
        wait_until(lambda: proxy.disconnects, 6, "a client that reads nothing is still served")
        seconds = proxy.disconnects[0] - began
        if not 0.9 < seconds < 1.0 + 1.0 + lag.worst + EXTRA_SECONDS:
            raise WrongResponse(f"it was given up after {seconds:.2f} s instead of 1 s")
        # Socket buffers hold at most 6 MiB to receive and 4 MiB to send; the rest is in the gateway.
        if proxy.sent > (6 + 4 + 4) << 20:
            raise WrongResponse(f"{proxy.sent >> 20} MiB were taken for a client that read nothing")
        sock.close()
        check_settled(harness, tasks, 1 + case.over_websocket)
        outcome = harness.log_lines()[0]["outcome"]
        if outcome not in ("gone", "broken", "stalled"):
            raise WrongResponse(f"the log says {outcome}")


# --- 57


def slow_senders(case: Case) -> None:
    """Timeouts of 10 s for a head and 120 s for a body, scaled to 0.6 s; single bytes do not extend them."""
    whole = b""

    def trickle(sock: socket.socket, data: bytes, pause: float) -> float:
        began = time.monotonic()
        for at in range(len(data)):
            try:
                sock.sendall(data[at : at + 1])
                sock.settimeout(pause)
                if sock.recv(4096) in (b"",):
                    break
                sock.settimeout(5 + EXTRA_SECONDS)
                while sock.recv(4096):
                    pass
                break
            except TimeoutError:
                continue
            except OSError:
                break
        return time.monotonic() - began

    with (
        override_constants(HEAD_SECONDS=0.6, BODY_SECONDS=0.6),
        gateway_behind_proxy(case) as (harness, _, _simulator),
        WakeupDelay() as lag,
    ):
        tasks = gateway_tasks(harness)
        whole = request_bytes(harness.url, client_request(case.pair.client), harness.key)
        head, _, body = whole.partition(b"\r\n\r\n")
        for label, first, slow in (
            ("a head that never ends", b"", head),
            ("silence after half a head", head[:40], b""),
            ("a body byte by byte", head + b"\r\n\r\n", body),
            ("silence after half a body", head + b"\r\n\r\n" + body[:20], b""),
        ):
            with case.probe(label), connect(harness.url, PROBE_TIMEOUT) as sock:
                sock.sendall(first)
                if slow:
                    seconds = trickle(sock, slow, 0.05)
                else:
                    began = time.monotonic()
                    sock.settimeout(5 + EXTRA_SECONDS)
                    try:
                        while sock.recv(4096):
                            pass
                    except TimeoutError:
                        raise ResponseTimeout("it is still open after 5 s") from None
                    except ConnectionError:
                        pass
                    seconds = time.monotonic() - began
                if seconds > 0.6 + 0.25 + 0.5 + lag.worst + EXTRA_SECONDS:
                    raise ResponseTimeout(f"closed after {seconds:.2f} s, with a deadline of 0.6 s")
        with case.probe("others are served meanwhile"):
            check_response(
                case.pair.client,
                Probe("it"),
                send_request(harness.url, client_request(case.pair.client), harness.key, PROBE_TIMEOUT),
            )
        wait_until(lambda: gateway_tasks(harness) <= tasks, 3, "tasks are left over")


# --- 58, 59


def pipelined(case: Case) -> None:
    with gateway_behind_proxy(case) as (harness, _, _simulator):
        tasks = gateway_tasks(harness)
        raw = request_bytes(harness.url, client_request(case.pair.client), harness.key)
        with case.probe("three in one write"), connect(harness.url, PROBE_TIMEOUT) as sock:
            sock.sendall(raw * 3)
            with sock.makefile("rb") as reader:
                for number in range(3):
                    check_response(case.pair.client, Probe("it"), _one(reader, number))
        with case.probe("one, and nonsense behind it"), connect(harness.url, PROBE_TIMEOUT) as sock:
            sock.sendall(raw + b"GARBAGE\r\n\r\n")
            with sock.makefile("rb") as reader:
                check_response(case.pair.client, Probe("it"), _one(reader, 0))
                rest = reader.read()
            if rest and not rest.startswith((b"HTTP/1.1 4",)):
                raise WrongResponse(f"nonsense got {rest[:60]!r}")
        check_settled(harness, tasks, 4)


def _one(reader: Any, number: int) -> RawResponse:
    """Read one of several responses on a connection."""
    line = reader.readline()
    if not line:
        raise NoResponse(f"no response to request {number}")
    response = RawResponse(int(line.split()[1]))
    while field := reader.readline().rstrip(b"\r\n"):
        name, _, value = field.decode("latin-1").partition(":")
        response.headers[name.lower()] = value.strip()
    if response.headers.get("transfer-encoding") == "chunked":
        while size := int(reader.readline(), 16):
            response.body += reader.read(size)
            reader.readline()
        reader.readline()
    else:
        response.body = reader.read(int(response.headers["content-length"]))
    response.whole = True
    return response


def expecting(case: Case) -> None:
    with gateway_behind_proxy(case) as (harness, _, _simulator):
        tasks = gateway_tasks(harness)
        head, _, body = request_bytes(
            harness.url, client_request(case.pair.client), harness.key, expect="100-continue"
        ).partition(b"\r\n\r\n")
        with case.probe("100-continue"), connect(harness.url, PROBE_TIMEOUT) as sock:
            began = time.monotonic()
            sock.sendall(head + b"\r\n\r\n")
            if not (first := sock.recv(65536)).startswith(b"HTTP/1.1 100 "):
                raise WrongResponse(f"no 100 Continue but {first[:60]!r}")
            sock.sendall(body)
            check_response(case.pair.client, Probe("it"), read_response(sock, began, PROBE_TIMEOUT))
        with case.probe("100-continue for a body that is too long"), connect(harness.url, PROBE_TIMEOUT) as sock:
            long = head.replace(f"content-length: {len(body)}".encode(), b"content-length: 99999999999")
            sock.sendall(long + b"\r\n\r\n")
            response = read_response(sock, time.monotonic(), PROBE_TIMEOUT)
            if response.status != 413:
                raise WrongResponse(f"{response.status} instead of 413")
        with case.probe("another expectation"), connect(harness.url, PROBE_TIMEOUT) as sock:
            sock.sendall(head.replace(b"100-continue", b"magic") + b"\r\n\r\n" + body)
            response = read_response(sock, time.monotonic(), PROBE_TIMEOUT)
            if response.status not in (200, 417, 400):
                raise WrongResponse(f"{response.status} for an unknown expectation")
        check_settled(harness, tasks, 3)


# --- 60

DEEP = 100_000


def nonsense(case: Case) -> None:
    plain = json.loads(client_request(case.pair.client).body)
    text = json.dumps(plain)
    member = text.rstrip("}") + ',"x":'
    bodies: dict[str, tuple[bytes, tuple[int, ...]]] = {
        "nothing": (
            b"",
            (200, 400) if case.pair.client == "bedrock" else (400,),
        ),  # every field of a Bedrock body is optional
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
    if case.over_websocket:  # a frame whose text is not UTF-8 ends the session (tests/gateway/test_websocket.py)
        names = [name for name in names if "UTF" not in name]
    request = client_request(case.pair.client)
    with gateway_behind_proxy(case, script='then = "last"\n[[turn]]\ntext = "fine"\n') as (harness, _, _simulator):
        tasks = gateway_tasks(harness)
        for name in names:
            body, statuses = bodies[name]
            with case.probe(name), WakeupDelay() as lag:
                bad_request = type(request)(request.method, request.path, request.query, request.headers, body)
                response = case.send(harness, bad_request)
                if response.status not in statuses:
                    raise WrongResponse(f"{response.status} instead of {statuses}: {response.body[:200]!r}")
                if response.status != 200:
                    parse_refusal(case.pair.client, response)
                else:
                    check_response(case.pair.client, Probe("it"), response, "fine", ())
                if response.seconds > 5 + lag.worst:
                    raise ResponseTimeout(f"it took {response.seconds:.1f} s")
        with case.probe("it settles"):
            check_settled(harness, tasks, case.requests)


ROWS = [
    FaultRow(
        52, "the client closes", "the upstream is let go within 250 ms", disconnecting(reset=False), has_sessions=True
    ),
    FaultRow(
        53, "the client resets", "the upstream is let go within 250 ms", disconnecting(reset=True), has_sessions=True
    ),
    FaultRow(
        56,
        "the client stops reading",
        "the upstream waits, then the client is cut off",
        stopped_reading,
        covering_pairs()[::2],
        has_sessions=True,
    ),
    FaultRow(57, "slow senders", "closed at the deadline; others are served", slow_senders, covering_pairs()[::2]),
    FaultRow(58, "pipelined requests", "each answered, in order", pipelined),
    FaultRow(59, "Expect: 100-continue", "100, then the response", expecting),
    FaultRow(
        60,
        "malformed JSON, depth, keys, digits, NaN",
        "400 in the client's words, in time",
        nonsense,
        has_sessions=True,
    ),
]
