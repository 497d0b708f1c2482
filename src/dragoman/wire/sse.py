"""Server-sent events, by the HTML specification: a decoder for bytes cut anywhere, and the encoder.

Theory of operation. The decoder works on blocks, not on lines. It buffers pieces until one of them, together with the
last bytes before it, completes a block; then it joins all pieces once and decodes the complete blocks. So each byte is
copied and scanned a fixed number of times, for any length of a line or block and any cuts.

A block ends where one line end follows another. A CR at the end of the input may be half of a CRLF, so the decoder
waits for one more byte there. The exception is a line that ended with a lone CR: `CR CR` ends the block at once, and a
following LF is a blank line between blocks, which has no meaning. So the frames, `raw` included, do not depend on the
cuts. Pure: no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from dragoman.errors import BadFrame, LocalMisuse
from dragoman.wire.frame import Frame, Payload, then_raise

MAX_FRAME = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BLOCK_END = re.compile(rb"\r\r|(?:\r\n|\n)(?:\n|\r\n|\r(?!\n|\Z))")
_CR, _LF = 0x0D, 0x0A  # searching for an int is several times as fast as for bytes
_LONGEST_UNDECIDED = 2  # LF CR: the next byte decides whether the block has ended
_LONGEST_CACHED = 64  # bytes of an event line
_LONGEST_RETRY = 15  # digits; a longer number is not a time in milliseconds


class FrameTooLong(BadFrame):
    """A block is longer than the limit of the decoder."""


class SseDecoder:
    """Decodes bytes cut anywhere; the frames do not depend on the cuts.

    `Frame.kind` is the event name, "" if there is none (HTML defines "message"; "" can be encoded back exactly).
    `Frame.data` is the data lines joined with LF, as bytes, valid UTF-8 or not. `Frame.raw` is the bytes of the block
    with its blank line, without a BOM or blank lines before it. A block without a data line (a comment, a lone id) is
    not a frame, except one with the field `error`, in which old llama.cpp servers report that they failed.

    `last_event_id` and `retry` are those of the last decoded block. After FrameTooLong the decoder stays failed.
    """

    __slots__ = ("_failed", "_max_frame", "_pieces", "_steady", "_tail", "buffered_bytes", "last_event_id", "retry")

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.last_event_id = ""
        self.retry: int | None = None
        self._max_frame = max_frame
        self._pieces: list[bytes] = []  # pieces of one unfinished block
        self.buffered_bytes = 0  # see FrameDecoder
        self._tail = b""  # the last bytes of the pieces
        self._steady = False  # False: a byte order mark may still follow, or the decoder has failed
        self._failed: FrameTooLong | None = None

    @property
    def pending(self) -> bool:
        """Return whether a block has started but not ended. At the end of a stream it means a truncated frame."""
        return bool(self._pieces)

    def feed(self, chunk: bytes) -> Iterable[Frame]:
        """Return the frames that these bytes complete. A long one raises FrameTooLong after those before it."""
        if not self._steady or self._pieces:
            joined = self._join(chunk)
            if joined is None:
                return () if self.buffered_bytes <= self._max_frame else then_raise((), self._failure())
            chunk = joined
        elif chunk[:6] == b"data: " and chunk[-2:] == b"\n\n":
            data = chunk[6:-2]
            if _LF not in data and _CR not in data and len(chunk) <= self._max_frame:  # one data line, a blank line
                return (Frame("", data, chunk),)
        if _CR in chunk:
            frames, is_whole = self._decode_any_blocks(chunk)
            return frames if is_whole else then_raise(frames, self._failure())
        end = chunk.rfind(b"\n\n") + 2
        lines = chunk[6 : end - 2].split(b"\n\ndata: ") if chunk.startswith(b"data: ") else ()
        if chunk.count(b"\n", 0, end) == 2 * len(lines) > 0 and len(chunk) <= self._max_frame:
            # Every block is one line of data.
            if end < len(chunk) or self._pieces:
                self._set_pieces(chunk[end:])
            return [Frame("", line, b"data: " + line + b"\n\n") for line in lines]
        frames, is_whole = self._decode_lf_blocks(chunk)
        return frames if is_whole else then_raise(frames, self._failure())

    def close(self) -> Iterator[Frame]:
        """Return the last block even without its blank line, which some upstreams omit; `raw` gets the blank line.

        A line without a line end counts too, so the frame may be truncated. `pending`, read before, shows that; a
        dialect detects it by data that is not JSON, or by the missing last event.
        """
        if self._failed is not None:
            raise self._failed
        block = b"".join(self._pieces)
        self._set_pieces(b"")
        frame = self._block(block + (b"\n" if block.endswith((b"\n", b"\n\r")) else b"\n\n"))
        return iter(() if frame is None else (frame,))

    # --- blocks

    def _set_pieces(self, piece: bytes) -> None:
        self._pieces = [piece] if piece else []
        self.buffered_bytes = len(piece)
        self._tail = piece[-_LONGEST_UNDECIDED:]

    def _failure(self) -> FrameTooLong:
        self._set_pieces(b"")
        self._steady = False
        self._failed = FrameTooLong(f"a stream event is longer than {self._max_frame} bytes, which is the limit")
        return self._failed

    def _join(self, chunk: bytes) -> bytes | None:
        """Return all buffered bytes with this chunk if they complete a block; otherwise buffer it and return None."""
        if self._failed is not None:
            raise self._failed
        if not self._steady:
            chunk = b"".join(self._pieces) + chunk
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._set_pieces(chunk)
                return None
            self._steady = True
            self._set_pieces(b"")
            chunk = chunk.removeprefix(_BOM)
        if not self._pieces:
            return chunk
        probe = self._tail + chunk
        self._pieces.append(chunk)
        if _BLOCK_END.search(probe) if _CR in probe else b"\n\n" in probe:
            return b"".join(self._pieces)
        self.buffered_bytes += len(chunk)
        self._tail = probe[-_LONGEST_UNDECIDED:]
        return None

    def _decode_lf_blocks(self, data: bytes) -> tuple[list[Frame], bool]:
        """Decode the complete blocks of data without a CR, and buffer the rest. False: the next block is too long."""
        frames: list[Frame] = []
        *blocks, rest = data.split(b"\n\n")
        is_short = len(data) <= self._max_frame  # then no block is too long
        for block in blocks:
            if is_short and block.startswith(b"event: "):
                name, separator, line = block.partition(b"\ndata: ")
                if separator and _LF not in line and _LF not in name and len(name) <= _LONGEST_CACHED:
                    frames.append(Frame(_name(name[7:]), line, block + b"\n\n"))
                    continue
            raw = block.lstrip(b"\n") + b"\n\n"
            if len(raw) > self._max_frame:
                return frames, False
            if (frame := self._block(raw)) is not None:
                frames.append(frame)
        if rest or self._pieces:
            self._set_pieces(rest.lstrip(b"\n"))
        return frames, self.buffered_bytes <= self._max_frame

    def _decode_any_blocks(self, data: bytes) -> tuple[list[Frame], bool]:
        """Do the same for data with line ends of any kind."""
        frames: list[Frame] = []
        at = 0
        while (found := _BLOCK_END.search(data, at)) is not None:
            raw = data[at : found.end()].lstrip(b"\r\n")
            at = found.end()
            if len(raw) > self._max_frame:
                return frames, False
            if (frame := self._block(raw)) is not None:
                frames.append(frame)
        self._set_pieces(data[at:].lstrip(b"\r\n"))
        return frames, self.buffered_bytes <= self._max_frame

    def _block(self, raw: bytes) -> Frame | None:
        """Decode one complete block, line by line."""
        kind = failure = b""
        data: list[bytes] = []
        for line in _LINE_END.split(raw) if b"\r" in raw else raw.split(b"\n"):
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"event":
                kind = value
            elif name == b"error":
                failure = value
            elif name == b"id" and b"\0" not in value:
                self.last_event_id = str(value, "utf-8", "replace")
            elif name == b"retry" and value.isdigit() and len(value) <= _LONGEST_RETRY:
                self.retry = int(value)
        if failure and not data:
            return Frame("error", failure, raw)
        return Frame(str(kind, "utf-8", "replace"), b"\n".join(data), raw) if data else None


@lru_cache(256)
def _name(name: bytes) -> str:
    """Decode an event name. Streams repeat a few: cached."""
    return str(name, "utf-8", "replace")


def encode_payload(payload: Payload) -> bytes:
    """Encode one event, without an event line if its kind is empty. Line ends in the data become LF."""
    data = payload.data
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(_LINE_END.split(data))
    return _prefix(payload.kind) + data + b"\n\n"


def encode_sse(kind: bytes, data: bytes) -> bytes:
    """Encode one event of this kind with this data."""
    return encode_payload(Payload(kind, data))


@lru_cache(256)
def _prefix(kind: bytes) -> bytes:
    """Return the bytes before the data of an event. Streams repeat a few names: cached."""
    if b"\n" in kind or b"\r" in kind:
        raise LocalMisuse("an event name cannot contain a line end")
    return b"event: " + kind + b"\ndata: " if kind else b"data: "


def encode_comment(text: bytes) -> bytes:
    """Encode a comment, which clients ignore. It serves as keep-alive."""
    return b": %b\n\n" % b"\n: ".join(_LINE_END.split(text))
