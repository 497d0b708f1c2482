"""All counters return to zero after clients are gone, however the clients behave.

A property over sequences of clients: each sends one of many heads, some or all of its body, perhaps more than it
announced, and then reads, disconnects, resets its connection or closes its sending side.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dragoman.gateway import admission
from dragoman.http import exchange
from dragoman.http.server.serving import ConnectionRegistry
from dragoman.simulator import parse_script, running_simulator
from tests.gateway.harness import KEY, TIMEOUT, GatewayHarness, start_gateway, upstream_config, wait_until
from tests.gateway.socket_client import (
    EVENT_LOOPS,
    SocketClient,
    converse_body,
    gateway_servers,
    head,
    raw,
    request_bytes,
    sha256_hex,
    signed_request,
    use_event_loop,
)

MAX_BODY = 128 * 1024
HASHED = ("host", "x-amz-content-sha256", "x-amz-date")
SCRIPT = """
then = "repeat"
[[turn]]
text = "Yes."
[[turn]]
parts = [{ text = "Begin " }, { wait = 0.02 }, { text = "end." }]
[[turn]]
parts = [{ text = "Begin " }, { exception = "server", message = "broke" }]
"""


def chunks(body: bytes, *, ended: bool = True) -> bytes:
    parts = [b"%x\r\n%b\r\n" % (len(body[at : at + 5000]), body[at : at + 5000]) for at in range(0, len(body), 5000)]
    return b"".join([*parts, b"0\r\n\r\n" if ended else b""])


def _shapes() -> dict[str, tuple[bytes, bytes]]:
    """Return pairs of head and body by name."""
    text = request_bytes("hello").partition(b"\r\n\r\n")[2]
    stream = request_bytes("hello", stream=True).partition(b"\r\n\r\n")[2]
    large = request_bytes("x" * 90_000).partition(b"\r\n\r\n")[2]
    huge = b"x" * (MAX_BODY + 5000)
    return {
        "plain": (head(len(text)), text),
        "stream": (head(len(stream)), stream),
        "large": (head(len(large)), large),
        "large chunked": (head(None), chunks(large)),
        "large stream over Chat": (head(len(large), path="/v1/chat/completions"), large),
        "endless chunked": (head(None), chunks(large, ended=False)),
        "chunked over max_body": (head(None), chunks(huge)),
        "length over max_body": (head(len(huge)), huge),
        "absurd length": (head(10**17), text),
        "length too short": (head(len(text) - 7), text),
        "length too long": (head(len(text) + 7), text),
        "length of nothing": (head(0), text),
        "no length": (head(None).replace(b"transfer-encoding: chunked\r\n", b""), text),
        "expects": (head(len(large), "expect: 100-continue"), large),
        "no JSON": (head(9), b"{{{{{{{{{"),
        "keyless": (head(len(large), key=""), large),
        "keyless chunked": (head(None, key="wrong"), chunks(large, ended=False)),
        "signed": raw(signed_request(converse_body())),
        "signed, large": raw(signed_request(converse_body("x" * 90_000))),
        "signed by another": raw(signed_request(converse_body("x" * 90_000), secret="x" * 40)),
        "signed, with a hash": raw(
            signed_request(converse_body(), covered=HASHED, x_amz_content_sha256=sha256_hex(converse_body()))
        ),
        "signed, with a wrong hash": raw(
            signed_request(converse_body(), covered=HASHED, x_amz_content_sha256=sha256_hex(b""))
        ),
        "no such path": (head(len(text), path="/nothing"), text),
        "another host": (head(len(text)).replace(b"host: localhost", b"host: evil.example"), text),
        "probe": (b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n", b""),
        "models": (f"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\n\r\n".encode(), b""),
        "no HTTP": (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"\x00" * 50),
    }


SHAPES = _shapes()


@dataclass(frozen=True)
class Visit:
    """The behaviour of one client."""

    shapes: tuple[str, ...]  # sent one after another; the last may be truncated
    cut: float | None  # the share of the last one that is sent; None: all of it
    end: str
    peer: int


VISITS = st.builds(
    Visit,
    st.lists(st.sampled_from(sorted(SHAPES)), min_size=1, max_size=3).map(tuple),
    st.one_of(st.none(), st.floats(0.0, 1.0)),
    st.sampled_from(["reads", "reads a little", "closes", "resets", "half-closes and reads", "half-closes and leaves"]),
    st.integers(2, 4),
)


@pytest.fixture(params=EVENT_LOOPS)
def harness(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[GatewayHarness]:
    monkeypatch.setattr(admission, "SECONDS", 0.3)
    monkeypatch.setattr(exchange, "RATE_SECONDS", 0.3)
    limits: dict[str, Any] = {
        "server__limits__in_flight": 1024 * 1024,
        "server__limits__streams": 6,
        "server__max_body": MAX_BODY,
    }
    with (
        use_event_loop(request.param, monkeypatch),
        running_simulator("openai", script=parse_script(SCRIPT)) as simulator,
        start_gateway(
            upstream_config("one", "openai", simulator.url), tmp_path, **limits, server__min_body_rate=1000
        ) as one,
    ):
        yield one


def visit(client: SocketClient, one: Visit) -> None:
    sent = b"".join(b"".join(SHAPES[name]) for name in one.shapes[:-1])
    top, body = SHAPES[one.shapes[-1]]
    sent += top + (body if one.cut is None else body[: int(one.cut * len(body))])
    client.socket.settimeout(0.5)  # after a refusal the gateway does not read any more
    with suppress(OSError):
        client.send(sent)
        if one.end.startswith("half-closes"):
            client.end()
        client.socket.settimeout(0.05)  # this client reads only briefly
        if one.end.endswith("reads"):
            while client.socket.recv(65536):
                pass
        elif one.end == "waits":  # for the response, or for the timeout error
            client.socket.settimeout(TIMEOUT)
            client.socket.recv(65536)
        elif one.end == "reads a little":
            client.socket.recv(10)
        elif one.end == "resets":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def open_registries() -> list[ConnectionRegistry]:
    return [server.connections for server in gateway_servers()]


def counters(harness: GatewayHarness, connections: ConnectionRegistry) -> dict[str, Any]:
    """Return all counters that must be zero or empty when the gateway is idle."""
    gateway = harness.running.gateway
    load, unadmitted = gateway.memory_budget, gateway._admission._unproven
    pools = [unadmitted._new, unadmitted._returning]
    counts = {
        "requests": load.requests,
        "request bytes": load.request_bytes,
        "response bytes": load.response_bytes,
        "by peer": load.by_peer,
        "live": len(gateway._live),
        "unproven": [
            len(pool) or pool.budget.requests or pool.budget.request_bytes or pool.budget.response_bytes
            for pool in pools
        ],
        "connections": len(connections),
        "connections by peer": connections._by_peer,
        "connections that prove nothing": connections.unadmitted,
    }
    return {name: count for name, count in counts.items() if count and count != [0, 0]}


def test_all_counters_are_released_however_clients_behave(harness: GatewayHarness) -> None:
    with SocketClient(harness, first=b"GET "):
        wait_until(lambda: any(open_registries()))
        [connections] = [each for each in open_registries() if each]

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(st.lists(VISITS, min_size=1, max_size=6))
    @example([Visit((name,), 0.5, "waits", 2) for name in ("endless chunked", "signed, large")])
    @example([Visit(("large",), 0.5, "closes", 2 + number % 3) for number in range(12)])
    @example([Visit(("signed by another",), 0.5, "closes", 2 + number % 3) for number in range(12)])
    def law(visits: list[Visit]) -> None:
        with ExitStack() as stack:
            for one in visits:
                visit(stack.enter_context(SocketClient(harness, f"127.0.0.{one.peer}")), one)
        wait_until(lambda: not counters(harness, connections), 30)

    law()
    assert harness.request("/v1/messages", {"model": "m", "max_tokens": 9, "messages": []})[0] in (200, 400)


@pytest.mark.parametrize("loop", EVENT_LOOPS)
def test_all_counters_are_released_when_the_gateway_stops(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loop: str
) -> None:
    with running_simulator("openai", script=parse_script(SCRIPT)) as simulator, ExitStack() as stack:
        with (
            use_event_loop(loop, monkeypatch),
            start_gateway(upstream_config("one", "openai", simulator.url), tmp_path, server__drain=0) as harness,
        ):
            for top, body in SHAPES.values():
                stack.enter_context(SocketClient(harness, first=top + body[: len(body) // 2]))
            gateway = harness.running.gateway
            wait_until(lambda: gateway.memory_budget.requests >= 5 and gateway._admission._unproven._new)
        load, pool = gateway.memory_budget, gateway._admission._unproven._new
        assert (load.requests, load.request_bytes, load.response_bytes, load.by_peer) == (0, 0, 0, {})
        assert (len(pool), pool.budget.requests, pool.budget.request_bytes) == (0, 0, 0)
        assert not gateway._live
