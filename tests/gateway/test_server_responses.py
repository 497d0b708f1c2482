"""Responses of the built-in server on the wire: few writes and safe headers; and `dragoman.asgi` under uvicorn."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import dragoman
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.app import Gateway
from dragoman.gateway.redaction import Redactor
from dragoman.http.server.connection import ServerConnection
from dragoman.http.server.serving import HttpServer
from dragoman.simulator import Simulator, parse_script, running_simulator
from dragoman.wire.http import Headers
from tests.gateway.harness import (
    KEY,
    TIMEOUT,
    GatewayHarness,
    StreamClient,
    anthropic_body,
    openai_body,
    parse_config,
    upstream_config,
    wait_until,
)
from tests.gateway.socket_client import SocketClient, head, request_bytes


class Socket:
    """A transport that records the written bytes and the calls."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.calls: list[str] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def writelines(self, pieces: Any) -> None:
        self.writes.append(b"".join(pieces))

    def __getattr__(self, name: str) -> Any:
        def record_call() -> int:
            self.calls.append(name)
            return 0

        return record_call


def respond(raw: bytes, how: Any) -> Socket:
    """Answer a request with `how`; return the transport."""
    client = Socket()

    async def main() -> None:
        async def respond(exchange: Any) -> None:
            how(exchange)

        connection = ServerConnection(HttpServer(respond))
        connection.connection_made(client)  # type: ignore[arg-type]
        connection.data_received(raw)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    return client


REQUEST = b"POST / HTTP/1.1\r\nhost: localhost\r\n\r\n"
TEXT: Headers = (("content-type", "text/plain"),)


def test_a_whole_response_is_one_write() -> None:
    assert respond(REQUEST, lambda exchange: exchange.whole(200, TEXT, b"hello")).writes == [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello"
    ]
    long = b"x" * 1_000_000
    [written] = respond(REQUEST, lambda exchange: exchange.whole(529, TEXT, long)).writes
    assert written.startswith(b"HTTP/1.1 529 \r\n") and written.endswith(long)


def test_a_stream_is_one_write_per_piece_including_head_and_end() -> None:
    def stream(exchange: Any) -> None:
        exchange.head(200, TEXT)
        exchange.chunk(b"one")
        exchange.chunk(b"two")
        exchange.chunk(b"three", last=True)

    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
    assert respond(REQUEST, stream).writes == [
        head + b"3\r\none\r\n",
        b"3\r\ntwo\r\n",
        b"5\r\nthree\r\n0\r\n\r\n",
    ]


def test_a_head_can_be_sent_before_the_first_piece() -> None:
    def stream(exchange: Any) -> None:
        exchange.head(200, TEXT)
        exchange.flush()
        exchange.flush()
        exchange.chunk(b"", last=True)

    first, second = respond(REQUEST, stream).writes
    assert first.startswith(b"HTTP/1.1 200 OK") and first.endswith(b"\r\n\r\n")
    assert second == b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "status", "length"),
    [(b"HEAD", 200, b"content-length: 5\r\n"), (b"POST", 204, b""), (b"POST", 304, b"")],
)
def test_responses_without_a_body_send_none(method: bytes, status: int, length: bytes) -> None:
    raw = REQUEST.replace(b"POST", method)
    [written] = respond(raw, lambda exchange: exchange.whole(status, (), b"hello")).writes
    assert written.partition(b"\r\n")[2] == length + b"\r\n"


def test_a_header_value_cannot_inject_lines() -> None:
    odd: Headers = (("x-a", "b\r\nset-cookie: c\0d\u2028e"), ("x-b", "ä€"))
    [written] = respond(REQUEST, lambda exchange: exchange.whole(200, odd, b"")).writes
    assert b"\r\nx-a: b  set-cookie: c d e\r\nx-b: \xe4?\r\n" in written


def test_a_response_for_http_1_0_ends_with_the_connection() -> None:
    client = respond(REQUEST.replace(b"1.1", b"1.0"), lambda exchange: exchange.whole(200, TEXT, b"x"))
    assert b"connection: close\r\n" in client.writes[0]
    assert "close" in client.calls


def test_a_request_without_a_response_is_aborted() -> None:
    assert "abort" in respond(REQUEST, lambda exchange: None).calls


# --- `dragoman.asgi` under uvicorn, and under a server that sends no lifespan events

SLOW = 'then = "last"\n[[turn]]\nparts = [{ text = "Begin." }, { wait = 0.5 }, { text = "End." }]'
ENDLESS = 'then = "last"\n[[turn]]\nparts = [{ text = "Begin." }, { wait = 600.0 }, { text = "End." }]'


