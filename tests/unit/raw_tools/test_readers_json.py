"""The readers of JSON calls: documented outputs, broken ones, every cut. The engine is not part of it."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.filters.raw_tools.bodies import make_reader
from dragoman.filters.raw_tools.readers import BUFFER_LIMIT, LIMIT, LOOKAHEAD_LIMIT, CallPiece
from dragoman.filters.raw_tools.table import Table
from dragoman.filters.raw_tools.tables import TABLES
from tests.unit.raw_tools.formats import FORMATS
from tests.unit.raw_tools.run_reader import no_schemas, read, run
from tests.unit.raw_tools.samples import AB, CB, CE, SE
from tests.unit.raw_tools.test_readers_literal import values

BY_NAME = {table.name: table for table in TABLES}
KIMI, DEEPSEEK, MISTRAL = BY_NAME["kimi_k2"], BY_NAME["deepseek_v3"], BY_NAME["mistral"]
HERMES, LLAMA, ARRAY = BY_NAME["hermes"], BY_NAME["llama3_json"], BY_NAME["jamba"]
LFM2, GEMMA = BY_NAME["lfm2"], BY_NAME["gemma4"]
objects = st.dictionaries(st.text(max_size=6), values, max_size=4)
names = st.sampled_from(["f", "get_weather", "fs.read", "_x1", "a-b"])
# What a body may hold, by the readers that know it; the law of cuts puts them together at will.
JSON_PIECES = [
    '{"name": "f", "arguments": ', '{"a": 1}', "}", "{", "[", "]", ", ", '"', "\\", '"name"', ":", "null", "x", "\n", "; ",
    "</tool_call>", "<tool_call>", "</tool", "</tool_calls>", "<tool_calls>", CE, CB, "<|tool_call_", "```",
]  # fmt: skip
PYTHON_PIECES = [
    "f(", "a=", "1", '"x"', "'", '"', '"""', "'''", "\\", "\\x4", "\\n", ", ", ")", "[", "]", "{", "}", "(", ":", "True",
    "\n", " ", "r'", CE, "<|tool_call", "-2.5", "é", "g()", "word ", "==",
]  # fmt: skip
GEMMA_PIECES = [
    "call:", "call:f{", "a:", "1", '<|"|>', "<|", '<|"', "<tool_call|>", "<tool", ",", "{", "}", "[", "]", "text", '"', "\\",
    " ", "\n", "<",
]  # fmt: skip
_JSON_TABLES = (KIMI, DEEPSEEK, MISTRAL, HERMES, LLAMA, ARRAY)
# The table, what may have come before the pieces, and the pieces.
SOUPS = [
    *((table, "", JSON_PIECES) for table in _JSON_TABLES),
    *((LFM2, begun, PYTHON_PIECES) for begun in ("", "[f(a=")),
    *((GEMMA, begun, GEMMA_PIECES) for begun in ("", "call:f{a:")),
]


# --- one call whose header is outside: byte for byte


@pytest.mark.parametrize(
    ("text", "arguments", "left"),
    [
        ('{"city": "Rome"}' + CE + "more", '{"city": "Rome"}', "more"),
        (' {"n": 9007199254740993, "e": "\\u00e9"}\n' + CE, '{"n": 9007199254740993, "e": "\\u00e9"}', ""),
        (CE, "{}", ""),
        ("  \n" + SE, "{}", SE),
        ('{"a": 1}' + CB + "next", '{"a": 1}', CB + "next"),
        (AB + '{"a": 1}' + CE, '{"a": 1}', ""),
        ('"{\\"a\\": 1}"' + CE, '"{\\"a\\": 1}"', ""),
        ("17" + CE, "17", ""),
        ('{"a": "' + CE + '"}' + CE + "x", '{"a": "' + CE + '"}', "x"),
        (
            '{"a": ["' + CE + SE + '", {"b": "' + CB + '"}]}\n' + CE,
            '{"a": ["' + CE + SE + '", {"b": "' + CB + '"}]}',
            "",
        ),
    ],
)
def test_arguments_are_passed_on_byte_for_byte(text: str, arguments: str, left: str) -> None:
    result = read(KIMI, text)
    assert (result.content, result.left, result.is_over, result.valid) == ([("", arguments)], left, True, True)


