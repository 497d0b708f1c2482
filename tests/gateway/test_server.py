"""The server between clients' sockets and the gateway, on a plain socket: order, framing, limits, patience, the end.

Everything here holds for both servers.
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
    """A connection that asks, and reads one answer at a time."""

    def ask(self, text: str = "hello", *lines: str, **more: Any) -> None:
        self.send(asked(text, *lines, **more))

    def closed(self, within: float = 60.0) -> bool:
        self.socket.settimeout(within)
        try:
            self.file.read()
            return True
        except ConnectionResetError:
            return True


def asked(text: str = "hello", *lines: str, first: str = "POST /v1/messages HTTP/1.1", **more: Any) -> bytes:
    body = json.dumps(anthropic_body(text=text, **more))
    head = [first, "host: localhost", f"x-api-key: {KEY}", f"content-length: {len(body)}", *lines, "", ""]
    return ("\r\n".join(head) + body).encode()


def spoken(body: bytes) -> str:
    """The text of an answer, streamed or whole."""
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
            status, headers, body = wire.answer()
            assert (status, spoken(body)) == (200, f"You said: number {number}")
            assert "connection" not in headers


def test_pipelined_requests_are_answered_in_their_order(harness: GatewayHarness) -> None:
    with Wire(harness) as wire:
        wire.send(b"".join(asked(f"number {number}", stream=number % 3 == 0) for number in range(10)))
        for number in range(10):
            assert spoken(wire.answer()[2]) == f"You said: number {number}"


def test_a_request_behind_a_stream_waits_for_its_end(tmp_path: Path) -> None:
    script = '[[turn]]\nparts = [{ text = "Begin " }, { wait = 0.3 }, { text = "end." }]\n[[turn]]\ntext = "Second."'
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, simulator), Wire(harness) as wire:
        wire.send(asked(stream=True) + asked())
        first = wire.answer()[2]
        assert b"end." in first and b"message_stop" in first and b"Second" not in first
        assert b"Second." in wire.answer()[2]
        assert simulator.total == 2


def test_garbage_behind_a_stream_does_not_get_into_it(tmp_path: Path) -> None:
    script = '[[turn]]\nparts = [{ text = "Begin " }, { wait = 0.3 }, { text = "end." }]'
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, _), Wire(harness) as wire:
        wire.send(asked(stream=True) + b"\0\0 garbage\r\n\r\n")
        status, _, body = wire.answer()
        assert (status, spoken(body)) == (200, "Begin end.")
        assert wire.closed()


def test_who_leaves_with_a_second_request_sent_has_left(tmp_path: Path) -> None:
    with gateway_with_simulator('[[turn]]\nparts = [{ text = "Begin." }, { wait = 30.0 }]', tmp_path, "openai") as (
        harness,
        simulator,
    ):
        with Wire(harness) as wire:
            wire.send(asked(stream=True) + asked())
            wire.head()
        assert simulator.requests[0].wait(60) == "gone"
        wait_until(lambda: harness.running.gateway.in_flight == 0)
        assert simulator.total == 1


# --- framing


def test_a_client_that_waits_for_a_word_gets_it_or_its_refusal(harness: GatewayHarness) -> None:
    head, _, body = asked("word", "expect: 100-continue").partition(b"\r\n\r\n")
    with Wire(harness) as wire:
        wire.send(head + b"\r\n\r\n")
        assert wire.head() == (100, {})
        wire.send(body)
        assert b"word" in wire.answer()[2]
    with Wire(harness) as wire:
        wire.send(head.replace(KEY.encode(), b"wrong") + b"\r\n\r\n")
        assert wire.answer()[0] == 401


@contextmanager
def calls_of(harness: GatewayHarness) -> Iterator[list[int]]:
    """Count the calls of Python functions in the gateway's thread."""
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
        status, _, answer = wire.answer()
    assert (status, text[:100].encode() in answer) == (200, True)
    assert calls[0] < 3 * len(body)  # a chunk of one byte is a few calls at most


