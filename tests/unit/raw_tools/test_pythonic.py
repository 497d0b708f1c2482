"""The reader of pythonic calls: documented outputs, Python literals, broken forms, every cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.filters.raw_tools.bodies import reader_of
from dragoman.filters.raw_tools.readers import NamedCall, Piece
from dragoman.filters.raw_tools.tables import TABLES
from tests.unit.raw_tools.reading import no_shapes, read, run
from tests.unit.raw_tools.test_scan import values

BY_NAME = {table.name: table for table in TABLES}
LFM2, OLMO3, BARE = BY_NAME["lfm2"], BY_NAME["olmo3"], BY_NAME["pythonic"]
END = "<|tool_call_end|>"
arguments = st.dictionaries(st.text("abz_", min_size=1, max_size=6), values, max_size=4)
names = st.sampled_from(["f", "get_weather", "fs.read", "_x1", "a-b"])
pieces = st.sampled_from(
    [
        "f(",
        "a=",
        "1",
        '"x"',
        "'",
        '"',
        '"""',
        "'''",
        "\\",
        "\\x4",
        "\\n",
        ", ",
        ")",
        "[",
        "]",
        "{",
        "}",
        "(",
        ":",
        "True",
    ]
)
odd = pieces | st.sampled_from(["\n", " ", "r'", END, "<|tool_call", "-2.5", "é", "g()", "word ", "=="])


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('[get_weather(city="Paris", metric="celsius")]', [("get_weather", '{"city":"Paris","metric":"celsius"}')]),
        ("[f(a=1, b='x'), g()]", [("f", '{"a":1,"b":"x"}'), ("g", "{}")]),
        ("f(a=1)\ng(b=2)\n", [("f", '{"a":1}'), ("g", '{"b":2}')]),
        ("[math.add(x=-1, y=+2.5, z=1e3)]", [("math.add", '{"x":-1,"y":2.5,"z":1e3}')]),
        ("[f(a=True, b=False, c=None)]", [("f", '{"a":true,"b":false,"c":null}')]),
        ("[f(a=true, b=null)]", [("f", '{"a":true,"b":null}')]),
        (
            "[f(a=[1, 'two', [3]], b=(1, 2,), c={'k': {'m': None}, 2: 3}, d=[], e={})]",
            [("f", '{"a":[1,"two",[3]],"b":[1,2],"c":{"k":{"m":null},"2":3},"d":[],"e":{}}')],
        ),
        ("""[f(a="it's", b='say "hi"', c='\\'')]""", [("f", '{"a":"it\'s","b":"say \\"hi\\"","c":"\'"}')]),
        ('[f(a="\\n\\t\\\\ \\x41\\u00e9\\101\\d")]', [("f", '{"a":"\\n\\t\\\\ AéA\\\\d"}')]),
        (
            "[f(a='''one\n'two' ''three''', b=\"\"\"\"q\" \"\"\")]",
            [("f", '{"a":"one\\n\'two\' \'\'three","b":"\\"q\\" "}')],
        ),
        ("[f(a=r'\\d+', b=f'x', c='')]", [("f", '{"a":"\\\\d+","b":"x","c":""}')]),
        ("[f(a=0x1F, b=1_000, c=.5)]", [("f", '{"a":31,"b":1000,"c":0.5}')]),
        ("[f(a=celsius)]", [("f", '{"a":"celsius"}')]),
        ("[ f ( a = 1 , ) , ]", [("f", '{"a":1}')]),
        ("[f(a='日本 \\ud83d\\ude00')]", [("f", '{"a":"日本 \\ud83d\\ude00"}')]),
        ("[f(a='" + END + "')]", [("f", '{"a":"' + END + '"}')]),
        ("[f(a='line\nbreak')]", [("f", '{"a":"line\\nbreak"}')]),
    ],
)
@pytest.mark.parametrize("end", [END, "\n" + END + "after"])
def test_calls(text: str, calls: list[tuple[str, str]], end: str) -> None:
    result = read(LFM2, text + end)
    assert (result.said, result.left, result.over) == (calls, end.partition(END)[2], True)
    assert all(valid for *_, valid in result.calls)
    for _, written in calls:
        json.loads(written)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "[f]",
        "[f(",
        "[f(1)]",
        "[f('x', a=1)]",
        "[see f(x) there]",
        "words",
        "[1, 2]",
        "[f(a)]",
        "[f(**{})]",
    ],
)
def test_what_is_no_call_fails(text: str) -> None:
    """Arguments without a key are not read, because nothing says which parameters they mean."""
    result = read(BARE, text)
    assert (result.calls, result.failed) == ((), True)


@pytest.mark.parametrize(
    ("text", "written", "left"),
    [
        ("[f(a=1 + g(2))]" + END, '{"a":1+ g(2))]', ""),
        ("[f(a='x)]" + END + "It's done.", '{"a":"x)]', "It's done."),
        ("[f(a='x)]" + END, '{"a":"x)]', ""),
        ("[f(a=1, 2)]" + END, '{"a":1,2)]', ""),
        ("[f(a=[1, 2)]" + END, '{"a":[1,2)]', ""),
        ("[f(a=1" + END, '{"a":1', ""),
    ],
)
def test_broken_arguments_are_passed_on_and_not_valid(text: str, written: str, left: str) -> None:
    result = read(LFM2, text)
    assert (result.calls, result.left, result.over) == ((("f", written, False),), left, True)


def test_a_call_that_is_cut_off_stays_open() -> None:
    assert read(LFM2, "[f(a='xy").calls == (("f", '{"a":"xy', None),)
    assert read(LFM2, "[f(a=12").calls == (("f", '{"a":12', None),)
    assert read(LFM2, "[f(a=1), g(").calls == (("f", '{"a":1}', True),)


def test_what_follows_the_calls_is_left() -> None:
    assert read(BARE, "[f(a=1)] and more").left == " and more"
    assert read(BARE, "[f(a=1), and more").left == ", and more"
    assert read(BARE, "[f(a=1), g(2)]").left == ", g(2)]"
    assert read(OLMO3, "f()\nSome words</function_calls>").left == "\nSome words</function_calls>"


def test_arguments_stream() -> None:
    reader, out = reader_of(LFM2, no_shapes), list[Piece]()
    text = "[f(a='" + "x" * 500
    held = ""
    for char in text:
        held += char
        held = held[reader.read(held, 0, out) :]
    assert out[0] == NamedCall("f")
    assert "".join(piece for piece in out if isinstance(piece, str)) == '{"a":"' + "x" * 500


@given(st.lists(st.tuples(names, arguments), min_size=1, max_size=3), st.sampled_from(["list", "lines"]))
def test_calls_come_back(calls: list[tuple[str, dict[str, object]]], form: str) -> None:
    written = [f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for name, given in calls]
    text = (f"[{', '.join(written)}]" if form == "list" else "\n".join(written)) + END
    result = run(LFM2, list(text))
    assert result == run(LFM2, [text])
    assert [(name, json.loads(text)) for name, text in result.said] == calls
    assert all(valid for *_, valid in result.calls)


@given(st.lists(odd, max_size=16), st.booleans())
def test_nothing_depends_on_the_cut_and_nothing_raises(parts: list[str], begun: bool) -> None:
    text = ("[f(a=" if begun else "") + "".join(parts)
    whole = run(LFM2, [text])
    assert run(LFM2, list(text)) == whole
    assert run(LFM2, ["[f(a=" if begun else "", *parts]) == whole
    assert text.endswith(whole.left)
    for _, written, valid in whole.calls:
        if valid:
            json.loads(written)
