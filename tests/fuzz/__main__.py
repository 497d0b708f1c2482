"""Fuzz by coverage: `python -m tests.fuzz [TARGET…] [--seconds N]`. Each target runs in a process of its own.

Seeds are the stories; what is found stays in build/fuzz. Bytes that break a promise are written to
tests/vectors/crashes/TARGET/, where the suite tries them for ever: mend the cause, then commit both.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

FOUND = Path("build/fuzz")
_ODD: list[Any] = [
    None, True, 0, -1, 1.5, 10**20, "", " ", "\x00", "é\ud83d\ude00", [], {}, [[]], {"type": "text", "text": ""},
    [{"type": "tool_use", "id": "t", "name": "f", "input": {}}], "data: x\n\n", "user", "assistant", "tool", "system",
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the readers by coverage.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all, if none is named")
    parser.add_argument("--seconds", type=int, default=10, help="for each target (10)")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.inside:
        _fuzz(told.inside, told.seconds)
    from tests.fuzz.targets import TARGETS

    wanted = told.targets or list(TARGETS)
    unknown = [name for name in wanted if name not in TARGETS]
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)} (there are: {', '.join(TARGETS)})")
    failed = [name for name in wanted if not _ran(name, told.seconds)]
    print(f"{len(wanted)} targets, {len(failed)} broken" + "".join(f"\n  {name}" for name in failed))
    return 1 if failed else 0


def _ran(target: str, seconds: int) -> bool:
    """Fuzz in a child: the fuzzer ends its process, and a crash must not end ours."""
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.fuzz", "--inside", target, "--seconds", str(seconds)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 3 + 120, check=False)
    runs = next((line.split()[1] for line in child.stderr.splitlines() if line.startswith("stat::number_of_")), "?")
    good = child.returncode == 0
    print(f"{target:24} {'ok' if good else 'BROKEN':7} {runs:>8} runs  {time.monotonic() - began:5.1f} s", flush=True)
    if not good:
        print("\n".join(child.stderr.splitlines()[-40:]), flush=True)
    return good


def _fuzz(target: str, seconds: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["dragoman"]):
        from tests.fuzz.targets import CRASHES, TARGETS, seeds

    corpus = FOUND / target
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in seeds(target):
        (corpus / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)
    run = TARGETS[target]

    def once(data: bytes) -> None:
        try:
            run(data)
        except BaseException:
            kept = CRASHES / target / hashlib.sha1(data, usedforsecurity=False).hexdigest()[:12]
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(data)
            print(f"kept as {kept}", file=sys.stderr)
            raise

    options = [
        f"-max_total_time={seconds}",
        "-print_final_stats=1",
        "-verbosity=0",
        "-max_len=16384",
        "-timeout=20",
        "-artifact_prefix=build/fuzz/",
    ]
    mutator = {"custom_mutator": _mutated} if target.startswith("request.") else {}
    atheris.Setup([sys.argv[0], *options, str(corpus)], once, **mutator)
    atheris.Fuzz()


def _mutated(data: bytes, limit: int, seed: int) -> bytes:
    """Change the tree, not the bytes: what is no JSON is refused at the door and teaches nothing."""
    rng = random.Random(seed)
    try:
        tree = json.loads(data)
    except ValueError:
        tree = {}
    for _ in range(rng.randint(1, 3)):
        tree = _changed(tree, rng)
    return json.dumps(tree).encode()[:limit]


def _changed(tree: Any, rng: random.Random) -> Any:
    places = list(_places(tree))
    if not places:
        return deepcopy(rng.choice(_ODD))
    holder, key = rng.choice(places)
    match rng.randrange(5):
        case 0:
            del holder[key]
        case 1:
            other, place = rng.choice(places)
            holder[key] = deepcopy(other[place])
        case 2 if isinstance(holder, list):
            holder.insert(rng.randint(0, len(holder)), deepcopy(holder[key]))
        case 3 if isinstance(holder, dict):
            holder[rng.choice([other for _, other in places if isinstance(other, str)] or ["x"])] = deepcopy(
                holder[key]
            )
        case _:
            holder[key] = deepcopy(rng.choice(_ODD))
    return tree


def _places(tree: Any) -> Any:
    if isinstance(tree, dict | list):
        for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
            yield tree, key
            yield from _places(value)


sys.exit(main())
