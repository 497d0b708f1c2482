"""OpenAI Chat Completions, and what the many servers that speak it do with it.

    codec           what the dialect can say; filters that only it needs; paths, headers and framing; the list of models
    request, tools  a request and a conversation, both directions: settings, tools, calls, and a Responses body
    messages        the list of messages, both directions, and the reasoning in them
    shapes          what has just the documented shape, read by Structs
    blocks          content parts, both directions, the settings of the codec, and what every node shares
    reply           a whole reply, both directions, and what streams share with it: stops, token counts, errors
    stream          frames to events: `chunk` is the shape of a frame, `choice` reads the fragments of one choice
    encoder         events to frames
    rules           what services refuse, as a table and a lint of requests and streams

Only the registry imports this package. It is pure: it imports the kit and the model, and no other dialect.
"""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.openai.codec import PATH, OpenaiBinding, OpenaiCodec, OpenaiListing
from dragoman.dialects.openai.shapes import OpenaiSummaryReader

__all__ = ["DIALECT", "OpenaiBinding", "OpenaiCodec"]

DIALECT = Dialect(
    "openai", OpenaiCodec(), OpenaiBinding(), listing=OpenaiListing(), summary_reader=OpenaiSummaryReader(PATH)
)
