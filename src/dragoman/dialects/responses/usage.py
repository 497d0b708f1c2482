"""Token counts. `input_tokens` include what came from and went to the cache; ours do not."""

from __future__ import annotations

from dragoman.dialects.responses.nodes import JsonObject, extra_of, object_of, wire_fields
from dragoman.model.conversation import Usage
from dragoman.model.naming import to_keep
from dragoman.wire.fields import Fields

_INPUT, _OUTPUT = "input_tokens_details", "output_tokens_details"


def parse_usage(fields: Fields) -> Usage:
    given, answered, total = (_count(fields, name) for name in ("input_tokens", "output_tokens", "total_tokens"))
    before, after = fields.maybe_child(_INPUT), fields.maybe_child(_OUTPUT)
    read, write = (_count(before, "cached_tokens"), _count(before, "cache_write_tokens")) if before else (0, 0)
    thought = _count(after, "reasoning_tokens") if after else 0
    rest = to_keep(fields.rest())
    for name, details in ((_INPUT, before), (_OUTPUT, after)):
        rest[name] = _telling(details.rest()) if details else None
    if total not in {0, given + answered}:
        rest["total_tokens"] = total
    return Usage(max(0, given - read - write), answered, read, write, thought, extra=extra_of(_telling(rest)))


def _count(fields: Fields, name: str) -> int:
    return max(0, fields.integer(name, 0))


def _telling(fields: JsonObject) -> JsonObject:
    """What says something: nulls, zeros and empty objects do not."""
    return {name: value for name, value in fields.items() if value}


def render_usage(usage: Usage) -> JsonObject:
    """All counts with their details: Codex gives the turn up if one of them is missing."""
    given = usage.input + usage.cache_read + usage.cache_write
    extra = wire_fields(usage.extra)
    before = {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write}
    return {
        "input_tokens": given,
        _INPUT: {**before, **object_of(extra.pop(_INPUT, None))},
        "output_tokens": usage.output,
        _OUTPUT: {"reasoning_tokens": usage.reasoning, **object_of(extra.pop(_OUTPUT, None))},
        "total_tokens": given + usage.output,
        **extra,
    }
