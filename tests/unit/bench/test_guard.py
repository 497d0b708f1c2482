"""The guard against slow codecs: it can fail, and it does not fail for nothing."""

from __future__ import annotations

import re

import pytest

from bench.exchanges import exchange
from bench.guard import MORE, MORE_STEPS, costs, reference, slower, steps, whole


def test_a_codec_that_does_its_work_twice_is_too_slow_and_the_same_codec_is_not() -> None:
    work = whole(exchange("C"))

    def twice() -> None:
        work()
        work()

    works = {"as it was": work, "again": work, "twice": twice}
    counted = {name: float(steps(each)) for name, each in works.items()}
    assert set(slower(counted, dict.fromkeys(counted, counted["as it was"]), MORE_STEPS)) == {"twice"}
    assert counted["again"] == counted["as it was"]


def test_work_of_c_is_seen_in_the_cpu() -> None:
    """A regular expression that reads for long is one instruction."""
    text, looks = "a" * 2000, re.compile("a*b")  # quadratic
    works = {"none": reference, "much": lambda: (reference(), looks.search(text))}
    measured = costs(works, turns=5)
    assert set(slower(measured, dict.fromkeys(measured, measured["none"]))) == {"much"}


def test_more_than_may_be_is_too_much() -> None:
    found = slower({"a": MORE * 10.1, "b": MORE * 9.9, "new": 99.0}, {"a": 10.0, "b": 10.0})

    assert found == {"a": pytest.approx(MORE * 1.01)}
