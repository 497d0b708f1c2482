"""Dragoman and its peers side by side, on pinned cores: `make bench`. Exits with 1 if a bar is missed.

A peer that is not installed is named and its bars are not judged; one that is installed and does not start, or does not
answer rightly, fails.
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

from bench import chart, gateways, growth, processes, report, workers
from bench.measure import BadCell, Results, measure_rounds
from bench.response_check import WrongResponse
from bench.scenarios import BY_NAME, FLOOR, LITELLM, OURS, ROUTER, Scenario
from bench.servers import DirectServer, Gateway, MeasuredServer, NotStarted, RelayServer, Upstream, check_response

try:
    from uvloop import new_event_loop
except ImportError:
    new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]

START, GROWTH, WORKERS = "start", "growth", "workers"
PARTS = (*BY_NAME, START, GROWTH, WORKERS)
_SAVED = gateways.ROOT / "build" / "bench" / "results.json"
Make = Callable[..., Gateway]


class Bench:
    def __init__(self, chosen: argparse.Namespace, folder: Path, upstream: Upstream) -> None:
        self.results = Results()
        self.failed: list[str] = []  # whatever must not happen
        self.absent: set[str] = set()  # not asked for, or not installed: the bars beside them are not judged
        self._chosen, self._folder, self._upstream = chosen, folder, upstream
        self._made = 0
        self.makers: dict[str, Make] = self._ours() | self._peers()
        self.ours = [name for name in self.makers if name.startswith(OURS)]
        self._running: dict[str, MeasuredServer] = {}

    # --- who takes part

    def _ours(self) -> dict[str, Make]:
        makers: dict[str, Make] = {OURS: partial(self._dragoman)}
        for source in self._chosen.against:
            makers[f"{OURS} {source.name}"] = partial(self._dragoman, source=source / "src")
        return makers

    def _dragoman(self, name: str, *, source: Path | None = None, workers: int = 1, few: bool = False) -> Gateway:
        folder = self._new_folder()
        launch = gateways.dragoman(folder, self._upstream.ports, workers=workers, few=few)
        return Gateway(name, launch, folder, BY_NAME["A"], source)

    def _peers(self) -> dict[str, Make]:
        makers: dict[str, Make] = {}
        for name in gateways.MAKERS:
            if name in self._chosen.peers and gateways.installed(name):
                makers[name] = self._peer
                continue
            self.absent.add(name)
            asked = name in self._chosen.peers
            self.results.troubles[name] = "not installed: make bench-peers" if asked else "not asked for"
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
        self._running[FLOOR] = RelayServer(self._upstream.ports, self._new_folder())
        self._running["direct"] = DirectServer(self._upstream.ports)

    def stop(self) -> None:
        for lane in self._running.values():
            lane.stop()  # type: ignore[attr-defined]

    # --- the parts

    async def scenario(self, scenario: Scenario) -> None:
        lanes: dict[str, tuple[MeasuredServer, Scenario, int]] = {}
        for name in (*self.ours, *scenario.rivals, "direct"):
            lane, _, other = name.partition(":")
            asked = BY_NAME[other] if other else scenario
            if lane not in self._running or (lane == "direct" and scenario.paced):
                continue
            try:
                plain = lane in ("direct", FLOOR)
                lanes[name] = (self._running[lane], asked, 0 if plain else check_response(self._running[lane], asked))
                if not plain:
                    self._whole(asked)
            except (WrongResponse, OSError, http.client.HTTPException) as error:
                self.results.troubles[f"{name}, {scenario.name}"] = f"a wrong answer: {error}"
        await measure_rounds(scenario, lanes, self._chosen.rounds, self.results, tell)

    def _whole(self, scenario: Scenario) -> None:
        """A question that lost its greater part on the way is answered fast, too. Raises WrongAnswer."""
        meant = {"long": 480_000, "pairs": 480_000}.get(scenario.question, 0)
        came = self._upstream.sizes()[scenario.upstream]
        if came < meant:
            raise WrongResponse(f"the upstream was sent {came} bytes of more than {meant}")

    def starts(self) -> None:
        """Cold start and idle memory, in processes of their own, all with the same upstreams."""
        for number in range(self._chosen.rounds):
            for name, make in self.makers.items():
                if name not in self._running or (name != LITELLM and not name.startswith(OURS) and number):
                    continue
                try:
                    gateway = make(name, few=True) if name in self.ours else make(name)
                except NotStarted as error:
                    self.failed.append(f"{name} would not start again: {error}")
                    continue
                found = {"cold start": gateway.started_in, "cold start CPU": gateway.process.cpu()}
                time.sleep(0.3)
                for figure, value in {**found, "idle memory": gateway.process.memory()}.items():
                    self.results.figures.setdefault(figure, {}).setdefault(name, []).append(value)
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
            except (BadCell, WrongResponse, NotStarted, OSError) as error:
                self.results.troubles[f"{name}, growth"] = str(error)

    async def workers(self) -> None:
        if not gateways.has_workers():
            self.results.troubles["two workers"] = "this Dragoman has no `serve --workers`"
            return
        started: dict[int, Gateway] = {}
        try:
            for count in workers.COUNTS:
                started[count] = self._dragoman(f"{OURS}, {count} workers", workers=count)
            self.results.shared = await workers.compare(started, self._upstream, self._chosen.rounds, tell)
        except (BadCell, WrongResponse, NotStarted, OSError) as error:
            self.failed.append(f"workers: {error}")
        finally:
            for gateway in started.values():
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


_BEGAN = time.monotonic()


def tell(text: str) -> None:
    """Say how far it is: on a terminal in one line that changes, elsewhere in one more."""
    minutes, seconds = divmod(int(time.monotonic() - _BEGAN), 60)
    line, live = f"{minutes:2}:{seconds:02} {text}", sys.stderr.isatty()
    print(f"\r\033[K{line}" if live else line, end="" if live else "\n", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parts = "\n".join(f"  {scenario.name:8}{scenario.title}" for scenario in BY_NAME.values())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=f"""parts:
{parts}
  {START:8}cold start and idle memory
  {GROWTH:8}80,000 events, a body of 20 MB, 1,000 streams held
  {WORKERS:8}one worker and two

