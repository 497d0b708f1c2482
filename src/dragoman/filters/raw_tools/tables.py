"""The table of formats. A new format is one more row (and, if no reader fits, a reader); the engine does not change.

A format is found by the markers that begin a section of calls or a call. `special` markers are tokens that ordinary
text does not contain. Tags may occur in ordinary text, so in `auto` they count only under the conditions of
docs/decisions/raw_tools.md#d20.
"""

from __future__ import annotations

import re
import string
from typing import Any, Literal

from dragoman.filters.raw_tools.families import (
    NAME_HEADER,
    THINK_END,
    attribute_table,
    key_value_table,
    prefix_pattern,
    table_named_in_body,
)
from dragoman.filters.raw_tools.table import Keys, Markup, Table

# --- Markers and fields that several rows, or several fields of one row, share

# Kimi K3


def _xtml_tags(verb: str, tag: str) -> tuple[str, ...]:
    """Return the forms of an XTML tag; models put blanks around its name."""
    return tuple(f"<|{verb}|>{before}{tag}{after}<|sep|>" for before in ("", " ") for after in ("", " "))


_RUN_TOGETHER = ("toolsmessage", "toolstools", "toolstoolsmessage", "calltools", "calltoolsmessage", "callmessage")

# DeepSeek V3 and V3.1 share their tokens; V3 writes the word `function` first, then the name and a code block.

_DEEPSEEK_BEGIN = "<｜tool▁call▁begin｜>"
_DEEPSEEK_SEPARATOR = "<｜tool▁sep｜>"
_DEEPSEEK_END = ("<｜end▁of▁sentence｜>",)
_CODE_BLOCK = ("```json", "```")
_DEEPSEEK: dict[str, Any] = {
    "family": "deepseek",
    "special": True,
    "body": "json",
    "section_begin": ("<｜tool▁calls▁begin｜>",),
    "section_end": ("<｜tool▁calls▁end｜>",),
    "header": re.compile(r"\s*(?P<name>\S*)\s*"),
    "call_end": ("<｜tool▁call▁end｜>",),
    "trailing": THINK_END,
}

# DSML is DeepSeek V3.2 (function_calls), V4 (tool_calls), V4.1 (calls). Hosted services double the bars, write them as
# other characters, and put a blank before the name.

_BARS = ("｜", "｜｜", "|", "||", "‖")
_DSML_SECTIONS = ("function_calls", "tool_calls", "calls")


def _dsml(begin: str, name: str, end: str) -> tuple[str, ...]:
    return tuple(f"{begin}{bars}DSML{bars}{gap}{name}{end}" for bars in _BARS for gap in ("", " "))


# MiniMax M3: every tag has a prefix, and a parameter's tag is its name.

_M3 = "]<]minimax[>["


def _m3(*tags: str) -> tuple[str, ...]:
    return tuple(f"{_M3}{gap}{tag}" for tag in tags for gap in ("", "\n", " ", "\r\n"))


# Mistral has no end marker: a call ends where its JSON ends.

_MISTRAL: dict[str, Any] = {
    "family": "mistral",
    "special": True,
    "trailing": ("[/TOOL_CALLS]", "</s>"),
    "reasoning": (("[THINK]", "[/THINK]"),),
}

# gpt-oss (harmony): a message to a recipient is a call; one without is reasoning or text, by its channel.

_ASSISTANT = "<|start|>assistant"
_CHANNELS: tuple[tuple[str, Literal["text", "reasoning"]], ...] = (
    ("analysis", "reasoning"),
    ("commentary", "text"),
    ("final", "text"),
)

_LLAMA3: dict[str, Any] = {
    "family": "llama3_json",
    "first": "{",
    "call_end": ("<|eom_id|>", "<|eot_id|>"),
    "keys": Keys(arguments=("parameters", "arguments")),
    "separators": ";,",
}
_PYTHON = ("[", "_", *string.ascii_letters)  # first characters of a list of calls, or of a call without a bracket
_LFM2: dict[str, Any] = {"family": "lfm2", "special": True, "trailing": ("<|im_end|>",)}  # its end is Kimi K2's, too
_LONGCAT_END = ("</longcat_think>", "</longcat_s>")
_STEP_INVOKE = "<steptml:invoke name="
_KEY = r"""\s+name=["']?(?P<key>[^<>"']*)["']?"""
_INVOKE: dict[str, Any] = {"family": "invoke", "opens": f"{_KEY}[^<>]*", "trims": True}

