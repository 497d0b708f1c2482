"""One load run: measure a base level after a warm-up, run the load, and check that the level is reached again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.load.clients import PAIRS, LoadClients, LoadCounts
from tests.load.gateway import Gateway, Measurement, configuration, start_gateway_process, start_upstreams

MIB = 1 << 20
GROWTH = 1.10  # memory may grow by this factor
_SETTLED = 60.0  # seconds for files and tasks to be released
_SAMPLED = 1.0  # seconds between two samples


@dataclass(frozen=True)
class LoadPlan:
    streams: int
    seconds: float
    response: float  # seconds of one response
    warm: float
    filling: int = 0  # streams before the base level, so that the bounded response store is full
    chaos: bool = False
    slow: float = 0.0


@dataclass
class Sample:
    at: float
    memory: int
    files: int
    tally: tuple[int, int, int, int, int]  # requests, right, left, lost, wrong


@dataclass
class Report:
    start: Measurement
    level: Measurement
    end: Measurement
    tally: LoadCounts
    seconds: float
    samples: list[Sample] = field(default_factory=list)

    @property
    def peak(self) -> int:
        return max(sample.memory for sample in self.samples)

    def slope(self) -> float:
        """Return the growth of memory in bytes per second, by least squares, without the first fifth."""
        samples = self.samples[len(self.samples) // 5 :]
        middle = sum(each.at for each in samples) / len(samples)
        mean = sum(each.memory for each in samples) / len(samples)
        spread = sum((each.at - middle) ** 2 for each in samples)
        return sum((each.at - middle) * (each.memory - mean) for each in samples) / spread if spread else 0.0

    def problems(self) -> list[str]:
        tally, found = self.tally, []
        if tally.lost:
            found.append(f"{len(tally.lost)} lost, as {tally.lost[0]}")
        if tally.wrong:
            found.append(f"{len(tally.wrong)} wrong, as {tally.wrong[0]}")
        if missing := set(PAIRS) - set(tally.pairs):
            found.append(f"{len(missing)} pairs of dialects had no response")
        if self.end.memory > self.level.memory * GROWTH:
            found.append(f"memory is at {self.end.memory / self.level.memory:.2f} of its level")
        if self.end.files > self.start.files:
            found.append(f"{self.end.files - self.start.files} files are left open")
        if self.end.tasks > self.start.tasks:
            found.append(f"{self.end.tasks - self.start.tasks} tasks are left over")
        return found


def run(plan: LoadPlan, folder: Path, watch: Callable[[Sample], None] | None = None) -> Report:
    with start_upstreams(plan.response) as named, start_gateway_process(folder, configuration(named)) as gateway:
        ports = set(named.values())
        start = gateway.at_rest(ports, 0, 0, 1.0)
        if plan.filling:
            asyncio.run(LoadClients(gateway.url, 3, hasty=True).run(plan.streams, 300.0, most=plan.filling))
        asyncio.run(LoadClients(gateway.url, 1).run(plan.streams, plan.warm, chaos=plan.chaos, slow=plan.slow))
        level = gateway.at_rest(ports, start.files, start.tasks, _SETTLED)
        crowd, samples = LoadClients(gateway.url, 2), list[Sample]()
        began = time.monotonic()
        with _sampled(gateway, crowd, samples, watch):
            tally = asyncio.run(crowd.run(plan.streams, plan.seconds, chaos=plan.chaos, slow=plan.slow))
        seconds = time.monotonic() - began
        end = gateway.at_rest(ports, start.files, start.tasks, _SETTLED)
        return Report(start, level, end, tally, seconds, samples)


@contextmanager
def _sampled(
    gateway: Gateway, crowd: LoadClients, samples: list[Sample], watch: Callable[[Sample], None] | None
) -> Iterator[None]:
    began, finished = time.monotonic(), threading.Event()

    def look() -> None:
        tally = crowd.tally
        counts = (tally.requests, tally.right, tally.left, len(tally.lost), len(tally.wrong))
        samples.append(Sample(time.monotonic() - began, gateway.memory(), gateway.files(), counts))
        if watch is not None:
            watch(samples[-1])

    def run() -> None:
        while not finished.wait(_SAMPLED):
            look()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
        look()
