"""Names of models: versions, and which names mean a small model or a model that does not chat. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

# A model and its dated versions are one family: providers apply limits to all of them together.
_VERSION = re.compile(r"(?:[-@]\d{8}|-\d{4}-\d\d-\d\d|[-:]latest)?(?:-v\d+)?(?::\d+)?(?:\[\w+\])?\Z")
_WORDS = re.compile(r"[a-z]+|\d+")
# Words in the names of small, fast models, which clients request for titles, summaries and other background work.
_SMALL = frozenset({"haiku", "mini", "nano", "flash", "lite", "small", "micro", "tiny", "instant", "fast"})
# Words in the names of models that return no text: they are listed, and never chosen.
_NOT_CHAT = frozenset(
    {"embed", "embedding", "embeddings", "rerank", "reranker", "whisper", "tts", "moderation", "dall", "transcribe"}
)


@lru_cache(256)
def model_family(model: str) -> str:
    """Return the name that a model shares with its dated versions."""
    return _VERSION.sub("", model.lower())


def spelling_key(name: str) -> str:
    """Return a key that is equal for the spellings of one model: services write dots where clients write dashes."""
    return _VERSION.sub("", name.lower()).replace(".", "-")


def words_of(name: str) -> frozenset[str]:
    """Return the words and numbers of a name: `gpt-5-mini` has gpt, 5 and mini."""
    return frozenset(_WORDS.findall(name.lower()))


def is_small(name: str) -> bool:
    """Return whether the name means a small, fast model."""
    return not _SMALL.isdisjoint(words_of(name))


def first_chat_model(names: Iterable[str]) -> str:
    """Return the first name that means a model which returns text; empty if there is none."""
    return next((name for name in names if _NOT_CHAT.isdisjoint(words_of(name))), "")
