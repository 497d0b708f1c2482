"""Check growth: cost per event in long streams, cost per byte of large bodies, memory of open and ended streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from bench import load
from bench.measure import BadCell, Results, measure_cell, median
from bench.request_bodies import SIZE
from bench.scenarios import BY_NAME, Scenario
from bench.servers import Gateway, MeasuredServer, Upstream, check_response, request_bytes

STREAMS, ROUNDS = 1000, 4
_FIRST = 32  # streams opened beforehand: the modules and caches that they load are not counted
_LARGE = 40 * SIZE  # characters per message; the body has 20 MB
_ROUNDS = 3


async def flat(server: MeasuredServer, results: Results, progress: Callable[[str], None]) -> None:
    """Measure µs per event of a long stream, relative to a short one."""
    cases = {
        "flat": (replace(BY_NAME["C"], question="small"), "short", "long"),
        "flat, passed": (BY_NAME["B"], "short", "long"),
        "flat, raw Kimi": (BY_NAME["F"], "kimi-short", "kimi-long"),
    }
    for name, (base, short, long) in cases.items():
        one, other = (replace(base, upstream=kind, callers=2) for kind in (short, long))
        await _ratio(server, name, (one, other), results, lambda scenario: scenario.events)
        progress(name)


async def linear(server: MeasuredServer, upstream: Upstream, results: Results, progress: Callable[[str], None]) -> None:
    """Measure ms per MB of a body of 20 MB, relative to one of 0.5 MB."""
    one, other = (replace(BY_NAME["E"], size=size, callers=2) for size in (SIZE, _LARGE))
    await _ratio(server, "linear", (one, other), results, lambda scenario: len(request_bytes(server, scenario)))
    sent, received = len(request_bytes(server, other)), upstream.sizes()["whole"]
    if received < sent * 0.9:
        raise BadCell(f"the gateway got {sent} bytes and the upstream only {received}")
    progress("linear")


async def _ratio(
    server: MeasuredServer,
    name: str,
    pair: tuple[Scenario, Scenario],
    results: Results,
    units: Callable[[Scenario], int],
) -> None:
    costs: dict[Scenario, list[float]] = {scenario: [] for scenario in pair}
    for scenario in pair:
        check_response(server, scenario)
    for _ in range(_ROUNDS):
        for scenario in pair:
            done = await measure_cell(server, scenario, 0, 0.8)
            costs[scenario].append(done.cpu / done.requests / units(scenario))
    small, large = (
        min(costs[scenario]) for scenario in pair
    )  # other processes can only add to the cost, so the minimum counts
    results.figures.setdefault(name, {})[server.name] = [large / small]


async def open_streams(gateway: Gateway, results: Results, progress: Callable[[str], None]) -> None:
    """Open streams and close them, several times: measure the memory of each, and the memory that stays afterwards."""
    scenario = replace(BY_NAME["C"], question="small", upstream="held", callers=STREAMS)
    port, raw = gateway.target(scenario)[0], request_bytes(gateway, scenario)
    (await load.flowing(port, raw, _FIRST)).abort()
    await asyncio.sleep(1.0)
    at_rest, full, busy = [gateway.process.memory()], [], []
    for number in range(ROUNDS):
        running = await load.flowing(port, raw, STREAMS)
        if running.counts.errors or any(not caller.size for caller in running.callers):
            raise BadCell(f"not all streams began: {running.counts.errors[:1]}")
        before = gateway.cpu()
        await asyncio.sleep(2.0)
        busy.append((gateway.cpu() - before) / 2.0 * 100)
        full.append(gateway.process.memory())
        running.abort()
        await asyncio.sleep(1.5)
        at_rest.append(gateway.process.memory())
        progress(f"held streams {number + 1}/{ROUNDS}")
    # Memory that the allocator keeps after the first wave is not a leak. Memory that each further wave adds is one.
    figures = {
        "stream memory": (full[0] - at_rest[0]) * 1024 / STREAMS,
        "kept memory": max(0.0, (at_rest[-1] - at_rest[1]) * 1024 / STREAMS / (ROUNDS - 1)),
        "held CPU": median(busy),
    }
    for name, value in figures.items():
        results.figures.setdefault(name, {})[gateway.name] = [value]
