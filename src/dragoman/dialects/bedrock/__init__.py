"""Amazon Bedrock: Converse and ConverseStream. docs/dialects/bedrock.md says what it can and cannot say.

    codec           what the dialect can say; paths, headers and framing, also those of InvokeModel
    request         a request and a conversation, both directions: turns, settings, tools and the choice among them
    blocks          content blocks, both directions
    nodes           what every node shares, what the vendors of models take and refuse, media
    reply           a whole reply, both directions, and what streams share with it: stops, token counts, errors
    stream          frames to events
    encoder         events to frames
    rules           what the service refuses, as a table and a lint of requests; `shapes` is its published model,
                    `stream_rules` the lint of streams
    quirks          filters that only this dialect needs

Only the registry imports this package. It is pure: it imports the kit and the model, and no other dialect.
"""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.bedrock.codec import COUNTS, BedrockBinding, BedrockCodec

__all__ = ["DIALECT", "BedrockBinding", "BedrockCodec"]

DIALECT = Dialect("bedrock", BedrockCodec(), BedrockBinding(), COUNTS)
