"""Errors where only Chat Completions have them; all others are those of the service (openai_errors.py)."""

from __future__ import annotations

from dragoman.dialects.openai_errors import JsonObject, fault_of
from dragoman.errors import Fault


def stopped_by_error(choice: JsonObject) -> Fault:
    """The fault in a choice whose finish_reason is `error`; OpenRouter tells what happened beside it."""
    error = choice.get("error")
    return fault_of({"error": error or "the upstream stopped because of an error"}, None)
