"""Every format's renderer by table, and the other spellings that models use for the same table."""

from __future__ import annotations

from functools import partial

from dragoman.filters.raw_tools import TABLES
from tests.unit.raw_tools import render_json, render_markup
from tests.unit.raw_tools.render_json import CallToWrite, Render

__all__ = ["AT_START", "BY_NAME_ONLY", "JSON", "MARKUP", "PYTHON", "RENDER", "SPELLINGS", "CallToWrite", "Render"]

MARKUP: dict[str, Render] = {
    "dsml": render_markup.render_dsml,
    "kimi_k3": render_markup.render_kimi_k3,
    "qwen_coder": render_markup.render_qwen_coder,
    "glm": render_markup.render_glm,
    "invoke": render_markup.render_invoke,
    "invoke_prefixed": render_markup.render_invoke_prefixed,
    "minimax_m3": render_markup.render_minimax_m3,
    "dots": render_markup.render_dots,
    "step3": render_markup.render_step3,
    "hy_v3": render_markup.render_hy_v3,
    "minicpm5": render_markup.render_minicpm5,
    "longcat_tags": render_markup.render_longcat_tags,
}
PYTHON: dict[str, Render] = {
    "llama4_pythonic": render_json.python_between("<|python_start|>", "<|python_end|>"),
    "olmo3": render_json.render_olmo3,
    "lfm2": render_json.python_between("<|tool_call_start|>", "<|tool_call_end|>"),
    "pythonic": render_json.python_between("", ""),
}
GEMMA: dict[str, Render] = {
    "gemma4": render_json.gemma_between("<|tool_call>", "<tool_call|>", '<|"|>'),
    "functiongemma": render_json.gemma_between("<start_function_call>", "<end_function_call>", "<escape>"),
}
JSON: dict[str, Render] = {
    "kimi_k2": render_json.render_kimi_k2,
    "hermes": render_json.tagged("tool_call"),
    "deepseek_v3": render_json.render_deepseek_v3,
    "deepseek_v31": render_json.render_deepseek_v31,
    "mistral_array": render_json.render_mistral_array,
    "mistral_object": render_json.render_mistral_object,
    "mistral": render_json.render_mistral,
    "harmony": render_json.render_harmony,
    "llama3_json": render_json.render_llama3_json,
    "llama3_bare": render_json.render_llama3_bare,
    "granite": render_json.array_between("<|tool_call|>"),
    "granite_tag": render_json.array_between("<tool_call>"),
    "phi4": render_json.array_between("functools"),
    "phi4_start": render_json.array_between("functools"),
    "jamba": render_json.array_between("<tool_calls>", "</tool_calls>"),
    "nemotron_deci": render_json.array_between("<TOOLCALL>", "</TOOLCALL>"),
    "cohere": render_json.render_cohere,
    "apertus": render_json.render_apertus,
    "longcat": render_json.tagged("longcat_tool_call"),
    "llama3_text": render_json.render_llama3_bare,
    "lfm2_json": render_json.array_between("<|tool_call_start|>", "<|tool_call_end|>"),
    "json_start": render_json.array_between(""),
}
_ALL: dict[str, Render] = {**MARKUP, **PYTHON, **GEMMA, **JSON}
_SPELLINGS: dict[str, tuple[str, Render]] = {
    "kimi_k2, blanks": ("kimi_k2", render_json.render_kimi_k2_blanks),
    "mistral, v11": ("mistral", render_json.render_mistral_v11),
    "harmony, recipient first": ("harmony", render_json.render_harmony_recipient_first),
    "dsml, V4": ("dsml", partial(render_markup.render_dsml, section="tool_calls")),
    "dsml, V4.1": ("dsml", partial(render_markup.render_dsml, section=" calls")),
    "qwen_coder, Seed-OSS": ("qwen_coder", partial(render_markup.render_qwen_coder, section="seed:tool_call")),
    "glm, no line ends": ("glm", partial(render_markup.render_glm, line="")),
    "invoke, function_calls": ("invoke", partial(render_markup.render_invoke, section="function_calls")),
}


def _each(render: Render) -> Render:
    """Write each call in a section of its own."""
    return lambda calls: "\n".join(render([call]) for call in calls)


_SPELLINGS |= {
    "dsml, a section for each call": ("dsml", _each(MARKUP["dsml"])),
    "kimi_k3, a section for each call": ("kimi_k3", _each(MARKUP["kimi_k3"])),
    "qwen_coder, Python's words": ("qwen_coder", partial(render_markup.render_qwen_coder, words=str)),
    "minimax_m3, a section for each call": ("minimax_m3", _each(MARKUP["minimax_m3"])),
}
_SHIPPED = {table.name for table in TABLES}

# Only what ships: a table that a user's file brings has no renderer here.
RENDER: dict[str, Render] = {table: render for table, render in _ALL.items() if table in _SHIPPED}
SPELLINGS: dict[str, tuple[str, Render]] = {
    **{table: (table, render) for table, render in RENDER.items()},
    **{title: each for title, each in _SPELLINGS.items() if each[0] in _SHIPPED},
}
# `auto` does not look for these.
BY_NAME_ONLY = frozenset(table.name for table in TABLES if table.by_name_only)
# A call only where the reply begins.
AT_START = frozenset({"pythonic", *(table.name for table in TABLES if table.at_start)})
MISSING = sorted(_SHIPPED - set(_ALL))  # a table that ships without a renderer fails a test
