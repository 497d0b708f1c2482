"""The formats, as data. A new one is one more Table (and, if no reader fits, a reader); the engine does not change.

To be found by content, a format has literals that begin a section of calls or a call. `special` ones are tokens that no
prose contains by chance; tags are, so in `auto` they count only under the conditions of D20.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, TypeAlias

from dragoman.errors import LocalMisuse
from dragoman.filters.raw_tools.other_tables import (
    APERTUS,
    COHERE,
    FUNCTIONGEMMA,
    GEMMA4,
    GRANITE,
    GRANITE_TAG,
    HARMONY,
    HY_V3,
    JAMBA,
    JSON_START,
    LFM2,
    LFM2_JSON,
    LLAMA3_BARE,
    LLAMA3_JSON,
    LLAMA3_TEXT,
    LLAMA4_PYTHONIC,
    LONGCAT,
    LONGCAT_TAGS,
    MINICPM5,
    MISTRAL,
    MISTRAL_ARRAY,
    MISTRAL_OBJECT,
    NEMOTRON_DECI,
    OLMO3,
    PHI4,
    PHI4_START,
    PYTHONIC,
    STEP3,
)
from dragoman.filters.raw_tools.table import Markup, Table, is_file_choice, tables_in

# --- The names by which inference engines know the formats: the values of their tool-call-parser options


_QWEN_CODER = ("qwen_coder",)
_DSML = ("dsml",)
_LLAMA4 = ("llama4_pythonic", "pythonic")  # Llama 4 also writes the list without its markers

# An alias stands for the tables or families it names.
ALIASES: dict[str, tuple[str, ...]] = {
    # vLLM
    "cohere_command3": ("cohere",),
    "cohere_command4": ("cohere",),
    "deepseek_v32": _DSML,
    "deepseek_v4": _DSML,
    "deepseek_v41": _DSML,
    "ernie45": ("hermes",),
    "glm45": ("glm",),
    "glm47": ("glm",),
    "gpt_oss": ("harmony",),
    "granite": ("granite", "json_start"),  # the opener may be missing where the calls begin the answer
    "granite4": ("hermes",),
    "hunyuan_a13b": ("jamba",),
    "llama3_json": ("llama3_json", "json_start"),  # by name a list of calls counts, too
    "llama4_json": ("llama3_json", "json_start"),
    "llama4_pythonic": _LLAMA4,
    "mimo": _QWEN_CODER,
    "minimax_m2": ("invoke",),
    "openai": ("harmony",),
    "phi4_mini_json": ("phi4", "granite"),
    "poolside_v1": ("glm",),
    "qwen3_coder": _QWEN_CODER,
    "qwen3_xml": _QWEN_CODER,
    "seed_oss": _QWEN_CODER,
    "step3p5": _QWEN_CODER,
    # SGLang
    "apertus2509": ("apertus",),
    "deepseekv3": ("deepseek_v3",),
    "deepseekv31": ("deepseek_v31",),
    "deepseekv32": _DSML,
    "deepseekv4": _DSML,
    "deepseekv41": _DSML,
    "gpt-oss": ("harmony",),
    "hunyuan": ("jamba", "hy_v3"),
    "llama3": ("llama3_json", "json_start"),
    "llama4": (*_LLAMA4, "llama3_json", "json_start"),
    "minimax-m2": ("invoke",),
    "qwen25": ("hermes",),
    # Dynamo
    "deepseek-v4": _DSML,
    "deepseek_v3_1": ("deepseek_v31",),
    "deepseek_v3_2": _DSML,
    "gemma-4": ("gemma4",),
    "nemotron_deci": ("nemotron_deci", "json_start"),
    "nemotron_nano": _QWEN_CODER,
    "nemotron_v3": _QWEN_CODER,
    # names of models
    "minimax": ("invoke", "jamba"),  # M1 writes JSON between the tags of jamba
    "qwen": ("hermes", "qwen_coder"),
}


_NAME = r"[^\s<>{}\"']*"
_ATTRIBUTE = rf"""\s*["']?(?P<name>{_NAME})["']?\s*"""


def _ending(tag: str) -> str:
    return f"</{tag}>"


# --- Kimi K2: every spelling seen (facts/kimi.md, 1.1)

KIMI_K2 = Table(
    name="kimi_k2",
    family="kimi",
    special=True,
    body="json",
    section_begin=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
    section_end=("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
    call_begin=("<|tool_call_begin|>",),
    header_end=("<|tool_call_argument_begin|>", "<|tool_arguments_begin|>"),
    call_end=("<|tool_call_end|>",),
    stray=("<|im_end|>",),
    trailing=("</think>", "◁/think▷", "[EOS]", "[EOT]", "<|im_assistant|>", "<|im_middle|>"),
    drops=("<|tool_call_argument_begin|>", "<|tool_arguments_begin|>"),
    numbered=True,
)

# --- Kimi K3: XTML


def _spelt(verb: str, tag: str) -> tuple[str, ...]:
    """A tag of XTML; models put blanks around its name."""
    return tuple(f"<|{verb}|>{before}{tag}{after}<|sep|>" for before in ("", " ") for after in ("", " "))


def _shown(tags: Iterable[str]) -> tuple[tuple[str, Literal["text", "reasoning"]], ...]:
    return tuple((tag, "text") for tag in tags)


_RUN_TOGETHER = ("toolsmessage", "toolstools", "toolstoolsmessage", "calltools", "calltoolsmessage", "callmessage")

KIMI_K3 = Table(
    name="kimi_k3",
    family="kimi",
    special=True,
    body="markup",
    section_begin=_spelt("open", "tools"),
    # Of run-together ends the tokens between them are lost.
    section_end=(*_spelt("close", "tools"), *(f"<|close|>{tags}<|sep|>" for tags in _RUN_TOGETHER)),
    # The long ones: hosted services lose tokens between the section and its first call.
    call_begin=(
        "<|open|>call ",
        "<|open|> call ",
        "<|open|>toolscall ",
        "<|open|>tools call ",
        "<|open|>tools<|sep|>call ",
        "<|open|>tools<|open|>call ",
    ),
    header_end=("<|sep|>",),
    header=re.compile(r'[^<]*?\btool="(?P<name>[^"<]*)"(?:[^<]*?\bindex="(?P<index>\d+)")?[^<]*|[^<]*'),
    call_end=_spelt("close", "call"),
    stray=(*_spelt("close", "message"), "<|end_of_msg|>"),
    trailing=(*_spelt("close", "think"), *_spelt("close", "response"), *_spelt("open", "response"), "</think>"),
    reasoning=tuple(zip(_spelt("open", "think"), _spelt("close", "think"), strict=True)),
    wrappers=_shown((*_spelt("open", "response"), *_spelt("close", "response"))),
    markup=Markup(
        opens=re.compile(
            r'<\|open\|>\s*argument\b[^<]*?\bkey="(?P<key>[^"]*)"(?:[^<]*?\btype="(?P<kind>[^"]*)")?[^<]*<\|sep\|>'
        ),
        open_end="<|sep|>",
        value_ends=(*_spelt("close", "argument"), "argument<|sep|>"),  # the last without its <|close|>
        value_stops=("<|open|>argument key=", "<|open|> argument key="),
        json_tags=(*_spelt("open", "json"), '<|open|>json type="object"<|sep|>', *_spelt("close", "json")),
        unescapes=True,
    ),
    numbered=True,
)

# --- DeepSeek V3 and V3.1 share their tokens; V3 writes the word `function` first, then the name and a code block

_DEEPSEEK_BEGIN = "<｜tool▁call▁begin｜>"
_DEEPSEEK_SEPARATOR = "<｜tool▁sep｜>"

DEEPSEEK_V3 = Table(
    name="deepseek_v3",
    family="deepseek",
    special=True,
    body="json",
    section_begin=("<｜tool▁calls▁begin｜>",),
    section_end=("<｜tool▁calls▁end｜>",),
    call_begin=(f"{_DEEPSEEK_BEGIN}function{_DEEPSEEK_SEPARATOR}",),
    header_end=("\n",),
    header=re.compile(r"\s*(?P<name>\S*)\s*"),
    call_end=("<｜tool▁call▁end｜>",),
    stray=("<｜end▁of▁sentence｜>",),
    trailing=("</think>",),
    drops=("```json", "```"),
)
DEEPSEEK_V31 = Table(
    name="deepseek_v31",
    family="deepseek",
    special=True,
    body="json",
    section_begin=DEEPSEEK_V3.section_begin,
    section_end=DEEPSEEK_V3.section_end,
    call_begin=(_DEEPSEEK_BEGIN,),
    header_end=(_DEEPSEEK_SEPARATOR,),
    header=re.compile(r"\s*(?P<name>\S*)\s*"),
    call_end=DEEPSEEK_V3.call_end,
    stray=(*DEEPSEEK_V3.stray, _DEEPSEEK_SEPARATOR),
    trailing=DEEPSEEK_V3.trailing,
    drops=(*DEEPSEEK_V3.drops, _DEEPSEEK_SEPARATOR),
)

# --- DeepSeek V3.2 (function_calls), V4 (tool_calls), V4.1 (calls)

# Hosted services double the bars, write them as other characters, and put a blank before the name.
_BARS = ("｜", "｜｜", "|", "||", "‖")
_DSML_SECTIONS = ("function_calls", "tool_calls", "calls")


def _dsml(begin: str, name: str, end: str) -> tuple[str, ...]:
    return tuple(f"{begin}{bars}DSML{bars}{gap}{name}{end}" for bars in _BARS for gap in ("", " "))


DSML = Table(
    name="dsml",
    family="deepseek",
    special=True,
    body="markup",
    section_begin=tuple(tag for name in _DSML_SECTIONS for tag in _dsml("<", name, ">")),
    section_end=tuple(tag for name in _DSML_SECTIONS for tag in _dsml("</", name, ">")),
    call_begin=_dsml("<", "invoke", ""),
    header_end=(">",),
    header=re.compile(r"""[^<>]*?\bname=["']?(?P<name>[^"'<>]*)[^<>]*|[^<>]*"""),
    call_end=_dsml("</", "invoke", ">"),
    stray=("<｜end▁of▁sentence｜>",),
    trailing=("</think>",),
    markup=Markup(
        opens=re.compile(
            r"""<[｜|‖]{1,2}DSML[｜|‖]{1,2}\s*parameter\b[^<>]*?\bname=["']?(?P<key>[^"'<>]*)["']?"""
            r"""(?:[^<>]*?\bstring=["']?(?P<kind>[^"'<>\s]*))?[^<>]*>"""
        ),
        open_end=">",
        value_ends=_dsml("</", "parameter", ">"),
        value_stops=_dsml("<", "parameter ", ""),
    ),
)

# --- tags

HERMES = Table(
    name="hermes",
    family="hermes",
    special=False,
    body="wrapped",
    call_begin=("<tool_call>",),
    header_stop=("{", "["),
    header=re.compile(r"\s*(?P<name>)"),
    call_end=("</tool_call>",),
    trailing=("</think>",),
    separators=",",
)
QWEN_CODER = Table(
    name="qwen_coder",
    family="qwen_coder",
    special=False,
    body="markup",
    section_begin=("<tool_call>", "<seed:tool_call>"),
    section_end=("</tool_call>", "</seed:tool_call>"),
    call_begin=("<function=",),
    header_end=(">",),
    header=re.compile(_ATTRIBUTE),
    call_end=(_ending("function"),),
    trailing=("</think>",),
    markup=Markup(
        opens=re.compile(r"""<parameter=\s*["']?(?P<key>[^<>"']*?)["']?\s*>"""),
        open_end=">",
        value_ends=(_ending("parameter"),),
        value_stops=("<parameter=",),
        trims=True,
    ),
)
GLM = Table(
    name="glm",
    family="glm",
    special=False,
    body="markup",
    call_begin=("<tool_call>",),
    header_stop=("<arg_key>", "</tool_call>", "{"),
    # Models write line ends as a backslash and an n, too.
    header=re.compile(r"\s*(?P<name>[^\s<>{}\"'\\]*)(?:\s|\\n?)*"),
    call_end=("</tool_call>",),
    trailing=("</think>",),
    markup=Markup(
        opens=re.compile(r"<arg_key>\s*(?P<key>[^<]*?)\s*</arg_key>(?:\s|\\n)*<arg_value>"),
        open_end="<arg_value>",
        value_ends=("</arg_value>",),
        value_stops=("<arg_key>",),
    ),
)


def _invoke(name: str, prefix: str, sections: Iterable[str]) -> Table:
    return Table(
        name=name,
        family="invoke",
        special=False,
        body="markup",
        section_begin=tuple(f"<{section}>" for section in sections),
        section_end=tuple(_ending(section) for section in sections),
        call_begin=(f"<{prefix}invoke name=",),
        header_end=(">",),
        header=re.compile(_ATTRIBUTE),
        call_end=(_ending(f"{prefix}invoke"),),
        trailing=("</think>",),
        markup=Markup(
            opens=re.compile(rf"""<{prefix}parameter\s+name=["']?(?P<key>[^<>"']*)["']?[^<>]*>"""),
            open_end=">",
            value_ends=(_ending(f"{prefix}parameter"),),
            value_stops=(f"<{prefix}parameter name=",),
            trims=True,
        ),
    )


_PREFIX = "antml:"
INVOKE = _invoke("invoke", "", ("minimax:tool_call", "function_calls"))
INVOKE_PREFIXED = _invoke("invoke_prefixed", _PREFIX, (f"{_PREFIX}function_calls",))
# dots.llm: the same in a section of its own
DOTS = _invoke("dots", "", ("dots_function_call",))

# --- MiniMax M3: every tag has a prefix, and a parameter's tag is its name

_M3 = "]<]minimax[>["


def _m3(*tags: str) -> tuple[str, ...]:
    return tuple(f"{_M3}{gap}{tag}" for tag in tags for gap in ("", "\n", " ", "\r\n"))


MINIMAX_M3 = Table(
    name="minimax_m3",
    family="minimax_m3",
    special=True,
    body="elements",
    section_begin=_m3("<tool_call>"),
    section_end=_m3("</tool_call>"),
    # The last two: a model that forgets one of the prefixes.
    call_begin=(*_m3("<invoke name="), f"<tool_call>\n{_M3}<invoke name=", f"{_M3}<tool_call>\n<invoke name="),
    header_end=(">",),
    header=re.compile(_ATTRIBUTE),
    call_end=_m3("</invoke>"),
    trailing=("</think>",),
    reasoning=(("<mm:think>", "</mm:think>"),),
    tag_prefix=_M3,
)

# Where tables share an opener they are tried in this order.
TABLES: tuple[Table, ...] = (
    KIMI_K2,
    HERMES,
    QWEN_CODER,
    GRANITE_TAG,
    GLM,
    HY_V3,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    DSML,
    INVOKE,
    INVOKE_PREFIXED,
    DOTS,
    OLMO3,
    KIMI_K3,
    MINIMAX_M3,
    MISTRAL_ARRAY,
    MISTRAL_OBJECT,
    MISTRAL,
    HARMONY,
    LLAMA3_JSON,
    LLAMA3_BARE,
    LLAMA3_TEXT,
    LLAMA4_PYTHONIC,
    LFM2_JSON,
    LFM2,
    PYTHONIC,
    GEMMA4,
    FUNCTIONGEMMA,
    GRANITE,
    PHI4,
    PHI4_START,
    JAMBA,
    NEMOTRON_DECI,
    COHERE,
    APERTUS,
    LONGCAT,
    LONGCAT_TAGS,
    JSON_START,
    STEP3,
    MINICPM5,
)
NAMES: tuple[str, ...] = tuple(dict.fromkeys((*(table.family for table in TABLES), *(table.name for table in TABLES))))

Choice: TypeAlias = str  # "auto", "off", one of NAMES or of ALIASES, or "file:" and the path of a table file


def tables_of(choice: Choice) -> tuple[Table, ...]:
    """Return the tables that a setting names: a family, a table, an alias, a file's, or all that are safe to find.

    Raises LocalMisuse for a name that is none.
    """
    if choice == "auto":
        return tuple(table for table in TABLES if not table.by_name_only)
    if is_file_choice(choice):
        return tables_in(choice)
    names = ALIASES.get(choice, (choice,))
    chosen = tuple(table for table in TABLES if table.name in names or table.family in names)
    if not chosen and choice != "off":
        raise LocalMisuse(f"raw_tools: {choice!r} is none of auto, off, {', '.join((*NAMES, *ALIASES))}")
    return chosen
