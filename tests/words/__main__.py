"""`python -m tests.words PATH...`: banned words and long lines. With `--extract DIR` it writes the prose for cspell.

PATH is a file, a folder or a pattern such as `*.md`. The exit status is 1 if something is found.
"""

from __future__ import annotations

import shutil
import sys
from argparse import ArgumentParser
from pathlib import Path

from tests.words.banned import banned, long_lines
from tests.words.prose import ROOT, files, names, prose


def main(arguments: list[str]) -> int:
    """Check, or extract, the prose of the given paths."""
    parser = ArgumentParser(prog="python -m tests.words", description="Check the words of prose.")
    parser.add_argument("--extract", metavar="DIR", type=Path, help="write the prose of each file there, line by line")
    parser.add_argument("paths", nargs="+", metavar="PATH")
    options = parser.parse_args(arguments)
    chosen = files(options.paths)
    if not chosen:
        parser.error(f"no Markdown or Python file below {' '.join(options.paths)}")
    if options.extract:
        extract(chosen, options.extract)
        return 0
    found = [f"{path.relative_to(ROOT)}:{place}" for path in chosen for place in problems(path)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


def problems(path: Path) -> list[str]:
    """Return the problems of a file: line number, then what is wrong."""
    found = list(banned(prose(path)))
    if path.suffix == ".py":
        found += banned(names(path.read_text(encoding="utf-8")))
    if path.suffix == ".md":
        found += long_lines(path.read_text(encoding="utf-8"))
    return [f"{number}: {what}" for number, what in sorted(found)]


def extract(paths: list[Path], folder: Path) -> None:
    """Write the prose of each file to `folder`, at the same line numbers, under the same path with `.txt`."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in paths:
        lines = prose(path)
        target = folder / f"{path.relative_to(ROOT)}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        numbers = range(1, max(lines, default=0) + 1)
        target.write_text("\n".join(lines.get(number, "") for number in numbers) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
