"""The HTTP server on a plain socket: order of responses, framing, limits, timeouts, drain.

All tests run on both HTTP servers.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dragoman.gateway import serve
from dragoman.http import exchange
from dragoman.http.exchange import HttpExchange
from dragoman.http.server import connection, sockets
from tests.anthropic_client import accumulate_message, parse_sse
from tests.gateway.harness import (
    KEY,
    GatewayHarness,
    StreamClient,
    anthropic_body,
    gateway_with_simulator,
    start_gateway,
    wait_until,
)
from tests.gateway.socket_client import SocketClient, gateway_servers


class Wire(SocketClient):
    """A connection that sends requests and reads one response at a time."""

    def ask(self, text: str = "hello", *lines: str, **more: Any) -> None:
        self.send(raw_request(text, *lines, **more))

    def closed(self, within: float = 60.0) -> bool:
        self.socket.settimeout(within)
        try:
            self.file.read()
            return True
        except ConnectionResetError:
            return True


def raw_request(text: str = "hello", *lines: str, first: str = "POST /v1/messages HTTP/1.1", **more: Any) -> bytes:
    body = json.dumps(anthropic_body(text=text, **more))
    head = [first, "host: localhost", f"x-api-key: {KEY}", f"content-length: {len(body)}", *lines, "", ""]
    return ("\r\n".join(head) + body).encode()


def text_of(body: bytes) -> str:
    """Return the text of a response, streamed or whole."""
    if body.startswith(b"{"):
        return str(json.loads(body)["content"][0]["text"])
    events = parse_sse(body)
    assert events[-1]["type"] == "message_stop"
    return str(accumulate_message(events)["content"][0]["text"])


# --- many requests, one connection


def test_many_requests_use_one_connection(harness: GatewayHarness) -> None:
    with Wire(harness) as wire:
        for number in range(50):
            wire.ask(f"number {number}", stream=number % 2 == 0)
            status, headers, body = wire.read_response()
            assert (status, text_of(body)) == (200, f"You said: number {number}")
            assert "connection" not in headers


def test_pipelined_requests_are_answered_in_order(harness: GatewayHarness) -> None:
    with Wire(harness) as wire:
        wire.send(b"".join(raw_request(f"number {number}", stream=number % 3 == 0) for number in range(10)))
        for number in range(10):
            assert text_of(wire.read_response()[2]) == f"You said: number {number}"


def test_a_request_behind_a_stream_waits_for_its_end(tmp_path: Path) -> None:
    script = '[[turn]]\nparts = [{ text = "Begin " }, { wait = 0.3 }, { text = "end." }]\n[[turn]]\ntext = "Second."'
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, simulator), Wire(harness) as wire:
        wire.send(raw_request(stream=True) + raw_request())
        first = wire.read_response()[2]
        assert b"end." in first and b"message_stop" in first and b"Second" not in first
        assert b"Second." in wire.read_response()[2]
        assert simulator.total == 2


def test_garbage_after_a_request_does_not_disturb_its_stream(tmp_path: Path) -> None:
    script = '[[turn]]\nparts = [{ text = "Begin " }, { wait = 0.3 }, { text = "end." }]'
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, _), Wire(harness) as wire:
        wire.send(raw_request(stream=True) + b"\0\0 garbage\r\n\r\n")
        status, _, body = wire.read_response()
        assert (status, text_of(body)) == (200, "Begin end.")
        assert wire.closed()


def test_a_client_with_a_pipelined_request_can_disconnect(tmp_path: Path) -> None:
    with gateway_with_simulator('[[turn]]\nparts = [{ text = "Begin." }, { wait = 30.0 }]', tmp_path, "openai") as (
        harness,
        simulator,
    ):
        with Wire(harness) as wire:
            wire.send(raw_request(stream=True) + raw_request())
            wire.head()
        assert simulator.requests[0].wait(60) == "gone"
        wait_until(lambda: harness.running.gateway.in_flight == 0)
        assert simulator.total == 1


# --- framing


def test_expect_100_continue_gets_a_100_or_a_refusal(harness: GatewayHarness) -> None:
    head, _, body = raw_request("word", "expect: 100-continue").partition(b"\r\n\r\n")
    with Wire(harness) as wire:
        wire.send(head + b"\r\n\r\n")
        assert wire.head() == (100, {})
        wire.send(body)
        assert b"word" in wire.read_response()[2]
    with Wire(harness) as wire:
        wire.send(head.replace(KEY.encode(), b"wrong") + b"\r\n\r\n")
        assert wire.read_response()[0] == 401


@contextmanager
def calls_of(harness: GatewayHarness) -> Iterator[list[int]]:
    """Count the Python function calls in the gateway's thread."""
    calls, loop = [0], harness.running.loop
    assert loop is not None

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        calls[0] += event == "call"

    loop.call_soon_threadsafe(sys.setprofile, count)
    try:
        yield calls
    finally:
        loop.call_soon_threadsafe(sys.setprofile, None)