def test_a_body_of_twenty_megabytes_is_taken(harness: GatewayHarness) -> None:
    with Wire(harness) as wire:
        wire.ask("y" * 20_000_000, max_tokens=1)
        assert wire.answer()[0] == 200


def test_a_body_that_is_too_long_is_refused_before_it_has_come(harness: GatewayHarness) -> None:
    head = asked().partition(b"content-length")[0]
    for framed in (
        b"content-length: 40000000\r\n\r\n" + b"x" * 70_000_000,
        b"transfer-encoding: chunked\r\n\r\n2160EC0\r\n",
    ):
        with Wire(harness) as wire:
            sender = threading.Thread(target=quietly, args=(wire.send, head + framed + b"x" * 1_000_000))
            sender.start()
            if framed.startswith(b"content"):
                status, headers, _ = wire.answer()
                assert (status, headers["connection"]) == (413, "close")
        sender.join(60)


def quietly(do: Callable[[bytes], None], raw: bytes) -> None:
    with suppress(OSError):
        do(raw)


def test_head_has_no_body_and_http_1_0_no_chunks(harness: GatewayHarness) -> None:
    with Wire(harness) as wire:
        wire.send(b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert wire.head()[1]["content-length"] == "3"
        wire.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        status, headers, body = wire.answer()
        assert (status, headers["connection"], body) == (200, "close", b"ok\n")
        assert wire.closed()
    with Wire(harness) as wire:
        wire.ask("old", first="POST /v1/messages HTTP/1.0")
        assert b"old" in wire.answer()[2]
        assert wire.closed()


def test_a_stream_for_http_1_0_ends_with_its_connection(harness: GatewayHarness) -> None:
    with Wire(harness) as wire:
        wire.ask("old", first="POST /v1/messages HTTP/1.0", stream=True)
        status, headers = wire.head()
        assert (status, headers.get("transfer-encoding"), headers["connection"]) == (200, None, "close")
        assert wire.file.read().rstrip().endswith(b'data: {"type":"message_stop"}')


def test_an_answer_of_many_megabytes_is_whole(tmp_path: Path) -> None:
    script = f'then = "repeat"\n[[turn]]\ntext = "{"z" * 5_000_000}"\nchunk = 50000'
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, _), Wire(harness) as wire:
        for stream in (False, True):
            wire.ask(stream=stream)
            assert spoken(wire.answer()[2]) == "z" * 5_000_000


# --- patience


def shorten_grace(monkeypatch: pytest.MonkeyPatch, name: str, seconds: float) -> None:
    monkeypatch.setattr(serve, "SWEEP_SECONDS", 0.05)
    for module in (connection, exchange):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, seconds)


