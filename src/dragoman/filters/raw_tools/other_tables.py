"""Tables of formats beyond those of tables.py: arguments as JSON, as Python literals, in tags around parameters."""

from __future__ import annotations

import re
import string
from typing import Literal

from dragoman.filters.raw_tools.table import Keys, Markup, Table

_NOTHING = re.compile(r"\s*(?P<name>)")  # the header of a format that names the tool inside its body


def _prefixed(literal: str, rest: str) -> str:
    """Return a pattern for the literal and what follows, for every beginning of that, and for the empty text."""
    for char in reversed(literal):
        rest = f"(?:{re.escape(char)}{rest})?"
    return rest


# --- Mistral: no end marker, a call ends where its JSON ends

_MISTRAL_CALL = ("[TOOL_CALLS]",)
_MISTRAL_THINKS = (("[THINK]", "[/THINK]"),)
_MISTRAL_TRAILING = ("[/TOOL_CALLS]", "</s>")

# Mistral 7B v0.3, Nemo, Large 2407 and others before tokenizer v11
MISTRAL_ARRAY = Table(
    name="mistral_array",
    family="mistral",
    special=True,
    body="array",
    call_begin=_MISTRAL_CALL,
    header_stop=("[",),
    header=_NOTHING,
    trailing=_MISTRAL_TRAILING,
    reasoning=_MISTRAL_THINKS,
)
# the same models, when they forget the brackets around a single call
MISTRAL_OBJECT = Table(
    name="mistral_object",
    family="mistral",
    special=True,
    body="wrapped",
    call_begin=_MISTRAL_CALL,
    header_stop=("{",),
    header=_NOTHING,
    trailing=_MISTRAL_TRAILING,
    separators=",;",
    reasoning=_MISTRAL_THINKS,
)
# Mistral Small 3.2, Magistral, Devstral, Ministral 3: NAME{…}, NAME[ARGS]{…}, NAME[CALL_ID]ID[ARGS]{…}
MISTRAL = Table(
    name="mistral",
    family="mistral",
    special=True,
    body="json",
    call_begin=_MISTRAL_CALL,
    header_end=("[ARGS]",),
    header_stop=("{",),
    header=re.compile(r"\s*(?P<name>[\w.:/-]*)\s*" + _prefixed("[CALL_ID]", r"(?P<id>[\w-]*)\s*")),
    trailing=_MISTRAL_TRAILING,
    reasoning=_MISTRAL_THINKS,
    self_closing=True,
)

# --- gpt-oss (harmony). A message to a recipient is a call; one without is reasoning or text, by its channel.

_ASSISTANT = "<|start|>assistant"
_CHANNELS: tuple[tuple[str, Literal["text", "reasoning"]], ...] = (
    ("analysis", "reasoning"),
    ("commentary", "text"),
    ("final", "text"),
)

HARMONY = Table(
    name="harmony",
    family="harmony",
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
)

# --- Llama 3.1 to 3.3

LLAMA3_JSON = Table(
    name="llama3_json",
    family="llama3_json",
    special=True,
    body="wrapped",
    call_begin=("<|python_tag|>",),
    header_stop=("{",),
    header=_NOTHING,
    call_end=("<|eom_id|>", "<|eot_id|>"),
    keys=Keys(arguments=("parameters", "arguments")),
    separators=";,",
)
# the same without the token: only as the beginning of an answer
LLAMA3_BARE = Table(
    name="llama3_bare",
    family="llama3_json",
    special=False,
    body="wrapped",
    header_stop=("{",),
    header=_NOTHING,
    call_end=LLAMA3_JSON.call_end,
    keys=LLAMA3_JSON.keys,
    separators=LLAMA3_JSON.separators,
    at_start=True,
)

# the same within a text: only if it is named
LLAMA3_TEXT = Table(
    name="llama3_text",
    family="llama3_json",
    special=False,
    body="wrapped",
    call_begin=tuple(
        f'{{{gap}"{key}"' for gap in ("", " ", "\n", "\n  ", "\n    ") for key in ("name", "type", "function")
    ),
    header_stop=("{",),
    header=_NOTHING,
    call_end=LLAMA3_JSON.call_end,
    keys=LLAMA3_JSON.keys,
    separators=LLAMA3_JSON.separators,
    opener_is_body=True,
    by_name_only=True,
)

# --- arrays of calls

