"""Frames: what a byte stream is made of, whatever its framing. Nothing here knows what a frame means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    """Cuts a byte stream into frames. One that meets a bad frame gives those before it, and then raises."""

    @property
    def held(self) -> int:
        """Bytes that wait for the rest of their frame."""

    def feed(self, chunk: bytes) -> Iterable[Frame]:
        """Give the frames that the chunk completes. A tuple holds one frame at most, which is all of the chunk."""

    def close(self) -> Iterable[Frame]: ...


def then_raise(frames: Iterable[Frame], error: Exception) -> Iterator[Frame]:
    """Give the frames that came before an error, and raise it."""
    yield from frames
    raise error
