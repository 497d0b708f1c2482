"""Sources of an answer: `groundingMetadata` and `citationMetadata` of a candidate."""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.dialects.gemini.nodes import FAMILY
from dragoman.model.blocks import Opaque, Source
from dragoman.wire.jsonio import Json

FIELDS = ("groundingMetadata", "citationMetadata")


def parse_sources(candidate: dict[str, Json]) -> list[Opaque]:
    """Read the addresses that a candidate names, each once. A Gemini client gets them with the candidate itself."""
    found: dict[str, Source] = {}
    for fields in (*_grounding(candidate.get("groundingMetadata")), *_citations(candidate.get("citationMetadata"))):
        url, title = fields.get("uri"), fields.get("title")
        if isinstance(url, str) and url:
            found.setdefault(url, Source(url, title if isinstance(title, str) else ""))
    return [Opaque(FAMILY, None, "source", source=source) for source in found.values()]


def _grounding(metadata: Json) -> list[dict[str, Json]]:
    chunks = metadata.get("groundingChunks") if isinstance(metadata, dict) else None
    kinds = [chunk for chunk in chunks if isinstance(chunk, dict)] if isinstance(chunks, list) else []
    return [inner for chunk in kinds for inner in chunk.values() if isinstance(inner, dict)]


def _citations(metadata: Json) -> list[dict[str, Json]]:
    if not isinstance(metadata, dict):
        return []
    entries = metadata.get("citationSources") or metadata.get("citations")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def render_sources(citations: Iterable[Opaque]) -> dict[str, Json]:
    """Write another family's citations as the field of a candidate; nothing, if there are none.

    `groundingSupports` say which bytes of the answer a source is for, which other families do not tell.
    """
    sources = {each.source.url: each.source for each in citations if each.source is not None and each.family != FAMILY}
    chunks: list[Json] = [{"web": {"uri": each.url, "title": each.title}} for each in sources.values()]
    return {"groundingMetadata": {"groundingChunks": chunks}} if chunks else {}
