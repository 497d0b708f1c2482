"""AWS event streams (`application/vnd.amazon.eventstream`): checked decoding of bytes cut anywhere, and the encoder.

A message is a prelude (total length, headers length, CRC of the two), headers, payload, and a CRC of all before it;
integers are big-endian. Theory of operation: pieces are kept until there are as many bytes as the next step needs,
twelve for a prelude and then the whole message, and are joined only then. Lengths are believed only after their CRC
matched. Headers repeat from message to message, so what their bytes mean is remembered, within bounds.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from struct import Struct as Layout
from types import MappingProxyType
from typing import Any, TypeAlias
from uuid import UUID
from zlib import crc32

from msgspec import Struct

from dragoman.errors import BadFrame, LocalMisuse, Truncated
from dragoman.wire.frame import Frame, Row
from dragoman.wire.jsonio import quote, strings

# botocore's limits. aws-c-event-stream has one of 24 MiB for headers and payload together.
MAX_HEADERS = 128 * 1024
MAX_PAYLOAD = 24 * 1024 * 1024
SHORTEST = 16  # a message without headers and payload

_PRELUDE = Layout(">III")
_PRELUDE_SIZE = 12
_LENGTHS = Layout(">II")
_CRC = Layout(">I")
_MOST_LENGTHS = 256  # that a mould remembers
_LONGEST_CACHED = 1024  # bytes of headers: nobody shall fill the cache with megabytes


class PreludeChecksumMismatch(BadFrame):
    """The lengths do not match their CRC: what follows cannot be found."""


class MessageChecksumMismatch(BadFrame):
    """The message does not match its CRC."""


class LengthOutOfRange(BadFrame):
    """The total length is shorter than the shortest message."""


class HeadersTooLong(BadFrame):
    """The headers are longer than MAX_HEADERS."""


class PayloadTooLong(BadFrame):
    """The payload is longer than MAX_PAYLOAD."""


class HeadersOverrun(BadFrame):
    """The headers are longer than their message."""


class HeaderTruncated(BadFrame):
    """A header runs past the end of the headers."""


class UnknownHeaderType(BadFrame):
    """A header value of a type that does not exist."""


class DuplicateHeader(BadFrame):
    """Two headers of one name."""


class BadHeaderText(BadFrame):
    """A header name that is empty, or text that is no UTF-8."""


class UnknownMessageType(BadFrame):
    """A `:message-type` other than event, exception and error, or a `:` header that is no string."""


# --- header values. Integers keep their width, so that what was decoded encodes to the same bytes.


class Byte(int):
    """An integer of 8 bits."""


class Short(int):
    """An integer of 16 bits."""


class Int(int):
    """An integer of 32 bits."""


class Long(int):
    """An integer of 64 bits."""


class Timestamp(int):
    """Milliseconds since 1970."""


HeaderValue: TypeAlias = bool | Byte | Short | Int | Long | bytes | str | Timestamp | UUID
_Integer: TypeAlias = type[Byte] | type[Short] | type[Int] | type[Long] | type[Timestamp]

_TRUE, _FALSE, _BYTES, _STRING, _UUID = 0, 1, 6, 7, 9
_INTEGERS: dict[int, tuple[Layout, _Integer]] = {
    2: (Layout(">b"), Byte),
    3: (Layout(">h"), Short),
    4: (Layout(">i"), Int),
    5: (Layout(">q"), Long),
    8: (Layout(">q"), Timestamp),
}
_CODES: dict[type, tuple[int, Layout]] = {make: (code, layout) for code, (layout, make) in _INTEGERS.items()}


class Message(Struct, frozen=True):
    """One message in full; its headers cannot be changed."""

    headers: Mapping[str, HeaderValue]
    payload: bytes


# --- decoding


# How long a message is, the checksum up to the string, and what gives its head, the string's inside, tail and checksum.
_Kind: TypeAlias = tuple[int, int, Callable[[bytes, int], tuple[Any, ...]]]
_NO_KIND: _Kind = (sys.maxsize, 0, Layout("").unpack_from)


class Mould(Struct, frozen=True, gc=False):
    """A message without the inside of one JSON string in its payload."""

    head: bytes  # from the headers to the string
    payload: int  # where it begins
    tail: bytes
    kinds: dict[bytes, _Kind]  # of messages, by their preludes

    def kind(self, prelude: bytes) -> _Kind:
        """Check a prelude; one that no message of this mould has is longer than all there are."""
        if len(prelude) < _PRELUDE_SIZE:
            return _NO_KIND
        try:
            total, payload = _prelude(prelude)
        except BadFrame:
            return _NO_KIND
        head, tail = len(self.head), len(self.tail)
        inside = total - _PRELUDE_SIZE - head - tail - 4
        if payload != self.payload or inside < 0:
            return _NO_KIND
        parts = Layout(f">{_PRELUDE_SIZE}x{head}s{inside}s{tail}sI").unpack_from
        found = total, crc32(prelude + self.head), parts
        if len(self.kinds) < _MOST_LENGTHS:
            self.kinds[prelude] = found
        return found


class EventStreamDecoder:
    """Feed bytes cut anywhere; get frames, or whole messages. After an error the decoder stays failed."""

    __slots__ = ("_at", "_buffer", "_failed", "_held", "_need", "_size", "_tired")

    def __init__(self) -> None:
        self._buffer = b""  # what may hold whole messages; those before `_at` are decoded
        self._at = 0
        self._tired = False  # a row was refused: not again in this buffer, or trying would cost its square
        self._held: list[bytes] = []
        self._size = 0  # of what is held
        self._need = _PRELUDE_SIZE  # bytes, before which nothing can be done
        self._failed: BadFrame | None = None

    @property
    def held(self) -> int:
        """See FrameDecoder."""
        return self._size

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Take more bytes and give the frames they complete. Raises a BadFrame of this module, after those before it.

        The kind is the `:event-type`, `:exception-type` or `:error-code`; the last two set `error`. A message without
        `:message-type` is an event. An error without payload gets its `:error-message` as `{"message": …}`.
        """
        if self._failed is not None:
            raise self._failed
        if self._buffer:  # what nobody took comes first
            chunk, self._buffer = self._buffer[self._at :] + chunk, b""
        self._size += len(chunk)
        if self._size < self._need:
            self._held.append(chunk)
            return iter(())
        if self._held:
            self._held.append(chunk)
            chunk = b"".join(self._held)
            self._held = []
        self._buffer, self._at, self._tired = chunk, 0, False
        self._size, self._need = 0, _PRELUDE_SIZE
        try:
            if _prelude(chunk[:_PRELUDE_SIZE])[0] <= len(chunk):
                return self._frames()
        except BadFrame:
            return self._frames()  # will say so
        self._keep()
        return iter(())

    def messages(self, chunk: bytes) -> Iterator[Message]:
        """Do as `feed` does, but give messages with all their headers."""
        return (decode_message(frame.raw) for frame in self.feed(chunk))

    def close(self) -> Iterator[Frame]:
        """End the stream. Raises Truncated if it ended inside a message."""
        if self._failed is not None:
            raise self._failed
        frames = list(self._frames())
        if self._size:
            need = f"at least {SHORTEST}" if self._need < SHORTEST else str(self._need)
            raise Truncated(f"the stream ended inside a message, after {self._size} of {need} bytes")
        return iter(frames)

    # --- rows

    def mould(self, frame: Frame, start: int, stop: int) -> Mould | None:
        """See FrameDecoder."""
        raw, data = frame.raw, frame.data
        payload = len(raw) - len(data) - 4
        if raw[payload:-4] != data:
            return None  # it had none, and got words of ours
        return Mould(raw[_PRELUDE_SIZE : payload + start], payload, data[stop:], {})

    def row(self, mould: Mould, chunk: bytes = b"") -> Row | None:
        """See FrameDecoder. Whatever is wrong with a message ends the row, and is told when its turn comes."""
        head, tail, kinds = mould.head, mould.tail, mould.kinds
        buffer, begin = (chunk, 0) if chunk else (self._buffer, self._at)
        if self._held or self._buffer if chunk else self._tired:
            return None
        first, size, insides = begin, len(buffer), []
        while True:
            prelude = buffer[begin : begin + _PRELUDE_SIZE]
            total, so_far, parts = kinds.get(prelude) or mould.kind(prelude)
            end = begin + total
            if end > size:
                break
            before, inside, behind, checksum = parts(buffer, begin)
            if before != head or behind != tail or crc32(behind, crc32(inside, so_far)) != checksum:
                break
            insides.append(inside)
            begin = end
        texts = strings(insides) if insides else None
        if texts is None:
            self._tired = bool(insides)
            return None
        if not chunk:
            self._at = begin
        return Row(texts, insides, buffer[first:begin], _PRELUDE_SIZE + len(head) + len(tail) + 4)

    # --- messages

    def _keep(self) -> None:
        """Hold what is left of the buffer: less than a message."""
        rest = self._buffer[self._at :]
        self._need = _prelude(rest[:_PRELUDE_SIZE])[0] if len(rest) >= _PRELUDE_SIZE else _PRELUDE_SIZE
        self._held, self._size = [rest] if rest else [], len(rest)
        self._buffer, self._at = b"", 0

    def _frames(self) -> Iterator[Frame]:
        """Decode message after message, as they are asked for: in between a row may be taken."""
        try:
            while self._buffer:
                frame = self._message()
                if frame is None:
                    self._keep()
                    return
                yield frame
        except BadFrame as error:
            self._failed = error
            self._buffer = b""
            raise

    def _message(self) -> Frame | None:
        """Decode the next message; None if it is not whole."""
        buffer, begin = self._buffer, self._at
        if len(buffer) - begin < _PRELUDE_SIZE:
            return None
        total, at = _prelude(buffer[begin : begin + _PRELUDE_SIZE])
        end = begin + total
        if end > len(buffer):
            return None
        raw = buffer[begin:end]
        payload = raw[at:-4]
        kind, instead, error, so_far = _cached_head(raw[:at]) if at <= _LONGEST_CACHED else _head(raw[:at])
        if crc32(payload, so_far) != _CRC.unpack_from(raw, total - 4)[0]:
            raise MessageChecksumMismatch(f"a message of {total} bytes does not match its checksum")
        if kind is None:
            kind, instead, error = _meaning(raw[_PRELUDE_SIZE:at])  # raises: now it is known not to be a broken byte
        self._at = end
        return Frame(kind, payload or instead, raw, error)


