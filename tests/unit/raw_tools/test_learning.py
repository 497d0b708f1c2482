"""Learn tables from chat templates: the markers without the engine, then everything through the command's own code.

The templates in `templates/` are written after the documented formats of the families they are named after.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path

import pytest

import dragoman
from dragoman.cli import main
from dragoman.cli.chat_template import Template, TemplateError, read_template, render
from dragoman.cli.raw_tools_learn import LearntTable, learn_from
from dragoman.errors import LocalMisuse
from dragoman.filters.raw_tools import table
from dragoman.filters.raw_tools.choices import tables_of
from dragoman.filters.raw_tools.learning import CannotLearn, learn
from dragoman.filters.raw_tools.learning.pieces import (
    ProbeTexts,
    common_end_length,
    common_start_length,
    extract_probe_texts,
    probe_jobs,
    split_text,
    verification_jobs,
    verification_text,
)
from dragoman.filters.raw_tools.learning.probes import VARIANTS, generate_calls
from dragoman.filters.raw_tools.learning.verify import verify
from dragoman.filters.raw_tools.table import Keys, Markup, Table, TableFileError, parse_tables, render_tables
from dragoman.filters.raw_tools.tables import TABLES
from dragoman.gateway.config import load_with_origins
from dragoman.gateway.layers import ConfigError

FOLDER = Path(__file__).parent / "templates"
# The template, and the shipped table or family that reads the same.
SHIPPED = {
    "apertus": "apertus",
    "cohere": "cohere",
    "deepseek_v3": "deepseek_v3",
    "deepseek_v31": "deepseek_v31",
    "dsml": "dsml",
    "gemma4": "gemma4",
    "glm": "glm",
    "granite": "granite",
    "hermes": "hermes",
    "invoke": "invoke",
    "jamba": "jamba",
    "kimi_k2": "kimi_k2",
    "lfm2": "lfm2",
    "llama3_json": "llama3_json",
    "minimax_m3": "minimax_m3",
    "mistral": "mistral",
    "mistral_array": "mistral",
    "mistral_call_id": "mistral",
    "qwen_coder": "qwen_coder",
}


def template_of(stem: str) -> Template:
    file = FOLDER / f"{stem}.jinja"
    return read_template(file.name, file.read_bytes(), {})


@cache
def markers_of(stem: str) -> Table:
    """Learn without the engine: the first way to give calls that the template shows."""
    for variant in VARIANTS:
        try:
            return learn(extract_probe_texts(render(template_of(stem), probe_jobs(variant)).texts), stem)
        except CannotLearn:
            continue
    raise AssertionError(f"{stem}: nothing learnt")


def test_every_template_has_its_shipped_table() -> None:
    assert sorted(file.stem for file in FOLDER.glob("*.jinja")) == sorted(SHIPPED)


# --- the markers, without the engine

# body, special, section, call, header end or stop, call end, section end
MARKERS: dict[str, tuple[str, bool, str, str, str, str, str]] = {
    "apertus": ("array", True, "", "<|tools_prefix|>", "[", "<|tools_suffix|>", ""),
    "cohere": ("array", True, "", "<|START_ACTION|>", "[", "<|END_ACTION|>", ""),
    "deepseek_v3": (
        "json", True, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n",
        "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": (
        "json", True, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
    ),
    "dsml": (
        "markup", True, "<｜DSML｜function_calls>", "<｜DSML｜invoke name=", ">",
        "</｜DSML｜invoke>", "</｜DSML｜function_calls>",
    ),
    "gemma4": ("gemma", True, "", "<|tool_call>", "call:", "<tool_call|>", ""),
    "glm": ("markup", False, "", "<tool_call>", "<arg_key>", "</tool_call>", ""),
    "granite": ("array", True, "", "<|tool_call|>", "[", "", ""),
    "hermes": ("wrapped", False, "", "<tool_call>", "{", "</tool_call>", ""),
    "invoke": (
        "markup", False, "<minimax:tool_call>", "<invoke name=", ">", "</" + "invoke>", "</minimax:tool_call>",
    ),
    "jamba": ("array", False, "", "<tool_calls>", "[", "</tool_calls>", ""),
    "kimi_k2": (
        "json", True, "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
        "<|tool_call_end|>", "<|tool_calls_section_end|>",
    ),
    "lfm2": ("pythonic", True, "", "<|tool_call_start|>", "[", "<|tool_call_end|>", ""),
    "llama3_json": ("wrapped", True, "", "<|python_tag|>", "{", "", ""),
    "minimax_m3": (
        "elements", True, "]<]minimax[>[<tool_call>", "]<]minimax[>[<invoke name=", ">",
        "]<]minimax[>[</" + "invoke>", "]<]minimax[>[</tool_call>",
    ),
    "mistral": ("json", True, "", "[TOOL_CALLS]", "[ARGS]", "", ""),
    "mistral_array": ("array", True, "", "[TOOL_CALLS]", "[", "", ""),
    "mistral_call_id": ("json", True, "", "[TOOL_CALLS]", "[ARGS]", "", ""),
    "qwen_coder": ("markup", False, "<tool_call>", "<function=", ">", "</function>", "</tool_call>"),
}  # fmt: skip


@pytest.mark.parametrize("stem", SHIPPED)
def test_the_markers_of_a_template_are_found(stem: str) -> None:
    table = markers_of(stem)
    found = (
        table.body,
        table.special,
        *("".join(markers[:1]) for markers in (table.section_begin, table.call_begin)),
        "".join((*table.header_end, *table.header_stop)[:1]),
        *("".join(markers[:1]) for markers in (table.call_end, table.section_end)),
    )
    assert found == MARKERS[stem]


@pytest.mark.parametrize("stem", SHIPPED)
def test_a_learnt_table_survives_its_file(stem: str) -> None:
    table = markers_of(stem)
    assert parse_tables(render_tables([table])) == (table,)


def test_what_else_a_template_shows() -> None:
    assert markers_of("kimi_k2").numbered
    assert markers_of("apertus").keys == Keys(is_name=True)
    assert markers_of("cohere").keys == Keys(("tool_name",), ("parameters",), ("tool_call_id",))
    assert markers_of("hermes").keys == Keys()
    assert markers_of("deepseek_v3").drops == ("```json", "```")
    assert markers_of("granite").self_closing
    assert markers_of("hermes").stray == ("<|im_end|>",)
    assert markers_of("llama3_json").stray == ("<|eom_id|>", "<|eot_id|>")
    markup = markers_of("qwen_coder").markup
    assert markup is not None
    assert markup.trims
    assert markers_of("gemma4").string_mark == '<|"|>'


def test_a_parameter_that_names_its_type_has_a_group_for_it() -> None:
    markup = markers_of("dsml").markup
    assert markup is not None
    found = markup.opens.fullmatch('<｜DSML｜parameter name="n" string="false">')
    assert found is not None
    assert found.groupdict() == {"key": "n", "kind": "false"}


@pytest.mark.parametrize("header", ["search", "search[CALL_ID]abc123DEF", "search[CALL_", "sea", ""])
def test_a_header_with_an_id_matches_from_its_first_character_on(header: str) -> None:
    pattern = markers_of("mistral_call_id").header
    assert pattern is not None
    found = pattern.fullmatch(header)
    assert found is not None
    if "]" in header:
        assert (found["name"], found["id"]) == ("search", "abc123DEF")


def test_a_reply_of_json_alone_begins_a_call_at_the_start() -> None:
    text = '{"name": "probe_alpha", "parameters": {"key_aa": "text_aa", "key_ab": "text_ab"}}'
    table = learn(ProbeTexts({"one": text}), "bare")
    assert (table.body, table.at_start, table.self_closing, table.header_stop) == ("wrapped", True, True, ("{",))


def test_a_list_of_python_calls_without_markers_is_read_only_by_name() -> None:
    text = '[probe_alpha(key_aa="text_aa", key_ab="text_ab")]'
    table = learn(ProbeTexts({"one": text}), "bare")
    assert (table.body, table.at_start, table.by_name_only) == ("pythonic", True, True)


def test_separators_between_calls_are_learnt() -> None:
    one = '<|c|>{"name": "probe_alpha", "arguments": {"key_aa": "text_aa", "key_ab": "text_ab"}}'
    two = one + '; {"name": "probe_beta", "arguments": {"key_ba": "text_ba", "key_bb": "text_bb"}}'
    table = learn(ProbeTexts({"one": one, "two": two}), "parted")
    assert (table.call_begin, ";" in table.separators) == (("<|c|>",), True)


@pytest.mark.parametrize("text", ["", "  \n", "nothing", "idprobe00 {}", "probe_alpha with key_aa and text_aa"])
def test_renderings_without_a_readable_call_are_refused(text: str) -> None:
    with pytest.raises(CannotLearn):
        learn(ProbeTexts({"one": text}), "none")


def test_markers_are_compared_by_pieces() -> None:
    assert split_text('<a b="c">x[TOOL_CALLS]\n<d') == ['<a b="c">', "x", "[TOOL_CALLS]", "\n", "<d"]
    assert common_start_length("x<|START_A|>", "x<|START_B|>") == 1
    assert common_end_length("<|A_END|><|EOT|>", "<|B_END|><|EOT|>") == len("<|EOT|>")


# --- end to end


@cache
def learnt(stem: str) -> LearntTable:
    return learn_from(template_of(stem), stem)


@pytest.mark.parametrize("stem", SHIPPED)
def test_a_learnt_table_reads_what_the_shipped_one_reads(stem: str) -> None:
    """Generated calls, rendered with the template, are the same calls with either table."""
    found = learnt(stem)
    assert found.verdict.total >= 20
    assert found.verdict.mismatches == ()
    variant = next(each for each in VARIANTS if _shows(stem, each.form, each.ids))
    sets = generate_calls(30, seed=4)
    texts = render(template_of(stem), verification_jobs(sets, variant)).texts
    probes = [
        (calls, text) for number, calls in enumerate(sets) if (text := verification_text(texts, number)) is not None
    ]
    assert len(probes) >= 10
    assert verify(SHIPPED[stem], probes).mismatches == ()


def _shows(stem: str, form: str, ids: str) -> bool:
    wanted = {"deepseek_v3": ("string", "plain"), "deepseek_v31": ("string", "plain"), "kimi_k2": ("object", "kimi")}
    return (form, ids) == wanted.get(stem, ("object", "plain"))


@pytest.mark.parametrize("stem", SHIPPED)
def test_a_template_of_a_shipped_format_is_named(stem: str) -> None:
    assert learnt(stem).shipped == ("mistral" if stem == "mistral_call_id" else stem)


# --- templates that do harm, or nothing

REFUSED = {
    "a syntax error": ("{% if %}", "the template has an error"),
    "no calls": ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", "renders no tool calls"),
    "a refusal": ("{{ raise_exception('Not today.') }}", "Not today."),
    "a missing variable": ("{% for c in extra.list %}{% endfor %}", "--set NAME=VALUE"),
    "Python's inside": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
    "changing what it is given": ("{{ messages.append(1) }}", "unsafe"),
    "a large range": ("{% for i in range(10 ** 9) %}x{% endfor %}", "Range too big"),
    "much memory": ("{{ 'x' * (4 * 1024 ** 3) }}", "memory"),
    "a long rendering": ("{{ 'x' * 1000000 }}", "more than 262144 characters"),
}


@pytest.mark.parametrize(("source", "message"), REFUSED.values(), ids=REFUSED)
def test_a_template_that_cannot_be_used_is_refused(source: str, message: str) -> None:
    with pytest.raises((TemplateError, CannotLearn)) as error:
        learn_from(Template(source), "bad")
    assert message in str(error.value)


def test_a_template_that_does_not_end_is_ended() -> None:
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError, match=r"did not finish within 2 seconds|too much memory or time"):
        render(Template(source), probe_jobs(VARIANTS[0]), seconds=2)


def test_what_transformers_gives_a_template() -> None:
    source = (
        "{% generation %}a{% endgeneration %}{{ strftime_now('%Y') | length }}{{ {'ü': [1]} | tojson }}"
        "{{ [1, 2] | tojson(separators=(',', ':')) }}{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}"
        "{% endfor %}{{ bos_token }}{{ eos_token }}{{ flag }}"
    )
    template = read_template("x.jinja", source.encode(), {"flag": 7})
    rendered = render(template, {"x": next(iter(probe_jobs(VARIANTS[0]).values()))})
    assert rendered.texts == {"x": 'a4{"ü": [1]}[1,2]1<s></s>7'}


def test_a_tokenizer_configuration_holds_the_template() -> None:
    config = '{"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}], "eos_token": {"content": "<E>"}}'
    template = read_template("tokenizer_config.json", config.encode(), {})
    assert (template.source, template.variables["eos_token"]) == ("t", "<E>")
    with pytest.raises(TemplateError, match="the file has no chat_template"):
        read_template("tokenizer_config.json", b"{}", {})


# --- Table files: written files are read unchanged, and errors name their place

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
    assert parse_tables(render_tables([table])) == (table,)


def test_all_shipped_tables_fit_into_one_file() -> None:
    assert parse_tables(render_tables(TABLES)) == TABLES


def test_odd_characters_and_flags_survive_a_table_file() -> None:
    odd = Table(**{**{name: getattr(ODD, name) for name in ODD.__struct_fields__}, "call_begin": ODD.call_begin[:4]})
    assert parse_tables(render_tables([odd])) == (odd,)


def test_a_family_defaults_to_the_name() -> None:
    (table,) = parse_tables(SMALL)
    assert (table.name, table.family) == ("mine", "mine")


WRONG = {
    "no TOML": ("tables = [", "not TOML"),
    "no tables": ("", "no [[tables]] entry"),
    "no list": ('[tables]\nname = "x"', "no [[tables]] entry"),
    "unknown top field": (SMALL + "\n[more]\nx = 1", "more: this field is unknown"),
    "unknown field": (SMALL + "colour = 1\n", "tables[0].colour: this field is unknown"),
    "unknown field of markup": (SMALL + "[tables.markup]\nx = 1\n", "tables[0].markup.x: this field is unknown"),
    "missing body": ('[[tables]]\nname = "a"\nspecial = true', "missing required field `body`"),
    "unknown body": (SMALL.replace('"json"', '"yaml"'), "tables[0].body: invalid enum value 'yaml'; known: json"),
    "wrong type": (SMALL.replace("true", '"yes"'), "tables[0].special: expected `bool`"),
    "a marker that is no list": (SMALL.replace('["<|c|>"]', '"<|c|>"'), "tables[0].call_begin: expected `array`"),
    "an empty marker": (
        SMALL.replace('["<|c|>"]', '["<|c|>", ""]'),
        "tables[0].call_begin: a marker must not be empty",
    ),
    "a blank marker": (SMALL.replace('["<|c|>"]', '[" "]'), "tables[0].call_begin: a marker must not be empty"),
    "a long marker": (SMALL.replace("<|c|>", "x" * 300), "tables[0].call_begin: a marker may have at most 256"),
    "no opener": (
        SMALL.replace('call_begin = ["<|c|>"]\n', ""),
        "tables[0]: the table does not define where a call begins",
    ),
    "no end of the header": (SMALL.replace('header_stop = ["{"]\n', ""), "tables[0].header_end: is missing"),
    "no markup": (SMALL.replace('"json"', '"markup"'), "tables[0].markup: is missing"),
    "no string mark": (SMALL.replace('"json"', '"gemma"'), "tables[0].string_mark: is missing"),
    "no regular expression": (SMALL + "header = '('\n", "tables[0].header: the regular expression is not valid"),
    "a number as one": (SMALL + "header = 1\n", "tables[0].header: expected a regular expression"),
    "no group": (SMALL + "header = 'x'\n", "tables[0].header: has no group (?P<name>"),
    "exponential time": (SMALL + "header = '(?P<name>(a+)+)'\n", "tables[0].header: a repeat inside"),
    "a long expression": (
        SMALL + f"header = '(?P<name>{'x' * 3000})'\n",
        "tables[0].header: a regular expression may have at most",
    ),
    "a bad name": (SMALL.replace('"mine"', '"a b"'), "tables[0].name: 'a b' is not allowed"),
    "a reserved name": (SMALL.replace('"mine"', '"auto"'), "tables[0].name: 'auto' is not allowed"),
    "a name twice": (SMALL + SMALL, "tables[1].name: 'mine' is the name of another table"),
    "many tables": ("".join(SMALL.replace("mine", f"m{n}") for n in range(70)), "at most 64 tables"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_reported_with_its_place(text: str, message: str) -> None:
    with pytest.raises(TableFileError) as error:
        parse_tables(text, "mine.toml")
    assert str(error.value).startswith("mine.toml: ")
    assert message in str(error.value)


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
    first = table.load_table_file(file)
    assert table.load_table_file(file) == first
    file.write_text(SMALL.replace("<|c|>", "<|d|>"))
    second = table.load_table_file(file)
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
    loaded = load_with_origins(_configured(tmp_path, SMALL), {"HOME": str(tmp_path)})
    choice = loaded.config.upstreams["local"].settings.raw_tools
    assert choice is not None
    assert [table.name for table in tables_of(choice)] == ["mine"]


def test_a_reload_reads_the_file_again(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    before = load_with_origins(_configured(tmp_path, SMALL), environ).config.upstreams["local"].settings.raw_tools
    changed = SMALL.replace("mine", "other")
    after = load_with_origins(_configured(tmp_path, changed), environ).config.upstreams["local"].settings.raw_tools
    assert before is not None
    assert after is not None
    assert [table.name for choice in (before, after) for table in tables_of(choice)] == ["mine", "other"]


@pytest.mark.parametrize(
    ("table", "message"), [(None, "no such file"), ("x", "not TOML"), ("x = 1", "this field is unknown")]
)
def test_check_says_where_a_bad_file_is_named(tmp_path: Path, table: str | None, message: str) -> None:
    config = _configured(tmp_path, table)
    with pytest.raises(ConfigError) as error:
        load_with_origins(config, {"HOME": str(tmp_path)})
    (problem,) = error.value.problems
    assert problem.at == "upstreams.local.translation.raw_tools"
    assert (problem.origin.place, problem.origin.line) == (str(config), 6)
    assert f"tables{os.sep}mine.toml" in problem.message
    assert message in problem.message


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
