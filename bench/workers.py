"""Compare one worker with two on one port (SO_REUSEPORT): CPU time per request, and requests per second.

All processes may use all cores, including the load generator and the upstream, whose CPU time is reported too. On a
machine with two cores the second worker shares its core with them, so the rate cannot double.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from bench import load, processes
from bench.measure import SECONDS, WARM, WorkersCell, check_counts
from bench.scenarios import BY_NAME, Scenario
from bench.servers import Gateway, Upstream, check_response, request_bytes

COUNTS = (1, 2)
NAMES = ("A", "B", "C")
CALLERS = 64  # the kernel distributes connections at random: enough of them for an even share


async def compare(
    gateways: Mapping[int, Gateway], upstream: Upstream, rounds: int, progress: Callable[[str], None]
) -> dict[str, dict[int, list[WorkersCell]]]:
    """Return the cells by scenario and number of workers. Raises BadCell, WrongResponse, OSError."""
    found: dict[str, dict[int, list[WorkersCell]]] = {name: {count: [] for count in gateways} for name in NAMES}
    before = os.sched_getaffinity(0)
    pids = [pid for gateway in gateways.values() for pid in gateway.process.pids]
    _set_cores(set(processes.CORES), 0, upstream.pid, *pids)
    try:
        for name in NAMES:
            for gateway in gateways.values():
                check_response(gateway, BY_NAME[name])
            for number in range(rounds):
                for count, gateway in gateways.items():
                    found[name][count].append(await _cell(gateway, BY_NAME[name], upstream))
                progress(f"workers {name} {number + 1}/{rounds}")
    finally:
        _set_cores(before, 0, upstream.pid)
    return found


def _set_cores(cores: set[int], *pids: int) -> None:
    for pid in pids:
        os.sched_setaffinity(pid, cores)


async def _cell(gateway: Gateway, scenario: Scenario, upstream: Upstream) -> WorkersCell:
    port, raw = gateway.target(scenario)[0], request_bytes(gateway, scenario)
    check_counts(await load.closed(port, raw, CALLERS, WARM), 0)
    ours, others = gateway.process.cpus(), time.process_time() + processes.cpu_of(upstream.pid)
    counts = check_counts(await load.closed(port, raw, CALLERS, SECONDS), 0)
    others = time.process_time() + processes.cpu_of(upstream.pid) - others
    spent = [now - ours.get(pid, 0.0) for pid, now in gateway.process.cpus().items()]
    per_request = 1e3 / counts.requests
    return WorkersCell(
        counts.requests / counts.seconds, sum(spent) * per_request, others * per_request, max(spent) / sum(spent)
    )
