"""L32: every rule is declared once, with its evidence and severity; the code and the page agree with the tables."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dragoman.dialects as registry
from dragoman.cli.check import table_of
from dragoman.dialects.kiro.rules import EVIDENCE
from dragoman.dialects.rulebook import Rulebook
from dragoman.simulator.kiro.rules import RULES

SOURCE = Path(registry.__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "checks.md"
DIALECTS = ["anthropic", "openai", "responses", "bedrock", "gemini", "kiro"]


def named(dialect: str) -> Iterator[str]:
    """The rule names that the code of a dialect uses, short; those of streams with or without `stream.`."""
    names = ("shapes.py", "rule")
    for file in files(dialect):
        if any(name in file.name for name in names):
            for node in ast.walk(ast.parse(file.read_text())):
                yield from constants(node)


def files(dialect: str) -> Iterator[Path]:
    """The code of a dialect, with the rules that it has from the kit; without the table of rules."""
    yield from (file for file in (SOURCE / dialect).glob("*.py") if file.name != "rule_table.py")
    shared = {"openai": "openai_rules.py", "responses": "openai_rules.py", "bedrock": "shapes.py"}
    if dialect in shared:
        yield SOURCE / "kit" / shared[dialect]


def constants(node: ast.AST) -> Iterator[str]:
    """Names in calls of `breach`, in tuples that are yielded, and in what is called `rule`."""
    given: ast.AST | None = None
    match node:
        case ast.Call(func=ast.Attribute(attr="breach" | "_breach") | ast.Name(id="breach"), args=[first, *_]):
            given = first
        case ast.Yield(value=ast.Tuple(elts=[first, _, *_])):
            given = first
        case ast.Assign(targets=[ast.Name(id="rule")], value=value):
            given = value
        case _:
            pass
    if given is not None:
        parts = list(ast.walk(given))
        skipped = {each for part in parts if isinstance(part, ast.IfExp) for each in ast.walk(part.test)}
        skipped |= {each for part in parts if isinstance(part, ast.JoinedStr) for each in ast.walk(part)}
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and part not in skipped:
                yield part.value


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_code_uses_no_rule_that_is_not_declared(dialect: str) -> None:
    declared = {rule.name.removeprefix(f"{dialect}.") for rule in registry.get(dialect).codec.rules()}
    used = set(named(dialect))
    assert len(used) > 30
    assert {name for name in used if not {name, f"stream.{name}"} & declared} == set()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_rule_is_declared_that_the_code_does_not_use(dialect: str) -> None:
    text = "".join(file.read_text() for file in files(dialect))
    for rule in registry.get(dialect).codec.rules():
        short = rule.name.removeprefix(f"{dialect}.")
        assert f'"{short}"' in text or f'"{short.removeprefix("stream.")}"' in text, rule.name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_rule_without_evidence_is_advice(dialect: str) -> None:
    rules = registry.get(dialect).codec.rules()
    assert [rule.name for rule in rules if rule.evidence == "inferred" and rule.severity != "advice"] == []
    assert all(rule.sentence and rule.name.startswith(f"{dialect}.") for rule in rules)


def test_a_rule_that_is_not_declared_cannot_be_broken() -> None:
    with pytest.raises(KeyError):
        Rulebook("x", {"a": ("observed", "error", "words")}).breach("b", "")


def test_the_page_holds_the_tables() -> None:
    """docs/checks.md: written by `dragoman check --dialect D --rules`, and for the simulator by hand."""
    text = PAGE.read_text()
    for dialect in DIALECTS:
        assert "\n".join(table_of(registry.get(dialect))) in text, f"dragoman check --dialect {dialect} --rules"
    for rule in RULES:
        assert f"| {rule.number} | {rule.title} | {EVIDENCE[rule.grade]} |" in text
