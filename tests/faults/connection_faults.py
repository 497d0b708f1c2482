"""Faults 1-12: connecting to the upstream. DNS, names and TLS chains are simulated on loopback."""

from __future__ import annotations

import asyncio
import datetime
import logging
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import trustme

from dragoman.errors import ConnectFailed
from dragoman.http.client import connecting
from dragoman.http.client.client import HttpClient
from dragoman.simulator.faults.response import Drop, SilentlyClosedConnection
from dragoman.wire.http import HttpRequest
from tests.faults.checks import Probe, check_response
from tests.faults.http_client import WrongResponse
from tests.faults.row import FaultRow
from tests.faults.runner import Case, Pair, ProbeResult, run_probes, same_probes

QUICKLY = "timeouts.dns = 0.4\ntimeouts.connect = 0.4\ntimeouts.tls = 0.4"  # test_faults.py checks the defaults
UNKNOWN_HOST = "https://api.nowhere.test"


def stream_and_whole(label: str, **more: Any) -> list[Probe]:
    """Return the same probe for a stream and for a whole response."""
    return [Probe(f"{label}, {how}", stream=how == "stream", **more) for how in ("stream", "whole")]


# --- addresses


@contextmanager
def refusing() -> Iterator[str]:
    with socket.socket() as unused:  # bound, so that no other process gets the port; not listening
        unused.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unused.getsockname()[1]}"


@contextmanager
def black_hole() -> Iterator[str]:
    """Run a listener whose backlog is full: a further SYN is not answered."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def at(place: Callable[[], Any], more: str = "", **expected: Any) -> Callable[[Case], None]:
    def run(case: Case) -> None:
        with place() as url:
            run_probes(lambda _: stream_and_whole("it", url=url, may="error", max_requests=0, **expected), more=more)(
                case
            )

    return run


# --- names


async def _no_such_name(host: str, port: int) -> Any:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


async def _silence(host: str, port: int) -> Any:
    await asyncio.sleep(60)


def named(resolve: Any, probes: Callable[[], list[Probe]], more: str = "") -> Callable[[Case], None]:
    def run(case: Case) -> None:
        with patch.object(connecting, "resolve", resolve):
            run_probes(lambda _: probes(), more=more)(case)

    return run


def _found(*addresses: str) -> Any:
    """Return a resolver that returns these addresses."""

    async def resolve(host: str, port: int) -> Sequence[Any]:
        if host == "localhost" or host[0].isdigit():
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in addresses
        ]

    return resolve


_ELSEWHERE = ("127.0.0.1", "::1", "169.254.169.254", "fe80::1", "0.0.0.0", "::ffff:127.0.0.1", "224.0.0.1")


def rebinding(case: Case) -> None:
    """A name that resolves to this machine: no local listener may get the key."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        url = f"https://api.nowhere.test:{listening.getsockname()[1]}"
        for address in _ELSEWHERE if case.whole else _ELSEWHERE[:3]:
            probes = stream_and_whole(address, url=url, may="error", says="resolves to", max_requests=0)
            with patch.object(connecting, "resolve", _found(address)):
                run_probes(same_probes(*probes))(case)
        with case.probe("nothing went there"):
            with suppress(TimeoutError):
                received.append(listening.accept()[0].recv(10))
            if received:
                raise WrongResponse("a connection was made to the refused address")
    with case.probe("it connects to what was checked"):
        _used_as_checked()


def _used_as_checked() -> None:
    """The connection uses the checked result of one lookup, so a second lookup cannot change the address."""
    addresses = iter([["203.0.113.7"], ["127.0.0.1"]])
    hosts: list[str] = []
    tried: list[Any] = []

    async def resolve(host: str, port: int) -> Any:
        hosts.append(host)
        return await _found(*next(addresses))(host, port)

    async def attempt(found: Any) -> Any:
        tried.append(found[4][0])
        raise ConnectionRefusedError(111, "refused")

    async def main() -> None:
        client = HttpClient()
        with suppress(ConnectFailed):
            await client.open(UNKNOWN_HOST, HttpRequest("POST", "/", body=b"{}"))
        await client.aclose()

    with patch.object(connecting, "resolve", resolve), patch.object(connecting, "_attempt", attempt):
        asyncio.run(main())
    if hosts != ["api.nowhere.test"] or tried != ["203.0.113.7"]:
        raise WrongResponse(f"looked up {hosts}, connected to {tried}")


# --- TLS


