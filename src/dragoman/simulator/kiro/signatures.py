"""The signatures of the simulator's reasoning."""

from __future__ import annotations

import hashlib

_OURS = "sim."


def sign(reasoning: str) -> str:
    """The signature this simulator puts on its reasoning, so that a replayed one can be checked."""
    return _OURS + hashlib.sha256(reasoning.encode("utf-8", "surrogatepass")).hexdigest()


def is_forged(words: str, signature: str, *, strict: bool) -> bool:
    """Tell whether a signature does not fit its text; without `strict` only the simulator's own are checked."""
    return signature != sign(words) if signature.startswith(_OURS) or strict else False
