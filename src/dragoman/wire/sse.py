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
from collections.abc import Iterable, Iterator
from functools import lru_cache

from dragoman.errors import BadFrame, LocalMisuse
from dragoman.wire.frame import Frame, Payload, then_raise

MAX_FRAME = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BLOCK_END = re.compile(rb"\r\r|(?:\r\n|\n)(?:\n|\r\n|\r(?!\n|\Z))")
_CR, _LF = 0x0D, 0x0A  # a number is found several times as fast as bytes
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

    __slots__ = ("_failed", "_held", "_max_frame", "_steady", "_tail", "held", "last_event_id", "retry")

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.last_event_id = ""
        self.retry: int | None = None
        self._max_frame = max_frame
        self._held: list[bytes] = []  # pieces of one unfinished block
        self.held = 0  # see FrameDecoder
        self._tail = b""  # the last bytes of the pieces
        self._steady = False  # a byte order mark may still come, or the decoder has failed
        self._failed: FrameTooLong | None = None

    @property
    def pending(self) -> bool:
        """Whether a block has begun and not ended: at the end of the stream, it broke in mid-frame."""
        return bool(self._held)

    def feed(self, chunk: bytes) -> Iterable[Frame]:
        """Take more bytes and give the frames they complete. Raises FrameTooLong, after the frames before it."""
        if not self._steady or self._held:
            whole = self._joined(chunk)
            if whole is None:
                return () if self.held <= self._max_frame else then_raise((), self._failure())
            chunk = whole
        elif chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") and len(chunk) <= self._max_frame:
            data = chunk[6:-2]
            if _LF not in data and _CR not in data:  # one line and a blank one
                return (Frame("", data, chunk),)
        if _CR in chunk:
            frames, is_whole = self._mixed(chunk)
            return frames if is_whole else then_raise(frames, self._failure())
        end = chunk.rfind(b"\n\n") + 2
        lines = chunk[6 : end - 2].split(b"\n\ndata: ") if chunk.startswith(b"data: ") else ()
        if chunk.count(b"\n", 0, end) == 2 * len(lines) > 0 and len(chunk) <= self._max_frame:
            # Every block is one line of data.
            if end < len(chunk) or self._held:
                self._hold(chunk[end:])
            return [Frame("", line, b"data: " + line + b"\n\n") for line in lines]
        frames, is_whole = self._usual(chunk)
        return frames if is_whole else then_raise(frames, self._failure())

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
        self._steady = False
        self._failed = FrameTooLong(f"a frame is longer than {self._max_frame} bytes")
        return self._failed

    def _joined(self, chunk: bytes) -> bytes | None:
        """Return the bytes of the blocks that may be complete now; None if there is none yet."""
        if self._failed is not None:
            raise self._failed
        if not self._steady:
            chunk = b"".join(self._held) + chunk
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._hold(chunk)
                return None
            self._steady = True
            self._hold(b"")
            chunk = chunk.removeprefix(_BOM)
        if not self._held:
            return chunk
        probe = self._tail + chunk
        self._held.append(chunk)
        if _BLOCK_END.search(probe) if _CR in probe else b"\n\n" in probe:
            return b"".join(self._held)
        self.held += len(chunk)
        self._tail = probe[-_LONGEST_UNDECIDED:]
        return None

    def _usual(self, data: bytes) -> tuple[list[Frame], bool]:
        """Decode the whole blocks of bytes without a CR, and hold the rest. False: the next one is too long."""
        frames: list[Frame] = []
        *blocks, rest = data.split(b"\n\n")
        is_short = len(data) <= self._max_frame  # no block of it is too long
        for block in blocks:
            if is_short and block.startswith(b"event: "):
                name, found, line = block.partition(b"\ndata: ")
                if found and _LF not in line and _LF not in name and len(name) <= _LONGEST_CACHED:
                    frames.append(Frame(_name(name[7:]), line, block + b"\n\n"))
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


def encode_payload(payload: Payload) -> bytes:
    """Write one event, without an event line if its kind is empty. Decoding gives its data back, line ends as LF."""
    data = payload.data
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(_LINE_END.split(data))
    return _prefix(payload.kind) + data + b"\n\n"


def encode_sse(kind: bytes, data: bytes) -> bytes:
    """Write one event of this kind and data."""
    return encode_payload(Payload(kind, data))


@lru_cache(256)
def _prefix(kind: bytes) -> bytes:
    """What stands before the data of an event; streams repeat a few names."""
    if b"\n" in kind or b"\r" in kind:
        raise LocalMisuse("an event name cannot hold a line end")
    return b"event: " + kind + b"\ndata: " if kind else b"data: "


def encode_comment(text: bytes) -> bytes:
    """Write a comment, which every client ignores: the usual keep-alive."""
    return b": %b\n\n" % b"\n: ".join(_LINE_END.split(text))
