"""Every format but Kimi K2, which has test_cases.py: good calls, broken ones, odd values, under every cut."""

from __future__ import annotations

from typing import cast

import pytest

from dragoman.errors import LocalMisuse
from dragoman.filters.raw_tools import ALIASES, NAMES, TABLES, Engine, RawTools
from dragoman.filters.raw_tools.outputs import Arguments, CallEnded, CallStarted, Said
from dragoman.model.conversation import ToolSpec
from dragoman.wire.jsonio import Json
from tests.unit.raw_tools import formats, formats_more
from tests.unit.raw_tools.renderers import RENDER, CallToWrite
from tests.unit.raw_tools.samples import all_cuts, calls_of, end, outputs, value_of

WRITE = ToolSpec(
    "write",
    schema={
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "count": {"type": "integer"},
            "ratio": {"type": "number"},
            "force": {"type": "boolean"},
            "lines": {"type": "array"},
            "deep": {"$ref": "#/$defs/deep"},
            "maybe": {"type": ["string", "null"]},
            "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "kind": {"enum": ["a", "b"]},
        },
        "$defs": {"deep": {"type": "object"}},
    },
)
TOOLS = (WRITE, ToolSpec("fs.read", schema={"properties": {"path": {"type": "string"}}}), ToolSpec("now", schema={}))
ODD = 'quote " and \\ back, tab\t, line\nbreak, 日本 😀, a < b, <div class="x">, </p>, {"k": [1]}'

# Tables whose reader knows types by the schema alone: there a value may be written as any text.
_PLAIN = ("qwen_coder", "glm", "invoke", "invoke_prefixed", "minimax_m3")
_TYPED = ("hermes", "deepseek_v3", "deepseek_v31", "dsml", "kimi_k3")
TABLES_HERE = (*_TYPED, *_PLAIN)


def written(table: str, *calls: tuple[str, dict[str, str]]) -> str:
    """Write calls of a table in one section. Values are given as text."""

    def value(key: str, text: str) -> object:
        return text if key == "path" or table in _PLAIN else value_of(text)

    return RENDER[table](
        [
            CallToWrite(name, cast("dict[str, Json]", {key: value(key, text) for key, text in pairs.items()}), {})
            for name, pairs in calls
        ]
    )


all_formats = pytest.mark.parametrize("table", TABLES_HERE)
choices = pytest.mark.parametrize("auto", [True, False], ids=["auto", "by name"])


def told(text: str, choice: str = "auto") -> tuple[str, list[tuple[str, object, bool | None]]]:
    """Text and calls, arguments as values; the same for every cut, or this fails."""
    whole = outputs([text], choice, TOOLS)
    for cut in all_cuts(text):
        assert outputs(cut, choice, TOOLS) == whole, cut
    return "".join(each.text for each in whole if isinstance(each, Said)), calls_of(whole)


def test_every_table_is_tried_here_or_elsewhere() -> None:
    """Kimi K2 has test_cases.py, the tables of formats.py and formats_more.py have test_formats.py."""
    elsewhere = {"kimi_k2", *formats.FORMATS, *formats_more.FORMATS}
    assert {*TABLES_HERE} | elsewhere == {table.name for table in TABLES}


@all_formats
@choices
def test_several_calls_between_texts(table: str, auto: bool) -> None:
    first = written(table, ("write", {"path": "a"}), ("fs.read", {"path": "b"}))
    text = f"Let me look.\n{first}\n\nAnd now:\n{written(table, ('now', {}))}\n"
    shown, calls = told(text, "auto" if auto else table)
    assert calls == [("write", {"path": "a"}, True), ("fs.read", {"path": "b"}, True), ("now", {}, True)]
    assert shown == "Let me look.\n\n\nAnd now:\n"


@all_formats
def test_string_values_with_everything_in_them(table: str) -> None:
    for value in (ODD, "", "7", "true", "null", '{"a": 1}', " blank ends ", "<", "</", "<tool"):
        _, calls = told(written(table, ("write", {"path": value, "count": "1"})))
        assert calls == [("write", {"path": value, "count": 1}, True)]


@all_formats
def test_values_have_the_types_the_schema_says(table: str) -> None:
    pairs = {"count": "12345678901234567890", "ratio": "1.5", "force": "true", "lines": '["a", 1]'}
    text = written(table, ("write", {**pairs, "deep": '{"k": {"m": null}}'})).replace("1.5", "1.50")
    _, calls = told(text)
    assert calls == [
        (
            "write",
            {"count": 12345678901234567890, "ratio": 1.5, "force": True, "lines": ["a", 1], "deep": {"k": {"m": None}}},
            True,
        )
    ]
    assert "1.50" in _arguments(text), "a value is passed on as it was written"


