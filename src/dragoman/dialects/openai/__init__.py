"""OpenAI Chat Completions, and what the many servers that speak it do with it."""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.openai.binding import OpenaiBinding
from dragoman.dialects.openai.codec import OpenaiCodec
from dragoman.dialects.openai.listing import OpenaiListing
from dragoman.dialects.openai.plain import OpenaiPlain

__all__ = ["DIALECT", "OpenaiBinding", "OpenaiCodec"]

DIALECT = Dialect("openai", OpenaiCodec(), OpenaiBinding(), listing=OpenaiListing(), plain=OpenaiPlain())
