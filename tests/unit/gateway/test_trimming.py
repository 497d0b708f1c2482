"""Memory goes back to the system after a burst of large requests, and only then."""

from __future__ import annotations

import pytest

from dragoman.gateway.limits import MemoryBudget, RequestLimits, Trimmer

MIB = 1024 * 1024


@pytest.fixture
def load() -> MemoryBudget:
    return MemoryBudget(RequestLimits())


def test_a_burst_that_is_over_is_trimmed_once(load: MemoryBudget) -> None:
    done: list[int] = []
    trimmer = Trimmer(load, lambda: done.append(1))
    shares = [load.enter() for _ in range(10)]
    for account in shares:
        account.reserve(MIB)
    trimmer.look(100.0)
    assert not done  # it is not over
    for account in shares:
        account.leave()
    trimmer.look(100.25)
    trimmer.look(100.5)
    assert len(done) == 1


def test_small_requests_are_never_worth_it(load: MemoryBudget) -> None:
    done: list[int] = []
    trimmer = Trimmer(load, lambda: done.append(1))
    for second in range(100):
        account = load.enter()
        account.add(MIB)
        account.leave()
        trimmer.look(float(second))
    assert not done


def test_very_many_small_requests_at_once_are_a_burst(load: MemoryBudget) -> None:
    done: list[int] = []
    trimmer = Trimmer(load, lambda: done.append(1))
    shares = [load.enter() for _ in range(1000)]
    trimmer.look(100.0)
    assert not done
    for account in shares:
        account.leave()
    trimmer.look(100.25)
    trimmer.look(110.0)
    assert len(done) == 1


def test_bursts_one_after_the_other_are_trimmed_seconds_apart(load: MemoryBudget) -> None:
    done: list[int] = []
    trimmer = Trimmer(load, lambda: done.append(1))
    for quarter in range(80):  # 20 s
        account = load.enter()
        account.reserve(8 * MIB)
        account.leave()
        trimmer.look(100 + quarter / 4)
    assert len(done) == 4


def test_the_real_one_does_no_harm(load: MemoryBudget) -> None:
    account = load.enter()
    account.reserve(8 * MIB)
    account.leave()
    Trimmer(load).look(100.0)
    assert load.peak == 0
