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
from dragoman.simulator.pieces import Break, Pause, Piece
from dragoman.wire.http import Headers, HttpRequest

Pieces: TypeAlias = AsyncIterator[Piece]

FOREVER = 3600.0  # seconds: longer than anybody who waits


@dataclass
class Answer:
    """`body` is without framing: one piece a wire frame, where the dialect is known."""

    status: int
    headers: Headers
    body: Pieces
    framing: Literal["chunked", "length", "close"] = "chunked"
    more_length: int = 0  # what a `content-length` says too much, or too little
    more_headers: Headers = ()  # after the framing's own
    before: bytes = b""  # what comes before the head
    last: bytes = LAST_CHUNK


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Does nothing. Each fault overrides the one level that it is about."""

    times: int = 0  # connections or exchanges that it strikes, then no more; 0: all

    def greet(self) -> tuple[Piece, ...]:
        """What happens to a connection before anything is read."""
        return ()

    def instead(self, request: HttpRequest, number: int) -> Answer | None:
        """An answer in place of the target's, to the exchange of this number."""
        return None

    def frames(self, frames: Pieces) -> Pieces:
        return frames

    def answer(self, answer: Answer) -> Answer:
        return answer

    def wire(self, pieces: Pieces) -> Pieces:
        return pieces


async def rendered(answer: Answer) -> Pieces:
    """The whole answer as it goes over the wire."""
    head, body = answer.before, answer.body
    framing: Headers = (("connection", "close"),)
    if answer.framing == "chunked":
        framing = (("transfer-encoding", "chunked"),)
    elif answer.framing == "length":
        whole = b"".join([piece async for piece in body if isinstance(piece, bytes)])
        framing = (("content-length", str(len(whole) + answer.more_length)),)
        body = pieces_of(whole)
    yield head + response_head(answer.status, (*answer.headers, *framing, *answer.more_headers))
    async for piece in body:
        if isinstance(piece, Break):
            if piece.how == "end":
                break
            yield piece
            return
        if isinstance(piece, bytes) and answer.framing == "chunked":
            yield CHUNK % (len(piece), piece) if piece else b""
        else:
            yield piece
    if answer.framing == "chunked":
        yield answer.last
    if answer.framing == "close" or not answer.last:
        yield Break("close")


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


class Status(Fault, frozen=True, kw_only=True):
    """A refusal in place of an answer."""

    code: int
    body: Literal["json", "html", "text", "junk", "empty"] = "json"
    retry_after: str = ""
    location: str = ""

    def instead(self, request: HttpRequest, number: int) -> Answer | None:
        kind, page = _PAGES[self.body]
        given = (("content-type", kind), ("retry-after", self.retry_after), ("location", self.location))
        headers = tuple((name, value) for name, value in given if value)
        return Answer(self.code, headers, pieces_of(page), "length")


class Header(Fault, frozen=True, kw_only=True):
    """One header says something else; without a value it is left out. `pad` makes it long."""

    name: str
    value: str = ""
    pad: int = 0

    def answer(self, answer: Answer) -> Answer:
        kept = tuple((name, value) for name, value in answer.headers if name != self.name.lower())
        value = self.value + "x" * self.pad
        answer.headers = (*kept, (self.name.lower(), value)) if value else kept
        return answer


class Informed(Fault, frozen=True, kw_only=True):
    """Interim answers before the real one: 100, 103."""

    codes: tuple[int, ...] = (100, 103)

    def answer(self, answer: Answer) -> Answer:
        answer.before = b"".join(response_head(code, (("link", "</x>"),)) for code in self.codes)
        return answer


class Length(Fault, frozen=True, kw_only=True):
    """A `content-length` that is wrong by `by`; then the connection stays open or (`close`) ends."""

    by: int
    close: bool = True

    def answer(self, answer: Answer) -> Answer:
        answer.framing, answer.more_length = "length", self.by
        return answer

    async def wire(self, pieces: Pieces) -> Pieces:
        async for piece in pieces:
            yield piece
        if self.close:
            yield Break("close")


