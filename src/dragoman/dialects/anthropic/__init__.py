"""The dialect of Anthropic's Messages API; docs/dialects/anthropic.md describes it."""

from __future__ import annotations

from dragoman.dialects.anthropic.codec import MODEL_LIST, AnthropicBinding, AnthropicCodec, AnthropicListing
from dragoman.dialects.anthropic.request import read_typed_request
from dragoman.dialects.base import Dialect, LimitHeaders
from dragoman.dialects.kit.binding import TokenCountField

__all__ = ["DIALECT", "AnthropicBinding", "AnthropicCodec"]

DIALECT = Dialect(
    "anthropic",
    AnthropicCodec(),
    AnthropicBinding(),
    TokenCountField("input_tokens"),
    AnthropicListing(),
    MODEL_LIST,
    key_header="x-api-key",
    typed_reader=read_typed_request,
    attribution=True,
    limit_headers=LimitHeaders(
        "anthropic-ratelimit-{}-limit", "anthropic-ratelimit-{}-remaining", "anthropic-ratelimit-{}-reset", True
    ),
    title="Anthropic Messages",
)
