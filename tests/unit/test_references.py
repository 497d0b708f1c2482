"""References can be followed: links between pages, decisions by number, and pages that modules cite."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MODULES = [path for folder in ("src", "tests", "bench") for path in (ROOT / folder).rglob("*.py")]

_FENCED = re.compile(r"^\s*```.*?^\s*```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]+))?\)")
_CITED = re.compile(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that the headings of a page have."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads)


def is_dead(page: Path, anchor: str) -> bool:
    return not page.exists() or bool(anchor and page.suffix == ".md" and anchor not in anchors(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_to_a_file_and_a_heading(page: Path) -> None:
    links = _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
    assert [link for link in links if is_dead(page.parent / link[0] if link[0] else page, link[1])] == []


def test_pages_that_modules_cite_exist() -> None:
    cited = [(path, found) for path in MODULES for found in _CITED.findall(path.read_text(encoding="utf-8"))]
    dead = [(str(path.relative_to(ROOT)), found) for path, found in cited if is_dead(ROOT / found[0], found[1])]
    assert len(cited) > 10
    assert [each for each in dead if not each[0].startswith("tests/unit/test_prose_checks")] == []


def test_every_decision_is_in_the_index_and_the_index_names_nothing_else() -> None:
    folder = ROOT / "docs" / "decisions"
    index = re.findall(r"^\| (D\d+) \| .*\]\((\w+\.md)#(d\d+)\) \|$", (folder / "README.md").read_text(), re.MULTILINE)
    assert all(number.lower() == anchor for number, _, anchor in index)
    written = {
        (page.name, anchor) for page in folder.glob("*.md") for anchor in anchors(page) if re.fullmatch(r"d\d+", anchor)
    }
    assert {(page, anchor) for _, page, anchor in index} == written


def test_classes_that_pages_for_engineers_name_exist() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    classes = set(re.findall(r"^class (\w+)", source, re.MULTILINE))
    for page in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)(?:\.\w+(?:\([^`]*\))?)?`", (ROOT / page).read_text()))
        assert named - classes == {"Any"} & named, page  # `Any` is of typing
