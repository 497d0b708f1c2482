"""Faults of HTTP responses and connections. Each one maps the response of the target: its head and pieces of body.

Pure. Faults of stream frames are in `frames`; `proxy` applies them all.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.http.framing import CHUNK, LAST_CHUNK, response_head
from dragoman.simulator.response import BodyEnd, BodyPiece, Pause
from dragoman.wire.http import Headers, HttpRequest

Pieces: TypeAlias = AsyncIterator[BodyPiece]

FOREVER = 3600.0  # seconds; longer than the timeout of any client


@dataclass
class ProxiedResponse:
    """A response on its way to the client. `body` has no framing; if the dialect is known, a piece is one frame."""

    status: int
    headers: Headers
    body: Pieces
    framing: Literal["chunked", "length", "close"] = "chunked"
    more_length: int = 0  # added to the `content-length`: makes it too large or too small
    more_headers: Headers = ()  # sent after the framing headers
    before: bytes = b""  # bytes sent before the head
    last: bytes = LAST_CHUNK


class ProxyFault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all faults; it changes nothing. Each fault overrides the method of its level."""

    times: int = 0  # how many connections or exchanges it affects; 0: all

    def on_connect(self) -> tuple[BodyPiece, ...]:
        """Return what happens to a new connection before anything is read."""
        return ()

    def replace_response(self, request: HttpRequest, number: int) -> ProxiedResponse | None:
        """Return a response to exchange `number` instead of the target's, or None to ask the target."""
        return None

    def frames(self, frames: Pieces) -> Pieces:
        """Change the frames of the body."""
        return frames

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        """Change the head or the framing."""
        return response

    def wire(self, pieces: Pieces) -> Pieces:
        """Change the bytes, or their timing, on the wire."""
        return pieces


async def render_response(response: ProxiedResponse) -> Pieces:
    """Yield the response as bytes on the wire: the head, then the framed body."""
    head, body = response.before, response.body
    framing: Headers = (("connection", "close"),)
    if response.framing == "chunked":
        framing = (("transfer-encoding", "chunked"),)
    elif response.framing == "length":
        whole = b"".join([piece async for piece in body if isinstance(piece, bytes)])
        framing = (("content-length", str(len(whole) + response.more_length)),)
        body = pieces_of(whole)
    yield head + response_head(response.status, (*response.headers, *framing, *response.more_headers))
    async for piece in body:
        if isinstance(piece, BodyEnd):
            if piece.how == "end":
                break
            yield piece
            return
        if isinstance(piece, bytes) and response.framing == "chunked":
            yield CHUNK % (len(piece), piece) if piece else b""
        else:
            yield piece
    if response.framing == "chunked":
        yield response.last
    if response.framing == "close" or not response.last:
        yield BodyEnd("close")


async def pieces_of(*pieces: BodyPiece) -> Pieces:
    """Yield the given pieces."""
    for piece in pieces:
        yield piece


# --- faults of HTTP: error responses, wrong or long heads, wrong lengths


_BLANKS = 8 * 1024 * 1024
_PAGES = {
    "json": ("application/json", b'{"error":{"message":"refused by the fault proxy","type":"proxy_error"}}'),
    "html": ("text/html", b"<!DOCTYPE html><html><title>Bad day</title><body>cf-ray: 1</body></html>"),
    "text": ("text/plain", b"upstream connect error or disconnect/reset before headers"),
    "junk": ("application/json", b"\x00\xff\x1f\x8b not json {"),
    "empty": ("", b""),
}


class Status(ProxyFault, frozen=True, kw_only=True):
    """An error response instead of the target's response."""

    code: int
    body: Literal["json", "html", "text", "junk", "empty"] = "json"
    retry_after: str = ""
    location: str = ""

    def replace_response(self, request: HttpRequest, number: int) -> ProxiedResponse | None:
        kind, page = _PAGES[self.body]
        optional = (("content-type", kind), ("retry-after", self.retry_after), ("location", self.location))
        headers = tuple((name, value) for name, value in optional if value)
        return ProxiedResponse(self.code, headers, pieces_of(page), "length")


class HeaderFault(ProxyFault, frozen=True, kw_only=True):
    """One header with another value; without a value it is removed. `pad` makes it long."""

    name: str
    value: str = ""
    pad: int = 0

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        others = tuple((name, value) for name, value in response.headers if name != self.name.lower())
        value = self.value + "x" * self.pad
        response.headers = (*others, (self.name.lower(), value)) if value else others
        return response


class InterimResponses(ProxyFault, frozen=True, kw_only=True):
    """Interim responses (100, 103) before the final one."""

    codes: tuple[int, ...] = (100, 103)

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        response.before = b"".join(response_head(code, (("link", "</x>"),)) for code in self.codes)
        return response


class Length(ProxyFault, frozen=True, kw_only=True):
    """A `content-length` that is wrong by `by`; with `close`, the connection ends after the body."""

    by: int
    close: bool = True

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        response.framing, response.more_length = "length", self.by
        return response

    async def wire(self, pieces: Pieces) -> Pieces:
        async for piece in pieces:
            yield piece
        if self.close:
            yield BodyEnd("close")


class NoLastChunk(ProxyFault, frozen=True, kw_only=True):
    """The body is complete, but the last chunk is missing."""

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        response.framing, response.last = "chunked", b""
        return response


class UntilClose(ProxyFault, frozen=True, kw_only=True):
    """A body without a length, which the end of the connection ends."""

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        response.framing = "close"
        return response


