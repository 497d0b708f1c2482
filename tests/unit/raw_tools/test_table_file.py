"""Table files: what is written is read back unchanged, and what is wrong is said with its place."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import dragoman
from dragoman.cli import main
from dragoman.errors import LocalMisuse
from dragoman.filters.raw_tools import table
from dragoman.filters.raw_tools.table import Keys, Markup, Table, TableFileError, parse, write
from dragoman.filters.raw_tools.tables import TABLES, tables_of
from dragoman.gateway.config import ConfigError, examine

SMALL = '[[tables]]\nname = "mine"\nspecial = true\nbody = "json"\ncall_begin = ["<|c|>"]\nheader_stop = ["{"]\n'
ODD = Table(
    name="odd",
    family="odd.family",
    special=False,
    body="markup",
    call_begin=('"', "'both\"", "a\\b", "line\nend", "\t", "｜ "),
    header=re.compile("(?P<name>\\S+) 'x' \"y\"", re.DOTALL | re.IGNORECASE),
    reasoning=(("<t>", "</t>"), ("[T]", "[/T]")),
    wrappers=(("<a>", "text"), ("<b>", "reasoning")),
    markup=Markup(opens=re.compile(r"<(?P<key>\w+)>"), open_end=">", value_ends=("</>",), trims=True),
    keys=Keys(name=("tool",), is_name=True),
    string_mark='<|"|>',
    self_closing=True,
)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_shipped_table_survives_a_table_file(table: Table) -> None:
    assert parse(write([table])) == (table,)


def test_all_shipped_tables_fit_into_one_file() -> None:
    assert parse(write(TABLES)) == TABLES


def test_odd_characters_and_flags_survive_a_table_file() -> None:
    odd = Table(**{**{name: getattr(ODD, name) for name in ODD.__struct_fields__}, "call_begin": ODD.call_begin[:4]})
    assert parse(write([odd])) == (odd,)


def test_a_family_defaults_to_the_name() -> None:
    (table,) = parse(SMALL)
    assert (table.name, table.family) == ("mine", "mine")


WRONG = {
    "no TOML": ("tables = [", "not TOML"),
    "no tables": ("", "no [[tables]] entry"),
    "no list": ('[tables]\nname = "x"', "no [[tables]] entry"),
    "unknown top field": (SMALL + "\n[more]\nx = 1", "more: there is no such field"),
    "unknown field": (SMALL + "colour = 1\n", "tables[0].colour: there is no such field"),
    "unknown field of markup": (SMALL + "[tables.markup]\nx = 1\n", "tables[0].markup.x: there is no such field"),
    "missing body": ('[[tables]]\nname = "a"\nspecial = true', "missing required field `body`"),
    "unknown body": (SMALL.replace('"json"', '"yaml"'), "tables[0].body: invalid enum value 'yaml'; known: json"),
    "wrong type": (SMALL.replace("true", '"yes"'), "tables[0].special: expected `bool`"),
    "a marker that is no list": (SMALL.replace('["<|c|>"]', '"<|c|>"'), "tables[0].call_begin: expected `array`"),
    "an empty marker": (SMALL.replace('["<|c|>"]', '["<|c|>", ""]'), "tables[0].call_begin: an empty marker"),
    "a blank marker": (SMALL.replace('["<|c|>"]', '[" "]'), "tables[0].call_begin: an empty marker"),
    "a long marker": (SMALL.replace("<|c|>", "x" * 300), "tables[0].call_begin: a marker of more than 256"),
    "no opener": (SMALL.replace('call_begin = ["<|c|>"]\n', ""), "tables[0]: nothing says where a call begins"),
    "no end of the header": (SMALL.replace('header_stop = ["{"]\n', ""), "tables[0].header_end: is missing"),
    "no markup": (SMALL.replace('"json"', '"markup"'), "tables[0].markup: is missing"),
    "no string mark": (SMALL.replace('"json"', '"gemma"'), "tables[0].string_mark: is missing"),
    "no regular expression": (SMALL + "header = '('\n", "tables[0].header: not a regular expression"),
    "a number as one": (SMALL + "header = 1\n", "tables[0].header: expected a regular expression"),
    "no group": (SMALL + "header = 'x'\n", "tables[0].header: has no group (?P<name>"),
    "exponential time": (SMALL + "header = '(?P<name>(a+)+)'\n", "tables[0].header: a repeat inside"),
    "a long expression": (SMALL + f"header = '(?P<name>{'x' * 3000})'\n", "tables[0].header: a regular expression of"),
    "a bad name": (SMALL.replace('"mine"', '"a b"'), "tables[0].name: 'a b' is no name"),
    "a reserved name": (SMALL.replace('"mine"', '"auto"'), "tables[0].name: 'auto' is no name"),
    "a name twice": (SMALL + SMALL, "tables[1].name: 'mine' is the name of another table"),
    "many tables": ("".join(SMALL.replace("mine", f"m{n}") for n in range(70)), "more than 64 tables"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_with_its_place(text: str, said: str) -> None:
    with pytest.raises(TableFileError) as error:
        parse(text, "mine.toml")
    assert str(error.value).startswith("mine.toml: ")
    assert said in str(error.value)


def test_a_file_choice_gives_the_tables_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(SMALL + SMALL.replace("mine", "second"))
    assert [table.name for table in tables_of(f"file:{file}")] == ["mine", "second"]


@pytest.mark.parametrize("content", [None, b"\xff", b"x" * 300_000])
def test_a_file_that_cannot_be_read_is_an_error_of_the_caller(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "mine.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(LocalMisuse, match=re.escape(str(file))):
        tables_of(f"file:{file}")


def test_loading_again_gives_another_choice_only_if_the_content_is_another(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(SMALL)
    first = table.load(file)
    assert table.load(file) == first
    file.write_text(SMALL.replace("<|c|>", "<|d|>"))
    second = table.load(file)
    assert first != second
    assert [table.call_begin for choice in (first, second) for table in tables_of(choice)] == [("<|c|>",), ("<|d|>",)]


# --- in a configuration

CONFIG = """
[upstreams.local]
preset = "vllm"
models = ["m"]
[upstreams.local.translation]
raw_tools = "file:tables/mine.toml"
"""


def _configured(tmp_path: Path, table: str | None) -> Path:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    (tmp_path / "tables").mkdir(exist_ok=True)
    if table is not None:
        (tmp_path / "tables" / "mine.toml").write_text(table)
    return config


def test_a_configuration_names_a_file_relative_to_itself(tmp_path: Path) -> None:
    loaded = examine(_configured(tmp_path, SMALL), {"HOME": str(tmp_path)})
    choice = loaded.config.upstreams["local"].settings.raw_tools
    assert choice is not None
    assert [table.name for table in tables_of(choice)] == ["mine"]


def test_a_reload_reads_the_file_again(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    before = examine(_configured(tmp_path, SMALL), environ).config.upstreams["local"].settings.raw_tools
    changed = SMALL.replace("mine", "other")
    after = examine(_configured(tmp_path, changed), environ).config.upstreams["local"].settings.raw_tools
    assert before is not None
    assert after is not None
    assert [table.name for choice in (before, after) for table in tables_of(choice)] == ["mine", "other"]


@pytest.mark.parametrize(("table", "said"), [(None, "no such file"), ("x", "not TOML"), ("x = 1", "no such field")])
def test_check_says_where_a_bad_file_is_named(tmp_path: Path, table: str | None, said: str) -> None:
    config = _configured(tmp_path, table)
    with pytest.raises(ConfigError) as error:
        examine(config, {"HOME": str(tmp_path)})
    (problem,) = error.value.problems
    assert problem.at == "upstreams.local.translation.raw_tools"
    assert (problem.origin.place, problem.origin.line) == (str(config), 6)
    assert f"tables{os.sep}mine.toml" in problem.message
    assert said in problem.message


# --- in the library and on the command line

REPLY = {
    "id": "r",
    "object": "chat.completion",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": 'Yes.\n<|c|>search{"q": "x"}<|/c|>'},
            "finish_reason": "stop",
        }
    ],
}
CLOSED = SMALL + 'call_end = ["<|/c|>"]\n'


def test_the_library_takes_a_table_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(CLOSED)
    done = dragoman.translate_reply(REPLY, source="openai", target="anthropic", raw_tools=f"file:{file}")
    calls = [block for block in done.body["content"] if block["type"] == "tool_use"]
    assert [(call["name"], call["input"]) for call in calls] == [("search", {"q": "x"})]
    assert done.body["stop_reason"] == "tool_use"


def test_translate_takes_a_table_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text(CLOSED)
    (tmp_path / "reply.json").write_text(json.dumps(REPLY))
    words = ["translate", "--what", "reply", "--from", "openai", "--to", "anthropic", str(tmp_path / "reply.json")]
    assert main([*words, "--raw-tools", f"file:{tmp_path}/mine.toml"]) == 0
    assert '"tool_use"' in capsys.readouterr().out
    assert main([*words, "--raw-tools", f"file:{tmp_path}/none.toml"]) == 2
    assert "none.toml: no such file" in capsys.readouterr().err
