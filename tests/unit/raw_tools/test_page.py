"""docs/raw_tools.md is true: its example runs, its table of what counts holds, it names every format and every note."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dragoman.filters.raw_tools import ALIASES, NAMES
from dragoman.filters.raw_tools.filter import _ACTIONS
from dragoman.filters.raw_tools.outputs import CallStarted, Said
from tests.unit.raw_tools.samples import all_cuts, outputs, tool

PAGE = (Path(__file__).parents[3] / "docs" / "raw_tools.md").read_text(encoding="utf-8")
_SPAN = r"(`+) ?(.+?) ?\1"


def _section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _short_forms() -> dict[str, str]:
    """KIMI, TAG and BARE, as the list before the table says."""
    return dict(re.findall(r"^- `([A-Z]+)` is `(.+)`[,.]$", _section("What counts"), re.MULTILINE))


def _examples() -> list[tuple[str, str]]:
    rows = re.findall(rf"^\| {_SPAN} \| (call|text) \|", _section("What counts"), re.MULTILINE)
    return [(_written(answer), result) for _, answer, result in rows]


def _written(answer: str) -> str:
    text = answer.replace("\\|", "|").replace("⏎", "\n").replace("⇥", "\t")
    for name, form in _short_forms().items():
        text = form.join(re.split(rf"\b{name}\b", text))
    return text


EXAMPLES = _examples()


def test_the_table_of_examples_is_read() -> None:
    assert len(EXAMPLES) == len(re.findall(r"^\| `", _section("What counts"), re.MULTILINE)) >= 25
    assert sorted(_short_forms()) == ["BARE", "KIMI", "TAG"]


@pytest.mark.parametrize(("answer", "result"), EXAMPLES)
def test_what_counts(answer: str, result: str) -> None:
    for pieces in all_cuts(answer):
        told = outputs(pieces, "auto", [tool("bash", "command")])
        calls = [each.name for each in told if isinstance(each, CallStarted)]
        assert calls == (["bash"] if result == "call" else []), pieces
        if result == "text":
            assert "".join(each.text for each in told if isinstance(each, Said)) == answer


def test_the_example_runs() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "docs/raw_tools.md", "exec"), {})


def test_every_format_has_its_place() -> None:
    assert [name for name in (*NAMES, *ALIASES) if f"`{name}`" not in PAGE] == []


def test_every_note_has_its_row() -> None:
    rules = {rule if "." in rule else f"raw_tools.{rule}" for rule in (*_ACTIONS, "recovered", "ids", "native_name")}
    assert set(re.findall(r"^\| `([\w.]+)` \|", _section("Notes"), re.MULTILINE)) == rules
