"""Which models there are, in Anthropic's shape."""

from __future__ import annotations

from datetime import UTC, datetime

from dragoman.dialects.base import Model
from dragoman.wire.jsonio import Json


class AnthropicListing:
    def entry(self, model: Model) -> dict[str, Json]:
        created = datetime.fromtimestamp(model.since, UTC).isoformat().replace("+00:00", "Z")
        entry: dict[str, Json] = {"type": "model", "id": model.name, "display_name": model.name, "created_at": created}
        return {**entry, "max_input_tokens": model.window, "max_tokens": model.longest_answer}

    def list_of(self, entries: list[Json]) -> Json:
        ids = [entry.get("id") for entry in entries if isinstance(entry, dict)]
        first, last = (ids[0], ids[-1]) if ids else (None, None)
        return {"data": entries, "has_more": False, "first_id": first, "last_id": last}
