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
from typing import NamedTuple

from dragoman.errors import BadFrame, LocalMisuse
from dragoman.wire.frame import Frame, Hole, Row
from dragoman.wire.jsonio import TROUBLE, read_string, string, strings

MAX_FRAME = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BLOCK_END = re.compile(rb"\r\r|(?:\r\n|\n)(?:\n|\r\n|\r(?!\n|\Z))")
_CR, _QUOTE, _BACKSLASH = 0x0D, 0x22, 0x5C  # numbers are found several times as fast as bytes
_LONGEST_UNDECIDED = 2  # LF CR
_LONGEST_RETRY = 15  # digits; a longer one is no time in milliseconds
_LONGEST_CACHED_NAME = 64
_LONGEST_SOLE = 4096  # bytes: more than that in one read is hardly one frame, and it is not copied to find out


class FrameTooLong(BadFrame):
    """A block that is longer than the decoder's limit, or would be."""


class Mould(NamedTuple):  # for every event it is taken apart
    """A block without the inside of one JSON string: what stands before and behind it, how long both are together, and
    where in a block the string is, with its quotes.
    """

    begin: bytes
    end: bytes
    rim: int
    start: int
    stop: int


class SseDecoder:
    """Feed bytes cut anywhere; get the same frames as if they came whole.

    `Frame.kind` is the event name, "" where there is none (HTML would say "message"; "" re-encodes exactly).
    `Frame.data` is the data lines joined with LF, in the bytes that came, valid UTF-8 or not. `Frame.raw` is the
    block's own bytes with its blank line, without a BOM or blank lines before it. Blocks without a data line (comments,
    lone ids) give no frame, except one with the field `error`, in which old llama.cpp servers tell that they failed.

    `last_event_id` and `retry` are as of the last block decoded. After FrameTooLong the decoder stays failed.
    """

    __slots__ = (
        "_at",
        "_buffer",
        "_failed",
        "_fresh",
        "_held",
        "_max_frame",
        "_max_sole",
        "_mixed",
        "_parted",
        "_size",
        "_tail",
        "_tired",
        "last_event_id",
        "retry",
    )

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.last_event_id = ""
        self.retry: int | None = None
        self._max_frame = max_frame
        self._max_sole = min(max_frame, _LONGEST_SOLE)
        self._buffer = b""  # what may hold whole blocks; those before `_at` are decoded
        self._at = 0
        self._mixed = False  # it has a CR
        self._tired = False  # a row was refused: not again in this buffer, or trying would cost its square
        self._parted = False  # frames in it that were to be skipped did not stand all together: the same
        self._held: list[bytes] = []  # pieces of one unfinished block
        self._size = 0
        self._tail = b""  # the last bytes of the pieces
        self._fresh = True  # a byte order mark may still come
        self._failed: FrameTooLong | None = None

    @property
    def pending(self) -> bool:
        """Whether a block has begun and not ended: at the end of the stream, it broke in mid-frame."""
        return bool(self._held or self._buffer)

    @property
    def held(self) -> int:
        """See FrameDecoder."""
        return self._size

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
                self._size += len(chunk)
                self._tail = probe[-_LONGEST_UNDECIDED:]
                return iter(()) if self._size <= self._max_frame else _then_raise(self._failure())
            chunk = b"".join(self._held)
            self._hold(b"")
        if self._buffer:  # what nobody took comes first
            chunk = self._buffer[self._at :] + chunk
        self._buffer, self._at, self._mixed = chunk, 0, _CR in chunk
        self._tired = self._parted = False
        if chunk.endswith(b"\n\n") or (_BLOCK_END.search(chunk) if self._mixed else b"\n\n" in chunk):
            return self._frames()
        return iter(()) if self._keep() else _then_raise(self._failure())

    def close(self) -> Iterator[Frame]:
        """Give the last block as if its blank line had come, which some upstreams omit; `raw` gets the blank line.

        A line without its line end counts too. A half frame can therefore come out; `pending`, read before, tells, and
        a dialect notices by data that is no JSON or by its own last event missing.
        """
        if self._failed is not None:
            raise self._failed
        frames = list(self._frames())
        block = b"".join(self._held)
        self._hold(b"")
        frame = self._block(block + (b"\n" if block.endswith((b"\n", b"\n\r")) else b"\n\n"))
        return iter(frames if frame is None else [*frames, frame])

    # --- rows

    def mould(self, frame: Frame, start: int, stop: int) -> Mould | None:
        """See FrameDecoder. A block may have other fields: what they say once, they say again."""
        data = frame.data
        blank = b"\r\n\r\n" if frame.raw.endswith(b"\r\n\r\n") else b"\n\n"
        if b"\n" in data or not frame.raw.endswith(data + blank):
            return None
        before, after = frame.raw[: start - len(data) - len(blank)], data[stop:] + blank
        return Mould(before, after, len(before) + len(after), len(before) - 1, 1 - len(after))

    def sole(self, mould: Mould, chunk: bytes) -> tuple[str, bytes] | None:
        """See FrameDecoder. A string in JSON has no line end, so there can be no other block in it."""
        begin, end, _, start, stop = mould
        if self._held or self._buffer or len(chunk) > self._max_sole:
            return None
        if not chunk.startswith(begin) or not chunk.endswith(end):
            return None
        literal = chunk[start:stop]
        try:
            text = read_string(literal)
        except TROUBLE:
            return None
        return (text, literal[1:-1]) if text else None

    def fits(self, mould: Mould, chunk: bytes) -> bool:
        """See FrameDecoder."""
        begin, end, _, start, stop = mould
        if self._held or self._buffer or len(chunk) > self._max_sole:
            return False
        if not chunk.startswith(begin) or not chunk.endswith(end):
            return False
        try:
            return read_string(chunk[start:stop]) != ""
        except TROUBLE:
            return False

    def row(self, mould: Mould, chunk: bytes = b"") -> Row | None:
        """See FrameDecoder. No block can end inside a string, either."""
        begin = mould.begin
        buffer, at = (chunk, 0) if chunk else (self._buffer, self._at)
        if not buffer.startswith(begin, at) or (self._held or self._buffer if chunk else self._tired):
            return None
        if len(buffer) > self._max_frame:  # one of its blocks may be too long
            return None
        insides, stop = _insides(buffer, at + len(begin), mould)
        texts = strings(insides) if insides else None
        if texts is None:
            self._tired = bool(insides)
            return None
        if not chunk:
            self._at = stop
        return Row(texts, insides, buffer[at:stop], mould.rim)

    def skip(self, mould: Mould) -> tuple[int, bytes] | None:
        """See FrameDecoder. Only the last string is read; that the others are such shows by their quotes."""
        buffer, at = self._buffer, self._at
        if self._tired or not buffer.startswith(mould.begin, at) or len(buffer) > self._max_frame:
            return None
        together = None if self._parted else _all_skipped(buffer, at, mould)
        self._parted = together is None
        count, last, stop = together or _skipped(buffer, at, mould)
        if not count:
            return None
        taken = buffer[at:stop]
        if len(taken) - len(taken.replace(b"\n", b"")) != count * (mould.begin + mould.end).count(b"\n"):
            self._tired = True  # a block ended within what looked like a string
            return None
        self._at = stop
        return count, buffer[last:stop]

    # --- blocks

    def _hold(self, piece: bytes) -> None:
        self._held = [piece] if piece else []
        self._size = len(piece)
        self._tail = piece[-_LONGEST_UNDECIDED:]

    def _keep(self) -> bool:
        """Hold what is left of the buffer, which is no whole block; False if it is too long for one."""
        if self._at < len(self._buffer):
            self._hold(self._buffer[self._at :].lstrip(b"\r\n" if self._mixed else b"\n"))
        self._buffer, self._at, self._mixed = b"", 0, False
        return self._size <= self._max_frame

    def _failure(self) -> FrameTooLong:
        self._hold(b"")
        self._buffer = b""
        self._failed = FrameTooLong(f"a frame is longer than {self._max_frame} bytes")
        return self._failed

    def _frames(self) -> Iterator[Frame]:
        """Decode block after block, as they are asked for: in between a row may be taken."""
        while self._at < len(self._buffer):
            frame = self._usual()
            if frame is None:
                buffer, at = self._buffer, self._at
                if self._mixed:
                    found = _BLOCK_END.search(buffer, at)
                    end = found.end() if found else 0
                else:
                    end = buffer.find(b"\n\n", at) + 2
                if end < 2:  # there is no other
                    break
                self._at, raw = end, buffer[at:end].lstrip(b"\r\n" if self._mixed else b"\n")
                if len(raw) > self._max_frame:
                    raise self._failure()
                frame = self._block(raw)
            if frame is not None:
                yield frame
        if not self._keep():
            raise self._failure()

    def _usual(self) -> Frame | None:
        """Decode the next block if it is as most are: `data: …`, perhaps after `event: …`. None: it is not."""
        buffer, at = self._buffer, self._at
        line, kind = at, ""
        if buffer.startswith(b"event: ", at):
            line = buffer.find(b"\n", at) + 1
            name = _name(buffer[at + 7 : line - 1]) if at < line <= at + _LONGEST_CACHED_NAME else None
            if name is None:
                return None
            kind = name
        if not buffer.startswith(b"data: ", line):
            return None
        stop = buffer.find(b"\n", line)
        if not self._mixed:
            end = stop + 2
            if not buffer.startswith(b"\n\n", stop):
                return None
        else:
            stop, end = stop - 1, stop + 3
            if not buffer.startswith(b"\r\n\r\n", stop) or buffer.find(b"\r", line, stop) >= 0:
                return None
        if end - at > self._max_frame:
            return None
        self._at = end
        return Frame(kind, buffer[line + 6 : stop], buffer[at:end])

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
def _name(line: bytes) -> str | None:
    """Decode an event name that a LF ended; None if a lone CR hides in it."""
    line = line.removesuffix(b"\r")
    return None if b"\r" in line else str(line, "utf-8", "replace")


