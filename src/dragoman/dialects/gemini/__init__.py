"""Gemini's generateContent API. docs/dialects/gemini.md describes what the dialect can express.

    codec           capabilities; filters that only this dialect needs; paths, headers and framing; the list of models
    request, tools  parse and render requests: contents, settings, tools and the tool choice
    blocks          parse and render the parts of a content
    reply           parse and render whole replies; stop reasons, token counts, sources and errors, also for streams
    stream          decode bytes to frames and frames to events
    encoder         encode events as frames
    rules           the requirements of the service, as a table and a lint of requests and streams

Only the registry imports this package. It does no I/O: it imports the kit and the model, and no other dialect.
"""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.endpoints import GEMINI_ENDPOINTS
from dragoman.dialects.gemini.codec import MODEL_LIST, GeminiBinding, GeminiCodec, GeminiListing
from dragoman.dialects.kit.binding import TokenCountField

__all__ = ["DIALECT", "GeminiBinding", "GeminiCodec"]

DIALECT = Dialect(
    "gemini",
    GeminiCodec(),
    GeminiBinding(),
    TokenCountField("totalTokens", omits_zero=True),
    GeminiListing(),
    MODEL_LIST,
    key_header="x-goog-api-key",
    relayed=GEMINI_ENDPOINTS,
    title="Gemini generateContent",
)
