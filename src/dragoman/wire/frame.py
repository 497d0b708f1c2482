"""Frames: the units of a response stream in any framing (SSE, AWS event stream, NDJSON).

This module does not interpret the data of a frame; the decoders of the dialects do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from msgspec import Struct


class Frame(Struct, frozen=True, gc=False):
    """One decoded frame: its kind (SSE event name, `:event-type`), its data, and its original bytes."""

    kind: str
    data: bytes
    raw: bytes
    error: bool = False  # an event-stream exception or error message


class Payload(Struct, frozen=True, gc=False):
    """One frame to be sent; the binding of the dialect encodes it."""

    kind: bytes
    data: bytes
    error: bool = False


class FrameDecoder(Protocol):
    """Splits a byte stream into frames. At a bad frame it yields the frames before it, and then raises."""

    @property
    def buffered_bytes(self) -> int:
        """The number of buffered bytes of an incomplete frame."""

    def feed(self, chunk: bytes) -> Iterable[Frame]:
        """Return the frames that the chunk completes. A tuple has at most one frame, which is the whole chunk."""

    def close(self) -> Iterable[Frame]:
        """End the stream, and return the frames that its end completes."""


def then_raise(frames: Iterable[Frame], error: Exception) -> Iterator[Frame]:
    """Yield the frames before an error, then raise it."""
    yield from frames
    raise error
