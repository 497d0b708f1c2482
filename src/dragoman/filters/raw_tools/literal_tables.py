"""Tables of the formats whose arguments are Python literals, or Gemma's."""

from __future__ import annotations

import re
import string

from dragoman.filters.raw_tools.table import Table

_NOTHING = re.compile(r"\s*(?P<name>)")  # the header of a format that names the tool inside its body

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
