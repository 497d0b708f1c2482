"""Why answers stop, in the words of many services. Dialects look here for words that their own tables do not have.

A block is a block (`Why.REFUSAL`), a cut is a cut (`Why.LENGTH`, `Why.CONTEXT`), and a failure is a failure
(`failure_kind`), whatever a service calls it. Words are compared without regard to case.
"""

from __future__ import annotations

from dragoman.errors import Kind
from dragoman.model.conversation import Why

_REFUSALS = (
    "refusal",
    "content_filter",
    "content_filtered",
    "guardrail_intervened",
    "guardrail",
    "guardrails",
    "sensitive",  # Z.ai
    "safety",
    "blocked",
    "blocklist",
    "prohibited_content",
    "recitation",
    "language",
    "spii",
    "jailbreak",
    "model_armor",
    "image_safety",
    "image_prohibited_content",
    "image_recitation",
    "error_toxic",  # Cohere
    "moderation",
    "policy_violation",
    "content_policy_violation",
    "data_inspection_failed",  # DashScope
)
_WHYS: dict[str, Why] = {
    **dict.fromkeys(_REFUSALS, Why.REFUSAL),
    **dict.fromkeys(("stop", "end_turn", "eos", "eos_token", "end_of_sequence", "complete", "completed"), Why.END),
    **dict.fromkeys(("tool_calls", "tool_call", "tool_use", "function_call"), Why.TOOL),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "max_length", "repetition_truncation"), Why.LENGTH),
    **dict.fromkeys(
        ("model_context_window_exceeded", "context_length_exceeded", "context_window_exceeded", "model_length"),
        Why.CONTEXT,
    ),
    "stop_sequence": Why.SEQUENCE,
    "pause_turn": Why.PAUSE,
}
_FAILURES: dict[str, Kind] = {
    "error": "server",
    "server_error": "server",
    "internal_error": "server",
    "internal_server_error": "server",
    "network_error": "server",  # Z.ai
    "insufficient_system_resource": "overloaded",  # DeepSeek
    "overloaded": "overloaded",
    "abort": "server",  # vLLM, SGLang: the engine gave the request up
    "aborted": "server",
    "cancelled": "server",
    "canceled": "server",
    "failed": "server",
    "timeout": "timeout",
}
NO_REASON = frozenset({"", "null", "none"})  # how some servers write that the answer goes on


def known_stop(word: str) -> Why | None:
    """Return what a stop word means; None for one that no table has."""
    return _WHYS.get(word.lower())


def failure_kind(word: str) -> Kind | None:
    """Return the kind of failure that a stop word names; None for one that is no failure."""
    return _FAILURES.get(word.lower())
