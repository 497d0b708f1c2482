"""Token counts from what services report. Every reader of usage builds its `Usage` here.

The rules are the same for all: a count is a whole number between 0 and `LARGEST`, a part never exceeds its total, and
no token is counted twice. Services disagree about which count contains which, so the total decides where it can.
"""

from __future__ import annotations

import math

from dragoman.model.blocks import Extra
from dragoman.model.conversation import Usage
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
