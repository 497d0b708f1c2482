"""Anthropic Messages. docs/dialects/anthropic.md says what it can and cannot say."""

from __future__ import annotations

from dragoman.dialects.anthropic.codec import (
    AnthropicBinding,
    AnthropicCodec,
    AnthropicCounts,
    AnthropicListing,
    exact_request,
)
from dragoman.dialects.base import Dialect

__all__ = ["DIALECT", "AnthropicBinding", "AnthropicCodec"]

DIALECT = Dialect(
    "anthropic",
    AnthropicCodec(),
    AnthropicBinding(),
    AnthropicCounts(),
    AnthropicListing(),
    key_header="x-api-key",
    exact=exact_request,
    attribution=True,
)