@pytest.mark.parametrize("table", ["qwen_coder", "glm", "invoke"])
def test_values_of_no_or_several_types(table: str) -> None:
    values: dict[str, tuple[str, object]] = {
        "maybe": ("null", None),
        "either": ("7", 7),
        "kind": ("a", "a"),
        "force": ("True", True),
        "unheard_of": ("7", "7"),
        "other": ('["x"]', ["x"]),
        "count": ("many", "many"),
    }
    _, calls = told(written(table, ("write", {key: text for key, (text, _) in values.items()})))
    assert calls == [("write", {key: value for key, (_, value) in values.items()}, True)]


@all_formats
def test_a_call_that_is_cut_anywhere_leaks_no_markup_and_invents_nothing(table: str) -> None:
    text = written(table, ("write", {"path": "a.txt", "lines": "[1, 2]"}))
    whole = calls_of(outputs([text], table, TOOLS))[0][1]
    for at in range(len(text)):
        cut = outputs([text[:at]], table, TOOLS)
        for name, arguments, complete in calls_of(cut):
            assert name == "write"
            assert complete is False or arguments == whole
        if any(isinstance(output, CallStarted) for output in cut):
            assert not any(isinstance(output, Said) for output in cut)


@all_formats
def test_buffered_sends_each_call_whole(table: str) -> None:
    text = written(table, ("write", {"path": "a"}), ("now", {}))
    engine = Engine(table, mode="buffered")
    batches = [engine.feed(char) for char in text] + [engine.close()]
    for batch in batches:
        kinds = [type(each) for each in batch if isinstance(each, CallStarted | Arguments | CallEnded)]
        assert kinds in ([], [CallStarted, Arguments, CallEnded])
    assert sum(isinstance(each, CallStarted) for batch in batches for each in batch) == 2


@pytest.mark.parametrize("missing", [end("parameter"), end("function"), "</tool_call>"])
def test_qwen_coder_with_an_end_tag_missing(missing: str) -> None:
    text = "".join(written("qwen_coder", ("write", {"path": "a.txt", "count": "3"})).rsplit(missing, 1))
    _, calls = told(text)
    assert calls == [("write", {"path": "a.txt", "count": 3}, True)]


@pytest.mark.parametrize("missing", ["</arg_value>", "</tool_call>"])
def test_glm_with_an_end_tag_missing(missing: str) -> None:
    text = "".join(written("glm", ("write", {"path": "a", "kind": "b"})).replace("\n", "").rsplit(missing, 1))
    _, calls = told(text)
    complete = missing != "</tool_call>"
    assert calls[0][0] == "write" and calls[0][2] is complete
    if complete:
        assert calls[0][1] == {"path": "a", "kind": "b"}


def test_hermes_without_its_end_tag() -> None:
    one = '<tool_call>{"name": "write", "arguments": {"path": "a"}}'
    assert told(one) == ("", [("write", {"path": "a"}, True)])
    assert told(f"{one}\n{one}</tool_call> and so on") == (" and so on", [("write", {"path": "a"}, True)] * 2)


def test_special_tokens_count_without_declared_tools_and_tags_do_not() -> None:
    for name in TABLES_HERE:
        text = written(name, ("write", {"path": "a"}))
        special = next(table.special for table in TABLES if table.name == name)
        assert len(calls_of(outputs([text], tools=()))) == special, name
        assert len(calls_of(outputs([text], name, tools=()))) == 1


def test_only_the_named_format_is_looked_for() -> None:
    for name in TABLES_HERE:
        other = next(each for each in TABLES_HERE if each[:4] != name[:4])
        text = written(name, ("write", {"path": "a"}))
        if {name, other} <= {"hermes", "qwen_coder", "glm"}:
            continue
        assert outputs([text], other, TOOLS) == outputs([text], other, ())
        assert not calls_of(outputs([text], other, TOOLS))


def test_every_name_of_a_format_is_accepted_and_no_other() -> None:
    for name in (*NAMES, *ALIASES, "auto", "off"):
        RawTools(name)
    with pytest.raises(LocalMisuse, match="'kimmi' is none of auto, off, kimi"):
        RawTools("kimmi")


def _arguments(text: str) -> str:
    return "".join(each.text for each in outputs([text], tools=TOOLS) if isinstance(each, Arguments))