def test_a_body_in_a_million_chunks_costs_little(harness: GatewayHarness) -> None:
    text = "x" * 1_000_000
    body = json.dumps(anthropic_body(text=text)).encode()
    head = f"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\ntransfer-encoding: chunked\r\n\r\n"
    raw = head.encode() + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with calls_of(harness) as calls, Wire(harness) as wire:
        wire.send(raw)
        status, _, response = wire.read_response()
    assert (status, text[:100].encode() in response) == (200, True)
    assert calls[0] < 3 * len(body)  # a few calls for each one-byte chunk


def test_a_body_of_twenty_megabytes_is_accepted(harness: GatewayHarness) -> None:
    with Wire(harness) as wire:
        wire.ask("y" * 20_000_000, max_tokens=1)
        assert wire.read_response()[0] == 200


def test_a_too_long_body_is_refused_before_it_arrives(harness: GatewayHarness) -> None:
    head = raw_request().partition(b"content-length")[0]
    for framed in (
        b"content-length: 40000000\r\n\r\n" + b"x" * 70_000_000,
        b"transfer-encoding: chunked\r\n\r\n2160EC0\r\n",
    ):
        with Wire(harness) as wire:
            sender = threading.Thread(target=ignore_errors, args=(wire.send, head + framed + b"x" * 1_000_000))
            sender.start()
            if framed.startswith(b"content"):
                status, headers, _ = wire.read_response()
                assert (status, headers["connection"]) == (413, "close")
        sender.join(60)


def ignore_errors(do: Callable[[bytes], None], raw: bytes) -> None:
    with suppress(OSError):
        do(raw)


def test_head_has_no_body_and_http_1_0_no_chunks(harness: GatewayHarness) -> None:
    with Wire(harness) as wire:
        wire.send(b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert wire.head()[1]["content-length"] == "3"
        wire.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        status, headers, body = wire.read_response()
        assert (status, headers["connection"], body) == (200, "close", b"ok\n")
        assert wire.closed()
    with Wire(harness) as wire:
        wire.ask("old", first="POST /v1/messages HTTP/1.0")
        assert b"old" in wire.read_response()[2]
        assert wire.closed()


def test_a_stream_for_http_1_0_ends_with_its_connection(harness: GatewayHarness) -> None:
    with Wire(harness) as wire:
        wire.ask("old", first="POST /v1/messages HTTP/1.0", stream=True)
        status, headers = wire.head()
        assert (status, headers.get("transfer-encoding"), headers["connection"]) == (200, None, "close")
        assert wire.file.read().rstrip().endswith(b'data: {"type":"message_stop"}')


def test_a_response_of_many_megabytes_is_complete(tmp_path: Path) -> None:
    script = f'then = "repeat"\n[[turn]]\ntext = "{"z" * 5_000_000}"\nchunk = 50000'
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, _), Wire(harness) as wire:
        for stream in (False, True):
            wire.ask(stream=stream)
            assert text_of(wire.read_response()[2]) == "z" * 5_000_000


# --- timeouts


def shorten_grace(monkeypatch: pytest.MonkeyPatch, name: str, seconds: float) -> None:
    monkeypatch.setattr(serve, "SWEEP_SECONDS", 0.05)
    for module in (connection, exchange):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, seconds)


