"""A response as the server frame writes it: a head, then pieces of body, pauses between them, and perhaps an early end.

Pure. Whatever changes a stream on its way (pace, write size, cuts; later a fault proxy) maps pieces to pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.simulator.script import CutPoint, ScriptTurn, StreamPace
from dragoman.wire.http import Headers


class Pause(Struct, frozen=True):
    seconds: float


class BodyEnd(Struct, frozen=True):
    """The body ends here: cleanly, without its last chunk, or with a reset connection."""

    how: Literal["end", "close", "reset"]


Piece: TypeAlias = bytes | Pause | BodyEnd


class Response(Struct, frozen=True):
    """`length is None`: the body is chunked. `note` is for the log and says why a request was refused."""

    status: int
    headers: Headers
    pieces: Iterable[Piece]
    length: int | None = None
    note: str = ""


def whole_response(status: int, headers: Headers, body: bytes, note: str = "") -> Response:
    """A response whose body is known."""
    return Response(status, headers, (body,), len(body), note)


def header_text(value: str) -> str:
    """Text that may stand in a header."""
    return "".join(character if " " <= character <= "~" else "?" for character in value[:400])


def scripted_headers(refuse: ScriptTurn) -> dict[str, str]:
    """The headers that a script puts on its refusal."""
    headers = {name.lower(): header_text(value) for name, value in refuse.headers.items()}
    if refuse.retry_after is not None:
        headers["retry-after"] = f"{refuse.retry_after:g}"
    return headers


def apply_pace(frames: Iterable[Piece], pace: StreamPace, cut: CutPoint | None) -> Iterator[Piece]:
    """Give wire frames their pace, their cut and their write size, in this order."""
    pieces = _paced(frames, pace)
    if cut is not None:
        pieces = _cut(pieces, cut)
    return _rewritten(pieces, pace.write) if pace.write else pieces


def _paced(frames: Iterable[Piece], pace: StreamPace) -> Iterator[Piece]:
    if pace.first_delay:
        yield Pause(pace.first_delay)
    for frame in frames:
        if pace.delay and isinstance(frame, bytes):
            yield Pause(pace.delay)
        yield frame


def _cut(pieces: Iterable[Piece], cut: CutPoint) -> Iterator[Piece]:
    count = size = 0
    for piece in pieces:
        if isinstance(piece, bytes):
            if count == cut.event:
                break
            if cut.byte is not None and size + len(piece) > cut.byte:
                yield piece[: cut.byte - size]
                break
            count, size = count + 1, size + len(piece)
        yield piece
    yield BodyEnd(cut.how)


def _rewritten(pieces: Iterable[Piece], size: int) -> Iterator[Piece]:
    """The same bytes in writes of one size, whatever their frames."""
    held = b""
    for piece in pieces:
        if not isinstance(piece, bytes):
            if held:
                yield held
                held = b""
            yield piece
            continue
        held += piece
        while len(held) >= size:
            yield held[:size]
            held = held[size:]
    if held:
        yield held
