"""The codec of AWS event streams, against vectors and botocore."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import BadFrame, LocalMisuse, Truncated
from dragoman.wire import eventstream
from dragoman.wire.eventstream import (
    MAX_HEADERS,
    MAX_PAYLOAD,
    Byte,
    EventStreamDecoder,
    Int,
    Long,
    Short,
    Timestamp,
    encode_event,
)
from dragoman.wire.frame import Frame
from dragoman.wire.markers import Markers
from tests.eventstream import decode_message, encode_message
from tests.growth import check_constant_read_cost, check_linear_growth
from tests.unit.wire.cuts import fixed_size_reads, random_cuts, two_way_cuts, vectors

VECTORS = vectors("eventstream.json")
good_vectors = pytest.mark.parametrize("vector", VECTORS["good"], ids=lambda vector: str(vector["name"]))
bad_vectors = pytest.mark.parametrize("vector", VECTORS["bad"], ids=lambda vector: str(vector["name"]))
EVENT = encode_event("contentBlockDelta", b'{"delta":{"text":"hi"}}')
MAKERS: dict[str, Any] = {
    "bool": bool,
    "byte": Byte,
    "short": Short,
    "int": Int,
    "long": Long,
    "bytes": bytes.fromhex,
    "string": str,
    "timestamp": Timestamp,
    "uuid": UUID,
}

header_values = st.one_of(
    st.booleans(),
    st.integers(-(1 << 7), (1 << 7) - 1).map(Byte),
    st.integers(-(1 << 15), (1 << 15) - 1).map(Short),
    st.integers(-(1 << 31), (1 << 31) - 1).map(Int),
    st.integers(-(1 << 63), (1 << 63) - 1).map(Long),
    st.integers(-(1 << 63), (1 << 63) - 1).map(Timestamp),
    st.binary(max_size=20),
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.uuids(),
)
header_names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda name: name[0] != ":")
headers = st.dictionaries(header_names, header_values, max_size=5)
messages = st.builds(encode_message, headers, st.binary(max_size=40))


def decode(chunks: list[bytes]) -> tuple[list[Frame], str]:
    """Decode to the end; return the frames and the name of the error, if any."""
    decoder, found = EventStreamDecoder(), []
    try:
        for chunk in chunks:
            for frame in decoder.feed(chunk):
                found.append(frame)  # one by one: they must be out before the error
        decoder.close()
    except (BadFrame, Truncated) as error:
        return found, type(error).__name__
    return found, ""


def in_types(values: dict[str, Any]) -> list[tuple[str, type, Any]]:
    return [(name, type(value), value) for name, value in values.items()]


def expected_headers(vector: dict[str, Any]) -> dict[str, Any]:
    return {name: MAKERS[kind](value) for name, (kind, value) in vector["headers"].items()}


def expected_frame(vector: dict[str, Any]) -> Frame:
    kind, data, error = vector["frame"]
    return Frame(kind, data.encode(), bytes.fromhex(vector["hex"]), error)


@good_vectors
def test_good_message(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    message = decode_message(raw)
    assert in_types(dict(message.headers)) == in_types(expected_headers(vector))
    assert message.payload == vector["payload"].encode()
    assert encode_message(message.headers, message.payload) == raw


@good_vectors
def test_good_frame_whole_bytewise_and_with_more_behind(vector: dict[str, Any]) -> None:
    raw, frame = bytes.fromhex(vector["hex"]), expected_frame(vector)
    later = Frame("contentBlockDelta", b'{"delta":{"text":"hi"}}', EVENT)
    assert decode([raw]) == ([frame], "")
    assert decode(fixed_size_reads(raw, 1)) == ([frame], "")
    for pieces in two_way_cuts(raw + EVENT):
        assert decode(pieces) == ([frame, later], "")
    assert decode([raw + EVENT[:-1]]) == ([frame], "Truncated")


@good_vectors
def test_botocore_reads_what_we_write(vector: dict[str, Any]) -> None:
    wanted = expected_headers(vector)
    buffer = EventStreamBuffer()
    buffer.add_data(encode_message(wanted, vector["payload"].encode()))
    [event] = list(buffer)
    # botocore hands out a uuid as its bytes
    plain = {name: value.bytes if isinstance(value, UUID) else value for name, value in wanted.items()}
    assert (event.headers, event.payload) == (plain, vector["payload"].encode())


@bad_vectors
def test_bad_message_whole_bytewise_and_between_good_ones(vector: dict[str, Any]) -> None:
    raw, first = bytes.fromhex(vector["hex"]), Frame("contentBlockDelta", b'{"delta":{"text":"hi"}}', EVENT)
    assert decode([raw]) == ([], vector["error"])
    assert decode(fixed_size_reads(raw, 1)) == ([], vector["error"])
    for pieces in two_way_cuts(EVENT + raw + EVENT):
        assert decode(pieces) == ([first], vector["error"]), pieces


@bad_vectors
def test_a_failed_decoder_stays_failed(vector: dict[str, Any]) -> None:
    decoder = EventStreamDecoder()
    with pytest.raises(getattr(eventstream, vector["error"])) as first:
        list(decoder.feed(bytes.fromhex(vector["hex"])))
    again: tuple[Callable[[], Iterable[Frame]], ...] = (lambda: decoder.feed(EVENT), decoder.close)
    for more in again:
        with pytest.raises(BadFrame) as later:
            list(more())
        assert later.value is first.value


def test_every_malformation_has_a_vector() -> None:
    errors = {
        name for name, value in vars(eventstream).items() if isinstance(value, type) and issubclass(value, BadFrame)
    }
    assert errors - {"BadFrame"} == {vector["error"] for vector in VECTORS["bad"]}


@pytest.mark.parametrize("size", range(1, len(EVENT)))
def test_truncation_is_reported_with_its_place(size: int) -> None:
    decoder = EventStreamDecoder()
    assert len(list(decoder.feed(EVENT + EVENT[:size]))) == 1
    whole = str(len(EVENT)) if size >= 12 else "at least 16"
    with pytest.raises(Truncated, match=f"after {size} of {whole} bytes"):
        decoder.close()


@pytest.mark.parametrize("bit", range(len(EVENT) * 8))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    broken = bytearray(EVENT)
    broken[bit // 8] ^= 1 << bit % 8
    expected = "PreludeChecksumMismatch" if bit < 12 * 8 else "MessageChecksumMismatch"
    assert decode([bytes(broken)]) == ([], expected)
    assert decode([EVENT, bytes(broken)])[0] == decode([EVENT])[0]  # not even with warm caches


def test_headers_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        decode_message(EVENT).headers["x"] = "y"  # type: ignore[index]


def test_headers_longer_than_the_cache_takes() -> None:
    long = encode_message({":event-type": "e", "filler": "x" * 5000}, b"1")
    assert decode([long * 2]) == ([Frame("e", b"1", long)] * 2, "")
    bad = encode_message({":message-type": "rumour", "filler": "x" * 5000}, b"1")
    assert decode([bad]) == ([], "UnknownMessageType")


def test_the_limits_themselves_pass() -> None:
    area = {f"{index}": b"x" * 65000 for index in range(2)}
    room = MAX_HEADERS - len(eventstream.pack_headers({**area, "rest": b""}))
    largest = encode_message({**area, "rest": b"x" * room}, b"p" * MAX_PAYLOAD)
    assert len(largest) == 16 + MAX_HEADERS + MAX_PAYLOAD
    assert [len(frame.data) for frame in EventStreamDecoder().feed(largest)] == [MAX_PAYLOAD]


@given(headers, st.binary(max_size=60))
def test_what_is_encoded_decodes(values: dict[str, Any], payload: bytes) -> None:
    raw = encode_message(values, payload)
    message = decode_message(raw)
    assert in_types(dict(message.headers)) == in_types(values)
    assert encode_message(message.headers, message.payload) == raw
    assert struct.unpack(">I", raw[:4])[0] == len(raw)


@given(st.lists(messages, max_size=4).map(b"".join), st.binary(max_size=30), st.data())
def test_cuts_do_not_matter(stream: bytes, junk: bytes, data: st.DataObject) -> None:
    whole = decode([stream + junk])
    assert decode(data.draw(random_cuts(stream + junk))) == whole
    assert decode(fixed_size_reads(stream + junk, 1)) == whole


@given(st.binary(max_size=100), st.binary(max_size=40))
def test_any_headers_area_is_read_or_refused(area: bytes, payload: bytes) -> None:
    """Any bytes between correct checksums are a message that encodes to the same bytes, or a typed error."""
    raw = eventstream._encode_message(area, payload)
    try:
        message = decode_message(raw)
    except BadFrame:
        assert decode([raw])[1]
    else:
        assert encode_message(message.headers, message.payload) == raw


@pytest.mark.parametrize("kind", ["contentBlockDelta", b"contentBlockDelta"])
def test_encode_event_writes_the_headers_in_the_order_of_the_service(kind: str | bytes) -> None:
    message = decode_message(encode_event(kind, b"{}"))
    assert list(message.headers.items()) == [
        (":event-type", "contentBlockDelta"),
        (":content-type", "application/json"),
        (":message-type", "event"),
    ]


def test_encode_event_writes_exceptions() -> None:
    raw = encode_event("throttlingException", b'{"message":"no"}', error=True, content_type="text/plain")
    assert list(decode_message(raw).headers.items()) == [
        (":exception-type", "throttlingException"),
        (":content-type", "text/plain"),
        (":message-type", "exception"),
    ]
    assert decode([raw])[0] == [Frame("throttlingException", b'{"message":"no"}', raw, error=True)]


@pytest.mark.parametrize(
    "values",
    [
        {"": "x"},
        {"n" * 256: "x"},
        {"a": "x" * 65536},
        {"a": 5},
        {"a": None},
        {"a": Byte(128)},
        {"a": Long(1 << 63)},
        {"a": "\ud800"},
        {"\ud800": "a"},
        {str(index): b"x" * 60000 for index in range(3)},
    ],
    ids=lambda values: ascii(values)[:20],
)
def test_what_the_format_cannot_hold_is_refused(values: Any) -> None:
    with pytest.raises(LocalMisuse):
        encode_message(values, b"")


def test_what_the_format_cannot_hold_is_refused_in_events() -> None:
    with pytest.raises(LocalMisuse):
        encode_event("e", bytes(MAX_PAYLOAD + 1))
    with pytest.raises(LocalMisuse):
        encode_event(b"\xff", b"")


@pytest.mark.parametrize("size", [1024, 16])
def test_one_long_message_in_small_reads_is_linear(size: int) -> None:
    def work(length: int) -> Any:
        chunks = fixed_size_reads(encode_event("e", bytes(length)), size)
        return lambda: decode(chunks)

    check_linear_growth(work, size * 64)


@pytest.mark.parametrize("size", [1024, 16])
def test_a_read_costs_the_same_however_much_is_buffered(size: int) -> None:
    decoder = EventStreamDecoder()
    decoder.feed(encode_event("e", bytes(20 << 20))[:100])
    check_constant_read_cost(decoder.feed, size)


def test_many_messages_in_one_read_are_linear() -> None:
    check_linear_growth(lambda count: lambda: decode([EVENT * count]), 300)


# --- Markers finds the leftmost, longest marker in text cut anywhere, and leaves at most the start of a marker.

KIMI = ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"]
some_markers = st.sets(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=4)
some_text = st.lists(st.text("ab<c", max_size=6), max_size=6)


def by_the_book(markers: set[str], text: str) -> list[str]:
    """Leftmost, then longest; neighbouring text in one piece."""
    pieces, plain = [], ""
    while text:
        fitting = [marker for marker in markers if text.startswith(marker)]
        if fitting:
            found = max(fitting, key=len)
            pieces += [plain, found]
            plain, text = "", text[len(found) :]
        else:
            plain, text = plain + text[0], text[1:]
    return [piece for piece in [*pieces, plain] if piece]


class Splitter:
    """Use Markers as its callers do: buffer the unread end, and search again when more text has arrived."""

    def __init__(self, markers: Markers) -> None:
        self.markers = markers
        self.unread = ""
        self.pieces: list[str] = []

    def feed(self, text: str, *, final: bool = False) -> None:
        text, at = self.unread + text, 0
        while True:
            start, marker = self.markers.find(text, at, final)
            self._plain(text[at:start])
            if not marker:
                self.unread = text[start:]
                return
            self.pieces.append(marker)
            at = start + len(marker)

    def _plain(self, text: str) -> None:
        if self.pieces and text and self.pieces[-1] not in self.markers.markers:
            self.pieces[-1] += text
        elif text:
            self.pieces.append(text)


@given(some_markers, some_text)
def test_cut_anywhere_it_is_leftmost_longest(markers: set[str], texts: list[str]) -> None:
    splitter = Splitter(Markers(markers))
    for text in texts:
        splitter.feed(text)
    splitter.feed("", final=True)
    assert splitter.pieces == by_the_book(markers, "".join(texts))
    assert splitter.unread == ""


@given(some_markers, some_text)
def test_nothing_is_buffered_but_the_beginning_of_a_marker(markers: set[str], texts: list[str]) -> None:
    splitter = Splitter(Markers(markers))
    for at, text in enumerate(texts):
        splitter.feed(text)
        assert "".join(splitter.pieces) + splitter.unread == "".join(texts[: at + 1])
        assert splitter.unread == "" or any(m.startswith(splitter.unread) and m != splitter.unread for m in markers)


@given(st.text("ab<", max_size=12), st.sets(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_marker_is_found_as_soon_and_only_as_soon_as_it_is_certain(text: str, words: set[str]) -> None:
    markers = Markers(words)
    start, found = markers.find(text, 0, True)
    assert (start, found) == min(
        ((text.find(word), -len(word), word) for word in words if word in text), default=(len(text), 0, "")
    )[::2]
    start, found = markers.find(text, 0, False)
    if found:
        assert text.startswith(found, start)
        assert all(markers.find(text + more, 0, False) == (start, found) for more in ("", "a", "b<", "<<<<"))
    else:
        assert any(word.startswith(text[start:]) and word != text[start:] for word in words) or start == len(text)
    assert not any(word in text[:start] for word in words if text.find(word) + len(word) <= start)


@given(some_markers, st.text("ab<c", max_size=10), st.integers(0, 10))
def test_match_and_find_agree_on_what_begins_at_a_position(markers: set[str], text: str, at: int) -> None:
    at = min(at, len(text))
    both = Markers(markers)
    start, found = both.find(text, at, True)
    assert both.match(text, at, True) == (found if found and start == at else None)
    now = both.match(text, at, False)
    if now:
        assert all(both.match(text + more, at, False) == now for more in ("", "a", "b<", "<<<<"))
    elif now == "":
        assert at == len(text) or any(marker.startswith(text[at:]) and marker != text[at:] for marker in markers)
    else:
        assert all(both.match(text + more, at, False) is None for more in ("", "a", "b<", "<<<<"))


def test_a_tool_section_character_by_character() -> None:
    text = (
        "let me <look>: <|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_end|><|tool_calls_section_end|><|"
    )
    splitter = Splitter(Markers(KIMI))
    for char in text:
        splitter.feed(char)
    splitter.feed("", final=True)
    assert splitter.pieces == by_the_book(set(KIMI), text)
    assert [piece for piece in splitter.pieces if piece in KIMI] == [KIMI[0], KIMI[2], KIMI[3], KIMI[1]]


@pytest.mark.parametrize(
    ("text", "rest"), [("a > b", ""), ("a < b", ""), ("", ""), ("if a <", "<"), ("b\n<|", "<|"), ("<|x", "")]
)
def test_text_without_a_marker_is_buffered_only_where_one_may_begin(text: str, rest: str) -> None:
    assert Markers(KIMI).find(text, 0, False) == (len(text) - len(rest), "")


def test_a_marker_that_begins_another_waits() -> None:
    markers = Markers(["<a", "<a b c"])
    assert markers.find("<a b", 0, False) == (0, "")
    assert markers.find("<a b!", 0, False) == (0, "<a")
    assert markers.find("<a b c", 0, False) == (0, "<a b c")
    assert markers.find("<a", 0, False) == (0, "")
    assert markers.find("<a", 0, True) == (0, "<a")
    assert markers.match("<a b", 0, False) == ""
    assert markers.match("<a b!", 0, False) == "<a"


def test_no_markers_find_nothing() -> None:
    assert Markers(()).find("any <text>", 0, False) == (10, "")
    assert Markers(()).match("any <text>", 4, True) is None


def test_characters_that_mean_something_to_a_pattern() -> None:
    markers = ["]]>", "^-", ".*", "\\d", "\n\n"]
    text = "a]]>b^-c.*d\\de\n\nf.x]"
    splitter = Splitter(Markers(markers))
    splitter.feed(text)
    splitter.feed("", final=True)
    assert splitter.pieces == by_the_book(set(markers), text)