def test_a_head_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shorten_grace(monkeypatch, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(sockets, "_DEFER_SECONDS", 1)
    with start_gateway("", tmp_path) as harness:
        for begun in (b"", b"POST /v1/mess", b"POST / HTTP/1.1\r\nhost: localhost\r\nx-a: b\r\n"):
            with Wire(harness) as wire:
                wire.send(begun)
                assert wire.head()[0] == 408 if begun else True
                assert wire.closed()
        with Wire(harness) as wire, pytest.raises(OSError):  # a byte now and then is no head either
            for byte in b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-" + b"a" * 5000:
                wire.send(bytes((byte,)))
                time.sleep(0.02)


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shorten_grace(monkeypatch, "BODY_SECONDS", 0.3)
    with start_gateway("", tmp_path) as harness, Wire(harness) as wire:
        wire.send(asked()[:-5])
        status, _, body = wire.answer()
        assert (status, json.loads(body)["type"]) == (408, "error")
        assert wire.closed()
        assert harness.log_lines()[0]["status"] == 408


def test_a_connection_that_nobody_uses_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shorten_grace(monkeypatch, "IDLE_SECONDS", 1.0)
    with start_gateway("", tmp_path) as harness, Wire(harness) as wire:
        began = time.monotonic()
        wire.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        wire.answer()
        assert wire.closed()
        assert time.monotonic() - began > 0.5  # a busy machine takes longer, never less


def test_a_client_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shorten_grace(monkeypatch, "STALL_SECONDS", 0.5)
    script = f'[[turn]]\ntext = "{"x" * 16_000_000}"\nchunk = 16000'
    with (
        gateway_with_simulator(script, tmp_path, "openai") as (harness, simulator),
        StreamClient(harness, "/v1/messages", anthropic_body(stream=True), receive_buffer=65536) as client,
    ):
        client.read_until(b"text_delta")
        assert simulator.requests[0].wait(60) == "gone"
        assert harness.log_lines()[0]["outcome"] == "gone"


def test_a_client_that_reads_slowly_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shorten_grace(monkeypatch, "STALL_SECONDS", 1.0)
    with gateway_with_simulator(f'[[turn]]\ntext = "{"x" * 6_000_000}"\nchunk = 16000', tmp_path, "openai") as (
        harness,
        _,
    ):
        with StreamClient(harness, "/v1/messages", anthropic_body(stream=True), receive_buffer=262144) as client:
            got = client.read_until(b"text_delta")
            for _ in range(15):  # longer than it may stand still
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
def test_an_endless_head_is_refused_and_costs_nothing(harness: GatewayHarness, endless: bytes, status: int) -> None:
    with calls_of(harness) as calls, Wire(harness) as wire:
        sender = threading.Thread(target=quietly, args=(wire.send, endless))
        sender.start()
        with suppress(ConnectionResetError):  # it may have sent too much to hear it
            assert wire.head()[0] == status
        assert wire.closed()
        sender.join(60)
    assert calls[0] < 20_000  # of 100,000 lines, of nine million bytes


# --- the end


def test_a_drain_says_so_at_once_and_lets_kept_connections_go(tmp_path: Path) -> None:
    slow = '[[turn]]\nparts = [{ text = "Begin " }, { wait = 1.0 }, { text = "end." }]\n[[turn]]\ntext = "Second."'
    with (
        gateway_with_simulator(slow, tmp_path, "openai", server__drain=60) as (harness, simulator),
        Wire(harness) as kept,
        Wire(harness) as streaming,
    ):
        kept.send(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert kept.answer()[0] == 200
        streaming.ask(stream=True)
        streaming.head()
        harness.running.stop(linger=60)
        with Wire(harness) as new:  # still listening, for balancers that are slow to notice
            new.send(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            status, headers, _ = new.answer()
            assert (status, headers["connection"]) == (503, "close")
        kept.ask()
        status, headers, body = kept.answer()
        assert (status, headers["connection"], b"Second." in body) == (200, "close", True)
        assert kept.closed()
        harness.running._linger_until = 0.0  # the time is up
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
    with start_gateway("", tmp_path, server__drain=600) as harness, Wire(harness) as kept, Wire(harness):
        kept.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        kept.answer()
        harness.running.stop()
        assert kept.closed()


def test_nothing_is_kept_of_a_stream_that_has_ended(tmp_path: Path) -> None:
    with gateway_with_simulator('then = "repeat"\n[[turn]]\ntext = "one two three"', tmp_path, "openai") as (
        harness,
        _,
    ):
        for _ in range(3):
            with Wire(harness) as wire:
                wire.ask(stream=True)
                wire.answer()
        with StreamClient(harness, "/v1/messages", anthropic_body(stream=True)) as leaver:
            leaver.read_until(b"200 OK")
        harness.log_lines(4)

        def left() -> int:
            gc.collect()
            servers, made = gateway_servers(), gc.get_objects()
            exchanges = [each.connection for each in made if isinstance(each, HttpExchange)]
            connections = [each for each in made if isinstance(each, connection.ServerConnection)]
            return sum(each.server in servers for each in (*exchanges, *connections))

        wait_until(lambda: left() == 0)
