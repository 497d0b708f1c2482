"""Encode and decode whole AWS event-stream messages with headers of any type, also those our encoder never writes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dragoman.wire import eventstream
from dragoman.wire.eventstream import HeaderValue, pack_headers, parse_headers


class Message(Struct, frozen=True):
    """One decoded message: its headers and its payload."""

    headers: Mapping[str, HeaderValue]
    payload: bytes


def encode_message(headers: Mapping[str, HeaderValue], payload: bytes = b"") -> bytes:
    """Return one encoded message. Raises LocalMisuse if the format cannot represent it."""
    return eventstream._encode_message(pack_headers(headers), payload)


def decode_message(raw: bytes) -> Message:
    """Return the single message in `raw`. Raises BadFrame, also for wrong checksums."""
    total, payload = eventstream._prelude(raw[:12])
    assert len(raw) == total
    return Message(parse_headers(raw[12:payload]), raw[payload:-4])
