"""The bytes of HTTP/1.1 responses, and the limits of the server's connections. Pure."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus

from dragoman.wire.http import Headers

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n"  # the length and the bytes
LAST_CHUNK = b"0\r\n\r\n"
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


@lru_cache(64)
def status_line(status: int) -> str:
    """Return the status line, with its line end."""
    return _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"


@lru_cache(64)
def header_lines(headers: Headers) -> str:
    """Return the lines of these headers. Cached, because most responses have the same."""
    return "".join([f"{name}: {header_value(value)}\r\n" for name, value in headers])


def header_value(text: str) -> str:
    """Return a text as the value of a header: characters that are not printable become spaces."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def response_head(status: int, headers: Headers) -> bytes:
    """Return the head of a response."""
    return f"{status_line(status)}{header_lines(headers)}\r\n".encode("latin-1", "replace")


def plain_refusal(status: int) -> bytes:
    """Return a whole response to bytes that are not a valid request; the connection is closed after it."""
    body = f"{HTTPStatus(status).phrase}\n".encode()
    kind, length = ("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(body)))
    return response_head(status, (kind, length, ("connection", "close"))) + body


HEAD_SECONDS = 10.0
IDLE_SECONDS = 75.0
SWEEP_SECONDS = 0.25
# When connections run short: how long a new one may send nothing, or send a body below its rate, before it is closed.
GRACE_SECONDS = 1.0
MAX_HEADERS = 100
MAX_HEAD_BYTES = 32 * 1024
MAX_TARGET_BYTES = 8 * 1024
MAX_PARTIAL_HEAD_BYTES = MAX_HEAD_BYTES + MAX_TARGET_BYTES  # of an incomplete head; admission checks complete ones
MAX_PIPELINED = 16  # requests that wait for the response to the one before them

BAD_REQUEST = plain_refusal(400)
REQUEST_TIMEOUT = plain_refusal(408)
TARGET_TOO_LONG = plain_refusal(414)
HEAD_TOO_LONG = plain_refusal(431)
