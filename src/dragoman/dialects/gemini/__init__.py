"""Gemini's generateContent. docs/dialects/gemini.md says what it can and cannot say."""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.gemini.codec import GeminiBinding, GeminiCodec, GeminiCounts, GeminiListing

__all__ = ["DIALECT", "GeminiBinding", "GeminiCodec"]

DIALECT = Dialect(
    "gemini", GeminiCodec(), GeminiBinding(), GeminiCounts(), GeminiListing(), key_header="x-goog-api-key"
)
