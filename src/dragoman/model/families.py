"""What is known of a model by its name, whichever dialect serves it."""

from __future__ import annotations

import re

# Their chat templates print tool results without ids: the first result is read as that of the first call.
_BY_ORDER = re.compile(r"kimi|moonshot|qwen|glm|deepseek|minimax|llama|hermes|gpt-oss|seed-oss", re.IGNORECASE)


def reads_results_by_order(model: str) -> bool:
    """Return whether the model knows a tool result by its place among the results, not by its id."""
    return _BY_ORDER.search(model) is not None
