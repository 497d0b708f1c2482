"""OpenAI Responses: a flat list of items in, a flat list of items out, and streams that tell each item's life."""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.kit.binding import TokenCounts
from dragoman.dialects.responses.codec import (
    ResponsesBinding,
    ResponsesCodec,
    ResponsesContinuation,
    ResponsesStored,
)

__all__ = ["DIALECT", "ResponsesBinding", "ResponsesCodec"]

DIALECT = Dialect(
    "responses",
    ResponsesCodec(),
    ResponsesBinding(),
    TokenCounts("input_tokens", "response.input_tokens"),
    stored=ResponsesStored(),
    continuation=ResponsesContinuation(),
)
