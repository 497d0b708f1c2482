"""Every format but Kimi K2, which has test_cases.py: good calls, broken ones, odd values, under every cut."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from msgspec import Struct

from dragoman.errors import LocalMisuse
from dragoman.filters.raw_tools import ALIASES, NAMES, TABLES, Engine, RawTools, Tools
from dragoman.filters.raw_tools.outputs import Arguments, CallEnded, CallStarted, Output, Said
from dragoman.model.conversation import ToolSpec
from tests.unit.raw_tools import formats, formats_more
from tests.unit.raw_tools.samples import all_cuts, end, outputs

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

Pairs = list[tuple[str, str]]  # keys and values, as a model writes them
_DSML = "｜DSML｜"
_M3 = "]<]minimax[>["
_INVOKES: dict[str, tuple[str, str]] = {
    "invoke": ("", "minimax:tool_call"),
    "invoke_prefixed": ("antml:", "antml:function_calls"),
}


class Format(Struct, frozen=True):
    """How to write calls of a table."""

    table: str
    call: Callable[[str, Pairs], str]
    several: Callable[[list[str]], str]


def _hermes(name: str, pairs: Pairs) -> str:
    values = {key: _typed(value) if key != "path" else value for key, value in pairs}
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': values}, ensure_ascii=False)}\n</tool_call>"


def _typed(value: str) -> object:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _qwen(name: str, pairs: Pairs) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n{end('parameter')}\n" for key, value in pairs)
    return f"<tool_call>\n<function={name}>\n{inner}{end('function')}\n</tool_call>"


def _glm(name: str, pairs: Pairs) -> str:
    inner = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in pairs)
    return f"<tool_call>{name}\n{inner}</tool_call>"


def _invoke(table: str) -> Callable[[str, Pairs], str]:
    prefix, _ = _INVOKES[table]

    def write(name: str, pairs: Pairs) -> str:
        inner = "".join(f'<{prefix}parameter name="{key}">{value}{end(prefix + "parameter")}\n' for key, value in pairs)
        return f'<{prefix}invoke name="{name}">\n{inner}{end(prefix + "invoke")}'

    return write


def _dsml(name: str, pairs: Pairs) -> str:
    inner = "".join(
        f'<{_DSML}parameter name="{key}" string="{str(key in ("path", "maybe", "either", "kind")).lower()}">{value}'
        f"{end(_DSML + 'parameter')}\n"
        for key, value in pairs
    )
    return f'<{_DSML}invoke name="{name}">\n{inner}{end(_DSML + "invoke")}'


def _deepseek(name: str, pairs: Pairs, *, old: bool) -> str:
    values = json.dumps({key: _typed(value) if key != "path" else value for key, value in pairs}, ensure_ascii=False)
    body = f"function<｜tool▁sep｜>{name}\n```json\n{values}\n```" if old else f"{name}<｜tool▁sep｜>{values}"
    return f"<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>"


def _k3(name: str, pairs: Pairs) -> str:
    kinds = {
        "path": "string",
        "count": "number",
        "ratio": "number",
        "force": "boolean",
        "lines": "array",
        "deep": "object",
    }
    inner = "".join(
        f'<|open|>argument key="{key}" type="{kinds.get(key, "string")}"<|sep|>{value}<|close|>argument<|sep|>'
        for key, value in pairs
    )
    return f'<|open|>call tool="{name}" index="1"<|sep|>{inner}<|close|>call<|sep|>'


def _m3(name: str, pairs: Pairs) -> str:
    inner = "".join(f"{_M3}<{key}>{value}{_M3}{end(key)}" for key, value in pairs)
    return f'{_M3}<invoke name="{name}">{inner}{_M3}{end("invoke")}'


def _in(begin: str, finish: str, between: str = "") -> Callable[[list[str]], str]:
    return lambda calls: begin + between.join(calls) + finish


FORMATS = [
    Format("hermes", _hermes, "\n".join),
    Format("qwen_coder", _qwen, "\n".join),
    Format("glm", _glm, "\n".join),
    Format(
        "deepseek_v3",
        lambda name, pairs: _deepseek(name, pairs, old=True),
        _in("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "\n"),
    ),
    Format(
        "deepseek_v31",
        lambda name, pairs: _deepseek(name, pairs, old=False),
        _in("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    Format("dsml", _dsml, _in(f"<{_DSML}function_calls>\n", f"\n{end(_DSML + 'function_calls')}", "\n")),
    *(
        Format(name, _invoke(name), _in(f"<{section}>\n", f"\n{end(section)}", "\n"))
        for name, (_, section) in _INVOKES.items()
    ),
    Format("kimi_k3", _k3, _in("<|open|>tools<|sep|>", "<|close|>tools<|sep|>")),
    Format("minimax_m3", _m3, _in(f"{_M3}<tool_call>\n", f"\n{_M3}{end('tool_call')}", "\n")),
]
all_formats = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.table)
choices = pytest.mark.parametrize("auto", [True, False], ids=["auto", "by name"])


def told(text: str, choice: str = "auto") -> tuple[str, list[tuple[str, object, bool]]]:
    """Text and calls, arguments as values; the same for every cut, or this fails."""
    whole = outputs([text], choice, TOOLS)
    for cut in all_cuts(text):
        assert outputs(cut, choice, TOOLS) == whole, cut
    return "".join(each.text for each in whole if isinstance(each, Said)), calls_of(whole)


def calls_of(whole: list[Output]) -> list[tuple[str, object, bool]]:
    calls: list[tuple[str, object, bool]] = []
    name, arguments = "", ""
    for output in whole:
        match output:
            case CallStarted():
                name, arguments = output.name, ""
            case Arguments(text):
                arguments += text
            case CallEnded(complete):
                calls.append((name, _typed(arguments), complete))
            case _:
                pass
    return calls


def test_every_table_is_tried_here_or_elsewhere() -> None:
    """Kimi K2 has test_cases.py, the tables of formats.py and formats_more.py have test_formats.py."""
    elsewhere = {"kimi_k2", *formats.FORMATS, *formats_more.FORMATS}
    assert {form.table for form in FORMATS} | elsewhere == {table.name for table in TABLES}


@all_formats
@choices
def test_a_call(form: Format, auto: bool) -> None:
    text = form.several([form.call("write", [("path", "a.txt"), ("count", "3")])])
    assert told(text, "auto" if auto else form.table) == ("", [("write", {"path": "a.txt", "count": 3}, True)])


@all_formats
@choices
def test_several_calls_between_texts(form: Format, auto: bool) -> None:
    first = form.several([form.call("write", [("path", "a")]), form.call("fs.read", [("path", "b")])])
    text = f"Let me look.\n{first}\n\nAnd now:\n{form.several([form.call('now', [])])}\n"
    shown, calls = told(text, "auto" if auto else form.table)
    assert calls == [("write", {"path": "a"}, True), ("fs.read", {"path": "b"}, True), ("now", {}, True)]
    assert shown == "Let me look.\n\n\nAnd now:\n"


@all_formats
def test_string_values_with_everything_in_them(form: Format) -> None:
    for value in (ODD, "", "7", "true", "null", '{"a": 1}', " blank ends ", "<", "</", "<tool"):
        _, calls = told(form.several([form.call("write", [("path", value), ("count", "1")])]))
        assert calls == [("write", {"path": value, "count": 1}, True)]


@all_formats
def test_values_have_the_types_the_schema_says(form: Format) -> None:
    pairs = [
        ("count", "12345678901234567890"),
        ("ratio", "1.50"),
        ("force", "true"),
        ("lines", '["a", 1]'),
        ("deep", '{"k": {"m": null}}'),
    ]
    text = form.several([form.call("write", pairs)])
    _, calls = told(text)
    assert calls == [
        (
            "write",
            {"count": 12345678901234567890, "ratio": 1.5, "force": True, "lines": ["a", 1], "deep": {"k": {"m": None}}},
            True,
        )
    ]
    if form.table not in ("hermes", "deepseek_v3", "deepseek_v31"):
        assert "1.50" in _arguments(text), "a value is passed on as it was written"


@pytest.mark.parametrize(
    "form", [form for form in FORMATS if form.table in ("qwen_coder", "glm", "invoke")], ids=lambda form: form.table
)
def test_values_of_no_or_several_types(form: Format) -> None:
    pairs = [
        ("maybe", "null"),
        ("either", "7"),
        ("kind", "a"),
        ("force", "True"),
        ("unheard_of", "7"),
        ("other", '["x"]'),
        ("count", "many"),
    ]
    _, calls = told(form.several([form.call("write", pairs)]))
    expected = {
        "maybe": None,
        "either": 7,
        "kind": "a",
        "force": True,
        "unheard_of": "7",
        "other": ["x"],
        "count": "many",
    }
    assert calls == [("write", expected, True)]


@all_formats
def test_a_call_that_is_cut_anywhere_leaks_no_markup_and_invents_nothing(form: Format) -> None:
    text = form.several([form.call("write", [("path", "a.txt"), ("lines", "[1, 2]")])])
    whole = calls_of(outputs([text], form.table, TOOLS))[0][1]
    for at in range(len(text)):
        cut = outputs([text[:at]], form.table, TOOLS)
        for name, arguments, complete in calls_of(cut):
            assert name == "write"
            assert complete is False or arguments == whole
        if any(isinstance(output, CallStarted) for output in cut):
            assert not any(isinstance(output, Said) for output in cut)


@all_formats
def test_arguments_stream_while_they_come(form: Format) -> None:
    text = form.several([form.call("write", [("path", "x" * 400)])])
    engine = Engine(form.table, Tools(TOOLS))
    sizes = [sum(len(each.text) for each in engine.feed(char) if isinstance(each, Arguments)) for char in text]
    assert max(sizes) < 40, "nothing of a string value waits"


@all_formats
def test_buffered_sends_each_call_whole(form: Format) -> None:
    text = form.several([form.call("write", [("path", "a")]), form.call("now", [])])
    engine = Engine(form.table, mode="buffered")
    batches = [engine.feed(char) for char in text] + [engine.close()]
    for batch in batches:
        kinds = [type(each) for each in batch if isinstance(each, CallStarted | Arguments | CallEnded)]
        assert kinds in ([], [CallStarted, Arguments, CallEnded])
    assert sum(isinstance(each, CallStarted) for batch in batches for each in batch) == 2


@pytest.mark.parametrize("missing", [end("parameter"), end("function"), "</tool_call>"])
def test_qwen_coder_with_an_end_tag_missing(missing: str) -> None:
    text = "".join(_qwen("write", [("path", "a.txt"), ("count", "3")]).rsplit(missing, 1))
    _, calls = told(text)
    assert calls == [("write", {"path": "a.txt", "count": 3}, True)]


def test_qwen_coder_without_the_outer_tag() -> None:
    text = _qwen("write", [("path", "a.txt")]).replace("<tool_call>\n", "").replace("\n</tool_call>", "")
    assert told(text) == ("", [("write", {"path": "a.txt"}, True)])


def test_seed_spells_the_outer_tag_its_way() -> None:
    text = _qwen("write", [("path", "a")]).replace("tool_call>", "seed:tool_call>")
    assert told(text) == ("", [("write", {"path": "a"}, True)])


@pytest.mark.parametrize("missing", ["</arg_value>", "</tool_call>"])
def test_glm_with_an_end_tag_missing(missing: str) -> None:
    text = "".join(_glm("write", [("path", "a"), ("kind", "b")]).replace("\n", "").rsplit(missing, 1))
    _, calls = told(text)
    complete = missing != "</tool_call>"
    assert calls[0][0] == "write" and calls[0][2] is complete
    if complete:
        assert calls[0][1] == {"path": "a", "kind": "b"}


def test_glm_4_7_writes_no_line_ends() -> None:
    assert told("Sure.<tool_call>now</tool_call>") == ("Sure.", [("now", {}, True)])


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (
            '{"name": "write", "arguments": {"n": 9007199254740993, "e": "\\u00e9"}}',
            '{"n": 9007199254740993, "e": "\\u00e9"}',
        ),
        ('{"arguments": {"path": "a"}, "name": "write"}', '{"path": "a"}'),
        ('{"name": "write", "parameters": {"path": "a"}}', '{"path": "a"}'),
        ('{"name": "write", "arguments": "{\\"path\\": \\"a\\"}"}', '{"path": "a"}'),
        ('{"type": "function", "id": [1, {"x": "}"}], "name": "write", "arguments": {}}', "{}"),
        ('{"name": "write"}', "{}"),
        ('{"name": "write", "arguments": null}', "{}"),
        ('{"name": "write", "arguments": {"path": "a"}}}', '{"path": "a"}'),
        ('{"name": "write", "arguments": {"path": "say "hi""}}', '{"path": "say "hi""}'),
        ('{"name": "write", "arguments": {"path": "</tool_call>"}}', '{"path": "</tool_call>"}'),
    ],
)
def test_hermes_arguments_are_passed_on_as_they_are(body: str, arguments: str) -> None:
    for ending in ("</tool_call>", "\n</tool_call>\n"):
        for cut in all_cuts(f"<tool_call>{body}{ending}"):
            assert "".join(each.text for each in outputs(cut, tools=TOOLS) if isinstance(each, Arguments)) == arguments


def test_hermes_without_its_end_tag() -> None:
    one = '<tool_call>{"name": "write", "arguments": {"path": "a"}}'
    assert told(one) == ("", [("write", {"path": "a"}, True)])
    assert told(f"{one}\n{one}</tool_call> and so on") == (" and so on", [("write", {"path": "a"}, True)] * 2)


def test_hermes_with_a_stray_begin_before_the_call() -> None:
    text = '<tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert told(text) == ("", [("now", {}, True)])


def test_deepseek_calls_without_their_section() -> None:
    assert told(_deepseek("write", [("path", "a")], old=True)) == ("", [("write", {"path": "a"}, True)])
    assert told(_deepseek("write", [("path", "a")], old=False)) == ("", [("write", {"path": "a"}, True)])


@pytest.mark.parametrize("word", ["function_calls", "tool_calls", " calls"])
def test_every_generation_of_dsml(word: str) -> None:
    text = f"<{_DSML}{word}>\n{_dsml('write', [('path', 'a')])}\n{end(_DSML + word)}"
    assert told(text) == ("", [("write", {"path": "a"}, True)])


def test_special_tokens_count_without_declared_tools_and_tags_do_not() -> None:
    for form in FORMATS:
        text = form.several([form.call("write", [("path", "a")])])
        special = next(table.special for table in TABLES if table.name == form.table)
        assert len(calls_of(outputs([text], tools=()))) == special, form.table
        assert len(calls_of(outputs([text], form.table, tools=()))) == 1


def test_only_the_named_format_is_looked_for() -> None:
    for form in FORMATS:
        other = next(each for each in FORMATS if each.call is not form.call and each.table[:4] != form.table[:4])
        text = form.several([form.call("write", [("path", "a")])])
        if {form.table, other.table} <= {"hermes", "qwen_coder", "glm"}:
            continue
        assert outputs([text], other.table, TOOLS) == outputs([text], other.table, ())
        assert not calls_of(outputs([text], other.table, TOOLS))


def test_every_name_of_a_format_is_accepted_and_no_other() -> None:
    for name in (*NAMES, *ALIASES, "auto", "off"):
        RawTools(name)
    with pytest.raises(LocalMisuse, match="'kimmi' is none of auto, off, kimi"):
        RawTools("kimmi")


def _arguments(text: str) -> str:
    return "".join(each.text for each in outputs([text], tools=TOOLS) if isinstance(each, Arguments))
