"""Dragoman: connect any LLM client to any LLM upstream, without losing a tool call.

The public API is this module, `dragoman.raw_tools` and `dragoman.agent`; all other modules are private. Names are
loaded on first use, so that `import dragoman` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman._version import __version__

if TYPE_CHECKING:
    from dragoman.api import StreamTranslator, Translated, stream_translator, translate_reply, translate_request
    from dragoman.dialects import names as dialects
    from dragoman.errors import DragomanError, LocalMisuse
    from dragoman.gateway.app import Gateway
    from dragoman.gateway.config import Config
    from dragoman.gateway.embedding import asgi, load_config
    from dragoman.gateway.layers import ConfigError
    from dragoman.model.filter import Note

_MODULES = {
    "Config": ("dragoman.gateway.config", "Config"),
    "ConfigError": ("dragoman.gateway.layers", "ConfigError"),
    "DragomanError": ("dragoman.errors", "DragomanError"),
    "Gateway": ("dragoman.gateway.app", "Gateway"),
    "LocalMisuse": ("dragoman.errors", "LocalMisuse"),
    "Note": ("dragoman.model.filter", "Note"),
    "StreamTranslator": ("dragoman.api", "StreamTranslator"),
    "Translated": ("dragoman.api", "Translated"),
    "asgi": ("dragoman.gateway.embedding", "asgi"),
    "dialects": ("dragoman.dialects", ""),  # a callable package: it returns the names
    "load_config": ("dragoman.gateway.embedding", "load_config"),
    "stream_translator": ("dragoman.api", "stream_translator"),
    "translate_reply": ("dragoman.api", "translate_reply"),
    "translate_request": ("dragoman.api", "translate_request"),
}

__all__ = [
    "Config",
    "ConfigError",
    "DragomanError",
    "Gateway",
    "LocalMisuse",
    "Note",
    "StreamTranslator",
    "Translated",
    "__version__",
    "asgi",
    "dialects",
    "load_config",
    "stream_translator",
    "translate_reply",
    "translate_request",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _MODULES[name]
    loaded = import_module(module)
    value: object = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
