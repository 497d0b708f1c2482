from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.errors import BadFrame, LocalMisuse
from dragoman.wire.frame import Frame
from dragoman.wire.sse import FrameTooLong, SseDecoder, comment, encode_sse
from tests.growth import a_read_costs_the_same_however_much_is_held, grows_linearly
from tests.unit.wire.cutting import (
    cut,
    reads,
    two_way_cuts,
    vectors,
)

VECTORS = vectors("sse.json")
FINISHED = [vector for vector in VECTORS if not vector["closed"] and vector["text"][-1:] in ("\n", "\r")]
every_vector = pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
# Streams made of what matters: line ends, field names, and a few that are nearly so.
lines = st.sampled_from(
    [
        b"data: a",
        b"data:",
        b"data",
        b"event: e",
        b"event: f",
        b"id: 1",
        b": c",
        b"x",
        b"\xef\xbb\xbf",
        b"\xff",
        b"retry: 9",
        b"",
    ]
)
ends = st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n", b"\r\r", b""])
streams = st.one_of(
    st.lists(st.tuples(lines, ends), max_size=12).map(lambda pairs: b"".join(map(b"".join, pairs))),
    st.lists(st.sampled_from(list(b"\r\n: dat")), max_size=40).map(bytes),
    st.binary(max_size=40),
)


def frames(values: list[list[str]]) -> list[Frame]:
    return [Frame(kind, data.encode(), raw.encode()) for kind, data, raw in values]


def decode(chunks: list[bytes], *, close: bool = True) -> list[Frame]:
    decoder = SseDecoder()
    found = [frame for chunk in chunks for frame in decoder.feed(chunk)]
    return found + list(decoder.close()) if close else found


def by_the_book(stream: bytes) -> list[tuple[str, bytes]]:
    """The specification, read aloud: no cuts, no speed."""
    stream = stream.removeprefix(b"\xef\xbb\xbf")
    found, kind, data = [], b"", b""
    for line in [*re.split(rb"\r\n|\r|\n", stream), b""]:
        if line == b"":
            if data:
                found.append((kind.decode("utf-8", "replace"), data[:-1]))
            kind = data = b""
        elif b":" in line:
            field, value = line.split(b":", 1)
            value = value[1:] if value[:1] == b" " else value
            kind, data = (
                (value, data) if field == b"event" else (kind, data + value + b"\n" if field == b"data" else data)
            )
        elif line == b"data":
            data += b"\n"
        elif line == b"event":
            kind = b""
    return found


@every_vector
def test_whole(vector: dict[str, Any]) -> None:
    decoder = SseDecoder()
    assert list(decoder.feed(vector["text"].encode())) == frames(vector["frames"])
    assert list(decoder.close()) == frames(vector["closed"])
    assert (decoder.last_event_id, decoder.retry) == (vector["last_event_id"], vector["retry"])


@every_vector
def test_byte_by_byte(vector: dict[str, Any]) -> None:
    stream = vector["text"].encode()
    assert decode(reads(stream, 1)) == frames(vector["frames"] + vector["closed"])


@every_vector
def test_cut_in_two_anywhere(vector: dict[str, Any]) -> None:
    stream = vector["text"].encode()
    for pieces in two_way_cuts(stream):
        assert decode(pieces) == frames(vector["frames"] + vector["closed"]), pieces


@pytest.mark.parametrize("vector", FINISHED, ids=lambda vector: str(vector["name"]))
def test_trailing_data_does_not_matter(vector: dict[str, Any]) -> None:
    trailing = b"event: later\ndata: later"
    expected = [*frames(vector["frames"]), Frame("later", b"later", trailing + b"\n\n")]
    assert decode([vector["text"].encode() + trailing]) == expected


@given(streams)
@example(b"data: a\r\r\ndata: b\r\n\r")
def test_agrees_with_the_specification(stream: bytes) -> None:
    assert [(frame.kind, frame.data) for frame in decode([stream])] == by_the_book(stream)


@given(streams.flatmap(lambda stream: st.tuples(st.just(stream), cut(stream))))
def test_cuts_do_not_matter(case: tuple[bytes, list[bytes]]) -> None:
    stream, pieces = case
    assert decode(pieces) == decode([stream])
    assert decode(reads(stream, 1)) == decode([stream])


@given(streams)
@example(b"data: a\n\r")
@example(b"data: a\n\r\r")
def test_raw_bytes_of_the_frames_decode_to_the_same_frames(stream: bytes) -> None:
    found = decode([stream])
    again = decode([b"\n", *(frame.raw for frame in found)])
    assert [(frame.kind, frame.data) for frame in again] == [(frame.kind, frame.data) for frame in found]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_frame_comes_with_its_last_byte(end: bytes) -> None:
    decoder = SseDecoder()
    block = b"data: x" + end + end
    for byte in reads(block[:-1], 1):
        assert list(decoder.feed(byte)) == []
        assert decoder.pending
    assert [frame.raw for frame in decoder.feed(block[-1:])] == [block]
    assert not decoder.pending


