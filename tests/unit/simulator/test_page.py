"""docs/simulator.md is true: its scripts are scripts, its Python runs, and it names every field there is."""

from __future__ import annotations

import re
from pathlib import Path

from dragoman.simulator.faults import FAULTS, parse_fault
from dragoman.simulator.script import QUIRKS, Tokens, parse
from dragoman.simulator.turn import Pace

PAGE = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_its_scripts_are_scripts() -> None:
    assert [len(parse(text).turns) for text in blocks("toml")] == [8]


def test_its_python_runs() -> None:
    assert len(blocks("python")) == 3
    for code in blocks("python"):
        exec(compile(code, "docs/simulator.md", "exec"), {})


def test_it_names_every_quirk_and_every_setting_of_pace_and_tokens() -> None:
    words = set(re.findall(r"\w+", PAGE))
    assert {*QUIRKS, *Pace.__struct_fields__, *Tokens.__struct_fields__} <= words


def test_it_names_every_fault_and_its_examples_are_faults() -> None:
    assert set(FAULTS) <= set(re.findall(r"`(\w+)`", PAGE))
    specs = re.findall(r"--fault (\w+:[\w=,+]+)", PAGE)
    assert len(specs) == 4
    for each in specs:
        parse_fault(each)
