"""Newline-delimited JSON: a decoder for bytes cut anywhere, and the encoder. A frame is a non-blank line.

Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.wire.frame import Frame, then_raise
from dragoman.wire.sse import MAX_FRAME, FrameTooLong

NDJSON = "application/x-ndjson"


class NdjsonDecoder:
    """Decodes bytes cut anywhere; the frames do not depend on the cuts.

    `Frame.kind` is empty, `Frame.data` is the line without surrounding white space, `Frame.raw` the line with its end.
    After FrameTooLong the decoder stays failed.
    """

    __slots__ = ("_failed", "_max_frame", "_pieces", "buffered_bytes")

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._pieces: list[bytes] = []  # of one unfinished line
        self.buffered_bytes = 0  # see FrameDecoder
        self._failed: FrameTooLong | None = None

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Return the frames that these bytes complete. A long one raises FrameTooLong after those before it."""
        if self._failed is not None:
            raise self._failed
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = self._take() + lines[0]
        if rest:
            self._pieces.append(rest)
            self.buffered_bytes += len(rest)
        frames: list[Frame] = []
        for line in lines:
            if len(line) > self._max_frame:
                return then_raise(frames, self._failure())
            if data := line.strip():
                frames.append(Frame("", data, line + b"\n"))
        return iter(frames) if self.buffered_bytes <= self._max_frame else then_raise(frames, self._failure())

    def close(self) -> Iterator[Frame]:
        """Return the last line as a frame even without a line end, which some servers omit; `raw` gets one."""
        if self._failed is not None:
            raise self._failed
        line = self._take()
        return iter((Frame("", line.strip(), line + b"\n"),) if line.strip() else ())

    def _take(self) -> bytes:
        line = b"".join(self._pieces)
        self._pieces, self.buffered_bytes = [], 0
        return line

    def _failure(self) -> FrameTooLong:
        self._take()
        self._failed = FrameTooLong(f"a line of the stream is longer than {self._max_frame} bytes, which is the limit")
        return self._failed


def encode_line(data: bytes) -> bytes:
    """Encode one frame. `data` is JSON without line ends, as `jsonio.encode` returns it."""
    return data + b"\n"