def _insides(buffer: bytes, start: int, mould: Mould) -> tuple[list[bytes], int]:
    """Give what stands in the moulds that follow one another, the first from `start` on, and where the last one ends.

    A quote behind a backslash is passed over, unless all that a mould has follows it: `strings` will not have that.
    """
    between, found = mould.end + mould.begin, []
    width, find = len(between), buffer.find
    end = find(_QUOTE, start)
    while end > 0:
        if buffer[end : end + width] == between:
            found.append(buffer[start:end])
            start = end + width
            end = find(_QUOTE, start)
        elif buffer[end - 1] == _BACKSLASH:
            end = find(_QUOTE, end + 1)
        else:
            break
    if end > 0 and buffer.startswith(mould.end, end):
        found.append(buffer[start:end])
        return found, end + len(mould.end)
    return found, start - len(mould.begin)


def _all_skipped(buffer: bytes, at: int, mould: Mould) -> tuple[int, int, int] | None:
    """As `_skipped`, if all blocks of this mould stand together and nothing in their strings is escaped, so that they
    need only be counted: where there are no more quotes than the moulds have, there is none in a string.
    """
    begin, end = mould.begin, mould.end
    stop = buffer.rfind(end) + len(end)
    taken = buffer[at:stop]
    if len(taken) < mould.rim or _BACKSLASH in taken:
        return None
    edge = len(taken) - len(end)
    count = taken.count(end + begin, len(begin), edge) + 1
    if taken.count(b'"') != count * (begin + end).count(b'"'):
        return None
    start = taken.rfind(begin, 0, edge) + len(begin)
    return (count, at + start - len(begin), stop) if string(taken[start - 1 : edge + 1]) else None