def test_data_is_not_decoded() -> None:
    assert decode([b"data: \xff\xfe\n\n"]) == [Frame("", b"\xff\xfe", b"data: \xff\xfe\n\n")]
    assert decode([b"event: \xff\ndata: x\n\n"])[0].kind == "\ufffd"


def test_half_a_byte_order_mark_is_pending_and_then_nothing() -> None:
    decoder = SseDecoder()
    assert list(decoder.feed(b"\xef\xbb")) == []
    assert decoder.pending
    assert list(decoder.close()) == []


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_frame_of_the_limit_passes_and_one_byte_more_fails(size: int) -> None:
    good = b"event: ok\ndata: x\n\n"
    longest = encode_sse(b"", b"a" * (64 - 8))
    assert len(longest) == 64
    decoder = SseDecoder(max_frame=64)
    assert len([frame for chunk in reads(good + longest + longest, size) for frame in decoder.feed(chunk)]) == 3

    decoder, found = SseDecoder(max_frame=64), []
    with pytest.raises(FrameTooLong, match="longer than 64 bytes") as caught:
        for chunk in reads(good + encode_sse(b"", b"a" * 57) + good, size):
            for frame in decoder.feed(chunk):
                found.append(frame.kind)  # one by one: they must be out before the error
    assert found == ["ok"]
    assert isinstance(caught.value, BadFrame)
    with pytest.raises(FrameTooLong):
        list(decoder.feed(good))
    with pytest.raises(FrameTooLong):
        list(decoder.close())


def test_blank_lines_are_not_kept() -> None:
    decoder = SseDecoder(max_frame=10)
    assert [frame for chunk in [b"\n", b"\r\n", b"\r"] * 50 for frame in decoder.feed(chunk)] == []
    assert not decoder.pending


@pytest.mark.parametrize(
    "block",
    [
        lambda n: b"a" * n,
        lambda n: b"aaaaaaa\n" * (n // 8),
        lambda n: b"a\r" * (n // 2),
        lambda n: b"aaaaaaa\r\n" * (n // 8),
    ],
    ids=["one line", "short lines", "carriage returns", "short CRLF lines"],
)
def test_one_long_frame_in_small_reads_is_linear(block: Any) -> None:
    def work(size: int) -> Any:
        chunks = reads(b"data: " + block(size), 1024)
        return lambda: decode(chunks)

    grows_linearly(work, 1 << 15)


@pytest.mark.parametrize("head", [b"data: ", b"event: e\r\ndata: "])
@pytest.mark.parametrize("size", [1024, 16])
def test_a_read_costs_the_same_however_much_is_held(head: bytes, size: int) -> None:
    decoder = SseDecoder()
    decoder.feed(head)
    a_read_costs_the_same_however_much_is_held(decoder.feed, size)


@pytest.mark.parametrize("size", [1, 1 << 30])
def test_many_frames_are_linear(size: int) -> None:
    def work(count: int) -> Any:
        chunks = reads(encode_sse(b"e", b"{}") * count, size)
        return lambda: decode(chunks)

    grows_linearly(work, 500)


@pytest.mark.parametrize(
    ("kind", "data", "encoded"),
    [
        (b"", b"x", b"data: x\n\n"),
        (b"e", b"x", b"event: e\ndata: x\n\n"),
        (b"", b"", b"data: \n\n"),
        (b"e", b"a\nb\r\nc\rd", b"event: e\ndata: a\ndata: b\ndata: c\ndata: d\n\n"),
        (b"", b" x", b"data:  x\n\n"),
        (b"", b"\n", b"data: \ndata: \n\n"),
    ],
)
def test_encode(kind: bytes, data: bytes, encoded: bytes) -> None:
    assert encode_sse(kind, data) == encoded


@given(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=8), st.binary(max_size=20))
def test_what_is_encoded_decodes(kind: str, data: bytes) -> None:
    encoded = encode_sse(kind.encode(), data)
    assert decode([encoded], close=False) == [Frame(kind, re.sub(rb"\r\n?", b"\n", data), encoded)]


@pytest.mark.parametrize("kind", [b"a\n", b"\r", b"a\r\ndata: forged"])
def test_an_event_name_with_a_line_end_is_refused(kind: bytes) -> None:
    with pytest.raises(LocalMisuse, match="line end"):
        encode_sse(kind, b"x")


@given(st.binary(max_size=20))
def test_comments_are_no_frames(text: bytes) -> None:
    assert decode([comment(text), encode_sse(b"", b"x")]) == [Frame("", b"x", b"data: x\n\n")]
