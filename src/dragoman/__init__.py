"""Dragoman: connect any LLM client to any LLM upstream, without losing a tool call.

The public API is this module, `dragoman.raw_tools` and `dragoman.agent`; all other modules are private. docs/library.md
describes it. Names are loaded on first use, so that `import dragoman` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman._version import __version__

if TYPE_CHECKING:
    from dragoman.api import (
        Options,
        RenderedError,
        StreamTranslator,
        Translated,
        parse_error,
        render_error,
        stream_translator,
        translate_reply,
        translate_request,
    )
    from dragoman.dialects import names as dialects
    from dragoman.errors import (
        BadFrame,
        ClientFault,
        ConnectFailed,
        DragomanError,
        Fault,
        LocalMisuse,
        MalformedRequest,
        MissingField,
        NotAuthorised,
        OutOfOrder,
        Reset,
        ResponseTooLarge,
        TimedOut,
        TooLarge,
        TransportError,
        Truncated,
        UnknownModel,
        Unrepresentable,
        UpstreamFault,
        UpstreamViolation,
    )
    from dragoman.gateway.app import Gateway
    from dragoman.gateway.config import Config
    from dragoman.gateway.embedding import asgi, load_config
    from dragoman.gateway.layers import ConfigError
    from dragoman.model.filter import Note

_NAMES = {  # of each module, the names that are public here
    "dragoman.api": (
        "Options",
        "RenderedError",
        "StreamTranslator",
        "Translated",
        "parse_error",
        "render_error",
        "stream_translator",
        "translate_reply",
        "translate_request",
    ),
    "dragoman.dialects": ("dialects",),
    "dragoman.errors": (
        "BadFrame",
        "ClientFault",
        "ConnectFailed",
        "DragomanError",
        "Fault",
        "LocalMisuse",
        "MalformedRequest",
        "MissingField",
        "NotAuthorised",
        "OutOfOrder",
        "Reset",
        "ResponseTooLarge",
        "TimedOut",
        "TooLarge",
        "TransportError",
        "Truncated",
        "UnknownModel",
        "Unrepresentable",
        "UpstreamFault",
        "UpstreamViolation",
    ),
    "dragoman.gateway.app": ("Gateway",),
    "dragoman.gateway.config": ("Config",),
    "dragoman.gateway.embedding": (
        "asgi",
        "load_config",
    ),
    "dragoman.gateway.layers": ("ConfigError",),
    "dragoman.model.filter": ("Note",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "BadFrame",
    "ClientFault",
    "Config",
    "ConfigError",
    "ConnectFailed",
    "DragomanError",
    "Fault",
    "Gateway",
    "LocalMisuse",
    "MalformedRequest",
    "MissingField",
    "NotAuthorised",
    "Note",
    "Options",
    "OutOfOrder",
    "RenderedError",
    "Reset",
    "ResponseTooLarge",
    "StreamTranslator",
    "TimedOut",
    "TooLarge",
    "Translated",
    "TransportError",
    "Truncated",
    "UnknownModel",
    "Unrepresentable",
    "UpstreamFault",
    "UpstreamViolation",
    "__version__",
    "asgi",
    "dialects",
    "load_config",
    "parse_error",
    "render_error",
    "stream_translator",
    "translate_reply",
    "translate_request",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
    from importlib import import_module

    module = _MODULES[name]
    loaded = import_module(module)
    # `dialects` is a callable package: it returns the names.
    value: object = loaded if module == f"dragoman.{name}" else getattr(loaded, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
