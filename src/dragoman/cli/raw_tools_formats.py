"""The formats of raw tool calls as `dragoman raw-tools list` shows them: who writes one, and how it looks."""

from __future__ import annotations

from msgspec import Struct

from dragoman.filters.raw_tools import ALIASES, TABLES, Table
from dragoman.filters.raw_tools.table import Markup

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
    "mistral_object": "Mistral, one object after the token",
    "harmony": "gpt-oss",
    "llama3_json": "Llama 3.1 and later, with its token",
    "llama3_bare": "Llama 3.1 and later, without its token",
    "llama4_pythonic": "Llama 4",
    "olmo3": "Olmo 3",
    "llama3_text": "Llama 3.1 and later, without its token, within a text",
    "json_start": "models that forget the marker before their JSON",
    "lfm2": "LFM2",
    "lfm2_json": "LFM2, asked for JSON",
    "pythonic": "models that write a list of Python calls without markers",
    "gemma4": "Gemma 4",
    "functiongemma": "FunctionGemma",
    "minimax_m3": "MiniMax M3",
    "granite": "Granite 3",
    "granite_tag": "Granite 3, with a tag",
    "phi4": "Phi-4-mini",
    "phi4_start": "Phi-4-mini, at the beginning of an answer",
    "jamba": "Jamba, Hunyuan A13B",
    "nemotron_deci": "Llama-Nemotron",
    "cohere": "Command A, Command R7B",
    "apertus": "Apertus",
    "longcat": "LongCat-Flash",
    "longcat_tags": "LongCat-Flash from 2601 on",
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
            [alias for alias, names in ALIASES.items() if table.name in names and alias != table.name],
        )
        for table in TABLES
    ]


def looks(table: Table) -> str:
    """Sketch a call in a table's format, made of its own markers."""
    if table.body in ("wrapped", "array", "pythonic", "gemma"):
        header = _first(table.header_end)
    else:
        header = _name(table) + _first(table.header_end)
    begin = _first(table.section_begin) + ("" if table.opener_is_body else _first(table.call_begin))
    end = _first(table.call_end) + _first(table.section_end)
    return f"{begin}{header}{_body(table)}{end}".replace("\n", "⏎")


def _name(table: Table) -> str:
    """Sketch the name as it stands after the marker that begins the call."""
    if _first(table.call_begin).endswith("name="):
        return '"NAME"'
    header = table.header.pattern if table.header else ""
    if "tool=" in header:
        return 'tool="NAME"'
    return ' name="NAME"' if "name=" in header else "NAME"


def _body(table: Table) -> str:
    keys = table.keys
    match table.body:
        case "wrapped" | "array":
            named = f'"{keys.name[0]}": "NAME", "{keys.arguments[0]}": {{"KEY": VALUE}}'
            call = '{"NAME": {"KEY": VALUE}}' if keys.is_name else f"{{{named}}}"
            return f"[{call}]" if table.body == "array" else call
        case "pythonic":
            return "[NAME(KEY=VALUE)]"
        case "gemma":
            return f"call:NAME{{KEY:{table.string_mark}VALUE{table.string_mark}}}"
        case "elements":
            return f"{table.tag_prefix}<KEY>VALUE{table.tag_prefix}</KEY>"
        case "markup" if table.markup is not None:
            return f"{_key(_first(table.markup.value_stops), table.markup)}VALUE{_first(table.markup.value_ends)}"
        case _:
            return '{"KEY": VALUE}'


def _key(opening: str, markup: Markup) -> str:
    """Sketch the tag that names a parameter. `opening` is how it begins."""
    if opening.endswith(">"):
        return f"{opening}KEY</{opening[1:]}{markup.open_end}"
    if opening.endswith(("name=", "key=")):
        return f'{opening}"KEY"{markup.open_end}'
    return f"{opening}KEY{markup.open_end}" if opening.endswith("=") else f'{opening}name="KEY"{markup.open_end}'


def _first(markers: tuple[str, ...]) -> str:
    return markers[0] if markers else ""
