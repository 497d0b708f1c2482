"""Token counts, both directions: a prompt includes what was cached, an answer excludes its thoughts."""

from __future__ import annotations

from dragoman.dialects.gemini.nodes import extra_of, names, own_fields, with_extra
from dragoman.model.blocks import to_keep
from dragoman.model.conversation import Usage
from dragoman.model.usage import LARGEST, count, inclusive_usage
from dragoman.wire.jsonio import Json

_TOOLS = "toolUsePromptTokenCount"
_COUNTED = frozenset({_TOOLS})  # kept apart for home; everywhere else it is among the input
_NAMES = (
    "promptTokenCount",
    "cachedContentTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
    _TOOLS,
    "totalTokenCount",
)
_COUNTS = names(*_NAMES)


def parse_usage(value: Json) -> Usage | None:
    """Read the counts of a response; None where there are none."""
    if not isinstance(value, dict):
        return None
    told = {_COUNTS.get(name, name): each for name, each in value.items()}
    prompt, cached, answer, thoughts, tools, total = (count(told.pop(name, None)) for name in _NAMES)
    output = answer + thoughts
    if thoughts and total == prompt + tools + answer:  # here the answer's count includes its thoughts
        output = answer
    rest = to_keep(told)
    if tools := min(tools, LARGEST - prompt):
        rest[_TOOLS] = tools
    extra = extra_of(rest, _COUNTED)
    return inclusive_usage(prompt + tools, output, min(cached, prompt), 0, thoughts, extra=extra)


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
