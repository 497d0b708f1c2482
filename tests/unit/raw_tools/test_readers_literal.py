"""The scanner of JSON literals: where a value ends, for any cut of the text."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.filters.raw_tools.json_scanner import JsonScanner
from dragoman.filters.raw_tools.table import Table
from dragoman.filters.raw_tools.tables import TABLES
from tests.unit.raw_tools.render_json import gemma
from tests.unit.raw_tools.run_reader import read, run

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
structures = st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=4), values, max_size=4)


def scanned(pieces: list[str]) -> tuple[int, bool, bool]:
    """How far it went over all pieces, whether the value is complete, whether it stopped in a string."""
    scanner, done = JsonScanner(), 0
    for piece in pieces:
        end = scanner.scan(piece, 0)
        done += end
        if end < len(piece):
            break
    return done, scanner.complete, scanner.in_string


@given(structures, st.sampled_from([None, 1]), st.booleans(), st.text(" x}]<", max_size=3))
def test_json_is_followed_to_its_end_and_no_further(
    value: object, indent: int | None, ascii_: bool, after: str
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_)
    assert scanned([text + after]) == scanned([*text, *after]) == (len(text), True, False)


@given(st.text('{}[]",:\\ \n01-e.tfnrualsx<', max_size=24), st.randoms(use_true_random=False))
def test_where_it_stops_does_not_depend_on_the_cut(text: str, rng: random.Random) -> None:
    places = sorted(rng.sample(range(len(text) + 1), min(3, len(text) + 1)))
    cut = [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]
    assert scanned([text]) == scanned(list(text)) == scanned(cut)


@given(st.text('{}[]",:\\ 01-etrufalsn', max_size=20))
def test_what_python_takes_for_json_is_never_refused(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        return
    done, _, _ = scanned([text])
    assert not text[done:].strip()


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ('{"a":"echo "hi"}', 12),
        ('{"a":1 "b"', 7),
        ('{"a" "b"', 5),
        ("{a", 1),
        ("{,", 1),
        ('{"a":tr ', 7),
        ("[1,]", 3),
        ('{"a":1,}', 7),
        ("nul<", 3),
        ("[" * 1001, 1000),
    ],
)
def test_the_json_scanner_stops_at_the_first_character_that_is_no_json(text: str, stops: int) -> None:
    assert scanned([text])[0] == stops


@pytest.mark.parametrize("text", ['{"a":"x\\"y\\\\","b":2}', '["\\\\\\"",1]', '{"\\"k":"\\u0041\\n\\""}x'])
def test_an_escape_at_a_cut_is_still_an_escape(text: str) -> None:
    whole = scanned([text])
    assert whole[1]
    for cut in range(len(text) + 1):
        assert scanned([text[:cut], text[cut:]]) == whole
        for second in range(cut, len(text) + 1):
            assert scanned([text[:cut], text[cut:second], text[second:]]) == whole


@given(st.lists(st.text('\\"ab', max_size=4), max_size=6))
def test_within_takes_what_scan_takes(pieces: list[str]) -> None:
    scanner = JsonScanner()
    scanner.scan('["', 0)
    for piece in pieces:
        other = scanner.copy()
        taken = scanner.take_string(piece)
        end = other.scan(piece, 0)
        assert taken == (piece if piece and end == len(piece) and other.in_string else None)
        if taken is None:
            break
        assert scanner._escaped == other._escaped


# --- The readers of pythonic calls and of Gemma's: documented outputs, literals, broken forms, every cut

BY_NAME = {table.name: table for table in TABLES}
LFM2, OLMO3, BARE = BY_NAME["lfm2"], BY_NAME["olmo3"], BY_NAME["pythonic"]
GEMMA, FUNCTION = BY_NAME["gemma4"], BY_NAME["functiongemma"]
END = "<|tool_call_end|>"
MARK, GEMMA_END = '<|"|>', "<tool_call|>"
names = st.sampled_from(["f", "get_weather", "fs.read", "_x1", "a-b"])
arguments = st.dictionaries(st.text("abz_", min_size=1, max_size=6), values, max_size=4)
keys = st.text("abz_019-é", min_size=1, max_size=6)
texts = st.text(max_size=12).map(lambda text: text.replace("<|", "<"))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
nested = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)

PYTHONIC = [
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
]
# In the mark of Gemma 4.
GEMMAS = [
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
    (f"call:f{{a:{MARK}{GEMMA_END}{MARK}}}", [("f", f'{{"a":"{GEMMA_END}"}}')]),
    ("call:f{}call:g{a:1}", [("f", "{}"), ("g", '{"a":1}')]),
    ("\n call:f { a : 1 }", [("f", '{"a":1}')]),
]


@pytest.mark.parametrize(("text", "calls"), PYTHONIC)
@pytest.mark.parametrize("end", [END, "\n" + END + "after"])
def test_pythonic_calls(text: str, calls: list[tuple[str, str]], end: str) -> None:
    _are_read(LFM2, text + end, calls, end.partition(END)[2])


@pytest.mark.parametrize(("text", "calls"), GEMMAS)
def test_calls_of_gemma(text: str, calls: list[tuple[str, str]]) -> None:
    _are_read(GEMMA, text + GEMMA_END + "after", calls, "after")


def _are_read(table: Table, text: str, calls: list[tuple[str, str]], left: str) -> None:
    result = read(table, text)
    assert (result.content, result.left, result.is_over) == (calls, left, True)
    assert all(valid for *_, valid in result.calls)
    for _, written in calls:
        json.loads(written)


def test_functiongemma_has_marks_of_its_own() -> None:
    text = "call:f{city:<escape>São <b> Paulo<escape>,n:3}<end_function_call>"
    assert read(FUNCTION, text).calls == (("f", '{"city":"São <b> Paulo","n":3}', True),)


# Arguments without a key are not read: nothing says which parameters they mean.
NO_PYTHON = [
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
]
NO_GEMMA = ["", "call", "call:", "call:f", "call:f{", "call:{}", "f{a:1}", "call:f{]", "words", "call:two words{}"]


@pytest.mark.parametrize(
    ("table", "text"), [*((BARE, text) for text in NO_PYTHON), *((GEMMA, text) for text in NO_GEMMA)]
)
def test_what_is_no_call_fails(table: Table, text: str) -> None:
    result = read(table, text)
    assert (result.calls, result.failed) == ((), True)


@pytest.mark.parametrize(
    ("table", "text", "written", "left"),
    [
        (LFM2, "[f(a=1 + g(2))]" + END, '{"a":1+ g(2))]', ""),
        (LFM2, "[f(a='x)]" + END + "It's done.", '{"a":"x)]', "It's done."),
        (LFM2, "[f(a='x)]" + END, '{"a":"x)]', ""),
        (LFM2, "[f(a=1, 2)]" + END, '{"a":1,2)]', ""),
        (LFM2, "[f(a=[1, 2)]" + END, '{"a":[1,2)]', ""),
        (LFM2, "[f(a=1" + END, '{"a":1', ""),
        (GEMMA, f"call:f{{a:{MARK}x}}{GEMMA_END}So {MARK}it{MARK} goes", '{"a":"x}', f"So {MARK}it{MARK} goes"),
        (GEMMA, f"call:f{{a:{MARK}x}}{GEMMA_END}", '{"a":"x}', ""),
        (GEMMA, f"call:f{{a:[1}}{GEMMA_END}", '{"a":[1}', ""),
        (GEMMA, f"call:f{{a:1,b}}{GEMMA_END}", '{"a":1,"b"}', ""),
        (GEMMA, f"call:f{{a:1{GEMMA_END}", '{"a":1', ""),
    ],
)
def test_broken_arguments_are_passed_on_and_not_valid(table: Table, text: str, written: str, left: str) -> None:
    result = read(table, text)
    assert (result.calls, result.left, result.is_over) == ((("f", written, False),), left, True)


@pytest.mark.parametrize(
    ("table", "text", "calls"),
    [
        (LFM2, "[f(a='xy", (("f", '{"a":"xy', None),)),
        (LFM2, "[f(a=12", (("f", '{"a":12', None),)),
        (LFM2, "[f(a=1), g(", (("f", '{"a":1}', True),)),
        (GEMMA, f"call:f{{a:{MARK}x<|", (("f", '{"a":"x<|', None),)),
        (GEMMA, "call:f{a:1", (("f", '{"a":1', None),)),
    ],
)
def test_a_call_that_is_cut_off_stays_open(table: Table, text: str, calls: object) -> None:
    assert read(table, text).calls == calls


def test_what_follows_the_calls_is_left() -> None:
    assert read(BARE, "[f(a=1)] and more").left == " and more"
    assert read(BARE, "[f(a=1), and more").left == ", and more"
    assert read(BARE, "[f(a=1), g(2)]").left == ", g(2)]"
    assert read(OLMO3, "f()\nSome words</function_calls>").left == "\nSome words</function_calls>"


@given(st.lists(st.tuples(names, arguments), min_size=1, max_size=3), st.sampled_from(["list", "lines"]))
def test_pythonic_calls_come_back(calls: list[tuple[str, dict[str, object]]], form: str) -> None:
    written = [
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" for name, arguments in calls
    ]
    text = (f"[{', '.join(written)}]" if form == "list" else "\n".join(written)) + END
    result = run(LFM2, list(text))
    assert result == run(LFM2, [text])
    assert [(name, json.loads(text)) for name, text in result.content] == calls
    assert all(valid for *_, valid in result.calls)


@given(st.lists(st.dictionaries(keys, nested, max_size=4), min_size=1, max_size=3), st.sampled_from([GEMMA, FUNCTION]))
def test_calls_of_gemma_come_back(calls: list[dict[str, object]], table: Table) -> None:
    text = "".join(f"call:f{gemma(arguments, table.string_mark)}" for arguments in calls) + table.call_end[0]
    result = run(table, list(text))
    assert result == run(table, [text])
    assert [json.loads(each) for _, each in result.content] == calls
