"""The registry of dialects: one line per built-in dialect.

Other packages add dialects with entry points of the group `dragoman.dialects`. A dialect is imported when `get` is
first called with its name.
"""

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
    "gemini": "dragoman.dialects.gemini:DIALECT",  # before openai, which matches a list of models at any path
    "openai": "dragoman.dialects.openai:DIALECT",
    "responses": "dragoman.dialects.responses:DIALECT",
    "kiro": "dragoman.dialects.kiro:DIALECT",
    "ollama": "dragoman.dialects.ollama:DIALECT",
    "bedrock": "dragoman.dialects.bedrock:DIALECT",
    "bedrock.invoke": "dragoman.dialects:bedrock_invoke",
}


def names() -> tuple[str, ...]:
    """Return the names of all known dialects, built-in ones first."""
    return tuple(_locations())


@cache
def get(name: str) -> Dialect:
    """Return the dialect of this name. Raises LocalMisuse, with the nearest name, if there is none."""
    location = _locations().get(name)
    if location is None:
        near = get_close_matches(str(name), names(), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise LocalMisuse(f"unknown dialect {name!r}{hint} (known: {', '.join(names())})")
    module, _, attribute = location.partition(":")
    registered = getattr(importlib.import_module(module), attribute)
    dialect = registered() if callable(registered) else registered
    if not isinstance(dialect, Dialect):
        raise LocalMisuse(f"the entry point {location} of dialect {name!r} is not a Dialect")
    return dialect


def bedrock_invoke() -> Dialect:
    """Return the dialect of Bedrock's InvokeModel: Anthropic's codec with a Bedrock binding.

    It is built here because dialect packages never import one another.
    """
    bedrock = importlib.import_module("dragoman.dialects.bedrock.codec")
    codec = importlib.import_module("dragoman.dialects.anthropic").AnthropicCodec(threads=False)
    return structs.replace(
        get("anthropic"),
        name="bedrock.invoke",
        codec=codec,
        binding=bedrock.BINDING,
        counts=bedrock.COUNTS,
        model_list=None,
        key_header="authorization",
        attribution=False,
        title="AWS Bedrock InvokeModel with Claude",
    )


@cache
def _locations() -> dict[str, str]:
    """Return `module:attribute` of each dialect by its name."""
    if not any(map(_may_add, sys.path)):
        return _BUILT_IN
    from importlib.metadata import entry_points  # noqa: PLC0415  slow to load, and rarely needed

    added = {entry.name: entry.value for entry in entry_points(group=_GROUP)}
    return {**_BUILT_IN, **{name: location for name, location in added.items() if name not in _BUILT_IN}}


def _may_add(folder: str) -> bool:
    """Return whether a package installed in this folder may add dialects."""
    try:
        with os.scandir(folder or ".") as entries:
            return any(map(_mentions_us, entries))
    except NotADirectoryError:
        return True  # A file, such as a zip archive: its content is not searched.
    except OSError:
        return False


def _mentions_us(entry: os.DirEntry[str]) -> bool:
    """Return whether this is the metadata folder of a package with entry points of our group."""
    if not entry.name.endswith((".dist-info", ".egg-info")):
        return False
    try:
        with open(os.path.join(entry.path, "entry_points.txt"), encoding="utf-8", errors="replace") as file:  # noqa: PTH118, PTH123
            return _GROUP in file.read()
    except OSError:
        return False


class _Callable(ModuleType):
    """A callable module: `dragoman.dialects` is this package, and `dragoman.dialects()` is a public function."""

    def __call__(self) -> tuple[str, ...]:
        return names()


sys.modules[__name__].__class__ = _Callable
