"""The screens of `log`, `explain`, `status`, `reload` and `top` at 80 and 120 columns, compared with their snapshots."""

from __future__ import annotations

import re

import pytest

from dragoman.cli.terminal import Paint
from dragoman.cli.top_screen import SORT_ORDERS, TopView, render_screen
from dragoman.gateway import access_log
from dragoman.gateway.records import LoggedRequest
from dragoman.gateway.reload import FIXED
from tests.screens import FOLDER, NOW, activity, all_screens

SCREENS = all_screens()


@pytest.mark.parametrize("name", sorted(SCREENS))
def test_a_screen_is_as_it_was(name: str) -> None:
    """If the new screen is right, write it with `python -m tests.screens`."""
    assert SCREENS[name] == (FOLDER / name).read_text()


def test_every_snapshot_is_a_screen() -> None:
    assert {path.name for path in FOLDER.glob("*.txt")} == set(SCREENS)


@pytest.mark.parametrize(
    "name", sorted(name for name in SCREENS if not name.startswith(("log-80", "log-120", "status")))
)
def test_no_line_is_wider_than_the_screen(name: str) -> None:
    """Lines of the log are whole: they are searched and copied. What is below them is wrapped."""
    columns = int(name.rpartition("-")[2].removesuffix(".txt"))
    lines = SCREENS[name].splitlines()
    wide = [line for line in lines if len(line) > columns and not line.startswith("2026-")]
    assert wide == []


@pytest.mark.parametrize("columns", [20, 60, 79, 80, 109, 110, 120, 300])
@pytest.mark.parametrize("rows", [1, 5, 10, 24, 60])
@pytest.mark.parametrize("count", [0, 1, 40, 600])
def test_top_fills_the_screen_and_no_more(columns: int, rows: int, count: int) -> None:
    for order in SORT_ORDERS:
        lines = render_screen(activity(count), TopView(order), NOW, columns, rows, Paint(None))
        assert len(lines) == rows
        assert max(map(len, lines)) <= max(columns, 70)
        assert lines[-1].startswith("q quit")


def test_top_counts_the_requests_that_do_not_fit() -> None:
    lines = render_screen(activity(40), TopView(), NOW, 80, 24, Paint(None))
    shown = sum("messages" in line or "moonshot  " in line[20:] or "kiro " in line[20:] for line in lines[7:])
    assert lines[-2] == f"  … and {40 - shown} more"


# --- docs/logs.md

PAGE = (FOLDER.parent.parent / "docs" / "logs.md").read_text()


@pytest.mark.parametrize("name", ["log-120.txt", "explain-changed-80.txt", "top-once-80.txt", "reload-80.txt"])
def test_the_page_shows_screens_as_they_are(name: str) -> None:
    assert f"```text\n{SCREENS[name]}```\n" in PAGE


def test_the_page_lists_every_field_of_a_request_and_every_bound() -> None:
    listed = re.findall(r"^\| `(\w+)` \| \S", PAGE, re.MULTILINE)
    assert listed == list(LoggedRequest.__struct_fields__)
    reliability = (FOLDER.parent.parent / "docs" / "reliability.md").read_text()
    for name, value in (("MAX_REQUESTS", "1,000"), ("MAX_REFUSED", "200"), ("MAX_EVENTS", "500"), ("MAX_NOTES", "200")):
        assert f"{vars(access_log)[name]:,}" == value
        assert re.search(rf"\| {value} \| `{name}` \|", reliability) and f"`{name}`" in PAGE
    assert access_log.MAX_BYTES == 4 * 1024 * 1024 and "| 4 MiB | `MAX_BYTES` |" in reliability


def test_the_page_names_the_settings_that_need_a_restart() -> None:
    assert f"`server.{FIXED[0]}`, " + ", ".join(f"`{name}`" for name in FIXED[1:-1]) in PAGE.replace("\n", " ")
