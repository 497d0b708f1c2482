"""Pieces of a body: pace, cuts and write sizes change what they say they change, and no byte more."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from dragoman.simulator.pieces import Break, Pause, Piece, shaped
from dragoman.simulator.script import Cut, Pace

_FRAMES = st.lists(st.binary(min_size=1, max_size=9), max_size=6)


def sent(pieces: Iterable[Piece]) -> bytes:
    return b"".join(piece for piece in pieces if isinstance(piece, bytes))


@given(_FRAMES, st.integers(0, 12), st.sampled_from([0.0, 0.1]))
def test_pace_and_write_size_keep_every_byte(frames: list[bytes], write: int, delay: float) -> None:
    pieces = list(shaped(frames, Pace(write=write, delay=delay), None))
    assert sent(pieces) == b"".join(frames)
    assert sum(isinstance(piece, Pause) for piece in pieces) == (len(frames) if delay else 0)


@given(_FRAMES, st.integers(1, 9))
def test_writes_have_their_size_except_the_last(frames: list[bytes], write: int) -> None:
    sizes = [len(piece) for piece in shaped(frames, Pace(write=write), None) if isinstance(piece, bytes)]
    assert all(size == write for size in sizes[:-1])
    assert all(size <= write for size in sizes[-1:])


@given(_FRAMES, st.integers(0, 60), st.integers(0, 5))
def test_a_cut_at_a_byte_sends_exactly_the_bytes_before_it(frames: list[bytes], byte: int, write: int) -> None:
    *pieces, last = shaped(frames, Pace(write=write), Cut(byte=byte, how="reset"))
    assert sent(pieces) == b"".join(frames)[:byte]
    assert last == Break("reset")


@given(_FRAMES, st.integers(0, 8))
def test_a_cut_at_an_event_sends_exactly_the_frames_before_it(frames: list[bytes], event: int) -> None:
    *pieces, last = shaped(frames, Pace(), Cut(event=event))
    assert pieces == frames[:event]
    assert last == Break("close")
