"""Searches of the web in Chat Completions: the field of OpenAI's search models, and OpenRouter's tool. Pure.

OpenAI's search models search for every request, as `web_search_options` says. OpenRouter has a tool for any model. Both
only cite what they have found (`annotations`); the searches are not in the reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from dragoman.dialects.kit.values import items, members, text
from dragoman.dialects.openai.blocks import FAMILY
from dragoman.model.blocks import Location, Opaque, SearchOptions, WebSearch
from dragoman.model.capabilities import WebSearchSupport
from dragoman.model.conversation import ToolSpec
from dragoman.wire.jsonio import Json

# How the upstream searches; auto: by the field for models whose names say that they search.
SearchForm: TypeAlias = Literal["auto", "field", "openrouter", "none"]

FIELD = "web_search_options"
_TOOL = "openrouter:web_search"
_SUPPORT: Mapping[SearchForm, WebSearchSupport] = {
    "field": WebSearchSupport(frozenset({"location", "context_size"})),
    "openrouter": WebSearchSupport(frozenset({"allowed_domains", "blocked_domains", "location", "context_size"})),
}
_KNOWN = frozenset({"allowed_domains", "excluded_domains", "user_location", "search_context_size"})
_PLACES = ("city", "region", "country", "timezone")


def find_form(form: SearchForm, model: str) -> SearchForm:
    """Return how a model searches the web: `field`, `openrouter` or `none`."""
    if form != "auto":
        return form
    return "field" if model.endswith("-search-api") or "-search-preview" in model else "none"


def search_support(form: SearchForm, model: str) -> WebSearchSupport | None:
    """Return how a model searches the web; None if it does not."""
    return _SUPPORT.get(find_form(form, model))


def declared_search(kind: str, tool: Mapping[str, Json]) -> tuple[WebSearch, ...]:
    """Return the effect of OpenRouter's tool; none for another one."""
    return (WebSearch(options=_options(members(tool.get("parameters")))),) if kind == _TOOL else ()


def requested_search(field: Json) -> tuple[Opaque, ...]:
    """Return the value of `web_search_options` as a tool that searches the web; nothing if it is not an object."""
    if not isinstance(field, dict):
        return ()
    options = _options({**field, "user_location": members(field.get("user_location")).get("approximate")})
    return (Opaque(FAMILY, {}, FIELD, effects=(WebSearch(options=options),), at=Location(FIELD)),)


def _options(fields: Mapping[str, Json]) -> SearchOptions:
    location = members(fields.get("user_location"))
    return SearchOptions(
        None,
        tuple(each for each in items(fields.get("allowed_domains")) if isinstance(each, str)),
        tuple(each for each in items(fields.get("excluded_domains")) if isinstance(each, str)),
        {name: value for name in _PLACES if isinstance(value := location.get(name), str)},
        text(fields.get("search_context_size")),
        tuple(name for name in fields if name not in _KNOWN),
    )


def written_tools(tools: Sequence[ToolSpec | Opaque], form: SearchForm) -> list[ToolSpec | Opaque]:
    """Return the tools to write in `tools`, without those that `web_search_options` stands for."""
    return [tool for tool in tools if not (isinstance(tool, Opaque) and _is_field(tool, form))]


def _is_field(tool: Opaque, form: SearchForm) -> bool:
    is_search = tool.family == FAMILY and not tool.data and any(isinstance(each, WebSearch) for each in tool.effects)
    return is_search and (form != "openrouter" or tool.kind == FIELD)


def render_search(options: SearchOptions) -> dict[str, Json]:
    """Write OpenRouter's tool."""
    parameters = _render_options(options)
    if options.location:
        parameters["user_location"] = {"type": "approximate", **options.location}
    return {"type": _TOOL, "parameters": parameters} if parameters else {"type": _TOOL}


def _render_options(options: SearchOptions) -> dict[str, Json]:
    fields: dict[str, Json] = {}
    if options.allowed_domains:  # The two lists cannot be used together.
        fields["allowed_domains"] = [*options.allowed_domains]
    elif options.blocked_domains:
        fields["excluded_domains"] = [*options.blocked_domains]
    if options.context_size:
        fields["search_context_size"] = options.context_size
    return fields


def request_fields(tools: Sequence[ToolSpec | Opaque], form: SearchForm) -> dict[str, Json]:
    """Return `web_search_options` for a search of another family."""
    for tool in tools:
        if isinstance(tool, Opaque) and _is_field(tool, form) and tool.kind != FIELD:
            for effect in tool.effects:
                if isinstance(effect, WebSearch):
                    return {FIELD: _render_field(effect.options)}
    return {}


def _render_field(options: SearchOptions) -> Json:
    fields: dict[str, Json] = {"search_context_size": options.context_size} if options.context_size else {}
    if options.location:
        fields["user_location"] = {"type": "approximate", "approximate": {**options.location}}
    return fields
