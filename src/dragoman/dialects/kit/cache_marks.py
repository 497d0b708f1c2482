"""Parse and render prompt-cache marks: `cache_control` of Anthropic, and `prompt_cache_breakpoint` of OpenAI. Pure.

A mark of an unknown form stays among the extra fields of its node.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from msgspec import structs

from dragoman.dialects.kit.values import ExtraFields
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import CacheBreakpoint, CacheTtl
from dragoman.model.capabilities import CacheMarks, MarkPlace
from dragoman.model.conversation import to_extra_names
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

CACHE_CONTROL, BREAKPOINT = "cache_control", "prompt_cache_breakpoint"
CLAUDE_TTLS: tuple[CacheTtl, CacheTtl] = ("5m", "1h")
OPENAI_TTLS: tuple[CacheTtl, CacheTtl] = ("30m", "12h")
MAX_BREAKPOINTS = 80  # OpenAI looks for the latest 80 in its cache, and writes the latest three or four
# Which marks an upstream of OpenAI's dialects gets from clients of other families; auto: by the name of the model.
BreakpointChoice: TypeAlias = Literal["auto", "on", "off"]
_GPT = re.compile(r"gpt-(\d+)(?:\.(\d+))?(?![\d.])")
_FIRST_GPT = (5, 6)  # the first model that accepts breakpoints


def accepts_breakpoints(choice: str, model: str) -> bool:
    """Return whether an upstream of OpenAI accepts breakpoints for this model; `auto` goes by the model's name."""
    return choice == "on" or (choice == "auto" and is_gpt_since(model, *_FIRST_GPT))


def is_gpt_since(model: str, major: int, minor: int) -> bool:
    """Return whether the model's name is that of a GPT of this version or a later one."""
    found = _GPT.match(model)
    return found is not None and (int(found[1]), int(found[2] or 0)) >= (major, minor)


CLAUDE_MARKS = CacheMarks(4, CLAUDE_TTLS, frozenset(CLAUDE_TTLS))


def openai_marks(choice: str, model: str, allows_long: bool) -> CacheMarks:
    """Return the marks of Responses: only parts of the input have them."""
    count = MAX_BREAKPOINTS if accepts_breakpoints(choice, model) else 0
    return CacheMarks(count, OPENAI_TTLS, frozenset(OPENAI_TTLS), frozenset(), is_own=True, allows_long=allows_long)


def chat_marks(choice: str, model: str, allows_long: bool) -> CacheMarks:
    """Return the marks of Chat: breakpoints, or with the choice `cache_control` those of Anthropic."""
    known, places = frozenset({*CLAUDE_TTLS, *OPENAI_TTLS}), frozenset[MarkPlace]({"tools", "assistant"})
    if choice == CACHE_CONTROL:
        return CacheMarks(4, CLAUDE_TTLS, known, places)
    marks = openai_marks(choice, model, allows_long)
    return structs.replace(marks, known_ttls=known, places=places)


def take_cache_control(fields: Fields, extras: ExtraFields) -> CacheBreakpoint | None:
    """Take the `cache_control` of a node if it has a known form."""
    mark = fields.peek(CACHE_CONTROL)
    if mark is None:
        fields.any(CACHE_CONTROL)
        return None
    if not isinstance(mark, dict) or mark.get("type") != "ephemeral" or mark.get("ttl") not in (None, *CLAUDE_TTLS):
        return None
    fields.any(CACHE_CONTROL)
    rest = {name: value for name, value in mark.items() if name not in ("type", "ttl")}
    return CacheBreakpoint("1h" if mark.get("ttl") == "1h" else "5m", extras.extra_of(to_extra_names(rest)))


def take_breakpoint(fields: Fields, extras: ExtraFields) -> CacheBreakpoint | None:
    """Take the `prompt_cache_breakpoint` of a content part if it has a known form.

    A mark without a lifetime has that of the request, usually 30m. A mark that names 30m keeps the field.
    """
    mark = fields.peek(BREAKPOINT)
    if mark is None:
        fields.any(BREAKPOINT)
        return None
    if not isinstance(mark, dict) or mark.get("mode") != "explicit" or mark.get("ttl") not in (None, *OPENAI_TTLS):
        return None
    fields.any(BREAKPOINT)
    rest = {name: value for name, value in mark.items() if name != "mode" and (name, value) != ("ttl", "12h")}
    extra = extras.extra_of(to_extra_names(rest), frozenset({"ttl"}) if "ttl" in rest else frozenset())
    return CacheBreakpoint("12h" if mark.get("ttl") == "12h" else "30m", extra)


def cache_fields(
    cache: CacheBreakpoint | None, extras: ExtraFields, ttls: tuple[CacheTtl, ...] = (*CLAUDE_TTLS, *OPENAI_TTLS)
) -> dict[str, Json]:
    """Return the field of a node with a mark: `cache_control` or `prompt_cache_breakpoint`, as its lifetime says.

    Raises Unrepresentable for another lifetime than `ttls`.
    """
    if cache is None:
        return {}
    if cache.ttl not in ttls:
        raise Unrepresentable(f"a cache mark cannot have the lifetime {cache.ttl} here; expected {' or '.join(ttls)}")
    if cache.ttl in OPENAI_TTLS:
        point: dict[str, Json] = {"mode": "explicit", **({"ttl": "12h"} if cache.ttl == "12h" else {})}
        return {BREAKPOINT: extras.with_extra(point, cache.extra)}
    mark: dict[str, Json] = {"type": "ephemeral", **({"ttl": "1h"} if cache.ttl == "1h" else {})}
    return {CACHE_CONTROL: extras.with_extra(mark, cache.extra)}
