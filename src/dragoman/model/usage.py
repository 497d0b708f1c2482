"""What services report of an answer: token counts, and why it stopped. Every reader of usage builds its `Usage` here.

The rules are the same for all: a count is a whole number between 0 and `LARGEST`, a part never exceeds its total, and
no token is counted twice. Services disagree about which count contains which, so the total decides where it can.
"""

from __future__ import annotations

import math

from dragoman.errors import Kind
from dragoman.model.blocks import Extra
from dragoman.model.conversation import Usage, Why
from dragoman.wire.jsonio import Json

LARGEST = 1_000_000_000  # no model reads or writes as much; the sum of two fits the 32-bit integers of typed SDKs


def count(value: Json) -> int:
    """Return a reported count as a possible one: nonsense is 0, a negative number is 0, an absurd one is `LARGEST`."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(LARGEST)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return 0
    return int(min(max(value, 0), LARGEST))


def first_count(*values: Json) -> int:
    """Return the first count that is not 0: services have several names for one figure."""
    return next((found for value in values if (found := count(value))), 0)


def inclusive_usage(
    prompt: int, completion: int, read: int, write: int, reasoning: int, *, total: int = 0, extra: Extra | None = None
) -> Usage:
    """Build the usage of a service whose prompt count includes its caches and whose completion includes reasoning.

    The total shows which services differ: xAI leaves reasoning out of the completion, some proxies leave the caches out
    of the prompt. Cached and written tokens that overlap (OpenRouter) are counted once, as read.
    """
    if reasoning and total == prompt + completion + reasoning:
        completion += reasoning
    elif read + write and total == prompt + completion + read + write:
        prompt += read + write
    prompt, completion = count(prompt), count(completion)
    read = min(read, prompt)
    write = min(write, prompt - read)
    return Usage(prompt - read - write, completion, read, write, min(reasoning, completion), extra=extra)


def exclusive_usage(
    fresh: int, output: int, read: int, write: int, reasoning: int = 0, *, extra: Extra | None = None
) -> Usage:
    """Build the usage of a service that counts fresh, cached and written input apart."""
    read = min(read, LARGEST)
    write = min(write, LARGEST - read)
    return Usage(min(fresh, LARGEST - read - write), output, read, write, min(reasoning, output), extra=extra)


# --- Why answers stop, in the words of many services. Dialects look here for words that their own tables do not have.
#
# A block is a block (`Why.REFUSAL`), a cut is a cut (`Why.LENGTH`, `Why.CONTEXT`), and a failure is a failure
# (`failure_kind`), whatever a service calls it. Words are compared without regard to case.


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
