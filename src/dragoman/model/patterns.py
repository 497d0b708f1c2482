"""Names and patterns of models, as configurations and price files write them. Pure."""

from __future__ import annotations

import re
from functools import lru_cache


def is_pattern(text: str) -> bool:
    """Return whether a name of the configuration is a pattern: `*` is any text, `?` any character."""
    return "*" in text or "?" in text


def matches_pattern(pattern: str, name: str) -> bool:
    """Return whether a name or pattern of the configuration matches this model."""
    return pattern == name or compiled_pattern(pattern).fullmatch(name) is not None


@lru_cache(512)
def compiled_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern. Brackets are literal, because clients append [1m] to model names.

    Groups are atomic: the client chooses the name, and no name may cause backtracking.
    """
    first, *rest = [re.escape(part).replace(r"\?", ".") for part in re.split(r"\*+", pattern)]
    if not rest:
        return re.compile(first, re.DOTALL)
    *middle, last = rest
    return re.compile(first + "".join(f"(?>.*?{part})" for part in middle) + f".*{last}", re.DOTALL)
