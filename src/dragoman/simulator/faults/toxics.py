"""Faults of a connection, whatever it carries: bytes come late, slowly, in slices, in part, or not at all."""

from __future__ import annotations

import itertools

from dragoman.simulator.faults.answer import FOREVER, Fault, Pieces
from dragoman.simulator.pieces import Break, Pause, Piece


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
