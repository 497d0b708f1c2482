"""The pages at the root stay true to the tree."""

from __future__ import annotations

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
