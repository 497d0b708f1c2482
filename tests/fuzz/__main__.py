"""Fuzz: `python -m tests.fuzz [TARGET…] [--seconds N | --runs N]`.

With --seconds it explores at random, guided by coverage, and keeps its corpus in build/fuzz. With --runs it tries a
fixed sequence of inputs. Inputs that break a promise are written to tests/vectors/crashes/TARGET/, and the suite tests
them from then on: fix the cause, then commit both.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the readers.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all, if none is named")
    parser.add_argument("--seconds", type=int, default=10, help="to explore each target (10)")
    parser.add_argument("--runs", type=int, help="to try on each target, the same each time, instead of exploring")
    parser.add_argument("--seed", type=int, default=1, help="of chance, where runs are counted (1)")
    arguments = parser.parse_args()
    if arguments.runs is None:
        return _explore(arguments.targets, arguments.seconds)
    if os.environ.get("PYTHONHASHSEED") != "0":  # set order depends on hashes: restart with a fixed hash seed
        again = [sys.executable, "-m", "tests.fuzz", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})
    from tests.fuzz import seeded_runs

    return seeded_runs.prove(arguments.targets, arguments.runs, arguments.seed)


def _explore(wanted: Sequence[str], seconds: int) -> int:
    import atheris

    with atheris.instrument_imports(include=["dragoman"]):  # takes seconds; the targets share it by forking
        from tests.fuzz import coverage_runs

    return coverage_runs.explore(wanted, seconds)


sys.exit(main())
