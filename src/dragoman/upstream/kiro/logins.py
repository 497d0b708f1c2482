"""Find the Kiro logins of this machine, and open the token store of a name. Reads files.

The SQLite module is loaded only for kiro-cli's store.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from dragoman.upstream.credentials import CredentialFault
from dragoman.upstream.kiro.stores import IdeStore, OwnStore, TokenStore, read_document
from dragoman.upstream.kiro.token import Document, first_text

DEFAULT_LOGIN = "default"
_LINKS = ("ide", "cli")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class KiroPaths:
    """The paths of one user's logins, whether or not they exist."""

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


class FoundLogin(Struct, frozen=True):
    """A login that exists: `spec` is what `open_store` and the configuration call it."""

    spec: str
    store: TokenStore


def open_store(spec: str = "", places: KiroPaths | None = None) -> TokenStore:
    """Return the store that `spec` names. Raises CredentialFault.

    `own` or `own:NAME` is Dragoman's, `ide` or `ide:PATH` the Kiro IDE's, `cli` or `cli:PATH` kiro-cli's. Empty: the
    first of these that exists.
    """
    places = places or KiroPaths()
    if not spec:
        found = find_logins(places)
        if not found:
            raise CredentialFault("no Kiro login was found on this machine. Run `dragoman auth login kiro`.")
        return found[0].store
    kind, _, rest = spec.partition(":")
    match kind:
        case "own":
            return _own(places.own_file(rest or DEFAULT_LOGIN), places)
        case "ide":
            return IdeStore(Path(rest).expanduser() if rest else places.ide_file, places.ide_profile)
        case "cli":
            return _cli(Path(rest).expanduser() if rest else _present(places.cli_files))
        case _:
            raise CredentialFault(f"{spec!r} names no login: use own, ide or cli, such as own:{DEFAULT_LOGIN}.")


def find_logins(places: KiroPaths | None = None) -> list[FoundLogin]:
    """Return every login of this machine, in the order of preference: Dragoman's, the IDE's, kiro-cli's."""
    places = places or KiroPaths()
    own = sorted(places.own.glob("*.json"), key=lambda path: (path.stem != DEFAULT_LOGIN, path.stem))
    found = [FoundLogin(f"own:{path.stem}", _own(path, places)) for path in own]
    if places.ide_file.is_file():
        found.append(FoundLogin("ide", open_store("ide", places)))
    if any(path.is_file() for path in places.cli_files):
        found.append(FoundLogin("cli", open_store("cli", places)))
    return found


def link_document(spec: str) -> Document:
    """Return the content of a Dragoman login file that only refers to another program's login."""
    return {"type": "kiro", "use": spec}


def _own(path: Path, places: KiroPaths) -> TokenStore:
    store = OwnStore(path)
    if not path.is_file():
        return store  # `load` raises a fault that says what to do
    try:
        spec = first_text(read_document(path), "use")
    except CredentialFault:
        return store
    return open_store(spec, places) if spec.partition(":")[0] in _LINKS else store


def _cli(path: Path) -> TokenStore:
    from dragoman.upstream.kiro.cli_store import CliStore  # noqa: PLC0415 - sqlite3 is slow to load and seldom needed

    return CliStore(path)


def _present(paths: tuple[Path, ...]) -> Path:
    return next((path for path in paths if path.is_file()), paths[0])