def decode_message(data: bytes) -> Message:
    """Decode exactly one message, whatever its headers say. Raises a BadFrame of this module, or Truncated."""
    if len(data) < SHORTEST:
        raise Truncated(f"{len(data)} of at least {SHORTEST} bytes of a message")
    total, payload = _prelude(data[:_PRELUDE_SIZE])
    if len(data) < total:
        raise Truncated(f"{len(data)} of {total} bytes of a message")
    if len(data) > total:
        raise LengthOutOfRange(f"{len(data) - total} bytes after a message")
    if crc32(data[:-4]) != _CRC.unpack_from(data, total - 4)[0]:
        raise MessageChecksumMismatch(f"a message of {total} bytes does not match its checksum")
    return Message(parse_headers(data[_PRELUDE_SIZE:payload]), data[payload:-4])


@lru_cache(256)
def _prelude(prelude: bytes) -> tuple[int, int]:
    """Check a prelude; give the message's length and where its payload begins. Lengths repeat, hence the cache."""
    total, headers, checksum = _PRELUDE.unpack(prelude)
    if crc32(prelude[:8]) != checksum:
        raise PreludeChecksumMismatch("a message's lengths do not match their checksum")
    if total < SHORTEST:
        raise LengthOutOfRange(f"a message of {total} bytes, shorter than {SHORTEST}")
    if headers > MAX_HEADERS:
        raise HeadersTooLong(f"{headers} bytes of headers, more than {MAX_HEADERS}")
    if headers > total - SHORTEST:
        raise HeadersOverrun(f"{headers} bytes of headers in a message of {total}")
    if total - SHORTEST - headers > MAX_PAYLOAD:
        raise PayloadTooLong(f"{total - SHORTEST - headers} bytes of payload, more than {MAX_PAYLOAD}")
    return total, _PRELUDE_SIZE + headers


