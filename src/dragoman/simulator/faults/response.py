"""Faults: each maps an answer on its way from the target, a head and pieces of body. Those of frames are in `frames`.

Pure."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.http.framing import CHUNK, LAST_CHUNK, response_head
from dragoman.simulator.response import BodyEnd, Pause, Piece
from dragoman.wire.http import Headers, HttpRequest

Pieces: TypeAlias = AsyncIterator[Piece]

FOREVER = 3600.0  # seconds: longer than anybody who waits


@dataclass
class ProxiedResponse:
    """`body` is without framing: one piece a wire frame, where the dialect is known."""

    status: int
    headers: Headers
    body: Pieces
    framing: Literal["chunked", "length", "close"] = "chunked"
    more_length: int = 0  # what a `content-length` says too much, or too little
    more_headers: Headers = ()  # after the framing's own
    before: bytes = b""  # what comes before the head
    last: bytes = LAST_CHUNK


class ProxyFault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Does nothing. Each fault overrides the one level that it is about."""

    times: int = 0  # connections or exchanges that it strikes, then no more; 0: all

    def on_connect(self) -> tuple[Piece, ...]:
        """What happens to a connection before anything is read."""
        return ()

    def replace_response(self, request: HttpRequest, number: int) -> ProxiedResponse | None:
        """An answer in place of the target's, to the exchange of this number."""
        return None

    def frames(self, frames: Pieces) -> Pieces:
        return frames

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        return response

    def wire(self, pieces: Pieces) -> Pieces:
        return pieces


async def render_response(response: ProxiedResponse) -> Pieces:
    """The whole answer as it goes over the wire."""
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


async def pieces_of(*pieces: Piece) -> Pieces:
    for piece in pieces:
        yield piece


# --- faults of HTTP: statuses instead of an answer, heads that are wrong or long, lengths that are not the body's


_BLANKS = 8 * 1024 * 1024
_PAGES = {
    "json": ("application/json", b'{"error":{"message":"no, says the proxy","type":"proxy_error"}}'),
    "html": ("text/html", b"<!DOCTYPE html><html><title>Bad day</title><body>cf-ray: 1</body></html>"),
    "text": ("text/plain", b"upstream connect error or disconnect/reset before headers"),
    "junk": ("application/json", b"\x00\xff\x1f\x8b not json {"),
    "empty": ("", b""),
}


class Status(ProxyFault, frozen=True, kw_only=True):
    """A refusal in place of an answer."""

    code: int
    body: Literal["json", "html", "text", "junk", "empty"] = "json"
    retry_after: str = ""
    location: str = ""

    def replace_response(self, request: HttpRequest, number: int) -> ProxiedResponse | None:
        kind, page = _PAGES[self.body]
        given = (("content-type", kind), ("retry-after", self.retry_after), ("location", self.location))
        headers = tuple((name, value) for name, value in given if value)
        return ProxiedResponse(self.code, headers, pieces_of(page), "length")


class HeaderFault(ProxyFault, frozen=True, kw_only=True):
    """One header says something else; without a value it is left out. `pad` makes it long."""

    name: str
    value: str = ""
    pad: int = 0

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        kept = tuple((name, value) for name, value in response.headers if name != self.name.lower())
        value = self.value + "x" * self.pad
        response.headers = (*kept, (self.name.lower(), value)) if value else kept
        return response


class Informed(ProxyFault, frozen=True, kw_only=True):
    """Interim answers before the real one: 100, 103."""

    codes: tuple[int, ...] = (100, 103)

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        response.before = b"".join(response_head(code, (("link", "</x>"),)) for code in self.codes)
        return response


class Length(ProxyFault, frozen=True, kw_only=True):
    """A `content-length` that is wrong by `by`; then the connection stays open or (`close`) ends."""

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
    """The body is all there, but its last chunk never comes."""

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        response.framing, response.last = "chunked", b""
        return response


class UntilClose(ProxyFault, frozen=True, kw_only=True):
    """A body without a length: it ends with the connection."""

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        response.framing = "close"
        return response


