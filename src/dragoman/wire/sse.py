"""Server-sent events, by the HTML specification: a decoder for bytes cut anywhere, and the encoder.

Theory of operation. The decoder knows blocks, not lines: pieces are only kept until one of them, read together with
the last bytes before it, completes a block. Then all is joined once and the complete blocks are decoded. So every byte
is joined and looked at a fixed number of times, however long a line or a block is and however it was cut.

A block ends where a line end is followed by another. A CR at the end of the input may be half of a CRLF, so there the
decoder waits for one more byte; except after a line that was itself ended by a lone CR: `CR CR` ends the block at once,
and an LF that may follow is a blank line between blocks, which never means anything. So the frames, `raw` included, do
not depend on where the input was cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from dragoman.errors import BadFrame, LocalMisuse
from dragoman.wire.frame import Frame, then_raise

MAX_FRAME = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BLOCK_END = re.compile(rb"\r\r|(?:\r\n|\n)(?:\n|\r\n|\r(?!\n|\Z))")
_CR = 0x0D  # a number is found several times as fast as bytes
_LONGEST_UNDECIDED = 2  # LF CR
_LONGEST_CACHED = 64  # bytes of an event line
_LONGEST_RETRY = 15  # digits; a longer one is no time in milliseconds


class FrameTooLong(BadFrame):
    """A block that is longer than the decoder's limit, or would be."""


class SseDecoder:
    """Feed bytes cut anywhere; get the same frames as if they came whole.

    `Frame.kind` is the event name, "" where there is none (HTML would say "message"; "" re-encodes exactly).
    `Frame.data` is the data lines joined with LF, in the bytes that came, valid UTF-8 or not. `Frame.raw` is the
    block's own bytes with its blank line, without a BOM or blank lines before it. Blocks without a data line (comments,
    lone ids) give no frame, except one with the field `error`, in which old llama.cpp servers tell that they failed.

    `last_event_id` and `retry` are as of the last block decoded. After FrameTooLong the decoder stays failed.
    """

    __slots__ = ("_failed", "_fresh", "_held", "_max_frame", "_tail", "held", "last_event_id", "retry")

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.last_event_id = ""
        self.retry: int | None = None
        self._max_frame = max_frame
        self._held: list[bytes] = []  # pieces of one unfinished block
        self.held = 0  # see FrameDecoder
        self._tail = b""  # the last bytes of the pieces
        self._fresh = True  # a byte order mark may still come
        self._failed: FrameTooLong | None = None

    @property
    def pending(self) -> bool:
        """Whether a block has begun and not ended: at the end of the stream, it broke in mid-frame."""
        return bool(self._held)

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Take more bytes and give the frames they complete. Raises FrameTooLong, after the frames before it."""
        if self._failed is not None:
            raise self._failed
        if self._fresh:
            chunk = b"".join(self._held) + chunk
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._hold(chunk)
                return iter(())
            self._fresh = False
            self._hold(b"")
            chunk = chunk.removeprefix(_BOM)
        if self._held:
            probe = self._tail + chunk
            self._held.append(chunk)
            if not (_BLOCK_END.search(probe) if _CR in probe else b"\n\n" in probe):
                self.held += len(chunk)
                self._tail = probe[-_LONGEST_UNDECIDED:]
                return iter(()) if self.held <= self._max_frame else then_raise((), self._failure())
            chunk = b"".join(self._held)
        frames, is_whole = self._mixed(chunk) if _CR in chunk else self._usual(chunk)
        return iter(frames) if is_whole else then_raise(frames, self._failure())

    def close(self) -> Iterator[Frame]:
        """Give the last block as if its blank line had come, which some upstreams omit; `raw` gets the blank line.

        A line without its line end counts too. A half frame can therefore come out; `pending`, read before, tells, and
        a dialect notices by data that is no JSON or by its own last event missing.
        """
        if self._failed is not None:
            raise self._failed
        block = b"".join(self._held)
        self._hold(b"")
        frame = self._block(block + (b"\n" if block.endswith((b"\n", b"\n\r")) else b"\n\n"))
        return iter(() if frame is None else (frame,))

    # --- blocks

    def _hold(self, piece: bytes) -> None:
        self._held = [piece] if piece else []
        self.held = len(piece)
        self._tail = piece[-_LONGEST_UNDECIDED:]

    def _failure(self) -> FrameTooLong:
        self._hold(b"")
        self._failed = FrameTooLong(f"a frame is longer than {self._max_frame} bytes")
        return self._failed

    def _usual(self, data: bytes) -> tuple[list[Frame], bool]:
        """Decode the whole blocks of bytes without a CR, and hold the rest. False: the next one is too long."""
        frames: list[Frame] = []
        *blocks, rest = data.split(b"\n\n")
        is_short = len(data) <= self._max_frame  # no block of it is too long
        for block in blocks:
            if is_short and block.startswith(b"data: ") and b"\n" not in block:
                frames.append(Frame("", block[6:], block + b"\n\n"))
                continue
            if is_short and block.startswith(b"event: "):
                name, _, line = block.partition(b"\n")
                if line.startswith(b"data: ") and b"\n" not in line and len(name) <= _LONGEST_CACHED:
                    frames.append(Frame(_name(name[7:]), line[6:], block + b"\n\n"))
                    continue
            raw = block.lstrip(b"\n") + b"\n\n"
            if len(raw) > self._max_frame:
                return frames, False
            if (frame := self._block(raw)) is not None:
                frames.append(frame)
        if rest or self._held:
            self._hold(rest.lstrip(b"\n"))
        return frames, self.held <= self._max_frame

    def _mixed(self, data: bytes) -> tuple[list[Frame], bool]:
        """The same for bytes in which lines end in any way."""
        frames: list[Frame] = []
        at = 0
        while (found := _BLOCK_END.search(data, at)) is not None:
            raw = data[at : found.end()].lstrip(b"\r\n")
            at = found.end()
            if len(raw) > self._max_frame:
                return frames, False
            if (frame := self._block(raw)) is not None:
                frames.append(frame)
        self._hold(data[at:].lstrip(b"\r\n"))
        return frames, self.held <= self._max_frame

    def _block(self, raw: bytes) -> Frame | None:
        """Decode one whole block, line by line."""
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
    """Decode an event name; streams repeat a few."""
    return str(name, "utf-8", "replace")


def encode_sse(kind: bytes, data: bytes) -> bytes:
    """Write one event, without an event line if `kind` is empty. Decoding gives `data` back, every line end as LF."""
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(_LINE_END.split(data))
    return _prefix(kind) + data + b"\n\n"


@lru_cache(256)
def _prefix(kind: bytes) -> bytes:
    """What stands before the data of an event; streams repeat a few names."""
    if b"\n" in kind or b"\r" in kind:
        raise LocalMisuse("an event name cannot hold a line end")
    return b"event: " + kind + b"\ndata: " if kind else b"data: "


def comment(text: bytes) -> bytes:
    """Write a comment, which every client ignores: the usual keep-alive."""
    return b": %b\n\n" % b"\n: ".join(_LINE_END.split(text))
