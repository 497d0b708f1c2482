"""The checks of prose can fail, and they look at prose only."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.words import __main__ as command
from tests.words import prose
from tests.words.banned import banned, long_lines

CSPELL = Path(command.__file__).parent / "cspell"
BINARY = CSPELL / "node_modules" / "cspell" / "bin.mjs"

MODULE = '''
"""Nobody reads `whoever`."""

NAME = "told"  # whoever comes

def fail():
    """Summary.

    It tells nothing.
    """
    raise ValueError("the client was told nothing")
'''


def test_banned_words_are_found_in_comments_docstrings_and_messages() -> None:
    found = sorted((number, what.split(":")[0]) for number, what in banned(prose.python(MODULE)))
    assert found == [(1, "'told'"), (2, "'Nobody'"), (4, "'whoever'"), (9, "'tells'")]


def test_comments_of_code_blocks_and_of_other_files_are_prose() -> None:
    page = "Text.\n```toml\nport = 1  # told: 0 is any\n```\n"
    assert [number for number, _ in banned(prose.markdown(page))] == [3]
    assert [number for number, _ in banned(prose.comments("all: ## dawdles\n-- whoever\nx = 'told'"))] == [1, 2]


SCRIPT = """/** Nobody reads. @param {Told} told */
const told = "told"; // whoever comes
const text = h("p.told", `It tells ${told} a \\u201cstory\\u201d`);
"""


def test_banned_words_are_found_in_comments_and_texts_of_javascript() -> None:
    found = sorted((number, what.split(":")[0]) for number, what in banned(prose.javascript(SCRIPT)))
    assert found == [(1, "'Nobody'"), (2, "'whoever'"), (3, "'tells'")]


@pytest.mark.parametrize(
    "text",
    ["def test_it_is_told(): pass", "class FrontDoor: pass", "SAID = 1", "self.nobody = 1", "def f(knobs): pass"],
)
def test_banned_words_are_found_in_names(text: str) -> None:
    assert len(list(banned(prose.names(text)))) == 1
    assert list(banned(prose.names(f"print({text.split(maxsplit=1)[0]!r}, told)"))) == []  # a use is no definition


@pytest.mark.parametrize(
    "text",
    [
        "A client that `told` us",
        "```\nnobody\n```",
        "[a page](told.md)",
        "The page about retelling_told and foretold",
        "The option --tell",
    ],
)
def test_code_names_and_addresses_are_no_prose(text: str) -> None:
    assert list(banned(prose.markdown(text))) == []


@pytest.mark.parametrize(
    "text", ["It is told.", "**Told**", "| a | Whoever asks |", "comes home", "[as said](page.md)"]
)
def test_every_other_text_is(text: str) -> None:
    assert len(list(banned(prose.markdown(text)))) == 1


def test_long_lines_are_found_outside_tables_and_code() -> None:
    long = "word " * 30
    assert [number for number, _ in long_lines(f"{long}\n| {long} |\n```\n{long}\n```\n- {long}\n")] == [1, 6]


def test_the_command_fails_where_something_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "page.md"
    page.write_text("# Page\n\nThe server reports it.\n")
    assert command.main(["docs"]) == 0
    page.write_text("# Page\n\nThe server tells it.\n")
    assert command.main(["docs"]) == 1
    assert capsys.readouterr().out.startswith("docs/page.md:3: 'tells': ")


@pytest.mark.skipif(not BINARY.is_file(), reason="`make spell` installs cspell")
@pytest.mark.parametrize(("text", "status"), [("A plain sentence.", 0), ("A mispeled sentence.", 1)])
def test_the_spelling_check_can_fail(tmp_path: Path, text: str, status: int) -> None:
    (tmp_path / "page.md.txt").write_text(text)
    lint = [
        "node",
        str(BINARY),
        "lint",
        "--config",
        str(CSPELL / "cspell.json"),
        "--no-progress",
        "--root",
        str(tmp_path),
    ]
    assert subprocess.run([*lint, "**/*.txt"], capture_output=True, check=False).returncode == status
