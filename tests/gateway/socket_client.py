"""A client on a plain socket, from any loopback address, and the raw requests that it sends."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest
from msgspec import structs

from dragoman.gateway import serve
from dragoman.gateway.app import Gateway
from dragoman.gateway.aws_signatures import sign
from dragoman.http.exchange import HttpExchange
from dragoman.http.server.connection import ServerConnection
from dragoman.http.server.serving import HttpServer
from dragoman.wire.http import HttpRequest
from tests.gateway.harness import KEY, TIMEOUT, GatewayHarness, anthropic_body

EVENT_LOOPS = ("asyncio", "uvloop")


@contextmanager
def use_event_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run gateways that start inside this context on the named event loop."""
    factory = serve.loop_factory()
    if name == "uvloop" and factory is None:
        pytest.skip("uvloop is not installed")
    with monkeypatch.context() as patch:
        patch.setattr(serve, "loop_factory", lambda: factory if name == "uvloop" else None)
        yield


class MemoryTransport(asyncio.Transport):
    """A transport that keeps the written bytes in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed = b"", False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def write_eof(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


def serve_bytes(handle: Callable[[HttpExchange], Coroutine[Any, Any, None]], raw: bytes) -> bytes:
    """Return the bytes that a server with the handler `handle` writes to a client that sends `raw`."""

    async def serve() -> bytes:
        connection, transport = ServerConnection(HttpServer(handle)), MemoryTransport()
        connection.connection_made(transport)
        connection.data_received(raw)
        for _ in range(3):
            await asyncio.sleep(0)
        return transport.written

    return asyncio.run(serve())


def gateway_servers() -> list[HttpServer]:
    """Return the HTTP servers of gateways, without those of simulators in this process."""
    servers = [each for each in gc.get_objects() if type(each) is HttpServer]
    return [each for each in servers if isinstance(getattr(each.answer, "__self__", None), Gateway)]


class SocketClient:
    """One connection. `source` is the loopback address that the gateway sees as the peer."""

    def __init__(self, harness: GatewayHarness, source: str = "127.0.0.1", first: bytes = b"") -> None:
        host, _, port = harness.url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT, source_address=(source, 0))
        self.file = self.socket.makefile("rb")
        if first:
            self.send(first)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, raw: bytes) -> None:
        self.socket.sendall(raw)

    def end(self) -> None:
        """Close the sending side."""
        self.socket.shutdown(socket.SHUT_WR)

    def head(self) -> tuple[int, dict[str, str]]:
        line = self.file.readline()
        assert line.startswith(b"HTTP/1.1 "), line
        headers: dict[str, str] = {}
        while field := self.file.readline().strip():
            name, _, value = field.decode().partition(": ")
            headers[name] = value
        return int(line.split()[1]), headers

    def read_response(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = self.head()
        if headers.get("transfer-encoding") != "chunked":
            return status, headers, self.file.read(int(headers["content-length"]))
        body = b""
        while size := int(self.file.readline(), 16):
            body += self.file.read(size)
            assert self.file.read(2) == b"\r\n"
        assert self.file.readline() == b"\r\n"
        return status, headers, body

    def is_closed(self) -> bool:
        """Wait until the gateway closes the connection."""
        try:
            return self.file.read() == b""
        except ConnectionResetError:
            return True


def request_bytes(text: str = "hello", *lines: str, path: str = "/v1/messages", key: str = KEY, **more: Any) -> bytes:
    """Return a whole request."""
    body = json.dumps(anthropic_body(text=text, **more)).encode()
    return head(len(body), *lines, path=path, key=key) + body


def head(length: int | None, *lines: str, path: str = "/v1/messages", key: str = KEY) -> bytes:
    """Return the head of a request; `length` None makes it chunked."""
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    proof = [f"x-api-key: {key}"] if key else []
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: localhost", framing, *proof, *lines, "", ""]).encode()


def signed_request(
    body: bytes,
    *,
    secret: str = KEY,
    signer: str = "anybody",
    path: str = "/model/m/converse",
    age: float = 0.0,
    covered: tuple[str, ...] = ("host", "x-amz-date"),
    change: Callable[[str], str] = str,
    **more: str,
) -> HttpRequest:
    """Return a request with an AWS signature over these headers; `more` are additional headers."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() - age))
    fields = {"host": "localhost", "x-amz-date": moment, "content-length": str(len(body))}
    fields |= {name.replace("_", "-"): value for name, value in more.items()}
    request = HttpRequest("POST", path, headers=tuple(fields.items()), body=body)
    signature = sign(request, secret.encode(), moment, "eu-west-3", "bedrock", covered)
    scope = f"Credential={signer}/{moment[:8]}/eu-west-3/bedrock/aws4_request"
    claim = change(f"AWS4-HMAC-SHA256 {scope}, SignedHeaders={';'.join(covered)}, Signature={signature}")
    return structs.replace(request, headers=(*request.headers, ("authorization", claim)))


def raw(request: HttpRequest) -> tuple[bytes, bytes]:
    """Return the head and the body of a request as bytes."""
    lines = [f"{request.method} {request.path} HTTP/1.1", *(f"{name}: {value}" for name, value in request.headers)]
    return ("\r\n".join([*lines, "", ""])).encode(), request.body


def sha256_hex(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def converse_body(text: str = "hello") -> bytes:
    """Return the body of a Bedrock request."""
    return json.dumps({"messages": [{"role": "user", "content": [{"text": text}]}]}).encode()
