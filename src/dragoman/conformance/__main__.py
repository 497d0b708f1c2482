"""`python -m dragoman.conformance NAME…`: run the conformance kit on dialects, by default on all."""

from __future__ import annotations

import sys

import dragoman.dialects as registry
from dragoman.conformance import run


def main(names: list[str]) -> int:
    """Print the failures and counts of each dialect; return 1 if any law does not hold."""
    failed = 0
    for name in names or list(registry.names()):
        tried, failures = run(registry.get(name))
        failed += len(failures)
        sys.stdout.write("".join(f"{name}: {failure}\n" for failure in failures))
        sys.stdout.write(f"{name}: {tried - len(failures)} passed, {len(failures)} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
