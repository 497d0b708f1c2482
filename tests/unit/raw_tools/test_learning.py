"""Learn tables from chat templates: the markers without the engine, then everything through the command's own code.

The templates in `templates/` are written after the documented formats of the families they are named after.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from dragoman.cli.chat_template import Template, TemplateError, read_template, render
from dragoman.cli.raw_tools_learn import Learnt, learn_from
from dragoman.filters.raw_tools.learning import CannotLearn, learn
from dragoman.filters.raw_tools.learning.pieces import end_in_common, pieces, start_in_common
from dragoman.filters.raw_tools.learning.probes import VARIANTS, generated
from dragoman.filters.raw_tools.learning.shots import Shots, check_jobs, checked_text, probe_jobs, shots_of
from dragoman.filters.raw_tools.learning.verify import verify
from dragoman.filters.raw_tools.table import Keys, Table
from dragoman.filters.raw_tools.table_file import parse, write

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
            return learn(shots_of(render(template_of(stem), probe_jobs(variant)).texts), stem)
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
    assert parse(write([table])) == (table,)


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


def test_an_answer_of_json_alone_begins_a_call_at_the_start() -> None:
    text = '{"name": "probe_alpha", "parameters": {"key_aa": "text_aa", "key_ab": "text_ab"}}'
    table = learn(Shots({"one": text}), "bare")
    assert (table.body, table.at_start, table.self_closing, table.header_stop) == ("wrapped", True, True, ("{",))


def test_a_list_of_python_calls_without_markers_is_read_only_by_name() -> None:
    text = '[probe_alpha(key_aa="text_aa", key_ab="text_ab")]'
    table = learn(Shots({"one": text}), "bare")
    assert (table.body, table.at_start, table.by_name_only) == ("pythonic", True, True)


def test_separators_between_calls_are_learnt() -> None:
    one = '<|c|>{"name": "probe_alpha", "arguments": {"key_aa": "text_aa", "key_ab": "text_ab"}}'
    two = one + '; {"name": "probe_beta", "arguments": {"key_ba": "text_ba", "key_bb": "text_bb"}}'
    table = learn(Shots({"one": one, "two": two}), "parted")
    assert (table.call_begin, ";" in table.separators) == (("<|c|>",), True)


@pytest.mark.parametrize("text", ["", "  \n", "nothing", "idprobe00 {}", "probe_alpha with key_aa and text_aa"])
def test_renderings_without_a_readable_call_are_refused(text: str) -> None:
    with pytest.raises(CannotLearn):
        learn(Shots({"one": text}), "none")


def test_markers_are_compared_by_pieces() -> None:
    assert pieces('<a b="c">x[TOOL_CALLS]\n<d') == ['<a b="c">', "x", "[TOOL_CALLS]", "\n", "<d"]
    assert start_in_common("x<|START_A|>", "x<|START_B|>") == 1
    assert end_in_common("<|A_END|><|EOT|>", "<|B_END|><|EOT|>") == len("<|EOT|>")


# --- end to end


@cache
def learnt(stem: str) -> Learnt:
    return learn_from(template_of(stem), stem)


@pytest.mark.parametrize("stem", SHIPPED)
def test_a_learnt_table_reads_what_the_shipped_one_reads(stem: str) -> None:
    """Issue 16, item 4: generated calls, rendered with the template, are the same calls with either table."""
    found = learnt(stem)
    assert found.verdict.total >= 20
    assert found.verdict.misses == ()
    variant = next(each for each in VARIANTS if _shows(stem, each.form, each.ids))
    sets = generated(30, seed=4)
    texts = render(template_of(stem), check_jobs(sets, variant)).texts
    probes = [(calls, text) for number, calls in enumerate(sets) if (text := checked_text(texts, number)) is not None]
    assert len(probes) >= 10
    assert verify(SHIPPED[stem], probes).misses == ()


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


@pytest.mark.parametrize(("source", "said"), REFUSED.values(), ids=REFUSED)
def test_a_template_that_cannot_be_used_is_refused(source: str, said: str) -> None:
    with pytest.raises((TemplateError, CannotLearn)) as error:
        learn_from(Template(source), "bad")
    assert said in str(error.value)


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
    with pytest.raises(TemplateError, match="has no chat_template"):
        read_template("tokenizer_config.json", b"{}", {})
