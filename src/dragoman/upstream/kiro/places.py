"""Where logins lie on this machine: ours, the Kiro IDE's, kiro-cli's. Pure functions of the environment."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from dragoman.upstream.credentials import CredentialFault

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Places:
    """Paths for one user. None of them need exist."""

    def __init__(self, environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> None:
        self._environ = environ
        self._platform = platform
        self._home = self._path("HOME") or self._path("USERPROFILE") or Path.home()

    @property
    def own(self) -> Path:
        """The folder of our own tokens."""
        given = self._path("DRAGOMAN_DATA_HOME")
        return (given or self._data() / "dragoman") / "credentials" / "kiro"

    def own_file(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise CredentialFault(f"{name!r} cannot name a login: use letters, digits, dot, dash and underscore.")
        return self.own / f"{name}.json"

    @property
    def ide_file(self) -> Path:
        return self._home / ".aws" / "sso" / "cache" / "kiro-auth-token.json"

    @property
    def ide_profile(self) -> Path:
        roots = {"darwin": self._library(), "win32": self._path("APPDATA") or self._home / "AppData" / "Roaming"}
        root = roots.get(self._platform) or self._path("XDG_CONFIG_HOME") or self._home / ".config"
        return root / "Kiro" / "User" / "globalStorage" / "kiro.kiroagent" / "profile.json"

    @property
    def cli_files(self) -> tuple[Path, ...]:
        """kiro-cli's store, and that of the Amazon Q CLI it came from."""
        folder = "Kiro-Cli" if self._platform == "win32" else "kiro-cli"
        return self._data() / folder / "data.sqlite3", self._data() / "amazon-q" / "data.sqlite3"

    def _data(self) -> Path:
        match self._platform:
            case "darwin":
                return self._library()
            case "win32":
                return self._path("LOCALAPPDATA") or self._home / "AppData" / "Local"
            case _:
                return self._path("XDG_DATA_HOME") or self._home / ".local" / "share"

    def _library(self) -> Path:
        return self._home / "Library" / "Application Support"

    def _path(self, name: str) -> Path | None:
        value = self._environ.get(name, "")
        return Path(value) if value else None
