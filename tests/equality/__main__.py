"""Compare every translation with that of another commit, and show what differs."""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import dragoman.dialects as registry
from tests.equality.corpus import corpus

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "equality"
_SHOWN = 2000  # characters of an outcome


def main() -> int:
    """Print how many cases differ, and the first of them; 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.equality", description=__doc__)
    parser.add_argument("--against", required=True, metavar="REV", help="the commit to compare with")
    parser.add_argument("--documents", type=int, default=10_000, help="fuzz documents in total (10000)")
    parser.add_argument("--drawn", type=int, default=200, help="examples of each generator (200)")
    parser.add_argument("--most", type=int, default=5, help="differences that are shown (5)")
    parser.add_argument("--keep", action="store_true", help="use the inputs of the last run")
    parser.add_argument("--without-words", action="store_true", help="do not compare the wording of errors and notes")
    arguments = parser.parse_args()
    if arguments.without_words:
        os.environ["DRAGOMAN_WITHOUT_WORDS"] = "1"
    BUILD.mkdir(parents=True, exist_ok=True)
    inputs = BUILD / "corpus"
    if not (arguments.keep and inputs.exists()):
        names = [name for name in registry.names() if name != "ollama"]
        inputs.write_bytes(
            pickle.dumps((names, [each for each in corpus(arguments.documents, arguments.drawn) if each[1] in names]))
        )
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", arguments.against, "src"], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        trees = {"before": Path(folder) / "src", "now": ROOT / "src"}
        running = [_start(tree, inputs, BUILD / name) for name, tree in trees.items()]
        codes = [each.wait() for each in running]
        if any(codes):
            return 2
        lines = [(BUILD / name).read_text().splitlines() for name in trees]
        differing = [before for before, now in zip(*lines, strict=True) if before != now]
        print(f"{len(lines[0])} cases of {len(pickle.loads(inputs.read_bytes())[1])} inputs, {len(differing)} differ")
        for line in differing[: arguments.most]:
            _show(line, trees, inputs)
    return 1 if differing else 0


def _start(tree: Path, inputs: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(Path(__file__).with_name("digest.py")), str(inputs), str(out), *more]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"})


def _show(line: str, trees: dict[str, Path], inputs: Path) -> None:
    number, _, rest = line.partition(" ")
    case = rest.rpartition(": ")[0]
    _, items = pickle.loads(inputs.read_bytes())
    print(f"\n--- {number} {case}: {items[int(number)][2][:_SHOWN]!r}")
    for name, tree in trees.items():
        out = BUILD / f"{name}.one"
        _start(tree, inputs, out, number).wait()
        found = [each for each in out.read_text().splitlines() if each.startswith(f"{number} {case}: ")]
        print(f"{name}: {found[0].partition(': ')[2][:_SHOWN] if found else 'nothing'}")


if __name__ == "__main__":
    sys.exit(main())
