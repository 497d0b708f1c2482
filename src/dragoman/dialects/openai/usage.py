"""Token counts. Chat's prompt_tokens include what came from and went to the cache; ours do not."""

from __future__ import annotations

from dragoman.dialects.openai.parts import JsonObject, extra_of, wire_fields
from dragoman.model.conversation import Usage
from dragoman.model.naming import to_keep
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

_PROMPT, _COMPLETION = "prompt_tokens_details", "completion_tokens_details"


def plain_usage(told: JsonObject) -> Usage | None:
    """Counts that come without details; None for all others."""
    prompt, completion, total = map(told.get, ("prompt_tokens", "completion_tokens", "total_tokens"))
    if len(told) != 3 or type(prompt) is not int or type(completion) is not int or type(total) is not int:
        return None
    return Usage(prompt, completion) if prompt >= 0 and completion >= 0 and total == prompt + completion else None


def parse_usage(fields: Fields) -> Usage:
    prompt, completion = _count(fields, "prompt_tokens"), _count(fields, "completion_tokens")
    total = _count(fields, "total_tokens")
    before, after = fields.maybe_child(_PROMPT), fields.maybe_child(_COMPLETION)
    read, write = (_count(before, "cached_tokens"), _count(before, "cache_write_tokens")) if before else (0, 0)
    for elsewhere in ("cached_tokens", "prompt_cache_hit_tokens"):  # Kimi, DeepSeek
        read = read or _peeked(fields, elsewhere)
    thought = _count(after, "reasoning_tokens") if after else 0
    rest = to_keep(fields.rest())
    for name, details in ((_PROMPT, before), (_COMPLETION, after)):
        rest[name] = _telling(details.rest()) if details else None
    if total not in {0, prompt + completion}:
        rest["total_tokens"] = total
    return Usage(max(0, prompt - read - write), completion, read, write, thought, extra=extra_of(_telling(rest)))


def _count(fields: Fields, name: str) -> int:
    return max(0, fields.integer(name, 0))


def _peeked(fields: Fields, name: str) -> int:
    value = fields.peek(name)
    return value if type(value) is int and value > 0 else 0


def _telling(fields: JsonObject) -> JsonObject:
    """What says something: nulls, zeros and empty objects do not."""
    return {name: value for name, value in fields.items() if value}


def render_usage(usage: Usage) -> JsonObject:
    prompt = usage.input + usage.cache_read + usage.cache_write
    extra = wire_fields(usage.extra)
    before: JsonObject = {"cached_tokens": usage.cache_read, **_object(extra.pop(_PROMPT, None))}
    if usage.cache_write:
        before["cache_write_tokens"] = usage.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
        _PROMPT: before,
        _COMPLETION: {"reasoning_tokens": usage.reasoning, **_object(extra.pop(_COMPLETION, None))},
        **extra,
    }


def _object(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}
