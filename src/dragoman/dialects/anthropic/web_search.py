"""Parse and render searches of the web in Anthropic's form: the tool that declares them, and their blocks. Pure.

A search is two blocks: `server_tool_use` with the query, and `web_search_tool_result` with the pages or an error. The
`encrypted_content` of a result can be read only by the service that made it. In a result that was translated from
another dialect, Dragoman writes the text of the page there, and reads it again when the client sends the conversation.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from dragoman.dialects.kit.values import items, members, text
from dragoman.model.blocks import Block, Effect, Opaque, SearchOptions, WebPage, WebResults, WebSearch
from dragoman.model.capabilities import WebSearchSupport
from dragoman.wire.jsonio import Json

SEARCH, CALL, RESULT = "web_search", "server_tool_use", "web_search_tool_result"
SUPPORT = WebSearchSupport(
    frozenset({"max_uses", "allowed_domains", "blocked_domains", "location"}), has_blocks=True, is_forced_by_any=True
)
OURS = "dragoman1."  # the start of what is not encrypted by Anthropic
_TOOL = "web_search_"  # the start of the tool's type; the rest is a date
_NEWEST = "web_search_20250305"  # which every model has
_OUR_ID = "srvtoolu_dgm_"  # the start of the id of a search that Anthropic's service did not make
_KNOWN = frozenset({"type", "name", "max_uses", "allowed_domains", "blocked_domains", "user_location"})
_PLACES = ("city", "region", "country", "timezone")
_ERRORS = frozenset(
    {"invalid_tool_input", "max_uses_exceeded", "too_many_requests", "query_too_long", "request_too_large"}
)


def declared_web_search(kind: str, data: Mapping[str, Json]) -> tuple[WebSearch, ...]:
    """Return the effect of a tool of this type: a search of the web, or none."""
    if not kind.startswith(_TOOL):
        return ()
    places, uses = members(data.get("user_location")), data.get("max_uses")
    options = SearchOptions(
        uses if type(uses) is int else None,
        _domains(data.get("allowed_domains")),
        _domains(data.get("blocked_domains")),
        {name: value for name in _PLACES if isinstance(value := places.get(name), str)},
        others=tuple(name for name in data if name not in _KNOWN),
    )
    return (WebSearch(options=options),)


def _domains(value: Json) -> tuple[str, ...]:
    return tuple(each for each in items(value) if isinstance(each, str))


def web_search_effects(kind: str, data: Mapping[str, Json]) -> tuple[Effect, ...]:
    """Return the effect of a block of a search of the web; most blocks have none."""
    if kind == CALL and data.get("name") == SEARCH:
        return (WebSearch(text(data.get("id")), text(members(data.get("input")).get("query"))),)
    if kind == RESULT:
        content = data.get("content")
        pages = tuple(_page(each) for each in items(content) if isinstance(each, dict))
        return (WebResults(text(data.get("tool_use_id")), pages, text(members(content).get("error_code"))),)
    return ()


def _page(result: Mapping[str, Json]) -> WebPage:
    url, title, age, encrypted = (text(result.get(name)) for name in ("url", "title", "page_age", "encrypted_content"))
    return WebPage(url, title, _decode_own_content(encrypted), age)


def _decode_own_content(encrypted: str) -> str:
    """Return the text of a result that is ours; empty for one that Anthropic has encrypted."""
    if not encrypted.startswith(OURS):
        return ""
    try:
        return base64.b64decode(encrypted.removeprefix(OURS), validate=True).decode("utf-8", "surrogatepass")
    except ValueError:
        return ""  # The client has changed it.


def is_our_search(data: Mapping[str, Json]) -> bool:
    """Return whether the block is of a search that Anthropic's service did not make, and so does not know."""
    return text(data.get("id") or data.get("tool_use_id")).startswith(_OUR_ID)


def is_translated_search(block: Block) -> bool:
    """Return whether the block is a search that another service has made in a reply."""
    return isinstance(block, Opaque) and not block.data and any(isinstance(each, WebSearch) for each in block.effects)


def render_web_search(effect: Effect, *, is_tool: bool = False) -> dict[str, Json]:
    """Write the tool, or a block of a search, from its effect; empty for another effect."""
    match effect:
        case WebSearch(options=options) if is_tool:
            return {"type": _NEWEST, "name": SEARCH, **_render_options(options)}
        case WebSearch(search, query):
            return {"type": CALL, "id": _search_id(search), "name": SEARCH, "input": {"query": query}}
        case WebResults(search, pages, error):
            content: Json = [*map(_render_page, pages)]
            if error:
                code = error if error in _ERRORS else "unavailable"
                content = {"type": "web_search_tool_result_error", "error_code": code}
            return {"type": RESULT, "tool_use_id": _search_id(search), "content": content}
        case _:
            return {}


def _render_options(options: SearchOptions) -> dict[str, Json]:
    body: dict[str, Json] = {}
    if options.max_uses is not None:
        body["max_uses"] = options.max_uses
    if options.allowed_domains:  # The service refuses both lists together.
        body["allowed_domains"] = [*options.allowed_domains]
    elif options.blocked_domains:
        body["blocked_domains"] = [*options.blocked_domains]
    if options.location:
        body["user_location"] = {"type": "approximate", **options.location}
    return body


def _render_page(page: WebPage) -> Json:
    encrypted = OURS + base64.b64encode(page.text.encode("utf-8", "surrogatepass")).decode()
    age = page.age or None
    return {
        "type": "web_search_result",
        "url": page.url,
        "title": page.title or _host(page.url),
        "encrypted_content": encrypted,
        "page_age": age,
    }


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or url
    except ValueError:
        return url


def _search_id(search: str) -> str:
    return search if search.startswith(_OUR_ID) else _OUR_ID + re.sub(r"[^A-Za-z0-9_]", "_", search)
