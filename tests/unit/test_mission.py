"""docs/mission.md stays true: every test that it names exists, and every requirement of the documents has its row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import dragoman

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mission.md").read_text(encoding="utf-8")
LINES = [line for line in PAGE.splitlines() if re.match(r"\| (?:AC|TS|00\d\.)\d", line)]
ROWS = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in LINES]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)+)`", PAGE)))

SCENARIOS = ("1.1 1.2 1.3", "2.1 2.2 2.3", "3.1 3.2 3.3", "4.1 4.2 4.3 4.4", "5.1 5.2")
NUMBERED = {"000": 20, "001": 46, "002": 56, "003": 17, "004": 26}  # requirements that have no id of their own
IDS = [
    *[f"AC{number}" for number in ["1a", "1b", "2a", "2b", "3a", "3b", "3c", "4a", "4b"]],
    *[f"TS{number}" for each in SCENARIOS for number in each.split()],
    *[f"{document}.{number}" for document, count in NUMBERED.items() for number in range(1, count + 1)],
]


def test_every_requirement_has_its_row_and_every_row_a_test() -> None:
    assert [row[0] for row in ROWS] == IDS
    assert {len(row) for row in ROWS} == {4}, "id, requirement, test, difference"
    assert [row[0] for row in ROWS if not re.search(r"`tests/", row[2])] == []


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_the_page_names_exists(name: str) -> None:
    path, *parts = name.split("::")
    nodes: list[ast.stmt] = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    for part in parts:
        [found] = [node for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part]
        nodes = found.body


# --- requirements that no other test shows alone


def test_000_the_code_that_reads_tool_results_has_every_branch_tried() -> None:
    """Success metric 1: `make check`, which `make test` ends with, fails below 100% of it."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "--include='$(EXACT)' --fail-under=100" in makefile
    [named] = re.findall(r"^EXACT := (.+)$", makefile, re.MULTILINE)
    assert "src/dragoman/dialects/kiro/quirks/turns.py" in named.split(",")
    assert [path for path in named.split(",") if not (ROOT / path).is_file()] == []


def to_kiro(content: object, **more: object) -> dragoman.Translated:
    body = {"model": "claude-sonnet-4.5", "messages": [{"role": "user", "content": content}], **more}
    return dragoman.translate_request(body, source="anthropic", target="kiro")


def test_002_max_tokens_and_stream_are_not_sent_to_kiro() -> None:
    whole, streamed = to_kiro("hi", max_tokens=9, stream=False), to_kiro("hi", max_tokens=9, stream=True)
    assert whole.raw == streamed.raw
    assert b"max" not in whole.raw and b"stream" not in whole.raw
    assert {"kiro.max_tokens", "kiro.stream"} <= {note.rule for note in whole.notes}


def test_002_an_image_becomes_an_entry_of_images() -> None:
    data = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    sent = to_kiro([{"type": "text", "text": "look"}, image], max_tokens=9).body
    turn = sent["conversationState"]["currentMessage"]["userInputMessage"]
    assert turn["images"] == [{"format": "png", "source": {"bytes": data}}]
    assert turn["content"] == "look"


# --- The pages at the root stay true to the tree

PAGES = sorted(page.name for page in ROOT.glob("*.md"))

_NOT_DESCRIBED = {"_version.py", "__main__.py"}
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
    parts |= {f"src/dragoman/{module.name}" for module in package.glob("*.py") if module.name not in _NOT_DESCRIBED}
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