def _head(head: bytes) -> tuple[str | None, bytes, bool, int]:
    """Read prelude and headers: what they mean, with no kind if they are malformed, and the checksum up to there."""
    area = head[_PRELUDE_SIZE:]
    try:
        meaning = _cached_meaning(area) if len(area) <= _LONGEST_CACHED else _meaning(area)
    except BadFrame:
        return None, b"", False, crc32(head)
    return *meaning, crc32(head)


def _meaning(area: bytes) -> tuple[str, bytes, bool]:
    """Read headers as far as a frame needs them: its kind, what stands for an empty payload, whether it is an error."""
    headers = parse_headers(area)

    def text(name: str) -> str:
        value = headers.get(name, "")
        if not isinstance(value, str):
            raise UnknownMessageType(f"header {name} is no string")
        return value

    match text(":message-type"):
        case "event" | "":
            return text(":event-type"), b"", False
        case "exception":
            return text(":exception-type"), b"", True
        case "error":
            return text(":error-code"), b'{"message":%b}' % quote(text(":error-message")), True
        case unknown:
            raise UnknownMessageType(f"message type {unknown!r}")


def parse_headers(area: bytes) -> Mapping[str, HeaderValue]:
    """Parse the bytes between prelude and payload. Raises a BadFrame of this module."""
    headers: dict[str, HeaderValue] = {}
    at = 0
    while at < len(area):
        size = area[at]
        name = _utf8(_take(area, at + 1, size))
        if not name:
            raise BadHeaderText("a header without a name")
        if name in headers:
            raise DuplicateHeader(f"two headers named {name!r}")
        headers[name], at = _value(area, at + 1 + size)
    return MappingProxyType(headers)


