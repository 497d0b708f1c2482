"""Cells: one scenario asked of one lane for a moment, and what that cost."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench import load
from bench.load import LoadCounts
from bench.scenarios import BY_NAME, Scenario
from bench.servers import DirectServer, MeasuredServer, request_bytes

SECONDS = 1.2
PACED_TURNS = 3  # of each lane in a round: where little is done, what else runs on the machine shows most
PROBE, WARM = 0.25, 0.2
SETTLED = 0.3  # of paced streams, before they count


class BadCell(Exception):
    """A cell with a mistake in it counts for nothing."""


@dataclass(frozen=True)
class Cell:
    """What one cell gave. CPU in seconds; times in ms, of a lone caller."""

    requests: float
    events: float
    cpu: float
    rate: float  # a second: requests, or events of paced streams
    times: Sequence[float] = ()
    firsts: Sequence[float] = ()

    @property
    def ms_a_request(self) -> float:
        return self.cpu / self.requests * 1e3 if self.requests else float("nan")

    @property
    def us_an_event(self) -> float:
        return self.cpu / self.events * 1e6 if self.events else float("nan")

    def figure(self, per: str) -> float:
        return self.us_an_event if per == "event" else self.ms_a_request


@dataclass(frozen=True)
class WorkersCell:
    """What a cell of several workers gave: requests a second; CPU ms a request, ours and the load's; what the
    busier worker took of ours."""

    rate: float
    ours: float
    load: float
    busiest: float


@dataclass
class Results:
    """Cells by scenario and lane, one per round; other figures by name and lane; what went wrong."""

    cells: dict[str, dict[str, list[Cell]]] = field(default_factory=dict)
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    shared: dict[str, dict[int, list[WorkersCell]]] = field(default_factory=dict)  # by scenario and number of workers
    troubles: dict[str, str] = field(default_factory=dict)  # "lane" or "lane, scenario": why it is not judged

    def series(self, figure: str, lane: str) -> list[float]:
        """The figure that bars judge, round by round."""
        if figure in BY_NAME:
            return [
                measure_cell.figure(BY_NAME[figure].per) for measure_cell in self.cells.get(figure, {}).get(lane, [])
            ]
        return self.figures.get(figure, {}).get(lane, [])


async def measure_cell(lane: MeasuredServer, scenario: Scenario, least_size: int, seconds: float | None = None) -> Cell:
    """Raises BadCell."""
    raw = request_bytes(lane, scenario)
    port = lane.target(scenario)[0]
    if scenario.paced:
        return await _paced(lane, scenario, port, raw, seconds or SECONDS)
    probe = check_counts(await load.closed(port, raw, 1, PROBE), least_size)
    times, firsts = [time * 1e3 for time in probe.times], [time * 1e3 for time in probe.firsts]
    if isinstance(lane, DirectServer) and lane.name == "direct":
        return Cell(0, 0, 0, 0, times, firsts)
    check_counts(await load.closed(port, raw, scenario.callers, WARM), least_size)
    before = lane.cpu()
    tally = check_counts(await load.closed(port, raw, scenario.callers, seconds or SECONDS), least_size)
    cpu = lane.cpu() - before
    requests = tally.requests
    return Cell(requests, requests * scenario.events, cpu, requests / tally.seconds, times, firsts)


async def _paced(lane: MeasuredServer, scenario: Scenario, port: int, raw: bytes, seconds: float) -> Cell:
    running = await load.flowing(port, raw, scenario.callers)
    await asyncio.sleep(SETTLED)
    tally, loop = running.tally, asyncio.get_running_loop()
    events, cpu, began = tally.events, lane.cpu(), loop.time()
    await asyncio.sleep(seconds)
    events, cpu, took = tally.events - events, lane.cpu() - cpu, loop.time() - began
    if tally.requests:
        raise BadCell("streams ended while they were measured")
    check_counts(tally, 0)
    running.abort()
    await asyncio.sleep(SETTLED)
    return Cell(0, events, cpu, events / took)


def joined(cells: Sequence[Cell]) -> Cell:
    """What several turns gave together."""
    return Cell(
        sum(each.requests for each in cells),
        sum(each.events for each in cells),
        sum(each.cpu for each in cells),
        statistics.mean(each.rate for each in cells),
        [time for each in cells for time in each.times],
        [time for each in cells for time in each.firsts],
    )


def check_counts(tally: LoadCounts, least_size: int) -> LoadCounts:
    """The same; raises BadCell for a mistake in it."""
    if tally.errors:
        raise BadCell(f"{len(tally.errors)} errors, the first: {tally.errors[0]}")
    if tally.sizes and min(tally.sizes) < least_size * 0.98:
        raise BadCell(f"an answer of {min(tally.sizes)} bytes where {least_size} were read before")
    return tally


async def measure_rounds(
    scenario: Scenario,
    lanes: Mapping[str, tuple[MeasuredServer, Scenario, int]],
    count: int,
    results: Results,
    tell: Callable[[str], None],
) -> None:
    """Every lane in every round, in another order each time, so that compared cells are neighbours."""
    found = results.cells.setdefault(scenario.name, {})
    for number in range(count):
        turns: dict[str, list[Cell]] = {}
        for _ in range(PACED_TURNS if scenario.paced else 1):
            order = [name for name in lanes if f"{name}, {scenario.name}" not in results.troubles]
            random.shuffle(order)
            for name in order:
                lane, asked, least_size = lanes[name]
                try:
                    turns.setdefault(name, []).append(await measure_cell(lane, asked, least_size))
                except (BadCell, OSError) as error:
                    results.troubles[f"{name}, {scenario.name}"] = str(error)
                    found.pop(name, None)
                    turns.pop(name, None)
        for name, cells in turns.items():
            found.setdefault(name, []).append(joined(cells))
        tell(f"{scenario.name} {number + 1}/{count}")


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def spread(values: Sequence[float]) -> float:
    """How far apart the rounds are: half of the range, in parts of the median."""
    return (max(values) - min(values)) / 2 / median(values) if len(values) > 1 and median(values) else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")