# Granite 3.0 (no end marker), Phi-4-mini (with one)
GRANITE = Table(
    name="granite",
    family="granite",
    special=True,
    body="array",
    call_begin=("<|tool_call|>",),
    header_stop=("[", "{"),
    header=_NOTHING,
    call_end=("<|/tool_call|>",),
)
# Granite 3.1 to 3.3
GRANITE_TAG = Table(
    name="granite_tag",
    family="granite",
    special=False,
    body="array",
    call_begin=("<tool_call>",),
    header_stop=("[", "{"),
    header=_NOTHING,
    call_end=("</tool_call>",),
)
# Phi-4-mini. Its opener is an ordinary word, so `auto` does not look for it within a text, only where an answer begins.
PHI4 = Table(
    name="phi4",
    family="phi4",
    special=False,
    body="array",
    call_begin=("functools",),
    header_stop=("[",),
    header=_NOTHING,
    by_name_only=True,
)
PHI4_START = Table(
    name="phi4_start",
    family="phi4",
    special=False,
    body="array",
    header_end=("functools",),
    header=_NOTHING,
    at_start=True,
)
# Jamba 1.5 and 1.6, Hunyuan A13B; MiniMax M1 writes objects, one a line
JAMBA = Table(
    name="jamba",
    family="jamba",
    special=False,
    body="array",
    call_begin=("<tool_calls>",),
    header_stop=("[", "{"),
    header=_NOTHING,
    call_end=("</tool_calls>",),
    separators=",",
)
# Llama-Nemotron Super and Ultra
NEMOTRON_DECI = Table(
    name="nemotron_deci",
    family="nemotron_deci",
    special=False,
    body="array",
    call_begin=("<TOOLCALL>",),
    header_stop=("[", "{"),
    header=_NOTHING,
    call_end=("</TOOLCALL>",),
)
# Command R7B, Command A and later
COHERE = Table(
    name="cohere",
    family="cohere",
    special=True,
    body="array",
    call_begin=("<|START_ACTION|>",),
    header_stop=("[", "{"),
    header=_NOTHING,
    call_end=("<|END_ACTION|>",),
    trailing=("<|END_OF_TURN_TOKEN|>",),
    reasoning=(("<|START_THINKING|>", "<|END_THINKING|>"),),
    wrappers=(
        ("<|START_RESPONSE|>", "text"),
        ("<|END_RESPONSE|>", "text"),
        ("<|START_TEXT|>", "text"),
        ("<|END_TEXT|>", "text"),
    ),
    keys=Keys(name=("tool_name", "name"), arguments=("parameters", "arguments"), id=("tool_call_id",)),
)
# Apertus 8B and 70B: every object has one member, {"NAME": {arguments}}
APERTUS = Table(
    name="apertus",
    family="apertus",
    special=True,
    body="array",
    call_begin=("<|tools_prefix|>",),
    header_stop=("[", "{"),
    header=_NOTHING,
    call_end=("<|tools_suffix|>",),
    reasoning=(("<|inner_prefix|>", "<|inner_suffix|>"),),
    keys=Keys(is_name=True),
)

# LongCat-Flash: Hermes with tags of its own
LONGCAT = Table(
    name="longcat",
    family="longcat",
    special=False,
    body="wrapped",
    call_begin=("<longcat_tool_call>",),
    header_stop=("{",),
    header=_NOTHING,
    call_end=("</longcat_tool_call>",),
    trailing=("</longcat_think>", "</longcat_s>"),
    reasoning=(("<longcat_think>", "</longcat_think>"),),
    separators=",",
)
# LFM2, where its system prompt asks for JSON
LFM2_JSON = Table(
    name="lfm2_json",
    family="lfm2",
    special=True,
    body="array",
    call_begin=("<|tool_call_start|>",),
    header_stop=("{",),
    header=re.compile(r"\s*\[?\s*(?P<name>)"),
    call_end=("<|tool_call_end|>",),
    trailing=("<|im_end|>",),
    separators=",",
)
# An answer that begins with the calls, where the opening marker is missing. Aliases add it to other tables.
JSON_START = Table(
    name="json_start",
    family="json_start",
    special=False,
    body="array",
    header_stop=("[", "{"),
    header=_NOTHING,
    separators=",;",
    at_start=True,
    by_name_only=True,
)


# --- Tables of the formats whose arguments are Python literals, or Gemma's


_BEGINS = ("[", "_", *string.ascii_letters)  # the list of calls, or the first call without it

