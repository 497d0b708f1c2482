"""Tables of formats that are relatives of those in tables.py: other tags around the same kind of parameters."""

from __future__ import annotations

import re

from dragoman.filters.raw_tools.table import Markup, Table

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
