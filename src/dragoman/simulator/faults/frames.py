"""Faults of a stream: cut, late, twice, in another order or broken, at a wire frame. Frames are counted from 0."""

from __future__ import annotations

import re
import struct
from typing import Literal
from zlib import crc32

from dragoman.simulator.faults.response import Pieces, ProxyFault
from dragoman.simulator.response import BodyEnd, Pause, Piece

_NOISE = bytes(range(256))
_ESCAPE = rb"\\u[0-9a-fA-F]{4}"
_PRELUDE = 12


class CutFault(ProxyFault, frozen=True, kw_only=True):
    """The body ends early: before the frame `event`, at a `byte`, right behind a `text`, or `inside` a character."""

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
    """Something happens to one frame: the one of this number, or the first that holds the `text`."""

    event: int = 0
    text: str = ""

    async def frames(self, frames: Pieces) -> Pieces:
        count, done = 0, False
        async for piece in frames:
            if not isinstance(piece, bytes):
                yield piece
                continue
            here = self.text.encode() in piece if self.text else count == self.event
            for each in self.change_frame(piece) if here and not done else (piece,):
                yield each
            count, done = count + 1, done or here

    def change_frame(self, frame: bytes) -> tuple[Piece, ...]:
        return (frame,)


class Delay(_AtFrame, frozen=True, kw_only=True):
    """Silence before a frame."""

    seconds: float

    def change_frame(self, frame: bytes) -> tuple[Piece, ...]:
        return (Pause(self.seconds), frame)


class Duplicate(_AtFrame, frozen=True, kw_only=True):
    """A frame comes twice."""

    def change_frame(self, frame: bytes) -> tuple[Piece, ...]:
        return (frame, frame)


class Omit(_AtFrame, frozen=True, kw_only=True):
    """A frame does not come."""

    def change_frame(self, frame: bytes) -> tuple[Piece, ...]:
        return ()


class Garbage(_AtFrame, frozen=True, kw_only=True):
    """Bytes that are no frame, before a frame."""

    size: int = 256

    def change_frame(self, frame: bytes) -> tuple[Piece, ...]:
        return ((_NOISE * (self.size // 256 + 1))[: self.size], frame)


class Insert(_AtFrame, frozen=True, kw_only=True):
    """Bytes of your own, before a frame."""

    put: str

    def change_frame(self, frame: bytes) -> tuple[Piece, ...]:
        return (self.put.encode(), frame)


class Swap(ProxyFault, frozen=True, kw_only=True):
    """A frame comes after the one that follows it."""

    event: int = 0

    async def frames(self, frames: Pieces) -> Pieces:
        count, held = 0, b""
        async for piece in frames:
            if not isinstance(piece, bytes):
                yield piece
                continue
            if count == self.event:
                held = piece
            else:
                yield piece
                yield held
                held = b""
            count += 1
        yield held


class Corrupt(_AtFrame, frozen=True, kw_only=True):
    """A frame of an AWS event stream with a wrong checksum, a length that is not its own (its checksum is right), or a
    header of an unknown type; `flip` turns one bit of any frame."""

    what: Literal["crc", "prelude", "length", "headers", "header", "flip"] = "crc"
    length: int = 0

    def change_frame(self, frame: bytes) -> tuple[Piece, ...]:
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
    """A message of an AWS event stream with the lengths and checksums that it should have."""
    headers = struct.unpack_from(">I", message, 4)[0]
    lengths = struct.pack(">II", len(message), headers)
    body = lengths + struct.pack(">I", crc32(lengths)) + message[_PRELUDE:-4]
    return body + struct.pack(">I", crc32(body))


class Replace(ProxyFault, frozen=True, kw_only=True):
    """A text in the frames becomes another. Checksums are made anew where there are some."""

    text: str
    by: str = ""
    raw: bytes = b""  # instead of `by`, what is no text

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
    """The same server-sent events, spelt otherwise."""

    line_end: Literal["lf", "cr", "crlf"] = "lf"
    bom: bool = False
    comments: bool = False
    fields: bool = False  # id: and retry:
    no_space: bool = False
    no_event: bool = False  # the event's name is left out

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
