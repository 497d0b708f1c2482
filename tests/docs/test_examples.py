"""Every Python example of README.md and docs runs as it is written, and passes `mypy --strict`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.simulator import running_simulator
from tests.clients.page import page_blocks
from tests.docs.mypy_run import check_types
from tests.docs.pages import CLIENTS_PAGE, ROOT, blocks, program, python_pages, run_program, write_program

PAGES = python_pages()


def test_no_page_is_missed() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"README.md", "docs/agent.md", "docs/library.md", "docs/raw_tools.md", "docs/simulator.md"} <= names
    marked = [
        page for page in ROOT.rglob("docs/**/*.md") for block in blocks(page) if block.language in ("py", "pycon")
    ]
    assert marked == []  # such a block would not run


def test_the_blocks_about_clients_are_those_that_the_client_suite_runs() -> None:
    languages = [language for language, _ in page_blocks().values()]
    assert [block.language for block in blocks(CLIENTS_PAGE)].count("python") == languages.count("python") > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    with running_simulator("openai") as simulator:
        done = run_program(write_program(page, tmp_path), simulator.url)
    assert done.returncode == 0, done.stderr


def test_the_python_of_all_pages_passes_strict_type_checks(tmp_path: Path) -> None:
    files = [write_program(page, tmp_path) for page in PAGES]
    assert check_types(*files) == ""


def test_lines_of_a_program_are_those_of_its_page() -> None:
    page = ROOT / "docs" / "library.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    written = program(page).splitlines()
    assert [number for number, line in enumerate(written) if line and line != lines[number]] == []
