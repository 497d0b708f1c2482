"""`dragoman raw-tools`: list, try and learn, as a user runs them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dragoman.cli import chat_template, main
from dragoman.cli.raw_tools import MODELS, find, looks, rows
from dragoman.filters.raw_tools import TABLES
from dragoman.filters.raw_tools.table import Table, parse

FOLDER = Path(__file__).parent / "templates"
TEXT = 'Let me look.\n<tool_call>\n{"name": "search", "arguments": {"q": "x"}}\n</tool_call>'
OPENAI = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
ANTHROPIC = {"tools": [{"name": "search", "input_schema": {"type": "object"}}]}


@pytest.fixture
def text(tmp_path: Path) -> str:
    file = tmp_path / "answer.txt"
    file.write_text(TEXT)
    return str(file)


# --- list


def test_list_shows_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["raw-tools", "list"]) == 0
    said = capsys.readouterr().out
    assert all(table.name in said for table in TABLES)
    assert "\x1b" not in said


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["raw-tools", "list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == [table.name for table in TABLES]


def test_every_shipped_format_says_who_writes_it() -> None:
    assert {table.name for table in TABLES} <= set(MODELS)
    assert [row.name for row in rows()] == [table.name for table in TABLES]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_what_list_shows_of_a_format_is_a_call_of_it(table: Table) -> None:
    value = "x" if table.body in ("markup", "elements", "gemma") else '"x"'
    text = looks(table).replace("VALUE", value).replace("⏎", "\n")
    calls = [each for each in find(text, table.name) if each.kind != "remark"]
    assert [(call.kind, call.name, json.loads(call.arguments)) for call in calls] == [("call", "NAME", {"KEY": "x"})]


# --- try


@pytest.mark.parametrize("cut", ["0", "1", "7"])
def test_try_shows_text_and_calls_in_reading_order(text: str, cut: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["raw-tools", "try", "hermes", text, "--cut", cut, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["kind"] for each in found if each["kind"] != "remark"] == ["text", "call"]
    call = next(each for each in found if each["kind"] == "call")
    assert (call["name"], json.loads(call["arguments"]), call["table"]) == ("search", {"q": "x"}, "hermes")


@pytest.mark.parametrize("tools", [OPENAI, ANTHROPIC])
def test_try_takes_declared_tools(text: str, tools: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    assert main(["raw-tools", "try", "auto", text, "--tools", str(tmp_path / "tools.json")]) == 0
    said = capsys.readouterr()
    assert "call search" in said.out
    assert '  "q": "x"' in said.out
    assert said.err == "1 call\n"


def test_try_takes_a_table_file(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    assert main(["raw-tools", "learn", str(FOLDER / "hermes.jinja"), "--name", "mine", "--output", str(file)]) == 0
    for table in (str(file), f"file:{file}"):
        capsys.readouterr()
        assert main(["raw-tools", "try", table, text, "--json"]) == 0
        assert '"table": "mine"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nonsense"], 2, "'nonsense' is none of auto"),
        (["missing.toml"], 2, "missing.toml: no such file"),
        (["hermes", "/nowhere/at/all"], 1, "/nowhere/at/all"),
        (["hermes", "--tools", "/nowhere/at/all"], 1, "/nowhere/at/all"),
    ],
)
def test_try_says_what_is_wrong(
    words: list[str], status: int, said: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [words[0], text, *words[1:]] if len(words) != 2 else words
    assert main(["raw-tools", "try", *words]) == status
    assert said in capsys.readouterr().err


def test_try_lets_no_escape_sequence_of_the_text_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").write_text("\x1b[31mred")
    assert main(["raw-tools", "try", "hermes", str(tmp_path / "t")]) == 0
    assert "\x1b" not in capsys.readouterr().out


# --- learn


def test_learn_writes_a_table_and_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["raw-tools", "learn", str(FOLDER / "qwen_coder.jinja"), "--name", "mine"]) == 0
    said = capsys.readouterr()
    (table,) = parse(said.out)
    assert (table.name, table.body, table.call_begin) == ("mine", "markup", ("<function=",))
    assert "60 of 60 renderings read back" in said.err
    assert 'raw_tools = "qwen_coder" reads it' in said.err


def test_learn_says_how_to_use_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = (FOLDER / "hermes.jinja").read_text().replace("tool_call>", "act>")
    (tmp_path / "new-model.v2.jinja").write_text(template)
    file = tmp_path / "t.toml"
    assert main(["raw-tools", "learn", str(tmp_path / "new-model.v2.jinja"), "--output", str(file)]) == 0
    (table,) = parse(file.read_text())
    assert (table.name, table.call_begin) == ("new-model", ("<act>",))
    said = capsys.readouterr()
    assert f'raw_tools = "file:{file}"' in said.err
    assert not said.out


def test_learn_gives_variables_to_the_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = "{{ style.tag }}" + (FOLDER / "hermes.jinja").read_text()
    (tmp_path / "t.jinja").write_text(template)
    assert main(["raw-tools", "learn", str(tmp_path / "t.jinja"), "--set", 'style={"tag": "x"}']) == 0
    capsys.readouterr()
    assert main(["raw-tools", "learn", str(tmp_path / "t.jinja"), "--set", "style"]) == 2
    assert "expected NAME=VALUE" in capsys.readouterr().err


def test_learn_fails_with_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}")
    assert main(["raw-tools", "learn", str(tmp_path / "t.jinja")]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert "renders no tool calls" in said.err


def test_learn_says_that_jinja_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = tmp_path / "jinja2.py"
    hidden.write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["raw-tools", "learn", str(FOLDER / "hermes.jinja")]) == 1
    assert "pip install 'dragoman[raw-tools]'" in capsys.readouterr().err


def test_the_command_line_does_not_need_jinja() -> None:
    assert "jinja2" not in vars(chat_template)
    assert chat_template.__name__ in sys.modules
