"""How much a test explores: a fixed, representative part in `make test`, all of it in `make laws-long`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")

LONG = settings.get_current_profile_name() == "long"
"""Whether this is `make laws-long`."""


def sample(cases: Sequence[T], most: int) -> list[T]:
    """Cases spread evenly over all of them, the same ones every time; all of them in `make laws-long`."""
    if LONG or len(cases) <= most:
        return list(cases)
    return [cases[at * len(cases) // most] for at in range(most)]
