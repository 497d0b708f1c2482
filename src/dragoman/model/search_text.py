"""The text of a search of the web, for models that get it as a tool result or as text of its turn. Pure.

Pages come from strangers. Their text is data: it is cut to a length, its control characters are removed, and it cannot
end the element around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dragoman.model.blocks import Opaque, WebPage, WebResults, WebSearch
from dragoman.model.parts import PartText
from dragoman.wire import jsonio

MAX_PAGE, MAX_ALL = 2_000, 20_000  # characters of the text of one page, and of all of them
_LONGEST_URL, _LONGEST_TITLE = 2_000, 300
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ELEMENT = re.compile(r"<(?=/?\s*search_results)", re.IGNORECASE)
ERRORS = {
    "invalid_tool_input": "the query is not valid",
    "unavailable": "the search is not available now",
    "max_uses_exceeded": "no more searches are allowed in this reply",
    "too_many_requests": "the search service gets too many requests",
    "query_too_long": "the query is too long",
    "request_too_large": "the request is too large",
}


def clean_text(text: str, limit: int) -> str:
    """Return text of a page without control characters, cut to a number of characters."""
    return _ELEMENT.sub("&lt;", _CONTROL.sub(" ", text[: 4 * limit])).strip()[:limit]


def clean_page(page: WebPage) -> WebPage:
    """Return a page whose texts are clean and short."""
    url = _CONTROL.sub("", page.url)[:_LONGEST_URL]
    title = " ".join(clean_text(page.title, _LONGEST_TITLE).split())
    return WebPage(url, title, clean_text(page.text, MAX_PAGE), clean_text(page.age, 40))


def results_text(results: WebResults) -> str:
    """Return the results of a search as a model reads them in a tool result."""
    if results.error:
        return f"The search failed: {ERRORS.get(results.error, ERRORS['unavailable'])}."
    if not results.pages:
        return "The search found no pages."
    pages = "\n\n".join(_page_texts(results.pages))
    return f"<search_results>\n{pages}\n</search_results>"


def _page_texts(pages: Iterable[WebPage]) -> Iterator[str]:
    left = MAX_ALL
    for number, page in enumerate(pages, 1):
        heading = f"[{number}] {page.title or page.url}\n{page.url}" + (f" ({page.age})" if page.age else "")
        words = page.text[:left]
        left -= len(words)
        yield f"{heading}\n{words}" if words else heading


def search_text(block: Opaque) -> PartText | None:
    """Return the text of a block of a search that no service can read; None for any other block."""
    if block.data:
        return None
    texts = [text for effect in block.effects if (text := _effect_text(effect))]
    return PartText("\n".join(texts)) if texts else None


def _effect_text(effect: object) -> str:
    match effect:
        case WebSearch(query=query):
            return f"(web_search was used with {jsonio.encode_to_text({'query': query})})"
        case WebResults():
            return f"(web_search gave: {results_text(effect)})"
        case _:
            return ""
