"""What must not grow: the cost of an event with the stream, of a byte with the body; memory with streams that ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from bench import load
from bench.measure import BadCell, Results, measure_cell, median
from bench.request_bodies import SIZE
from bench.scenarios import BY_NAME, Scenario
from bench.servers import Gateway, MeasuredServer, Upstream, check_response, request_bytes

STREAMS, WAVES = 1000, 4
_FIRST = 32  # streams: what is loaded and kept when the first ones come is not theirs
_LARGE = 40 * SIZE  # characters a message: 20 MB
_TIMES = 3


async def flat(lane: MeasuredServer, results: Results, tell: Callable[[str], None]) -> None:
    """µs an event of the longest stream, in parts of a short one's."""
    ways = {
        "flat": (replace(BY_NAME["C"], question="small"), "short", "long"),
        "flat, passed": (BY_NAME["B"], "short", "long"),
        "flat, raw Kimi": (BY_NAME["F"], "kimi-short", "kimi-long"),
    }
    for name, (base, short, long) in ways.items():
        one, other = (replace(base, upstream=kind, callers=2) for kind in (short, long))
        await _ratio(lane, name, (one, other), results, lambda scenario: scenario.events)
        tell(name)


async def linear(lane: MeasuredServer, upstream: Upstream, results: Results, tell: Callable[[str], None]) -> None:
    """ms a MB of a huge body, in parts of a large one's."""
    one, other = (replace(BY_NAME["E"], size=size, callers=2) for size in (SIZE, _LARGE))
    await _ratio(lane, "linear", (one, other), results, lambda scenario: len(request_bytes(lane, scenario)))
    sent, came = len(request_bytes(lane, other)), upstream.sizes()["whole"]
    if came < sent * 0.9:
        raise BadCell(f"{sent} bytes went in and {came} came out")
    tell("linear")


async def _ratio(
    lane: MeasuredServer,
    name: str,
    pair: tuple[Scenario, Scenario],
    results: Results,
    units: Callable[[Scenario], int],
) -> None:
    costs: dict[Scenario, list[float]] = {scenario: [] for scenario in pair}
    for scenario in pair:
        check_response(lane, scenario)
    for _ in range(_TIMES):
        for scenario in pair:
            done = await measure_cell(lane, scenario, 0, 0.8)
            costs[scenario].append(done.cpu / done.requests / units(scenario))
    small, large = (min(costs[scenario]) for scenario in pair)  # what others do on the machine only ever adds
    results.figures.setdefault(name, {})[lane.name] = [large / small]


async def held(gateway: Gateway, results: Results, tell: Callable[[str], None]) -> None:
    """Hold streams open, let them go, and do it again: what each takes, and what is left of it."""
    scenario = replace(BY_NAME["C"], question="small", upstream="held", callers=STREAMS)
    port, raw = gateway.target(scenario)[0], request_bytes(gateway, scenario)
    (await load.flowing(port, raw, _FIRST)).abort()
    await asyncio.sleep(1.0)
    at_rest, full, busy = [gateway.process.memory()], [], []
    for wave in range(WAVES):
        running = await load.flowing(port, raw, STREAMS)
        if running.tally.errors or any(not caller.size for caller in running.callers):
            raise BadCell(f"not all streams began: {running.tally.errors[:1]}")
        before = gateway.cpu()
        await asyncio.sleep(2.0)
        busy.append((gateway.cpu() - before) / 2.0 * 100)
        full.append(gateway.process.memory())
        running.abort()
        await asyncio.sleep(1.5)
        at_rest.append(gateway.process.memory())
        tell(f"held streams {wave + 1}/{WAVES}")
    # What the allocator keeps for the next streams after the first wave is no leak; what every further one adds, is.
    figures = {
        "stream memory": (full[0] - at_rest[0]) * 1024 / STREAMS,
        "kept memory": max(0.0, (at_rest[-1] - at_rest[1]) * 1024 / STREAMS / (WAVES - 1)),
        "held CPU": median(busy),
    }
    for name, value in figures.items():
        results.figures.setdefault(name, {})[gateway.name] = [value]
