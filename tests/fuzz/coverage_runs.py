"""Coverage-guided fuzzing, one process for each target. Import it while the package is being instrumented."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import atheris

from tests.fuzz.mutators import LIMIT, BytesMutator, make_mutator
from tests.fuzz.targets import exit_status, find_targets, run_target, seeds

_FOUND = Path("build/fuzz")
_OPTIONS = ("-print_final_stats=1", "-verbosity=0", f"-max_len={LIMIT}", "-timeout=20", f"-artifact_prefix={_FOUND}/")


def explore(wanted: Sequence[str], seconds: int) -> int:
    return exit_status({target: _explored(target, seconds) for target in find_targets(wanted)})


def _explored(target: str, seconds: int) -> bool:
    """Fuzz in a child process, because the fuzzer and crashes end their process."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as log:
        sys.stdout.flush()
        if not (child := os.fork()):
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            _fuzz(target, seconds)
        good = os.waitpid(child, 0)[1] == 0
        log.seek(0)
        lines = log.read().decode("utf-8", "replace").splitlines()
    runs = next((line.split()[-1] for line in lines if line.startswith("stat::number_of_executed_units")), "?")
    print(f"{target:24} {'ok' if good else 'BROKEN':7} {runs:>8} runs {time.monotonic() - began:6.1f} s", flush=True)
    if not good:
        print("\n".join(lines[-40:]), flush=True)
    return good


def _fuzz(target: str, seconds: int) -> NoReturn:
    examples, corpus = list(seeds(target)), _FOUND / target
    corpus.mkdir(parents=True, exist_ok=True)
    for example in examples:
        (corpus / hashlib.sha1(example, usedforsecurity=False).hexdigest()).write_bytes(example)
    mutate = make_mutator(target, examples)
    # The fuzzer mutates bytes well itself.
    mutator = {} if isinstance(mutate, BytesMutator) else {"custom_mutator": mutate}
    arguments = [sys.argv[0], *_OPTIONS, f"-max_total_time={seconds}", str(corpus)]
    atheris.Setup(arguments, lambda data: run_target(target, data), **mutator)
    atheris.Fuzz()
    raise AssertionError("the fuzzer ends its process")
