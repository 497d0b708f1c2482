"""Ways to cut bytes, and the check that work grows no faster than its input."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

VECTORS = Path(__file__).parents[2] / "vectors"


def vectors(name: str) -> Any:
    return json.loads((VECTORS / name).read_text(encoding="utf-8"))


def reads(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def two_way_cuts(data: bytes) -> Iterator[list[bytes]]:
    for at in range(len(data) + 1):
        yield [data[:at], data[at:]]


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def grows_linearly(work: Callable[[int], Callable[[], object]], small: int, factor: int = 8) -> None:
    """Fail if `factor` times the input takes far more than `factor` times as long; quadratic would be its square.

    The best of three runs each, and up to three attempts: the machine may be busy.
    """
    ratios: list[float] = []
    while len(ratios) < 3:
        short, long = (min(_timed(work(size)) for _ in range(3)) for size in (small, factor * small))
        ratios.append(long / short)
        if ratios[-1] < 3 * factor:
            return
    raise AssertionError(f"{factor} times the input took {min(ratios):.0f} times as long")


def a_read_costs_the_same_however_much_is_held(feed: Callable[[bytes], object], size: int) -> None:
    """Fail if reads get slower while one frame of 8 MiB gathers: what is held must not be copied at every read."""
    read = b"a" * size
    count = 200

    def some() -> None:
        for _ in range(count):
            feed(read)

    early = min(_timed(some) for _ in range(5))
    for _ in range(8):
        feed(b"a" * (1 << 20))
    late = min(_timed(some) for _ in range(5))
    assert late < 10 * early, f"a read costs {late / early:.0f} times as much as at the beginning"


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
