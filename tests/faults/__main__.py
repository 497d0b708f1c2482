"""`python -m tests.faults`: run every probe of every fault and print a table of the results. Exit status 1 on a failure.

Arguments are passed to pytest, as in `-k 28-`.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

os.environ["DRAGOMAN_FAULTS"] = "all"

KINDS = ("lost", "wrong", "hung")


class Tally:
    """Counts the results that the cases report, from all pytest processes."""

    def __init__(self) -> None:
        self.cases: Counter[int] = Counter()
        self.problems: dict[int, Counter[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if report.when != "call" or "fault" not in properties:
            return
        number = int(str(properties["fault"]))
        self.cases[number] += int(str(properties["probes"]))
        kinds = self.problems.setdefault(number, Counter())
        found = properties["problems"]
        kinds.update(found if isinstance(found, list) else ())
        if report.failed and not found:  # it failed outside of a probe
            kinds["wrong"] += 1

    def table(self, names: dict[int, str]) -> str:
        width = max(len(name) for name in names.values())
        lines = [f"{'fault':<{width + 4}}{'cases':>8}{'lost':>6}{'wrong':>7}{'hung':>6}"]
        for number in sorted(self.cases):
            kinds = self.problems[number]
            counts = f"{self.cases[number]:>8}{kinds['lost']:>6}{kinds['wrong']:>7}{kinds['hung']:>6}"
            lines.append(f"{number:>2}  {names[number]:<{width}}{counts}")
        total = sum(self.problems.values(), Counter())
        counts = f"{sum(self.cases.values()):>8}{total['lost']:>6}{total['wrong']:>7}{total['hung']:>6}"
        return "\n".join([*lines, f"{'all':<{width + 4}}{counts}"])


def main() -> int:
    from tests.faults.catalogue import ROWS  # imported after the environment variable is set

    tally, began = Tally(), time.monotonic()
    jobs = [] if any(each.startswith("-n") for each in sys.argv) else ["-n", "2"]
    arguments = [str(Path(__file__).parent), "-q", "--no-header", "-p", "no:cacheprovider", *jobs, *sys.argv[1:]]
    status = pytest.main(arguments, plugins=[tally])
    if not tally.cases:
        return int(status) or 1
    print(f"\n{tally.table({row.number: row.name for row in ROWS.values()})}\n\n{time.monotonic() - began:.0f} s")
    bad = any(kinds[kind] for kinds in tally.problems.values() for kind in KINDS)
    return 1 if bad or status else 0


if __name__ == "__main__":
    sys.exit(main())
