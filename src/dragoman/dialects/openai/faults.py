"""Errors where only Chat Completions have them; all others are those of the service (openai_errors.py)."""

from __future__ import annotations

from dragoman.dialects.kit.openai_errors import JsonObject, fault_of, status_of
from dragoman.errors import Fault
from dragoman.model.usage import failure_kind


def stopped_by_error(word: str, choice: JsonObject) -> Fault | None:
    """Return the fault of a choice that stopped because something failed; None for one that only stopped.

    `word` is its finish_reason, `choice` its other fields: OpenRouter tells what happened in `error`.
    """
    if choice.get("error"):
        return fault_of({"error": choice["error"]}, None)
    kind = failure_kind(word)
    if kind is None:
        return None
    named = "" if word == "error" else f" ({word})"
    status = 502 if kind == "server" else status_of(Fault(kind, ""))
    return Fault(kind, f"the upstream stopped because of an error{named}", status, code="" if word == "error" else word)
