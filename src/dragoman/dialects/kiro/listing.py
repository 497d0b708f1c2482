"""Which models there are, in Kiro's shape."""

from __future__ import annotations

from dragoman.dialects.base import Model
from dragoman.wire.jsonio import Json


class KiroListing:
    def entry(self, model: Model) -> dict[str, Json]:
        figures = {"maxInputTokens": model.window, "maxOutputTokens": model.longest_answer}
        limits: dict[str, Json] = {name: value for name, value in figures.items() if value is not None}
        return {"modelId": model.name, "modelName": model.name, "tokenLimits": limits or None}

    def list_of(self, entries: list[Json]) -> Json:
        return {"models": entries, "defaultModel": entries[0] if entries else None}
