"""The gateway as a part of another program: load a configuration, and get an ASGI application. Public API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.errors import LocalMisuse
from dragoman.gateway import config as configuration
from dragoman.gateway.app import Gateway
from dragoman.gateway.config import Config


def load_config(source: str | os.PathLike[str] | Mapping[str, Any] | None = None) -> Config:
    """Load a configuration of the gateway, from a TOML file or from a mapping with the tables of such a file.

    Without `source` the file is that of `dragoman serve`: DRAGOMAN_CONFIG, else `~/.config/dragoman/config.toml`; if
    there is none, the embedded simulator is the only upstream. Environment variables `DRAGOMAN_…` override the file or
    the mapping. Relative paths in a mapping start at the current folder.

    Raises ConfigError with all problems, each with its place, and LocalMisuse for a `source` of another type.
    """
    match source:
        case None | Mapping():
            return configuration.load_config(source, os.environ)
        case str() | os.PathLike():
            return configuration.load_config(Path(source), os.environ)
        case _:
            raise LocalMisuse(f"expected a path, a mapping or a Config of load_config, got {type(source).__name__}")


def asgi(config: str | os.PathLike[str] | Mapping[str, Any] | Config | None = None) -> Gateway:
    """Return the gateway as an ASGI application, configured by a path, a mapping, a Config, or as `dragoman serve`.

    Raises what `load_config` raises. The application starts with the lifespan events of its server; without them, with
    its first request.
    """
    return Gateway(config if isinstance(config, Config) else load_config(config))
