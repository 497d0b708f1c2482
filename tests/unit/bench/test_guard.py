"""The guard against slow codecs: it can fail, and it does not fail for nothing."""

from __future__ import annotations

import pytest

from bench.exchanges import exchange
from bench.guard import MORE, costs, slower, whole


def test_a_codec_that_does_its_work_twice_is_too_slow_and_the_same_codec_is_not() -> None:
    work = whole(exchange("C"))

    def twice() -> None:
        work()
        work()

    measured = costs({"as it was": work, "again": work, "twice": twice}, turns=20)
    recorded = dict.fromkeys(measured, measured["as it was"])

    assert set(slower(measured, recorded)) == {"twice"}


def test_a_third_more_is_too_much() -> None:
    found = slower({"a": MORE * 10.1, "b": MORE * 9.9, "new": 99.0}, {"a": 10.0, "b": 10.0})

    assert found == {"a": pytest.approx(MORE * 1.01)}
