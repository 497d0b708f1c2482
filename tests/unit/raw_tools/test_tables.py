"""Every format but Kimi K2, which has test_cases.py: good calls, broken ones, odd values, under every cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from dragoman.errors import LocalMisuse
from dragoman.filters.raw_tools import FORMAT_ALIASES, FORMAT_NAMES, TABLES, Engine, RawTools
from dragoman.filters.raw_tools.choices import tables_of
from dragoman.filters.raw_tools.outputs import Arguments, CallEnded, CallStarted, EngineOutput, TextOutput
from dragoman.model.conversation import ToolSpec
from dragoman.wire.jsonio import Json
from tests.unit.raw_tools import formats, formats_known, formats_more
from tests.unit.raw_tools.formats import FORMATS
from tests.unit.raw_tools.formats_known import Sample
from tests.unit.raw_tools.renderers import RENDER, CallToWrite
from tests.unit.raw_tools.samples import REASONING, TEXT, all_cuts, calls_of, end, outputs, value_of

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


def parse(text: str, choice: str = "auto") -> tuple[str, list[tuple[str, object, bool | None]]]:
    """Text and calls, arguments as values; the same for every cut, or this fails."""
    whole = outputs([text], choice, TOOLS)
    for cut in all_cuts(text):
        assert outputs(cut, choice, TOOLS) == whole, cut
    return "".join(each.text for each in whole if isinstance(each, TextOutput)), calls_of(whole)


def test_every_table_is_tried_here_or_elsewhere() -> None:
    """Kimi K2 has test_cases.py, the tables of formats.py and formats_more.py have test_tables.py."""
    elsewhere = {"kimi_k2", *formats.FORMATS, *formats_more.FORMATS}
    assert {*TABLES_HERE} | elsewhere == {table.name for table in TABLES}


@all_formats
@choices
def test_several_calls_between_texts(table: str, auto: bool) -> None:
    first = written(table, ("write", {"path": "a"}), ("fs.read", {"path": "b"}))
    text = f"Let me look.\n{first}\n\nAnd now:\n{written(table, ('now', {}))}\n"
    shown, calls = parse(text, "auto" if auto else table)
    assert calls == [("write", {"path": "a"}, True), ("fs.read", {"path": "b"}, True), ("now", {}, True)]
    assert shown == "Let me look.\n\n\nAnd now:\n"


@all_formats
def test_string_values_with_everything_in_them(table: str) -> None:
    for value in (ODD, "", "7", "true", "null", '{"a": 1}', " blank ends ", "<", "</", "<tool"):
        _, calls = parse(written(table, ("write", {"path": value, "count": "1"})))
        assert calls == [("write", {"path": value, "count": 1}, True)]


@all_formats
def test_values_have_the_types_the_schema_says(table: str) -> None:
    pairs = {"count": "12345678901234567890", "ratio": "1.5", "force": "true", "lines": '["a", 1]'}
    text = written(table, ("write", {**pairs, "deep": '{"k": {"m": null}}'})).replace("1.5", "1.50")
    _, calls = parse(text)
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
    _, calls = parse(written(table, ("write", {key: text for key, (text, _) in values.items()})))
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
            assert not any(isinstance(output, TextOutput) for output in cut)


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
    _, calls = parse(text)
    assert calls == [("write", {"path": "a.txt", "count": 3}, True)]


@pytest.mark.parametrize("missing", ["</arg_value>", "</tool_call>"])
def test_glm_with_an_end_tag_missing(missing: str) -> None:
    text = "".join(written("glm", ("write", {"path": "a", "kind": "b"})).replace("\n", "").rsplit(missing, 1))
    _, calls = parse(text)
    complete = missing != "</tool_call>"
    assert calls[0][0] == "write" and calls[0][2] is complete
    if complete:
        assert calls[0][1] == {"path": "a", "kind": "b"}


def test_hermes_without_its_end_tag() -> None:
    one = '<tool_call>{"name": "write", "arguments": {"path": "a"}}'
    assert parse(one) == ("", [("write", {"path": "a"}, True)])
    assert parse(f"{one}\n{one}</tool_call> and so on") == (" and so on", [("write", {"path": "a"}, True)] * 2)


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
    for name in (*FORMAT_NAMES, *FORMAT_ALIASES, "auto", "off"):
        RawTools(name)
    with pytest.raises(LocalMisuse, match="'kimmi' is unknown; use auto, off, kimi"):
        RawTools("kimmi")


def _arguments(text: str) -> str:
    return "".join(each.text for each in outputs([text], tools=TOOLS) if isinstance(each, Arguments))


# --- The parser names of the inference engines choose the tables that read what the parsers read

# Names in vLLM's, SGLang's and Dynamo's registries. Not read: granite-20b-fc, internlm, xlam, gigachat3, inkling and
# other formats that have no table.
VLLM = """
apertus cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 dots ernie45
functiongemma gemma4 glm45 glm47 granite granite4 hermes hunyuan_a13b hy_v3 jamba kimi_k2 kimi_k3 lfm2 llama3_json
llama4_json llama4_pythonic longcat mimo minicpm5 minimax_m2 mistral olmo3 openai phi4_mini_json poolside_v1 pythonic
qwen3_coder qwen3_xml seed_oss step3 step3p5
"""
SGLANG = """
apertus2509 cohere_command4 deepseekv3 deepseekv31 deepseekv32 deepseekv4 deepseekv41 dots gemma4 glm glm45 glm47 gpt-oss
hermes hunyuan kimi_k2 kimi_k3 lfm2 llama3 mimo minicpm5 minimax-m2 mistral poolside_v1 pythonic qwen qwen25 qwen3_coder
step3 step3p5
"""
DYNAMO = """
deepseek-v4 deepseek_v3 deepseek_v3_1 deepseek_v3_2 deepseek_v4 deepseekv4 gemma-4 gemma4 glm47 harmony hermes jamba
kimi_k2 llama3_json minimax_m2 mistral nemotron_deci nemotron_nano phi4 pythonic qwen3_coder
"""


@pytest.mark.parametrize("name", sorted({*VLLM.split(), *SGLANG.split(), *DYNAMO.split()}))
def test_the_engines_parser_names_are_accepted(name: str) -> None:
    assert tables_of(name)


def test_every_alias_stands_for_tables_that_exist() -> None:
    for alias, names in FORMAT_ALIASES.items():
        assert set(names) <= set(FORMAT_NAMES), alias


def test_some_aliases() -> None:
    assert [table.name for table in tables_of("openai")] == ["harmony"]
    assert [table.name for table in tables_of("mistral")] == ["mistral_array", "mistral_object", "mistral"]
    assert [table.name for table in tables_of("llama3")] == [
        "llama3_json",
        "llama3_bare",
        "llama3_text",
        "json_start",
    ]
    assert [table.name for table in tables_of("nemotron_deci")] == ["nemotron_deci", "json_start"]
    assert tables_of("hunyuan_a13b") == tables_of("jamba")
    with pytest.raises(LocalMisuse, match="gpt_os"):
        tables_of("gpt_os")


def test_auto_leaves_out_what_only_a_name_chooses() -> None:
    names = [table.name for table in tables_of("auto")]
    assert "pythonic" not in names and "phi4" not in names
    assert {table.name for table in TABLES} - set(names) == {"pythonic", "phi4", "llama3_text", "json_start"}


def test_tables_that_share_an_opener_are_tried_in_the_right_order() -> None:
    order = [table.name for table in TABLES]
    for names in (
        ("hermes", "qwen_coder", "granite_tag", "glm"),
        ("mistral_array", "mistral_object", "mistral"),
        ("invoke", "olmo3"),
    ):
        assert sorted(names, key=order.index) == list(names)


def test_headers_match_every_beginning_of_themselves() -> None:
    """A header that arrives in pieces must not be refused before it is whole."""
    headers = {
        "mistral": "get_weather[CALL_ID]a1B2c3D4e",
        "harmony": "functions.get_weather <|constrain|>json",
        "hy_v3": "get_weather",
        "step3": '"get_weather"',
        "minicpm5": '"get_weather"',
        "olmo3": "\n",
    }
    for table in TABLES:
        header = headers.get(table.name)
        if header is None or table.header is None:
            continue
        assert all(table.header.fullmatch(header[:size]) for size in range(len(header) + 1)), table.name
        found = table.header.fullmatch(header)
        assert found is not None and found["name"] in ("get_weather", "")
        if table.name == "mistral":
            assert found["id"] == "a1B2c3D4e"


def test_every_new_table_has_at_least_five_samples() -> None:
    old = {"kimi_k2", "kimi_k3", "hermes", "qwen_coder", "glm", "deepseek_v3", "deepseek_v31", "dsml", "invoke"}
    new = {table.name for table in TABLES} - old - {"invoke_prefixed", "minimax_m3"}
    assert {*FORMATS, *formats_more.FORMATS} >= new
    assert all(len(FORMATS.get(name, [])) + len(formats_more.FORMATS.get(name, [])) >= 5 for name in new)


# --- The documented outputs of every format: whole, cut at every character, in the named table and in `auto`

EVERY_FORMAT = [*formats_known.FORMATS.items(), *formats.FORMATS.items(), *formats_more.FORMATS.items()]
SAMPLES = [(table, sample) for table, samples in EVERY_FORMAT for sample in samples]
_BY_NAME_ONLY = {table.name for table in TABLES if table.by_name_only}
_AT_START = {table.name for table in TABLES if table.at_start}
every_sample = pytest.mark.parametrize(
    ("table", "sample"), SAMPLES, ids=[f"{table}-{number}" for number, (table, _) in enumerate(SAMPLES)]
)


def _check(sample: Sample, whole: Sequence[EngineOutput]) -> None:
    found = calls_of(whole)
    assert [(name, arguments) for name, arguments, _ in found] == [
        (name, value_of(arguments)) for name, arguments in sample.calls
    ]
    for channel, text in ((TEXT, sample.content), (REASONING, sample.reasoning)):
        shown = "".join(each.text for each in whole if isinstance(each, TextOutput) and each.channel is channel)
        assert shown == text, channel
    for at, (_, arguments, complete) in enumerate(found):
        assert complete is not None, "a call that began has an end"
        if sample.last_complete is not None and at == len(found) - 1:
            assert complete is sample.last_complete
        if complete:
            assert isinstance(arguments, dict), "a complete call has arguments that parse"


@every_sample
def test_in_its_own_table(table: str, sample: Sample) -> None:
    whole = outputs([sample.text], table, sample.tools)
    _check(sample, whole)
    for cut in all_cuts(sample.text):
        assert outputs(cut, table, sample.tools) == whole, cut


@every_sample
def test_in_auto(table: str, sample: Sample) -> None:
    whole = outputs([sample.text], "auto", sample.tools)
    for cut in all_cuts(sample.text):
        assert outputs(cut, "auto", sample.tools) == whole, cut
    if table not in _BY_NAME_ONLY and sample.auto:
        _check(sample, whole)


@every_sample
def test_in_reasoning_it_is_the_same_call(table: str, sample: Sample) -> None:
    """Where a call begins does not matter: the calls are those of the text.

    See docs/dialects/raw_tools.md#where-calls-appear.
    """
    if table in _AT_START:  # begins the reply, which reasoning is not
        return
    whole = outputs([(REASONING, sample.text)], table, sample.tools)
    assert calls_of(whole) == calls_of(outputs([sample.text], table, sample.tools))


def test_every_table_has_its_samples() -> None:
    tried = {table for table, _ in SAMPLES}
    assert {table.name for table in TABLES} - tried == set()


def test_the_known_tables_have_six_samples_or_more() -> None:
    assert all(len(samples) >= 6 for samples in formats_known.FORMATS.values())
