"""Faults of stream frames: frames that are cut, late, repeated, reordered or corrupted. Pure. Counts start at 0."""

from __future__ import annotations

import re
import struct
from typing import Literal
from zlib import crc32

from dragoman.simulator.faults.response import Pieces, ProxyFault
from dragoman.simulator.response import BodyEnd, BodyPiece, Pause

_NOISE = bytes(range(256))
_ESCAPE = rb"\\u[0-9a-fA-F]{4}"
_PRELUDE = 12


class CutFault(ProxyFault, frozen=True, kw_only=True):
    """The body ends early: before frame `event`, at a `byte`, directly after a `text`, or `inside` a character."""

    event: int | None = None
    byte: int | None = None
    text: str = ""
    inside: Literal["", "character"] = ""
    how: Literal["end", "close", "reset"] = "close"

    async def frames(self, frames: Pieces) -> Pieces:
        count = size = 0
        async for piece in frames:
            if not isinstance(piece, bytes):
                yield piece
                continue
            at = self._at(piece, count, size)
            if at is not None:
                yield piece[:at]
                break
            yield piece
            count, size = count + 1, size + len(piece)
        else:
            return
        yield BodyEnd(self.how)

    def _at(self, frame: bytes, count: int, size: int) -> int | None:
        if self.event is not None:
            return 0 if count == self.event else None
        if self.byte is not None:
            return self.byte - size if self.byte < size + len(frame) else None
        found = re.search(rb"[\xc2-\xf4]|" + _ESCAPE, frame) if self.inside else None
        if found is not None:
            return found.start() + (1 if frame[found.start()] >= 0xC2 else 4)
        at = frame.find(self.text.encode()) if self.text else -1
        return None if at < 0 else at + len(self.text.encode())


class _AtFrame(ProxyFault, frozen=True, kw_only=True):
    """Base of faults that change one frame: frame number `event`, or the first frame that contains `text`."""

    event: int = 0
    text: str = ""

    async def frames(self, frames: Pieces) -> Pieces:
        count, is_done = 0, False
        async for piece in frames:
            if not isinstance(piece, bytes):
                yield piece
                continue
            is_match = self.text.encode() in piece if self.text else count == self.event
            for output in self.change_frame(piece) if is_match and not is_done else (piece,):
                yield output
            count, is_done = count + 1, is_done or is_match

    def change_frame(self, frame: bytes) -> tuple[BodyPiece, ...]:
        """Return what the client gets instead of the frame."""
        return (frame,)


class Delay(_AtFrame, frozen=True, kw_only=True):
    """A pause before a frame."""

    seconds: float

    def change_frame(self, frame: bytes) -> tuple[BodyPiece, ...]:
        return (Pause(self.seconds), frame)


class Duplicate(_AtFrame, frozen=True, kw_only=True):
    """A frame is sent twice."""

    def change_frame(self, frame: bytes) -> tuple[BodyPiece, ...]:
        return (frame, frame)


class Omit(_AtFrame, frozen=True, kw_only=True):
    """A frame is left out."""

    def change_frame(self, frame: bytes) -> tuple[BodyPiece, ...]:
        return ()


class Garbage(_AtFrame, frozen=True, kw_only=True):
    """Bytes that are not a frame, before a frame."""

    size: int = 256

    def change_frame(self, frame: bytes) -> tuple[BodyPiece, ...]:
        return ((_NOISE * (self.size // 256 + 1))[: self.size], frame)


class Insert(_AtFrame, frozen=True, kw_only=True):
    """The text `put`, before a frame."""

    put: str

    def change_frame(self, frame: bytes) -> tuple[BodyPiece, ...]:
        return (self.put.encode(), frame)


class Swap(ProxyFault, frozen=True, kw_only=True):
    """A frame and the next one change places."""

    event: int = 0

    async def frames(self, frames: Pieces) -> Pieces:
        count, delayed = 0, b""
        async for piece in frames:
            if not isinstance(piece, bytes):
                yield piece
                continue
            if count == self.event:
                delayed = piece
            else:
                yield piece
                yield delayed
                delayed = b""
            count += 1
        yield delayed


class Corrupt(_AtFrame, frozen=True, kw_only=True):
    """A corrupt frame of an AWS event stream; `flip` works on any frame.

    `crc` and `prelude` are wrong checksums, `length` and `headers` wrong lengths with a right checksum, `header` is a
    header of an unknown type, and `flip` inverts one bit.
    """

    what: Literal["crc", "prelude", "length", "headers", "header", "flip"] = "crc"
    length: int = 0

    def change_frame(self, frame: bytes) -> tuple[BodyPiece, ...]:
        raw = bytearray(frame)
        match self.what:
            case "crc":
                raw[-1] ^= 1
            case "prelude":
                raw[_PRELUDE - 1] ^= 1
            case "length":
                struct.pack_into(">I", raw, 0, self.length)
                struct.pack_into(">I", raw, 8, crc32(raw[:8]))
            case "headers":
                struct.pack_into(">I", raw, 4, self.length)
                struct.pack_into(">I", raw, 8, crc32(raw[:8]))
            case "header":
                raw[_PRELUDE + 1 + raw[_PRELUDE]] = 77
                return (with_checksums(bytes(raw)),)
            case "flip":
                raw[len(raw) // 2] ^= 0x10
        return (bytes(raw),)


def with_checksums(message: bytes) -> bytes:
    """Return a message of an AWS event stream with its lengths and checksums corrected."""
    headers = struct.unpack_from(">I", message, 4)[0]
    lengths = struct.pack(">II", len(message), headers)
    body = lengths + struct.pack(">I", crc32(lengths)) + message[_PRELUDE:-4]
    return body + struct.pack(">I", crc32(body))


class Replace(ProxyFault, frozen=True, kw_only=True):
    """A text in the frames is replaced by another. Frames with checksums get new ones."""

    text: str
    by: str = ""
    raw: bytes = b""  # instead of `by`, for bytes that are not text

    async def frames(self, frames: Pieces) -> Pieces:
        async for piece in frames:
            if not isinstance(piece, bytes) or self.text.encode() not in piece:
                yield piece
                continue
            replaced = piece.replace(self.text.encode(), self.raw or self.by.encode())
            yield with_checksums(replaced) if _is_message(piece) else replaced


def _is_message(frame: bytes) -> bool:
    return len(frame) >= 16 and struct.unpack_from(">I", frame)[0] == len(frame)


class Respell(ProxyFault, frozen=True, kw_only=True):
    """The same server-sent events in another valid notation."""

    line_end: Literal["lf", "cr", "crlf"] = "lf"
    bom: bool = False
    comments: bool = False
    fields: bool = False  # adds id: and retry: lines
    no_space: bool = False
    no_event: bool = False  # leaves out the event: line

    async def frames(self, frames: Pieces) -> Pieces:
        end = {"lf": b"\n", "cr": b"\r", "crlf": b"\r\n"}[self.line_end]
        first = True
        async for piece in frames:
            if not isinstance(piece, bytes):
                yield piece
                continue
            lines = piece.rstrip(b"\r\n").splitlines()
            if self.no_event:
                lines = [line for line in lines if not line.startswith(b"event:")]
            if self.no_space:
                lines = [re.sub(rb"^(event|data): ", rb"\1:", line) for line in lines]
            if self.fields:
                lines = [b"id: 7", b"retry: 100", *lines]
            if self.comments:
                lines = [b": hello", *lines, b":"]
            mark = b"\xef\xbb\xbf" if self.bom and first else b""
            yield mark + end.join((*lines, b"", b""))
            first = False
