"""The reader of Gemma's calls: documented outputs, broken forms, every cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.filters.raw_tools.bodies import reader_of
from dragoman.filters.raw_tools.readers import Piece
from dragoman.filters.raw_tools.table import Table
from dragoman.filters.raw_tools.tables import TABLES
from tests.unit.raw_tools.reading import no_shapes, read, run

BY_NAME = {table.name: table for table in TABLES}
GEMMA, FUNCTION = BY_NAME["gemma4"], BY_NAME["functiongemma"]
MARK, END = '<|"|>', "<tool_call|>"
keys = st.text("abz_019-é", min_size=1, max_size=6)
texts = st.text(max_size=12).map(lambda text: text.replace("<|", "<"))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
nested = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)
arguments = st.dictionaries(keys, nested, max_size=4)
odd = st.sampled_from(
    [
        "call:",
        "call:f{",
        "a:",
        "1",
        MARK,
        "<|",
        '<|"',
        END,
        "<tool",
        ",",
        "{",
        "}",
        "[",
        "]",
        "text",
        '"',
        "\\",
        " ",
        "\n",
        "<",
    ]
)


def written(value: object, mark: str = MARK) -> str:
    """Write a value as Gemma does."""
    match value:
        case dict():
            return "{" + ",".join(f"{key}:{written(item, mark)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(written(item, mark) for item in value) + "]"
        case str():
            return f"{mark}{value}{mark}"
        case _:
            return json.dumps(value)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (f"call:get_weather{{city:{MARK}Paris{MARK}}}", [("get_weather", '{"city":"Paris"}')]),
        (
            f"call:f{{a:{MARK}x{MARK},n:42,r:-1.50,b:true,z:null}}",
            [("f", '{"a":"x","n":42,"r":-1.50,"b":true,"z":null}')],
        ),
        (
            f"call:f{{o:{{k:{MARK}v{MARK}}},i:[1,{MARK}z{MARK},[]],e:{{}}}}",
            [("f", '{"o":{"k":"v"},"i":[1,"z",[]],"e":{}}')],
        ),
        ("call:now{}", [("now", "{}")]),
        (
            f'call:f{{a:{MARK}{{"k": [1]}}, \\n "q" <b>\n{MARK}}}',
            [("f", '{"a":"{\\"k\\": [1]}, \\\\n \\"q\\" <b>\\n"}')],
        ),
        (f"call:f{{a:{MARK}{MARK},b:{MARK}é 😀{MARK}}}", [("f", '{"a":"","b":"é 😀"}')]),
        ("call:f{city:San Francisco,at:12:30}", [("f", '{"city":"San Francisco","at":"12:30"}')]),
        ('call:f{"a": "b", "n": 1}', [("f", '{"a":"b","n":1}')]),
        (f"call:f{{{MARK}a{MARK}:1}}", [("f", '{"a":1}')]),
        (f"call:f{{a:{MARK}{END}{MARK}}}", [("f", f'{{"a":"{END}"}}')]),
        ("call:f{}call:g{a:1}", [("f", "{}"), ("g", '{"a":1}')]),
        ("\n call:f { a : 1 }", [("f", '{"a":1}')]),
    ],
)
def test_calls(text: str, calls: list[tuple[str, str]]) -> None:
    result = read(GEMMA, text + END + "after")
    assert (result.said, result.left, result.over) == (calls, "after", True)
    assert all(valid for *_, valid in result.calls)
    for _, arguments in calls:
        json.loads(arguments)


def test_functiongemma_has_marks_of_its_own() -> None:
    text = "call:f{city:<escape>São <b> Paulo<escape>,n:3}<end_function_call>"
    assert read(FUNCTION, text).calls == (("f", '{"city":"São <b> Paulo","n":3}', True),)


@pytest.mark.parametrize(
    "text", ["", "call", "call:", "call:f", "call:f{", "call:{}", "f{a:1}", "call:f{]", "words", "call:two words{}"]
)
def test_what_is_no_call_fails(text: str) -> None:
    result = read(GEMMA, text)
    assert (result.calls, result.failed) == ((), True)


@pytest.mark.parametrize(
    ("text", "arguments", "left"),
    [
        (f"call:f{{a:{MARK}x}}{END}So {MARK}it{MARK} goes", '{"a":"x}', f"So {MARK}it{MARK} goes"),
        (f"call:f{{a:{MARK}x}}{END}", '{"a":"x}', ""),
        (f"call:f{{a:[1}}{END}", '{"a":[1}', ""),
        (f"call:f{{a:1,b}}{END}", '{"a":1,"b"}', ""),
        (f"call:f{{a:1{END}", '{"a":1', ""),
    ],
)
def test_broken_arguments_are_passed_on_and_not_valid(text: str, arguments: str, left: str) -> None:
    result = read(GEMMA, text)
    assert (result.calls, result.left, result.over) == ((("f", arguments, False),), left, True)


def test_a_call_that_is_cut_off_stays_open() -> None:
    assert read(GEMMA, f"call:f{{a:{MARK}x<|").calls == (("f", '{"a":"x<|', None),)
    assert read(GEMMA, "call:f{a:1").calls == (("f", '{"a":1', None),)


def test_a_reader_holds_little() -> None:
    reader, out, held, most = reader_of(GEMMA, no_shapes), list[Piece](), "", 0
    for char in f"call:f{{a:{MARK}{'x < y ' * 2000}{MARK},b:[{'1,' * 2000}2]}}":
        held += char
        held = held[reader.read(held, 0, out) :]
        most = max(most, len(held))
    assert most < 64
    assert json.loads("".join(piece for piece in out if isinstance(piece, str)))["b"][-1] == 2


@given(st.lists(arguments, min_size=1, max_size=3), st.sampled_from([GEMMA, FUNCTION]))
def test_calls_come_back(calls: list[dict[str, object]], table: Table) -> None:
    text = "".join(f"call:f{written(given, table.string_mark)}" for given in calls) + table.call_end[0]
    result = run(table, list(text))
    assert result == run(table, [text])
    assert [json.loads(each) for _, each in result.said] == calls


@given(st.lists(odd, max_size=16), st.booleans())
def test_nothing_depends_on_the_cut_and_nothing_raises(parts: list[str], begun: bool) -> None:
    text = ("call:f{a:" if begun else "") + "".join(parts)
    whole = run(GEMMA, [text])
    assert run(GEMMA, list(text)) == whole
    assert run(GEMMA, ["call:f{a:" if begun else "", *parts]) == whole
    assert text.endswith(whole.left)
    for _, arguments, valid in whole.calls:
        if valid:
            json.loads(arguments)