class Mounted(GatewayHarness):
    """A gateway under uvicorn."""

    def __init__(self, gateway: Gateway, log: io.StringIO, state: Path) -> None:
        self.gateway, self.key, self.state, self._log = gateway, KEY, state, log
        config = uvicorn.Config(gateway, port=0, log_config=None, access_log=False, lifespan="on")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def start(self) -> None:
        self.thread.start()
        wait_until(lambda: self.server.started or not self.thread.is_alive())
        assert self.server.started
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(TIMEOUT)
        assert not self.thread.is_alive()


@contextmanager
def mounted(simulator: Simulator, tmp_path: Path, **flags: Any) -> Iterator[Mounted]:
    log = io.StringIO()
    access_log = AccessLog(Redactor(), stream=log, form="json", level="debug")
    config = parse_config(upstream_config("one", "anthropic", simulator.url), **flags)
    harness = Mounted(Gateway(config, key=KEY, state=tmp_path, access_log=access_log), log, tmp_path)
    harness.start()
    try:
        yield harness
    finally:
        harness.stop()


def test_the_public_name_is_an_application() -> None:
    assert isinstance(dragoman.asgi(parse_config("", server__key=KEY)), Gateway)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_uvicorn_serves_whole_responses_and_streams(simulator: Simulator, tmp_path: Path, stream: bool) -> None:
    with mounted(simulator, tmp_path) as harness:
        status, headers, body = harness.request("/v1/messages", anthropic_body(text="hello", stream=stream))
        assert status == 200 and headers["request-id"] == headers["x-request-id"]
        assert headers.get("transfer-encoding") == ("chunked" if stream else None)
        if stream:
            assert body.rstrip().endswith(b'data: {"type":"message_stop"}')
        else:
            assert json.loads(body)["content"][0]["text"] == "You said: hello"
        status, _, body = harness.request("/v1/chat/completions", openai_body(stream=stream))  # translated
        assert status == 200 and body.rstrip().endswith(b"data: [DONE]") == stream
        assert [line["status"] for line in harness.log_lines(2)] == [200, 200]


def test_uvicorn_serves_refusals_before_and_after_the_body(simulator: Simulator, tmp_path: Path) -> None:
    total_before = simulator.total
    with mounted(simulator, tmp_path, server__max_body=2048) as harness:
        assert harness.request("/v1/messages", anthropic_body(), key="wrong")[0] == 401
        status, _, body = harness.request("/v1/messages", anthropic_body(text="x" * 3000))
        assert (status, json.loads(body)["error"]["type"]) == (413, "request_too_large")
        with SocketClient(harness, first=head(10_000_000)) as client:  # refused from its head alone
            assert client.read_response()[0] == 413
        assert harness.request("/v1/messages", b"{")[0] == 400
        assert harness.request("/v1/messages", anthropic_body())[0] == 200
    assert simulator.total == total_before + 1


def test_a_client_that_leaves_ends_the_upstream_request(tmp_path: Path) -> None:
    with (
        running_simulator("anthropic", script=parse_script(ENDLESS)) as simulator,
        mounted(simulator, tmp_path) as harness,
    ):
        with StreamClient(harness, "/v1/messages", anthropic_body(stream=True)) as client:
            client.read_until(b"Begin.")
        assert simulator.requests[0].wait(TIMEOUT) == "gone"
        assert harness.log_lines()[0]["outcome"] == "gone"


def test_the_lifespan_starts_the_gateway_and_a_stream_outlives_the_end_of_the_server(tmp_path: Path) -> None:
    with (
        running_simulator("anthropic", script=parse_script(SLOW)) as simulator,
        mounted(simulator, tmp_path) as harness,
    ):
        assert harness.gateway.status()["state"] == "ready"  # ready before the first request
        with SocketClient(harness, first=request_bytes(stream=True)) as client:
            client.head()
            harness.server.should_exit = True
            body = client.file.read()
        assert b"End." in body and b"message_stop" in body
        harness.stop()
    assert harness.gateway.upstreams is None
    assert simulator.requests[0].wait(TIMEOUT) == "whole"


async def test_a_gateway_can_be_mounted_without_a_lifespan(tmp_path: Path) -> None:
    """Mounted in another application, it starts with its first request, behind any prefix."""

    gateway = Gateway(parse_config(""), key=KEY, state=tmp_path, access_log=AccessLog(Redactor(), stream=io.StringIO()))
    sent: list[dict[str, Any]] = []
    body = json.dumps(openai_body("sim-openai")).encode()
    waiting: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
    forever = asyncio.Event()

    async def receive() -> Any:
        if waiting:
            return waiting.pop()
        await forever.wait()
        return None

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/llm/v1/chat/completions", "root_path": "/llm"}
    headers = [(b"host", b"localhost"), (b"x-api-key", KEY.encode())]
    await gateway(
        {**scope, "raw_path": b"/llm/v1/chat/completions", "query_string": b"", "headers": headers}, receive, send
    )
    await gateway.stop()
    start, end = sent
    assert start["status"] == 200
    assert json.loads(end["body"])["choices"][0]["message"]["content"] == "You said: hello"
