"""The kit every dialect must pass: the laws, as functions over a dialect and a value, and samples to try them on.

`python -m dragoman.conformance NAME` runs every law on every sample; tests feed the same laws with generated values.
"""

from __future__ import annotations

from dragoman.conformance.laws import LAWS, LawBroken, run
from dragoman.conformance.samples import CONVERSATIONS, STREAMS

__all__ = ["CONVERSATIONS", "LAWS", "STREAMS", "LawBroken", "run"]