# Llama 4
LLAMA4_PYTHONIC = Table(
    name="llama4_pythonic",
    family="llama4_pythonic",
    special=True,
    body="pythonic",
    call_begin=("<|python_start|>",),
    header_stop=_BEGINS,
    header=_NOTHING,
    call_end=("<|python_end|>",),
    trailing=("<|eom|>", "<|eot|>"),
)
# LFM2. Its end marker is Kimi K2's, too.
LFM2 = Table(
    name="lfm2",
    family="lfm2",
    special=True,
    body="pythonic",
    call_begin=("<|tool_call_start|>",),
    header_stop=_BEGINS,
    header=_NOTHING,
    call_end=("<|tool_call_end|>",),
    trailing=("<|im_end|>",),
)
# Olmo 3: one call a line, no brackets. Anthropic-style calls begin with the same tag; there a tag follows it.
OLMO3 = Table(
    name="olmo3",
    family="olmo3",
    special=False,
    body="pythonic",
    call_begin=("<function_calls>",),
    header_stop=_BEGINS,
    header=_NOTHING,
    call_end=("</function_calls>",),
)
# Llama 3.2, ToolACE: nothing marks the list, so it is looked for only if it is named, and where an answer begins
PYTHONIC = Table(
    name="pythonic",
    family="pythonic",
    special=False,
    body="pythonic",
    header_stop=("[",),
    header=_NOTHING,
    at_start=True,
    by_name_only=True,
)
# Gemma 4
GEMMA4 = Table(
    name="gemma4",
    family="gemma4",
    special=True,
    body="gemma",
    call_begin=("<|tool_call>",),
    header_stop=("call:",),
    header=_NOTHING,
    call_end=("<tool_call|>",),
    trailing=("<|tool_response>", "<turn|>"),
    reasoning=(("<|channel>thought\n", "<channel|>"),),
    string_mark='<|"|>',
)
# FunctionGemma
FUNCTIONGEMMA = Table(
    name="functiongemma",
    family="functiongemma",
    special=True,
    body="gemma",
    call_begin=("<start_function_call>",),
    header_stop=("call:",),
    header=_NOTHING,
    call_end=("<end_function_call>",),
    trailing=("<start_function_response>", "<end_of_turn>"),
    string_mark="<escape>",
)


# --- Tables of formats that are relatives of those in tables.py: other tags around the same kind of parameters


_NAME = r"[^\s<>{}\"']*"
_ATTRIBUTE = re.compile(rf"""\s*["']?(?P<name>{_NAME})["']?\s*""")

_STEP_INVOKE = "<steptml:invoke name="

# Step 3. Its bars are DeepSeek's, its underscores are not.
STEP3 = Table(
    name="step3",
    family="step3",
    special=True,
    body="markup",
    section_begin=("<｜tool_calls_begin｜>",),
    section_end=("<｜tool_calls_end｜>",),
    call_begin=(f"<｜tool_call_begin｜>function<｜tool_sep｜>{_STEP_INVOKE}", _STEP_INVOKE),
    header_end=(">",),
    header=_ATTRIBUTE,
    call_end=("</steptml:invoke><｜tool_call_end｜>", "</steptml:invoke>"),
    stray=("<｜tool_call_end｜>",),
    trailing=("</think>",),
    markup=Markup(
        opens=re.compile(r"""<steptml:parameter\s+name=["']?(?P<key>[^<>"']*)["']?\s*>"""),
        open_end=">",
        value_ends=("</steptml:parameter>",),
        value_stops=("<steptml:parameter name=",),
    ),
)
# Hunyuan HY v3: GLM inside a section, with a marker after the name
HY_V3 = Table(
    name="hy_v3",
    family="hy_v3",
    special=False,
    body="markup",
    section_begin=("<tool_calls>",),
    section_end=("</tool_calls>",),
    call_begin=("<tool_call>",),
    header_end=("<tool_sep>",),
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
# LongCat-Flash from 2601 on: GLM with tags of its own
LONGCAT_TAGS = Table(
    name="longcat_tags",
    family="longcat",
    special=False,
    body="markup",
    call_begin=("<longcat_tool_call>",),
    header_stop=("<longcat_arg_key>", "</longcat_tool_call>"),
    header=re.compile(rf"\s*(?P<name>{_NAME})\s*"),
    call_end=("</longcat_tool_call>",),
    trailing=("</longcat_think>", "</longcat_s>"),
    markup=Markup(
        opens=re.compile(r"<longcat_arg_key>\s*(?P<key>[^<]*?)\s*</longcat_arg_key>\s*<longcat_arg_value>"),
        open_end="<longcat_arg_value>",
        value_ends=("</longcat_arg_value>",),
        value_stops=("<longcat_arg_key>",),
    ),
)
# MiniCPM5
MINICPM5 = Table(
    name="minicpm5",
    family="minicpm5",
    special=False,
    body="markup",
    call_begin=("<function name=",),
    header_end=(">",),
    header=_ATTRIBUTE,
    call_end=("</function>",),
    trailing=("</think>",),
    markup=Markup(
        opens=re.compile(r"""<param\s+name=["']?(?P<key>[^<>"']*)["']?\s*>"""),
        open_end=">",
        value_ends=("</param>",),
        value_stops=("<param name=",),
        cdata=True,
    ),
)
