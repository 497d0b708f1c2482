"""What a fault works on: an answer on its way from the target, as a head and pieces of body. A fault maps it. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.http.framing import CHUNK, LAST_CHUNK, response_head
from dragoman.simulator.pieces import Break, Piece
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
