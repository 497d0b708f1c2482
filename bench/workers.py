"""One worker and two on one port (SO_REUSEPORT): what a request costs with either, and how many come through.

All processes may use all cores, also the load generator and the upstream, whose CPU time is reported too: on a
machine of two cores they leave the second worker no core of its own, so the rate cannot double.
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
CALLERS = 64  # the kernel deals connections out by chance: enough of them that it deals evenly


async def compare(
    gateways: Mapping[int, Gateway], upstream: Upstream, rounds: int, tell: Callable[[str], None]
) -> dict[str, dict[int, list[WorkersCell]]]:
    """Cells by scenario and number of workers. Raises BadCell, WrongAnswer, OSError."""
    found: dict[str, dict[int, list[WorkersCell]]] = {name: {count: [] for count in gateways} for name in NAMES}
    before = os.sched_getaffinity(0)
    everybody = [pid for gateway in gateways.values() for pid in gateway.process.pids]
    _spread(set(processes.CORES), 0, upstream.pid, *everybody)
    try:
        for name in NAMES:
            for gateway in gateways.values():
                check_response(gateway, BY_NAME[name])
            for number in range(rounds):
                for count, gateway in gateways.items():
                    found[name][count].append(await _cell(gateway, BY_NAME[name], upstream))
                tell(f"workers {name} {number + 1}/{rounds}")
    finally:
        _spread(before, 0, upstream.pid)
    return found


def _spread(cores: set[int], *pids: int) -> None:
    for pid in pids:
        os.sched_setaffinity(pid, cores)


async def _cell(gateway: Gateway, scenario: Scenario, upstream: Upstream) -> WorkersCell:
    port, raw = gateway.target(scenario)[0], request_bytes(gateway, scenario)
    check_counts(await load.closed(port, raw, CALLERS, WARM), 0)
    ours, others = gateway.process.cpus(), time.process_time() + processes.cpu_of(upstream.pid)
    tally = check_counts(await load.closed(port, raw, CALLERS, SECONDS), 0)
    others = time.process_time() + processes.cpu_of(upstream.pid) - others
    spent = [now - ours.get(pid, 0.0) for pid, now in gateway.process.cpus().items()]
    a_request = 1e3 / tally.requests
    return WorkersCell(
        tally.requests / tally.seconds, sum(spent) * a_request, others * a_request, max(spent) / sum(spent)
    )
