"""Requests and responses that try to exhaust a gateway: served or refused, within limits of CPU and memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.response_parsers import RESPONSE_PARSERS
from tests.gateway.harness import CLIENTS, KEY, TIMEOUT, anthropic_body, client_request
from tests.load.gateway import Gateway, configuration, start_gateway_process
from tests.load.payload import ExpectedResponse
from tests.load.upstream import DIALECTS, eventstream_frame

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
MIB = 1 << 20
MILLION = 1_000_000
DEEP = 100_000
EVENT_STREAMS = {"kiro": "assistantResponseEvent", "bedrock": "contentBlockDelta"}
# Short timeouts, so that tests with slow clients are fast.
SHORT_TIMEOUTS = """
from dragoman.http import exchange
from dragoman.http.server import connection
for module in (connection, exchange):
    for name in ("HEAD_SECONDS", "BODY_SECONDS"):
        if hasattr(module, name):
            setattr(module, name, 1.0)
"""


class FixedResponseServer:
    """An upstream that answers every request with the same bytes and records digests of the bodies."""

    def __init__(self) -> None:
        self.respond: Callable[[], Iterator[bytes]] = lambda: iter(())
        self.digests: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head, _, body = _until(client, b"\r\n\r\n").partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            digest = hashlib.sha256(body)
            missing = length - len(body)
            while missing > 0:
                piece = client.recv(min(missing, MIB))
                digest.update(piece)
                missing -= len(piece)
            self.digests.append(digest.hexdigest())
            for piece in self.respond():
                client.sendall(piece)

    def close(self) -> None:
        self._listening.close()


def _until(client: socket.socket, mark: bytes) -> bytes:
    got = b""
    while mark not in got:
        piece = client.recv(65536)
        if not piece:
            raise ConnectionError("it ended")
        got += piece
    return got


def chunked_response(events: list[bytes], kind: str = "text/event-stream", size: int = 0) -> Iterator[bytes]:
    """Yield a chunked response: one chunk for each event, or chunks of one size."""
    yield f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    if size == 1:
        raw = b"".join(events)
        for at in range(0, len(raw), 65536):
            yield b"".join(b"1\r\n%c\r\n" % byte for byte in raw[at : at + 65536])
    else:
        for event in events:
            yield b"%x\r\n%b\r\n" % (len(event), event)
    yield b"0\r\n\r\n"


def content_type_of(dialect: str) -> str:
    return "application/vnd.amazon.eventstream" if dialect in EVENT_STREAMS else "text/event-stream"


def text_response(dialect: str, text: str = "fine") -> list[bytes]:
    return list(DIALECTS[dialect]("name", ExpectedResponse((text,), ())))


@dataclass
class Cost:
    """The cost of a piece of work."""

    cpu: float = 0.0
    memory: int = 0  # the largest increase, in bytes


class ResourceHarness:
    """A gateway process in front of upstreams with fixed responses."""

    def __init__(self, gateway: Gateway, upstreams: dict[str, FixedResponseServer]) -> None:
        self.gateway, self.upstreams = gateway, upstreams

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.gateway.port), timeout=60)

    def head(self, path: str, more: str) -> bytes:
        host = self.gateway.url.removeprefix("http://")
        lines = f"host: {host}\r\nx-api-key: {KEY}\r\nconnection: close\r\n"
        return f"POST {path} HTTP/1.1\r\n{lines}{more}\r\n\r\n".encode()

    def ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send one whole request; the gateway may refuse it before it has read all of it."""
        with self.connect() as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(self.head(path, f"content-length: {len(body)}") + body)
            return read(client)

    @contextlib.contextmanager
    def costs(self, cpu: float, memory: float) -> Iterator[Cost]:
        """Check that the work takes at most `cpu` seconds and `memory` more MiB at any moment."""
        gateway, cost = self.gateway, Cost()
        gateway.forget_peak()
        before, spent = gateway.memory(), gateway.cpu()
        yield cost
        cost.cpu, cost.memory = gateway.cpu() - spent, gateway.peak() - before
        print(f"{cost.cpu:.2f} s, {cost.memory / MIB:.1f} MiB")
        assert cost.cpu <= cpu and cost.memory <= memory * MIB, cost
        assert gateway.process.poll() is None
        assert '"outcome":"bug"' not in gateway.log

    def serves(self) -> None:
        self.upstreams["openai"].respond = lambda: chunked_response(text_response("openai"))
        status, body = self.ask("/v1/messages", json.dumps(anthropic_body("to-openai", stream=True)).encode())
        assert (status, RESPONSE_PARSERS["anthropic"](body).text) == (200, "fine")