@pytest.mark.parametrize(
    ("text", "arguments", "left"),
    [
        ('{"a": "x}' + CE + SE, '{"a": "x}', SE),  # nothing follows
        ('{"a": "x' + CE + " Done.", '{"a": "x', " Done."),
        ('{"a": "x' + CE + CB + 'f:1{"b": 2}' + CE, '{"a": "x', CB + 'f:1{"b": 2}' + CE),
        ('{"a": "x' + SE + 'He said "no" to it.', '{"a": "x', SE + 'He said "no" to it.'),
        ('{"a": "x\\' + CE + "y", '{"a": "x\\', "y"),
    ],
)
def test_an_unterminated_string_does_not_swallow_the_end_markers(text: str, arguments: str, left: str) -> None:
    """The first end marker inside the string ended the call, and its arguments are not valid."""
    result = read(KIMI, text)
    assert (result.content, result.left, result.is_over, result.valid) == ([("", arguments)], left, True, False)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"a": "say "hi""}' + CE, '{"a": "say "hi""}'),
        ("no json" + CE, "no json"),
        ('{"a": 1}}' + CE, '{"a": 1}}'),
        ('{"a": 1' + CE, '{"a": 1'),
        ("{'a': 1}  " + CE, "{'a': 1}"),
    ],
)
def test_broken_json_is_passed_on_and_not_valid(text: str, arguments: str) -> None:
    result = read(KIMI, text)
    assert (result.content, result.is_over, result.valid) == ([("", arguments)], True, False)


@pytest.mark.parametrize(
    ("text", "arguments", "closed"),
    [
        ('{"a": "x<', '{"a": "x<', False),
        ('{"a": 1} \n<|tool', '{"a": 1}', True),
        ('{"a": [1', '{"a": [1', False),
        ("", "", False),
    ],
)
def test_json_that_is_cut_off(text: str, arguments: str, closed: bool) -> None:
    result = read(KIMI, text)
    assert (result.content, result.closed, result.is_over, result.left) == ([("", arguments)], closed, False, "")


def test_a_marker_is_believed_to_be_text_when_the_look_ahead_is_over() -> None:
    long = "x" * (LOOKAHEAD_LIMIT + 100)
    text = f'{{"a": "{CE}{long}{CE}'
    result = run(KIMI, [text])
    assert result == run(KIMI, [text[at : at + 7919] for at in range(0, len(text), 7919)])
    assert (result.content, result.left, result.valid) == ([("", f'{{"a": "{CE}{long}')], "", False)


def test_code_blocks_around_the_json_are_dropped_and_inside_strings_are_kept() -> None:
    text = '```json\n{"code": "```py\\n1\\n```"}\n```<｜tool▁call▁end｜>'
    assert read(DEEPSEEK, text).content == [("", '{"code": "```py\\n1\\n```"}')]


@pytest.mark.parametrize("after", ["", " and more", "[TOOL_CALLS]g{}", '{"b": 2}', "}"])
def test_a_self_closing_call_ends_with_its_json(after: str) -> None:
    result = read(MISTRAL, '{"a": "[TOOL_CALLS]"}' + after)
    assert (result.content, result.left, result.is_over, result.valid) == (
        [("", '{"a": "[TOOL_CALLS]"}')],
        after,
        True,
        True,
    )


# --- calls that name their tool inside: one object


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (
            '{"name": "f", "arguments": {"n": 9007199254740993, "e": "\\u00e9"}}',
            '{"n": 9007199254740993, "e": "\\u00e9"}',
        ),
        ('{"arguments": {"path": "a"}, "name": "f"}', '{"path": "a"}'),
        ('{"name": "f", "parameters": {"path": "a"}}', '{"path": "a"}'),
        ('{"name": "f", "arguments": "{\\"path\\": \\"a\\"}"}', '{"path": "a"}'),
        ('{"name": "f", "arguments": "plain words"}', '"plain words"'),
        ('{"type": "function", "x": [1, {"y": "}"}], "name": "f", "arguments": {}}', "{}"),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f", "arguments": {"path": "a"}}}', '{"path": "a"}'),
        ('{"name": "f", "arguments": {"path": "a"}', '{"path": "a"}'),
        ('{"name": "f", "arguments": {"path": "</tool_call>"}}', '{"path": "</tool_call>"}'),
    ],
)
@pytest.mark.parametrize("end", ["</tool_call>", "\n</tool_call> so"])
def test_a_wrapped_call(body: str, arguments: str, end: str) -> None:
    result = read(HERMES, body + end)
    assert (result.calls, result.left) == ((("f", arguments, True),), end.partition("</tool_call>")[2])


@pytest.mark.parametrize(
    ("text", "arguments", "left"),
    [
        ('{"name": "f", "arguments": {"path": "say "hi""}}</tool_call>!', '{"path": "say "hi""}', "!"),
        ('{"name": "f", "arguments": {"a": oops}}</tool_call>', '{"a": oops}', ""),
        (
            '{"name": "f", "arguments": {"a": "x}}</tool_call>\n<tool_call>{"name": "g"}',
            '{"a": "x}}',
            '\n<tool_call>{"name": "g"}',
        ),
        ('{"name": "f", "arguments": {"a": "x</tool_call> The end.', '{"a": "x', " The end."),
        ('{"name": "f", "arguments": {"a": 1<tool_call>{"name"', '{"a": 1', '<tool_call>{"name"'),
    ],
)
def test_broken_wrapped_arguments_are_passed_on_and_not_valid(text: str, arguments: str, left: str) -> None:
    result = read(HERMES, text)
    assert (result.calls, result.left, result.is_over) == ((("f", arguments, False),), left, True)


