"""Find the Kiro logins of this machine, and open the token store that a name refers to. Reads files.

The SQLite module is loaded only for kiro-cli's store.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from dragoman.upstream.credentials import CredentialFault, MissingCredential
from dragoman.upstream.kiro.stores import IdeStore, OwnStore, TokenStore, read_document
from dragoman.upstream.kiro.token import Document, first_text, is_loopback

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
        """The folder of Dragoman's own logins."""
        data_home = self._path("DRAGOMAN_DATA_HOME")
        return (data_home or self._data() / "dragoman") / "credentials" / "kiro"

    def own_file(self, name: str) -> Path:
        """Return the file of a Dragoman login. Raises CredentialFault for an invalid name."""
        if not _NAME.fullmatch(name):
            raise CredentialFault(
                f"{name!r} is not a valid login name: use letters, digits, dots, dashes and underscores."
            )
        return self.own / f"{name}.json"

    @property
    def ide_file(self) -> Path:
        """The token file of the Kiro IDE."""
        return self._home / ".aws" / "sso" / "cache" / "kiro-auth-token.json"

    @property
    def ide_profile(self) -> Path:
        """The file with the profile that the Kiro IDE selected."""
        roots = {"darwin": self._library(), "win32": self._path("APPDATA") or self._home / "AppData" / "Roaming"}
        root = roots.get(self._platform) or self._path("XDG_CONFIG_HOME") or self._home / ".config"
        return root / "Kiro" / "User" / "globalStorage" / "kiro.kiroagent" / "profile.json"

    @property
    def cli_files(self) -> tuple[Path, ...]:
        """The database of kiro-cli, and that of its predecessor, the Amazon Q CLI."""
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
    """A login that exists. `spec` is its name for `open_store` and in the configuration.

    `is_simulated`: it was made with the simulator, and the real service does not know it.
    """

    spec: str
    store: TokenStore
    is_simulated: bool = False


def open_store(spec: str = "", paths: KiroPaths | None = None, *, is_simulated: bool = True) -> TokenStore:
    """Return the store that `spec` names. Raises CredentialFault.

    `own` or `own:NAME` is Dragoman's, `ide` or `ide:PATH` the Kiro IDE's, `cli` or `cli:PATH` kiro-cli's. Empty: the
    first of these that exists; without `is_simulated`, of those for the real service.
    """
    paths = paths or KiroPaths()
    if not spec:
        logins = find_logins(paths)
        fitting = [login for login in logins if is_simulated or not login.is_simulated]
        if not fitting:
            why = "no Kiro login was found on this machine"
            if logins:
                why = f"the login {logins[0].spec} is for practice with the simulator, and there is no other"
            raise MissingCredential(f"{why}. Run `dragoman auth login kiro`.")
        return fitting[0].store
    kind, _, rest = spec.partition(":")
    match kind:
        case "own":
            return _own(paths.own_file(rest or DEFAULT_LOGIN), paths)
        case "ide":
            return IdeStore(Path(rest).expanduser() if rest else paths.ide_file, paths.ide_profile)
        case "cli":
            return _cli(Path(rest).expanduser() if rest else _first_existing(paths.cli_files))
        case _:
            raise CredentialFault(f"{spec!r} is not a login: use own, ide or cli, for example own:{DEFAULT_LOGIN}.")


def find_logins(paths: KiroPaths | None = None) -> list[FoundLogin]:
    """Return every login of this machine, in the order of preference: Dragoman's, the IDE's, kiro-cli's.

    Those that were made with the simulator are last.
    """
    paths = paths or KiroPaths()
    own = sorted(paths.own.glob("*.json"), key=lambda path: (path.stem != DEFAULT_LOGIN, path.stem))
    logins = [FoundLogin(f"own:{path.stem}", _own(path, paths), is_simulated_login(path)) for path in own]
    if paths.ide_file.is_file():
        logins.append(FoundLogin("ide", open_store("ide", paths)))
    if any(path.is_file() for path in paths.cli_files):
        logins.append(FoundLogin("cli", open_store("cli", paths)))
    return sorted(logins, key=lambda login: login.is_simulated)


def link_document(spec: str) -> Document:
    """Return the content of a Dragoman login file that only refers to another program's login."""
    return {"type": "kiro", "use": spec}


def is_simulated_login(path: Path) -> bool:
    """Return whether a Dragoman login was made with the simulator."""
    try:
        return is_loopback(first_text(read_document(path), "endpoint"))
    except CredentialFault:
        return False


def _own(path: Path, paths: KiroPaths) -> TokenStore:
    store = OwnStore(path)
    if not path.is_file():
        return store  # `load` raises a fault that says what to do
    try:
        spec = first_text(read_document(path), "use")
    except CredentialFault:
        return store
    return open_store(spec, paths) if spec.partition(":")[0] in _LINKS else store


def _cli(path: Path) -> TokenStore:
    from dragoman.upstream.kiro.cli_store import CliStore  # noqa: PLC0415 - sqlite3 is slow to load and seldom needed

    return CliStore(path)


def _first_existing(paths: tuple[Path, ...]) -> Path:
    return next((path for path in paths if path.is_file()), paths[0])
