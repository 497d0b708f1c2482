"""The formats of raw tool calls as `dragoman raw-tools list` shows them: who writes one, and how it looks."""

from __future__ import annotations

from msgspec import Struct

from dragoman.filters.raw_tools import ALIASES, TABLES, Table

MODELS = {
    "kimi_k2": "Kimi K2, K2-Thinking, K2.5",
    "kimi_k3": "Kimi K3",
    "hermes": "Qwen2.5, Qwen3, Hermes, Granite 4, ERNIE 4.5 and many others",
    "qwen_coder": "Qwen3-Coder, Seed-OSS, Step 3.5, MiMo, Nemotron 3",
    "glm": "GLM-4.5 and later",
    "deepseek_v3": "DeepSeek V3, R1",
    "deepseek_v31": "DeepSeek V3.1",
    "dsml": "DeepSeek V3.2, V4",
    "invoke": "MiniMax M2",
    "invoke_prefixed": "models that imitate Claude's own markup",
    "mistral": "Mistral v11 and later",
    "mistral_array": "Mistral before v11",
    "mistral_object": "Mistral, the arguments right after the name",
    "harmony": "gpt-oss",
    "llama3_json": "Llama 3.1 and later, with its token",
    "llama3_bare": "Llama 3.1 and later, without its token",
    "llama4_pythonic": "Llama 4",
    "olmo3": "Olmo 3",
    "lfm2": "LFM2",
    "pythonic": "models that write a list of Python calls without markers",
    "gemma4": "Gemma 4",
    "functiongemma": "FunctionGemma",
    "minimax_m3": "MiniMax M3",
    "granite": "Granite 3",
    "granite_tag": "Granite 3, with a tag",
    "phi4": "Phi-4-mini",
    "jamba": "Jamba, Hunyuan A13B",
    "nemotron_deci": "Llama-Nemotron",
    "cohere": "Command A, Command R7B",
    "apertus": "Apertus",
    "longcat": "LongCat-Flash",
    "dots": "dots.llm",
    "step3": "Step 3",
    "hy_v3": "Hunyuan V3",
    "minicpm5": "MiniCPM 5",
}


class Row(Struct, frozen=True):
    """One format."""

    name: str
    family: str
    models: str
    looks: str
    also: list[str]  # other names of it


def rows() -> list[Row]:
    """Return the shipped formats in the order in which `auto` looks for them."""
    return [
        Row(
            table.name,
            table.family,
            MODELS.get(table.name, "") + (" (only by name)" if table.by_name_only else ""),
            looks(table),
            [alias for alias, names in ALIASES.items() if table.name in names],
        )
        for table in TABLES
    ]


_BODIES = {
    "json": '{"KEY": VALUE}',
    "wrapped": '{"name": "NAME", "arguments": {"KEY": VALUE}}',
    "array": '[{"name": "NAME", "arguments": {"KEY": VALUE}}]',
    "pythonic": "[NAME(KEY=VALUE)]",
    "elements": "<KEY>VALUE</KEY>",
}


def looks(table: Table) -> str:
    """Sketch a call in a table's format, made of its own markers."""
    inside = table.body in ("wrapped", "array", "pythonic")
    header = "" if inside else "NAME" + _first(table.header_end)
    parts = (_first(table.section_begin), _first(table.call_begin), header, _body(table))
    return "".join((*parts, _first(table.call_end), _first(table.section_end))).replace("\n", "⏎")


def _body(table: Table) -> str:
    keys = table.keys
    if table.body in ("wrapped", "array"):
        named = f'"{keys.name[0]}": "NAME", "{keys.arguments[0]}": {{"KEY": VALUE}}'
        call = '{"NAME": {"KEY": VALUE}}' if keys.is_name else f"{{{named}}}"
        return f"[{call}]" if table.body == "array" else call
    if table.body == "gemma":
        return f"{{KEY:{table.string_mark}VALUE{table.string_mark}}}"
    if table.markup is not None:
        return f"{_first(table.markup.value_stops)} KEY {table.markup.open_end}VALUE{_first(table.markup.value_ends)}"
    return _BODIES[table.body]


def _first(markers: tuple[str, ...]) -> str:
    return markers[0] if markers else ""
