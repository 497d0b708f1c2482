"""Work grows no faster than its input: judged by counting, not by the clock.

What Python does is counted in instructions, which are the same in every run. What C does (copying bytes, regular
expressions) cannot be counted: there the CPU time of this thread decides, with the least of many runs and a bound that
is far from linear and farther from quadratic growth.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from bench.instructions import count_instructions

Work = Callable[[], object]


def cpu(work: Work, runs: int = 3) -> float:
    """The least CPU time of this thread of several runs."""
    least = float("inf")
    gc.disable()  # it would walk all that other tests left
    try:
        for _ in range(runs):
            began = time.thread_time()
            work()
            least = min(least, time.thread_time() - began)
    finally:
        gc.enable()
    return max(least, 1e-6)


def check_linear_growth(work: Callable[[int], Work], small: int, factor: int = 8, *, in_c: bool = True) -> None:
    """Fail if `factor` times the input is more than about `factor` times the work; quadratic would be its square.

    `in_c`: look at the CPU time, too, since the work may be done in C.
    """
    work(small)()  # what is only done once is done
    little = max(small // factor, 1)  # to count takes fifty times as long as to do
    short, long = count_instructions(work(little)), count_instructions(work(small))
    assert long <= 1.25 * small / little * short, f"{factor} times the input: {long / short:.1f} times the instructions"
    if in_c:
        check_cost_ratio(lambda: cpu(work(factor * small)) / cpu(work(small)), 4 * factor)


def check_cost_ratio(ratio: Callable[[], float], most: float, attempts: int = 5) -> None:
    """Fail if a ratio of two CPU times is never as small as that."""
    found: list[float] = []
    while len(found) < attempts:
        found.append(ratio())
        if found[-1] <= most:
            return
    raise AssertionError(f"{min(found):.0f} times as much, where {most:g} may be")


def check_constant_read_cost(feed: Callable[[bytes], object], size: int) -> None:
    """Fail if reads get slower while one frame of 8 MiB gathers: what is held must not be copied at every read."""
    read = b"a" * size

    def some() -> None:
        for _ in range(500):
            feed(read)

    some()
    early_count, early = count_instructions(some), cpu(some)
    for _ in range(8):
        feed(b"a" * (1 << 20))
    assert count_instructions(some) <= 1.1 * early_count
    check_cost_ratio(lambda: cpu(some) / early, 20)  # to copy 8 MiB takes a thousand times as long
