"""Frames of a stream: server-sent events, bare JSON among them, or one JSON array.

The service tells an error in mid-stream as bare JSON, in a line of its own; no line of an event begins with `{`. A
stream that nobody asked for as events is one array of the same objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dragoman.wire.frame import Frame
from dragoman.wire.jsonscan import ObjectScanner
from dragoman.wire.sse import MAX_FRAME, FrameTooLong, SseDecoder

_BARE = re.compile(rb"[\r\n]\{")
_SPACE = b" \t\r\n"


class GeminiFrames:
    """Feed bytes cut anywhere; get the same frames as if they came whole."""

    def __init__(self) -> None:
        self._events = SseDecoder()
        self._begun = False
        self._array = False
        self._line_begins = True
        self._held: list[bytes] = []  # of one object of bare JSON
        self._size = 0
        self._scanner: ObjectScanner | None = None

    @property
    def held(self) -> int:
        """See FrameDecoder."""
        return self._size + self._events.held

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        if not self._begun:
            chunk = chunk.lstrip(_SPACE)
            if not chunk:
                return
            self._begun = True
            self._array = chunk.startswith(b"[")
        while chunk:
            if self._scanner is not None:
                chunk, frame = self._bare(chunk, self._scanner)
                if frame is not None:
                    yield frame
            elif self._array:
                chunk = chunk.lstrip(b"[,]" + _SPACE)
                self._scanner = ObjectScanner() if chunk else None
            elif self._line_begins and chunk.startswith(b"{"):
                self._scanner = ObjectScanner()
            else:
                found = _BARE.search(chunk)
                end = found.start() + 1 if found else len(chunk)
                lines, chunk = chunk[:end], chunk[end:]
                self._line_begins = lines.endswith((b"\n", b"\r"))
                yield from self._events.feed(lines)

    def close(self) -> Iterator[Frame]:
        if self._held:
            broken = b"".join(self._held)
            self._held = []
            yield Frame("", broken, broken)
        yield from self._events.close()

    def _bare(self, chunk: bytes, scanner: ObjectScanner) -> tuple[bytes, Frame | None]:
        """Take more of an object; give what follows it, and itself if it is whole."""
        rest = scanner.feed(chunk.decode("latin-1"))
        if not scanner.complete:
            self._held.append(chunk)
            self._size += len(chunk)
            if self._size > MAX_FRAME:
                raise FrameTooLong(f"a frame is longer than {MAX_FRAME} bytes")
            return b"", None
        end = len(chunk) - len(rest)
        whole = b"".join([*self._held, chunk[:end]])
        self._held, self._size, self._scanner, self._line_begins = [], 0, None, False
        return chunk[end:], Frame("", whole, whole)
