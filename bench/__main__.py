"""Measure Dragoman and its peers side by side, on pinned cores: `make bench`. Exits with 1 if a limit is exceeded.

The report names peers that are not installed; their limits are not judged. An installed peer that does not start, or
sends a wrong response, fails the run.
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
from bench.variants import VARIANTS, Variant, judge

try:
    from uvloop import new_event_loop
except ImportError:
    new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]

START, GROWTH, WORKERS = "start", "growth", "workers"
PARTS = (*BY_NAME, START, GROWTH, WORKERS)
_SAVED = gateways.ROOT / "build" / "bench" / "results.json"
Make = Callable[..., Gateway]


class Bench:
    """One run: starts the gateways, measures the chosen parts and collects the results."""

    def __init__(self, chosen: argparse.Namespace, folder: Path, upstream: Upstream) -> None:
        self.results = Results()
        self.failed: list[str] = []  # problems that fail the run
        self.absent: set[str] = set()  # peers not requested or not installed: their limits are not judged
        self._chosen, self._folder, self._upstream = chosen, folder, upstream
        self._started_count = 0
        self.makers: dict[str, Make] = self._ours() | self._peers()
        self.ours = [name for name in self.makers if name.startswith(OURS)]
        self._running: dict[str, MeasuredServer] = {}

    # --- the gateways to measure

    def _ours(self) -> dict[str, Make]:
        makers: dict[str, Make] = {OURS: partial(self._dragoman)}
        for source in self._chosen.against:
            makers[f"{OURS} {source.name}"] = partial(self._dragoman, source=source / "src")
        for variant in self._chosen.variants:
            makers[f"{OURS} {variant}"] = partial(self._dragoman, variant=VARIANTS[variant])
        return makers

    def _dragoman(
        self,
        name: str,
        *,
        source: Path | None = None,
        workers: int = 1,
        few: bool = False,
        variant: Variant | None = None,
    ) -> Gateway:
        folder, ports = self._new_folder(), self._upstream.ports
        if variant is None:
            launch = gateways.dragoman(folder, ports, workers=workers, few=few)
        else:
            key = variant.prepare(folder)
            launch = gateways.dragoman(folder, ports, workers=workers, few=few, settings=variant.settings, key=key)
        return Gateway(name, launch, folder, BY_NAME["A"], source)

    def _peers(self) -> dict[str, Make]:
        makers: dict[str, Make] = {}
        for name in gateways.MAKERS:
            if name in self._chosen.peers and gateways.installed(name):
                makers[name] = self._peer
                continue
            self.absent.add(name)
            is_requested = name in self._chosen.peers
            self.results.problems[name] = "not installed: make bench-peers" if is_requested else "not requested"
        return makers

    def _peer(self, name: str) -> Gateway:
        folder = self._new_folder()
        first = BY_NAME["C" if name == ROUTER else "A"]
        return Gateway(name, gateways.MAKERS[name](folder, self._upstream.ports), folder, first)

    def _new_folder(self) -> Path:
        self._started_count += 1
        return self._folder / str(self._started_count)

    def start(self) -> None:
        """Start all gateways and the relay."""
        progress("starting")
        for name, make in self.makers.items():
            try:
                self._running[name] = make(name)
            except NotStarted as error:
                self.results.problems[name] = f"did not start: {error}"
                self.failed.append(f"{name} did not start")
        self._running[FLOOR] = RelayServer(self._upstream.ports, self._new_folder())
        self._running["direct"] = DirectServer(self._upstream.ports)

    def stop(self) -> None:
        """Stop all gateways and the relay."""
        for server in self._running.values():
            server.stop()  # type: ignore[attr-defined]

    # --- the parts

    async def scenario(self, scenario: Scenario) -> None:
        """Check the response of each gateway, then measure the scenario in rounds."""
        measured: dict[str, tuple[MeasuredServer, Scenario, int]] = {}
        for name in (*self.ours, *scenario.peers, "direct"):
            name_of_server, _, other = name.partition(":")
            own_scenario = BY_NAME[other] if other else scenario
            if name_of_server not in self._running or (name_of_server == "direct" and scenario.paced):
                continue
            try:
                plain = name_of_server in ("direct", FLOOR)
                size = 0 if plain else check_response(self._running[name_of_server], own_scenario)
                measured[name] = (self._running[name_of_server], own_scenario, size)
                if not plain:
                    self._check_request_size(own_scenario)
            except (WrongResponse, OSError, http.client.HTTPException) as error:
                self.results.problems[f"{name}, {scenario.name}"] = f"wrong response: {error}"
        await measure_rounds(scenario, measured, self._chosen.rounds, self.results, progress)

    def _check_request_size(self, scenario: Scenario) -> None:
        """Check that the upstream got the whole request: a truncated one is also fast. Raises WrongResponse."""
        expected = {"long": 480_000, "pairs": 480_000}.get(scenario.question, 0)
        received = self._upstream.sizes()[scenario.upstream]
        if received < expected:
            raise WrongResponse(f"the upstream received {received} bytes, expected more than {expected}")

    def starts(self) -> None:
        """Measure cold start and idle memory, in new processes that all have the same upstreams."""
        for number in range(self._chosen.rounds):
            for name, make in self.makers.items():
                if name not in self._running or (name != LITELLM and not name.startswith(OURS) and number):
                    continue
                try:
                    gateway = make(name, few=True) if name in self.ours else make(name)
                except NotStarted as error:
                    self.failed.append(f"{name} did not start a second time: {error}")
                    continue
                found = {"cold start": gateway.started_in, "cold start CPU": gateway.process.cpu()}
                time.sleep(0.3)
                for figure, value in {**found, "idle memory": gateway.process.memory()}.items():
                    self.results.figures.setdefault(figure, {}).setdefault(name, []).append(value)
                gateway.stop()
            progress(f"cold start {number + 1}/{self._chosen.rounds}")

    async def growth(self) -> None:
        """Measure how costs grow with streams and bodies, and the memory of open streams."""
        for name in self.ours:
            server = self._running.get(name)
            if not isinstance(server, Gateway):
                continue
            try:
                await growth.flat(server, self.results, progress)
                await growth.linear(server, self._upstream, self.results, progress)
                fresh = self.makers[name](name)
                try:
                    await growth.open_streams(fresh, self.results, progress)
                finally:
                    fresh.stop()
            except (BadCell, WrongResponse, NotStarted, OSError) as error:
                self.results.problems[f"{name}, growth"] = str(error)

    async def workers(self) -> None:
        """Compare one worker with two."""
        if not gateways.has_workers():
            self.results.problems["two workers"] = "this Dragoman has no `serve --workers`"
            return
        started: dict[int, Gateway] = {}
        try:
            for count in workers.COUNTS:
                started[count] = self._dragoman(f"{OURS}, {count} workers", workers=count)
            self.results.shared = await workers.compare(started, self._upstream, self._chosen.rounds, progress)
        except (BadCell, WrongResponse, NotStarted, OSError) as error:
            self.failed.append(f"workers: {error}")
        finally:
            for gateway in started.values():
                gateway.stop()

    async def all(self) -> None:
        """Measure all chosen parts."""
        for name in self._chosen.only:
            if name in BY_NAME:
                await self.scenario(BY_NAME[name])
        if START in self._chosen.only:
            self.starts()
        if GROWTH in self._chosen.only:
            await self.growth()
        if WORKERS in self._chosen.only:
            await self.workers()


_START_TIME = time.monotonic()


def progress(text: str) -> None:
    """Print the progress: on a terminal in one line that changes, elsewhere in a new line."""
    minutes, seconds = divmod(int(time.monotonic() - _START_TIME), 60)
    line, live = f"{minutes:2}:{seconds:02} {text}", sys.stderr.isatty()
    print(f"\r\033[K{line}" if live else line, end="" if live else "\n", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
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

All parts with all peers take about 25 minutes. The benchmark needs Linux, and two cores that no other process uses. It
also writes the figures to build/bench/results.json.""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    listed = lambda text: [part for part in text.split(",") if part]  # noqa: E731
    parser.add_argument(
        "--only", type=listed, default=list(PARTS), metavar="PARTS", help="the parts to measure, from the list below"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of each measurement, interleaved; the median counts (5)"
    )
    parser.add_argument(
        "--peers",
        type=listed,
        default=list(gateways.MAKERS),
        help=f"peers to measure: {','.join(gateways.MAKERS)}; '' for none (default: all that are installed)",
    )
    parser.add_argument(
        "--against",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="another source tree of Dragoman to measure beside this one; may be repeated",
    )
    parser.add_argument(
        "--variants",
        type=listed,
        default=[],
        metavar="NAMES",
        help=f"also measure Dragoman with features turned on: {','.join(VARIANTS)}",
    )
    parser.add_argument("--docs", action="store_true", help="write the figures into docs/performance.md, and its chart")
    chosen = parser.parse_args()
    for names, known in ((chosen.only, PARTS), (chosen.peers, gateways.MAKERS), (chosen.variants, VARIANTS)):
        for name in names:
            if name not in known:
                parser.error(f"unknown name {name!r}; known: {', '.join(known)}")
    return chosen


def main() -> int:
    """Run the benchmark and return the exit code."""
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
            bench.failed.append("the run was interrupted; these are the figures so far")
        finally:
            bench.stop()
            upstream.stop()
    progress("")
    return finished(bench, chosen)


def finished(bench: Bench, chosen: argparse.Namespace) -> int:
    """Print and save the results; return 1 if a limit is exceeded."""
    results = bench.results
    requested = [*chosen.only, *(("cold start", "idle memory") if START in chosen.only else ())]
    block = report.text(results, bench.ours, requested)
    print(block)
    report.saved(results, _SAVED)
    missed = [*bench.failed, *report.missed(results, requested, bench.absent)]
    unjudged = report.unjudged(results, requested, bench.absent)
    if unjudged:
        print(f"\nNot judged, because their peers were not measured: {', '.join(unjudged)}.")
    for variant, figure, value, most in judge(results, chosen.variants):
        verdict = "holds" if value <= most else "MISSED"
        print(f"{variant}, {figure}: {value:.3f} times the plain gateway; at most {most:g}: {verdict}")
        missed += [f"{variant}, {figure}: {value:.3f}, limit {most:g}"] if value > most else []
    for line in missed:
        print(f"MISSED  {line}")
    if chosen.docs:
        report.write_page(chart.write(results) + block, datetime.now(UTC).strftime("%B %Y"), chosen.rounds)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
