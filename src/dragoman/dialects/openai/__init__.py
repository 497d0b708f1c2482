"""The dialect of OpenAI Chat Completions, with the variations of the many servers that implement it.

    codec           capabilities; filters that only this dialect needs; paths, headers and framing; the list of models
    request, tools  a request body and a conversation, both directions: settings, tools, calls, and a Responses body
    messages        the list of messages, both directions, and the reasoning in them
    shapes          messages, requests and replies of exactly the documented shape, read by Structs
    blocks          content parts, both directions, the settings of the codec, and helpers for unknown fields
    reply           a whole reply, both directions, and what streams share with it: stops, token counts, errors
    stream          frames to events: `chunk` is the shape of a frame, `choice` reads the fragments of one choice
    encoder         events to frames
    rules           what services refuse, as a table and a lint of requests and streams

Only the registry imports this package. It is pure: it imports the kit and the model, and no other dialect.
"""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.endpoints import OPENAI_ENDPOINTS
from dragoman.dialects.kit.model_lists import OPENAI_MODEL_LIST
from dragoman.dialects.kit.openai_errors import OPENAI_LIMIT_HEADERS
from dragoman.dialects.openai.codec import PATH, OpenaiBinding, OpenaiCodec, OpenaiListing
from dragoman.dialects.openai.shapes import OpenaiSummaryReader

__all__ = ["DIALECT", "OpenaiBinding", "OpenaiCodec"]

DIALECT = Dialect(
    "openai",
    OpenaiCodec(),
    OpenaiBinding(),
    listing=OpenaiListing(),
    model_list=OPENAI_MODEL_LIST,
    limit_headers=OPENAI_LIMIT_HEADERS,
    relayed=OPENAI_ENDPOINTS,
    summary_reader=OpenaiSummaryReader(PATH),
    title="OpenAI Chat Completions, and servers that implement it",
)
