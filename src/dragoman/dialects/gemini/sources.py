"""Sources of a reply: `groundingMetadata` and `citationMetadata` of a candidate, as citations and as a search. Pure.

A candidate names its sources once, at its end. Other families cite a source in the text that it supports, and have
blocks for a search of the web: the decoder makes one for them, which this family does not write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dragoman.dialects.gemini.blocks import FAMILY
from dragoman.dialects.kit.values import items, members, objects, text
from dragoman.model.blocks import Block, CitationSource, Opaque, WebPage, WebResults, WebSearch
from dragoman.wire.jsonio import Json

FIELDS = ("groundingMetadata", "citationMetadata")
SEARCH_TOOLS = frozenset({"googleSearch", "googleSearchRetrieval"})
_SEARCH = "groundingMetadata"  # the kind of the block for a search


def parse_sources(candidate: dict[str, Json]) -> list[Opaque]:
    """Return the URLs that a candidate names, each once, as citations of its text."""
    grounding, citations = (members(candidate.get(name)) for name in FIELDS)
    quotes = _quotes(grounding)
    chunks = [
        (inner, quotes.get(index, ""))
        for index, (chunk, _) in enumerate(objects(grounding.get("groundingChunks"), ""))
        for inner in chunk.values()
    ]
    entries = items(citations.get("citationSources") or citations.get("citations"))
    sources: dict[str, CitationSource] = {}
    for fields, quote in (*chunks, *((entry, "") for entry in entries)):
        url, title = (text(members(fields).get(name)) for name in ("uri", "title"))
        if url:
            sources.setdefault(url, CitationSource(url, title, quote))
    return [Opaque(FAMILY, None, "source", source=source) for source in sources.values()]


def _quotes(grounding: Mapping[str, Json]) -> dict[int, str]:
    """Return the first text that each chunk supports, by the index of the chunk."""
    quotes: dict[int, str] = {}
    for support, _ in objects(grounding.get("groundingSupports"), ""):
        quote = text(members(support.get("segment")).get("text"))
        for index in items(support.get("groundingChunkIndices")):
            if type(index) is int:
                quotes.setdefault(index, quote)
    return quotes


def parse_search(candidate: Mapping[str, Json]) -> Opaque | None:
    """Return the search that a candidate is grounded in, as a block; None if it has none."""
    grounding = members(candidate.get(FIELDS[0]))
    queries = [each for each in items(grounding.get("webSearchQueries")) if isinstance(each, str)]
    if not queries:
        return None
    webs = [members(chunk.get("web")) for chunk, _ in objects(grounding.get("groundingChunks"), "")]
    pages = tuple(WebPage(url, text(web.get("title"))) for web in webs if (url := text(web.get("uri"))))
    effects = (WebSearch("", "; ".join(queries)), WebResults("", pages))
    return Opaque(FAMILY, {}, _SEARCH, is_redundant=True, effects=effects)


def is_search(block: Block) -> bool:
    """Return whether a block is a search without data: `render_sources` writes it."""
    return isinstance(block, Opaque) and not block.data and any(map(_is_part_of_search, block.effects))


def _is_part_of_search(effect: object) -> bool:
    return isinstance(effect, WebSearch | WebResults)


def render_sources(citations: Iterable[Opaque], searches: Iterable[Opaque] = ()) -> dict[str, Json]:
    """Render citations and searches of other families as `groundingMetadata`; {} if there are none.

    `groundingSupports` is left out: it needs byte ranges, which other families do not send.
    """
    effects = [effect for block in searches for effect in block.effects]
    queries: list[Json] = [each.query for each in effects if isinstance(each, WebSearch) and each.query]
    titles = {each.source.url: each.source.title for each in citations if each.source and each.family != FAMILY}
    for effect in effects:
        for page in effect.pages if isinstance(effect, WebResults) else ():
            titles[page.url] = titles.get(page.url) or page.title
    chunks: list[Json] = [{"web": {"uri": url, "title": title}} for url, title in titles.items()]
    grounding: dict[str, Json] = {"webSearchQueries": queries} if queries else {}
    grounding |= {"groundingChunks": chunks} if chunks else {}
    return {_SEARCH: grounding} if grounding else {}
