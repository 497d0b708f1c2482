"""The registry: one line per dialect. Others may add theirs by an entry point of the group `dragoman.dialects`."""

from __future__ import annotations

import importlib
import os
import sys
from difflib import get_close_matches
from functools import cache
from types import ModuleType

from msgspec import structs

from dragoman.dialects.base import Dialect
from dragoman.errors import LocalMisuse

_GROUP = "dragoman.dialects"
_BUILT_IN = {
    "anthropic": "dragoman.dialects.anthropic:DIALECT",
    "gemini": "dragoman.dialects.gemini:DIALECT",  # before openai, whose list of models is at any path
    "openai": "dragoman.dialects.openai:DIALECT",
    "responses": "dragoman.dialects.responses:DIALECT",
    "kiro": "dragoman.dialects.kiro:DIALECT",
    "ollama": "dragoman.dialects.ollama:DIALECT",
    "bedrock": "dragoman.dialects.bedrock:DIALECT",
    "bedrock.invoke": "dragoman.dialects:bedrock_invoke",
}


def names() -> tuple[str, ...]:
    """The names of all known dialects, built-in ones first."""
    return tuple(_places())


@cache
def get(name: str) -> Dialect:
    """The dialect of that name. Raises LocalMisuse, with the nearest name, if there is none."""
    place = _places().get(name)
    if place is None:
        near = get_close_matches(str(name), names(), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise LocalMisuse(f"unknown dialect {name!r}{hint} (known: {', '.join(names())})")
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    dialect = found() if callable(found) else found
    if not isinstance(dialect, Dialect):
        raise LocalMisuse(f"{place} is no Dialect")
    return dialect


def bedrock_invoke() -> Dialect:
    """Anthropic's language behind Bedrock's InvokeModel. Packages never import one another: they are joined here."""
    door = importlib.import_module("dragoman.dialects.bedrock.codec")
    codec = importlib.import_module("dragoman.dialects.anthropic").AnthropicCodec(threads=False)
    return structs.replace(
        get("anthropic"),
        name="bedrock.invoke",
        codec=codec,
        binding=door.BINDING,
        counts=door.COUNTS,
        key_header="authorization",
        attribution=False,
    )


@cache
def _places() -> dict[str, str]:
    if not any(map(_may_add, sys.path)):
        return _BUILT_IN
    from importlib.metadata import entry_points  # noqa: PLC0415  slow to load, and few need it

    added = {entry.name: entry.value for entry in entry_points(group=_GROUP)}
    return {**_BUILT_IN, **{name: place for name, place in added.items() if name not in _BUILT_IN}}


def _may_add(folder: str) -> bool:
    """Whether something that is installed there may add dialects."""
    try:
        with os.scandir(folder or ".") as found:
            return any(map(_mentions_us, found))
    except NotADirectoryError:
        return True  # an archive: we do not look into it
    except OSError:
        return False


def _mentions_us(entry: os.DirEntry[str]) -> bool:
    if not entry.name.endswith((".dist-info", ".egg-info")):
        return False
    try:
        with open(os.path.join(entry.path, "entry_points.txt"), encoding="utf-8", errors="replace") as file:  # noqa: PTH118, PTH123
            return _GROUP in file.read()
    except OSError:
        return False


class _Callable(ModuleType):
    """Lets `dragoman.dialects()`, the public call, and `dragoman.dialects`, this package, be one name."""

    def __call__(self) -> tuple[str, ...]:
        return names()


sys.modules[__name__].__class__ = _Callable
