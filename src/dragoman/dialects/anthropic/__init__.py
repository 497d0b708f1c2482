"""Anthropic Messages. docs/dialects/anthropic.md says what it can and cannot say."""

from __future__ import annotations

from dragoman.dialects.anthropic.codec import AnthropicBinding, AnthropicCodec, AnthropicListing
from dragoman.dialects.anthropic.request import exact_request
from dragoman.dialects.base import Dialect
from dragoman.dialects.kit.binding import TokenCounts

__all__ = ["DIALECT", "AnthropicBinding", "AnthropicCodec"]

DIALECT = Dialect(
    "anthropic",
    AnthropicCodec(),
    AnthropicBinding(),
    TokenCounts("input_tokens"),
    AnthropicListing(),
    key_header="x-api-key",
    exact=exact_request,
    attribution=True,
)
