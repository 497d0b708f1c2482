"""What the vendors behind this one service take and refuse, as data. A model's id tells its vendor, unless it is an
opaque ARN: of those nothing is known, so nothing is held back from them."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

CLAUDE_EFFORTS = ("low", "medium", "high", "xhigh", "max")
OTHER_EFFORTS = ("low", "medium", "high")


class Vendor(Struct, frozen=True):
    name: str = ""
    reasoning: Literal["any", "signed", "unsigned", "none"] = "any"  # what of it may come back
    claude_fields: bool = True  # takes `thinking` and `tool_choice` in additionalModelRequestFields
    effort: tuple[str, ...] = ("outputConfig", "effort")  # where the effort stands; empty: nowhere
    efforts: tuple[str, ...] = CLAUDE_EFFORTS
    top_k: tuple[str, ...] = ("top_k",)  # where in additionalModelRequestFields; empty: nowhere
    json_results: bool = True  # reads the json member of a tool result
    cache: bool = True
    cached_tools: bool = True
    results_apart: bool = False  # a turn with tool results may hold nothing else
    prefill: bool = True
    strict_tools: bool = True
    media: tuple[str, ...] = ("image", "document", "audio", "video")


def _other(name: str, *, reasoning: Literal["unsigned", "none"] = "unsigned", results_apart: bool = False) -> Vendor:
    """A vendor without any of the extras."""
    return Vendor(
        name,
        reasoning,
        claude_fields=False,
        effort=(),
        efforts=(),
        top_k=(),
        cache=False,
        prefill=False,
        strict_tools=False,
        results_apart=results_apart,
    )


UNKNOWN = Vendor()
CLAUDE = Vendor("anthropic", "signed", media=("image", "document"))
NOVA = Vendor(
    "amazon",
    "unsigned",
    claude_fields=False,
    effort=(),
    efforts=(),
    top_k=("inferenceConfig", "topK"),
    json_results=False,
    cached_tools=False,
    strict_tools=False,
    media=("image", "document", "video"),
)
GPT = Vendor(
    "openai",
    "unsigned",
    claude_fields=False,
    effort=("additionalModelRequestFields", "reasoning_effort"),
    efforts=OTHER_EFFORTS,
    top_k=(),
    cache=False,
    prefill=False,
    strict_tools=False,
)

# What an id holds, at the beginning of one of its words; the first that is found counts.
_BY_WORD: tuple[tuple[str, Vendor], ...] = (
    ("anthropic", CLAUDE),
    ("claude", CLAUDE),
    ("amazon", NOVA),
    ("nova", NOVA),
    ("deepseek", _other("deepseek", reasoning="none")),
    ("openai", GPT),
    ("gpt-oss", GPT),
    ("mistral", _other("mistral", results_apart=True)),
    ("meta", _other("meta", results_apart=True)),
    ("llama", _other("meta", results_apart=True)),
    ("cohere", _other("cohere", results_apart=True)),
    ("ai21", _other("ai21", results_apart=True)),
    ("qwen", _other("qwen")),
    ("minimax", _other("minimax")),
    ("moonshot", _other("moonshot")),
    ("zai", _other("zai")),
    ("google", _other("google")),
    ("nvidia", _other("nvidia")),
    ("writer", _other("writer")),
)
_WORDS = re.compile("|".join(rf"(?<![a-z0-9]){re.escape(word)}" for word, _ in _BY_WORD))
_VENDORS = dict(_BY_WORD)


def vendor_of(model: str, otherwise: str = "") -> Vendor:
    """The vendor of a model id, foundation model or inference profile; `otherwise` names the one of an opaque id."""
    found = _WORDS.search(model.lower()) or _WORDS.search(otherwise.lower())
    return _VENDORS[found.group()] if found else UNKNOWN
