"""The properties of the targets hold for inputs that failed before, for seeds, and for mutations of the seeds."""

from __future__ import annotations

import pytest

from tests.fuzz.seeded_runs import inputs
from tests.fuzz.targets import CRASHES, TARGETS, crashes, seeds


@pytest.mark.parametrize("target", TARGETS)
def test_earlier_findings_keep_the_promises(target: str) -> None:
    for data in crashes(target):
        TARGETS[target](data)


def test_every_folder_of_crashes_has_a_target() -> None:
    assert {path.name for path in CRASHES.glob("*")} <= TARGETS.keys()


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_and_their_mutations_keep_the_promises(target: str) -> None:
    for example in seeds(target):
        TARGETS[target](example)
    for data in inputs(target, 200, seed=0):
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_the_inputs_of_a_seed_are_always_the_same(target: str) -> None:
    assert [*inputs(target, 20, seed=1)] == [*inputs(target, 20, seed=1)] != [*inputs(target, 20, seed=2)]