class BothLengths(ProxyFault, frozen=True, kw_only=True):
    """`transfer-encoding` and `content-length` together, as in request smuggling."""

    length: int = 10

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        response.framing, response.more_headers = "chunked", (("content-length", str(self.length)),)
        return response


class Compress(ProxyFault, frozen=True, kw_only=True):
    """A compressed body that was not requested. `bomb` puts that many blanks first; `cut` removes the last bytes."""

    bomb: int = 0
    cut: int = 0

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        response.headers = (*response.headers, ("content-encoding", "gzip"))
        response.framing, response.body = "length", self._packed(response.body)
        return response

    async def _packed(self, body: Pieces) -> Pieces:
        # A gzip file may have many members, so one compressed member of blanks is repeated.
        blanks = gzip.compress(b" " * _BLANKS) * (self.bomb // _BLANKS)
        whole = blanks + gzip.compress(b"".join([piece async for piece in body if isinstance(piece, bytes)]))
        yield whole[: -self.cut] if self.cut else whole


class ScriptFault(ProxyFault, frozen=True, kw_only=True):
    """One status after another: `429+503+200`. At 200 the target responds; the last one repeats."""

    codes: tuple[int, ...]
    body: Literal["json", "html", "text", "junk", "empty"] = "json"

    def replace_response(self, request: HttpRequest, number: int) -> ProxiedResponse | None:
        code = self.codes[min(number, len(self.codes) - 1)]
        return None if code == 200 else Status(code=code, body=self.body).replace_response(request, number)


# --- faults of a connection: bytes that are late, slow, sliced, incomplete or missing


class Hang(ProxyFault, frozen=True, kw_only=True):
    """The proxy accepts the connection and then neither reads nor writes, as in a stalled handshake."""

    seconds: float = FOREVER

    def on_connect(self) -> tuple[BodyPiece, ...]:
        return (Pause(self.seconds), BodyEnd("close"))


class Drop(ProxyFault, frozen=True, kw_only=True):
    """The proxy accepts the connection and closes or resets it at once."""

    reset: bool = False

    def on_connect(self) -> tuple[BodyPiece, ...]:
        return (BodyEnd("reset" if self.reset else "close"),)


class Latency(ProxyFault, frozen=True, kw_only=True):
    """A pause before every piece. `first` is an additional pause before the first one."""

    seconds: float = 0.0
    first: float = 0.0

    async def wire(self, pieces: Pieces) -> Pieces:
        wait = self.first
        async for piece in pieces:
            if wait + self.seconds:
                yield Pause(wait + self.seconds)
            wait = 0.0
            yield piece


class Slicer(ProxyFault, frozen=True, kw_only=True):
    """The same bytes in writes of at most `size`, regardless of frames, with a pause after each."""

    size: int = 1
    delay: float = 0.0

    async def wire(self, pieces: Pieces) -> Pieces:
        async for piece in pieces:
            if not isinstance(piece, bytes):
                yield piece
                continue
            for at in range(0, len(piece), self.size):
                yield piece[at : at + self.size]
                if self.delay:
                    yield Pause(self.delay)


class Bandwidth(ProxyFault, frozen=True, kw_only=True):
    """At most `rate` bytes a second."""

    rate: int

    async def wire(self, pieces: Pieces) -> Pieces:
        step = max(self.rate // 50, 1)
        async for piece in Slicer(size=step).wire(pieces):
            yield piece
            if isinstance(piece, bytes):
                yield Pause(len(piece) / self.rate)


class LimitData(ProxyFault, frozen=True, kw_only=True):
    """The response stops after `after` bytes: the connection is closed, reset, or (`hang`) open and silent.

    `hang` is a half-open connection: the peer is gone, but TCP did not report it.
    """

    after: int
    reset: bool = False
    hang: bool = False

    async def wire(self, pieces: Pieces) -> Pieces:
        left = self.after
        async for piece in pieces:
            if not isinstance(piece, bytes):
                yield piece
                continue
            yield piece[:left]
            left -= len(piece)
            if left <= 0:
                break
        if self.hang:
            yield Pause(FOREVER)
        yield BodyEnd("reset" if self.reset else "close")


class SlowClose(ProxyFault, frozen=True, kw_only=True):
    """The last piece of the response is late, and the connection closes after it."""

    seconds: float

    async def wire(self, pieces: Pieces) -> Pieces:
        delayed: BodyPiece = b""
        async for piece in pieces:
            yield delayed
            delayed = piece
        yield Pause(self.seconds)
        yield delayed
        yield BodyEnd("close")


class SlowHead(ProxyFault, frozen=True, kw_only=True):
    """The head is sent byte by byte."""

    delay: float

    async def wire(self, pieces: Pieces) -> Pieces:
        seen = b""
        async for piece in pieces:
            if not isinstance(piece, bytes) or b"\r\n\r\n" in seen:
                yield piece
                continue
            for at in range(len(piece)):
                yield piece[at : at + 1]
                yield Pause(self.delay)
            seen += piece


class SilentlyClosedConnection(ProxyFault, frozen=True, kw_only=True):
    """A kept connection closes silently at the request after `after` requests. The proxy counts them."""

    after: int = 1


class Flood(ProxyFault, frozen=True, kw_only=True):
    """Extra bytes after the response."""

    size: int = 1024

    async def wire(self, pieces: Pieces) -> Pieces:
        async for piece in pieces:
            yield piece
        for _ in itertools.repeat(None, max(self.size // 1024, 1)):
            yield b"x" * 1024
