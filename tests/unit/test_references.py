"""References can be followed: links between pages, decisions by number, pages that modules cite; docstrings exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.words.prose import files

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MODULES = files(["src", "tests", "bench"])

_FENCED = re.compile(r"^\s*```.*?^\s*```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]+))?\)")
# Pages with names of the past, of other projects, and of modules that are still to be written.
_OTHER_NAMES = frozenset({"CHANGELOG.md", "messages.md", "mission.md", "inspector_api.md"})
_SPAN = re.compile(r"`([^`\n]+)`")
_OWN_PATH = re.compile(r"(?:src|tests|docs|bench|\.github)/[\w./*-]+$")
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


def _is_test(name: str, functions: frozenset[str]) -> bool:
    """Return whether a module or a function of this name exists; `test_rule_1_*` names all that begin so."""
    return name in functions or (name.endswith("*") and any(each.startswith(name[:-1]) for each in functions))


def test_paths_and_tests_that_pages_name_exist() -> None:
    paths = [path for root in ("tests", "bench", "src") for path in (ROOT / root).rglob("*.py")]
    functions = {each for path in paths for each in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))}
    known = frozenset(functions | {path.name for path in paths})
    dead: list[tuple[str, str]] = []
    for page in PAGES:
        spans = _SPAN.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
        for span in spans if page.name not in _OTHER_NAMES else ():
            path, _, function = span.partition("::")
            if "/" in path and _OWN_PATH.match(path):
                named = bool([*ROOT.glob(path)]) and function.split("::")[-1] in {"", *functions}
            else:
                named = not re.fullmatch(r"test_\w+(\.py|\*)?", span) or _is_test(span, known)
            dead += [] if named else [(page.name, span)]
    assert dead == []


def test_names_of_tests_cite_nothing_that_the_repository_lacks() -> None:
    """The numbers of decisions, documents, points of SECURITY.md and rules of docs/reliability.md can be found."""
    cited = re.compile(r"def (test_(?:(?!d\d|p\d)[a-z]\d+|(?:case|bug|row|fact|issue)_\d+)_\w+)")
    found = [name for path in MODULES for name in cited.findall(path.read_text(encoding="utf-8"))]
    assert found == []


def test_names_of_tests_can_be_read_alone() -> None:
    """They do not begin with a word that refers to the test before them."""
    found = {
        name
        for path in MODULES
        for name in re.findall(r"^(?:async )?def (test_(?:it|nor|so|they)_\w+)", path.read_text(encoding="utf-8"), re.M)
    }
    assert found - {"test_it_is_told"} == set()  # a text in tests/unit/test_prose_checks.py


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


def test_filters_that_pages_of_dialects_list_exist() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    classes = set(re.findall(r"^class (\w+)", source, re.MULTILINE))
    for page in (ROOT / "docs" / "dialects").glob("*.md"):
        tables = re.findall(r"^\| filter \|.*\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE)
        listed = {
            each for table in tables for row in table.splitlines() for each in re.findall(r"\w{4,}", row.split("|")[1])
        }
        assert listed - classes == set(), page


def test_every_module_and_public_name_has_a_docstring() -> None:
    """Modules of the tests, too; of the package and the benchmarks also the public functions and classes."""
    missing = []
    for path in (each for each in MODULES if each.suffix == ".py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        public = [
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
        ]
        nodes = [tree, *public] if path.relative_to(ROOT).parts[0] != "tests" else [tree]
        missing += [
            f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'the module')}"
            for node in nodes
            if tree.body and not ast.get_docstring(node)
        ]
    assert len(MODULES) > 500
    assert missing == []
