"""Profile one scenario: `python -m bench.profile C [SECONDS]`, with py-spy on the PATH or in PY_SPY.

Prints the functions with the most samples: their own, and those that include the functions they call.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bench import gateways, load, processes
from bench.scenarios import BY_NAME, OURS
from bench.servers import Gateway, Upstream, check_response, request_bytes

ROWS = 30


def main(name: str, seconds: float, source: str) -> int:
    """Run the scenario under py-spy and print the samples; return the exit code."""
    spy = os.environ.get("PY_SPY") or shutil.which("py-spy")
    if spy is None:
        print("py-spy was not found. Install it, or set PY_SPY to its path.", file=sys.stderr)
        return 1
    os.sched_setaffinity(0, processes.core(processes.LOAD))
    scenario, upstream = BY_NAME[name], Upstream()
    with tempfile.TemporaryDirectory(prefix="dragoman-profile-") as folder:
        launch = gateways.dragoman(Path(folder), upstream.ports)
        gateway = Gateway(OURS, launch, Path(folder), BY_NAME["A"], Path(source) if source else None)
        raw = Path(folder) / "raw"
        try:
            check_response(gateway, scenario)
            pid = str(gateway.process.pids[0])
            command = [
                spy,
                "record",
                "-p",
                pid,
                "-d",
                str(int(seconds)),
                "-r",
                "500",
                "--nonblocking",
                "-f",
                "raw",
                "-o",
                str(raw),
            ]
            profiler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            port = gateway.target(scenario)[0]
            more = seconds + 1
            asyncio.run(_load(port, request_bytes(gateway, scenario), scenario.callers, more, paced=scenario.paced))
            if profiler.wait():
                assert profiler.stderr is not None
                print(profiler.stderr.read().decode(), file=sys.stderr)
                return 1
            show(raw.read_text().splitlines())
        finally:
            gateway.stop()
            upstream.stop()
    return 0


async def _load(port: int, raw: bytes, callers: int, seconds: float, *, paced: bool) -> None:
    counts = await load.closed(port, raw, callers, seconds, callers)
    if counts.errors:
        print(counts.errors[0], file=sys.stderr)
    print(f"{counts.requests} requests{' paced' if paced else ''}")


def show(lines: list[str]) -> None:
    """Print the functions with the most samples, from py-spy's raw output."""
    own: Counter[str] = Counter()
    cumulative: Counter[str] = Counter()
    for line in lines:
        stack, _, samples = line.rpartition(" ")
        if "_worker (concurrent/futures" in stack.rpartition(";")[2]:
            continue  # a thread that waits for work
        frames = [frame.rpartition(":")[0] for frame in stack.split(";")]
        own[frames[-1]] += int(samples)
        for frame in set(frames):
            cumulative[frame] += int(samples)
    total = sum(own.values())
    print(f"{total} samples\n{'own':>6} {'with':>6}")
    for frame, count in own.most_common(ROWS):
        print(f"{count / total:6.1%} {cumulative[frame] / total:6.1%}  {frame}")
    print("\nincluding the functions they call")
    for frame, count in cumulative.most_common(ROWS + 15):
        print(f"{own[frame] / total:6.1%} {count / total:6.1%}  {frame}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 5.0, os.environ.get("DRAGOMAN_SOURCE", "")))
