"""Have the codecs become slower? Their CPU in parts of a loop that never changes, against what was recorded.

Not by time: machines differ, and the same machine differs from one minute to the next. Codec and loop take turns, the
least of many turns counts for each, and a third more than recorded is too much. `--record` writes the baseline.
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
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from bench.exchanges import Exchange, exchange
from bench.gateways import ROOT

BASELINE = Path(__file__).parent / "baseline.json"
NAMES = ("A", "BM", "C", "D", "E", "E2", "F", "G", "H", "PC")
MORE = 1.33
TURNS, AGAIN = 30, 3  # turns of each; how often a complaint is looked into before it is believed
SAMPLE = 0.004  # seconds: short enough that some turns are not interrupted on a busy machine
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_TOML = "\n".join(f'[t{n}.u]\nname = "word {n}"\nlist = [{n}, 2.5, "x"]\nat = {{a = 1, b = "two"}}' for n in range(6))
_HTML = '<p class="a">one <b>two</b> &amp; three<br/></p>' * 6
_WORDS = "some words of an 'older text' that are put \"into lines\" again " * 5


def reference() -> int:
    """Pure Python that never changes under one version of it: parsers of the standard library.

    Much code and many small objects, as codecs have: a busy machine empties the caches, and must slow both alike.
    """
    found = len(json.dumps(tomllib.loads(_TOML)))
    parser = HTMLParser()
    parser.feed(_HTML)
    found += len(textwrap.fill(_WORDS, 40)) + len(shlex.split(_WORDS))
    return found + len(urlencode(parse_qsl("a=1&b=c%20d&e=f&g=%C3%A9")))


def whole(made: Exchange) -> Callable[[], object]:
    return lambda: made.tell(made.ask())


def costs(works: Mapping[str, Callable[[], object]], turns: int = TURNS) -> dict[str, float]:
    """The least CPU of each in parts of the reference loop's."""
    gc.collect()
    gc.disable()
    try:
        return {name: _cost(work, turns) for name, work in works.items()}
    finally:
        gc.enable()


def _cost(work: Callable[[], object], turns: int) -> float:
    often, loops = _often(work), _often(reference)
    least = loop = float("inf")
    for _ in range(turns):
        loop = min(loop, _cpu(reference, loops))
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


def slower(measured: Mapping[str, float], recorded: Mapping[str, float]) -> dict[str, float]:
    """What costs more than it may, and how many times the recorded cost."""
    parts = {name: cost / recorded[name] for name, cost in measured.items() if name in recorded}
    return {name: part for name, part in parts.items() if part > MORE}


def main(arguments: list[str]) -> int:
    works = {name: whole(exchange(name)) for name in NAMES}
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    if "--record" in arguments:
        baseline[_VERSION] = {name: round(cost, 3) for name, cost in costs(works, TURNS * 2).items()}
        BASELINE.write_text(json.dumps(baseline, indent=1) + "\n")
        print(f"recorded in {BASELINE.relative_to(ROOT)} for Python {_VERSION}")
        return 0
    recorded = baseline.get(_VERSION)
    if recorded is None:
        print(f"There is no baseline for Python {_VERSION}: nothing was judged.")
        return 0
    measured = costs(works)
    complaints = slower(measured, recorded)
    for _ in range(AGAIN):
        if complaints:
            again = costs({name: works[name] for name in complaints}, TURNS * 2)
            measured |= {name: min(cost, measured[name]) for name, cost in again.items()}
            complaints = slower(measured, recorded)
    for name, cost in measured.items():
        known = recorded.get(name)
        told = f"{cost / known:5.2f} of what was recorded" if known else "not recorded"
        print(f"  {name:3} {cost:9.2f} loops  {told}{'  TOO SLOW' if name in complaints else ''}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