def _skipped(buffer: bytes, at: int, mould: Mould) -> tuple[int, int, int]:
    """How many moulds follow one another from `at` on, where the last of them begins and where it ends."""
    between, find = mould.end + mould.begin, buffer.find
    width, size, count, last = len(between), len(mould.begin), 0, at
    start = at + size
    end = find(_QUOTE, start)
    while end > 0:
        if buffer[end - 1] == _BACKSLASH:
            end = find(_QUOTE, end + 1)
        elif buffer[end : end + width] == between:
            count, last, start = count + 1, start, end + width
            end = find(_QUOTE, start)
        else:
            break
    if end > 0 and buffer.startswith(mould.end, end) and string(buffer[start - 1 : end + 1]):
        return count + 1, start - size, end + len(mould.end)
    return count, last - size, start - size


def _then_raise(error: BadFrame) -> Iterator[Frame]:
    yield from ()
    raise error


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


def around_sse(hole: Hole) -> tuple[bytes, bytes]:
    """What `encode_sse` writes before and after what fills the hole."""
    return _prefix(hole.kind) + hole.before, hole.after + b"\n\n"


def comment(text: bytes) -> bytes:
    """Write a comment, which every client ignores: the usual keep-alive."""
    return b": %b\n\n" % b"\n: ".join(_LINE_END.split(text))