class BothLengths(ProxyFault, frozen=True, kw_only=True):
    """`transfer-encoding` and `content-length` together: what smugglers send."""

    length: int = 10

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        response.framing, response.more_headers = "chunked", (("content-length", str(self.length)),)
        return response


class Compress(ProxyFault, frozen=True, kw_only=True):
    """The body compressed, though nobody asked; `bomb` puts so many blanks before it; `cut` leaves out the end."""

    bomb: int = 0
    cut: int = 0

    def change_response(self, response: ProxiedResponse) -> ProxiedResponse:
        response.headers = (*response.headers, ("content-encoding", "gzip"))
        response.framing, response.body = "length", self._packed(response.body)
        return response

    async def _packed(self, body: Pieces) -> Pieces:
        # A file of gzip may have many members: one of blanks, many times, costs nothing to make.
        blanks = gzip.compress(b" " * _BLANKS) * (self.bomb // _BLANKS)
        whole = blanks + gzip.compress(b"".join([piece async for piece in body if isinstance(piece, bytes)]))
        yield whole[: -self.cut] if self.cut else whole


class ScriptFault(ProxyFault, frozen=True, kw_only=True):
    """One status after another: `429+503+200`. 200 lets the target answer."""

    codes: tuple[int, ...]
    body: Literal["json", "html", "text", "junk", "empty"] = "json"

    def replace_response(self, request: HttpRequest, number: int) -> ProxiedResponse | None:
        code = self.codes[min(number, len(self.codes) - 1)]
        return None if code == 200 else Status(code=code, body=self.body).replace_response(request, number)


# --- faults of a connection, whatever it carries: bytes come late, slowly, in slices, in part, or not at all


class Hang(ProxyFault, frozen=True, kw_only=True):
    """Accepts, and then neither reads nor says anything: a handshake that stalls, a black hole behind a balancer."""

    seconds: float = FOREVER

    def on_connect(self) -> tuple[Piece, ...]:
        return (Pause(self.seconds), BodyEnd("close"))


class Drop(ProxyFault, frozen=True, kw_only=True):
    """Accepts, and closes or resets at once."""

    reset: bool = False

    def on_connect(self) -> tuple[Piece, ...]:
        return (BodyEnd("reset" if self.reset else "close"),)


class Latency(ProxyFault, frozen=True, kw_only=True):
    """Every piece comes later. `first` is for the first alone."""

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
    """The same bytes in writes of `size`, wherever anything ends, with a pause between two."""

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
    """No more than `rate` bytes a second."""

    rate: int

    async def wire(self, pieces: Pieces) -> Pieces:
        step = max(self.rate // 50, 1)
        async for piece in Slicer(size=step).wire(pieces):
            yield piece
            if isinstance(piece, bytes):
                yield Pause(len(piece) / self.rate)


class LimitData(ProxyFault, frozen=True, kw_only=True):
    """The connection ends after so many bytes of the answer: closed, reset, or (`hang`) open and silent for ever.

    `hang` is the half-open connection: the peer is gone and nobody said so.
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
    """The answer is there, but its end comes late, and the connection ends with it."""

    seconds: float

    async def wire(self, pieces: Pieces) -> Pieces:
        held: Piece = b""
        async for piece in pieces:
            yield held
            held = piece
        yield Pause(self.seconds)
        yield held
        yield BodyEnd("close")


class SlowHead(ProxyFault, frozen=True, kw_only=True):
    """The head comes byte by byte."""

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


class Stale(ProxyFault, frozen=True, kw_only=True):
    """A kept connection serves so many requests; the next one finds it closed, without a word. Counted by the proxy."""

    after: int = 1


class Flood(ProxyFault, frozen=True, kw_only=True):
    """Bytes that nobody asked for, after the answer."""

    size: int = 1024

    async def wire(self, pieces: Pieces) -> Pieces:
        async for piece in pieces:
            yield piece
        for _ in itertools.repeat(None, max(self.size // 1024, 1)):
            yield b"x" * 1024
