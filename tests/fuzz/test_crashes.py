"""What the fuzzer found once, and the seeds it begins with, keep their promises, and so do their neighbours."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.targets import CRASHES, TARGETS, crashes, seeds


@pytest.mark.parametrize("target", TARGETS)
def test_what_broke_once_does_not_break_again(target: str) -> None:
    for data in crashes(target):
        TARGETS[target](data)


def test_every_folder_of_crashes_has_its_target() -> None:
    assert {path.name for path in CRASHES.glob("*")} <= TARGETS.keys()


@pytest.mark.parametrize("target", TARGETS)
def test_good_examples_and_their_neighbours_keep_the_promises(target: str) -> None:
    rng = random.Random(target)
    tried = 0
    for seed in seeds(target):
        TARGETS[target](seed)
        for _ in range(8):
            TARGETS[target](_bent(seed, rng))
            tried += 1
    assert tried >= 8 or not any(seeds(target))


def _bent(data: bytes, rng: random.Random) -> bytes:
    """The same bytes with a piece changed, doubled or missing."""
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.randrange(1, 24))
    middle = rng.choice([b"", rng.randbytes(3), data[start:end] * 2, b"null", b'"', b"\n\n"])
    return data[:start] + middle + data[end:]
