"""Check that the codecs did not become slower: compare the Python instructions that they execute with a baseline.

A count of instructions is the same on every machine, however busy. It does not include the work of C code, so the CPU
time of each codec is compared too, relative to a reference loop that never changes. Codec and loop take turns, and the
minimum of many turns counts for each. The limit is generous, so that a busy machine does not exceed it. `--record`
writes the baseline.
"""

from __future__ import annotations

import gc
import json
import shlex
import sys
import textwrap
import time
import tomllib
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from math import inf
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from bench.exchanges import Exchange, exchange
from bench.gateways import ROOT
from bench.instructions import count_instructions

BASELINE = Path(__file__).parent / "baseline.json"
NAMES = ("A", "BM", "C", "D", "E", "E2", "F", "G", "H", "PC")
MAX_STEP_RATIO = 1.15  # of the recorded instructions
MAX_COST_RATIO = 2.0  # of the recorded CPU time; generous, because a busy machine empties the caches
TURNS, AGAIN = 10, 4  # turns of each; how often an excess is measured again before it counts
SAMPLE = 0.004  # seconds: short enough that some turns are not interrupted on a busy machine
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_TOML = "\n".join(f'[t{n}.u]\nname = "word {n}"\nlist = [{n}, 2.5, "x"]\nat = {{a = 1, b = "two"}}' for n in range(6))
_HTML = '<p class="a">one <b>two</b> &amp; three<br/></p>' * 6
_WORDS = "some words of an 'older text' that are put \"into lines\" again " * 5


def reference_work() -> int:
    """Run parsers of the standard library: pure Python that does not change within one version of Python.

    Like a codec, it runs much code and makes many small objects, so a busy machine slows both in the same way.
    """
    found = len(json.dumps(tomllib.loads(_TOML)))
    parser = HTMLParser()
    parser.feed(_HTML)
    found += len(textwrap.fill(_WORDS, 40)) + len(shlex.split(_WORDS))
    return found + len(urlencode(parse_qsl("a=1&b=c%20d&e=f&g=%C3%A9")))


def run_exchange(pair: Exchange) -> Callable[[], object]:
    """Return a function that translates one request and its response."""
    return lambda: pair.translate_response(pair.translate_request())


def measure_costs(tasks: Mapping[str, Callable[[], object]], turns: int = TURNS) -> dict[str, float]:
    """Return the minimum CPU time of each, relative to the reference loop."""
    gc.collect()
    gc.disable()
    try:
        return {name: _cost(work, turns) for name, work in tasks.items()}
    finally:
        gc.enable()


def _cost(work: Callable[[], object], turns: int) -> float:
    repetitions, loops = _repetitions(work), _repetitions(reference_work)
    least = loop = float("inf")
    for _ in range(turns):
        loop = min(loop, _cpu(reference_work, loops))
        least = min(least, _cpu(work, repetitions))
    gc.collect()
    return least / loop


def _repetitions(work: Callable[[], object]) -> int:
    work()
    return max(1, round(SAMPLE / max(_cpu(work, 1), 1e-6)))


def _cpu(work: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


def count_steps(work: Callable[[], object]) -> int:
    """Return how many Python instructions the work executes when it runs for the second time."""
    work()
    return count_instructions(work)


def find_slower(
    measured: Mapping[str, float], recorded: Mapping[str, float], more: float = MAX_COST_RATIO
) -> dict[str, float]:
    """Return the names whose cost exceeds the limit, each with its ratio to the recorded cost."""
    parts = {name: cost / recorded[name] for name, cost in measured.items() if name in recorded}
    return {name: part for name, part in parts.items() if part > more}


def main(arguments: list[str]) -> int:
    """Compare with the baseline, or record it; return 1 if a codec is slower."""
    tasks = {name: run_exchange(exchange(name)) for name in NAMES}
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    counted = {name: count_steps(work) for name, work in tasks.items()}
    if "--record" in arguments:
        cpu = {name: round(cost, 3) for name, cost in measure_costs(tasks, TURNS * 6).items()}
        baseline[_VERSION] = {"steps": counted, "cpu": cpu}
        BASELINE.write_text(json.dumps(baseline, indent=1) + "\n")
        print(f"recorded in {BASELINE.relative_to(ROOT)} for Python {_VERSION}")
        return 0
    recorded = baseline.get(_VERSION)
    if recorded is None:
        print(f"No baseline for Python {_VERSION}, so nothing was compared. Record one with --record.")
        return 0
    longer = find_slower(counted, recorded["steps"], MAX_STEP_RATIO)
    measured, costlier = measure_costs(tasks), dict[str, float]()
    for _ in range(AGAIN):
        costlier = find_slower(measured, recorded["cpu"])
        if not costlier:
            break
        again = measure_costs({name: tasks[name] for name in costlier}, TURNS * 3)
        measured |= {name: min(cost, measured[name]) for name, cost in again.items()}
    costlier = find_slower(measured, recorded["cpu"])
    for name in NAMES:
        of_steps = counted[name] / recorded["steps"].get(name, inf)
        of_cpu = measured[name] / recorded["cpu"].get(name, inf)
        verdict = "  TOO MANY INSTRUCTIONS" * (name in longer) + "  TOO MUCH CPU" * (name in costlier)
        print(
            f"  {name:3} {counted[name]:11,.0f} instructions, {of_steps:.3f} of the record; CPU {of_cpu:.2f}{verdict}"
        )
    return 1 if longer or costlier else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
