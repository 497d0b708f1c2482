"""The documented memory bound: with `in_flight` at its limit, memory stays below a multiple of it.

docs/reliability.md states the multiple, under "Memory".
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.endless_upstream import EndlessUpstream
from tests.gateway.harness import KEY
from tests.load.gateway import Gateway, start_gateway_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
IN_FLIGHT = 16 * 1024 * 1024
MULTIPLE = 8  # of in_flight; docs/reliability.md
SPARE = 8 * 1024 * 1024  # for memory that does not depend on `in_flight`: caches, socket buffers
CLIENTS = 24
LAST = "the last words before it stalls"
CHUNK = {"id": "c", "object": "chat.completion.chunk", "model": "m"}


def configuration(url: str) -> str:
    return f"""
allow_literal_secrets = true
[server]
key = "{KEY}"
port = 0
[server.limits]
in_flight = {IN_FLIGHT}
[upstreams.up]
dialect = "openai"
base_url = "{url}"
key = "the-upstream-secret"
limits.concurrency = 1000
"""


class Crowd:
    """Clients that all send a request at once, and wait."""

    def __init__(self, gateway: Gateway, path: str, body: bytes) -> None:
        self._gateway, self._path, self._body = gateway, path, body
        self.settled: set[int] = set()  # clients that have read everything sent so far, or were refused
        self.refused = 0
        self._threads = [threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self, number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._gateway.port, timeout=60)
        try:
            connection.request("POST", self._path, self._body, {"x-api-key": KEY})
            response = connection.getresponse()
            tail = b""
            while piece := response.read1():
                tail = tail[-1000:] + piece
                if LAST.encode() in tail:
                    self.settled.add(number)
            self.refused += b"server.limits.in_flight" in tail
        except (OSError, http.client.HTTPException):
            pass  # refused while it was sending
        finally:
            connection.close()
            self.settled.add(number)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
        assert self.refused, "in_flight was not reached"


def settle(settled: Callable[[], int]) -> None:
    """Wait until each client is refused or waits for the upstream."""
    until = time.monotonic() + 30
    while settled() < CLIENTS:
        assert time.monotonic() < until, settled()
        time.sleep(0.02)


def multiple(gateway: Gateway, idle: int) -> float:
    return (gateway.peak() - idle - SPARE) / IN_FLIGHT


def messages(size: int, text: str) -> bytes:
    turns = [{"role": "user" if at % 2 == 0 else "assistant", "content": text} for at in range(size)]
    return json.dumps({"model": "m", "max_tokens": 9, "stream": True, "messages": turns}).encode()


def tools(size: int) -> bytes:
    """Return a request with 40 tools of `size` properties each."""
    properties = {f"p{each}": {"type": "string", "enum": ["a", "b"]} for each in range(size)}
    schema = {"type": "object", "properties": properties}
    turns = [{"role": "user", "content": "go"}]
    offered = [{"name": f"tool_{at}", "input_schema": schema} for at in range(40)]
    return json.dumps({"model": "m", "max_tokens": 9, "messages": turns, "tools": offered}).encode()


BODIES = {
    "long texts": messages(21, "words of a question " * 2500),
    "many messages": messages(2001, "a question of some words " * 16),
    "schemas": tools(400),  # parsed by the job process
    "short schemas": tools(200),  # parsed by the gateway itself
}


@pytest.mark.parametrize("name", BODIES)
def test_waiting_requests_stay_below_the_documented_multiple(name: str, tmp_path: Path) -> None:
    """Anthropic requests, translated to Chat, wait for an upstream that does not answer."""
    source, body = EndlessUpstream(lambda: iter(())), BODIES[name]
    with closing(source), start_gateway_process(tmp_path, configuration(source.url)) as gateway:
        source.go.clear()
        warm(gateway, source)
        idle, before = gateway.memory(), source.requests
        gateway.forget_peak()
        crowd = Crowd(gateway, "/v1/messages", body)
        settle(lambda: source.requests - before + len(crowd.settled))
        source.go.set()
        crowd.join()
        found = multiple(gateway, idle)
    print(f"{name}: {found:.2f} times in_flight")
    assert found < MULTIPLE


class StallingResponse:
    """A response that sends many frames and then stalls."""

    def __init__(self, frame: Callable[[int], dict[str, Any]], frames: int) -> None:
        self._frame, self._frames = frame, frames
        self.go = threading.Event()

    def __call__(self) -> Iterator[dict[str, Any] | None]:
        yield from map(self._frame, range(self._frames))
        yield text(LAST)
        yield None
        self.go.wait(60)


def argument(number: int) -> dict[str, Any]:
    words = {"name": "read", "arguments": '{"a": "'} if not number else {"arguments": "words " * 200}
    call = {"index": 0, "function": words, **({} if number else {"id": "call_1"})}
    return {**CHUNK, "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}


def small_argument(number: int) -> dict[str, Any]:
    words = {"name": "read", "arguments": '{"a": "'} if not number else {"arguments": "wörds of a call " * 4}
    call = {"index": 0, "function": words, **({} if number else {"id": "call_1"})}
    return {**CHUNK, "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}


def text(words: str) -> dict[str, Any]:
    return {**CHUNK, "choices": [{"index": 0, "delta": {"content": words}}]}


def whole_call(number: int) -> dict[str, Any]:
    call = {"index": number, "id": f"call_{number}", "function": {"name": "read", "arguments": "{}"}}
    return {**CHUNK, "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}


RESPONSES = {
    "arguments": (argument, 1200),
    "small arguments": (small_argument, 6000),
    "text": (lambda _: text("words " * 200), 1200),
    "calls": (whole_call, 1000),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_endless_responses_stay_below_the_documented_multiple(name: str, tmp_path: Path) -> None:
    """Responses clients get the whole text again at the end, and the gateway stores the response."""
    shape = StallingResponse(*RESPONSES[name])
    source = EndlessUpstream(shape)
    body = json.dumps({"model": "m", "input": "go", "stream": True}).encode()
    with closing(source), start_gateway_process(tmp_path, configuration(source.url)) as gateway:
        warm(gateway, source)
        idle = gateway.memory()
        gateway.forget_peak()
        crowd = Crowd(gateway, "/v1/responses", body)
        settle(lambda: len(crowd.settled))
        shape.go.set()
        crowd.join()
        found = multiple(gateway, idle)
    print(f"{name}: {found:.2f} times in_flight")
    assert found < MULTIPLE


def warm(gateway: Gateway, source: EndlessUpstream) -> None:
    """Trigger lazy imports with a request for an unknown model."""
    for path, body in (("/v1/messages", messages(1, "a")), ("/v1/responses", b'{"model": 1}')):
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
        connection.request("POST", path, body[:-20], {"x-api-key": KEY})
        connection.getresponse().read()
        connection.close()
