"""The dialect of Ollama's native `/api/chat`. docs/dialects/ollama.md lists what it can and cannot express."""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.endpoints import OLLAMA_ENDPOINTS
from dragoman.dialects.ollama.binding import MODEL_LIST, OllamaBinding, OllamaListing
from dragoman.dialects.ollama.codec import OllamaCodec

__all__ = ["DIALECT", "OllamaBinding", "OllamaCodec"]

DIALECT = Dialect(
    "ollama",
    OllamaCodec(),
    OllamaBinding(),
    listing=OllamaListing(),
    model_list=MODEL_LIST,
    json_lines=True,
    relayed=OLLAMA_ENDPOINTS,
    title="Ollama /api/chat",
)
