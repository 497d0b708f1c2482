"""What one answer is on the wire of our own server: as few writes as can be, and nothing that breaks out of its head."""

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
    """A transport that remembers what was written, and how."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.told: list[str] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def writelines(self, pieces: Any) -> None:
        self.writes.append(b"".join(pieces))

    def __getattr__(self, name: str) -> Any:
        def tell() -> int:
            self.told.append(name)
            return 0

        return tell


def answered(raw: bytes, how: Any) -> Socket:
    """What goes out when this request is answered so."""
    client = Socket()

    async def main() -> None:
        async def answer(exchange: Any) -> None:
            how(exchange)

        connection = ServerConnection(HttpServer(answer))
        connection.connection_made(client)  # type: ignore[arg-type]
        connection.data_received(raw)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    return client


ASKED = b"POST / HTTP/1.1\r\nhost: localhost\r\n\r\n"
TEXT: Headers = (("content-type", "text/plain"),)


def test_a_whole_answer_is_one_write() -> None:
    assert answered(ASKED, lambda exchange: exchange.whole(200, TEXT, b"hello")).writes == [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello"
    ]
    long = b"x" * 1_000_000
    [written] = answered(ASKED, lambda exchange: exchange.whole(529, TEXT, long)).writes
    assert written.startswith(b"HTTP/1.1 529 \r\n") and written.endswith(long)


def test_a_stream_is_a_write_for_each_piece_and_none_for_its_head_or_end() -> None:
    def stream(exchange: Any) -> None:
        exchange.head(200, TEXT)
        exchange.chunk(b"one")
        exchange.chunk(b"two")
        exchange.chunk(b"three", last=True)

    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
    assert answered(ASKED, stream).writes == [
        head + b"3\r\none\r\n",
        b"3\r\ntwo\r\n",
        b"5\r\nthree\r\n0\r\n\r\n",
    ]


def test_a_head_can_go_before_anything_is_in_the_stream() -> None:
    def stream(exchange: Any) -> None:
        exchange.head(200, TEXT)
        exchange.flush()
        exchange.flush()
        exchange.chunk(b"", last=True)

    first, second = answered(ASKED, stream).writes
    assert first.startswith(b"HTTP/1.1 200 OK") and first.endswith(b"\r\n\r\n")
    assert second == b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "status", "length"),
    [(b"HEAD", 200, b"content-length: 5\r\n"), (b"POST", 204, b""), (b"POST", 304, b"")],
)
def test_what_has_no_body_sends_none(method: bytes, status: int, length: bytes) -> None:
    raw = ASKED.replace(b"POST", method)
    [written] = answered(raw, lambda exchange: exchange.whole(status, (), b"hello")).writes
    assert written.partition(b"\r\n")[2] == length + b"\r\n"


def test_a_value_cannot_break_out_of_the_head() -> None:
    odd: Headers = (("x-a", "b\r\nset-cookie: c\0d\u2028e"), ("x-b", "ä€"))
    [written] = answered(ASKED, lambda exchange: exchange.whole(200, odd, b"")).writes
    assert b"\r\nx-a: b  set-cookie: c d e\r\nx-b: \xe4?\r\n" in written


def test_an_answer_to_an_old_client_ends_with_the_connection() -> None:
    client = answered(ASKED.replace(b"1.1", b"1.0"), lambda exchange: exchange.whole(200, TEXT, b"x"))
    assert b"connection: close\r\n" in client.writes[0]
    assert "close" in client.told


def test_a_request_that_nobody_answers_does_not_wait_for_ever() -> None:
    assert "abort" in answered(ASKED, lambda exchange: None).told


# --- `dragoman.asgi` in a server that is not ours: uvicorn, as people run it, and a server that sends no lifespan
# events

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
    journal = AccessLog(Redactor(), stream=log, form="json", level="debug")
    config = parse_config(upstream_config("one", "anthropic", simulator.url), **flags)
    harness = Mounted(Gateway(config, key=KEY, state=tmp_path, journal=journal), log, tmp_path)
    harness.start()
    try:
        yield harness
    finally:
        harness.stop()


def test_the_public_name_gives_an_application() -> None:
    assert isinstance(dragoman.asgi(parse_config("", server__key=KEY)), Gateway)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_answers_come_whole_and_as_streams(simulator: Simulator, tmp_path: Path, stream: bool) -> None:
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


def test_refusals_come_before_and_after_the_body(simulator: Simulator, tmp_path: Path) -> None:
    asked = simulator.total
    with mounted(simulator, tmp_path, server__max_body=2048) as harness:
        assert harness.request("/v1/messages", anthropic_body(), key="wrong")[0] == 401
        status, _, body = harness.request("/v1/messages", anthropic_body(text="x" * 3000))
        assert (status, json.loads(body)["error"]["type"]) == (413, "request_too_large")
        with SocketClient(harness, first=head(10_000_000)) as client:  # refused by its head: nothing else is sent
            assert client.answer()[0] == 413
        assert harness.request("/v1/messages", b"{")[0] == 400
        assert harness.request("/v1/messages", anthropic_body())[0] == 200
    assert simulator.total == asked + 1


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
        assert harness.gateway.status()["state"] == "ready"  # before the first request
        with SocketClient(harness, first=request_bytes(stream=True)) as client:
            client.head()
            harness.server.should_exit = True
            body = client.file.read()
        assert b"End." in body and b"message_stop" in body
        harness.stop()
    assert harness.gateway.upstreams is None
    assert simulator.requests[0].wait(TIMEOUT) == "whole"


async def test_it_can_be_mounted_without_a_lifespan(tmp_path: Path) -> None:
    """As `dragoman.asgi` mounted in another application: it starts with its first request, behind any prefix."""

    gateway = Gateway(parse_config(""), key=KEY, state=tmp_path, journal=AccessLog(Redactor(), stream=io.StringIO()))
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
