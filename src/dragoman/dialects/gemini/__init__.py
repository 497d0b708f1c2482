"""Gemini's generateContent. docs/dialects/gemini.md says what it can and cannot say.

    codec           what the dialect can say; filters that only it needs; paths, headers and framing; the list of models
    request, tools  a request and a conversation, both directions: contents, settings, tools and the choice among them
    blocks          parts of a content, both directions, and what every node shares
    reply           a whole reply, both directions, and what streams share with it: stops, token counts, sources, errors
    stream          frames to events; frames out of bytes
    encoder         events to frames
    rules           what the service refuses, as a table and a lint of requests and streams

Only the registry imports this package. It is pure: it imports the kit and the model, and no other dialect.
"""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.gemini.codec import GeminiBinding, GeminiCodec, GeminiListing
from dragoman.dialects.kit.binding import TokenCountField

__all__ = ["DIALECT", "GeminiBinding", "GeminiCodec"]

DIALECT = Dialect(
    "gemini",
    GeminiCodec(),
    GeminiBinding(),
    TokenCountField("totalTokens", omits_zero=True),
    GeminiListing(),
    key_header="x-goog-api-key",
)