_cached_meaning = lru_cache(256)(_meaning)
_cached_head = lru_cache(512)(_head)  # of every length of payload, so one header area has many


def _value(area: bytes, at: int) -> tuple[HeaderValue, int]:
    """Parse one value, which begins with its type; give it and where it ends."""
    code = _take(area, at, 1)[0]
    at += 1
    if code in (_TRUE, _FALSE):
        return code == _TRUE, at
    if code in _INTEGERS:
        layout, make = _INTEGERS[code]
        return make(layout.unpack(_take(area, at, layout.size))[0]), at + layout.size
    if code in (_BYTES, _STRING):
        size = int.from_bytes(_take(area, at, 2), "big")
        value = _take(area, at + 2, size)
        return _utf8(value) if code == _STRING else value, at + 2 + size
    if code == _UUID:
        return UUID(bytes=_take(area, at, 16)), at + 16
    raise UnknownHeaderType(f"header value of type {code}")


def _take(area: bytes, at: int, size: int) -> bytes:
    if at + size > len(area):
        raise HeaderTruncated(f"a header ends at byte {at + size} of {len(area)}")
    return area[at : at + size]


def _utf8(text: bytes) -> str:
    try:
        return str(text, "utf-8")
    except UnicodeDecodeError:
        raise BadHeaderText(f"header text is no UTF-8: {text[:40]!r}") from None


# --- encoding


def encode_message(headers: Mapping[str, HeaderValue], payload: bytes = b"") -> bytes:
    """Write one message. Raises LocalMisuse for what the format cannot hold."""
    return _seal(pack_headers(headers), payload)


def encode_event(
    kind: bytes | str, payload: bytes, *, error: bool = False, content_type: str = "application/json"
) -> bytes:
    """Write an event, or an exception if `error`, with the headers AWS sends, in its order. Raises LocalMisuse."""
    # What is no UTF-8 becomes a surrogate, and is refused as one.
    name = kind if isinstance(kind, str) else str(kind, "utf-8", "surrogateescape")
    return _seal(_event_headers(name, error, content_type), payload)


@lru_cache(256)
def _event_headers(kind: str, error: bool, content_type: str) -> bytes:
    name, message = (":exception-type", "exception") if error else (":event-type", "event")
    return pack_headers({name: kind, ":content-type": content_type, ":message-type": message})


def pack_headers(headers: Mapping[str, HeaderValue]) -> bytes:
    """Write headers in their order. Raises LocalMisuse."""
    parts: list[bytes] = []
    for name, value in headers.items():
        spelt = _encoded(name, name)
        if not 0 < len(spelt) <= 255:
            raise LocalMisuse(f"a header name of {len(spelt)} bytes", at=name[:40])
        parts += (bytes((len(spelt),)), spelt, _pack_value(name, value))
    area = b"".join(parts)
    if len(area) > MAX_HEADERS:
        raise LocalMisuse(f"{len(area)} bytes of headers, more than {MAX_HEADERS}")
    return area


def _pack_value(name: str, value: HeaderValue) -> bytes:
    if isinstance(value, bool):
        return bytes((_TRUE if value else _FALSE,))
    if isinstance(value, UUID):
        return bytes((_UUID,)) + value.bytes
    if isinstance(value, (str, bytes)):
        code, data = (_STRING, _encoded(name, value)) if isinstance(value, str) else (_BYTES, value)
        if len(data) > 0xFFFF:
            raise LocalMisuse(f"a header value of {len(data)} bytes", at=name)
        return bytes((code,)) + len(data).to_bytes(2, "big") + data
    try:
        code, layout = _CODES[type(value)]
        return bytes((code,)) + layout.pack(value)
    except (KeyError, struct.error):
        raise LocalMisuse(f"no header value: {type(value).__name__} {value!r}", at=name) from None


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise LocalMisuse(f"header text with a lone surrogate: {text[:40]!a}", at=ascii(name)) from None


def _seal(headers: bytes, payload: bytes) -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise LocalMisuse(f"{len(payload)} bytes of payload, more than {MAX_PAYLOAD}")
    lengths = _LENGTHS.pack(SHORTEST + len(headers) + len(payload), len(headers))
    body = b"".join((lengths, _CRC.pack(crc32(lengths)), headers, payload))
    return body + _CRC.pack(crc32(body))
