"""Check that work grows linearly with its input, by counting instructions instead of measuring wall time.

Python work is counted in bytecode instructions, which are the same in every run. Work in C (copying bytes, regular
expressions) cannot be counted: there the least CPU time of many runs is compared with a bound that lies well above
linear growth and well below quadratic growth.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from bench.instructions import count_instructions

Work = Callable[[], object]


def cpu(work: Work, runs: int = 3) -> float:
    """Return the least CPU time of this thread over several runs."""
    least = float("inf")
    gc.disable()  # a collection would walk through the objects of all other tests
    try:
        for _ in range(runs):
            began = time.thread_time()
            work()
            least = min(least, time.thread_time() - began)
    finally:
        gc.enable()
    return max(least, 1e-6)


def check_linear_growth(work: Callable[[int], Work], small: int, factor: int = 8, *, in_c: bool = True) -> None:
    """Fail if `factor` times the input takes much more than `factor` times the work.

    `in_c`: compare CPU time as well, because the work may be done in C.
    """
    work(small)()  # warm up: caches and imports
    little = max(small // factor, 1)  # counting is fifty times slower than running
    short, long = count_instructions(work(little)), count_instructions(work(small))
    assert long <= 1.25 * small / little * short, f"{factor} times the input: {long / short:.1f} times the instructions"
    if in_c:
        check_cost_ratio(lambda: cpu(work(factor * small)) / cpu(work(small)), 4 * factor)


def check_cost_ratio(ratio: Callable[[], float], most: float, attempts: int = 5) -> None:
    """Fail if a ratio of two CPU times stays above `most` in every attempt."""
    found: list[float] = []
    while len(found) < attempts:
        found.append(ratio())
        if found[-1] <= most:
            return
    raise AssertionError(f"{min(found):.0f} times as much, where {most:g} may be")


def check_constant_read_cost(feed: Callable[[bytes], object], size: int) -> None:
    """Fail if reads get slower while one frame of 8 MiB is buffered: a read must not copy the buffer."""
    read = b"a" * size

    def feed_some() -> None:
        for _ in range(500):
            feed(read)

    feed_some()
    early_count, early = count_instructions(feed_some), cpu(feed_some)
    for _ in range(8):
        feed(b"a" * (1 << 20))
    assert count_instructions(feed_some) <= 1.1 * early_count
    check_cost_ratio(lambda: cpu(feed_some) / early, 20)  # copying 8 MiB takes a thousand times as long