def read(client: socket.socket) -> tuple[int, bytes]:
    """Read a response until the connection closes; return its status and its decoded body."""
    raw = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(MIB):
            raw += piece
    head, _, body = bytes(raw).partition(b"\r\n\r\n")
    if not head:
        return 0, b""
    status = int(head.split(b" ", 2)[1])
    if b"transfer-encoding: chunked" not in head.lower():
        return status, body
    pieces, at = list[bytes](), 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end], 16)
        if not size:
            return status, b"".join(pieces)
        pieces.append(body[end + 2 : end + 2 + size])
        at = end + 4 + size


@contextlib.contextmanager
def running_harness(folder: Path, first: str = "") -> Iterator[ResourceHarness]:
    upstreams = {dialect: FixedResponseServer() for dialect in DIALECTS}
    ports = {dialect: upstream.port for dialect, upstream in upstreams.items()}
    text = configuration(ports, "ping = 60", "limits.breaker = false")
    with start_gateway_process(folder, text, first) as gateway:
        started = ResourceHarness(gateway, upstreams)
        started.serves()
        yield started
    for upstream in upstreams.values():
        upstream.close()


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResourceHarness]:
    with running_harness(tmp_path_factory.mktemp("gateway")) as started:
        yield started


@pytest.fixture(scope="module")
def short_timeouts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResourceHarness]:
    """A gateway with short timeouts, for tests with slow clients."""
    with running_harness(tmp_path_factory.mktemp("gateway"), SHORT_TIMEOUTS) as started:
        yield started


def request_for(client: str, upstream: str) -> tuple[str, bytes]:
    path, body = client_request(client, stream=True, model=f"to-{upstream}")
    return path, json.dumps(body).encode()


def long_question(size: int) -> bytes:
    body = json.dumps(anthropic_body("to-anthropic", "@", stream=True)).encode()
    return body.replace(b"@", b"x" * (size - len(body) + 1))


# --- many small pieces


def test_a_body_of_a_million_one_byte_chunks_is_read_cheaply(harness: ResourceHarness) -> None:
    upstream = harness.upstreams["anthropic"]
    upstream.respond = lambda: chunked_response(text_response("anthropic"))
    body = long_question(MILLION)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    harness.ask("/v1/messages", body)
    with harness.costs(cpu=2, memory=32), harness.connect() as client:
        client.sendall(harness.head("/v1/messages", "transfer-encoding: chunked") + chunks)
        status, _ = read(client)
    assert status == 200
    assert upstream.digests[-1] == upstream.digests[-2]  # the same body as in one piece


def test_a_body_that_comes_byte_by_byte_is_read_cheaply(harness: ResourceHarness) -> None:
    upstream = harness.upstreams["anthropic"]
    upstream.respond = lambda: chunked_response(text_response("anthropic"))
    body = long_question(10_000)
    raw = harness.head("/v1/messages", f"content-length: {len(body)}") + body
    with harness.costs(cpu=2, memory=16), harness.connect() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in raw:
            client.send(bytes([byte]))
        assert read(client)[0] == 200


