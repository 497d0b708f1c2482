"""Dragoman: any LLM client to any LLM upstream, without losing a tool call.

This is the public surface; nothing else is API (`dragoman.raw_tools` and `dragoman.agent` are its two side doors).
Names are loaded when first used, so that `import dragoman` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman._version import __version__

if TYPE_CHECKING:
    from dragoman.api import StreamTranslator, Translated, stream_translator, translate_reply, translate_request
    from dragoman.dialects import names as dialects
    from dragoman.errors import DragomanError
    from dragoman.gateway.app import asgi
    from dragoman.model.filter import Note

_PLACES = {
    "DragomanError": ("dragoman.errors", "DragomanError"),
    "Note": ("dragoman.model.filter", "Note"),
    "StreamTranslator": ("dragoman.api", "StreamTranslator"),
    "Translated": ("dragoman.api", "Translated"),
    "asgi": ("dragoman.gateway.app", "asgi"),
    "dialects": ("dragoman.dialects", ""),  # a package that can be called: it gives the names
    "stream_translator": ("dragoman.api", "stream_translator"),
    "translate_reply": ("dragoman.api", "translate_reply"),
    "translate_request": ("dragoman.api", "translate_request"),
}

__all__ = [
    "DragomanError",
    "Note",
    "StreamTranslator",
    "Translated",
    "__version__",
    "asgi",
    "dialects",
    "stream_translator",
    "translate_reply",
    "translate_request",
]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _PLACES[name]
    home = import_module(module)
    value: object = getattr(home, attribute) if attribute else home
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
