"""Token counts, both directions: a prompt includes what was cached, an answer excludes its thoughts."""

from __future__ import annotations

from dragoman.dialects.gemini.nodes import extra_of, names, own_fields, read, with_extra
from dragoman.errors import MissingField
from dragoman.model.conversation import Usage
from dragoman.model.naming import to_keep
from dragoman.wire.jsonio import Json

_TOOLS = "toolUsePromptTokenCount"
_COUNTED = frozenset({_TOOLS})  # kept apart for home; everywhere else it is among the input
_COUNTS = names(
    "promptTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
    "cachedContentTokenCount",
    "totalTokenCount",
    _TOOLS,
)


def parse_usage(value: Json, at: str = "usageMetadata") -> Usage:
    fields = read(value, at, MissingField, _COUNTS)
    prompt, cached = fields.integer("promptTokenCount", 0), fields.integer("cachedContentTokenCount", 0)
    answer, thoughts = fields.integer("candidatesTokenCount", 0), fields.integer("thoughtsTokenCount", 0)
    tools = fields.integer(_TOOLS, 0)
    fields.any("totalTokenCount")
    rest = to_keep(fields.rest())
    if tools:
        rest[_TOOLS] = tools
    extra = extra_of(rest, _COUNTED)
    return Usage(max(prompt - cached, 0) + tools, answer + thoughts, cached, 0, thoughts, extra=extra)


def render_usage(usage: Usage) -> dict[str, Json]:
    kept = own_fields(usage.extra).get(_TOOLS)
    tools = kept if type(kept) is int else 0
    prompt = max(usage.input - tools, 0) + usage.cache_read + usage.cache_write
    answer = max(usage.output - usage.reasoning, 0)
    body: dict[str, Json] = {"promptTokenCount": prompt, "candidatesTokenCount": answer}
    if usage.cache_read:
        body["cachedContentTokenCount"] = usage.cache_read
    if usage.reasoning:
        body["thoughtsTokenCount"] = usage.reasoning
    body["totalTokenCount"] = prompt + tools + answer + usage.reasoning
    return with_extra(body, usage.extra)
