"""Start a gateway in front of simulators or fixed servers, and talk to it with a plain HTTP client."""

from __future__ import annotations

import http.client
import io
import json
import socket
import struct
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.admission import KeyCheck, SignatureClaim
from dragoman.gateway.config import Config, build_config
from dragoman.gateway.explain import RefusalLog, RefusalReport
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.retry_policy import RetrySettings
from dragoman.gateway.serve import GatewayServer, running_gateway
from dragoman.simulator import Simulator, parse_script, running_simulator
from dragoman.wire.http import HttpRequest

T = TypeVar("T")
KEY = "dgm_the-key-of-the-tests-0123456789"
FAST_RETRIES = RetrySettings(min_wait=0.001, max_wait=0.01, max_retry_after=0.5)
TIMEOUT = 60.0  # seconds to wait for an event that must happen: only a failing test waits this long
TOOL_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def upstream_config(name: str, dialect: str, url: str, more: str = "") -> str:
    return f"""
[upstreams.{name}]
dialect = "{dialect}"
base_url = "{url}"
key = "the-upstream-secret"
{more}
"""


def parse_config(text: str, **flags: Any) -> Config:
    """Return a configuration from TOML, with plain-text keys, on a free port."""
    ours = {"server.port": 0, "server.drain": 2}
    settings = {**ours, **{name.replace("__", "."): value for name, value in flags.items()}}
    return build_config(f"allow_literal_secrets = true\n{text}", None, {"HOME": "/nowhere"}, settings).config


class GatewayHarness:
    """A running gateway, its log and its state directory."""

    def __init__(self, running: GatewayServer, log: io.StringIO, state: Path) -> None:
        self.running = running
        self.url, self.key = running.url, running.key
        self.state = state
        self._log = log

    @property
    def text(self) -> str:
        return self._log.getvalue()

    def log_lines(self, least: int = 1) -> list[dict[str, Any]]:
        """Return the access log lines; wait for `least` of them, because a line is written after its response."""
        until = time.monotonic() + TIMEOUT
        while True:
            found = [json.loads(line) for line in self.text.splitlines() if '"event":"request"' in line]
            if len(found) >= least or time.monotonic() > until:
                return found
            time.sleep(0.005)

    def request(
        self, path: str, body: Any = None, *, method: str = "POST", key: str | None = KEY, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Send one request on its own connection. Raises IncompleteRead for a truncated stream."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        all_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            all_headers["x-api-key"] = key
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=TIMEOUT)
        try:
            connection.request(method, path, raw, all_headers)
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()


@contextmanager
def start_gateway(
    text: str, tmp_path: Path, *, retry_settings: RetrySettings = FAST_RETRIES, **flags: Any
) -> Iterator[GatewayHarness]:
    """Run a gateway with this TOML configuration."""
    log = io.StringIO()
    access_log = AccessLog(Redactor(), stream=log, form="json", level="debug")
    config = parse_config(text, **flags)
    with running_gateway(
        config, state=tmp_path, access_log=access_log, retry_settings=retry_settings, key=KEY
    ) as running:
        yield GatewayHarness(running, log, tmp_path)