examples:
  make bench BENCH="--only A,C --rounds 3 --peers tensorzero,claude-code-router"
  make bench BENCH="--only C,D --peers '' --against ../main-of-yesterday"

All of it with all peers takes about 25 minutes. It needs Linux, and two cores that no other process uses. Figures go to
build/bench/results.json, too.""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    listed = lambda text: [part for part in text.split(",") if part]  # noqa: E731
    parser.add_argument("--only", type=listed, default=list(PARTS), metavar="PARTS", help="some of the parts below")
    parser.add_argument("--rounds", type=int, default=5, help="of each cell, interleaved; the median counts (5)")
    parser.add_argument(
        "--peers",
        type=listed,
        default=list(gateways.MAKERS),
        help=f"some of {','.join(gateways.MAKERS)}; '' for none (all that are installed)",
    )
    parser.add_argument(
        "--against",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="another source tree of Dragoman, measured beside this one; may be given again",
    )
    parser.add_argument("--docs", action="store_true", help="write the figures into docs/performance.md, and its chart")
    chosen = parser.parse_args()
    for given, known in ((chosen.only, PARTS), (chosen.peers, gateways.MAKERS)):
        for name in given:
            if name not in known:
                parser.error(f"there is no {name}; there are {', '.join(known)}")
    return chosen


def main() -> int:
    chosen = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a SIGTERM raises, so that started processes are stopped
    os.sched_setaffinity(0, processes.core(processes.LOAD))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    upstream = Upstream()
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as name:
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
    missed = [*bench.failed, *report.missed(results, asked, bench.absent)]
    unjudged = report.unjudged(results, asked, bench.absent)
    if unjudged:
        print(f"\nNot judged, for want of their peers: {', '.join(unjudged)}.")
    for line in missed:
        print(f"MISSED  {line}")
    if chosen.docs:
        report.write_page(chart.write(results) + block, datetime.now(UTC).strftime("%B %Y"), chosen.rounds)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
