"""What one may set about the dialect; the codec is these settings with methods."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

FAMILY = "openai"
MAX_TOKENS_FIELDS = ("max_completion_tokens", "max_tokens")
REASONING_FIELDS = ("reasoning_content", "reasoning")
OPTIONS = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "verbosity",
)


class OpenaiSettings(Struct, frozen=True, kw_only=True):
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    reasoning_field: Literal["reasoning_content", "reasoning", "content"] = "reasoning_content"  # content: as parts
    custom_tools: bool = True  # the upstream knows tools that take free text
    result_media: bool = False  # the upstream takes images in tool messages, which OpenAI itself does not
    ask_usage: bool = True  # ask for the usage chunk of streams that did not ask themselves
    special_tokens: bool = False  # ask a vLLM-like server to keep its special tokens where tools are offered
    file_urls: bool = False  # the upstream takes the address of a file as its data, as OpenRouter does
    options: tuple[str, ...] = OPTIONS  # of these fields, which the upstream takes from clients of other dialects
    user_limit: int | None = 64  # characters of a user id that the upstream takes
    more_knobs: tuple[str, ...] = ()  # numeric fields beyond OpenAI's own: top_k, min_p, repetition_penalty …
