"""The judgement of `make load LOAD=--fairness`; the measurement itself takes half a minute."""

from __future__ import annotations

import json

from tests.load.fairness import MOST, Fairness, Part
from tests.load.flood import BODY, large_body

LOAD = {"bodies": 3, "deltas": 1000, "seconds": 2.0, "trouble": []}


def measured(beside: float, same: float, load: dict[str, object] = LOAD, samples: int = 600) -> Fairness:
    waits = [0.001] * (samples - 20)
    return Fairness(
        [
            Part("alone", [*waits, *[0.002] * 20]),
            Part("beside", [*waits, *[beside] * 20], dict(LOAD)),
            Part("same", [*waits, *[same] * 20], dict(load)),
        ]
    )


def test_three_times_the_wait_is_fair_and_more_is_not() -> None:
    assert not measured(0.010, 0.010 * MOST).troubles()
    assert "more than 3" in measured(0.010, 0.031).troubles()[0]
    assert "600" in measured(0.010, 0.020).table()


def test_a_measurement_without_load_or_samples_does_not_count() -> None:
    assert measured(0.010, 0.010, LOAD | {"bodies": 0}).troubles() == ["same: there was no load"]
    assert measured(0.010, 0.010, LOAD | {"trouble": ["it ended"]}).troubles() == ["same: it ended"]
    assert len(measured(0.010, 0.010, samples=400).troubles()) == 3


def test_the_large_body_is_as_large_as_it_says_and_within_the_limits() -> None:
    body = large_body()
    assert 0.9 * BODY < len(body) < 32 * 1024 * 1024
    assert len(json.loads(body)["messages"]) < 2048
