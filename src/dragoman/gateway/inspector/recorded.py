"""One recorded request with its bytes, as the views of the inspector read it. Reads files, and changes nothing.

A part is read when it is first needed, since the list of requests needs none.
"""

from __future__ import annotations

from functools import cached_property
from struct import iter_unpack

from msgspec import Struct

from dragoman.gateway.recording.encoding import TICKS
from dragoman.gateway.recording.segments import Entry, RecordedAttempt, RecordedRequest, read_parts

_PIECE = "<4I"


class RecordedPiece(Struct, frozen=True, gc=False):
    """A piece of a response. Offsets are those of the bytes that all pieces received, and that all wrote."""

    ms: float  # since the request began
    attempt: int  # 1 is the first; 0: it belongs to none
    received: int  # bytes from the upstream
    written: int  # bytes to the client
    received_at: int  # offset
    written_at: int


class RecordedExchange:
    """A recorded request. Raises OSError from any property if its segment was deleted meanwhile."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.request: RecordedRequest = entry.recorded
        self._parts: dict[str, bytes] = {}
        self._names = frozenset(name for name, _ in entry.recorded.parts)

    @property
    def id(self) -> str:
        """The id of the request."""
        return self.request.line.request_id

    @property
    def attempts(self) -> tuple[RecordedAttempt, ...]:
        """The attempts, in order; also those that were not sent."""
        return self.request.attempts

    def attempt(self, number: int | None = None) -> RecordedAttempt | None:
        """Return the attempt of this number, counted from 1; the last one without a number; None if there is none."""
        if number is None:
            number = len(self.attempts)
        return self.attempts[number - 1] if 1 <= number <= len(self.attempts) else None

    def _part(self, name: str) -> bytes | None:
        if name not in self._names:
            return None
        if name not in self._parts:
            self._parts.update(read_parts(self.entry, (name,)))
        return self._parts[name]

    @cached_property
    def client_body(self) -> bytes | None:
        """The body of the client's request, masked; None if it is not recorded."""
        return self._part("client_body")

    def upstream_body(self, number: int | None = None) -> bytes | None:
        """Return the body of an attempt, masked; None if it was not sent or is not recorded."""
        attempt = self.attempt(number)
        if attempt is None or attempt.target.request is None:
            return None
        position = number if number is not None else len(self.attempts)
        body = self._part(f"upstream_body.{position}")
        if body is None and "upstream_body" not in self.request.truncated:
            body = self.client_body  # A body that equals the client's is not recorded again.
        return body

    @cached_property
    def pieces(self) -> list[RecordedPiece]:
        """The pieces of the responses, in the order in which they came."""
        found: list[RecordedPiece] = []
        received_at = written_at = 0
        for ticks, attempt, received, written in iter_unpack(_PIECE, self._part("pieces") or b""):
            ms = ticks * 1000 / TICKS
            found.append(RecordedPiece(ms, attempt, received, written, received_at, written_at))
            received_at += received
            written_at += written
        return found

    @cached_property
    def received(self) -> bytes:
        """What all upstreams sent, masked; empty without bodies."""
        return self._part("received") or b""

    @cached_property
    def written(self) -> bytes:
        """What the client got, masked; empty without bodies."""
        written = self._part("written")
        has_written = any(piece.written for piece in self.pieces)
        return self.received if written is None and has_written else written or b""

    def received_of(self, number: int) -> bytes:
        """Return what the upstream of one attempt sent."""
        pieces = (piece for piece in self.pieces if piece.attempt == number)
        return b"".join([self.received[each.received_at : each.received_at + each.received] for each in pieces])
