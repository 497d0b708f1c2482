"""Sources of an answer: `annotations` of a message or a delta, and Perplexity's lists beside the choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dragoman.dialects.openai.parts import JsonObject
from dragoman.dialects.openai.settings import FAMILY
from dragoman.model.blocks import Opaque, Source
from dragoman.wire.jsonio import Json

BESIDE = ("citations", "search_results")  # Perplexity's: a Chat client gets them with the envelope


def parse_annotations(annotations: Json) -> list[Opaque]:
    """Read the annotations of a message; those without an address mean something to this family alone."""
    return [_annotation(each) for each in annotations if each] if isinstance(annotations, list) else []


def _annotation(annotation: Json) -> Opaque:
    told = annotation if isinstance(annotation, dict) else {}
    kind, inner = told.get("type"), told.get("url_citation")
    fields = inner if isinstance(inner, dict) else told
    start, end = (each if type(each) is int else None for each in map(fields.get, ("start_index", "end_index")))
    source = _source(fields, start, end)
    return Opaque(FAMILY, annotation, kind if isinstance(kind, str) else "annotation", source=source)


def _source(fields: JsonObject, start: int | None = None, end: int | None = None) -> Source | None:
    url, title, quote = (_text(fields, *names) for names in (("url",), ("title",), ("content", "snippet")))
    return Source(url, title, quote, start, end) if url else None


def _text(fields: JsonObject, *names: str) -> str:
    return next((value for name in names if isinstance(value := fields.get(name), str)), "")


def parse_sources(citations: Json, results: Json) -> list[Opaque]:
    """Read the lists of Perplexity: addresses, and for some of them title and snippet. Each address counts once."""
    found: dict[str, Source] = {}
    for result in results if isinstance(results, list) else ():
        if isinstance(result, dict) and (source := _source(result)) is not None:
            found.setdefault(source.url, source)
    for url in citations if isinstance(citations, list) else ():
        if isinstance(url, str) and url:
            found.setdefault(url, Source(url))
    return [Opaque(FAMILY, None, "source", source=source) for source in found.values()]


def render_annotations(citations: Iterable[Opaque]) -> Sequence[JsonObject]:
    """Write citations: our own as they came, those of other families as `url_citation`."""
    rendered: list[JsonObject] = []
    for citation in citations:
        source = citation.source
        if citation.family == FAMILY:
            if isinstance(citation.data, dict):
                rendered.append(citation.data)
        elif source is not None:
            place: JsonObject = {"start_index": source.start or 0, "end_index": source.end or 0}
            quote: JsonObject = {"content": source.quote} if source.quote else {}
            inner: JsonObject = {**place, "url": source.url, "title": source.title, **quote}
            rendered.append({"type": "url_citation", "url_citation": inner})
    return rendered
