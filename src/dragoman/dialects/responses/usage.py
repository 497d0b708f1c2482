"""Token counts. `input_tokens` include what came from and went to the cache; ours do not."""

from __future__ import annotations

from dragoman.dialects.responses.nodes import JsonObject, extra_of, object_of, wire_fields
from dragoman.model.blocks import to_keep
from dragoman.model.conversation import Usage
from dragoman.model.usage import count, inclusive_usage
from dragoman.wire.jsonio import Json

_INPUT, _OUTPUT = "input_tokens_details", "output_tokens_details"
_TOTALS = ("input_tokens", "output_tokens", "total_tokens")
_CACHES = ("cached_tokens", "cache_write_tokens")


def parse_usage(told: Json) -> Usage | None:
    """Read the counts of a response; None where there are none."""
    if not isinstance(told, dict):
        return None
    before, after = object_of(told.get(_INPUT)), object_of(told.get(_OUTPUT))
    given, answered, total = (count(told.get(name)) for name in _TOTALS)
    read, write = count(before.get("cached_tokens")), count(before.get("cache_write_tokens"))
    rest = {name: value for name, value in told.items() if name not in _TOTALS}
    rest[_INPUT] = _telling({name: value for name, value in before.items() if name not in _CACHES})
    rest[_OUTPUT] = _telling({name: value for name, value in after.items() if name != "reasoning_tokens"})
    extra = extra_of(to_keep(_telling(rest)))
    thought = count(after.get("reasoning_tokens"))
    return inclusive_usage(given, answered, read, write, thought, total=total, extra=extra)


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
