"""Amazon Bedrock: Converse and ConverseStream. docs/dialects/bedrock.md says what it can and cannot say."""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.bedrock.codec import COUNTS, BedrockBinding, BedrockCodec

__all__ = ["DIALECT", "BedrockBinding", "BedrockCodec"]

DIALECT = Dialect("bedrock", BedrockCodec(), BedrockBinding(), COUNTS)
