"""A simulated response: a head, then pieces of the body, with pauses between them and perhaps an early end. Pure.

`server` writes it. Functions that change the pace, the write size or the end of a stream map pieces to pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.simulator.script import CutPoint, ScriptTurn, StreamPace
from dragoman.wire.http import Headers


class Pause(Struct, frozen=True):
    """A time without bytes."""

    seconds: float


class BodyEnd(Struct, frozen=True):
    """The body ends here: cleanly, without its last chunk, or with a reset connection."""

    how: Literal["end", "close", "reset"]


BodyPiece: TypeAlias = bytes | Pause | BodyEnd


class Response(Struct, frozen=True):
    """A response to write. `length` None means a chunked body; `note` is for the log: why a request was refused."""

    status: int
    headers: Headers
    pieces: Iterable[BodyPiece]
    length: int | None = None
    note: str = ""


def whole_response(status: int, headers: Headers, body: bytes, note: str = "") -> Response:
    """Return a response with a complete body."""
    return Response(status, headers, (body,), len(body), note)


def header_text(value: str) -> str:
    """Return a text as a header value: at most 400 characters, with `?` for characters that are not allowed."""
    return "".join(character if " " <= character <= "~" else "?" for character in value[:400])


def split_text(text: str, size: int) -> Iterator[str]:
    """Yield a text in pieces of one size: the deltas of a stream."""
    return (text[at : at + size] for at in range(0, len(text), size))


def scripted_headers(refuse: ScriptTurn) -> dict[str, str]:
    """Return the headers that a script sets for its refusal."""
    headers = {name.lower(): header_text(value) for name, value in refuse.headers.items()}
    if refuse.retry_after is not None:
        headers["retry-after"] = f"{refuse.retry_after:g}"
    return headers


def apply_pace(frames: Iterable[BodyPiece], pace: StreamPace, cut: CutPoint | None) -> Iterator[BodyPiece]:
    """Apply the delays, the cut and the write size of a script to wire frames, in this order."""
    pieces = _add_delays(frames, pace)
    if cut is not None:
        pieces = _cut(pieces, cut)
    return _resize(pieces, pace.write) if pace.write else pieces


def _add_delays(frames: Iterable[BodyPiece], pace: StreamPace) -> Iterator[BodyPiece]:
    if pace.first_delay:
        yield Pause(pace.first_delay)
    for frame in frames:
        if pace.delay and isinstance(frame, bytes):
            yield Pause(pace.delay)
        yield frame


def _cut(pieces: Iterable[BodyPiece], cut: CutPoint) -> Iterator[BodyPiece]:
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


def _resize(pieces: Iterable[BodyPiece], size: int) -> Iterator[BodyPiece]:
    """Yield the same bytes in pieces of one size, independent of the frames."""
    buffered = b""
    for piece in pieces:
        if not isinstance(piece, bytes):
            if buffered:
                yield buffered
                buffered = b""
            yield piece
            continue
        buffered += piece
        while len(buffered) >= size:
            yield buffered[:size]
            buffered = buffered[size:]
    if buffered:
        yield buffered