def test_a_missing_head_times_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shorten_grace(monkeypatch, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(sockets, "_DEFER_SECONDS", 1)
    with start_gateway("", tmp_path) as harness:
        for begun in (b"", b"POST /v1/mess", b"POST / HTTP/1.1\r\nhost: localhost\r\nx-a: b\r\n"):
            with Wire(harness) as wire:
                wire.send(begun)
                assert wire.head()[0] == 408 if begun else True
                assert wire.closed()
        with Wire(harness) as wire, pytest.raises(OSError):  # single bytes do not extend the timeout
            for byte in b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-" + b"a" * 5000:
                wire.send(bytes((byte,)))
                time.sleep(0.02)


def test_a_missing_body_times_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shorten_grace(monkeypatch, "BODY_SECONDS", 0.3)
    with start_gateway("", tmp_path) as harness, Wire(harness) as wire:
        wire.send(raw_request()[:-5])
        status, _, body = wire.read_response()
        assert (status, json.loads(body)["type"]) == (408, "error")
        assert wire.closed()
        assert harness.log_lines()[0]["status"] == 408


def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shorten_grace(monkeypatch, "IDLE_SECONDS", 1.0)
    with start_gateway("", tmp_path) as harness, Wire(harness) as wire:
        began = time.monotonic()
        wire.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        wire.read_response()
        assert wire.closed()
        assert time.monotonic() - began > 0.5  # a busy machine takes longer, never shorter


def test_a_client_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shorten_grace(monkeypatch, "STALL_SECONDS", 0.5)
    script = f'[[turn]]\ntext = "{"x" * 16_000_000}"\nchunk = 16000'
    with (
        gateway_with_simulator(script, tmp_path, "openai") as (harness, simulator),
        StreamClient(harness, "/v1/messages", anthropic_body(stream=True), receive_buffer=65536) as client,
    ):
        client.read_until(b"text_delta")
        assert simulator.requests[0].wait(60) == "gone"
        assert harness.log_lines()[0]["outcome"] == "gone"


def test_a_client_that_reads_slowly_is_not_disconnected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shorten_grace(monkeypatch, "STALL_SECONDS", 1.0)
    with gateway_with_simulator(f'[[turn]]\ntext = "{"x" * 6_000_000}"\nchunk = 16000', tmp_path, "openai") as (
        harness,
        _,
    ):
        with StreamClient(harness, "/v1/messages", anthropic_body(stream=True), receive_buffer=262144) as client:
            got = client.read_until(b"text_delta")
            for _ in range(15):  # longer than the stall timeout
                time.sleep(0.1)
                got += client.socket.recv(131072)
            got += client.read_all()
        assert got.count(b"x") >= 6_000_000 and b"message_stop" in got
        assert harness.log_lines()[0]["outcome"] == "ok"


# --- limits


@pytest.mark.parametrize(
    ("endless", "status"),
    [
        (b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-a: " + b"b" * 9_000_000, 431),
        (b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n" + b"x-a: b\r\n" * 100_000, 431),
        (b"POST /" + b"a" * 9_000_000, 414),
        (b"POST" * 1_000_000, 400),
    ],
)
def test_an_endless_head_is_refused_cheaply(harness: GatewayHarness, endless: bytes, status: int) -> None:
    with calls_of(harness) as calls, Wire(harness) as wire:
        sender = threading.Thread(target=ignore_errors, args=(wire.send, endless))
        sender.start()
        with suppress(ConnectionResetError):  # it may have sent too much to read the response
            assert wire.head()[0] == status
        assert wire.closed()
        sender.join(60)
    assert calls[0] < 20_000  # for 100,000 lines or nine million bytes


# --- drain


def test_a_drain_is_announced_at_once_and_closes_keep_alive_connections(tmp_path: Path) -> None:
    slow = '[[turn]]\nparts = [{ text = "Begin " }, { wait = 1.0 }, { text = "end." }]\n[[turn]]\ntext = "Second."'
    with (
        gateway_with_simulator(slow, tmp_path, "openai", server__drain=60) as (harness, simulator),
        Wire(harness) as keep_alive,
        Wire(harness) as streaming,
    ):
        keep_alive.send(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert keep_alive.read_response()[0] == 200
        streaming.ask(stream=True)
        streaming.head()
        harness.running.stop(linger=60)
        with Wire(harness) as new:  # still listening, for load balancers that notice late
            new.send(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            status, headers, _ = new.read_response()
            assert (status, headers["connection"]) == (503, "close")
        keep_alive.ask()
        status, headers, body = keep_alive.read_response()
        assert (status, headers["connection"], b"Second." in body) == (200, "close", True)
        assert keep_alive.closed()
        harness.running._linger_until = 0.0  # the linger time is over
        wait_until(lambda: not listens(harness))
        rest = streaming.file.read()
        assert b"end." in rest and rest.endswith(b"0\r\n\r\n") and b"message_stop" in rest
        assert simulator.total == 2


def listens(harness: GatewayHarness) -> bool:
    try:
        with Wire(harness):
            return True
    except OSError:
        return False


def test_a_drain_does_not_wait_for_idle_connections(tmp_path: Path) -> None:
    with start_gateway("", tmp_path, server__drain=600) as harness, Wire(harness) as keep_alive, Wire(harness):
        keep_alive.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        keep_alive.read_response()
        harness.running.stop()
        assert keep_alive.closed()


def test_no_object_of_a_finished_stream_remains(tmp_path: Path) -> None:
    with gateway_with_simulator('then = "repeat"\n[[turn]]\ntext = "one two three"', tmp_path, "openai") as (
        harness,
        _,
    ):
        for _ in range(3):
            with Wire(harness) as wire:
                wire.ask(stream=True)
                wire.read_response()
        with StreamClient(harness, "/v1/messages", anthropic_body(stream=True)) as leaving_client:
            leaving_client.read_until(b"200 OK")
        harness.log_lines(4)

        def remaining_objects() -> int:
            gc.collect()
            servers, objects = gateway_servers(), gc.get_objects()
            exchanges = [each.connection for each in objects if isinstance(each, HttpExchange)]
            connections = [each for each in objects if isinstance(each, connection.ServerConnection)]
            return sum(each.server in servers for each in (*exchanges, *connections))

        wait_until(lambda: remaining_objects() == 0)