def test_an_object_without_its_end_tag() -> None:
    one = '{"name": "f", "arguments": {}}'
    assert read(HERMES, one).calls == (("f", "{}", True),)
    assert read(HERMES, one).is_over
    assert read(HERMES, one + "\n<tool_call>" + one).left == "\n<tool_call>" + one
    assert read(HERMES, one + " and so on").left == " and so on"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"name": "f"',
        '{"name": "f", "arguments": {',
        '{"a": 1}</tool_call>',
        "[]",
        '{"name": 5}',
        '{"name": "f", "x"}',
        '{"name": "f',
        '{"arguments": {"a": 1}}',
        "words",
        '{"name": "f"</tool_call>',
        '{"arguments": "</tool_call>',
    ],
)
def test_what_is_no_wrapped_call_fails(text: str) -> None:
    result = read(HERMES, text)
    assert (result.calls, result.failed) == ((), True)


def test_a_wrapped_call_that_is_cut_off_stays_open() -> None:
    assert read(HERMES, '{"name": "f", "arguments": {"a": "b').calls == (("f", '{"a": "b', None),)
    assert read(HERMES, '{"name": "f", "arguments": {"a": 1}').calls == (("f", '{"a": 1}', None),)
    assert read(HERMES, '{"name": "f", "arguments": {"a": 1}}</tool').left == ""


def test_arguments_that_wait_have_a_limit() -> None:
    long = "x" * BUFFER_LIMIT
    text = f'{{"arguments": {{"a": "{long}"}}, "name": "f"}}'
    assert run(HERMES, [text]).failed and run(HERMES, [text[:99], text[99:]]).failed
    quoted = f'{{"name": "f", "arguments": "{long}"}}'
    assert run(HERMES, [quoted]) == run(HERMES, [quoted[:99], quoted[99:]])
    assert run(HERMES, [quoted]).content == [("f", f'"{long}"')]


# --- several objects


def test_objects_with_a_separator() -> None:
    one, two = '{"name": "f", "parameters": {"a": 1}}', '{"name": "g", "parameters": {}}'
    both = (("f", '{"a": 1}', True), ("g", "{}", True))
    for between in ("; ", ";", " ;\n", "\n"):
        assert read(LLAMA, one + between + two).calls == both
    result = read(LLAMA, one + "; " + two + "; and then")
    assert (result.calls, result.left) == (both, "; and then")
    result = read(LLAMA, one + '; {"no": "call"} stays')
    assert (result.calls, result.left) == (both[:1], '; {"no": "call"} stays')


@pytest.mark.parametrize(
    ("text", "calls", "left"),
    [
        ('[{"name": "f", "arguments": {"a": 1}}]</tool_calls>x', [("f", '{"a": 1}')], "x"),
        ('\n[\n  {"name": "f", "arguments": {}},\n  {"name": "g"}\n]\n</tool_calls>', [("f", "{}"), ("g", "{}")], ""),
        ('[{"name": "f"}, {"name": "g"},]</tool_calls>', [("f", "{}"), ("g", "{}")], ""),
        ('[{"name": "f"} {"name": "g"}</tool_calls>', [("f", "{}"), ("g", "{}")], ""),
        ('{"name": "f", "arguments": {"a": "]"}}</tool_calls>', [("f", '{"a": "]"}')], ""),
        ('[{"name": "f"}] and', [("f", "{}")], " and"),
        ('[{"name": "f"}, {"x": 1}]</tool_calls>', [("f", "{}")], ', {"x": 1}]</tool_calls>'),
        ('[{"name": "f"}, oops', [("f", "{}")], ", oops"),
    ],
)
def test_an_array_of_calls(text: str, calls: list[tuple[str, str]], left: str) -> None:
    result = read(ARRAY, text)
    assert (result.content, result.left, result.is_over) == (calls, left, True)


def test_an_array_whose_last_arguments_are_broken() -> None:
    result = read(ARRAY, '[{"name": "f"}, {"name": "g", "arguments": {"a": oops}}]</tool_calls>')
    assert result.calls == (("f", "{}", True), ("g", '{"a": oops}', False))


