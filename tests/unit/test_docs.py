"""The pages at the root stay true to the tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.name for page in ROOT.glob("*.md"))

_UNTOLD = {"_version.py", "__main__.py"}
_NAMED = re.compile(r"`([\w./-]+(?:/|\.py))`")
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def named_paths() -> list[str]:
    return _NAMED.findall((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", named_paths())
def test_a_path_named_in_architecture_exists(path: str) -> None:
    found = ROOT / path
    assert found.is_dir() if path.endswith("/") else found.is_file()


def test_architecture_names_every_part_of_the_package() -> None:
    package = ROOT / "src" / "dragoman"
    parts = {f"src/dragoman/{init.parent.name}/" for init in package.glob("*/__init__.py")}
    parts |= {f"src/dragoman/{module.name}" for module in package.glob("*.py") if module.name not in _UNTOLD}
    assert parts <= set(named_paths())


@pytest.mark.parametrize("page", PAGES)
def test_a_page_links_only_to_what_exists(page: str) -> None:
    links = _LINK.findall((ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []


def _rules_in_code() -> set[str]:
    """Every rule name that the code writes notes by: the first argument of notes.added, .changed and so on."""
    writers = {"added", "changed", "dropped", "renamed", "add", "_say", "_note"}
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in writers:
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str) and "." in first.value:
                    found.add(first.value)
    return found


def test_every_rule_that_notes_are_written_by_is_explained() -> None:
    explained = set(re.findall(r"^\| `([a-z_.0-9]+)` \|", (ROOT / "docs/rules.md").read_text(), re.MULTILINE))
    in_code = _rules_in_code()
    assert len(in_code) > 40
    assert in_code - explained == set()
