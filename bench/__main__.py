"""Dragoman and its peers side by side, on pinned cores: `make bench`. Exits with 1 if a bar is missed.

A peer that is not installed is named and its bars are not judged; one that is installed and does not start fails.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bench import gateways, growth, processes, report
from bench.lanes import Direct, Gateway, Lane, NotStarted, Relay, Upstream, checked
from bench.measure import BadCell, Results, cell, rounds
from bench.reading import WrongAnswer
from bench.scenarios import BARS, BY_NAME, FLOOR, LITELLM, OURS, ROUTER, Scenario

try:
    from uvloop import new_event_loop
except ImportError:
    new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]

START, GROWTH, WORKERS = "start", "growth", "workers"
PARTS = (*BY_NAME, START, GROWTH, WORKERS)
_SAVED = gateways.ROOT / "build" / "bench" / "results.json"
Make = Callable[[str], Gateway]


class Bench:
    def __init__(self, chosen: argparse.Namespace, folder: Path, upstream: Upstream) -> None:
        self.results = Results()
        self.failed: list[str] = []  # installed, and did not start
        self._chosen, self._folder, self._upstream = chosen, folder, upstream
        self._made = 0
        self.makers: dict[str, Make] = self._ours() | self._peers()
        self.ours = [name for name in self.makers if name.startswith(OURS)]
        self._running: dict[str, Lane] = {}

    # --- who takes part

    def _ours(self) -> dict[str, Make]:
        makers: dict[str, Make] = {OURS: partial(self._dragoman)}
        for engine in self._chosen.engines:
            makers[f"{OURS} {engine}"] = partial(self._dragoman, engine=engine)
        for source in self._chosen.against:
            makers[f"{OURS} {source.name}"] = partial(self._dragoman, source=source / "src")
        return makers

    def _dragoman(self, name: str, *, engine: str = "", source: Path | None = None, workers: int = 1) -> Gateway:
        folder = self._new_folder()
        launch = gateways.dragoman(folder, self._upstream.ports, engine=engine, workers=workers)
        return Gateway(name, launch, folder, BY_NAME["A"], source)

    def _peers(self) -> dict[str, Make]:
        makers: dict[str, Make] = {}
        for name in gateways.MAKERS:
            if name not in self._chosen.peers:
                self.results.troubles[name] = "not asked for"
            elif not gateways.installed(name):
                self.results.troubles[name] = "not installed: make bench-peers"
            else:
                makers[name] = self._peer
        return makers

    def _peer(self, name: str) -> Gateway:
        folder = self._new_folder()
        first = BY_NAME["C" if name == ROUTER else "A"]
        return Gateway(name, gateways.MAKERS[name](folder, self._upstream.ports), folder, first)

    def _new_folder(self) -> Path:
        self._made += 1
        return self._folder / str(self._made)

    def start(self) -> None:
        tell("starting")
        for name, make in self.makers.items():
            try:
                self._running[name] = make(name)
            except NotStarted as error:
                self.results.troubles[name] = f"would not start: {error}"
                self.failed.append(f"{name} would not start")
        self._running[FLOOR] = Relay(self._upstream.ports, self._new_folder())
        self._running["direct"] = Direct(self._upstream.ports)

    def stop(self) -> None:
        for lane in self._running.values():
            lane.stop()  # type: ignore[attr-defined]

    # --- the parts

    async def scenario(self, scenario: Scenario) -> None:
        lanes: dict[str, tuple[Lane, Scenario, int]] = {}
        for name in (*self.ours, *scenario.rivals, "direct"):
            lane, _, other = name.partition(":")
            asked = BY_NAME[other] if other else scenario
            if lane not in self._running or (lane == "direct" and scenario.paced):
                continue
            try:
                plain = lane in ("direct", FLOOR)
                lanes[name] = (self._running[lane], asked, 0 if plain else checked(self._running[lane], asked))
                if not plain:
                    self._whole(asked)
            except (WrongAnswer, OSError, http.client.HTTPException) as error:
                self.results.troubles[f"{name}, {scenario.name}"] = f"a wrong answer: {error}"
                if lane == OURS:
                    self.failed.append(f"{scenario.name}: a wrong answer: {error}")
        await rounds(scenario, lanes, self._chosen.rounds, self.results, tell)

    def _whole(self, scenario: Scenario) -> None:
        """A question that lost its greater part on the way is answered fast, too. Raises WrongAnswer."""
        meant = {"long": 480_000, "pairs": 480_000}.get(scenario.question, 0)
        came = self._upstream.sizes()[scenario.upstream]
        if came < meant:
            raise WrongAnswer(f"the upstream was sent {came} bytes of more than {meant}")

    def starts(self) -> None:
        """Cold start and idle memory, in processes of their own."""
        for number in range(self._chosen.rounds):
            for name, make in self.makers.items():
                if name not in self._running or (name != LITELLM and not name.startswith(OURS) and number):
                    continue
                try:
                    gateway = make(name)
                except NotStarted as error:
                    self.failed.append(f"{name} would not start again: {error}")
                    continue
                self.results.figures.setdefault("cold start", {}).setdefault(name, []).append(gateway.started_in)
                time.sleep(0.3)
                memory = gateway.process.memory()
                self.results.figures.setdefault("idle memory", {}).setdefault(name, []).append(memory)
                gateway.stop()
            tell(f"cold start {number + 1}/{self._chosen.rounds}")

    async def growth(self) -> None:
        for name in self.ours:
            lane = self._running.get(name)
            if not isinstance(lane, Gateway):
                continue
            try:
                await growth.flat(lane, self.results, tell)
                await growth.linear(lane, self._upstream, self.results, tell)
                fresh = self.makers[name](name)
                try:
                    await growth.held(fresh, self.results, tell)
                finally:
                    fresh.stop()
            except (BadCell, WrongAnswer, NotStarted, OSError) as error:
                self.results.troubles[f"{name}, growth"] = str(error)
                self.failed.append(f"{name}, growth: {error}")

    async def workers(self) -> None:
        """One worker and two, each on as many cores. The load shares them, so the rate says little."""
        if not gateways.has_workers():
            self.results.troubles["two workers"] = "this Dragoman has no `serve --workers`"
            return
        for count in (1, 2):
            gateway = self._dragoman(f"{OURS}, {count} workers", workers=count)
            try:
                for scenario in (BY_NAME["A"], BY_NAME["C"]):
                    before = gateway.process.cpus()
                    done = await cell(gateway, scenario, 0)
                    after = gateway.process.cpus()
                    figures = self.results.figures
                    figures.setdefault(f"workers {scenario.name}: CPU ms/request", {})[gateway.name] = [
                        done.ms_a_request
                    ]
                    spent = sorted((after[pid] - before.get(pid, 0.0) for pid in after), reverse=True)
                    figures.setdefault(f"workers {scenario.name}: CPU s of each process", {})[gateway.name] = spent
                    figures.setdefault(f"workers {scenario.name}: requests/s", {})[gateway.name] = [done.rate]
            finally:
                gateway.stop()

    async def all(self) -> None:
        for name in self._chosen.only:
            if name in BY_NAME:
                await self.scenario(BY_NAME[name])
        if START in self._chosen.only:
            self.starts()
        if GROWTH in self._chosen.only:
            await self.growth()
        if WORKERS in self._chosen.only:
            await self.workers()


def tell(text: str) -> None:
    print(
        f"\r\033[K{text}" if sys.stderr.isatty() else text,
        end="" if sys.stderr.isatty() else "\n",
        file=sys.stderr,
        flush=True,
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    listed = lambda text: [part for part in text.split(",") if part]  # noqa: E731
    parser.add_argument("--only", type=listed, default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=listed, default=list(gateways.MAKERS), help="some of them, or an empty text")
    parser.add_argument(
        "--engines", type=listed, default=None, help="values of server.engine to measure beside the default"
    )
    parser.add_argument(
        "--against", type=Path, action="append", default=[], help="another source tree of Dragoman, beside"
    )
    parser.add_argument("--docs", action="store_true", help="write the figures into docs/performance.md")
    chosen = parser.parse_args()
    for name in (*chosen.only, *chosen.peers):
        if name not in PARTS and name not in gateways.MAKERS:
            parser.error(f"there is no {name}")
    return chosen


def main() -> int:
    chosen = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever is ended stops what it has started
    os.sched_setaffinity(0, processes.core(processes.LOAD))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    upstream = Upstream()
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as name:
        if chosen.engines is None:
            chosen.engines = gateways.engines(Path(name))
        bench = Bench(chosen, Path(name), upstream)
        try:
            bench.start()
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(bench.all())
        except KeyboardInterrupt:
            bench.failed.append("it was interrupted: these are the figures so far")
        finally:
            bench.stop()
            upstream.stop()
    tell("")
    return finished(bench, chosen)


def finished(bench: Bench, chosen: argparse.Namespace) -> int:
    results = bench.results
    asked = [*chosen.only, *(("cold start", "idle memory") if START in chosen.only else ())]
    block = report.text(results, bench.ours, asked)
    print(block)
    report.saved(results, _SAVED)
    missed = [*bench.failed, *report.judged(results, bench.ours, asked)[1]]
    unjudged = [bar.figure for bar in BARS if bar.figure in asked and not report.ratio(results, bar)[1]]
    if unjudged:
        print(f"\nNot judged, for want of their peers: {', '.join(unjudged)}.")
    for line in missed:
        print(f"MISSED  {line}")
    if chosen.docs:
        report.write_page(block, datetime.now(UTC).strftime("%B %Y"), chosen.rounds)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
