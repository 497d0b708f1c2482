"""The values of a `raw_tools` setting: a table, a family, a table file, or an inference engine's name for a format."""

from __future__ import annotations

from typing import TypeAlias

from dragoman.errors import LocalMisuse
from dragoman.filters.raw_tools.table import Table, is_file_choice, tables_in
from dragoman.filters.raw_tools.tables import TABLES

# --- Names of formats in inference engines: the values of their tool-call-parser options


_QWEN_CODER = ("qwen_coder",)
_DSML = ("dsml",)
_LLAMA4 = ("llama4_pythonic", "pythonic")  # Llama 4 also writes the list without its markers

# An alias names tables or families.
FORMAT_ALIASES: dict[str, tuple[str, ...]] = {
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
    "granite": ("granite", "json_start"),  # the opener may be missing if the calls begin the reply
    "granite4": ("hermes",),
    "hunyuan_a13b": ("jamba",),
    "llama3_json": ("llama3_json", "json_start"),  # if named, a list of calls counts too
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

FORMAT_NAMES: tuple[str, ...] = tuple(
    dict.fromkeys((*(table.family for table in TABLES), *(table.name for table in TABLES)))
)

FormatChoice: TypeAlias = (
    str  # "auto", "off", one of FORMAT_NAMES or of FORMAT_ALIASES, or "file:" and the path of a table file
)


def tables_of(choice: FormatChoice) -> tuple[Table, ...]:
    """Return the tables that a setting names: a table, a family, an alias, a file, or `auto` for all safe ones.

    Raises LocalMisuse for an unknown name.
    """
    if choice == "auto":
        return tuple(table for table in TABLES if not table.by_name_only)
    if is_file_choice(choice):
        return tables_in(choice)
    names = FORMAT_ALIASES.get(choice, (choice,))
    chosen = tuple(table for table in TABLES if table.name in names or table.family in names)
    if not chosen and choice != "off":
        raise LocalMisuse(
            f"raw_tools: {choice!r} is unknown; use {', '.join(('auto', 'off', *FORMAT_NAMES, *FORMAT_ALIASES))}"
        )
    return chosen
