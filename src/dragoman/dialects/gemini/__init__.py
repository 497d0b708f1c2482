"""Gemini's generateContent. docs/dialects/gemini.md says what it can and cannot say."""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.gemini.codec import GeminiBinding, GeminiCodec, GeminiListing
from dragoman.dialects.kit.binding import TokenCounts

__all__ = ["DIALECT", "GeminiBinding", "GeminiCodec"]

DIALECT = Dialect(
    "gemini",
    GeminiCodec(),
    GeminiBinding(),
    TokenCounts("totalTokens", omits_zero=True),
    GeminiListing(),
    key_header="x-goog-api-key",
)
