"""Token counts. Chat's prompt_tokens include what came from and went to the cache; ours do not."""

from __future__ import annotations

from msgspec import structs

from dragoman.dialects.kit.values import members
from dragoman.dialects.openai.parts import JsonObject, extra_of, wire_fields
from dragoman.model.blocks import Extra, to_keep
from dragoman.model.conversation import Usage
from dragoman.model.usage import count, first_count, inclusive_usage
from dragoman.wire.jsonio import Json

_PROMPT, _COMPLETION = "prompt_tokens_details", "completion_tokens_details"


# Names of one figure at the services that speak Chat, in the details of the prompt and beside the totals. A figure
# that has a second name is only spelt differently: no other dialect loses anything without it.
_READ = ("cached_tokens", "cache_read_input_tokens")
_READ_BESIDE = (
    "cached_tokens",  # Moonshot
    "prompt_cache_hit_tokens",  # DeepSeek
    "num_cached_tokens",  # Mistral
    "cache_read_input_tokens",
)
_WRITE = ("cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens")  # OpenRouter, DashScope
_WRITE_BESIDE = ("cache_creation_input_tokens",)
_SECOND_NAMES = (*_READ_BESIDE, *_WRITE_BESIDE, "prompt_cache_miss_tokens")
_TOTALS = ("prompt_tokens", "completion_tokens", "total_tokens")


def parse_usage(told: Json) -> Usage | None:
    """Read the counts of a reply or a chunk; None where there are none."""
    if not isinstance(told, dict):
        return None
    before, after = members(told.get(_PROMPT)), members(told.get(_COMPLETION))
    prompt, completion, total = (count(told.get(name)) for name in _TOTALS)
    read = first_count(*map(before.get, _READ), *map(told.get, _READ_BESIDE))
    write = first_count(*map(before.get, _WRITE), *map(told.get, _WRITE_BESIDE))
    reasoning = first_count(after.get("reasoning_tokens"), _reasoning_beside(told, completion))
    usage = inclusive_usage(prompt, completion, read, write, reasoning, total=total)
    return structs.replace(usage, extra=_kept(told, usage))


def _reasoning_beside(told: JsonObject, completion: int) -> int:
    """SGLang's figure beside the totals. Perplexity's deep research counts thoughts that are no part of its answer."""
    reasoning = count(told.get("reasoning_tokens"))
    return reasoning if reasoning <= completion else 0


def _kept(told: JsonObject, usage: Usage) -> Extra | None:
    """What a service tells beside the counts that every dialect has; of a second name for one of them, the name."""
    before, after = members(told.get(_PROMPT)), members(told.get(_COMPLETION))
    rest = {name: value for name, value in told.items() if name not in {*_TOTALS, *_SECOND_NAMES}}
    rest[_PROMPT] = _telling({name: value for name, value in before.items() if name not in {*_READ, *_WRITE}})
    rest[_COMPLETION] = _telling({name: value for name, value in after.items() if name != "reasoning_tokens"})
    again: JsonObject = {name: _again(name, usage) for name in _SECOND_NAMES if told.get(name)}
    extra = extra_of({**to_keep(_telling(rest)), **_telling(again)})
    return None if extra is None else structs.replace(extra, spelling=extra.spelling | again.keys())


def _again(name: str, usage: Usage) -> int:
    if name in _WRITE_BESIDE:
        return usage.cache_write
    return usage.cache_read if name in _READ_BESIDE else usage.input + usage.cache_write


def _telling(fields: JsonObject) -> JsonObject:
    """What says something: nulls, zeros and empty objects do not."""
    return {name: value for name, value in fields.items() if value}


def render_usage(usage: Usage) -> JsonObject:
    prompt = usage.input + usage.cache_read + usage.cache_write
    extra = wire_fields(usage.extra)
    before: JsonObject = {"cached_tokens": usage.cache_read, **members(extra.pop(_PROMPT, None))}
    if usage.cache_write:
        before["cache_write_tokens"] = usage.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
        _PROMPT: before,
        _COMPLETION: {"reasoning_tokens": usage.reasoning, **members(extra.pop(_COMPLETION, None))},
        **extra,
    }
