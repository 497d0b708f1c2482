"""AWS event streams (`application/vnd.amazon.eventstream`): a decoder for bytes cut anywhere, and the encoder.

A message is a prelude (total length, headers length, CRC of the two), headers, payload, and a CRC of all before it;
integers are big-endian. Theory of operation: the decoder buffers pieces until the next step has enough bytes (twelve
for a prelude, then the whole message), and joins them only then. It uses lengths only after their CRC matches. Headers
repeat from message to message, so the meaning of their bytes is cached, within bounds. Pure: no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from struct import Struct as Layout
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID
from zlib import crc32

from msgspec import Struct

from dragoman.errors import BadFrame, LocalMisuse, Truncated
from dragoman.wire.frame import Frame, then_raise
from dragoman.wire.jsonio import quote

# botocore's limits. aws-c-event-stream has one of 24 MiB for headers and payload together.
MAX_HEADERS = 128 * 1024
MAX_PAYLOAD = 24 * 1024 * 1024
MIN_MESSAGE_SIZE = 16  # a message without headers and payload

_PRELUDE = Layout(">III")
_PRELUDE_SIZE = 12
_LENGTHS = Layout(">II")
_CRC = Layout(">I")
_LONGEST_CACHED = 1024  # bytes of headers; larger ones would fill the cache


class PreludeChecksumMismatch(BadFrame):
    """The lengths do not match their CRC, so the next message cannot be located."""


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
    """A header value has a type code that does not exist."""


class DuplicateHeader(BadFrame):
    """Two headers have the same name."""


class BadHeaderText(BadFrame):
    """A header name is empty, or a header text is not UTF-8."""


class UnknownMessageType(BadFrame):
    """The `:message-type` is not event, exception or error, or a `:` header is not a string."""


# --- header values. Integers keep their width, so that decoded values encode to the same bytes.


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


# --- decoding


class EventStreamDecoder(Struct, eq=False):
    """Decodes bytes cut anywhere into frames. After an error the decoder stays failed."""

    buffered_bytes: int = 0  # see FrameDecoder
    _pieces: list[bytes] = []
    _need: int = _PRELUDE_SIZE  # bytes that the next step requires
    _failed: BadFrame | None = None

    def feed(self, chunk: bytes) -> Iterable[Frame]:
        """Return the frames that these bytes complete. A bad one raises a BadFrame after those before it.

        The kind is the `:event-type`, `:exception-type` or `:error-code`; the last two set `error`. A message without
        `:message-type` is an event. An error without payload gets its `:error-message` as `{"message": …}`.
        """
        if self._failed is not None:
            raise self._failed
        if self.buffered_bytes + len(chunk) < self._need:
            self._pieces.append(chunk)
            self.buffered_bytes += len(chunk)
            return ()
        if self._pieces:
            chunk = b"".join([*self._pieces, chunk])
            self._pieces, self.buffered_bytes = [], 0
        frames: list[Frame] = []
        begin, size = 0, len(chunk)
        self._need = _PRELUDE_SIZE
        try:
            while size - begin >= _PRELUDE_SIZE:
                total, at = _prelude(chunk[begin : begin + _PRELUDE_SIZE])
                end = begin + total
                if end > size:
                    self._need = total
                    break
                raw = chunk[begin:end]
                payload = raw[at:-4]
                kind, default, error, checksum = _cached_head(raw[:at]) if at <= _LONGEST_CACHED else _head(raw[:at])
                if crc32(payload, checksum) != _CRC.unpack_from(raw, total - 4)[0]:
                    raise MessageChecksumMismatch(f"a message of {total} bytes does not match its checksum")
                if kind is None:  # the checksum matches, so the headers were sent malformed: this raises
                    kind, default, error = _meaning(raw[_PRELUDE_SIZE:at])
                frames.append(Frame(kind, payload or default, raw, error))
                begin = end
        except BadFrame as failure:
            self._failed = failure
            return then_raise(frames, failure)
        if begin < size:
            self._pieces, self.buffered_bytes = [chunk[begin:]], size - begin
        return frames

    def close(self) -> Iterator[Frame]:
        """End the stream. Raises Truncated if it ended inside a message."""
        if self._failed is not None:
            raise self._failed
        if self.buffered_bytes:
            need = f"at least {MIN_MESSAGE_SIZE}" if self._need < MIN_MESSAGE_SIZE else str(self._need)
            raise Truncated(f"the stream ended inside a message, after {self.buffered_bytes} of {need} bytes")
        return iter(())


@lru_cache(256)
def _prelude(prelude: bytes) -> tuple[int, int]:
    """Check a prelude; return the length of the message and the offset of its payload. Lengths repeat: cached."""
    total, headers, checksum = _PRELUDE.unpack(prelude)
    if crc32(prelude[:8]) != checksum:
        raise PreludeChecksumMismatch("the lengths of a message do not match their checksum")
    if total < MIN_MESSAGE_SIZE:
        raise LengthOutOfRange(f"a message has {total} bytes, fewer than the minimum of {MIN_MESSAGE_SIZE}")
    if headers > MAX_HEADERS:
        raise HeadersTooLong(f"a message has {headers} bytes of headers, more than {MAX_HEADERS}")
    if headers > total - MIN_MESSAGE_SIZE:
        raise HeadersOverrun(f"a message of {total} bytes announces {headers} bytes of headers")
    if total - MIN_MESSAGE_SIZE - headers > MAX_PAYLOAD:
        payload = total - MIN_MESSAGE_SIZE - headers
        raise PayloadTooLong(f"a message has {payload} bytes of payload, more than {MAX_PAYLOAD}")
    return total, _PRELUDE_SIZE + headers


def _head(head: bytes) -> tuple[str | None, bytes, bool, int]:
    """Return kind, default payload, error flag and running checksum of a head. The kind is None if it is malformed."""
    area = head[_PRELUDE_SIZE:]
    try:
        meaning = _cached_meaning(area) if len(area) <= _LONGEST_CACHED else _meaning(area)
    except BadFrame:
        return None, b"", False, crc32(head)
    return *meaning, crc32(head)


def _meaning(area: bytes) -> tuple[str, bytes, bool]:
    """Return what a frame needs of its headers: the kind, the payload if it is empty, whether it is an error."""
    headers = parse_headers(area)

    def text(name: str) -> str:
        value = headers.get(name, "")
        if not isinstance(value, str):
            raise UnknownMessageType(f"header {name} is not a string")
        return value

    match text(":message-type"):
        case "event" | "":
            return text(":event-type"), b"", False
        case "exception":
            return text(":exception-type"), b"", True
        case "error":
            return text(":error-code"), b'{"message":%b}' % quote(text(":error-message")), True
        case unknown:
            raise UnknownMessageType(f"unknown message type {unknown!r}")


def parse_headers(area: bytes) -> Mapping[str, HeaderValue]:
    """Parse the bytes between prelude and payload. Raises a BadFrame of this module."""
    headers: dict[str, HeaderValue] = {}
    at = 0
    while at < len(area):
        size = area[at]
        name = _utf8(_take(area, at + 1, size))
        if not name:
            raise BadHeaderText("a header has no name")
        if name in headers:
            raise DuplicateHeader(f"two headers are named {name!r}")
        headers[name], at = _value(area, at + 1 + size)
    return MappingProxyType(headers)


_cached_meaning = lru_cache(256)(_meaning)
_cached_head = lru_cache(512)(_head)  # larger: the same headers appear with payloads of many lengths


def _value(area: bytes, at: int) -> tuple[HeaderValue, int]:
    """Parse one value, which starts with its type code; return it and the offset of its end."""
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
    raise UnknownHeaderType(f"a header value has the unknown type {code}")


def _take(area: bytes, at: int, size: int) -> bytes:
    if at + size > len(area):
        raise HeaderTruncated(f"a header ends at byte {at + size}, but all headers have {len(area)} bytes")
    return area[at : at + size]


def _utf8(text: bytes) -> str:
    try:
        return str(text, "utf-8")
    except UnicodeDecodeError:
        raise BadHeaderText(f"header text is not UTF-8: {text[:40]!r}") from None


# --- encoding


def encode_event(
    kind: bytes | str, payload: bytes, *, error: bool = False, content_type: str = "application/json"
) -> bytes:
    """Encode an event, or an exception if `error`, with the headers of AWS in their order. Raises LocalMisuse."""
    # Invalid UTF-8 becomes a surrogate, which `_encode_text` refuses.
    name = kind if isinstance(kind, str) else str(kind, "utf-8", "surrogateescape")
    return _encode_message(_event_headers(name, error, content_type), payload)


@lru_cache(256)
def _event_headers(kind: str, error: bool, content_type: str) -> bytes:
    name, message = (":exception-type", "exception") if error else (":event-type", "event")
    return pack_headers({name: kind, ":content-type": content_type, ":message-type": message})


def pack_headers(headers: Mapping[str, HeaderValue]) -> bytes:
    """Encode headers in their order. Raises LocalMisuse."""
    parts: list[bytes] = []
    for name, value in headers.items():
        encoded = _encode_text(name, name)
        if not 0 < len(encoded) <= 255:
            raise LocalMisuse(f"a header name has {len(encoded)} bytes; 1 to 255 are allowed", at=name[:40])
        parts += (bytes((len(encoded),)), encoded, _pack_value(name, value))
    area = b"".join(parts)
    if len(area) > MAX_HEADERS:
        raise LocalMisuse(f"a message has {len(area)} bytes of headers, more than {MAX_HEADERS}")
    return area


def _pack_value(name: str, value: HeaderValue) -> bytes:
    if isinstance(value, bool):
        return bytes((_TRUE if value else _FALSE,))
    if isinstance(value, UUID):
        return bytes((_UUID,)) + value.bytes
    if isinstance(value, (str, bytes)):
        code, data = (_STRING, _encode_text(name, value)) if isinstance(value, str) else (_BYTES, value)
        if len(data) > 0xFFFF:
            raise LocalMisuse(f"a header value has {len(data)} bytes; at most 65535 are allowed", at=name)
        return bytes((code,)) + len(data).to_bytes(2, "big") + data
    try:
        code, layout = _CODES[type(value)]
        return bytes((code,)) + layout.pack(value)
    except (KeyError, struct.error):
        raise LocalMisuse(f"a header value cannot be {type(value).__name__} {value!r}", at=name) from None


def _encode_text(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise LocalMisuse(f"header text has a lone surrogate: {text[:40]!a}", at=ascii(name)) from None


def _encode_message(headers: bytes, payload: bytes) -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise LocalMisuse(f"a message has {len(payload)} bytes of payload, more than {MAX_PAYLOAD}")
    lengths = _LENGTHS.pack(MIN_MESSAGE_SIZE + len(headers) + len(payload), len(headers))
    body = b"".join((lengths, _CRC.pack(crc32(lengths)), headers, payload))
    return body + _CRC.pack(crc32(body))
