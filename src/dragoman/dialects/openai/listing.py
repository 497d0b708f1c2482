"""Which models there are, in OpenAI's shape."""

from __future__ import annotations

from dragoman.dialects.base import Model
from dragoman.wire.jsonio import Json


class OpenaiListing:
    """Its own list has no figures: these are spelt as OpenRouter does, whose list has."""

    def entry(self, model: Model) -> dict[str, Json]:
        most: Json = {"max_completion_tokens": model.longest_answer} if model.longest_answer else None
        entry: dict[str, Json] = {"id": model.name, "object": "model", "created": model.since, "owned_by": "dragoman"}
        return {**entry, "context_length": model.window, "top_provider": most}

    def list_of(self, entries: list[Json]) -> Json:
        return {"object": "list", "data": entries}
