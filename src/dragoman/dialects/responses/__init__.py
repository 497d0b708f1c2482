"""OpenAI Responses: a flat list of items in, a flat list of items out, and streams that tell each item's life.

    codec           what the dialect can say; filters that only it needs; paths, headers and framing; kept responses
    request, tools  a request and a conversation, both directions: settings, tools, namespaces, what the service holds
    items           the list of items, both directions
    blocks          content parts and reasoning, both directions, and what every node shares
    reply           a whole response, both directions, and what streams share with it: stops, token counts, errors
    stream          frames to events: `growing` is an item while it grows
    encoder         events to frames
    rules           what services refuse, as a table and a lint of requests and streams

Only the registry imports this package. It is pure: it imports the kit and the model, and no other dialect.
"""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.kit.binding import TokenCountField
from dragoman.dialects.responses.codec import ResponsesBinding, ResponsesCodec, ResponsesContinuation, ResponsesStored

__all__ = ["DIALECT", "ResponsesBinding", "ResponsesCodec"]

DIALECT = Dialect(
    "responses",
    ResponsesCodec(),
    ResponsesBinding(),
    TokenCountField("input_tokens", "response.input_tokens"),
    stored=ResponsesStored(),
    continuation=ResponsesContinuation(),
)
