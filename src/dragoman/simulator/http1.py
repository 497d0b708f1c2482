"""HTTP/1.1 for the server frame: read one request within bounds, write one head. Stricter than it must be."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from msgspec import structs

from dragoman.wire.http import Headers, HttpRequest

MAX_HEAD = 64 * 1024
_MAX_HEADERS = 200
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*?)[ \t]*")
_HEX = re.compile(rb"[0-9a-fA-F]{1,8}")


class Unreadable(Exception):
    """Bytes that are no request. The connection cannot go on."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BodyTooLong(Exception):
    """A body over the limit; it was not read to its end. Carries the request without it."""

    def __init__(self, request: HttpRequest) -> None:
        super().__init__("the body is too long")
        self.request = request


class Head:
    """A request's head, and what it means for the connection."""

    def __init__(self, request: HttpRequest, minor: int) -> None:
        self.request = request
        connection = request.header("connection").lower()
        self.chunks = minor == 1  # whether the client reads chunked bodies
        self.keeps_alive = "close" not in connection if minor == 1 else "keep-alive" in connection
        self.expects = request.header("expect").lower() == "100-continue"


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Read a head; None when the client is done. Raises Unreadable."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise Unreadable(400, "the head ends early") from None
        return None
    except asyncio.LimitOverrunError:
        raise Unreadable(431, f"the head is longer than {MAX_HEAD} bytes") from None
    lines = raw.lstrip(b"\r\n")[: -len(b"\r\n\r\n")].split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(lines[0])
    if line is None or len(lines) > _MAX_HEADERS:
        raise Unreadable(400, "no HTTP/1 request, or too many headers")
    headers = tuple(map(_header, lines[1:]))
    target = re.sub(r"^https?://[^/?]*", "", line[2].decode("ascii"))
    path, _, query = target.partition("#")[0].partition("?")
    return Head(HttpRequest(line[1].decode("ascii"), path or "/", query, headers), int(line[3]))


def _header(line: bytes) -> tuple[str, str]:
    match = _HEADER.fullmatch(line)
    if match is None:
        raise Unreadable(400, f"no header: {line[:40]!r}")
    return match[1].decode("ascii").lower(), match[2].decode("latin-1")


async def read_body(
    reader: asyncio.StreamReader, head: Head, most: int, go_on: Callable[[], Awaitable[None]]
) -> HttpRequest:
    """Read the body that belongs to a head; `go_on` says 100 Continue. Raises Unreadable, BodyTooLong."""
    request = head.request
    lengths = {value for name, value in request.headers if name == "content-length"}
    encoding = request.header("transfer-encoding").lower()
    if encoding not in ("", "chunked") or (encoding and lengths) or len(lengths) > 1:
        raise Unreadable(400, "the body's length is told in two ways, or in one that is not known")
    length = lengths.pop() if lengths else "0"
    if not re.fullmatch(r"[0-9]{1,18}", length, re.ASCII):
        raise Unreadable(400, "content-length is no number")
    if int(length) > most:
        raise BodyTooLong(request)
    if head.expects and (encoding or length != "0"):
        await go_on()
    try:
        body = await _read_chunks(reader, most, request) if encoding else await reader.readexactly(int(length))
    except asyncio.IncompleteReadError:
        raise Unreadable(400, "the body ends early") from None
    return structs.replace(request, body=body)


async def _read_chunks(reader: asyncio.StreamReader, most: int, request: HttpRequest) -> bytes:
    pieces: list[bytes] = []
    total = 0
    while True:
        size = _HEX.fullmatch((await _line(reader)).partition(b";")[0].strip())
        if size is None:
            raise Unreadable(400, "a chunk without its size")
        count = int(size[0], 16)
        total += count
        if total > most:
            raise BodyTooLong(request)
        if count == 0:
            while await _line(reader):  # trailers, which nobody needs
                pass
            return b"".join(pieces)
        pieces.append(await reader.readexactly(count))
        if await reader.readexactly(2) != b"\r\n":
            raise Unreadable(400, "a chunk longer than its size")


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return (await reader.readuntil(b"\r\n"))[:-2]
    except asyncio.LimitOverrunError:
        raise Unreadable(400, "a line that does not end") from None


def render_head(status: int, headers: Headers) -> bytes:
    """Write a status line and headers."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1", "replace")
