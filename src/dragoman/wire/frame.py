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


class Row(Struct, frozen=True, gc=False):
    """Frames one after the other that differ in one JSON string only: what the strings say, and how they were spelt."""

    texts: list[str]
    insides: list[bytes]  # of the strings' literals
    raw: bytes
    rim: int  # bytes of each frame around its string


class Hole(Struct, frozen=True, gc=False):
    """A payload to be written, without the inside of one JSON string."""

    kind: bytes
    before: bytes
    after: bytes


class FrameDecoder(Protocol):
    """Cuts a byte stream into frames. Iterators, so that the frames before a bad one are already out.

    One may also give rows, to whoever takes frame after frame. `mould(frame, start, stop)` remembers a frame but for
    `data[start:stop]`, the inside of a JSON string; it may give None. `row(mould)`, between two frames of `feed`, takes
    the frames that come next as far as they are of this mould; `row(mould, chunk)`, instead of `feed`, those that a
    chunk begins with, and what follows them is still to be fed. None if there are none, or none that it can tell.
    `sole(mould, chunk)`, instead of `feed`, takes a chunk that is just one such frame: it gives what its string says,
    and the inside of its literal; `fits(mould, chunk)` does so, too, and does not say what is in it. `skip(mould)` is
    to `row(mould)` what `fits` is to `sole`: it gives how many frames it took, and the bytes of the last. These three
    may be missing.
    """

    @property
    def held(self) -> int:
        """Bytes that wait for the rest of their frame."""

    def feed(self, chunk: bytes) -> Iterator[Frame]: ...

    def close(self) -> Iterator[Frame]: ...
