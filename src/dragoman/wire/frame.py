"""Frames: what a byte stream is made of, whatever its framing. Nothing here knows what a frame means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct


class Frame(Struct, frozen=True, gc=False):
    """One frame as it came: its kind (SSE event name, `:event-type`), its data, and its own bytes."""

    kind: str
    data: bytes
    raw: bytes
    error: bool = False  # an event-stream exception or error message


class Payload(Struct, frozen=True, gc=False):
    """One frame to be written: a binding turns it into bytes."""

    kind: bytes
    data: bytes
    error: bool = False


class FrameDecoder(Protocol):
    """Cuts a byte stream into frames. Iterators, so that the frames before a bad one are already out."""

    def feed(self, chunk: bytes) -> Iterator[Frame]: ...

    def close(self) -> Iterator[Frame]: ...
