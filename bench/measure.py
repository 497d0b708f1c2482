"""Measure cells: a cell is one scenario sent to one server for about a second, and its cost.

The cells of one server are a series; the report shows each series as a row.
"""

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
PACED_TURNS = 3  # per server and round: small costs need more turns, because other processes disturb them most
PROBE, WARM = 0.25, 0.2
SETTLED = 0.3  # seconds that paced streams run before they are measured


class BadCell(Exception):
    """A measurement with errors, which does not count."""


@dataclass(frozen=True)
class Cell:
    """The result of one cell. CPU in seconds; times in ms, of a single caller."""

    requests: float
    events: float
    cpu: float
    rate: float  # per second: requests, or events of paced streams
    times: Sequence[float] = ()
    firsts: Sequence[float] = ()

    @property
    def ms_a_request(self) -> float:
        """CPU time per request, in ms."""
        return self.cpu / self.requests * 1e3 if self.requests else float("nan")

    @property
    def us_an_event(self) -> float:
        """CPU time per event, in µs."""
        return self.cpu / self.events * 1e6 if self.events else float("nan")

    def figure(self, per: str) -> float:
        """Return the cost per `event` or per `request`."""
        return self.us_an_event if per == "event" else self.ms_a_request


@dataclass(frozen=True)
class WorkersCell:
    """The result of a cell with several workers.

    `rate` is requests per second; `ours` and `load` are CPU ms per request, of the gateway and of the load generator
    with the upstream; `busiest` is the busiest worker's share of `ours`.
    """

    rate: float
    ours: float
    load: float
    busiest: float


@dataclass
class Results:
    """Cells by scenario and server, one per round; other figures by name and server; problems."""

    cells: dict[str, dict[str, list[Cell]]] = field(default_factory=dict)
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    shared: dict[str, dict[int, list[WorkersCell]]] = field(default_factory=dict)  # by scenario and number of workers
    problems: dict[str, str] = field(default_factory=dict)  # "server" or "server, scenario": why it is not judged

    def series(self, figure: str, server: str) -> list[float]:
        """Return the values that a limit judges, one per round."""
        if figure in BY_NAME:
            return [cell.figure(BY_NAME[figure].per) for cell in self.cells.get(figure, {}).get(server, [])]
        return self.figures.get(figure, {}).get(server, [])


async def measure_cell(
    server: MeasuredServer, scenario: Scenario, least_size: int, seconds: float | None = None
) -> Cell:
    """Measure one scenario on one server. Raises BadCell."""
    raw = request_bytes(server, scenario)
    port = server.target(scenario)[0]
    if scenario.paced:
        return await _paced(server, scenario, port, raw, seconds or SECONDS)
    probe = check_counts(await load.closed(port, raw, 1, PROBE), least_size)
    times, firsts = [time * 1e3 for time in probe.times], [time * 1e3 for time in probe.firsts]
    if isinstance(server, DirectServer) and server.name == "direct":
        return Cell(0, 0, 0, 0, times, firsts)
    check_counts(await load.closed(port, raw, scenario.callers, WARM), least_size)
    before = server.cpu()
    counts = check_counts(await load.closed(port, raw, scenario.callers, seconds or SECONDS), least_size)
    cpu = server.cpu() - before
    requests = counts.requests
    return Cell(requests, requests * scenario.events, cpu, requests / counts.seconds, times, firsts)


async def _paced(server: MeasuredServer, scenario: Scenario, port: int, raw: bytes, seconds: float) -> Cell:
    running = await load.flowing(port, raw, scenario.callers)
    await asyncio.sleep(SETTLED)
    counts, loop = running.counts, asyncio.get_running_loop()
    events, cpu, began = counts.events, server.cpu(), loop.time()
    await asyncio.sleep(seconds)
    events, cpu, elapsed = counts.events - events, server.cpu() - cpu, loop.time() - began
    if counts.requests:
        raise BadCell("streams ended while they were measured")
    check_counts(counts, 0)
    running.abort()
    await asyncio.sleep(SETTLED)
    return Cell(0, events, cpu, events / elapsed)


def joined(cells: Sequence[Cell]) -> Cell:
    """Return several cells as one."""
    return Cell(
        sum(each.requests for each in cells),
        sum(each.events for each in cells),
        sum(each.cpu for each in cells),
        statistics.mean(each.rate for each in cells),
        [time for each in cells for time in each.times],
        [time for each in cells for time in each.firsts],
    )


def check_counts(counts: LoadCounts, least_size: int) -> LoadCounts:
    """Return the counts; raises BadCell for errors, or for a response that is too small."""
    if counts.errors:
        raise BadCell(f"{len(counts.errors)} errors, the first: {counts.errors[0]}")
    if counts.sizes and min(counts.sizes) < least_size * 0.98:
        raise BadCell(f"a response has {min(counts.sizes)} bytes, but the first one had {least_size}")
    return counts


async def measure_rounds(
    scenario: Scenario,
    measured: Mapping[str, tuple[MeasuredServer, Scenario, int]],
    count: int,
    results: Results,
    progress: Callable[[str], None],
) -> None:
    """Measure every server in every round, in random order, so that the compared cells are close in time."""
    found = results.cells.setdefault(scenario.name, {})
    for number in range(count):
        turns: dict[str, list[Cell]] = {}
        for _ in range(PACED_TURNS if scenario.paced else 1):
            order = [name for name in measured if f"{name}, {scenario.name}" not in results.problems]
            random.shuffle(order)
            for name in order:
                server, own_scenario, least_size = measured[name]
                try:
                    turns.setdefault(name, []).append(await measure_cell(server, own_scenario, least_size))
                except (BadCell, OSError) as error:
                    results.problems[f"{name}, {scenario.name}"] = str(error)
                    found.pop(name, None)
                    turns.pop(name, None)
        for name, cells in turns.items():
            found.setdefault(name, []).append(joined(cells))
        progress(f"{scenario.name} {number + 1}/{count}")


def median(values: Sequence[float]) -> float:
    """Return the median; NaN for no values."""
    return statistics.median(values) if values else float("nan")


def spread(values: Sequence[float]) -> float:
    """Return half the range of the values, relative to their median."""
    return (max(values) - min(values)) / 2 / median(values) if len(values) > 1 and median(values) else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies; NaN for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")
