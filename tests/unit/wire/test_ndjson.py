"""Newline-delimited JSON, cut anywhere."""

from __future__ import annotations

import pytest

from dragoman.wire.frame import Frame
from dragoman.wire.ndjson import NdjsonDecoder, encode_line
from dragoman.wire.sse import FrameTooLong

STREAM = b'{"a":1}\n\r\n  {"b":"\xc3\xa9"} \r\n\n{"c":3}'
FRAMES = [
    Frame("", b'{"a":1}', b'{"a":1}\n'),
    Frame("", b'{"b":"\xc3\xa9"}', b'  {"b":"\xc3\xa9"} \r\n'),
    Frame("", b'{"c":3}', b'{"c":3}\n'),
]


@pytest.mark.parametrize("size", range(1, len(STREAM) + 1))
def test_frames_do_not_depend_on_cuts(size: int) -> None:
    decoder = NdjsonDecoder()
    frames = [frame for at in range(0, len(STREAM), size) for frame in decoder.feed(STREAM[at : at + size])]
    assert [*frames, *decoder.close()] == FRAMES
    assert decoder.buffered_bytes == 0 and not list(decoder.close())


def test_what_is_buffered_is_counted_and_limited() -> None:
    decoder = NdjsonDecoder(8)
    assert not list(decoder.feed(b'{"a"')) and decoder.buffered_bytes == 4
    frames = decoder.feed(b":1}\n{}\n" + b"x" * 9)
    assert [next(frames).data, next(frames).data] == [b'{"a":1}', b"{}"]
    with pytest.raises(FrameTooLong):
        next(frames)
    with pytest.raises(FrameTooLong):
        decoder.feed(b"\n")
    with pytest.raises(FrameTooLong):
        decoder.close()


def test_a_line_is_what_was_written() -> None:
    assert [frame.data for frame in NdjsonDecoder().feed(encode_line(b"{}") + encode_line(b"[1]"))] == [b"{}", b"[1]"]
