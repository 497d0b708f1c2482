"""The list of models in the form of Codex, so that it knows models of other vendors. Pure.

Without an entry Codex warns about unknown metadata and offers neither reasoning effort nor `apply_patch`. An entry must
have instructions, or Codex does not start. `dragoman run codex` gives Codex the list as a file; a provider with a
command for its key (`auth`) requests it from the gateway, with its version in the query.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qs

from dragoman.gateway.model_entries import ASSUMED_WINDOW, ModelEntry
from dragoman.wire.jsonio import Json

# Models that Codex 0.169 knows itself (`codex debug models`): it has better instructions for them.
OWN_MODELS = frozenset(
    {"gpt-5.5", "gpt-5.6-luna", "gpt-5.6-sol", "gpt-5.6-terra", "gpt-6-astra", "gpt-6-luna", "gpt-6-sol"}
    | {"gpt-6.1-sol", "gpt-6.1-terra", "codex-auto-review"}
)
MAX_MODELS = 200
_EFFORTS = (
    ("low", "Less reasoning, faster"),
    ("medium", "Balanced"),
    ("high", "More reasoning, slower"),
)
INSTRUCTIONS = """\
You are a coding agent that works in a terminal, in the folder of the user's project. Complete the user's task.

- Read the files that matter before you change them, and follow the style that the project already has.
- Use the tools: run commands to look around, to build and to test. Prefer rg for searching.
- Change files with the apply_patch tool if it is offered. Make small, focused changes; do not revert work of others.
- After a change, run the tests or the commands that show that it works, and report what you ran.
- Do not commit, push or delete anything unless the user asks for it.
- If something is unclear and a wrong guess would be costly, ask; otherwise decide, and say what you decided.
- Answer briefly, in plain text or Markdown: what you did, where, and what is left.
"""


def is_requested(query: str) -> bool:
    """Return whether the query of a request for the list of models is that of Codex."""
    return "client_version" in parse_qs(query)


def render_codex_models(models: Iterable[ModelEntry], chosen: str = "") -> list[Json]:
    """Return the entries: the chosen model first, then the others that Codex does not know itself."""
    known = {model.name: model for model in models if model.name not in OWN_MODELS}
    names = list(dict.fromkeys([*([chosen] if chosen else []), *known]))[:MAX_MODELS]
    return [_entry(name, known.get(name), priority) for priority, name in enumerate(names)]


def _entry(name: str, model: ModelEntry | None, priority: int) -> dict[str, Json]:
    window = (model.window if model is not None else None) or ASSUMED_WINDOW
    return {
        "slug": name,
        "display_name": name,
        "description": f"{name}, by Dragoman",
        "default_reasoning_level": "medium",
        "supported_reasoning_levels": [{"effort": effort, "description": about} for effort, about in _EFFORTS],
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": priority,
        "availability_nux": None,
        "upgrade": None,
        "base_instructions": INSTRUCTIONS,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": "freeform",
        "truncation_policy": {"mode": "bytes", "limit": 10_000},
        "context_window": window,
        "max_context_window": window,
        "effective_context_window_percent": 95,
        "experimental_supported_tools": [],
        "input_modalities": ["text", "image"],
        "supports_reasoning_summary_parameter": True,
        "supports_parallel_tool_calls": True,
        "supports_search_tool": False,
        "use_responses_lite": False,
    }
