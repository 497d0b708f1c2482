"""The dialect of Amazon Bedrock: Converse and ConverseStream; docs/dialects/bedrock.md describes it.

    codec           the codec with its capabilities, and the bindings of Converse and InvokeModel
    request         reads and writes requests: messages, settings, tools, tool choice
    blocks          reads and writes content blocks
    nodes           extra fields, cache points, differences between vendors of models, media
    reply           reads and writes whole replies, and the parts shared with streams: stop reasons, usage, errors
    stream          decodes frames into events
    encoder         encodes events as frames
    rules           the table of rules and the checks of requests; `shapes` is the published model of requests,
                    `stream_rules` has the checks of streams
    quirks          filters that only this dialect needs

Only the registry imports this package. It is pure: it imports the kit and the model, and no other dialect.
"""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.bedrock.codec import COUNTS, BedrockBinding, BedrockCodec

__all__ = ["DIALECT", "BedrockBinding", "BedrockCodec"]

DIALECT = Dialect(
    "bedrock",
    BedrockCodec(),
    BedrockBinding(),
    COUNTS,
    title="AWS Bedrock Converse",
)
