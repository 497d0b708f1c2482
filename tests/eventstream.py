"""Whole messages of an AWS event stream, with headers of any type: services send more than our own encoder writes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dragoman.wire import eventstream
from dragoman.wire.eventstream import HeaderValue, pack_headers, parse_headers


class Message(Struct, frozen=True):
    headers: Mapping[str, HeaderValue]
    payload: bytes


def encode_message(headers: Mapping[str, HeaderValue], payload: bytes = b"") -> bytes:
    """Write one message. Raises LocalMisuse for what the format cannot hold."""
    return eventstream._seal(pack_headers(headers), payload)


def decode_message(raw: bytes) -> Message:
    """Read the one message in `raw`, whose checksums are right. Raises BadFrame."""
    total, payload = eventstream._prelude(raw[:12])
    assert len(raw) == total
    return Message(parse_headers(raw[12:payload]), raw[payload:-4])
