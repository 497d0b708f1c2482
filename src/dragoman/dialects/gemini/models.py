"""What the name of a model tells."""

from __future__ import annotations

import re

_VERSION = re.compile(r"gemini-(\d+)")
_LEVELS_SINCE = 3


def is_older(model: str) -> bool:
    """A model before Gemini 3: it thinks by budget, signs nothing that must come back, takes no media in results."""
    if "gemma" in model:
        return True
    found = _VERSION.search(model)
    return found is not None and int(found[1]) < _LEVELS_SINCE
