"""Have the codecs become slower? The instructions of Python that they execute, against what was recorded.

A count, not a time: the same code has the same count on every machine, however busy. What C does is not counted, so
the CPU of each codec is compared, too, in parts of a loop that never changes: codec and loop take turns, the least of
many turns counts for each, and only what no busy machine explains is too much. `--record` writes the baseline.
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
MAX_STEP_RATIO = 1.15  # of the instructions that were recorded
MAX_COST_RATIO = 2.0  # of the CPU that was recorded: what C does has no count, and a busy machine empties the caches
TURNS, AGAIN = 10, 4  # turns of each; how often a complaint is looked into before it is believed
SAMPLE = 0.004  # seconds: short enough that some turns are not interrupted on a busy machine
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_TOML = "\n".join(f'[t{n}.u]\nname = "word {n}"\nlist = [{n}, 2.5, "x"]\nat = {{a = 1, b = "two"}}' for n in range(6))
_HTML = '<p class="a">one <b>two</b> &amp; three<br/></p>' * 6
_WORDS = "some words of an 'older text' that are put \"into lines\" again " * 5


def reference_work() -> int:
    """Pure Python that never changes under one version of it: parsers of the standard library.

    Much code and many small objects, as codecs have: a busy machine empties the caches, and must slow both alike.
    """
    found = len(json.dumps(tomllib.loads(_TOML)))
    parser = HTMLParser()
    parser.feed(_HTML)
    found += len(textwrap.fill(_WORDS, 40)) + len(shlex.split(_WORDS))
    return found + len(urlencode(parse_qsl("a=1&b=c%20d&e=f&g=%C3%A9")))


def run_exchange(made: Exchange) -> Callable[[], object]:
    return lambda: made.tell(made.ask())


def measure_costs(works: Mapping[str, Callable[[], object]], turns: int = TURNS) -> dict[str, float]:
    """The least CPU of each in parts of the reference loop's."""
    gc.collect()
    gc.disable()
    try:
        return {name: _cost(work, turns) for name, work in works.items()}
    finally:
        gc.enable()


def _cost(work: Callable[[], object], turns: int) -> float:
    often, loops = _often(work), _often(reference_work)
    least = loop = float("inf")
    for _ in range(turns):
        loop = min(loop, _cpu(reference_work, loops))
        least = min(least, _cpu(work, often))
    gc.collect()
    return least / loop


def _often(work: Callable[[], object]) -> int:
    work()
    return max(1, round(SAMPLE / max(_cpu(work, 1), 1e-6)))


def _cpu(work: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


def count_steps(work: Callable[[], object]) -> int:
    """Return how many instructions of Python the work executes, when it is done again."""
    work()
    return count_instructions(work)


def find_slower(
    measured: Mapping[str, float], recorded: Mapping[str, float], more: float = MAX_COST_RATIO
) -> dict[str, float]:
    """What costs more than it may, and how many times the recorded cost."""
    parts = {name: cost / recorded[name] for name, cost in measured.items() if name in recorded}
    return {name: part for name, part in parts.items() if part > more}


def main(arguments: list[str]) -> int:
    works = {name: run_exchange(exchange(name)) for name in NAMES}
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    counted = {name: count_steps(work) for name, work in works.items()}
    if "--record" in arguments:
        cpu = {name: round(cost, 3) for name, cost in measure_costs(works, TURNS * 6).items()}
        baseline[_VERSION] = {"steps": counted, "cpu": cpu}
        BASELINE.write_text(json.dumps(baseline, indent=1) + "\n")
        print(f"recorded in {BASELINE.relative_to(ROOT)} for Python {_VERSION}")
        return 0
    recorded = baseline.get(_VERSION)
    if recorded is None:
        print(f"There is no baseline for Python {_VERSION}: nothing was judged.")
        return 0
    longer = find_slower(counted, recorded["steps"], MAX_STEP_RATIO)
    measured, dearer = measure_costs(works), dict[str, float]()
    for _ in range(AGAIN):
        dearer = find_slower(measured, recorded["cpu"])
        if not dearer:
            break
        again = measure_costs({name: works[name] for name in dearer}, TURNS * 3)
        measured |= {name: min(cost, measured[name]) for name, cost in again.items()}
    dearer = find_slower(measured, recorded["cpu"])
    for name in NAMES:
        of_steps = counted[name] / recorded["steps"].get(name, inf)
        of_cpu = measured[name] / recorded["cpu"].get(name, inf)
        told = "  TOO MANY INSTRUCTIONS" * (name in longer) + "  TOO MUCH CPU" * (name in dearer)
        print(f"  {name:3} {counted[name]:11,.0f} instructions, {of_steps:.3f} of the record; CPU {of_cpu:.2f}{told}")
    return 1 if longer or dearer else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
