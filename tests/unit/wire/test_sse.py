"""The decoder and encoder of server-sent events, against vectors and the specification."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.errors import BadFrame, LocalMisuse, MalformedRequest, MissingField, UpstreamViolation
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame
from dragoman.wire.http import HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json
from dragoman.wire.sse import FrameTooLong, SseDecoder, encode_comment, encode_sse
from tests.growth import check_constant_read_cost, check_linear_growth
from tests.unit.wire.cuts import fixed_size_reads, random_cuts, two_way_cuts, vectors

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
    assert decode(fixed_size_reads(stream, 1)) == frames(vector["frames"] + vector["closed"])


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


@given(streams.flatmap(lambda stream: st.tuples(st.just(stream), random_cuts(stream))))
def test_cuts_do_not_matter(case: tuple[bytes, list[bytes]]) -> None:
    stream, pieces = case
    assert decode(pieces) == decode([stream])
    assert decode(fixed_size_reads(stream, 1)) == decode([stream])


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
    for byte in fixed_size_reads(block[:-1], 1):
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
    assert (
        len([frame for chunk in fixed_size_reads(good + longest + longest, size) for frame in decoder.feed(chunk)]) == 3
    )

    decoder, found = SseDecoder(max_frame=64), []
    with pytest.raises(FrameTooLong, match="longer than 64 bytes") as caught:
        for chunk in fixed_size_reads(good + encode_sse(b"", b"a" * 57) + good, size):
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
        chunks = fixed_size_reads(b"data: " + block(size), 1024)
        return lambda: decode(chunks)

    check_linear_growth(work, 1 << 15)


@pytest.mark.parametrize("head", [b"data: ", b"event: e\r\ndata: "])
@pytest.mark.parametrize("size", [1024, 16])
def test_a_read_costs_the_same_however_much_is_buffered(head: bytes, size: int) -> None:
    decoder = SseDecoder()
    decoder.feed(head)
    check_constant_read_cost(decoder.feed, size)


@pytest.mark.parametrize("size", [1, 1 << 30])
def test_many_frames_are_linear(size: int) -> None:
    def work(count: int) -> Any:
        chunks = fixed_size_reads(encode_sse(b"e", b"{}") * count, size)
        return lambda: decode(chunks)

    check_linear_growth(work, 500)


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
    assert decode([encode_comment(text), encode_sse(b"", b"x")]) == [Frame("", b"x", b"data: x\n\n")]


# --- http

HEADERS = (("content-type", "application/json"), ("x-key", "1"), ("x-key", "2"))


@pytest.mark.parametrize("message", [HttpRequest("POST", "/v1", headers=HEADERS), HttpResponse(200, HEADERS)])
def test_headers_are_found_in_any_case(message: HttpRequest | HttpResponse) -> None:
    assert message.header("Content-Type") == "application/json"
    assert message.header("x-key") == "1"
    assert message.header("x-none") == ""
    assert message.header("x-none", "default") == "default"


def test_query_parameters_are_decoded() -> None:
    request = HttpRequest("GET", "/v1beta/models/a%2Fb", "alt=sse&key=a%20b+c&empty=&alt=json")
    assert [request.parameter(name) for name in ("alt", "key", "empty", "none")] == ["sse", "a b c", "", ""]
    assert request.parameter("none", "x") == "x"
    assert request.path == "/v1beta/models/a%2Fb"


def test_requests_and_responses_are_values() -> None:
    assert HttpResponse(200) == HttpResponse(200)
    with pytest.raises(AttributeError):
        HttpResponse(200).status = 500  # type: ignore[misc]


# --- fields

OBJECT: dict[str, Json] = {
    "text": "t",
    "int": 3,
    "whole": 3.0,
    "float": 0.5,
    "flag": False,
    "null": None,
    "object": {"a": 1},
    "array": ["x", "y"],
    "objects": [{"n": 0}, {"n": 1}],
}
READERS: dict[str, Callable[..., Any]] = {
    "text": Fields.text,
    "integer": Fields.integer,
    "number": Fields.number,
    "flag": Fields.flag,
    "array": Fields.array,
    "children": Fields.children,
    "strings": Fields.strings,
    "one_of": lambda fields, name, *default: fields.one_of(name, ("t", "u"), *default),
}
# what each reader makes of each field; all else is an error
GOOD: dict[str, dict[str, Any]] = {
    "text": {"text": "t"},
    "integer": {"int": 3, "whole": 3},
    "number": {"int": 3, "whole": 3.0, "float": 0.5},
    "flag": {"flag": False},
    "array": {"array": ["x", "y"], "objects": OBJECT["objects"]},
    "children": {"objects": ...},
    "strings": {"array": ("x", "y")},
    "one_of": {"text": "t"},
}
NAMES = {"text": "a string", "integer": "an integer", "number": "a number", "flag": "a boolean", "one_of": "a string"}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", OBJECT)
def test_every_reader_on_every_type(reader: str, name: str) -> None:
    read = READERS[reader]
    if name in GOOD[reader]:
        value = read(Fields(OBJECT), name)
        expected = GOOD[reader][name]
        assert expected is ... or (value == expected and type(value) is type(expected))
        return
    with pytest.raises(MalformedRequest) as caught:
        read(Fields(OBJECT), name)
    assert caught.value.at.startswith(name)
    assert str(caught.value).startswith(f"{caught.value.at}: expected ")
    if name == "null":
        assert str(caught.value).endswith(f"expected {NAMES.get(reader, 'an array')}, got null")
        assert read(Fields(OBJECT), name, "default") == "default"
    else:
        with pytest.raises(MalformedRequest):  # a default is for what is absent, not for what is wrong
            read(Fields(OBJECT), name, "default")


@pytest.mark.parametrize("reader", READERS)
def test_what_is_missing_is_named(reader: str) -> None:
    fields = Fields({}, "messages[3]", MissingField)
    with pytest.raises(MissingField) as caught:
        READERS[reader](fields, "x")
    assert str(caught.value) == f"messages[3].x: expected {NAMES.get(reader, 'an array')}, found nothing"
    assert READERS[reader](fields, "x", None) is None


@pytest.mark.parametrize(
    ("value", "got"),
    [("s", "a string"), (1, "a number"), (0.5, "a number"), (True, "a boolean"), (None, "null"), ([], "an array")],
)
def test_an_object_is_expected(value: Json, got: str) -> None:
    with pytest.raises(UpstreamViolation, match=f"^a.b: expected an object, got {got}$"):
        Fields(value, "a.b", UpstreamViolation)
    with pytest.raises(MalformedRequest, match=f"^a: expected an object, got {got}$"):
        Fields({"a": value}).child("a")
    with pytest.raises(MalformedRequest, match=rf"^a\[1\]: expected an object, got {got}$"):
        Fields({"a": [{}, value]}).children("a")


def test_paths_go_all_the_way_down() -> None:
    body: Json = {"messages": [{}, {"content": [{"text": 5, "odd name": {'x"y': 1, "": None}}]}]}
    [_, message] = Fields(body).children("messages")
    [block] = message.children("content")
    with pytest.raises(MalformedRequest) as caught:
        block.text("text")
    assert caught.value.at == "messages[1].content[0].text"
    odd = block.child("odd name")
    assert odd.at == 'messages[1].content[0]["odd name"]'
    assert odd.path('x"y') == 'messages[1].content[0]["odd name"]["x\\"y"]'
    with pytest.raises(MalformedRequest, match=r"^messages\[1\]: no good$"):
        message.fail("", "no good")
    with pytest.raises(MalformedRequest, match=r"^messages\[1\]\.role: no good$"):
        message.fail("role", "no good")


def test_children_inherit_the_blame() -> None:
    with pytest.raises(MissingField):
        Fields({"a": {"b": [{}]}}, "", MissingField).child("a").children("b")[0].text("c")


def test_maybe_child() -> None:
    fields = Fields({"a": {"x": 1}, "b": None, "c": 5})
    child = fields.maybe_child("a")
    assert child is not None
    assert child.integer("x") == 1
    assert fields.maybe_child("b") is None
    assert fields.maybe_child("z") is None
    with pytest.raises(MalformedRequest, match=r"^c: expected an object, got a number"):
        fields.maybe_child("c")
    with pytest.raises(MalformedRequest, match=r"^z: expected an object, found nothing"):
        fields.child("z")
    with pytest.raises(MalformedRequest, match=r"^b: expected an object, got null"):
        fields.child("b")
    assert fields.rest() == {}


def test_one_of_maps_and_refuses() -> None:
    fields = Fields({"a": "x", "b": "z", "c": 1})
    assert fields.one_of("a", {"x": 10, "y": 20}) == 10
    with pytest.raises(MalformedRequest, match=r'^b: expected one of x, y, got "z"$'):
        fields.one_of("b", {"x": 10, "y": 20})
    with pytest.raises(MalformedRequest, match=r"^c: expected one of x, y, got a number$"):
        fields.one_of("c", ("x", "y"))
    assert fields.one_of("d", ("x", "y"), "auto") == "auto"


def test_strings_name_the_item() -> None:
    with pytest.raises(MalformedRequest, match=r"^stop\[1\]: expected a string, got a number$"):
        Fields({"stop": ["a", 1]}).strings("stop")


def test_readers_take_and_lookers_do_not() -> None:
    data: dict[str, Json] = {"a": "1", "b": None, "c": 3, "d": [4]}
    fields = Fields(data)
    assert (fields.peek("a"), fields.peek("z"), fields.has("b"), fields.has("z")) == ("1", None, True, False)
    assert fields.rest() == data
    assert fields.text("a") == "1"
    assert fields.any("d") == [4]
    assert fields.any("z", 9) == 9
    assert (fields.peek("a"), fields.has("a")) == ("1", True)
    assert list(fields.rest().items()) == [("b", None), ("c", 3)]
    assert data == {"a": "1", "b": None, "c": 3, "d": [4]}


@given(
    st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=3)), st.sets(st.text(max_size=3))
)
def test_rest_is_all_that_was_not_taken(data: dict[str, Json], taken: set[str]) -> None:
    before = list(data.items())
    fields = Fields(data)
    for name in taken:
        fields.any(name)
    assert list(fields.rest().items()) == [(name, value) for name, value in before if name not in taken]
    assert list(data.items()) == before


def test_parse() -> None:
    assert Fields.parse(b'{"a":1}').integer("a") == 1
    with pytest.raises(UpstreamViolation, match=r"^delta: not JSON: .*truncated"):
        Fields.parse(b'{"a":', "delta", UpstreamViolation)
    with pytest.raises(MalformedRequest, match=r"^expected an object, got an array$"):
        Fields.parse(b"[]")