class Authority:
    """A certificate authority and the certificates it signs."""

    def __init__(self) -> None:
        self.ca = trustme.CA()
        self.file = str(Path(tempfile.mkdtemp(prefix="dragoman-faults-")) / "ca.pem")
        self.ca.cert_pem.write_to_path(self.file)

    def server(self, *names: str, ca: trustme.CA | None = None, expired: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=-1 if expired else 9)
        since = until - datetime.timedelta(days=18)
        (ca or self.ca).issue_cert(*names, not_before=since, not_after=until).configure_cert(context)
        return context


@cache
def authority() -> Authority:
    return Authority()


def secured(make: Callable[[Authority], ssl.SSLContext], **expected: Any) -> Callable[[Case], None]:
    def run(case: Case) -> None:
        context = make(authority())
        expected_ = {"may": "error", "says": "certificate", "max_requests": 0} | expected
        with quiet():
            run_probes(
                lambda _: stream_and_whole("it", tls=context, **expected_), more=f'ca_file = "{authority().file}"'
            )(case)

    return run


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log of a TLS server that clients do not trust."""
    logger = logging.getLogger("asyncio")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _stalled_tls(case: Case) -> None:
    """The listener accepts connections and never sends a TLS message."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://localhost:{silent.getsockname()[1]}"
        probes = stream_and_whole(
            "it", url=url, may="error", within=0.4, status=(502, 504, 500, 503, 408), max_requests=0
        )
        more = f'{QUICKLY}\nca_file = "{authority().file}"'
        run_probes(lambda _: probes, more=more)(case)


# --- connections


def _dropped(*, reset: bool) -> Callable[[Case], None]:
    def probes(_: Pair) -> list[Probe]:
        again = Drop(reset=reset, times=1)
        return [
            *stream_and_whole("always", faults=(Drop(reset=reset),), may="error", max_requests=0),
            *stream_and_whole("the first only", faults=(again,), may="response", max_requests=1),
        ]

    return run_probes(probes, runs_by_itself=True, few=4)


def _stale(case: Case) -> None:
    """The server has closed the keep-alive connection: the next request is retried once and runs once."""

    def check(shown: ProbeResult) -> None:
        before = shown.proxy.forwarded
        for _ in range(3):
            check_response(case.pair.client, Probe("again"), shown.ask())
        if shown.proxy.forwarded - before != 3:
            raise WrongResponse(f"{shown.proxy.forwarded - before} requests ran for 3 that were asked")
        if shown.proxy.connections < 3:
            raise WrongResponse("no connection was kept, so nothing was tried")
        lines = shown.harness.log_lines(4)
        if [line["attempts"] for line in lines] != [1] * 4:
            raise WrongResponse(f"it shows: {lines}")

    run_probes(lambda _: [Probe("closed after one request", (SilentlyClosedConnection(after=1),), check=check)])(case)


ROWS = [
    FaultRow(1, "connection refused", "an error, after quick retries", at(refusing)),
    FaultRow(2, "SYN black hole", "a timeout error at the connect deadline", at(black_hole, QUICKLY, within=0.4)),
    FaultRow(
        3,
        "DNS: no such name",
        "an error",
        named(_no_such_name, lambda: stream_and_whole("it", url=UNKNOWN_HOST, may="error", max_requests=0)),
    ),
    FaultRow(
        4,
        "DNS hangs",
        "a timeout error at the deadline",
        named(
            _silence, lambda: stream_and_whole("it", url=UNKNOWN_HOST, may="error", within=0.4, max_requests=0), QUICKLY
        ),
    ),
    FaultRow(5, "DNS flips to another address", "refused; one look-up, and just that is connected to", rebinding),
    FaultRow(6, "TLS: expired", "an error; no byte was sent", secured(lambda it: it.server("localhost", expired=True))),
    FaultRow(7, "TLS: wrong host", "an error; no byte was sent", secured(lambda it: it.server("other.example"))),
    FaultRow(
        8,
        "TLS: unknown authority",
        "an error; no byte was sent",
        secured(lambda it: it.server("localhost", ca=trustme.CA())),
    ),
    FaultRow(9, "TLS: the handshake stalls", "a timeout error at the deadline", _stalled_tls),
    FaultRow(10, "reset after accept", "an error, or the response of a second try", _dropped(reset=True)),
    FaultRow(11, "closed without a byte", "an error, or the response of a second try", _dropped(reset=False)),
    FaultRow(12, "a kept connection is stale", "one transparent retry, nothing asked twice", _stale),
]
