"""The formats, as data. A new one is one more Table (and, if no reader fits, a reader); the engine does not change.

To be found by content, a format has literals that begin a section of calls or a call. `special` ones are tokens that no
prose contains by chance; tags are, so in `auto` they count only under the conditions of D20.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from dragoman.errors import LocalMisuse
from dragoman.filters.raw_tools.table import Markup, Table
from dragoman.filters.raw_tools.table_file import is_file_choice, tables_in

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

KIMI_K3 = Table(
    name="kimi_k3",
    family="kimi",
    special=True,
    body="markup",
    section_begin=("<|open|>tools<|sep|>",),
    section_end=("<|close|>tools<|sep|>",),
    call_begin=("<|open|>call ",),
    header_end=("<|sep|>",),
    header=re.compile(r'\btool="(?P<name>[^"]*)"(?:.*?\bindex="(?P<index>\d+)")?', re.DOTALL),
    call_end=("<|close|>call<|sep|>",),
    stray=("<|close|>message<|sep|>", "<|end_of_msg|>"),
    trailing=("<|close|>think<|sep|>", "<|close|>response<|sep|>", "<|open|>response<|sep|>", "</think>"),
    markup=Markup(
        opens=re.compile(
            r'<\|open\|>argument\b[^<]*?\bkey="(?P<key>[^"]*)"(?:[^<]*?\btype="(?P<kind>[^"]*)")?[^<]*<\|sep\|>'
        ),
        open_end="<|sep|>",
        value_ends=("<|close|>argument<|sep|>",),
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
    header=re.compile(r"(?P<name>\S+)"),
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
    header=re.compile(r"(?P<name>\S+)"),
    call_end=DEEPSEEK_V3.call_end,
    stray=(*DEEPSEEK_V3.stray, _DEEPSEEK_SEPARATOR),
    trailing=DEEPSEEK_V3.trailing,
    drops=(*DEEPSEEK_V3.drops, _DEEPSEEK_SEPARATOR),
)

# --- DeepSeek V3.2 (function_calls), V4 (tool_calls), V4.1 (calls)

_DSML = "｜DSML｜"
_DSML_SECTIONS = ("function_calls", "tool_calls", " calls", "calls")

DSML = Table(
    name="dsml",
    family="deepseek",
    special=True,
    body="markup",
    section_begin=tuple(f"<{_DSML}{name}>" for name in _DSML_SECTIONS),
    section_end=tuple(_ending(_DSML + name) for name in _DSML_SECTIONS),
    call_begin=(f"<{_DSML}invoke",),
    header_end=(">",),
    header=re.compile(r'\bname="(?P<name>[^"]*)"'),
    call_end=(_ending(f"{_DSML}invoke"),),
    stray=("<｜end▁of▁sentence｜>",),
    trailing=("</think>",),
    markup=Markup(
        opens=re.compile(rf'<{_DSML}parameter\s+name="(?P<key>[^"]*)"(?:\s+string="(?P<kind>[^"]*)")?\s*>'),
        open_end=">",
        value_ends=(_ending(f"{_DSML}parameter"),),
        value_stops=(f"<{_DSML}parameter ",),
    ),
)

# --- tags

HERMES = Table(
    name="hermes",
    family="hermes",
    special=False,
    body="wrapped",
    call_begin=("<tool_call>",),
    header_stop=("{",),
    header=re.compile(r"\s*(?P<name>)"),
    call_end=("</tool_call>",),
    trailing=("</think>",),
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
    header_stop=("<arg_key>", "</tool_call>"),
    header=re.compile(rf"\s*(?P<name>{_NAME})\s*"),
    call_end=("</tool_call>",),
    trailing=("</think>",),
    markup=Markup(
        opens=re.compile(r"<arg_key>\s*(?P<key>[^<]*?)\s*</arg_key>\s*<arg_value>"),
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

TABLES: tuple[Table, ...] = (
    KIMI_K2,
    HERMES,
    QWEN_CODER,
    GLM,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    DSML,
    INVOKE,
    INVOKE_PREFIXED,
    KIMI_K3,
)
# Names people know formats by.
ALIASES: dict[str, tuple[str, ...]] = {
    "qwen": ("hermes", "qwen_coder"),
    "qwen3_coder": ("qwen_coder",),
    "minimax": ("invoke",),
}
NAMES: tuple[str, ...] = tuple(dict.fromkeys((*(table.family for table in TABLES), *(table.name for table in TABLES))))

Choice: TypeAlias = str  # "auto", "off", one of NAMES, or "file:" and the path of a table file


def tables_of(choice: Choice) -> tuple[Table, ...]:
    """The tables that a setting names: a family, one table, or a file's. Raises LocalMisuse for a name that is none."""
    if choice == "auto":
        return TABLES
    if is_file_choice(choice):
        return tables_in(choice)
    names = ALIASES.get(choice, (choice,))
    chosen = tuple(table for table in TABLES if table.name in names or table.family in names)
    if not chosen and choice != "off":
        raise LocalMisuse(f"raw_tools: {choice!r} is none of auto, off, {', '.join((*NAMES, *ALIASES))}")
    return chosen
