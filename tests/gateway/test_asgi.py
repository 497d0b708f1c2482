"""`dragoman.asgi` in a server that is not ours: uvicorn, as people run it, and a server that sends no lifespan events."""

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
from dragoman.simulator import Simulator, parse, running_simulator
from tests.gateway.front import Client, head, question
from tests.gateway.house import KEY, PATIENCE, House, RawClient, chat, configured, messages, upstream, wait_until

SLOW = 'then = "last"\n[[turn]]\nparts = [{ text = "Begin." }, { wait = 0.5 }, { text = "End." }]'
ENDLESS = 'then = "last"\n[[turn]]\nparts = [{ text = "Begin." }, { wait = 600.0 }, { text = "End." }]'


class Mounted(House):
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
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@contextmanager
def mounted(simulator: Simulator, tmp_path: Path, **flags: Any) -> Iterator[Mounted]:
    log = io.StringIO()
    journal = AccessLog(Redactor(), stream=log, form="json", level="debug")
    config = configured(upstream("one", "anthropic", simulator.url), **flags)
    home = Mounted(Gateway(config, key=KEY, state=tmp_path, journal=journal), log, tmp_path)
    home.start()
    try:
        yield home
    finally:
        home.stop()


def test_the_public_name_gives_an_application() -> None:
    assert isinstance(dragoman.asgi(configured("", server__key=KEY)), Gateway)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_answers_come_whole_and_as_streams(simulator: Simulator, tmp_path: Path, stream: bool) -> None:
    with mounted(simulator, tmp_path) as home:
        status, headers, body = home.ask("/v1/messages", messages(text="hello", stream=stream))
        assert status == 200 and headers["request-id"] == headers["x-request-id"]
        assert headers.get("transfer-encoding") == ("chunked" if stream else None)
        if stream:
            assert body.rstrip().endswith(b'data: {"type":"message_stop"}')
        else:
            assert json.loads(body)["content"][0]["text"] == "You said: hello"
        status, _, body = home.ask("/v1/chat/completions", chat(stream=stream))  # translated
        assert status == 200 and body.rstrip().endswith(b"data: [DONE]") == stream
        assert [line["status"] for line in home.lines(2)] == [200, 200]


def test_refusals_come_before_and_after_the_body(simulator: Simulator, tmp_path: Path) -> None:
    asked = simulator.total
    with mounted(simulator, tmp_path, server__max_body=2048) as home:
        assert home.ask("/v1/messages", messages(), key="wrong")[0] == 401
        status, _, body = home.ask("/v1/messages", messages(text="x" * 3000))
        assert (status, json.loads(body)["error"]["type"]) == (413, "request_too_large")
        with Client(home, first=head(10_000_000)) as client:  # refused by its head: nothing else is sent
            assert client.answer()[0] == 413
        assert home.ask("/v1/messages", b"{")[0] == 400
        assert home.ask("/v1/messages", messages())[0] == 200
    assert simulator.total == asked + 1


def test_a_client_that_leaves_ends_the_upstream_request(tmp_path: Path) -> None:
    with running_simulator("anthropic", script=parse(ENDLESS)) as simulator, mounted(simulator, tmp_path) as home:
        with RawClient(home, "/v1/messages", messages(stream=True)) as client:
            client.read_until(b"Begin.")
        assert simulator.requests[0].wait(PATIENCE) == "gone"
        assert home.lines()[0]["outcome"] == "gone"


def test_the_lifespan_starts_the_gateway_and_a_stream_outlives_the_end_of_the_server(tmp_path: Path) -> None:
    with running_simulator("anthropic", script=parse(SLOW)) as simulator, mounted(simulator, tmp_path) as home:
        assert home.gateway.status()["state"] == "ready"  # before the first request
        with Client(home, first=question(stream=True)) as client:
            client.head()
            home.server.should_exit = True
            body = client.file.read()
        assert b"End." in body and b"message_stop" in body
        home.stop()
    assert home.gateway.fleet is None
    assert simulator.requests[0].wait(PATIENCE) == "whole"


async def test_it_can_be_mounted_without_a_lifespan(tmp_path: Path) -> None:
    """As `dragoman.asgi` mounted in another application: it starts with its first request, behind any prefix."""

    gateway = Gateway(configured(""), key=KEY, state=tmp_path, journal=AccessLog(Redactor(), stream=io.StringIO()))
    sent: list[dict[str, Any]] = []
    body = json.dumps(chat("sim-openai")).encode()
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
