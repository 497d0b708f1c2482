"""The conformance kit that every dialect must pass: laws of translation, and samples to test them with.

`python -m dragoman.conformance NAME` runs every law on every sample. Tests run the same laws on generated values.
"""

from __future__ import annotations

from dragoman.conformance.laws import LAWS, LawBroken, run
from dragoman.conformance.samples import CONVERSATIONS, STREAMS

__all__ = ["CONVERSATIONS", "LAWS", "STREAMS", "LawBroken", "run"]
