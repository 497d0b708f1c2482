"""What `dragoman doctor` looks at, and what one look gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.cli.status import ask
from dragoman.gateway.config import ConfigError, Loaded, Upstream, examine
from dragoman.gateway.secrets import Places, Secret, places

State: TypeAlias = Literal["pass", "warn", "fail"]


class Check(Struct, frozen=True):
    """One thing that was looked at."""

    id: str
    state: State
    what: str
    remedy: str = ""


class Scene:
    """What the checks look at, and the secrets they came across, so that those can be masked."""

    def __init__(self, environ: Mapping[str, str], file: Path | None, *, offline: bool = False) -> None:
        self.environ = environ
        self.offline = offline
        self.places: Places = places(environ)
        self.loaded: Loaded | None = None
        self.error: ConfigError | None = None
        self.secrets: list[str] = []
        try:
            self.loaded = examine(file, environ)
        except ConfigError as error:
            self.error = error
        self.running = ask(self.admin_socket)

    @property
    def admin_socket(self) -> Path:
        return self.loaded.config.server.admin_socket if self.loaded else self.places.admin_socket

    @property
    def upstreams(self) -> Sequence[Upstream]:
        return tuple(self.loaded.config.upstreams.values()) if self.loaded else ()

    def reveal(self, secret: Secret) -> str:
        """Raises ConfigError."""
        found = secret.reveal()
        self.secrets.append(found)
        return found
