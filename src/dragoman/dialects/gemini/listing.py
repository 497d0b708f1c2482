"""Which models there are, in Gemini's shape."""

from __future__ import annotations

from dragoman.dialects.base import Model
from dragoman.wire.jsonio import Json


class GeminiListing:
    def entry(self, model: Model) -> dict[str, Json]:
        return {
            "name": f"models/{model.name}",
            "displayName": model.name,
            "inputTokenLimit": model.window,
            "outputTokenLimit": model.longest_answer,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }

    def list_of(self, entries: list[Json]) -> Json:
        return {"models": entries}