def anthropic_body(model: str = "m", text: str = "hello", **more: Any) -> dict[str, Any]:
    """Return the body of an Anthropic request."""
    return {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": text}], **more}


def openai_body(model: str = "m", text: str = "hello", **more: Any) -> dict[str, Any]:
    """Return the body of an OpenAI Chat request."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


@contextmanager
def gateway_with_simulator(
    script: str, tmp_path: Path, dialect: str = "anthropic", more: str = "", **flags: Any
) -> Iterator[tuple[GatewayHarness, Simulator]]:
    """Run a gateway with one upstream `one`: a simulator of this dialect, with its default replies if no script is given."""
    with (
        running_simulator(dialect, script=parse_script(script) if script else None) as simulator,
        start_gateway(upstream_config("one", dialect, simulator.url, more), tmp_path, **flags) as harness,
    ):
        yield harness, simulator


CLIENTS = ("anthropic", "openai", "bedrock", "responses", "gemini")
MODEL = "claude-sonnet-4.5"


def client_request(client: str, *, stream: bool = False, model: str = MODEL, text: str = "hello") -> tuple[str, Any]:
    """Return the path and body of a request as a client of this dialect sends it."""
    match client:
        case "anthropic":
            return "/v1/messages", anthropic_body(model, text, stream=stream)
        case "openai":
            return "/v1/chat/completions", openai_body(model, text, stream=stream)
        case "responses":
            return "/v1/responses", {"model": model, "input": text, "stream": stream}
        case "bedrock":
            body = {"messages": [{"role": "user", "content": [{"text": text}]}]}
            return f"/model/{model}/converse{'-stream' if stream else ''}", body
        case _:
            action = "streamGenerateContent?alt=sse" if stream else "generateContent"
            return f"/v1beta/models/{model}:{action}", {"contents": [{"role": "user", "parts": [{"text": text}]}]}


REQUESTS: dict[str, Any] = dict(map(client_request, CLIENTS))
STREAM_REQUESTS: dict[str, Any] = dict(client_request(client, stream=True) for client in CLIENTS)


@contextmanager
def fixed_response_server(raw: bytes) -> Iterator[str]:
    """Run a server that sends these bytes to every request; give its address."""
    with gated_server(raw) as (url, gate):
        gate.set()
        yield url


@contextmanager
def gated_server(after: bytes, before: bytes = b"") -> Iterator[tuple[str, threading.Event]]:
    """Run an upstream that sends `before`, and `after` once its gate is set; give its address and the gate."""
    gate = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, suppress(ConnectionError):
                connection.recv(65536)
                connection.sendall(before)
                gate.wait(TIMEOUT)
                connection.sendall(after)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", gate
    finally:
        gate.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(TIMEOUT)


def sse_response(*frames: bytes) -> tuple[bytes, bytes]:
    """Return the head of an SSE response, and its body, which ends with the connection."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    return head, b"".join(b"data: " + frame + b"\n\n" for frame in frames)


class GatewayAddress(Protocol):
    """Where a gateway is, and its key."""

    @property
    def url(self) -> str: ...

    @property
    def key(self) -> str: ...


class StreamClient:
    """A client that can disconnect, or stop reading, in the middle of a stream."""

    def __init__(
        self,
        harness: GatewayAddress,
        path: str,
        body: dict[str, Any],
        receive_buffer: int | None = None,
        key: str = "",
    ) -> None:
        host, _, port = harness.url.removeprefix("http://").partition(":")
        raw = json.dumps(body).encode()
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT)
        self.socket.connect((host, int(port)))
        head = f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\nx-api-key: {key or harness.key}\r\ncontent-length: {len(raw)}\r\n\r\n"
        self.socket.sendall(head.encode() + raw)

    def __enter__(self) -> StreamClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def read_until(self, mark: bytes) -> bytes:
        got = b""
        while mark not in got:
            piece = self.socket.recv(65536)
            assert piece, f"the connection ended before {mark!r}: {got!r}"
            got += piece
        return got

    def read_all(self) -> bytes:
        got = b""
        while piece := self.socket.recv(65536):
            got += piece
            if got.endswith(b"0\r\n\r\n"):
                break
        return got

    def leave(self, *, reset: bool = False) -> None:
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def wait_until(true: Any, seconds: float = TIMEOUT) -> None:
    """Wait until the function `true` returns a true value; fail after `seconds`."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not come about in time"
        time.sleep(0.005)


def wait_for_refusal(state: Path, request_id: str, seconds: float = 5.0) -> RefusalReport | None:
    """Return the recorded refusal of a request; wait for it, because it is written after the response."""
    refusal_log, until = RefusalLog(state / "refusals"), time.monotonic() + seconds
    while (found := refusal_log.load(request_id)) is None and time.monotonic() < until:
        time.sleep(0.005)
    return found


def check_key(keys: KeyCheck, request: HttpRequest) -> None:
    """Check the key of a request as admission does: its head, then its body. Raises NotAuthorised."""
    found = keys.find_known(request) or run_at_once(keys.find(request))
    if isinstance(found, SignatureClaim):
        found.check_body(request)


def run_at_once(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine that never waits, without an event loop, so that its instructions can be counted."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the coroutine waits")