class NoLastChunk(Fault, frozen=True, kw_only=True):
    """The body is all there, but its last chunk never comes."""

    def answer(self, answer: Answer) -> Answer:
        answer.framing, answer.last = "chunked", b""
        return answer


class UntilClose(Fault, frozen=True, kw_only=True):
    """A body without a length: it ends with the connection."""

    def answer(self, answer: Answer) -> Answer:
        answer.framing = "close"
        return answer


class BothLengths(Fault, frozen=True, kw_only=True):
    """`transfer-encoding` and `content-length` together: what smugglers send."""

    length: int = 10

    def answer(self, answer: Answer) -> Answer:
        answer.framing, answer.more_headers = "chunked", (("content-length", str(self.length)),)
        return answer


class Compress(Fault, frozen=True, kw_only=True):
    """The body compressed, though nobody asked; `bomb` puts so many blanks before it; `cut` leaves out the end."""

    bomb: int = 0
    cut: int = 0

    def answer(self, answer: Answer) -> Answer:
        answer.headers = (*answer.headers, ("content-encoding", "gzip"))
        answer.framing, answer.body = "length", self._packed(answer.body)
        return answer

    async def _packed(self, body: Pieces) -> Pieces:
        # A file of gzip may have many members: one of blanks, many times, costs nothing to make.
        blanks = gzip.compress(b" " * _BLANKS) * (self.bomb // _BLANKS)
        whole = blanks + gzip.compress(b"".join([piece async for piece in body if isinstance(piece, bytes)]))
        yield whole[: -self.cut] if self.cut else whole


class Script(Fault, frozen=True, kw_only=True):
    """One status after another: `429+503+200`. 200 lets the target answer."""

    codes: tuple[int, ...]
    body: Literal["json", "html", "text", "junk", "empty"] = "json"

    def instead(self, request: HttpRequest, number: int) -> Answer | None:
        code = self.codes[min(number, len(self.codes) - 1)]
        return None if code == 200 else Status(code=code, body=self.body).instead(request, number)


# --- faults of a connection, whatever it carries: bytes come late, slowly, in slices, in part, or not at all


class Hang(Fault, frozen=True, kw_only=True):
    """Accepts, and then neither reads nor says anything: a handshake that stalls, a black hole behind a balancer."""

    seconds: float = FOREVER

    def greet(self) -> tuple[Piece, ...]:
        return (Pause(self.seconds), Break("close"))


class Drop(Fault, frozen=True, kw_only=True):
    """Accepts, and closes or resets at once."""

    reset: bool = False

    def greet(self) -> tuple[Piece, ...]:
        return (Break("reset" if self.reset else "close"),)


class Latency(Fault, frozen=True, kw_only=True):
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


class Slicer(Fault, frozen=True, kw_only=True):
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


class Bandwidth(Fault, frozen=True, kw_only=True):
    """No more than `rate` bytes a second."""

    rate: int

    async def wire(self, pieces: Pieces) -> Pieces:
        step = max(self.rate // 50, 1)
        async for piece in Slicer(size=step).wire(pieces):
            yield piece
            if isinstance(piece, bytes):
                yield Pause(len(piece) / self.rate)


class LimitData(Fault, frozen=True, kw_only=True):
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
        yield Break("reset" if self.reset else "close")


class SlowClose(Fault, frozen=True, kw_only=True):
    """The answer is there, but its end comes late, and the connection ends with it."""

    seconds: float

    async def wire(self, pieces: Pieces) -> Pieces:
        held: Piece = b""
        async for piece in pieces:
            yield held
            held = piece
        yield Pause(self.seconds)
        yield held
        yield Break("close")


class SlowHead(Fault, frozen=True, kw_only=True):
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


class Stale(Fault, frozen=True, kw_only=True):
    """A kept connection serves so many requests; the next one finds it closed, without a word. Counted by the proxy."""

    after: int = 1


class Flood(Fault, frozen=True, kw_only=True):
    """Bytes that nobody asked for, after the answer."""

    size: int = 1024

    async def wire(self, pieces: Pieces) -> Pieces:
        async for piece in pieces:
            yield piece
        for _ in itertools.repeat(None, max(self.size // 1024, 1)):
            yield b"x" * 1024
