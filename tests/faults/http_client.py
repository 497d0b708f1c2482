"""A plain HTTP client on a socket, and the three failures that a client can see."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field

from dragoman.wire.http import HttpRequest


class ResponseTimeout(AssertionError):
    """The response did not end in time."""


class NoResponse(AssertionError):
    """The client got neither a response nor an error."""


class WrongResponse(AssertionError):
    """The client got a wrong response."""


@dataclass
class RawResponse:
    """One response as received."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False  # the HTTP framing was complete
    seconds: float = 0.0


def connect(url: str, timeout: float, receive_buffer: int | None = None) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(timeout)
    try:
        sock.connect((host, int(port)))
    except OSError:
        sock.close()
        raise
    return sock


def request_bytes(url: str, request: HttpRequest, key: str, **headers: str) -> bytes:
    """Return the bytes of a request."""
    target = request.path + (f"?{request.query}" if request.query else "")
    all_headers = {name: value for name, value in request.headers if name not in ("host", "content-length")}
    all_headers |= {"host": url.removeprefix("http://"), "content-length": str(len(request.body))} | headers
    if key:
        all_headers["x-api-key"] = key
    lines = [
        f"{request.method} {target} HTTP/1.1",
        *(f"{name}: {value}" for name, value in all_headers.items()),
        "",
        "",
    ]
    return "\r\n".join(lines).encode("latin-1") + request.body


def send_request(url: str, request: HttpRequest, key: str, within: float) -> RawResponse:
    """Send a request and read the whole response. Raises ResponseTimeout, NoResponse."""
    with connect(url, within) as sock:
        began = time.monotonic()
        sock.sendall(request_bytes(url, request, key, connection="close"))
        return read_response(sock, began, within)


def read_response(sock: socket.socket, began: float, within: float) -> RawResponse:
    """Read one response until its end or the connection's. Raises ResponseTimeout; NoResponse without a head."""
    raw = bytearray()
    response: RawResponse | None = None
    reader = _Body()
    while True:
        left = began + within - time.monotonic()
        if left <= 0:
            raise ResponseTimeout(f"no end within {within:.2f} s, after {bytes(raw[-300:])!r}")
        sock.settimeout(left)
        try:
            piece = sock.recv(1 << 18)
        except TimeoutError:
            raise ResponseTimeout(f"no end within {within:.2f} s, after {bytes(raw[-300:])!r}") from None
        except ConnectionResetError:
            piece = b""
        if not piece:
            if response is None:
                raise NoResponse(f"the connection ended without a response: {bytes(raw)!r}")
            response.whole = reader.is_over(at_end=True)
            break
        if response is None:
            raw += piece
            response = _head(raw)
            if response is None:
                continue
            reader = _Body(response)
            piece = bytes(raw)
        reader.feed(piece)
        if reader.is_over():
            response.whole = True
            break
    response.body, response.seconds = reader.body(), time.monotonic() - began
    return response


def _head(raw: bytearray) -> RawResponse | None:
    while (end := raw.find(b"\r\n\r\n")) >= 0:
        line, *fields = raw[:end].decode("latin-1").split("\r\n")
        del raw[: end + 4]
        status = int(line.split(" ")[1])
        if status >= 200:
            pairs = [each.partition(":") for each in fields]
            return RawResponse(status, {name.lower(): value.strip() for name, _, value in pairs})
    return None


class _Body:
    """Removes the framing of a body."""

    def __init__(self, response: RawResponse | None = None) -> None:
        headers = response.headers if response else {}
        self._chunked = headers.get("transfer-encoding") == "chunked"
        length = headers.get("content-length")
        self._left = int(length) if length is not None else None
        if response is not None and response.status in (204, 304):
            self._left = 0
        self._raw = bytearray()
        self._pieces: list[bytes] = []
        self._is_over = self._left == 0

    def feed(self, data: bytes) -> None:
        if not self._chunked:
            self._pieces.append(data)
            if self._left is not None:
                self._left -= len(data)
                self._is_over = self._left <= 0
            return
        self._raw += data
        at = 0
        while (end := self._raw.find(b"\r\n", at)) >= 0:
            size = int(self._raw[at:end].split(b";")[0], 16)
            if len(self._raw) < end + 2 + size + 2:
                break
            self._pieces.append(bytes(self._raw[end + 2 : end + 2 + size]))
            at = end + 2 + size + 2
            if size == 0:
                self._is_over = True
                break
        del self._raw[:at]

    def is_over(self, *, at_end: bool = False) -> bool:
        return self._is_over or (at_end and not self._chunked and self._left is None)

    def body(self) -> bytes:
        return b"".join(self._pieces)
