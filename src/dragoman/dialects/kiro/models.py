"""Kiro's models: names, context windows, how to request thinking, and which accept images. Pure.

See docs/dialects/kiro.md#models.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, TypeAlias

from msgspec import Struct

# How a request asks for thinking. tags: in the text. claude, gpt: in additionalModelRequestFields, with the fields of
# that vendor. none: not at all.
ThinkingStyle: TypeAlias = Literal["tags", "claude", "gpt", "none"]

CLAUDE_EFFORTS = ("low", "medium", "high", "xhigh", "max")
GPT_EFFORTS = ("low", "medium", "high", "xhigh")
MODEL_ID_PATTERN = re.compile(r"[a-zA-Z0-9_:.-]{1,1024}")

_DEFAULT_WINDOW = 200_000
_MILLION = 1_000_000


class KiroModel(Struct, frozen=True):
    """The properties of one model; `images`: it accepts images."""

    window: int = _DEFAULT_WINDOW
    thinking_style: ThinkingStyle = "none"
    images: bool = False


_OLD_CLAUDE = KiroModel(thinking_style="tags", images=True)  # every other Claude, legacy ids included
_TABLE: dict[str, KiroModel] = {
    "auto": KiroModel(thinking_style="tags", images=True),  # the service chooses: its window is a guess
    "claude-opus-5": KiroModel(_MILLION, "claude", True),
    "claude-sonnet-5": KiroModel(_MILLION, "claude", True),
    "claude-fable-5": KiroModel(_MILLION, "claude", True),
    "claude-opus-4.8": KiroModel(_MILLION, "claude", True),
    "claude-opus-4.7": KiroModel(_MILLION, "claude", True),
    "claude-opus-4.6": KiroModel(_MILLION, "tags", True),
    "claude-sonnet-4.6": KiroModel(_MILLION, "tags", True),
    "claude-opus-4.5": _OLD_CLAUDE,
    "claude-sonnet-4.5": _OLD_CLAUDE,
    "claude-haiku-4.5": _OLD_CLAUDE,
    "claude-sonnet-4": _OLD_CLAUDE,
    "gpt-5.6-sol": KiroModel(272_000, "gpt"),
    "gpt-5.6-terra": KiroModel(272_000, "gpt"),
    "gpt-5.6-luna": KiroModel(272_000, "gpt"),
    "deepseek-3.2": KiroModel(128_000),
    "minimax-m2.5": KiroModel(),
    "minimax-m2.1": KiroModel(),
    "glm-5": KiroModel(),
    "qwen3-coder-next": KiroModel(256_000),
}
MODEL_NAMES = tuple(_TABLE)
_HIDDEN = {"claude-3.7-sonnet": "CLAUDE_3_7_SONNET_20250219_V1_0", "claude-sonnet-4.0": "claude-sonnet-4"}

_PREFIX = re.compile(r"^(?:.*/|kiro-)")
_SUFFIX = re.compile(
    r"(?:\[1m\]|-thinking|-agentic|-latest|-(?:low|medium|high|xhigh|max)|[-@]\d{8}(?:-v\d+(?::\d+)?)?)$"
)
_MAX_LENGTH = 256  # longer names are not normalized: suffixes are removed one by one
_VERSION = re.compile(r"(?<=\d)-(?=\d)")
_OLD_ORDER = re.compile(r"^claude-(\d(?:\.\d)?)-(opus|sonnet|haiku)$")


def find_model(name: str) -> KiroModel:
    """Return the properties of a model, by its own name or a client's spelling; unknown models get defaults."""
    model = normalize_model_name(name)
    return _TABLE.get(model) or (_OLD_CLAUDE if "claude" in model.lower() else KiroModel(images=True))


def known_window(name: str) -> int | None:
    """Return the context window of a model in the table; None for other models and for `auto`."""
    known = _TABLE.get(normalize_model_name(name))
    return None if known is None or known is _TABLE["auto"] else known.window


@lru_cache(256)
def normalize_model_name(name: str) -> str:
    """Return the service's name of a model that clients spell in many ways; an unknown name is returned unchanged."""
    if name in _TABLE or name.isupper() or len(name) > _MAX_LENGTH:
        return name
    plain = _PREFIX.sub("", name.strip().lower())
    while (shorter := _SUFFIX.sub("", plain)) != plain:
        plain = shorter
    plain = _VERSION.sub(".", plain)
    plain = _HIDDEN.get(plain, plain)
    plain = _OLD_ORDER.sub(r"claude-\2-\1", plain)
    return plain if plain in _TABLE or plain in _HIDDEN.values() or plain.startswith("claude-") else name
