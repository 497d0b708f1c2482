"""What holds for every file of the page: no way for content to become markup, nothing fetched, small modules, a small page."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "src" / "dragoman" / "gateway" / "inspector" / "page"
SERVED = sorted(path for path in PAGE.rglob("*") if path.suffix in (".html", ".js", ".css", ".svg"))
MODULES = [path for path in SERVED if path.suffix == ".js"]

LONGEST_MODULE = 300  # lines
LARGEST_PAGE = 60_000  # bytes, compressed, without comments: half of them are types for the checker
_COMMENT = re.compile(r"/\*.*?\*/|^\s*//.*$", re.DOTALL | re.MULTILINE)
# What could turn a text into markup, code or style.
_FORBIDDEN = re.compile(
    r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|srcdoc|createContextualFragment|DOMParser|document\.write|eval|Function)\b"
    r"|\.style\b|\"style\"|setAttribute\(\"on|javascript:"
)
_ADDRESS = re.compile(r"https?://[^\s\"'`)]+")
_KNOWN_ADDRESSES = {"http://www.w3.org/2000/svg", "http://127.0.0.1:8787"}  # a namespace, and a text


def name(path: Path) -> str:
    return str(path.relative_to(PAGE))


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_a_module_is_short_and_makes_elements_only_from_text(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    assert text.count("\n") <= LONGEST_MODULE
    assert _FORBIDDEN.findall(_COMMENT.sub("", text)) == []


def test_only_one_module_creates_elements_and_text() -> None:
    makers = [name(path) for path in MODULES if re.search(r"createElement|createTextNode", path.read_text("utf-8"))]
    assert makers == ["dom.js"]


def test_nothing_is_fetched_from_elsewhere() -> None:
    for path in SERVED:
        found = set(_ADDRESS.findall(path.read_text(encoding="utf-8")))
        assert found <= _KNOWN_ADDRESSES, name(path)


def test_the_document_has_no_script_or_style_of_its_own() -> None:
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<style|<script(?![^>]* src=)[^>]*>|\son\w+=|\sstyle=", text) == []
    linked = re.findall(r'(?:src|href)="(?!data:)([^"]+)"', text)
    assert all((PAGE / each).is_file() for each in linked)
    styles = {name(path) for path in SERVED if path.suffix == ".css"}
    assert set(linked) == styles | {"main.js"}


def test_every_module_is_used() -> None:
    imported = {
        str((path.parent / target).resolve())
        for path in MODULES
        for target in re.findall(r" from \"(\..+?)\";", path.read_text(encoding="utf-8"))
    }
    assert {str(path.resolve()) for path in MODULES if name(path) != "main.js"} == imported


def test_the_page_is_small() -> None:
    whole = "".join(_COMMENT.sub("", path.read_text(encoding="utf-8")) for path in SERVED)
    assert len(gzip.compress(whole.encode(), 9)) < LARGEST_PAGE