# Tables that share an opener are tried in this order.
TABLES: tuple[Table, ...] = (
    Table(  # every observed form (docs/dialects/raw_tools.md#grammar)
        name="kimi_k2",
        family="kimi",
        models="Kimi K2, K2-Thinking, K2.5",
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
    ),
    table_named_in_body(
        "hermes",
        "wrapped",
        "<tool_call>",
        "</tool_call>",
        "{[",
        models="Qwen2.5, Qwen3, Hermes, Granite 4, ERNIE 4.5 and many others",
        trailing=THINK_END,
        separators=",",
    ),
    attribute_table(
        "qwen_coder",
        "function",
        "parameter",
        r"""=\s*["']?(?P<key>[^<>"']*?)["']?\s*""",
        ("tool_call", "seed:tool_call"),
        joint="=",
        models="Qwen3-Coder, Seed-OSS, Step 3.5, MiMo, Nemotron 3",
        trims=True,
    ),
    table_named_in_body(
        "granite_tag", "array", "<tool_call>", "</tool_call>", family="granite", models="Granite 3, with a tag"
    ),
    key_value_table(
        "glm",
        gap=r"(?:\s|\\n)*",
        models="GLM-4.5 and later",
        header_stop=("<arg_key>", "</tool_call>", "{"),
        # Models also write line ends as a backslash and an n.
        header=re.compile(r"\s*(?P<name>[^\s<>{}\"'\\]*)(?:\s|\\n?)*"),
    ),
    key_value_table("hy_v3", sections=("tool_calls",), header_end=("<tool_sep>",), models="Hunyuan V3"),
    Table(
        name="deepseek_v3",
        models="DeepSeek V3, R1",
        call_begin=(f"{_DEEPSEEK_BEGIN}function{_DEEPSEEK_SEPARATOR}",),
        header_end=("\n",),
        stray=_DEEPSEEK_END,
        drops=_CODE_BLOCK,
        **_DEEPSEEK,
    ),
    Table(
        name="deepseek_v31",
        models="DeepSeek V3.1",
        call_begin=(_DEEPSEEK_BEGIN,),
        header_end=(_DEEPSEEK_SEPARATOR,),
        stray=(*_DEEPSEEK_END, _DEEPSEEK_SEPARATOR),
        drops=(*_CODE_BLOCK, _DEEPSEEK_SEPARATOR),
        **_DEEPSEEK,
    ),
    Table(
        name="dsml",
        family="deepseek",
        models="DeepSeek V3.2, V4",
        special=True,
        body="markup",
        section_begin=tuple(tag for name in _DSML_SECTIONS for tag in _dsml("<", name, ">")),
        section_end=tuple(tag for name in _DSML_SECTIONS for tag in _dsml("</", name, ">")),
        call_begin=_dsml("<", "invoke", ""),
        header_end=(">",),
        header=re.compile(r"""[^<>]*?\bname=["']?(?P<name>[^"'<>]*)[^<>]*|[^<>]*"""),
        call_end=_dsml("</", "invoke", ">"),
        stray=_DEEPSEEK_END,
        trailing=THINK_END,
        markup=Markup(
            opens=re.compile(
                r"""<[｜|‖]{1,2}DSML[｜|‖]{1,2}\s*parameter\b[^<>]*?\bname=["']?(?P<key>[^"'<>]*)["']?"""
                r"""(?:[^<>]*?\bstring=["']?(?P<kind>[^"'<>\s]*))?[^<>]*>"""
            ),
            open_end=">",
            value_ends=_dsml("</", "parameter", ">"),
            value_stops=_dsml("<", "parameter ", ""),
        ),
    ),
    attribute_table(
        "invoke",
        "invoke",
        "parameter",
        sections=("minimax:tool_call", "function_calls"),
        models="MiniMax M2",
        **_INVOKE,
    ),
    attribute_table(
        "invoke_prefixed",
        "antml:invoke",
        "antml:parameter",
        sections=("antml:function_calls",),
        models="models that imitate Claude's own markup",
        **_INVOKE,
    ),
    attribute_table("dots", "invoke", "parameter", sections=("dots_function_call",), models="dots.llm", **_INVOKE),
    # One call a line, no brackets. Anthropic-style calls begin with the same tag; there a tag follows it.
    table_named_in_body("olmo3", "pythonic", "<function_calls>", "</function_calls>", _PYTHON, models="Olmo 3"),
    Table(
        name="kimi_k3",
        family="kimi",
        models="Kimi K3",
        special=True,
        body="markup",
        section_begin=_xtml_tags("open", "tools"),
        # In run-together ends the tokens between them are missing.
        section_end=(*_xtml_tags("close", "tools"), *(f"<|close|>{tags}<|sep|>" for tags in _RUN_TOGETHER)),
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
        call_end=_xtml_tags("close", "call"),
        stray=(*_xtml_tags("close", "message"), "<|end_of_msg|>"),
        trailing=(
            *_xtml_tags("close", "think"),
            *_xtml_tags("close", "response"),
            *_xtml_tags("open", "response"),
            "</think>",
        ),
        reasoning=tuple(zip(_xtml_tags("open", "think"), _xtml_tags("close", "think"), strict=True)),
        wrappers=tuple((tag, "text") for verb in ("open", "close") for tag in _xtml_tags(verb, "response")),
        markup=Markup(
            opens=re.compile(
                r'<\|open\|>\s*argument\b[^<]*?\bkey="(?P<key>[^"]*)"(?:[^<]*?\btype="(?P<kind>[^"]*)")?[^<]*<\|sep\|>'
            ),
            open_end="<|sep|>",
            value_ends=(*_xtml_tags("close", "argument"), "argument<|sep|>"),  # the last without its <|close|>
            value_stops=("<|open|>argument key=", "<|open|> argument key="),
            json_tags=(*_xtml_tags("open", "json"), '<|open|>json type="object"<|sep|>', *_xtml_tags("close", "json")),
            unescapes=True,
        ),
        numbered=True,
    ),
    Table(
        name="minimax_m3",
        models="MiniMax M3",
        special=True,
        body="elements",
        section_begin=_m3("<tool_call>"),
        section_end=_m3("</tool_call>"),
        # The last two: a model that forgets one of the prefixes.
        call_begin=(*_m3("<invoke name="), f"<tool_call>\n{_M3}<invoke name=", f"{_M3}<tool_call>\n<invoke name="),
        header_end=(">",),
        header=NAME_HEADER,
        call_end=_m3("</invoke>"),
        trailing=THINK_END,
        reasoning=(("<mm:think>", "</mm:think>"),),
        tag_prefix=_M3,
    ),
    # Mistral 7B v0.3, Nemo, Large 2407 and others before tokenizer v11
    table_named_in_body("mistral_array", "array", "[TOOL_CALLS]", "", "[", models="Mistral before v11", **_MISTRAL),
    # The same models, when they omit the brackets around a single call.
    table_named_in_body(
        "mistral_object",
        "wrapped",
        "[TOOL_CALLS]",
        "",
        "{",
        models="Mistral, one object after the token",
        separators=",;",
        **_MISTRAL,
    ),
    Table(  # Small 3.2, Magistral, Devstral, Ministral 3: NAME{…}, NAME[ARGS]{…}, NAME[CALL_ID]ID[ARGS]{…}
        name="mistral",
        models="Mistral v11 and later",
        body="json",
        call_begin=("[TOOL_CALLS]",),
        header_end=("[ARGS]",),
        header_stop=("{",),
        header=re.compile(r"\s*(?P<name>[\w.:/-]*)\s*" + prefix_pattern("[CALL_ID]", r"(?P<id>[\w-]*)\s*")),
        self_closing=True,
        **_MISTRAL,
    ),
    Table(
        name="harmony",
        models="gpt-oss",
        special=True,
        body="json",
        call_begin=(
            f"{_ASSISTANT} to=",
            *(f"{begin}<|channel|>{name} to=" for begin in (_ASSISTANT, "") for name in ("commentary", "analysis")),
        ),
        header_end=("<|message|>",),
        header=re.compile(r"\s*(?:functions\.)?(?P<name>[\w.-]*).*", re.DOTALL),  # then channel and content type
        call_end=("<|call|>",),
        wrappers=(
            *((f"{begin}<|channel|>{name}<|message|>", kind) for begin in (_ASSISTANT, "") for name, kind in _CHANNELS),
            ("<|channel|>final <|constrain|>json<|message|>", "text"),
            (_ASSISTANT, "text"),
            ("<|end|>", "text"),
            ("<|return|>", "text"),
        ),
    ),
    table_named_in_body(
        "llama3_json",
        "wrapped",
        "<|python_tag|>",
        special=True,
        models="Llama 3.1 and later, with its token",
        **_LLAMA3,
    ),
    table_named_in_body(
        "llama3_bare", "wrapped", models="Llama 3.1 and later, without its token", at_start=True, **_LLAMA3
    ),
    table_named_in_body(
        "llama3_text",
        "wrapped",
        models="Llama 3.1 and later, without its token, within a text",
        call_begin=tuple(
            f'{{{gap}"{key}"' for gap in ("", " ", "\n", "\n  ", "\n    ") for key in ("name", "type", "function")
        ),
        opener_is_body=True,
        by_name_only=True,
        **_LLAMA3,
    ),
    table_named_in_body(
        "llama4_pythonic",
        "pythonic",
        "<|python_start|>",
        "<|python_end|>",
        _PYTHON,
        special=True,
        models="Llama 4",
        trailing=("<|eom|>", "<|eot|>"),
    ),
    table_named_in_body(
        "lfm2_json",
        "array",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "{",
        models="LFM2, asked for JSON",
        header=re.compile(r"\s*\[?\s*(?P<name>)"),
        separators=",",
        **_LFM2,
    ),
    table_named_in_body(
        "lfm2", "pythonic", "<|tool_call_start|>", "<|tool_call_end|>", _PYTHON, models="LFM2", **_LFM2
    ),
    # Llama 3.2, ToolACE: the list has no marker, so it counts only if the table is named, at the start of a reply.
    table_named_in_body(
        "pythonic",
        "pythonic",
        first="[",
        models="models that write a list of Python calls without markers",
        at_start=True,
        by_name_only=True,
    ),
    table_named_in_body(
        "gemma4",
        "gemma",
        "<|tool_call>",
        "<tool_call|>",
        ("call:",),
        special=True,
        models="Gemma 4",
        trailing=("<|tool_response>", "<turn|>"),
        reasoning=(("<|channel>thought\n", "<channel|>"),),
        string_mark='<|"|>',
    ),
    table_named_in_body(
        "functiongemma",
        "gemma",
        "<start_function_call>",
        "<end_function_call>",
        ("call:",),
        special=True,
        models="FunctionGemma",
        trailing=("<start_function_response>", "<end_of_turn>"),
        string_mark="<escape>",
    ),
    # Granite 3.0 (no end marker), Phi-4-mini (with one)
    table_named_in_body("granite", "array", "<|tool_call|>", "<|/tool_call|>", special=True, models="Granite 3"),
    # Its opener is an ordinary word, so `auto` searches it only at the start of a reply (`phi4_start`).
    table_named_in_body("phi4", "array", "functools", "", "[", models="Phi-4-mini", by_name_only=True),
    table_named_in_body(
        "phi4_start",
        "array",
        first=(),
        family="phi4",
        models="Phi-4-mini, at the start of a reply",
        header_end=("functools",),
        at_start=True,
    ),
    # MiniMax M1 writes one object per line.
    table_named_in_body(
        "jamba", "array", "<tool_calls>", "</tool_calls>", models="Jamba, Hunyuan A13B", separators=","
    ),
    table_named_in_body("nemotron_deci", "array", "<TOOLCALL>", "</TOOLCALL>", models="Llama-Nemotron"),
    table_named_in_body(
        "cohere",
        "array",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        special=True,
        models="Command A, Command R7B",
        trailing=("<|END_OF_TURN_TOKEN|>",),
        reasoning=(("<|START_THINKING|>", "<|END_THINKING|>"),),
        wrappers=tuple((f"<|{edge}_{part}|>", "text") for part in ("RESPONSE", "TEXT") for edge in ("START", "END")),
        keys=Keys(name=("tool_name", "name"), arguments=("parameters", "arguments"), id=("tool_call_id",)),
    ),
    # Every object has one member, {"NAME": {arguments}}.
    table_named_in_body(
        "apertus",
        "array",
        "<|tools_prefix|>",
        "<|tools_suffix|>",
        special=True,
        models="Apertus",
        reasoning=(("<|inner_prefix|>", "<|inner_suffix|>"),),
        keys=Keys(is_name=True),
    ),
    table_named_in_body(
        "longcat",
        "wrapped",
        "<longcat_tool_call>",
        "</longcat_tool_call>",
        "{",
        models="LongCat-Flash",
        trailing=_LONGCAT_END,
        reasoning=(("<longcat_think>", "</longcat_think>"),),
        separators=",",
    ),
    key_value_table(
        "longcat_tags", "longcat_", family="longcat", models="LongCat-Flash from 2601 on", trailing=_LONGCAT_END
    ),
    # A reply that begins with the calls, without the opening marker. Aliases add this table to other tables.
    table_named_in_body(
        "json_start",
        "array",
        models="models that forget the marker before their JSON",
        separators=",;",
        at_start=True,
        by_name_only=True,
    ),
    attribute_table(  # its bars are DeepSeek's, its underscores are not
        "step3",
        "steptml:invoke",
        "steptml:parameter",
        rf"{_KEY}\s*",
        special=True,
        models="Step 3",
        section_begin=("<｜tool_calls_begin｜>",),
        section_end=("<｜tool_calls_end｜>",),
        call_begin=(f"<｜tool_call_begin｜>function<｜tool_sep｜>{_STEP_INVOKE}", _STEP_INVOKE),
        call_end=("</steptml:invoke><｜tool_call_end｜>", "</steptml:invoke>"),
        stray=("<｜tool_call_end｜>",),
    ),
    attribute_table("minicpm5", "function", "param", rf"{_KEY}\s*", models="MiniCPM 5", cdata=True),
)
