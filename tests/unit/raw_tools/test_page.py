"""docs/raw_tools.md is true: its example runs, and it names every format and every note."""

from __future__ import annotations

import re
from pathlib import Path

from dragoman.filters.raw_tools import ALIASES, NAMES
from dragoman.filters.raw_tools.filter import _ACTIONS

PAGE = (Path(__file__).parents[3] / "docs" / "raw_tools.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "docs/raw_tools.md", "exec"), {})


def test_every_format_has_its_place() -> None:
    assert [name for name in (*NAMES, *ALIASES) if f"`{name}`" not in PAGE] == []


def test_every_note_has_its_row() -> None:
    rules = {*_ACTIONS, "recovered", "ids"}
    assert set(re.findall(r"^\| `raw_tools\.(\w+)` \|", PAGE, re.MULTILINE)) == rules
