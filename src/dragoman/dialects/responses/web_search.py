"""Searches of the web in the form of Responses: the tool that declares them, and their item, as effects. Pure.

One item, `web_search_call`, has the query and, if the request asks for it, the addresses of the pages. It has no titles
and no text of them: the texts of the reply cite pages with their titles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dragoman.dialects.kit.values import items, members, text
from dragoman.model.blocks import Effect, Opaque, SearchOptions, WebPage, WebResults, WebSearch
from dragoman.model.capabilities import WebSearchSupport
from dragoman.model.conversation import ToolSpec
from dragoman.wire.jsonio import Json

CALL = "web_search_call"
SUPPORT = WebSearchSupport(
    frozenset({"max_uses", "allowed_domains", "location", "context_size"}), has_blocks=True, is_forced_by_any=True
)
SOURCES = "web_search_call.action.sources"  # in `include`: the item has the addresses of the pages
OUR_PREFIX = "ws_dgm_"  # the start of the id of a search that OpenAI's service did not make
_TOOL = "web_search"  # also the start of dated and older types
_NOT_TOOLS = frozenset({CALL})
_KNOWN = frozenset({"type", "filters", "user_location", "search_context_size"})
_PLACES = ("city", "region", "country", "timezone")


def declared_web_search(data: Mapping[str, Json]) -> tuple[WebSearch, ...]:
    """Return the effect of a tool that searches the web; none for another tool."""
    kind = text(data.get("type"))
    if not kind.startswith(_TOOL) or kind in _NOT_TOOLS:
        return ()
    domains = items(members(data.get("filters")).get("allowed_domains"))
    location = members(data.get("user_location"))
    options = SearchOptions(
        allowed_domains=tuple(each for each in domains if isinstance(each, str)),
        location={name: value for name in _PLACES if isinstance(value := location.get(name), str)},
        context_size=text(data.get("search_context_size")),
        others=tuple(name for name in data if name not in _KNOWN),
    )
    return (WebSearch(options=options),)


def web_search_effects(data: Mapping[str, Json]) -> tuple[Effect, ...]:
    """Return the effects of an item of a search: the search and its pages. Opening a page has no counterpart."""
    action = members(data.get("action"))
    if action.get("type") != "search":
        return ()
    search, queries = text(data.get("id")), [each for each in items(action.get("queries")) if isinstance(each, str)]
    query = text(action.get("query")) or "; ".join(queries)
    urls = [text(members(source).get("url")) for source in items(action.get("sources"))]
    error = "unavailable" if data.get("status") == "failed" else ""
    return (WebSearch(search, query), WebResults(search, tuple(WebPage(url) for url in urls if url), error))


def is_our_search(data: Mapping[str, Json]) -> bool:
    """Return whether the item is of a search that OpenAI's service did not make, and so does not know."""
    return data.get("type") == CALL and text(data.get("id")).startswith(OUR_PREFIX)


def item_id(search: str) -> str:
    """Return the id of the item for a search of another family."""
    return search if search.startswith(OUR_PREFIX) else OUR_PREFIX + re.sub(r"[^A-Za-z0-9_]", "_", search)


def is_translated_search(tool: ToolSpec | Opaque) -> bool:
    """Return whether the tool is a search of the web from another family, which has no data of this one."""
    return isinstance(tool, Opaque) and not tool.data and any(isinstance(each, WebSearch) for each in tool.effects)


def render_tool(options: SearchOptions) -> dict[str, Json]:
    """Write the tool."""
    body: dict[str, Json] = {"type": _TOOL}
    if options.allowed_domains:
        body["filters"] = {"allowed_domains": [*options.allowed_domains]}
    if options.location:
        body["user_location"] = {"type": "approximate", **options.location}
    if options.context_size:
        body["search_context_size"] = options.context_size
    return body


def request_fields(tools: Sequence[ToolSpec | Opaque], extra: Mapping[str, Json]) -> dict[str, Json]:
    """Return the fields of a request that a search from another family needs; none without one."""
    searches = [
        each for tool in tools if isinstance(tool, Opaque) and is_translated_search(tool) for each in tool.effects
    ]
    options = next((each.options for each in searches if isinstance(each, WebSearch)), None)
    if options is None:
        return {}
    include = items(extra.get("include"))
    fields: dict[str, Json] = {"include": include if SOURCES in include else [*include, SOURCES]}
    if options.max_uses is not None and "max_tool_calls" not in extra:
        fields["max_tool_calls"] = options.max_uses
    return fields


def render_call(search: WebSearch, results: WebResults | None, *, shows_sources: bool) -> dict[str, Json]:
    """Write the item of a search, without its id; without results it is still in progress."""
    action: dict[str, Json] = {"type": "search", "query": search.query}
    if results is not None and shows_sources:
        action["sources"] = [{"type": "url", "url": page.url} for page in results.pages]
    status = "in_progress" if results is None else "failed" if results.error else "completed"
    return {"type": CALL, "status": status, "action": action}
