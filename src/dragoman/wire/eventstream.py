"""AWS event streams (`application/vnd.amazon.eventstream`): checked decoding of bytes cut anywhere, and the encoder.

A message is a prelude (total length, headers length, CRC of the two), headers, payload, and a CRC of all before it;
integers are big-endian. Theory of operation: pieces are kept until there are as many bytes as the next step needs,
twelve for a prelude and then the whole message, and are joined only then. Lengths are believed only after their CRC
matched. Headers repeat from message to message, so what their bytes mean is remembered, within bounds.
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
_LONGEST_CACHED = 1024  # bytes of headers: larger ones would fill the cache


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


# --- decoding


class EventStreamDecoder(Struct, eq=False):
    """Feed bytes cut anywhere; get frames. After an error the decoder stays failed."""

    held: int = 0  # see FrameDecoder
    _held: list[bytes] = []
    _need: int = _PRELUDE_SIZE  # bytes, before which nothing can be done
    _failed: BadFrame | None = None

    def feed(self, chunk: bytes) -> Iterable[Frame]:
        """Take more bytes and give the frames they complete. Raises a BadFrame of this module, after those before it.

        The kind is the `:event-type`, `:exception-type` or `:error-code`; the last two set `error`. A message without
        `:message-type` is an event. An error without payload gets its `:error-message` as `{"message": …}`.
        """
        if self._failed is not None:
            raise self._failed
        if self.held + len(chunk) < self._need:
            self._held.append(chunk)
            self.held += len(chunk)
            return ()
        if self._held:
            chunk = b"".join([*self._held, chunk])
            self._held, self.held = [], 0
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
                kind, instead, error, so_far = _cached_head(raw[:at]) if at <= _LONGEST_CACHED else _head(raw[:at])
                if crc32(payload, so_far) != _CRC.unpack_from(raw, total - 4)[0]:
                    raise MessageChecksumMismatch(f"a message of {total} bytes does not match its checksum")
                if kind is None:  # no byte is broken, so the headers themselves are wrong: this raises
                    kind, instead, error = _meaning(raw[_PRELUDE_SIZE:at])
                frames.append(Frame(kind, payload or instead, raw, error))
                begin = end
        except BadFrame as failure:
            self._failed = failure
            return then_raise(frames, failure)
        if begin < size:
            self._held, self.held = [chunk[begin:]], size - begin
        return frames

    def close(self) -> Iterator[Frame]:
        """End the stream. Raises Truncated if it ended inside a message."""
        if self._failed is not None:
            raise self._failed
        if self.held:
            need = f"at least {MIN_MESSAGE_SIZE}" if self._need < MIN_MESSAGE_SIZE else str(self._need)
            raise Truncated(f"the stream ended inside a message, after {self.held} of {need} bytes")
        return iter(())


@lru_cache(256)
def _prelude(prelude: bytes) -> tuple[int, int]:
    """Check a prelude; give the message's length and where its payload begins. Lengths repeat, hence the cache."""
    total, headers, checksum = _PRELUDE.unpack(prelude)
    if crc32(prelude[:8]) != checksum:
        raise PreludeChecksumMismatch("a message's lengths do not match their checksum")
    if total < MIN_MESSAGE_SIZE:
        raise LengthOutOfRange(f"a message of {total} bytes, shorter than {MIN_MESSAGE_SIZE}")
    if headers > MAX_HEADERS:
        raise HeadersTooLong(f"{headers} bytes of headers, more than {MAX_HEADERS}")
    if headers > total - MIN_MESSAGE_SIZE:
        raise HeadersOverrun(f"{headers} bytes of headers in a message of {total}")
    if total - MIN_MESSAGE_SIZE - headers > MAX_PAYLOAD:
        raise PayloadTooLong(f"{total - MIN_MESSAGE_SIZE - headers} bytes of payload, more than {MAX_PAYLOAD}")
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
    lengths = _LENGTHS.pack(MIN_MESSAGE_SIZE + len(headers) + len(payload), len(headers))
    body = b"".join((lengths, _CRC.pack(crc32(lengths)), headers, payload))
    return body + _CRC.pack(crc32(body))