def test_cohere_and_apertus_have_members_of_their_own() -> None:
    cohere = (
        '[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}, {"tool_call_id": "1", "tool_name": "g"}]'
    )
    assert read(BY_NAME["cohere"], cohere + "<|END_ACTION|>").content == [("f#0", '{"a": 1}'), ("g#1", "{}")]
    apertus = '[{"f": {"a": 1}}, {"g": {}, "h": {"b": null}}]<|tools_suffix|>'
    assert read(BY_NAME["apertus"], apertus).content == [("f", '{"a": 1}'), ("g", "{}"), ("h", '{"b": null}')]
    assert read(BY_NAME["apertus"], '[{"f": "words"}]').failed


@pytest.mark.parametrize("name", [name for name in FORMATS if BY_NAME[name].body not in ("json", "markup")])
def test_the_documented_outputs(name: str) -> None:
    """The reader finds in every sample of formats.py the calls that the sample says, without the engine."""
    table = BY_NAME[name]
    opener = re.compile("|".join(map(re.escape, (*table.call_begin, *table.header_end))))
    for sample in FORMATS[name]:
        calls: list[tuple[str, str]] = []
        rest = sample.text
        while sample.calls and rest.strip() and len(calls) < len(sample.calls):
            found = opener.search(rest) if opener.pattern else None
            result = read(table, rest[found.end() if found else 0 :])
            assert result.content, rest
            calls += [(each.partition("#")[0], arguments) for each, arguments in result.content]
            rest = result.left
        assert tuple(calls) == sample.calls


# --- laws


@given(objects, st.sampled_from([None, 1]), st.booleans(), st.sampled_from(["", "\n"]))
@example({"a": CE}, None, False, "")
def test_json_arguments_come_back(value: dict[str, object], indent: int | None, ascii_: bool, before_end: str) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_)
    result = run(KIMI, list(text + before_end + CE + "."))
    assert (result.content, result.left, result.valid) == ([("", text)], ".", True)


@given(
    st.lists(st.tuples(names, objects), min_size=1, max_size=3), st.booleans(), st.sampled_from([HERMES, LLAMA, ARRAY])
)
def test_wrapped_calls_come_back(calls: list[tuple[str, dict[str, object]]], ascii_: bool, table: Table) -> None:
    calls = calls[:1] if table is HERMES else calls
    arguments = [json.dumps(value, ensure_ascii=ascii_) for _, value in calls]
    written = [f'{{"name": "{name}", "arguments": {text}}}' for (name, _), text in zip(calls, arguments, strict=True)]
    body = "; ".join(written) if table is LLAMA else f"[{', '.join(written)}]" if table is ARRAY else written[0]
    text = body + table.call_end[0]
    result = run(table, list(text))
    assert result == run(table, [text])
    assert result.calls == tuple((name, text, True) for (name, _), text in zip(calls, arguments, strict=True))


@pytest.mark.parametrize(
    ("table", "begun", "pieces"), SOUPS, ids=[f"{table.name}-{begun}" for table, begun, _ in SOUPS]
)
@given(data=st.data())
def test_nothing_depends_on_the_cut_and_nothing_raises(
    table: Table, begun: str, pieces: list[str], data: st.DataObject
) -> None:
    parts = [begun, *data.draw(st.lists(st.sampled_from(pieces), max_size=16))]
    text = "".join(parts)
    whole = run(table, [text])
    assert run(table, list(text)) == whole
    assert run(table, parts) == whole
    assert text.endswith(whole.left)
    for _, arguments, valid in whole.calls if pieces is not JSON_PIECES else ():
        if valid:
            json.loads(arguments)


_LONG_JSON = '{"name": "f", "arguments": {"a": "' + "x < y " * 2000 + '", "b": [' + "1, " * 2000 + "2]}}"
_LONG_GEMMA = f'call:f{{a:<|"|>{"x < y " * 2000}<|"|>,b:[{"1," * 2000}2]}}'


@pytest.mark.parametrize(
    ("table", "text", "bound"),
    [*((table, _LONG_JSON, LIMIT // 8) for table in (KIMI, HERMES, LLAMA, ARRAY)), (GEMMA, _LONG_GEMMA, 64)],
    ids=lambda value: value.name if isinstance(value, Table) else "",
)
def test_a_reader_holds_little(table: Table, text: str, bound: int) -> None:
    """What a reader leaves is seen again, so it must stay short however long the arguments are."""
    reader, out, unread, most = make_reader(table, no_schemas), list[CallPiece](), "", 0
    for char in text:
        unread += char
        unread = unread[reader.read(unread, 0, out) :]
        most = max(most, len(unread))
    assert most < bound
    if table is GEMMA:
        assert json.loads("".join(piece for piece in out if isinstance(piece, str)))["b"][-1] == 2
