"""What the fuzzer found once, and the seeds it begins with, keep their promises, and so do their neighbours."""

from __future__ import annotations

import pytest

from tests.fuzz.seeded_runs import inputs
from tests.fuzz.targets import CRASHES, TARGETS, crashes, seeds


@pytest.mark.parametrize("target", TARGETS)
def test_what_broke_once_does_not_break_again(target: str) -> None:
    for data in crashes(target):
        TARGETS[target](data)


def test_every_folder_of_crashes_has_its_target() -> None:
    assert {path.name for path in CRASHES.glob("*")} <= TARGETS.keys()


@pytest.mark.parametrize("target", TARGETS)
def test_good_examples_and_their_neighbours_keep_the_promises(target: str) -> None:
    for example in seeds(target):
        TARGETS[target](example)
    for data in inputs(target, 200, seed=0):
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_tried_is_the_same_each_time(target: str) -> None:
    assert [*inputs(target, 20, seed=1)] == [*inputs(target, 20, seed=1)] != [*inputs(target, 20, seed=2)]
