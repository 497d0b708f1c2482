"""OpenAI Chat Completions, and what the many servers that speak it do with it."""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.openai.codec import OpenaiBinding, OpenaiCodec, OpenaiListing
from dragoman.dialects.openai.shapes import OpenaiPlain

__all__ = ["DIALECT", "OpenaiBinding", "OpenaiCodec"]

DIALECT = Dialect("openai", OpenaiCodec(), OpenaiBinding(), listing=OpenaiListing(), plain=OpenaiPlain())
