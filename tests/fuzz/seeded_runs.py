"""Deterministic fuzzing: a fixed number of inputs for each target, which depend only on the random seed."""

from __future__ import annotations

import faulthandler
import random
import time
import traceback
from collections.abc import Iterator, Sequence

from tests.fuzz.mutators import LIMIT, make_mutator
from tests.fuzz.targets import exit_status, find_targets, run_target, seeds

_LONGEST = 300  # seconds for a target; more counts as a hang


def prove(wanted: Sequence[str], runs: int, seed: int) -> int:
    return exit_status({target: _proven(target, runs, seed) for target in find_targets(wanted)})


def _proven(target: str, runs: int, seed: int) -> bool:
    began, good = time.monotonic(), True
    faulthandler.dump_traceback_later(_LONGEST, exit=True)
    try:
        for data in inputs(target, runs, seed):
            run_target(target, data)
    except Exception:  # noqa: BLE001  # every exception is a failure of the target
        good = False
        traceback.print_exc()
    faulthandler.cancel_dump_traceback_later()
    print(f"{target:24} {'ok' if good else 'BROKEN':7} {runs:>8} runs {time.monotonic() - began:6.1f} s", flush=True)
    return good


def inputs(target: str, runs: int, seed: int) -> Iterator[bytes]:
    """Yield valid examples, mutated once or several times."""
    examples = list(seeds(target))
    mutate, rng = make_mutator(target, examples), random.Random(f"{target} {seed}")
    for _ in range(runs):
        data = rng.choice(examples)
        for _ in range(rng.randint(1, 4)):
            data = mutate(data, LIMIT, rng.getrandbits(32))
        yield data
