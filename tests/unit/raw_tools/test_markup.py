"""The reader of key and value tags, on bodies of calls, in every cut."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.filters.raw_tools.bodies import make_reader
from dragoman.filters.raw_tools.markup import MarkupReader
from dragoman.filters.raw_tools.readers import BUFFER_LIMIT, CallPiece
from dragoman.filters.raw_tools.tables import TABLES
from dragoman.filters.raw_tools.values import find_parameter
from dragoman.wire.jsonio import Json
from tests.unit.raw_tools.reader_harness import read, read_pieces
from tests.unit.raw_tools.run_reader import ReaderResult
from tests.unit.raw_tools.samples import end, random_cut

DSML, KIMI_K3, QWEN_CODER = (
    next(table for table in TABLES if table.name == name) for name in ("dsml", "kimi_k3", "qwen_coder")
)
SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "count": {"type": "integer"},
        "deep": {"type": "object"},
        "maybe": {"type": ["string", "null"]},
    },
}
BARS = ["｜", "｜｜", "|", "||"]
# The end of a call, and how a parameter is written, by table.
ENDS = {
    "qwen_coder": end("function"),
    "invoke": end("invoke"),
    "invoke_prefixed": end("antml:invoke"),
    "dsml": end("｜DSML｜invoke"),
    "kimi_k3": "<|close|>call<|sep|>",
    "glm": end("tool_call"),
}
tables = pytest.mark.parametrize("table", ENDS)


def parameter(table: str, key: str, value: str, kind: str = "") -> str:
    """Write a parameter as a table does, without line ends around its value."""
    match table:
        case "qwen_coder":
            return f"<parameter={key}>{value}{end('parameter')}"
        case "glm":
            return f"<arg_key>{key}{end('arg_key')}<arg_value>{value}{end('arg_value')}"
        case "kimi_k3":
            attribute = f' type="{kind}"' if kind else ""
            return f'<|open|>argument key="{key}"{attribute}<|sep|>{value}<|close|>argument<|sep|>'
        case "dsml":
            attribute = f' string="{kind}"' if kind else ""
            return f'<｜DSML｜parameter name="{key}"{attribute}>{value}{end("｜DSML｜parameter")}'
        case _:
            prefix = "antml:" if table == "invoke_prefixed" else ""
            return f'<{prefix}parameter name="{key}">{value}{end(prefix + "parameter")}'


def arguments(found: ReaderResult) -> object:
    assert found.is_over and found.closed and found.valid and not found.failed, found
    return json.loads(found.text)


# --- line ends


@pytest.mark.parametrize("table", ["qwen_coder", "invoke", "invoke_prefixed"])
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("text\n", "text\n"),
        ("text\r\n", "text\r\n"),
        ("text\n\n", "text\n\n"),
        ("one\ntwo\n", "one\ntwo\n"),
        ("\ntext\n", "text"),
        ("\r\ntext\r\n", "text"),
        ("\ntext\r\n", "text\r"),  # the frame is of line feeds, so the carriage return belongs to the value
        ("\n\r\n", "\r"),
        ("\r\ntext\n", "text"),
        ("\ntext\n\n", "text\n"),
        ("\ntext", "text"),
        ("\n\ntext\n", "\ntext"),
        ("\r\rtext\n", "\r\rtext\n"),
        ("\n", ""),
        ("\r\n", ""),
        ("\n\n", ""),
        ("", ""),
        ("\r", "\r"),
    ],
)
def test_a_last_line_end_is_cut_only_if_a_first_one_was(table: str, written: str, value: str) -> None:
    body = parameter(table, "path", written) + parameter(table, "maybe", written + "x") + ENDS[table]
    found = arguments(read(table, body, SCHEMA))
    assert isinstance(found, dict)
    assert found["path"] == value


@pytest.mark.parametrize("table", ["glm", "dsml", "kimi_k3"])
def test_formats_without_line_ends_around_values_cut_none(table: str) -> None:
    for value in ("\ntext\n", "text\n", "\n"):
        assert arguments(read(table, parameter(table, "path", value) + ENDS[table], SCHEMA)) == {"path": value}


# --- bodies that are JSON


@tables
@pytest.mark.parametrize(
    "body",
    [
        '{"path":"NYC"}',
        '\n{ "path": "a", "count": 9007199254740993 }\n',
        "{}",
        "{ \n }",
        '{"path": "END and </parameter> and <|close|>json<|sep|>"}',
        '```json\n{"path": "a"}\n```\n',
    ],
)
def test_a_body_that_is_json_is_the_arguments(table: str, body: str) -> None:
    body = body.replace("END", ENDS[table])
    if table == "kimi_k3":
        body = body.replace("```json\n", "<|open|>json<|sep|>").replace("\n```\n", "<|close|>json<|sep|>")
    found = read(table, body + ENDS[table] + "rest", SCHEMA)
    inner = body[body.index("{") : body.rindex("}") + 1]
    assert arguments(found) == json.loads(inner) and found.left == "rest"
    assert found.text.replace(" ", "").replace("\n", "") == inner.replace(" ", "").replace("\n", "")


@pytest.mark.parametrize(
    "opens", ["<|open|>json<|sep|>", '<|open|>json type="object"<|sep|>', "<|open|> json <|sep|>", ""]
)
def test_the_json_block_of_kimi_k3(opens: str) -> None:
    close = opens.partition(" type")[0].removesuffix("<|sep|>").replace("open", "close") + "<|sep|>" if opens else ""
    body = f'{opens}{{"path": "a<|close|>call<|sep|>"}}{close}<|close|>call<|sep|>'
    assert arguments(read("kimi_k3", body, SCHEMA)) == {"path": "a<|close|>call<|sep|>"}
    quoted = f'{opens}"{{\\"path\\": 1}}"{close}<|close|>call<|sep|>'
    assert arguments(read("kimi_k3", quoted, SCHEMA)) == {"path": 1}


@tables
@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("{'path': 'a', 'maybe': None}", {"path": "a", "maybe": None}),
        ('{\\"path\\": \\"a\\"}', {"path": "a"}),
        ('"{\\"path\\": \\"a\\"}"', {"path": "a"}),
    ],
)
def test_a_body_that_nearly_is_json(table: str, body: str, value: object) -> None:
    assert arguments(read(table, body + ENDS[table], SCHEMA)) == value


def test_json_is_sent_while_it_comes() -> None:
    out: list[CallPiece] = []
    reader = make_reader(QWEN_CODER, lambda tool, key: find_parameter(SCHEMA, key))
    for char in '{"path": "abc':
        reader.read(char, 0, out)
    assert out == ["{", *'"path": "abc']


@tables
def test_json_that_breaks_off_is_neither_closed_nor_lost(table: str) -> None:
    found = read(table, '{"path": "a', SCHEMA)
    assert (found.text, found.is_over, found.closed, found.failed) == ('{"path": "a', False, False, False)


@tables
def test_json_that_is_broken_ends_at_the_next_marker_and_is_not_valid(table: str) -> None:
    found = read(table, '{"path": a, "b": "c' + ENDS[table] + "rest", SCHEMA)
    assert (found.text, found.left, found.is_over, found.valid) == ('{"path": a, "b": "c', "rest", True, False)


def test_a_complete_json_body_is_closed_without_its_end() -> None:
    found = read("qwen_coder", '{"path": "a"}', SCHEMA)
    assert found.closed and not found.is_over


# --- text between tags


@tables
@pytest.mark.parametrize("words", ["some words", "a < b", "<p>", "[1]", "{words}", '"words"', "{"])
def test_a_call_of_nothing_but_words_has_failed(table: str, words: str) -> None:
    found = read(table, words + ENDS[table], SCHEMA)
    assert found.failed and not found.text


@tables
def test_words_without_end_fail_soon(table: str) -> None:
    assert read_pieces(table, ["words " * 300], SCHEMA).failed
    assert read_pieces(table, ["words "] * 300, SCHEMA).failed


def test_words_beside_parameters_are_left_out_and_reported() -> None:
    for body, junk in (
        ("<parameter=count>1</parameter>\n</function>", False),
        ("words <parameter=count>1</parameter></function>", True),
        ("<parameter=count>1</parameter> words</function>", True),
        ('{"count":1} words</function>', True),
        ('```json\n{"count":1}\n```\n</function>', False),
    ):
        for pieces in ([body], list(body)):
            out: list[CallPiece] = []
            reader = make_reader(QWEN_CODER, lambda tool, key: find_parameter(SCHEMA, key))
            unread = ""
            for piece in pieces:
                unread += piece
                unread = unread[reader.read(unread, 0, out) :]
            assert isinstance(reader, MarkupReader)
            assert "".join(map(str, out)) == '{"count":1}'
            assert reader.junk is junk, pieces


# --- types, and parameters that wrap the arguments


def test_the_word_of_the_markup_is_weaker_than_the_schema() -> None:
    body = parameter("dsml", "count", "5", "true") + parameter("dsml", "path", "5", "false") + ENDS["dsml"]
    assert arguments(read("dsml", body, SCHEMA)) == {"count": 5, "path": "5"}
    assert arguments(read("dsml", body, None)) == {"count": "5", "path": 5}
    body = parameter("kimi_k3", "count", "5", "string") + parameter("kimi_k3", "path", "5", "number")
    assert arguments(read("kimi_k3", body + ENDS["kimi_k3"], SCHEMA)) == {"count": 5, "path": "5"}


@tables
@pytest.mark.parametrize("key", ["arguments", "input", "parameters", "args"])
@pytest.mark.parametrize("value", ['{"path": "a"}', '"{\\"path\\": \\"a\\"}"', "{'path': 'a'}", '\n{"path": "a"}\n'])
def test_a_single_wrapper_is_the_arguments(table: str, key: str, value: str) -> None:
    body = parameter(table, key, value) + ENDS[table]
    assert arguments(read(table, body, SCHEMA)) == {"path": "a"}


@tables
def test_what_only_looks_like_a_wrapper_is_a_parameter(table: str) -> None:
    wrapped = parameter(table, "input", '{"path": "a"}')
    other = parameter(table, "count", "5")
    assert arguments(read(table, wrapped + other + ENDS[table], SCHEMA)) == {"input": {"path": "a"}, "count": 5}
    assert arguments(read(table, other + wrapped + ENDS[table], SCHEMA)) == {"input": {"path": "a"}, "count": 5}
    assert arguments(read(table, parameter(table, "input", "words") + ENDS[table], SCHEMA)) == {"input": "words"}
    assert arguments(read(table, parameter(table, "other", "{}") + ENDS[table], SCHEMA)) == {"other": {}}
    declared: dict[str, Json] = {"properties": {"input": {"type": "object"}}}
    assert arguments(read(table, wrapped + ENDS[table], declared)) == {"input": {"path": "a"}}
    assert arguments(read(table, wrapped + ENDS[table], None)) == {"input": {"path": "a"}}


def test_a_wrapper_that_is_too_long_to_wait_is_sent_as_a_string() -> None:
    value = '{"path": "' + "x" * BUFFER_LIMIT + '"}'
    body = f"<parameter=input>{value}{end('parameter')}{end('function')}"
    pieces = [body[at : at + 5000] for at in range(0, len(body), 5000)]
    for cut in ([body], pieces):
        assert json.loads(read_pieces("qwen_coder", cut, SCHEMA).text) == {"input": value}


# --- spellings


@pytest.mark.parametrize("bars", BARS)
@pytest.mark.parametrize("gap", ["", " "])
def test_bars_of_dsml_in_every_spelling(bars: str, gap: str) -> None:
    mark = f"{bars}DSML{bars}{gap}"
    body = f'\n<{mark}parameter name="path" string="true">a{end(mark + "parameter")}\n{end(mark + "invoke")}'
    assert arguments(read("dsml", body, SCHEMA)) == {"path": "a"}
    unclosed = f'<{mark}parameter name="path">a<{mark}parameter name="count">5{end(mark + "invoke")}'
    assert arguments(read("dsml", unclosed, SCHEMA)) == {"path": "a", "count": 5}
    for name in ("function_calls", "tool_calls", "calls"):
        assert f"<{mark}{name}>" in DSML.section_begin and f"</{mark}{name}>" in DSML.section_end


def test_attributes_of_kimi_k3_are_unescaped_and_values_are_not() -> None:
    body = parameter("kimi_k3", "a&amp;b &quot;&lt;", "x &amp; y", "string") + ENDS["kimi_k3"]
    assert arguments(read("kimi_k3", body, SCHEMA)) == {'a&b "<': "x &amp; y"}
    assert KIMI_K3.markup is not None and KIMI_K3.markup.attribute("a&amp;b&copy") == "a&b&copy"
    assert DSML.markup is not None and DSML.markup.attribute("a&amp;b") == "a&amp;b"


def test_blanks_within_the_markers_of_kimi_k3() -> None:
    body = '<|open|> argument key="path" type="string" <|sep|>a<|close|> argument <|sep|><|close|> call <|sep|>'
    assert arguments(read("kimi_k3", body, SCHEMA)) == {"path": "a"}


# --- what is missing or doubled


@tables
def test_a_parameter_without_its_end(table: str) -> None:
    first = parameter(table, "path", "a")
    for mark in (
        end("parameter"),
        end("antml:parameter"),
        end("｜DSML｜parameter"),
        end("arg_value"),
        "<|close|>argument<|sep|>",
    ):
        first = first.removesuffix(mark)
    assert arguments(read(table, first + parameter(table, "count", "5") + ENDS[table], SCHEMA)) == {
        "path": "a",
        "count": 5,
    }
    assert arguments(read(table, first + ENDS[table], SCHEMA)) == {"path": "a"}


@tables
def test_no_parameters_empty_ones_and_doubled_ones(table: str) -> None:
    assert arguments(read(table, ENDS[table], SCHEMA)) == {}
    assert arguments(read(table, parameter(table, "path", "") + ENDS[table], SCHEMA)) == {"path": ""}
    twice = parameter(table, "path", "a") + parameter(table, "path", "b") + ENDS[table]
    assert read(table, twice, SCHEMA).text == '{"path":"a","path":"b"}'


@tables
def test_values_that_look_like_tags(table: str) -> None:
    for value in ("</param", "<", "a < b </p> <parameter", "<|close|>", "{", '"', "\\"):
        assert arguments(read(table, parameter(table, "path", value) + ENDS[table], SCHEMA)) == {"path": value}


def test_a_value_that_is_too_long_to_wait_is_sent_as_a_string() -> None:
    value = "[" + "1," * (BUFFER_LIMIT // 2) + "1]"
    body = f"<parameter=deep>{value}{end('parameter')}<parameter=count>5{end('parameter')}{end('function')}"
    for cut in ([body], [body[at : at + 7000] for at in range(0, len(body), 7000)]):
        assert json.loads(read_pieces("qwen_coder", cut, SCHEMA).text) == {"deep": value, "count": 5}


def soup(table: str) -> list[str]:
    """Pieces of bodies of a format, and of what else may stand there."""
    parts = [
        parameter(table, key, "VALUE", kind) for key in ("path", "count", "maybe", "input") for kind in ("", "true")
    ]
    tags = [tag for part in parts for tag in part.split("VALUE")]
    json_tags = ["```json", "```", "<|open|>json<|sep|>", "<|close|>json<|sep|>"]
    others = ["<", ">", " ", "\n", "\r\n", "\r", "7", "words", '{"a":', "{", "}", "'", '"', "null", "\\", ","]
    return [*tags, *tags, *json_tags, *others, ENDS[table], ENDS[table][:4]]


@tables
@given(data=st.data(), rng=st.randoms(use_true_random=False))
def test_whatever_comes_is_read_the_same_in_every_cut(table: str, data: st.DataObject, rng: random.Random) -> None:
    tokens = data.draw(st.lists(st.sampled_from(soup(table)), max_size=20))
    body = "".join(tokens)
    whole = read_pieces(table, [body], SCHEMA)
    for cut in (list(body), tokens, random_cut(body, rng)):
        other = read_pieces(table, cut, SCHEMA)
        assert (other.failed, other.is_over) == (whole.failed, whole.is_over)
        assert whole.failed or other == whole
    if whole.is_over and whole.valid:
        json.loads(whole.text)
