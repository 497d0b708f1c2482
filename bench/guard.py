"""Have the codecs become slower? Their CPU in parts of a loop that never changes, against what was recorded.

Not by time: machines differ, and the same machine differs from one minute to the next. Loop and codecs take turns, the
least of many turns counts for each, and a quarter more than recorded is too much. `--record` writes the baseline.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.exchanges import Exchange, exchange
from bench.gateways import ROOT

BASELINE = Path(__file__).parent / "baseline.json"
NAMES = ("A", "BM", "C", "D", "E", "E2", "F", "G", "H", "PC")
MORE = 1.25
TURNS, AGAIN = 12, 3  # turns of each; how often a complaint is looked into before it is believed
SAMPLE = 0.01  # seconds
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def reference() -> int:
    """What codecs do, frozen: calls, small objects, dictionaries, text cut and joined, bytes searched."""
    found = 0
    for number in range(400):
        fields = {"index": number, "delta": {"content": f"word {number}"}, "finish": None}
        text = fields["delta"]["content"]  # type: ignore[index]
        if isinstance(text, str) and fields.get("finish") is None:
            raw = text.encode()
            found += len(b'{"text":"' + raw + b'"}') + raw.find(b" ")
        found += len("".join([part for part in str(text).split(" ") if part]))
    return found


def whole(made: Exchange) -> Callable[[], object]:
    return lambda: made.tell(made.ask())


def costs(works: Mapping[str, Callable[[], object]], turns: int = TURNS) -> dict[str, float]:
    """The least CPU of each in parts of the reference loop's."""
    counts = {name: _often(work) for name, work in works.items()}
    often = _often(reference)
    least = dict.fromkeys(works, float("inf"))
    loop = float("inf")
    gc.collect()
    gc.disable()
    try:
        for _ in range(turns):
            for name, work in works.items():
                loop = min(loop, _cpu(reference, often))
                least[name] = min(least[name], _cpu(work, counts[name]))
            gc.collect()
    finally:
        gc.enable()
    return {name: cost / loop for name, cost in least.items()}


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
    measured = costs(works)
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
