"""The dialect of OpenAI Responses: requests and replies are flat lists of items, and streams report each item's steps.

    codec           capabilities; filters that only this dialect needs; paths, headers, framing; stored responses
    request, tools  a request body and a conversation, both directions: settings, tools, namespaces, server state
    items           the list of items, both directions
    blocks          content parts and reasoning, both directions, and helpers for unknown fields
    reply           a whole response, both directions, and what streams share with it: stops, token counts, errors
    stream          frames to events: `output_item` is the state of one item
    encoder         events to frames
    rules           what services refuse, as a table and a lint of requests and streams

Only the registry imports this package. It is pure: it imports the kit and the model, and no other dialect.
"""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.endpoints import OPENAI_ENDPOINTS
from dragoman.dialects.kit.binding import TokenCountField
from dragoman.dialects.kit.model_lists import OPENAI_MODEL_LIST
from dragoman.dialects.kit.openai_errors import OPENAI_LIMIT_HEADERS
from dragoman.dialects.responses.codec import ResponsesBinding, ResponsesCodec, ResponsesContinuation, ResponsesStored

__all__ = ["DIALECT", "ResponsesBinding", "ResponsesCodec"]

DIALECT = Dialect(
    "responses",
    ResponsesCodec(),
    ResponsesBinding(),
    TokenCountField("input_tokens", "response.input_tokens"),
    model_list=OPENAI_MODEL_LIST,
    limit_headers=OPENAI_LIMIT_HEADERS,
    relayed=OPENAI_ENDPOINTS,
    stored=ResponsesStored(),
    continuation=ResponsesContinuation(),
    title="OpenAI Responses",
)