@pytest.mark.parametrize(
    ("dialect", "client"), [("openai", "anthropic"), ("kiro", "openai"), ("anthropic", "anthropic")]
)
def test_a_response_of_a_million_one_byte_chunks_is_read_cheaply(
    harness: ResourceHarness, dialect: str, client: str
) -> None:
    pieces = tuple(f"{number:05d} {'y' * 994}" for number in range(MILLION // 1000))
    events = list(DIALECTS[dialect]("name", ExpectedResponse(pieces, ())))
    harness.upstreams[dialect].respond = lambda: chunked_response(events, content_type_of(dialect), size=1)
    with harness.costs(cpu=3, memory=24):
        status, body = harness.ask(*request_for(client, dialect))
    assert (status, RESPONSE_PARSERS[client](body).text) == (200, "".join(pieces))


# --- depth

DEEP_TEXTS = {"open": "[" * DEEP, "closed": "[" * DEEP + "]" * DEEP, "objects": '{"a":' * DEEP + "1" + "}" * DEEP}


@pytest.mark.parametrize("deep", DEEP_TEXTS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_request_of_a_hundred_thousand_levels_is_a_400(harness: ResourceHarness, client: str, deep: str) -> None:
    path, text = request_for(client, "openai")[0], DEEP_TEXTS[deep]
    body = json.dumps({"model": "to-openai", "messages": "@", "input": "@", "contents": "@"}).replace('"@"', text)
    with harness.costs(cpu=1, memory=48):
        status, response_body = harness.ask(path, body.encode())
    assert status == 400, response_body
    json.loads(response_body)


@pytest.mark.parametrize("upstream", DIALECTS)
def test_arguments_of_a_hundred_thousand_levels_in_a_request_are_translated_or_refused(
    harness: ResourceHarness, upstream: str
) -> None:
    """Arguments are text in the request, so they do not count as its depth."""
    harness.upstreams[upstream].respond = lambda: chunked_response(text_response(upstream), content_type_of(upstream))
    function = {"name": "f", "arguments": '{"a":' + "[" * DEEP + "]" * DEEP + "}"}
    call = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "done"}
    messages = [{"role": "user", "content": "go"}, call, result]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    body_of = {"model": f"to-{upstream}", "messages": messages, "tools": tools, "stream": True}
    with harness.costs(cpu=2, memory=64):
        status, response_body = harness.ask("/v1/chat/completions", json.dumps(body_of).encode())
    assert status in (200, 400, 413, 422), (status, response_body[:300])


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("upstream", DIALECTS)
def test_a_frame_of_a_hundred_thousand_levels_is_skipped_or_ends_the_stream(
    harness: ResourceHarness, upstream: str, client: str
) -> None:
    """An unreadable frame is skipped with a note, unless a block is open."""
    deep = DEEP_TEXTS["closed"].encode()
    if upstream in EVENT_STREAMS:
        bad = eventstream_frame(
            EVENT_STREAMS[upstream], b'{"contentBlockIndex":0,"delta":' + deep + b',"content":' + deep + b"}"
        )
    else:
        bad = b'data: {"type":' + deep + b',"choices":' + deep + b',"candidates":' + deep + b"}\n\n"
    events = text_response(upstream)
    events.insert(1, bad)
    harness.upstreams[upstream].respond = lambda: chunked_response(events, content_type_of(upstream))
    with harness.costs(cpu=2, memory=48):
        status, response_body = harness.ask(*request_for(client, upstream))
    passed = b"".join(event for event in events if b'"usage":{' not in event)  # a Chat client did not request it
    if client == upstream and response_body in (b"".join(events), passed):
        return  # the same dialect: the frame may be passed through
    parsed = RESPONSE_PARSERS[client](response_body) if status == 200 else None
    whole = parsed is not None and parsed.ended and parsed.text == "fine"
    assert status >= 500 or whole or (parsed is not None and parsed.error and not parsed.ended), (
        status,
        response_body[:300],
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_streamed_arguments_of_a_hundred_thousand_levels_arrive_or_are_an_error(
    harness: ResourceHarness, client: str
) -> None:
    pieces = ('{"a":', "[" * DEEP, "]" * DEEP, "}")
    events = list(DIALECTS["openai"]("name", ExpectedResponse(("so",), (pieces,))))
    harness.upstreams["openai"].respond = lambda: chunked_response(events)
    with harness.costs(cpu=2, memory=64):
        status, response_body = harness.ask(*request_for(client, "openai"))
    if status != 200:
        assert status >= 500
        return
    parsed, whole = RESPONSE_PARSERS[client](response_body), "".join(pieces)
    wrapped = json.dumps({"raw_arguments": whole})  # for dialects whose arguments must be objects
    carried = parsed.ended and [call["arguments"] for call in parsed.calls] in ([whole], [wrapped])
    assert carried or parsed.error, (parsed.finish, parsed.odd)


# --- size


def test_twenty_megabytes_pass_in_both_directions(harness: ResourceHarness) -> None:
    upstream, size = harness.upstreams["anthropic"], 20 * MIB
    events = list(DIALECTS["anthropic"]("name", ExpectedResponse(tuple(["z" * 4096] * (size // 4096)), ())))
    upstream.respond = lambda: chunked_response(events)
    body = long_question(size)
    with harness.costs(cpu=3, memory=120):
        status, response_body = harness.ask("/v1/messages", body)
    assert status == 200 and response_body == b"".join(events)


def test_twenty_megabytes_are_translated_in_both_directions(harness: ResourceHarness) -> None:
    upstream, size = harness.upstreams["openai"], 20 * MIB
    events = list(DIALECTS["openai"]("name", ExpectedResponse(tuple(["z" * 4096] * (size // 4096)), ())))
    upstream.respond = lambda: chunked_response(events)
    body = long_question(size).replace(b"to-anthropic", b"to-openai")
    with harness.costs(cpu=4, memory=120):
        status, response_body = harness.ask("/v1/messages", body)
    assert (
        status == 200 and response_body.count(b"z" * 4096) == size // 4096 and b"message_stop" in response_body[-100:]
    )


@pytest.mark.parametrize(
    "upstream", [name for name in DIALECTS if name != "kiro"]
)  # Kiro does not accept such long requests
def test_a_finished_stream_keeps_no_memory_of_its_request(harness: ResourceHarness, upstream: str) -> None:
    """Memory is freed without waiting for the garbage collector."""
    harness.upstreams[upstream].respond = lambda: chunked_response(text_response(upstream), content_type_of(upstream))
    body = long_question(5 * MIB).replace(b"to-anthropic", f"to-{upstream}".encode())
    for _ in range(2):
        assert harness.ask("/v1/messages", body)[0] == 200
    level = harness.gateway.memory()
    for _ in range(12):  # 60 MiB of requests, and as much of their translations
        assert harness.ask("/v1/messages", body)[0] == 200
    assert harness.gateway.memory() <= level + 36 * MIB


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_too_long_body_is_refused_and_not_buffered(harness: ResourceHarness, framing: str) -> None:
    with harness.costs(cpu=2, memory=64), harness.connect() as client:
        more = "content-length: 100000000" if framing == "length" else "transfer-encoding: chunked"
        client.sendall(harness.head("/v1/messages", more))
        piece = b"x" * MIB if framing == "length" else b"100000\r\n" + b"x" * MIB + b"\r\n"
        with contextlib.suppress(OSError):
            for _ in range(60):
                client.sendall(piece)
            client.sendall(b"0\r\n\r\n" if framing == "chunks" else b"")
        assert read(client)[0] in (413, 0)  # 0: as below
    harness.serves()


# --- heads, and slow clients


@pytest.mark.parametrize(
    ("flood", "statuses"),
    [
        ("".join(f"x-{number}: 1\r\n" for number in range(2000)), {431}),
        (f"x-long: {'a' * 100 * 1024}\r\n", {431}),
        ("x: " + "a" * 30 * MIB, {431, 0}),  # 0: reset, because it kept sending after the refusal
        ("".join(f"x-{number}: 1\r\n" for number in range(200_000)), {431, 0}),
    ],
    ids=["2000 headers", "100 KiB in one", "30 MiB in one", "200000 headers"],
)
def test_a_flood_of_headers_is_refused_cheaply(harness: ResourceHarness, flood: str, statuses: set[int]) -> None:
    with harness.costs(cpu=1, memory=16), harness.connect() as client:
        with contextlib.suppress(OSError):
            client.sendall(harness.head("/v1/messages", flood))
        status, _ = read(client)
        assert status in statuses
    harness.serves()


@pytest.mark.parametrize("what", ["nothing", "half a head", "half a body"])
def test_two_hundred_unfinished_requests_time_out_and_other_clients_are_served(
    short_timeouts: ResourceHarness, what: str
) -> None:
    harness = short_timeouts
    harness.serves()
    files = harness.gateway.at_rest((), 0, 0, 0.3).files
    body = harness.head("/v1/messages", "content-length: 1000") + b'{"model": '
    begun = {"nothing": b"", "half a head": b"POST /v1/messages HTTP/1.1\r\nhost: l", "half a body": body}[what]
    with harness.costs(cpu=3, memory=24), contextlib.ExitStack() as stack:
        slow = [stack.enter_context(harness.connect()) for _ in range(200)]
        for client in slow:
            client.sendall(begun)
        until, ended = time.monotonic() + TIMEOUT, 0
        harness.serves()
        while ended < len(slow) and time.monotonic() < until:
            for client in [each for each in slow if each.fileno() >= 0]:
                client.settimeout(0.0005)
                try:
                    if begun and not client.recv(4096):
                        raise ConnectionError
                    client.send(b"x")  # single bytes do not extend the timeout
                except TimeoutError:
                    pass
                except OSError:
                    client.close()
                    ended += 1
        assert ended == len(slow)
        harness.serves()
    assert harness.gateway.at_rest((), files + 2, sys.maxsize, TIMEOUT).files <= files + 2
