"""`make load`: 256 streams for two minutes, then the fairness test. `make soak`: ten minutes with clients that
disconnect or read slowly.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.load.clients import CLIENTS, SESSION
from tests.load.fairness import run as fairness_run
from tests.load.run import MIB, LoadPlan, Report, Sample, run
from tests.load.upstream import DIALECTS

_LINE = 30.0  # seconds between two lines of a soak
_FILLING = 7000  # a sixth of them is stored, a thousand at most (`gateway/response_store.py`)
_STEADY = 0.05  # the share of the base level that memory may grow by in a soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--soak", action="store_true", help="each second a tenth of the clients leaves; some are slow")
    parser.add_argument("--fairness", action="store_true", help="only measure what others wait beside a greedy client")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--response", type=float, default=4.0, help="seconds that one response takes")
    arguments = parser.parse_args()
    if arguments.fairness:
        return _fairness()
    seconds = arguments.seconds or (600.0 if arguments.soak else 120.0)
    plan = LoadPlan(
        arguments.streams,
        seconds,
        arguments.response,
        warm=max(arguments.response * 2, seconds / 10),
        filling=_FILLING,
        chaos=arguments.soak,
        slow=0.1 if arguments.soak else 0.0,
    )
    with tempfile.TemporaryDirectory() as folder:
        report = run(plan, Path(folder), _Lines() if arguments.soak else None)
    problems = report.problems()
    if arguments.soak and report.slope() * seconds > _STEADY * report.level.memory:
        problems.append(f"memory grows by {report.slope() * 3600 / MIB:.1f} MiB an hour")
    print(_table(report))
    print("; ".join(problems) if problems else "none lost, none mixed, nothing left over")
    exit_status = 0 if arguments.soak else _fairness()
    return 1 if problems else exit_status


def _fairness() -> int:
    with tempfile.TemporaryDirectory() as folder:
        fairness = fairness_run(Path(folder))
    problems = fairness.problems()
    print(fairness.table())
    print("; ".join(problems) if problems else "fair")
    return 1 if problems else 0


class _Lines:
    """Prints a progress line at intervals."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, sample: Sample) -> None:
        if sample.at >= self._next:
            self._next += _LINE
            requests, right, left, lost, wrong = sample.tally
            print(
                f"{sample.at:6.0f} s  {requests:7} asked {right:7} right {left:6} left {lost:3} lost {wrong:3} wrong"
                f"  {sample.memory / MIB:6.1f} MiB {sample.files:5} files",
                flush=True,
            )


def _table(report: Report) -> str:
    tally = report.tally
    rows = [f"{'responses':16}" + "".join(f"{name:>11}" for name in DIALECTS)]
    for client in (*CLIENTS, SESSION):
        rows.append(f"{client:16}" + "".join(f"{tally.pairs[client, name]:11}" for name in DIALECTS))
    rows += ["", f"{'':16}{'start':>11}{'level':>11}{'peak':>11}{'end':>11}"]
    start, level, end = report.start, report.level, report.end
    memory = (start.memory, level.memory, report.peak, end.memory)
    rows.append(f"{'memory, MiB':16}" + "".join(f"{each / MIB:11.1f}" for each in memory))
    files = (start.files, level.files, max(each.files for each in report.samples), end.files)
    rows.append(f"{'files':16}" + "".join(f"{each:11}" for each in files))
    rows.append(f"{'tasks':16}{start.tasks:11}{level.tasks:11}{'':>11}{end.tasks:11}")
    rows += [
        "",
        f"{tally.requests} streams in {report.seconds:.0f} s, {tally.most} at once, {tally.bytes / MIB:.0f} MiB: "
        f"{tally.right} right, {tally.left} left by their clients, {len(tally.lost)} lost, {len(tally.wrong)} wrong",
        f"gateway: {end.cpu - level.cpu:.1f} s of CPU; memory's slope {report.slope() * 3600 / MIB:+.1f} MiB an hour",
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
