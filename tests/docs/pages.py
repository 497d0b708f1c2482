"""The code blocks of README.md and the pages of docs, and how their Python runs.

The Python blocks of a page are one program: they run in their order, each with the names of those before it, in a
process of its own with an empty home. `UPSTREAM` is the address of a simulator of OpenAI's dialect. Lines of the
program have the numbers of the page, so that a traceback shows the place on the page.

The blocks of docs/clients.md are programs of their own, for libraries that are not installed with the suite:
tests/clients/page.py runs each of them by `dragoman run`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CLIENTS_PAGE = ROOT / "docs" / "clients.md"
TIMEOUT = 120.0  # seconds for the program of a page: only a failing test waits this long

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its language, the number of its first line, the heading above it, and its text."""

    language: str
    line: int
    heading: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page that name a language."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        headings = _HEADING.findall(_BLOCK.sub("", text[: found.start()]))
        line = text.count("\n", 0, found.start(2)) + 1
        yield Block(found[1], line, headings[-1] if headings else "", found[2])


def python_pages() -> list[Path]:
    """Return the pages with Python blocks, except docs/clients.md."""
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if page != CLIENTS_PAGE and program(page)]


def program(page: Path) -> str:
    """Return the Python blocks of a page as one program, each at the line where it is on the page."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python":
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    return "".join(f"{line}\n" for line in lines)


def write_program(page: Path, folder: Path) -> Path:
    """Write the program of a page into a folder; return its path."""
    file = folder / f"{page.stem.lower()}_page.py"
    file.write_text(program(page), encoding="utf-8")
    return file


def run_program(file: Path, upstream: str) -> subprocess.CompletedProcess[str]:
    """Run the program of a page with an empty home; warnings are errors."""
    home = file.parent / f"{file.stem}_home"
    home.mkdir()
    variables = {"UPSTREAM": upstream, "UPSTREAM_KEY": "any", "MOONSHOT_API_KEY": "any"}
    return subprocess.run(
        [sys.executable, "-W", "error", str(file)],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "GATEWAY_KEY": "dgm_key-of-the-examples-0123", **variables},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
